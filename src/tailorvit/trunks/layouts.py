"""Weights by other people's names to timm's: which layout a file has, and the shape of the tower inside."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tailorvit.errors import TailorError
from tailorvit.trunks.network import PlainTrunk, TrunkFrame

State = dict[str, Tensor]


def _as_is(state: State) -> State:
    return state


@dataclass(frozen=True)
class Layout:
    """One way of naming: the weight every such file has, its names as regular expressions, what the names imply."""

    name: str
    anchor: str  # the patch convolution, after any prefix
    renames: tuple[tuple[str, str], ...]  # whole names, once the prefix is gone
    clip: bool  # made by CLIP's training, normalised as CLIP's images are
    eps: float
    act: str = "gelu"  # where neither a library nor a person says otherwise
    reshape: Callable[[State], State] = _as_is


def _open_clip(state: State) -> State:
    """Tables and tokens with the batch axis timm gives them."""
    return {k: _as_token(v) if k in ("cls_token", "pos_embed") else v for k, v in state.items()}


def _as_token(table: Tensor) -> Tensor:
    return table.reshape(1, -1, table.shape[-1])


def _hf(state: State) -> State:
    """As :func:`_open_clip`, and queries, keys and values joined."""
    out = _open_clip({k: v for k, v in state.items() if not re.search(r"\.attn\.[qkv]\.", k)})
    for key in state:
        if ".attn.q." in key:
            each = [state.get(key.replace(".attn.q.", f".attn.{part}.")) for part in "qkv"]
            found = [t for t in each if t is not None]
            if len(found) == 3:  # otherwise qkv stays absent, and is named as missing
                out[key.replace(".attn.q.", ".attn.qkv.")] = torch.cat(found)
    return out


LAYOUTS = (
    Layout("timm", "patch_embed.proj.weight", ((r"(.*)", r"\1"),), False, 1e-6),
    Layout(
        "open_clip",
        "conv1.weight",
        (
            (r"conv1\.(\w+)", r"patch_embed.proj.\1"),
            (r"class_embedding", "cls_token"),
            (r"positional_embedding", "pos_embed"),
            (r"ln_pre\.(\w+)", r"norm_pre.\1"),
            (r"transformer\.resblocks\.(\d+)\.ln_(\d)\.(\w+)", r"blocks.\1.norm\2.\3"),
            (r"transformer\.resblocks\.(\d+)\.attn\.in_proj_(\w+)", r"blocks.\1.attn.qkv.\2"),
            (r"transformer\.resblocks\.(\d+)\.attn\.out_proj\.(\w+)", r"blocks.\1.attn.proj.\2"),
            (r"transformer\.resblocks\.(\d+)\.mlp\.c_fc\.(\w+)", r"blocks.\1.mlp.fc1.\2"),
            (r"transformer\.resblocks\.(\d+)\.mlp\.c_proj\.(\w+)", r"blocks.\1.mlp.fc2.\2"),
            (r"transformer\.resblocks\.(\d+)\.ls_(\d)\.gamma", r"blocks.\1.ls\2.gamma"),
            (r"transformer\.resblocks\.(.*)", r"blocks.\1"),
        ),
        True,
        1e-5,
        reshape=_open_clip,
    ),
    Layout(
        "transformers",
        "embeddings.patch_embedding.weight",
        (
            (r"embeddings\.patch_embedding\.(\w+)", r"patch_embed.proj.\1"),
            (r"embeddings\.class_embedding", "cls_token"),
            (r"embeddings\.position_embedding\.weight", "pos_embed"),
            (r"pre_layrnorm\.(\w+)", r"norm_pre.\1"),  # spelt so in the library
            (r"encoder\.layers\.(\d+)\.layer_norm(\d)\.(\w+)", r"blocks.\1.norm\2.\3"),
            (r"encoder\.layers\.(\d+)\.self_attn\.([qkv])_proj\.(\w+)", r"blocks.\1.attn.\2.\3"),
            (r"encoder\.layers\.(\d+)\.self_attn\.out_proj\.(\w+)", r"blocks.\1.attn.proj.\2"),
            (r"encoder\.layers\.(\d+)\.mlp\.(\w+)\.(\w+)", r"blocks.\1.mlp.\2.\3"),
            (r"encoder\.layers\.(.*)", r"blocks.\1"),
        ),
        True,
        1e-5,
        "quick_gelu",
        _hf,
    ),
)


def recognised(state: Mapping[str, Any], where: str) -> tuple[Layout, State]:
    """The layout of a state dict, and its tower by timm's names; a prefix such as ``visual.`` is taken off."""
    for layout in LAYOUTS:
        ends = [k.removesuffix(layout.anchor) for k in state if k == layout.anchor or k.endswith(f".{layout.anchor}")]
        # A whole CLIP has one image tower; the shortest prefix is the network's own.
        for prefix in sorted(ends, key=len)[:1]:
            inside = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
            return layout, layout.reshape(dict(_renamed(inside, layout)))
    known = ", ".join(f"{x.name} ({x.anchor})" for x in LAYOUTS)
    first = next(iter(state), "nothing")
    raise TailorError(
        f"The weights in {where} are no image tower known here, by the names of {known}; they begin with '{first}'."
    )


def _renamed(state: Mapping[str, Tensor], layout: Layout) -> Iterator[tuple[str, Tensor]]:
    for key, value in state.items():
        for pattern, name in layout.renames:
            found = re.fullmatch(pattern, key)
            if found:
                yield found.expand(name), value
                break


def tower_frame(state: State, layout: Layout, where: str, told: Mapping[str, Any]) -> TrunkFrame:
    """The shape of a tower, from the shapes of its weights; ``told`` says what they cannot (heads, act, eps)."""

    def shape(name: str) -> tuple[int, ...]:
        if name not in state:
            raise TailorError(f"The tower in {where} lacks '{name}'.")
        return tuple(state[name].shape)

    embed, channels, patch, across = shape("patch_embed.proj.weight")
    if patch != across:
        raise TailorError(f"The tower in {where} has patches of {patch}x{across} px; only square ones are known here.")
    depth = 1 + max((int(k.split(".")[1]) for k in state if re.match(r"blocks\.\d+\.", k)), default=-1)
    hidden, inner = shape("blocks.0.mlp.fc1.weight")[0], shape("blocks.0.mlp.fc2.weight")[1]
    if hidden != inner:
        raise TailorError(f"The tower in {where} has gated MLPs ({hidden} and {inner} wide), which are not known here.")
    class_token, registers = "cls_token" in state, shape("reg_token")[1] if "reg_token" in state else 0
    rows, prefix = shape("pos_embed")[1], int(class_token) + registers
    with_prefix = math.isqrt(max(rows - prefix, 0)) ** 2 == rows - prefix and rows > prefix
    alone = math.isqrt(rows) ** 2 == rows
    if not (with_prefix or alone):
        raise TailorError(
            f"The tower in {where} has {rows} positions, which with {prefix} token(s) are no square grid."
        )
    own = with_prefix and not (alone and registers)  # registers came with positions for patches only
    side = math.isqrt(rows - prefix if own else rows)
    heads = int(told.get("heads", max(embed // 64, 1)))
    if embed % heads:
        raise TailorError(f"{heads} heads do not divide the width {embed} of the tower in {where}.")
    return TrunkFrame(
        image_size=(side * patch, side * patch),
        channels=channels,
        patch=patch,
        embed=embed,
        depth=depth,
        taps=depth,
        heads=heads,
        hidden=hidden,
        act=told.get("act", layout.act),
        pre_norm="norm_pre.weight" in state,
        class_token=class_token,
        registers=registers,
        prefix_positions=own,
        layer_scale="blocks.0.ls1.gamma" in state,
        qkv_bias="blocks.0.attn.qkv.bias" in state,
        patch_bias="patch_embed.proj.bias" in state,
        eps=float(told.get("eps", 1e-5 if "norm_pre.weight" in state else layout.eps)),
    )


_BEHIND = ("norm.", "head", "fc_norm.", "attn_pool.", "mask_token", "ln_post.", "proj")  # after the blocks: unused


def tower_state(state: State, frame: TrunkFrame, where: str) -> State:
    """The weights the frame asks for; one that is absent, misshapen or of a part unknown here is named."""
    with torch.device("meta"):
        wanted = {k: tuple(v.shape) for k, v in PlainTrunk(frame).state_dict().items()}
    for name, shape in wanted.items():
        if name not in state:
            raise TailorError(f"The tower in {where} lacks '{name}'.")
        if tuple(state[name].shape) != shape:
            have = tuple(state[name].shape)
            raise TailorError(f"'{name}' in {where} has the shape {have} where the tower needs {shape}.")
    for name in state:
        if name not in wanted and not name.startswith(_BEHIND):
            raise TailorError(f"The tower in {where} has '{name}', a part that is not known here.")
    return {k: state[k] for k in wanted}
