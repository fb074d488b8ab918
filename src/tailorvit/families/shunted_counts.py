"""Settings, shapes and the layer inventory of the Shunted family."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import fields
from typing import Any

from tailorvit.arch import Arch, number
from tailorvit.errors import TailorError
from tailorvit.families.base import Layer
from tailorvit.plain.network import hidden_width
from tailorvit.plain.shunted import STAGES, ShuntedFrame, cells


def frame_of(fixed: Mapping[str, Any]) -> ShuntedFrame:
    """Type and check the shared settings."""
    known = {f.name for f in fields(ShuntedFrame)}
    for key in sorted(set(fixed) - known):
        raise TailorError(f"The shunted family has no setting '{key}'; known: {', '.join(sorted(known))}.")
    size = fixed.get("image_size", ShuntedFrame.image_size)
    size = tuple(size) if isinstance(size, list | tuple) else (size, size)
    typed: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in fixed.items()}
    frame = ShuntedFrame(**{**typed, "image_size": size})
    for name, least in (("channels", 1), ("classes", 1), ("stem", 1), ("stem_kernel", 1), ("stem_convs", 0)):
        value = getattr(frame, name)
        if type(value) is not int or value < least:
            raise TailorError(f"The shunted setting '{name}' must be a whole number of at least {least}, not {value}.")
    rows = (("stem_strides", 2, 1), ("strides", 3, 1), ("heads", 4, 1), ("reduce", 4, 1))
    for name, count, least in (*rows, ("depth_base", 4, 0), ("depth_growth", 4, 0)):
        value = getattr(frame, name)
        if not isinstance(value, tuple) or len(value) != count or any(type(v) is not int or v < least for v in value):
            raise TailorError(
                f"The shunted setting '{name}' must be {count} whole numbers of at least {least}, not {value}."
            )
    if frame.stem_kernel % 2 == 0:
        raise TailorError(f"The shunted setting 'stem_kernel' must be odd, not {frame.stem_kernel}.")
    if len(size) != 2 or any(type(s) is not int or s < 1 for s in size):
        raise TailorError(f"A shunted network needs two whole image sides, not {list(size)}.")
    if any(side % frame.stem_strides[1] for side in frame.stem_grid):
        step = frame.stem_strides[0] * frame.stem_strides[1]
        raise TailorError(f"A shunted network needs image sides that are multiples of {step}, not {list(size)}.")
    if any(k & (k - 1) for k in frame.reduce):
        raise TailorError(f"The shunted setting 'reduce' must be powers of two, not {list(frame.reduce)}.")
    for heads, k in zip(frame.heads, frame.reduce, strict=True):
        if heads % 2 and k > 1:
            raise TailorError(f"Shunted heads must be even where keys are reduced, not {heads} at a reduction of {k}.")
    if min(frame.depths(1)) < 1:
        raise TailorError("Every shunted stage needs a block: depth_base plus depth_growth must be at least 1.")
    if frame.ratios not in ("half", "four", "same"):
        raise TailorError(f"The shunted setting 'ratios' must be half, four or same, not '{frame.ratios}'.")
    if not isinstance(frame.eps, float) or frame.eps <= 0:
        raise TailorError(f"The shunted setting 'eps' must be a small positive number, not {frame.eps}.")
    return frame


def shapes(frame: ShuntedFrame, embed: int, mlp: float) -> list[tuple[int, int, int]]:
    """Embedding, head and hidden width of every stage."""
    found = []
    for s, (heads, ratio) in enumerate(zip(frame.heads, frame.mlps(mlp), strict=True)):
        width = embed * 2**s
        if width % heads:
            raise TailorError(
                f"A shunted embed of {embed} gives stage {s + 1} {width} channels: not whole {heads} heads."
            )
        if hidden_width(width, ratio) < 1:
            raise TailorError(f"A shunted MLP ratio of {mlp} leaves stage {s + 1} no hidden channel.")
        found.append((width, width // heads, hidden_width(width, ratio)))
    return found


def segments(arch: Arch) -> list[Hashable]:
    """Stem, four stages, head."""
    depth, embed, mlp = arch.one("depth"), arch.one("embed"), arch.one("mlp")
    return [("stem", embed), *((s, depth, embed, mlp) for s in range(STAGES)), ("head", embed)]


def layers(frame: ShuntedFrame, segment: Any) -> list[Layer]:
    """Exact parameters and MACs of one segment."""
    if segment[0] == "stem":
        s, d = frame.stem, int(segment[1])
        pixels, patch = frame.stem_grid[0] * frame.stem_grid[1], frame.stem_strides[1] ** 2
        first, rest = frame.stem_kernel**2 * frame.channels * s, 9 * frame.stem_convs * s * s
        tokens = frame.grids[0][0] * frame.grids[0][1]
        return [
            Layer("patch_embed.convs", first + rest, pixels * (first + rest)),
            Layer("patch_embed.norms", 2 * s * (1 + frame.stem_convs) + 2 * d, 0),
            Layer("patch_embed.proj", patch * s * d + d, tokens * patch * s * d),
        ]
    if segment[0] == "head":
        d = int(segment[1]) * 2 ** (STAGES - 1)
        return [Layer("head", frame.classes * (d + 1), frame.classes * d)]
    s, depth, d = int(segment[0]), frame.depths(int(segment[1]))[segment[0]], int(segment[2]) * 2 ** segment[0]
    tokens, merge = frame.grids[s][0] * frame.grids[s][1], 9 * d * (d // 2)
    return [
        *([Layer("stages.downsample", merge + 3 * d, tokens * merge)] if s else []),
        *(Layer(r.part, depth * r.params, depth * r.macs) for r in block_layers(frame, s, int(segment[2]), segment[3])),
        Layer("stages.norm", 2 * d, 0),
    ]


def block_layers(frame: ShuntedFrame, s: int, embed: int, mlp: float) -> list[Layer]:
    """The inventory of one block of a stage."""
    (d, _, hidden), grid, k = shapes(frame, embed, mlp)[s], frame.grids[s], frame.reductions[s]
    n, every = grid[0] * grid[1], k == 1
    counts = [(cell, cells(grid, cell)[0] * cells(grid, cell)[1]) for cell in ((1,) if every else (k, k // 2))]
    keys, width = sum(c for _, c in counts), d if every else d // 2  # of one set
    rows = [] if every else [(cell**2 * d * d, c) for cell, c in counts]
    return [
        Layer("blocks.norm", 4 * d, 0),
        Layer("blocks.attn.q", d * d + d, n * d * d),
        Layer("blocks.attn.sr", sum(w + 3 * d for w, _ in rows), sum(w * c for w, c in rows)),
        Layer("blocks.attn.kv", len(counts) * 2 * width * (d + 1), keys * 2 * width * d),
        Layer("blocks.attn.local", len(counts) * 10 * width, keys * 9 * width),
        Layer("blocks.attn", 0, 2 * n * keys * width),
        Layer("blocks.attn.proj", d * d + d, n * d * d),
        Layer("blocks.mlp.fc1", hidden * d + hidden, n * d * hidden),
        Layer("blocks.mlp.dwconv", 10 * hidden, 9 * n * hidden),
        Layer("blocks.mlp.fc2", hidden * d + d, n * d * hidden),
    ]


def outline(frame: ShuntedFrame, arch: Arch) -> list[dict[str, Any]]:
    """Shape and cost of every block."""
    rows, embed, mlp = [], int(arch.one("embed")), arch.one("mlp")
    for s, depth in enumerate(frame.depths(int(arch.one("depth")))):
        width, _, hidden = shapes(frame, embed, mlp)[s]
        parts = block_layers(frame, s, embed, mlp)
        for i in range(1, depth + 1):
            rows.append(
                {
                    "stage": s + 1,
                    "block": i,
                    "tokens": frame.grids[s][0] * frame.grids[s][1],
                    "embed": width,
                    "heads": frame.heads[s],
                    "qkv": width,
                    "mlp": number(frame.mlps(mlp)[s]),
                    "hidden": hidden,
                    "window": None,
                    "params": sum(p.params for p in parts),
                    "macs": sum(p.macs for p in parts),
                }
            )
    return rows
