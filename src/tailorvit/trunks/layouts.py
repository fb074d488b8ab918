"""Weights of image towers by timm's names, whatever library named them: ``LAYOUTS`` is the table."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tailorvit.errors import TailorError
from tailorvit.trunks.tower import Stats

State = dict[str, Tensor]

# How images were normalised when the tower was trained.
NORMS: Mapping[str, Stats] = {
    "clip": ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "half": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
}


def _fold_class_position(state: State) -> State:
    """Where there are registers timm has positions for patches only: the class token's goes into the token."""
    table = state.get("pos_embed")
    if "reg_token" not in state or "cls_token" not in state or table is None or table.dim() != 3:
        return state
    if math.isqrt(table.shape[1] - 1) ** 2 != table.shape[1] - 1:
        return state
    return {**state, "cls_token": state["cls_token"] + table[:, :1], "pos_embed": table[:, 1:]}


@dataclass(frozen=True)
class Layout:
    """One way of naming weights."""

    name: str
    anchor: str  # the patch convolution's weight, after any prefix; every such file has it
    renames: tuple[tuple[str, str], ...]  # regular expressions for whole names, without the prefix
    clip: bool  # trained by CLIP, with CLIP's normalisation
    eps: float
    act: str = "gelu"  # where neither a library nor the user says otherwise
    reshape: Callable[[State], State] = _fold_class_position


def _add_batch_axis(state: State) -> State:
    """Tables and tokens with the batch axis that timm gives them."""
    return {k: v.reshape(1, -1, v.shape[-1]) if k in ("cls_token", "pos_embed") else v for k, v in state.items()}


def _join_qkv(state: State) -> State:
    """As :func:`_add_batch_axis` and :func:`_fold_class_position`, and queries, keys and values joined."""
    out = _add_batch_axis({k: v for k, v in state.items() if not re.search(r"\.attn\.[qkv]\.", k)})
    for key in state:
        if ".attn.q." in key:
            parts = [state.get(key.replace(".attn.q.", f".attn.{part}.")) for part in "qkv"]
            found = [t for t in parts if t is not None]
            if len(found) == 3:  # otherwise qkv stays absent, and is named as missing
                out[key.replace(".attn.q.", ".attn.qkv.")] = torch.cat(found)
    return _fold_class_position(out)


_LAYER = r"(?:encoder\.)?layers?\.(\d+)\."
LAYOUTS = (
    Layout(
        "timm",
        "patch_embed.proj.weight",
        (  # DINOv2's released files differ in these
            (r"register_tokens", "reg_token"),
            (r"blocks\.(\d+)\.mlp\.w12\.(\w+)", r"blocks.\1.mlp.fc1.\2"),
            (r"blocks\.(\d+)\.mlp\.w3\.(\w+)", r"blocks.\1.mlp.fc2.\2"),
            (r"(.*)", r"\1"),
        ),
        False,
        1e-6,
    ),
    Layout(
        "open_clip",
        "conv1.weight",
        (
            (r"conv1\.(\w+)", r"patch_embed.proj.\1"),
            (r"class_embedding", "cls_token"),
            (r"positional_embedding", "pos_embed"),
            (r"ln_pre\.(\w+)", r"norm_pre.\1"),
            (r"ln_post\.(\w+)", r"norm.\1"),
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
        reshape=_add_batch_axis,
    ),
    Layout(
        "transformers",
        "embeddings.patch_embedding.weight",
        (
            (r"embeddings\.patch_embedding\.(\w+)", r"patch_embed.proj.\1"),
            (r"embeddings\.class_embedding", "cls_token"),
            (r"embeddings\.position_embedding\.weight", "pos_embed"),
            (r"pre_layrnorm\.(\w+)", r"norm_pre.\1"),  # spelt so in the library
            (r"post_layernorm\.(\w+)", r"norm.\1"),
            (r"encoder\.layers\.(\d+)\.layer_norm(\d)\.(\w+)", r"blocks.\1.norm\2.\3"),
            (r"encoder\.layers\.(\d+)\.self_attn\.([qkv])_proj\.(\w+)", r"blocks.\1.attn.\2.\3"),
            (r"encoder\.layers\.(\d+)\.self_attn\.out_proj\.(\w+)", r"blocks.\1.attn.proj.\2"),
            (r"encoder\.layers\.(\d+)\.mlp\.(\w+)\.(\w+)", r"blocks.\1.mlp.\2.\3"),
            (r"encoder\.layers\.(.*)", r"blocks.\1"),
        ),
        True,
        1e-5,
        "quick_gelu",
        _join_qkv,
    ),
    Layout(  # ViT and DINOv2; names of transformers 4, then of 5 where they differ
        "transformers' ViT",
        "embeddings.patch_embeddings.projection.weight",
        (
            (r"embeddings\.patch_embeddings\.projection\.(\w+)", r"patch_embed.proj.\1"),
            (r"embeddings\.position_embeddings", "pos_embed"),
            (r"embeddings\.register_tokens", "reg_token"),
            (r"embeddings\.(.*)", r"\1"),
            (r"layernorm\.(\w+)", r"norm.\1"),
            (_LAYER + r"attention\.attention\.([qkv])(?:uery|ey|alue)\.(\w+)", r"blocks.\1.attn.\2.\3"),
            (_LAYER + r"attention\.([qkv])_proj\.(\w+)", r"blocks.\1.attn.\2.\3"),
            (_LAYER + r"attention\.(?:output\.dense|o_proj)\.(\w+)", r"blocks.\1.attn.proj.\2"),
            (_LAYER + r"layernorm_before\.(\w+)", r"blocks.\1.norm1.\2"),
            (_LAYER + r"layernorm_after\.(\w+)", r"blocks.\1.norm2.\2"),
            (_LAYER + r"layer_scale(\d)\.lambda1", r"blocks.\1.ls\2.gamma"),
            (_LAYER + r"(?:intermediate\.dense|mlp\.weights_in)\.(\w+)", r"blocks.\1.mlp.fc1.\2"),
            (_LAYER + r"(?:output\.dense|mlp\.weights_out|mlp\.down_proj)\.(\w+)", r"blocks.\1.mlp.fc2.\2"),
            (_LAYER + r"mlp\.gate_proj\.(\w+)", r"blocks.\1.mlp.fc1_g.\2"),
            (_LAYER + r"mlp\.up_proj\.(\w+)", r"blocks.\1.mlp.fc1_x.\2"),
            (_LAYER + r"(.*)", r"blocks.\1.\2"),
        ),
        False,
        1e-6,
        reshape=_join_qkv,
    ),
)


def recognise_layout(state: Mapping[str, Any], where: str) -> tuple[Layout, State]:
    """The layout of a state dict, and its tower by timm's names; a prefix such as ``visual.`` is removed."""
    for layout in LAYOUTS:
        prefixes = [
            k.removesuffix(layout.anchor) for k in state if k == layout.anchor or k.endswith(f".{layout.anchor}")
        ]
        # A whole CLIP has one image tower; the shortest prefix is the network's own.
        for prefix in sorted(prefixes, key=len)[:1]:
            inside = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
            return layout, layout.reshape(dict(_renamed(inside, layout)))
    known = ", ".join(f"{x.name} ({x.anchor})" for x in LAYOUTS)
    first = next(iter(state), "nothing")
    raise TailorError(
        f"The weights in {where} are not an image tower by the names of {known}; they begin with '{first}'."
    )


def _renamed(state: Mapping[str, Tensor], layout: Layout) -> Iterator[tuple[str, Tensor]]:
    for key, value in state.items():
        for pattern, name in layout.renames:
            found = re.fullmatch(pattern, key)
            if found:
                yield found.expand(name), value
                break
