"""Architectures and spaces of the tailored family."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tailorvit.arch import Arch, Value, number, require_blocks
from tailorvit.errors import TailorError
from tailorvit.families.base import Named
from tailorvit.families.tailoring import steps
from tailorvit.space import Dim, Space

GENES = ("depth", "embed", "heads", "hidden")
TINY = {"depth": 2, "embed": 16, "heads": 2, "hidden": 32}


def tailored_arch(genes: Mapping[str, Any]) -> Arch:
    """An architecture written by hand: heads and hidden are one number for all blocks, or one per block."""
    has = "it has depth, embed, heads and hidden"
    for key in genes:
        if key not in GENES:
            raise TailorError(f"A tailored architecture has no gene '{key}'; {has}.")
    for key in ("embed", "heads", "hidden"):
        if genes.get(key) is None:
            raise TailorError(f"A tailored architecture needs '{key}'; {has}.")
    lists = [genes[k] for k in ("heads", "hidden") if isinstance(genes[k], list | tuple)]
    given = genes.get("depth")
    if given is None and not lists:
        raise TailorError("A tailored architecture needs 'depth' where heads and hidden are single numbers.")
    require_blocks({"depth": given})
    depth = number(given) if given is not None else len(lists[0])
    if not isinstance(depth, int) or depth < 1:
        raise TailorError(f"A tailored network needs a depth of at least one whole block, not {given}.")
    found: dict[str, Any] = {"depth": depth, "embed": genes["embed"]}
    for key in ("heads", "hidden"):
        values = list(genes[key]) if isinstance(genes[key], list | tuple) else [genes[key]] * depth
        if len(values) != depth:
            raise TailorError(
                f"A tailored network of {depth} blocks needs {depth} values of '{key}', not {len(values)}."
            )
        found[key] = values
    arch = Arch("tailored", **found)
    for key, value in arch.items():
        for v in value if isinstance(value, tuple) else (value,):
            if not isinstance(v, int) or v < 1:
                raise TailorError(f"'{key}' of a tailored architecture must be whole and positive, not {v}.")
    return arch


def cut_space(
    depth: Sequence[int], hidden: Sequence[int], heads: Sequence[int], embed: Sequence[int], **settings: Any
) -> Space:
    """The space of these choices, each from small to large."""

    def step(choices: Sequence[int]) -> Value:
        return choices[-1] - choices[-2] if len(choices) > 1 else choices[-1]

    dims = (
        Dim("depth", tuple(depth), "global", None, step(depth), 1),
        Dim("hidden", tuple(hidden), "block", None, step(hidden), 1),
        Dim("heads", tuple(heads), "block", None, 1, 1),
        Dim("embed", tuple(embed), "global", None, step(embed), 1),
    )
    return Space("tailored", dims, tuple(settings.items()))


def whole_space(arch: Arch, settings: Mapping[str, Any]) -> Space:
    """What can be kept of a network: all blocks but a quarter may go, heads one by one, the rest in even steps."""
    depth, embed = int(arch.one("depth")), int(arch.one("embed"))
    heads, hidden = (int(max(arch.many(gene))) for gene in ("heads", "hidden"))
    depths = range(max(1, depth // 4), depth + 1)
    return cut_space(depths, steps(hidden, 48, 4), range(1, heads + 1), steps(embed, 24, 9), **settings)


_8PX: dict[str, Any] = {"image_size": (8, 8), "patch": 2, "channels": 1, "classes": 10, "head_dim": 8}
SPACES: Mapping[str, Space] = {
    "tailored-8px": cut_space((2, 3, 4), (24, 48, 72, 96), (1, 2, 3), (16, 20, 24), **_8PX, order=(3, 0, 2, 1)),
}


def _deit(embed: int, heads: int) -> Named:
    arch = tailored_arch({"depth": 12, "embed": embed, "heads": heads, "hidden": 4 * embed})
    return Named(arch, {"classes": 1000, "init": "paper"}, "DeiT (hand-designed)")


ARCHS: Mapping[str, Named] = {f"vit-{name}16": _deit(embed, embed // 64) for name, embed in (("ti", 192), ("s", 384))}


def settle(size: tuple[int, int], params: float) -> dict[str, Any]:
    """Patch and head width for an image size and a budget; a pretrained network brings its own."""
    patch = next((p for p in (16, 14, 8, 7, 4, 2) if not any(s % p or s < 4 * p for s in size)), 1)
    return {"patch": patch, "head_dim": 16 if params < 3e5 else 32 if params < 3e6 else 64}


def shrink(space: Space) -> Space:
    """The same dimensions with small numbers, for 8 px digits."""
    small = {"depth": (1, 2, 3), "hidden": (16, 24, 32, 48), "heads": (1, 2, 3), "embed": (16, 20, 24)}
    dims = []
    for d in space.dims:
        choices = small[d.name][: len(d.choices)]
        dims.append(replace(d, choices=choices, shift=choices[-1] - choices[-2] if len(choices) > 1 else 1, minimum=1))
    return replace(space, dims=tuple(dims)).with_settings(**_8PX, order=(), width=0)


# -- shapes for a budget ----------------------------------------------------------------------------------------------


def _shapes(settings: Mapping[str, Any]) -> Iterator[tuple[int, int, int]]:
    """Width, heads and blocks of DeiT's shape, from small to large."""
    dim, embed = int(settings.get("head_dim", 64)), 8
    while embed <= 2048:
        for depth in sorted({max(2, min(16, round(embed / 16) + more)) for more in (-1, 0, 1)}):
            yield embed, max(1, round(embed / dim)), depth
        embed += 4 if embed < 64 else 8 if embed < 256 else 32


def auto_space(settings: Mapping[str, Any]) -> Iterator[Space]:
    """Spaces around the usual shape, from small to large; a run starts in the last that fits."""
    for embed, heads, depth in _shapes(settings):
        step = max(4, embed // 32 * 4)
        yield cut_space(
            range(max(1, depth - 2), depth + 1),
            [embed * r for r in (2, 3, 4)],
            range(max(1, heads - 2), heads + 1),
            [embed - i * step for i in (2, 1, 0) if embed > i * step],
            **settings,
        )


def baseline(settings: Mapping[str, Any]) -> Iterator[Arch]:
    """Hand-designed networks from small to large: DeiT's shape."""
    for embed, heads, depth in _shapes(settings):
        yield tailored_arch({"depth": depth, "embed": embed, "heads": heads, "hidden": 4 * embed})
