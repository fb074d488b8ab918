"""The released AutoFormer supernets and sub-networks: their names, their interleaved Q-K-V rows, their flat bias.

One linear layer holds Q, K and V row by row (row 3r + t is row r of part t), so a prefix of 3q rows is a prefix of
each part. Its bias was never dealt out that way: a sub-network reads its first 3q entries as Q, K, V one after the
other. One network can be put in order; a supernet cannot, and keeps its bias flat (``qkv = "official"``).
"""

from __future__ import annotations

import torch
from torch import Tensor

from tailorvit.arch import Arch
from tailorvit.checkpoints.base import Loader, Shape, left_over, require, sides
from tailorvit.checkpoints.files import State
from tailorvit.elastic.slicing import Width, prefix
from tailorvit.errors import TailorError
from tailorvit.families import family, with_fixed
from tailorvit.families.network import hidden_width
from tailorvit.families.vit.plain import Frame
from tailorvit.families.vit.relative import table_rows
from tailorvit.space import Space

PATCHES = "patch_embed_super.proj.weight"
# Where our name of a module differs from theirs.
OUTSIDE = {"patch_embed.proj": "patch_embed_super.proj"}
INSIDE = {"norm1": "attn_layer_norm", "norm2": "ffn_layer_norm", "mlp.fc1": "fc1", "mlp.fc2": "fc2"}
TABLES = {
    f"attn.rel_{ours}_{way}": f"attn.rel_pos_embed_{theirs}.embeddings_table_{way}"
    for ours, theirs in (("key", "k"), ("value", "v"))
    for way in ("v", "h")
}


def dealt(weight: Tensor) -> Tensor:
    """Interleaved rows as all of Q, then K, then V."""
    return torch.cat([weight[part::3] for part in range(3)])


def _plain(state: State, arch: Arch, frame: Frame) -> State:
    """A sub-network's weights under timm's names, out of its own file or out of a supernet's."""
    d, what = Width(int(arch.one("embed"))), f"a vit {arch['depth']} blocks deep and {arch['embed']} wide"
    wanted: dict[str, tuple[str, Shape]] = {"cls_token": ("cls_token", (1, 1, d))}
    if frame.absolute:
        wanted["pos_embed"] = ("pos_embed", (1, frame.tokens, d))

    def layer(ours: str, theirs: str, weight: Shape) -> None:
        wanted[f"{ours}.weight"] = (f"{theirs}.weight", weight)
        wanted[f"{ours}.bias"] = (f"{theirs}.bias", weight[:1])

    layer("patch_embed.proj", OUTSIDE["patch_embed.proj"], (d, frame.channels, frame.patch, frame.patch))
    layer("norm", "norm", (d,))
    layer("head", "head", (frame.classes, d))
    for i, (heads, ratio) in enumerate(zip(arch.many("heads"), arch.many("mlp"), strict=True)):
        at, q, hidden = f"blocks.{i}.", int(heads) * frame.head_dim, Width(hidden_width(d.size, ratio))
        shapes: dict[str, Shape] = {"norm1": (d,), "norm2": (d,), "mlp.fc1": (hidden, d), "mlp.fc2": (d, hidden)}
        for ours, shape in {**shapes, "attn.proj": (d, Width(q)), "attn.qkv": (Width(3 * q), d)}.items():
            layer(at + ours, at + INSIDE.get(ours, ours), shape)
        if not frame.qkv_bias:
            del wanted[f"{at}attn.qkv.bias"]
        for ours, theirs in TABLES.items() if frame.relative else ():
            wanted[at + ours] = (at + theirs, (table_rows(frame.reach), frame.head_dim))
    require(state, dict(wanted.values()), what)
    # Blocks beyond the depth are a supernet's; any other name is not AutoFormer's and would be lost without a word.
    beyond = tuple(f"blocks.{i}." for i in range(int(arch.one("depth")), _depth(state)))
    used = {theirs for theirs, _ in wanted.values()}
    left_over([k for k in state if k not in used and not k.startswith(beyond)], what)
    found = {ours: prefix(state[theirs], *(Width(n) for n in sides(shape))) for ours, (theirs, shape) in wanted.items()}
    return {k: dealt(v) if k.endswith("qkv.weight") else v for k, v in found.items()}


def _supernet(state: State, space: Space) -> tuple[Space, State]:
    """The weights of the space's supernet, which has no channel beyond the largest choice (240 of the file's 256)."""
    space = with_fixed(space, qkv="official")
    frame, largest = family("vit").frame(dict(space.fixed)), space.largest()
    widest = {"depth": largest.one("depth"), "embed": largest.one("embed"), "heads": max(largest.many("heads"))}
    for gene, there in room(state, frame.head_dim).items():
        wanted = widest[gene]
        if wanted > there:
            raise TailorError(
                f"The checkpoint's supernet is too small for the space: '{gene}' goes up to {wanted}, "
                f"and the file has {there}."
            )
    supernet = {}
    for name, tensor in _plain(state, largest, frame).items():
        name = name.replace("patch_embed.proj.", "patch_embed.").replace("attn.qkv.", "attn.qkv_")
        supernet[name] = tensor.unflatten(0, (3, -1, frame.head_dim)) if name.endswith("qkv_weight") else tensor
    return space, supernet


def _depth(state: State) -> int:
    return 1 + max((int(k.split(".")[1]) for k in state if k.startswith("blocks.")), default=-1)


def room(state: State, head_dim: int) -> dict[str, int]:
    """What a file has room for, by gene; the released supernets have 256, 448 and 640 channels."""
    qkv = state.get("blocks.0.attn.qkv.weight", state[PATCHES])
    return {"depth": _depth(state), "embed": state[PATCHES].shape[0], "heads": qkv.shape[0] // (3 * head_dim)}


AUTOFORMER = Loader(
    name="autoformer",
    summary="AutoFormer's released supernets and sub-networks",
    families=("vit",),
    knows=lambda state: PATCHES in state,
    plain=_plain,
    supernet=_supernet,
)
