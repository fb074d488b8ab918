"""Layer inventory, outline and checked settings of windowed networks, shared by the swin and windowed families."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from tailorvit.errors import TailorError
from tailorvit.families.base import Layer
from tailorvit.plain.network import hidden_width
from tailorvit.plain.window_cut import Cut, Sides
from tailorvit.plain.windowed import STAGES, WindowFrame, WindowStage

AnyFrame = TypeVar("AnyFrame", bound=WindowFrame)

# -- layer inventory --------------------------------------------------------------------------------------------------


def stem_rows(frame: WindowFrame, embed: int) -> list[Layer]:
    """Patches and their norm."""
    pixels, (high, wide) = frame.channels * frame.patch**2, frame.maps[0]
    return [Layer("patch_embed", (pixels + 1) * embed + 2 * embed, pixels * high * wide * embed)]


def merge_rows(frame: WindowFrame, stage: int, before: int, embed: int) -> list[Layer]:
    """Merging into a stage (counted from 0)."""
    high, wide = frame.maps[stage]
    return [Layer("merge", 8 * before + 4 * before * embed, high * wide * 4 * before * embed)]


def head_rows(frame: WindowFrame, embed: int) -> list[Layer]:
    """The last norm and the classifier."""
    return [Layer("norm", 2 * embed, 0), Layer("head", frame.classes * (embed + 1), frame.classes * embed)]


def block_rows(
    frame: WindowFrame, stage: int, embed: int, window: int, heads: int, dim: int, ratio: float
) -> list[Layer]:
    """One block of a stage (counted from 0); Q-K-V and projection see whole windows, so padding is counted too."""
    cut, q, hidden = Cut.of(frame.maps[stage], window, False), heads * dim, hidden_width(embed, ratio)
    (high, wide), (down, across) = cut.padded, cut.window
    tokens, seen, keys = frame.maps[stage][0] * frame.maps[stage][1], high * wide, down * across
    table = (2 * down - 1) * (2 * across - 1) * heads if keys > 1 else 0
    return [
        Layer("blocks.norm", 4 * embed, 0),
        Layer("blocks.attn.qkv", 3 * q * embed + (3 * q if frame.qkv_bias else 0), 3 * seen * embed * q),
        Layer("blocks.attn", 0, 2 * seen * keys * q),
        Layer("blocks.attn.relative", table, 0),
        Layer("blocks.attn.proj", q * embed + embed, seen * embed * q),
        Layer("blocks.mlp.fc1", hidden * embed + hidden, tokens * embed * hidden),
        Layer("blocks.mlp.fc2", hidden * embed + embed, tokens * embed * hidden),
    ]


def outline_of(frame: WindowFrame, stages: Sequence[WindowStage]) -> list[dict[str, Any]]:
    """Shape and cost of every block; blocks are counted within their stage, windows as they are after clipping."""
    rows = []
    for s, shape in enumerate(stages):
        high, wide = frame.maps[s]
        for i, (window, heads, dim, ratio) in enumerate(
            zip(shape.window, shape.heads, shape.head_dim, shape.mlp, strict=True)
        ):
            parts = block_rows(frame, s, shape.embed, window, heads, dim, ratio)
            rows.append(
                {
                    "stage": s + 1,
                    "block": i + 1,
                    "tokens": high * wide,
                    "embed": shape.embed,
                    "heads": heads,
                    "qkv": heads * dim,
                    "mlp": ratio,
                    "hidden": hidden_width(shape.embed, ratio),
                    "window": min(window, max(high, wide)),
                    "params": sum(p.params for p in parts),
                    "macs": sum(p.macs for p in parts),
                }
            )
    return rows


# -- settings ---------------------------------------------------------------------------------------------------------


def checked(family: str, kind: type[AnyFrame], fixed: Mapping[str, Any]) -> AnyFrame:
    """The shared settings, typed; what no network of the family could have is refused."""
    known = {f.name for f in fields(kind)}
    for key in sorted(set(fixed) - known):
        raise TailorError(f"The {family} family has no setting '{key}'; known: {', '.join(sorted(known))}.")
    size = fixed.get("image_size", kind.image_size)
    size = tuple(size) if isinstance(size, list | tuple) else (size, size)
    lists = {k: tuple(v) for k, v in fixed.items() if isinstance(v, list)}
    frame = kind(**{**fixed, **lists, "image_size": size})
    for f in fields(kind):
        value = getattr(frame, f.name)
        if f.type == "int" and (type(value) is not int or value < 1):
            raise TailorError(f"The {family} setting '{f.name}' must be a positive whole number, not {value}.")
    if not isinstance(frame.qkv_bias, bool):
        raise TailorError(f"The {family} setting 'qkv_bias' must be true or false, not {frame.qkv_bias}.")
    if not isinstance(frame.eps, float) or frame.eps <= 0:
        raise TailorError(f"The {family} setting 'eps' must be a small positive number, not {frame.eps}.")
    if len(size) != 2 or any(type(s) is not int or s < frame.patch or s % frame.patch for s in size):
        raise TailorError(
            f"A {family} network needs image sides that are multiples of the patch {frame.patch}, not {list(size)}."
        )
    for stage, sides in enumerate(frame.maps[: STAGES - 1], 1):
        if min(sides) < 2:
            raise TailorError(
                f"Images of {size[0]}x{size[1]} px with patch {frame.patch} leave {sides[0]}x{sides[1]} patches in"
                f" stage {stage}, which cannot be merged: a {family} network needs at least 5 patches a side."
            )
    return frame


def whole_numbers(family: str, name: str, value: Any, count: int) -> None:
    """Refuse a setting that is not a list of so many positive whole numbers."""
    if not isinstance(value, tuple) or len(value) != count or any(type(v) is not int or v < 1 for v in value):
        shown = list(value) if isinstance(value, tuple) else value
        raise TailorError(f"The {family} setting '{name}' must be {count} positive whole numbers, not {shown}.")


# -- sizes ------------------------------------------------------------------------------------------------------------


def patch_for(size: Sides) -> int:
    """The largest patch up to the papers' 4 that leaves 16 patches a side, or else the smallest: 1 for 8 px digits."""
    options = [p for p in (4, 2, 1) if all(side % p == 0 for side in size)]
    return next((p for p in options if min(size) // p >= 16), options[-1])


def windows_for(sides: Sides) -> tuple[int, ...]:
    """Windows that divide a map without padding: the largest up to 14, and half of it or less; 7 and 14 on 56."""
    side = min(sides)
    whole = [w for w in range(1, 15) if side % w == 0]
    if whole[-1] == 1 < side:
        return (7, 14) if side > 14 else (side,)
    smaller = [w for w in whole if 2 <= w <= whole[-1] // 2]
    return (*smaller[-1:], whole[-1])
