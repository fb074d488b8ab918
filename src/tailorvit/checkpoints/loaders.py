"""The kinds of published checkpoints: how each is recognised, and its tensors under our names and in our layout.

AutoFormer's Q-K-V: one linear layer holds Q, K and V row by row (row 3r + t is row r of part t), so the first 3q rows
are the first q rows of each part. The bias is not interleaved: a sub-network reads its first 3q entries as Q, K and V
one after the other. One network can be put in our order; a supernet cannot, and keeps its bias flat
(``qkv = "official"``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor, nn

from tailorvit.arch import Arch
from tailorvit.checkpoints.files import State
from tailorvit.elastic.slicing import Width, prefix
from tailorvit.errors import TailorError
from tailorvit.families import family
from tailorvit.families.network import hidden_width
from tailorvit.families.vit.plain import ViTSettings
from tailorvit.families.vit.relative import table_rows
from tailorvit.space import Space
from tailorvit.tensors import require_finite

Shape = tuple[int | Width, ...]  # a width is elastic: the tensor may be longer, and its prefix is taken


class Normalisation(NamedTuple):
    """How images were prepared for a network: mean and standard deviation per channel, and the margin of the crop."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    margin: float


# The same for DeiT, Swin, PiT, AutoFormer and S3: the middle 224 px of an image resized to 256.
IMAGENET = Normalisation((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), 256 / 224)


@dataclass(frozen=True)
class Loader:
    """One kind of checkpoint."""

    name: str
    summary: str
    families: tuple[str, ...]  # whose plain networks it can fill
    recognises: Callable[[State], bool]
    plain: Callable[[State, Arch, Any], State]  # (state, arch, shared) -> the plain network's names and shapes
    supernet: Callable[[State, Space], State] | None = None  # -> the names and shapes of the space's supernet
    settings: Mapping[str, Any] = field(default_factory=dict)  # settings these networks were trained with
    supernet_settings: Mapping[str, Any] = field(default_factory=dict)  # further ones, of a supernet alone
    prepared: bool = True  # whether all files of this kind take images as ImageNet's papers prepare them


# -- names and shapes -------------------------------------------------------------------------------------------------


def fill(network: nn.Module, state: Mapping[str, Tensor], what: str) -> None:
    """Copy the weights; none may be missing, left over or of another shape."""
    own = network.state_dict()
    require(state, {name: tuple(tensor.shape) for name, tensor in own.items()}, what)
    refuse_left_over([name for name in state if name not in own], what)
    for name, tensor in own.items():
        if tensor.is_floating_point() != state[name].is_floating_point():
            kind = str(state[name].dtype).removeprefix("torch.")
            raise TailorError(f"The checkpoint holds '{name}' as {kind}, not as decimal numbers.")
    require_finite({name: state[name] for name in own}, "The checkpoint")
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(state[name])


def require(state: Mapping[str, Tensor], shapes: Mapping[str, Shape], what: str) -> None:
    """Refuse a state without one of the tensors or with another shape; an axis given as a width may be longer."""
    missing = [name for name in shapes if name not in state]
    if missing:
        _refuse(f"The checkpoint lacks '{missing[0]}'{_more(missing)}", what)
    wrong = [name for name, shape in shapes.items() if not _fits(state[name], shape)]
    if wrong:
        here, there = _sizes(shapes[wrong[0]]), tuple(state[wrong[0]].shape)
        _refuse(f"The checkpoint has another shape of '{wrong[0]}', {there} instead of {here}{_more(wrong)}", what)


def refuse_left_over(names: Sequence[str], what: str) -> None:
    """Refuse tensors that would not be used: without them the network is not the one that was trained."""
    if names:
        _refuse(f"The checkpoint has an extra tensor, '{names[0]}'{_more(names)}", what)


def _fits(tensor: Tensor, shape: Shape) -> bool:
    if tensor.dim() != len(shape):
        return False
    pairs = zip(tensor.shape, shape, strict=True)
    return all(have >= n.size if isinstance(n, Width) else have == n for have, n in pairs)


def _sizes(shape: Shape) -> tuple[int, ...]:
    return tuple(n.size if isinstance(n, Width) else n for n in shape)


def _refuse(problem: str, what: str) -> NoReturn:
    raise TailorError(f"{problem}; it does not belong to {what}.")


def _more(names: Sequence[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""


# -- AutoFormer -------------------------------------------------------------------------------------------------------

_PATCHES = "patch_embed_super.proj.weight"
# Where our name of a module differs from theirs, inside a block.
_INSIDE = {"norm1": "attn_layer_norm", "norm2": "ffn_layer_norm", "mlp.fc1": "fc1", "mlp.fc2": "fc2"}
_TABLES = {
    f"attn.rel_{ours}_{axis}": f"attn.rel_pos_embed_{theirs}.embeddings_table_{axis}"
    for ours, theirs in (("key", "k"), ("value", "v"))
    for axis in ("v", "h")
}


def _separated(weight: Tensor) -> Tensor:
    """Interleaved rows as all of Q, then K, then V."""
    return torch.cat([weight[part::3] for part in range(3)])


def _autoformer_plain(state: State, arch: Arch, shared: ViTSettings) -> State:
    """A sub-network's weights under timm's names, from its own file or from a supernet's."""
    d, what = Width(int(arch.one("embed"))), f"a vit {arch['depth']} blocks deep and {arch['embed']} wide"
    wanted: dict[str, tuple[str, Shape]] = {"cls_token": ("cls_token", (1, 1, d))}
    if shared.absolute:
        wanted["pos_embed"] = ("pos_embed", (1, shared.tokens, d))

    def layer(ours: str, theirs: str, weight: Shape) -> None:
        wanted[f"{ours}.weight"] = (f"{theirs}.weight", weight)
        wanted[f"{ours}.bias"] = (f"{theirs}.bias", weight[:1])

    layer("patch_embed.proj", "patch_embed_super.proj", (d, shared.channels, shared.patch, shared.patch))
    layer("norm", "norm", (d,))
    layer("head", "head", (shared.classes, d))
    for i, (heads, ratio) in enumerate(zip(arch.many("heads"), arch.many("mlp"), strict=True)):
        at, q, hidden = f"blocks.{i}.", int(heads) * shared.head_dim, Width(hidden_width(d.size, ratio))
        shapes: dict[str, Shape] = {"norm1": (d,), "norm2": (d,), "mlp.fc1": (hidden, d), "mlp.fc2": (d, hidden)}
        for ours, shape in {**shapes, "attn.proj": (d, Width(q)), "attn.qkv": (Width(3 * q), d)}.items():
            layer(at + ours, at + _INSIDE.get(ours, ours), shape)
        if not shared.qkv_bias:
            del wanted[f"{at}attn.qkv.bias"]
        for ours, theirs in _TABLES.items() if shared.relative else ():
            wanted[at + ours] = (at + theirs, (table_rows(shared.reach), shared.head_dim))
    require(state, dict(wanted.values()), what)
    # Blocks beyond the depth are the supernet's; any other extra name is not AutoFormer's and would be lost silently.
    beyond = tuple(f"blocks.{i}." for i in range(int(arch.one("depth")), _depth(state)))
    used = {theirs for theirs, _ in wanted.values()}
    refuse_left_over([k for k in state if k not in used and not k.startswith(beyond)], what)
    cut = {ours: prefix(state[theirs], *(Width(n) for n in _sizes(shape))) for ours, (theirs, shape) in wanted.items()}
    return {k: _separated(v) if k.endswith("qkv.weight") else v for k, v in cut.items()}


def _autoformer_supernet(state: State, space: Space) -> State:
    """The weights of the space's supernet, which has no channel beyond the largest choice (240 of the file's 256)."""
    shared, largest = family("vit").settings(dict(space.settings)), space.largest()
    widest = {"depth": largest.one("depth"), "embed": largest.one("embed"), "heads": max(largest.many("heads"))}
    for gene, available in autoformer_sizes(state, shared.head_dim).items():
        if widest[gene] > available:
            raise TailorError(
                f"The checkpoint's supernet is too small for the space: '{gene}' goes up to {widest[gene]}, "
                f"and the file has {available}."
            )
    supernet = {}
    for name, tensor in _autoformer_plain(state, largest, shared).items():
        name = name.replace("patch_embed.proj.", "patch_embed.").replace("attn.qkv.", "attn.qkv_")
        supernet[name] = tensor.unflatten(0, (3, -1, shared.head_dim)) if name.endswith("qkv_weight") else tensor
    return supernet


def _depth(state: State) -> int:
    return 1 + max((int(k.split(".")[1]) for k in state if k.startswith("blocks.")), default=-1)


def autoformer_sizes(state: State, head_dim: int) -> dict[str, int]:
    """The largest depth, width and heads in a file; the released supernets have 256, 448 and 640 channels."""
    qkv = state.get("blocks.0.attn.qkv.weight", state[_PATCHES])
    return {"depth": _depth(state), "embed": state[_PATCHES].shape[0], "heads": qkv.shape[0] // (3 * head_dim)}


# -- DeiT and ViT, Swin and S3, PiT: names that are timm's or nearly so -----------------------------------------------

_BUFFERS = ("relative_position_index", "attn_mask")  # computed from the window, not loaded
SWIN_TABLE = "layers.0.blocks.0.attn.relative_position_bias_table"


def _refuse_distilled(state: State, what: str) -> None:
    if any(k.startswith(("dist_token", "head_dist")) for k in state):
        raise TailorError(f"The checkpoint is a distilled {what} with two class tokens and two heads; ours have one.")


def _vit(state: State, arch: Arch, shared: Any) -> State:
    _refuse_distilled(state, "ViT")
    return state


def _pit(state: State, arch: Arch, shared: Any) -> State:
    """The first release has a list of poolings; timm has each in the stage that follows it."""
    _refuse_distilled(state, "PiT")
    return {re.sub(r"^pools\.(\d+)\.", lambda m: f"transformers.{int(m[1]) + 1}.pool.", k): v for k, v in state.items()}


def _timm_swin(state: State, arch: Arch, shared: Any) -> State:
    return swin_names(state)


def _is_released(state: State) -> bool:
    return "layers.0.downsample.norm.weight" in state


def swin_names(state: State) -> State:
    """A Swin's weights by timm's names of today.

    As released, merging is at the end of a stage, not at the beginning of the next one, and the head is one layer.
    """
    kept = {k: v for k, v in state.items() if not k.endswith(_BUFFERS)}
    if not _is_released(state):
        return kept
    found = {}
    for name, tensor in kept.items():
        name = re.sub(r"^layers\.(\d+)\.downsample\.", lambda m: f"layers.{int(m[1]) + 1}.downsample.", name)
        found[re.sub(r"^head\.", "head.fc.", name)] = tensor
    return found


# The first that recognises a file reads it.
LOADERS: Mapping[str, Loader] = {
    loader.name: loader
    for loader in (
        Loader(
            name="autoformer",
            summary="AutoFormer's released supernets and sub-networks",
            families=("vit",),
            recognises=lambda state: _PATCHES in state,
            plain=_autoformer_plain,
            supernet=_autoformer_supernet,
            settings={"eps": 1e-5},  # torch's default, which the released code uses for all its norms
            supernet_settings={"qkv": "official"},
        ),
        Loader(
            name="s3",
            summary="S3 (AutoFormerV2) and Swin, as released or from older timm",
            families=("swin", "windowed"),
            recognises=lambda state: SWIN_TABLE in state and _is_released(state),
            plain=_timm_swin,
        ),
        Loader(
            name="timm-swin",
            summary="Swin and S3 from timm 0.9 or newer",
            families=("swin", "windowed"),
            recognises=lambda state: SWIN_TABLE in state and not _is_released(state),
            plain=_timm_swin,
        ),
        Loader(
            name="pit",
            summary="PiT, as first released or from timm",
            families=("pit",),
            recognises=lambda s: {"patch_embed.conv.weight", "transformers.0.blocks.0.norm1.weight"} <= s.keys(),
            plain=_pit,
        ),
        Loader(
            name="vit",
            summary="DeiT's and timm's plain vision transformers",
            families=("vit",),
            recognises=lambda s: {"patch_embed.proj.weight", "blocks.0.norm1.weight", "cls_token"} <= s.keys(),
            plain=_vit,
            prepared=False,  # DeiT's do, timm's augreg weights do not, and nothing in the tensors tells them apart
        ),
    )
}
