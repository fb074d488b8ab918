"""Pretrained Swins as networks of the family ``tailored-swin``: timm's own modules, and weight files by their names."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tailorvit.checkpoints.files import read_state
from tailorvit.checkpoints.loaders import SWIN_TABLE, swin_names
from tailorvit.checkpoints.pretrained import Pretrained
from tailorvit.errors import TailorError
from tailorvit.families.network import Sides, State
from tailorvit.families.tailored_swin.spaces import TailoredSwinSettings, tailored_swin_arch
from tailorvit.families.windows.plain import STAGES
from tailorvit.trunks import libraries
from tailorvit.trunks.layouts import NORMS
from tailorvit.trunks.tower import Stats

_BLOCK = re.compile(r"layers\.(\d+)\.blocks\.(\d+)\.")
_MODULE = "swin_transformer"  # of timm; version 2 has a module of its own


def is_swin(state: Mapping[str, Tensor]) -> bool:
    """Whether these are weights of a Swin, by whatever version's names."""
    return SWIN_TABLE in state


def is_swin_name(name: str) -> bool:
    """Whether a model of timm is a Swin, or an S3 of the same module."""
    import timm

    return bool(timm.models.is_model_in_modules(name.partition(".")[0], [_MODULE]))


def read_timm_swin(text: str, name: str, otherwise: str, weights: str | None) -> Pretrained:
    """A Swin of timm with its published weights, or with those of a file."""
    model = libraries.fetch_timm(text, name, otherwise, require_plain_swin, local=weights is not None)
    if weights is None:
        return from_timm_swin(text, model)
    found = from_swin(text, read_state(Path(weights).expanduser()), _norm(model), eps=model.norm.eps)
    wanted = from_swin(text, dict(model.state_dict()), _norm(model))
    if found.arch != wanted.arch:
        raise TailorError(f"The weights in '{weights}' are not those of '{text}': {_difference(found, wanted)}.")
    return found


def _difference(found: Pretrained, wanted: Pretrained) -> str:
    key = next(k for k, v in wanted.arch.items() if found.arch[k] != v)
    return f"'{key}' is {found.arch[key]}, not {wanted.arch[key]}"


def require_plain_swin(text: str, model: Any) -> None:
    """Refuse what is not timm's plain SwinTransformer; the part is named."""
    kind = type(model).__name__
    if kind != "SwinTransformer":
        raise TailorError(f"'{text}' is a {kind}, not a SwinTransformer.")
    block = model.layers[0].blocks[0]
    for part, wanted in ((block.attn, "WindowAttention"), (block.mlp, "Mlp"), (block.mlp.act, "GELU")):
        if type(part).__name__ != wanted:
            raise TailorError(f"'{text}' has a {type(part).__name__} where a plain Swin has a {wanted}.")
    for norm in (block.norm1, model.norm, model.patch_embed.norm):
        if not isinstance(norm, nn.LayerNorm):
            raise TailorError(f"'{text}' has norms of the kind {type(norm).__name__}, not layer norms.")
    if any(b.always_partition for layer in model.layers for b in layer.blocks):
        raise TailorError(f"'{text}' has windows larger than its maps, which cannot be tailored.")


def from_timm_swin(text: str, model: Any, norm: Stats | None = None) -> Pretrained:
    """A SwinTransformer of timm with its own weights, at its own image size."""
    require_plain_swin(text, model)
    high, wide = model.patch_embed.img_size
    state = dict(model.state_dict())
    return from_swin(text, state, norm or _norm(model), eps=model.norm.eps, size=(int(high), int(wide)))


def _norm(model: Any) -> Stats:
    config = getattr(model, "pretrained_cfg", None) or {}
    if "mean" not in config:
        return NORMS["imagenet"]
    mean, std = (tuple(map(float, config[k])) for k in ("mean", "std"))
    return mean, std


def from_swin(
    source: str, named: Mapping[str, Tensor], norm: Stats, *, eps: float = 1e-5, size: Sides | None = None
) -> Pretrained:
    """From weights by timm's names, new or old.

    Where the image size is not given, the window of the last stage covers its map, as in all that are published.
    """
    where = f"'{source}'"
    state = {k: v.float() for k, v in swin_names(dict(named)).items() if not k.startswith("head")}
    if "patch_embed.proj.weight" not in state:
        raise TailorError(f"{where} lacks 'patch_embed.proj.weight': it is no Swin by timm's names.")
    _, channels, patch, across = state["patch_embed.proj.weight"].shape
    depths = _depths(state, where)
    windows: list[int] = []
    genes: dict[str, list[Any]] = {"embed": [], "heads": [], "hidden": []}
    widths: set[int] = set()
    for s, depth in enumerate(depths):
        rows = [_block(state, f"layers.{s}.blocks.{i}.", where) for i in range(depth)]
        if len({row["window"] for row in rows}) > 1 or patch != across:
            raise TailorError(f"{where} has windows or patches of several sizes in stage {s + 1}.")
        windows.append(rows[0]["window"])
        genes["embed"].append(rows[0]["embed"])
        for gene in ("heads", "hidden"):
            genes[gene].append([row[gene] for row in rows])
        widths |= {row["head_dim"] for row in rows}
    if len(widths) > 1:
        raise TailorError(
            f"{where} has heads {' and '.join(map(str, sorted(widths)))} channels wide, not of one width."
        )
    side = patch * windows[-1] * 2 ** (STAGES - 1)
    settings = TailoredSwinSettings(
        image_size=size or (side, side),
        patch=patch,
        channels=channels,
        classes=0,
        qkv_bias="layers.0.blocks.0.attn.qkv.bias" in state,
        eps=eps,
        init="paper",
        head_dim=widths.pop(),
        window=tuple(windows),
        depths=tuple(depths),
    )
    stages = {f"{gene}.{s}": value for gene, values in genes.items() for s, value in enumerate(values, 1)}
    arch = tailored_swin_arch({**stages, "depth": depths})
    # A window of one position has one key, and no bias could change its softmax.
    kept = {k: v.contiguous() for k, v in state.items() if not (k.endswith("bias_table") and len(v) == 1)}
    return Pretrained(source, arch, settings, kept, *norm).checked()


def _depths(state: State, where: str) -> list[int]:
    found = [0] * STAGES
    for match in filter(None, map(_BLOCK.match, state)):
        stage, block = int(match[1]), int(match[2])
        if stage >= STAGES:
            raise TailorError(f"{where} has more than {STAGES} stages.")
        found[stage] = max(found[stage], block + 1)
    if 0 in found:
        raise TailorError(f"{where} has no blocks in stage {found.index(0) + 1}: it is no Swin by timm's names.")
    return found


def _block(state: State, at: str, where: str) -> dict[str, int]:
    """What the shapes of a block say."""

    def need(name: str) -> Tensor:
        if f"{at}{name}" not in state:
            raise TailorError(f"{where} lacks '{at}{name}': it is no Swin by timm's names.")
        return state[f"{at}{name}"]

    rows, heads = need("attn.relative_position_bias_table").shape
    inner = need("attn.proj.weight").shape[1]
    return {
        "embed": need("norm1.weight").shape[0],
        "heads": heads,
        "head_dim": inner // heads,
        "hidden": need("mlp.fc2.weight").shape[1],
        "window": (math.isqrt(rows) + 1) // 2,
    }


# -- for tests --------------------------------------------------------------------------------------------------------

TINY: Mapping[str, Any] = {
    "img_size": 16,
    "patch_size": 1,
    "window_size": 4,
    "embed_dim": 8,
    "depths": (1, 2, 3, 1),
    "num_heads": (1, 2, 4, 8),
    "num_classes": 0,
}


def tiny_swin(text: str, draw: Callable[[nn.Module], None]) -> Pretrained:
    """An untrained network whose weights ``draw`` sets."""
    from timm.models.swin_transformer import SwinTransformer

    with torch.random.fork_rng(devices=[]):
        made = SwinTransformer(**TINY)
    draw(made)
    return from_timm_swin(text, made, NORMS["half"])
