"""Named spaces and architectures of the ladder family, the shapes tried for a budget, and settings for a trunk."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tailorvit.arch import Arch, Value
from tailorvit.errors import TailorError
from tailorvit.families.base import Named
from tailorvit.families.blockwise import block_arch, block_dims, depth_span, width_span
from tailorvit.families.ladder.plain import LadderSettings
from tailorvit.families.vit.spaces import head_dim_for
from tailorvit.space import Dim, Space

TINY = {"depth": 2, "embed": 32, "heads": 2, "mlp": 2}  # as wide as the tiny trunk, so that design evl takes it too


def ladder_arch(embed: Any = None, heads: Any = None, mlp: Any = None, depth: Any = None, **unknown: Any) -> Arch:
    """A ladder written by hand: one number for all blocks, or one per block."""
    return block_arch("ladder", embed, heads, mlp, depth, **unknown)


def fit(space: Space) -> Space:
    """Depth bounded by the taps there are; in design evl embed has one choice, the trunk's width."""
    settings = dict(space.settings)
    taps, width = (
        int(settings.get("channels", LadderSettings.channels)),
        settings.get("image_size", LadderSettings.image_size)[1],
    )
    if space["depth"].high > taps:
        raise TailorError(
            f"A ladder has one block a tap: the space has depth {space['depth'].high}, the trunk gives {taps} taps."
        )
    new = {"depth": replace(space["depth"], maximum=taps)}
    if settings.get("design", LadderSettings.design) == "evl":
        new["embed"] = Dim("embed", (int(width),), shift=1, minimum=int(width), maximum=int(width))
    return replace(space, dims=tuple(new.get(d.key, d) for d in space.dims))


def _space(
    depth: Sequence[Value], mlp: Sequence[Value], heads: Sequence[Value], embed: Sequence[Value], **settings: Any
) -> Space:
    return fit(Space("ladder", block_dims(depth, mlp, heads, embed), tuple(settings.items())))


# CLIP's ViT-B/16 at 224 px. The paper does not name its trunk.
_CLIP: dict[str, Any] = {"image_size": (197, 768), "channels": 12, "head_dim": 64, "eps": 1e-5}
_EVL: dict[str, Any] = {**_CLIP, "design": "evl", "act": "quick_gelu", "mlp_dropout": 0.5, "head_dropout": 0.5}
_8PX: dict[str, Any] = {"image_size": (5, 24), "channels": 4, "classes": 10, "head_dim": 8}


def _s4(**settings: Any) -> Space:
    return _space((3, 4, 1), (3.5, 4, 0.5), (2, 14, 2), (336, 384, 24), **settings)


SPACES: Mapping[str, Space] = {
    "s4-clip": _s4(**_CLIP),
    "s4-clip-evl": _s4(**_EVL),
    "s4-clip-lst": _s4(**_CLIP, design="lst"),
    "ladder-8px": _space((2, 4, 1), (2, 3, 0.5), (1, 3, 1), (16, 24, 4), **_8PX),
}

ARCHS: Mapping[str, Named] = {
    "evl-4x768": Named(ladder_arch(768, 12, 4, 4), {**_EVL, "classes": 100}, "EVL (hand-designed), temporal parts off"),
    "s4-clip-min": Named(ladder_arch(336, 2, 3.5, 3), {**_CLIP, "classes": 100}, "S4, smallest of its CLIP space"),
    "s4-clip-max": Named(ladder_arch(384, 14, 4, 4), {**_CLIP, "classes": 100}, "S4, largest of its CLIP space"),
}


def _widths() -> Iterator[int]:
    """Widths to try, finely spaced where a channel matters and kernel-friendly where it does not."""
    embed = 8
    while embed <= 2048:
        yield embed
        embed += 2 if embed < 96 else 4 if embed < 192 else 8


def _depths(embed: int, taps: int) -> list[int]:
    """Depths that suit a width: up to EVL's four from 96 channels on, one more or less, and no more than taps."""
    usual = 1 if embed < 16 else 2 if embed < 32 else 3 if embed < 96 else 4
    return sorted({max(1, min(taps, d)) for d in (usual - 1, usual, usual + 1)})


def _shapes(settings: Mapping[str, Any]) -> Iterator[tuple[int, int, int]]:
    """(embed, depth, heads) from small to large; in design evl the heads grow instead of the width."""
    head_dim, taps, width = int(settings.get("head_dim", 64)), int(settings["channels"]), int(settings["image_size"][1])
    if settings.get("design") == "evl":
        for heads in range(1, 4 * max(2, width // head_dim) + 1):
            yield from ((width, depth, heads) for depth in range(1, min(taps, 6) + 1))
        return
    for embed in _widths():
        usual = max(1, round(embed / head_dim))
        yield from ((embed, d, h) for d, h in itertools.product(_depths(embed, taps), (usual, usual + 1, usual + 2)))


def auto_space(settings: Mapping[str, Any]) -> Iterator[Space]:
    """Spaces around the usual shape of a decoder, from small to large; a run starts in the last that fits."""
    head_dim = int(settings.get("head_dim", 64))
    for embed, depth, heads in _shapes(settings):
        yield _space(
            depth_span(depth),
            (3, 4, 0.5),
            (max(1, heads - 2), heads, 1),
            width_span(embed, head_dim),
            **settings,
        )


def baseline(settings: Mapping[str, Any]) -> Iterator[Arch]:
    """Hand-designed decoders from small to large: uniform blocks, MLP ratio 4, heads times their width near embed."""
    head_dim, evl = int(settings.get("head_dim", 64)), settings.get("design") == "evl"
    for embed, depth, heads in _shapes(settings):
        if evl or heads == max(1, round(embed / head_dim)):
            yield ladder_arch(embed, heads, 4, depth)


def settle(size: tuple[int, int], params: float) -> dict[str, Any]:
    """Head width for a budget; tokens and width are the trunk's."""
    return {"head_dim": head_dim_for(params)}


def shrink(space: Space) -> Space:
    """The same dimensions and scopes with small numbers, for a trunk of four layers of width 32 on 8 px digits."""
    small = {"depth": (1, 2, 3), "heads": (1, 2), "embed": (16, 20, 24)}
    dims = [
        replace(
            d,
            choices=small[d.name][: len(d.choices)],
            shift=4 if d.name == "embed" else 1,
            minimum=4 if d.name == "embed" else 1,
            maximum=None,
        )
        if d.name in small
        else d
        for d in space.dims
    ]
    plain = replace(space, dims=tuple(dims))
    return fit(plain.with_settings(image_size=(17, 32), channels=4, classes=10, head_dim=8))
