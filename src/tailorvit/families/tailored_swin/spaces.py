"""Architectures and spaces of the tailored Swin family."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tailorvit.arch import Arch
from tailorvit.errors import TailorError
from tailorvit.families.base import Named
from tailorvit.families.blockwise import staged_arch
from tailorvit.families.network import Sides, handy
from tailorvit.families.tailoring import steps
from tailorvit.families.windows.elastic import Stages, patch_for, whole_numbers, window_settings, windows_for
from tailorvit.families.windows.plain import STAGES, WindowSettings, WindowStage
from tailorvit.space import Dim, Space

NAME = "tailored-swin"
STAGE_GENES, BLOCK_GENES = ("depth", "embed"), ("hidden", "heads")
NAMES = (*STAGE_GENES, *BLOCK_GENES)
GENES = tuple(f"{name}.{s}" for s in range(1, STAGES + 1) for name in NAMES)
TINY = {"depth": [1, 1, 2, 1], "embed": [8, 12, 16, 24], "heads": [1, 1, 2, 2], "hidden": [16, 24, 32, 48]}

# -- settings ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TailoredSwinSettings(WindowSettings):
    """What every network of a tailored Swin space shares."""

    head_dim: int = 32
    window: tuple[int, ...] = (7, 7, 7, 7)  # of every stage
    # Of a supernet's blocks, numbered through all stages, the most important first; nothing to a plain network.
    order: tuple[int, ...] = ()
    depths: tuple[int, ...] = ()  # blocks of the stages of the whole network, which the order numbers

    def places(self, stage: int, depth: int) -> tuple[int, ...]:
        """The blocks that a stage (counted from 0) of that depth keeps; none where they are its first ones."""
        if not self.order:
            return ()
        first, count = sum(self.depths[:stage]), self.depths[stage]
        ranked = [b - first for b in self.order if first <= b < first + count]
        kept = tuple(sorted([*ranked, *range(count, depth)][:depth]))  # a supernet refuses what it has no block for
        return () if kept == tuple(range(depth)) else kept


def tailored_swin_settings(data: Mapping[str, Any]) -> TailoredSwinSettings:
    """Type and check the shared settings."""
    shared = window_settings(NAME, TailoredSwinSettings, data)
    whole_numbers(NAME, "window", shared.window, STAGES)
    if shared.order or shared.depths:
        whole_numbers(NAME, "depths", shared.depths, STAGES)
    if shared.order and sorted(shared.order) != list(range(sum(shared.depths))):
        raise TailorError(
            f"The {NAME} setting 'order' must name every one of {sum(shared.depths)} blocks once, "
            f"not {list(shared.order)}."
        )
    return shared


# -- architectures ----------------------------------------------------------------------------------------------------


def tailored_swin_arch(genes: Mapping[str, Any]) -> Arch:
    """An architecture written by hand: heads and hidden units may have one value per block."""
    return staged_arch(NAME, genes, STAGES, BLOCK_GENES)


def stages_of(shared: TailoredSwinSettings, arch: Arch) -> Stages:
    """The four stages of an architecture."""
    found = []
    for s in range(1, STAGES + 1):
        embed, heads = int(arch.one(f"embed.{s}")), tuple(int(h) for h in arch.many(f"heads.{s}"))
        ratios = tuple(int(m) / embed for m in arch.many(f"hidden.{s}"))
        windows, dims = (shared.window[s - 1],) * len(heads), (shared.head_dim,) * len(heads)
        found.append(WindowStage(embed, windows, heads, dims, ratios, shared.places(s - 1, len(heads))))
    return tuple(found)


# -- spaces -----------------------------------------------------------------------------------------------------------

Row = Mapping[str, Sequence[int]]  # the choices of one stage, each from small to large


def cut_space(stages: Sequence[Row], **settings: Any) -> Space:
    """The space of these choices."""
    dims = []
    for s, row in enumerate(stages, 1):
        for name in NAMES:
            choices = tuple(row[name])
            step = choices[-1] - choices[-2] if len(choices) > 1 else choices[-1]
            dims.append(Dim(name, choices, "block" if name in BLOCK_GENES else "stage", s, step, 1))
    return Space(NAME, tuple(dims), tuple(settings.items()))


def whole_space(arch: Arch, settings: Mapping[str, Any]) -> Space:
    """What can be kept of a network: in every stage a quarter of the blocks, any heads, the rest in even steps."""
    rows = []
    for s in range(1, STAGES + 1):
        depth, embed = int(arch.one(f"depth.{s}")), int(arch.one(f"embed.{s}"))
        heads, hidden = (int(max(arch.many(f"{gene}.{s}"))) for gene in ("heads", "hidden"))
        rows.append(
            {
                "depth": range(max(1, depth // 4), depth + 1),
                "embed": steps(embed, 24, 9),
                "hidden": steps(hidden, 48, 4),
                "heads": range(1, heads + 1),
            }
        )
    return cut_space(rows, **settings)


_8PX: dict[str, Any] = {"image_size": (8, 8), "patch": 1, "channels": 1, "classes": 10, "head_dim": 8}
_ORDERED: dict[str, Any] = {"window": (4, 2, 2, 1), "depths": (2, 2, 4, 1), "order": (5, 8, 1, 7, 2, 0, 3, 4, 6)}


def _digits(s: int) -> Row:
    embed, top = (8, 12, 16, 24)[s], (1, 2, 2, 3)[s]
    return {
        "depth": ((1, 2), (1, 2), (1, 2, 3, 4), (1,))[s],
        "embed": (embed, embed + 2, embed + 4),
        "hidden": (embed, 2 * embed, 3 * embed),
        "heads": range(1, top + 1),
    }


SPACES: Mapping[str, Space] = {
    "tailored-swin-8px": cut_space([_digits(s) for s in range(STAGES)], **_8PX, **_ORDERED),
}
ARCHS: Mapping[str, Named] = {}  # swin-t and its like stand under the family swin


def settle(size: Sides, params: float) -> dict[str, Any]:
    """Patch, windows and head width for an image size and a budget; a pretrained network brings its own."""
    patch = patch_for(size)
    window = tuple(windows_for(sides)[0] for sides in WindowSettings(size, patch).maps)
    return {"patch": patch, "window": window, "head_dim": 8 if params < 3e5 else 16 if params < 3e6 else 32}


def shrink(space: Space) -> Space:
    """The same dimensions with small numbers, for 8 px digits."""
    dims = []
    for d in space.dims:
        small = {"depth": (1, 2, 3), "hidden": (16, 24, 32, 48), "heads": (1, 2, 3), "embed": (8, 12, 16)}[d.name]
        choices = small[: len(d.choices)]
        dims.append(replace(d, choices=choices, shift=choices[-1] - choices[-2] if len(choices) > 1 else 1, minimum=1))
    return replace(space, dims=tuple(dims)).with_settings(**_8PX, window=_ORDERED["window"], order=(), depths=())


# -- shapes for a budget ----------------------------------------------------------------------------------------------


def _shapes(settings: Mapping[str, Any]) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]:
    """Depths, widths and heads of Swin's shape, from small to large."""
    dim, base = int(settings.get("head_dim", 32)), 2
    while base <= 256:
        each, usual = (1 if base < 8 else 2), max(1, min(16, round(base / 16)))
        widths = tuple(base * 2**s for s in range(STAGES))
        for third in (usual, usual + 1, usual + 2):
            yield (each, each, third, each), widths, tuple(max(1, round(w / dim)) for w in widths)
        base += 1 if base < 24 else 2 if base < 64 else 4


def auto_space(settings: Mapping[str, Any]) -> Iterator[Space]:
    """Spaces around the usual shape, from small to large; a run starts in the last that fits."""
    for depths, widths, heads in _shapes(settings):
        rows = [
            {
                "depth": range(max(1, depth - 1), depth + 1),
                "embed": [width - max(1, width // 4), width],
                "hidden": [width * r for r in (2, 3, 4)],
                "heads": range(max(1, most - 1), most + 1),
            }
            for depth, width, most in zip(depths, widths, heads, strict=True)
        ]
        yield cut_space(rows, **settings)


def baseline(settings: Mapping[str, Any]) -> Iterator[Arch]:
    """Hand-designed networks from small to large: Swin's shape."""
    for depths, widths, heads in _shapes(settings):
        if handy(widths[0]):
            hidden = [4 * w for w in widths]
            yield tailored_swin_arch(
                {"depth": list(depths), "embed": list(widths), "heads": list(heads), "hidden": hidden}
            )
