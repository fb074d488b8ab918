"""Named spaces and architectures of the PiT family, the shapes tried for a budget, and settings for a data set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tailorvit.arch import Arch, Value
from tailorvit.errors import TailorError
from tailorvit.families.base import Named
from tailorvit.space import Dim, Space

STAGES = (1, 2, 3)
GENES = ("base", *(f"depth.{s}" for s in STAGES), *(f"heads.{s}" for s in STAGES), "mlp")
# The pooling filters every channel by itself, so a stage's width, base * heads, divides the next one's.
TIES = (("heads.1", "heads.2"), ("heads.2", "heads.3"))
TINY = {"base": 8, "depth": [1, 1, 1], "heads": [1, 2, 2], "mlp": 2}


def pit_arch(**genes: Any) -> Arch:
    """An architecture written by hand: depth and heads as lists of three, or stage by stage (depth.1 ...)."""
    told = dict(genes)
    for name in ("depth", "heads"):
        if name in told:
            values = told.pop(name)
            if not isinstance(values, list | tuple) or len(values) != len(STAGES):
                raise TailorError(f"A pit has three stages and needs three values of '{name}', not {values}.")
            told.update({f"{name}.{s}": v for s, v in zip(STAGES, values, strict=True)})
    for key in told:
        if key not in GENES:
            raise TailorError(f"A pit architecture has no gene '{key}'; it has {', '.join(GENES)}.")
    for key in GENES:
        if key not in told:
            raise TailorError(f"A pit architecture needs '{key}'; it has {', '.join(GENES)}.")
        if isinstance(told[key], list | tuple):
            raise TailorError(f"A pit architecture has one value of '{key}', not {told[key]}.")
    arch = Arch("pit", **told)
    whole = [k for k in GENES if k != "mlp" and (not isinstance(arch[k], int) or arch.one(k) < 1)]
    if whole:
        raise TailorError(f"A pit needs a whole positive '{whole[0]}', not {arch[whole[0]]}.")
    if arch.one("mlp") <= 0:
        raise TailorError(f"A pit needs a positive MLP ratio, not {arch['mlp']}.")
    for a, b in TIES:
        if arch.one(b) % arch.one(a):
            raise TailorError(
                f"A pit needs heads that divide those of the next stage: {b} is {arch[b]}, no multiple of {arch[a]}."
            )
    return arch


def pit_space(
    base: Sequence[Value],
    depth: Sequence[Sequence[Value]],
    heads: Sequence[Sequence[Value]],
    mlp: Sequence[Value],
    settings: Mapping[str, Any],
    shifts: Sequence[Value] = (0, 0, 0),
) -> Space:
    """Dimensions in the order of the genes, heads tied; ``shifts`` are the heads' space steps, 0 for smallest gaps."""
    dims = [Dim("base", tuple(base), minimum=1)]
    dims += [Dim("depth", tuple(d), "stage", s, minimum=1) for s, d in zip(STAGES, depth, strict=True)]
    dims += [
        Dim("heads", tuple(h), "stage", s, shift=step, minimum=1)
        for s, h, step in zip(STAGES, heads, shifts, strict=True)
    ]
    dims.append(Dim("mlp", tuple(mlp), minimum=0.5))
    return Space("pit", tuple(dims), tuple(settings.items()), TIES)


_PAPER: dict[str, Any] = {"image_size": (224, 224), "patch": 16, "stride": 8, "init": "paper"}
_DEPTHS = ((1, 2, 3), (4, 6, 8), (2, 4, 6))
_RATIOS = (2, 4, 6, 8)
_8PX: dict[str, Any] = {"image_size": (8, 8), "patch": 2, "stride": 1, "channels": 1, "classes": 10}
_32PX: dict[str, Any] = {"image_size": (32, 32), "patch": 4, "stride": 2, "classes": 10}

SPACES: Mapping[str, Space] = {
    "pit-ti": pit_space((16, 24, 32, 40), _DEPTHS, [(2, 4, 8)] * 3, _RATIOS, _PAPER),
    "pit-xs": pit_space((40, 48, 56, 64), _DEPTHS, [(2, 4, 8)] * 3, _RATIOS, _PAPER),
    "pit-s": pit_space((36, 48, 60, 72), _DEPTHS, [(3, 6, 12)] * 3, _RATIOS, _PAPER),
    "pit-8px": pit_space((8, 12, 16), [(1, 2)] * 3, [(1, 2), (1, 2, 4), (2, 4)], (2, 3, 4), _8PX, (1, 1, 2)),
    "pit-32px": pit_space(
        (16, 20, 24), [(1, 2), (2, 3), (2, 3)], [(1, 2), (2, 4), (4, 8)], (2, 3, 4), _32PX, (1, 2, 4)
    ),
}


def _named(source: str, base: int, depth: str, heads: str, mlp: float, **settings: Any) -> Named:
    arch = pit_arch(base=base, depth=[int(d) for d in depth.split()], heads=[int(h) for h in heads.split()], mlp=mlp)
    return Named(arch, {"classes": 1000, **_PAPER, **settings}, source)


ARCHS: Mapping[str, Named] = {
    "pit-ti": _named("PiT (hand-designed)", 32, "2 6 4", "2 4 8", 4),
    "pit-xs": _named("PiT (hand-designed)", 48, "2 6 4", "2 4 8", 4),
    "pit-s": _named("PiT (hand-designed)", 48, "2 6 4", "3 6 12", 4),
    "pit-b": _named("PiT (hand-designed)", 64, "3 6 4", "4 8 16", 4, patch=14, stride=7),
    "tftas-pit-ti": _named("TF-TAS Table D", 40, "2 4 4", "2 4 8", 2),
    # The table prints two head counts for three stages, 2 and 8; the released file says 2, 8, 8, which has the size.
    "tftas-pit-xs": _named("TF-TAS Table D, heads of the released file", 56, "1 4 2", "2 8 8", 2),
    "tftas-pit-s": _named("TF-TAS Table D", 36, "1 4 2", "3 12 12", 4),
    "tftas-pit-s-yaml": _named("TF-TAS released file", 36, "1 4 4", "3 12 12", 6),
}


def _bases() -> Iterator[int]:
    """Base widths to try, finely spaced where a channel matters."""
    base = 2
    while base <= 256:
        yield base
        base += 1 if base < 24 else 2 if base < 64 else 8


def _depth(base: float) -> tuple[int, int, int]:
    """Blocks per stage that suit a base: up to PiT's own 2, 6, 4 (at base 32)."""
    return min(2, 1 + int(base) // 16), max(1, min(6, round(base / 5))), max(1, min(4, round(base / 8)))


def auto_space(settings: Mapping[str, Any]) -> Iterator[Space]:
    """Spaces around the usual shape of a PiT, from small to large; a run starts in the last that fits."""
    for base in _bases():
        step = max(1, round(base / 8))
        bases = tuple(b for b in (base - 2 * step, base - step, base) if b > 0)
        for heads in ([(1,), (1, 2), (2,)], [(1,), (1, 2), (2, 4)], [(1, 2), (2, 4), (4, 8)]):
            for more in (0, 1):  # blocks above the baseline's
                depth = [tuple(range(max(1, d - 1), d + 1 + more)) for d in _depth(base)]
                yield pit_space(bases, depth, heads, (2, 3, 4), settings, (1, 2, 4) if heads[0] != (1,) else (1, 1, 2))


def baseline(settings: Mapping[str, Any], stretch: float = 1.0) -> Iterator[Arch]:
    """Hand-designed PiTs from small to large: heads double from stage to stage, MLP ratio 4; stretched depth."""
    for base in _bases():
        for first in (1, 2):
            yield pit_arch(base=base, depth=_depth(base * stretch), heads=(first, 2 * first, 4 * first), mlp=4)


SHAPES = {"shallow": partial(baseline, stretch=0.5), "deep": partial(baseline, stretch=1.6)}
MOST = 48  # patches a side; more would be 2,305 tokens in the first stage


def settle(size: tuple[int, int], params: float, finer: int = 1) -> dict[str, Any]:
    """Patch and stride for an image size: some 27 patches a side for large images, 15 or 7 for small ones.

    The patch is two strides, as in PiT, plus what the sides leave over.
    """
    low = min(size)
    goal = finer * (27 if low >= 128 else 15 if low >= 24 else 7)
    options = []
    for stride in range(1, low // 2 + 1):
        patch = 2 * stride + low % stride
        if size[0] % stride == size[1] % stride and patch <= low and (max(size) - patch) // stride < MOST:
            grid = (low - patch) // stride + 1
            options.append((abs(grid - goal) + low % stride, stride, patch))
    if not options:
        near = max(8, round(low / 8) * 8)
        raise TailorError(
            f"Images of {size[0]}x{size[1]} px cannot be cut into at most {MOST} overlapping patches a side; "
            f"try --image-size {near}."
        )
    _, stride, patch = min(options)
    return {"patch": patch, "stride": stride}


STEMS = {"fine": partial(settle, finer=2)}


def shrink(space: Space) -> Space:
    """The same dimensions and scopes with small numbers, for 8 px digits."""
    small = {"base": (4, 6, 8, 10), "depth": (1, 2), "heads": (1, 2)}
    dims = [
        replace(d, choices=small[d.name][: len(d.choices)], shift=2 if d.name == "base" else 1, minimum=1)
        if d.name in small
        else d
        for d in space.dims
    ]
    return replace(space, dims=tuple(dims)).with_settings(**_8PX)
