"""Drawings of attention: maps on test images, distances per layer, likeness of heads."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tailorvit.report.axes import WIDTH, svg, text, ticks
from tailorvit.report.figure import tip
from tailorvit.report.views import Attention, Layer, label, trim

_ANCHORS = ((11, 16, 38), (91, 31, 122), (196, 60, 90), (245, 143, 41), (252, 243, 165))  # dark to light
LEVELS = 16  # colours of a heat map: four bits a pixel keep a 14 x 14 map near 200 bytes
# Marks lie on heat maps and photographs, whose colours do not follow the page's: a white edge keeps them readable.
_MARK = 'text-anchor="middle" style="font-size:8px;fill:#14161a;stroke:#fff;stroke-width:1.8px;paint-order:stroke"'
TOP = 5  # keys numbered on every map, as the S3 paper does


def palette() -> NDArray[np.uint8]:
    """The colours of heat maps, from nothing to most."""
    at = np.linspace(0, len(_ANCHORS) - 1, LEVELS)
    channels = [np.interp(at, range(len(_ANCHORS)), [a[i] for a in _ANCHORS]) for i in range(3)]
    return np.stack(channels, axis=1).round().astype(np.uint8)


def heat_png(values: NDArray[Any]) -> str:
    """A matrix of bytes as a data address: one pixel an entry, so that the drawing stays small."""
    levels = (values.astype(np.uint16) * LEVELS // 256).astype(np.uint8)
    height, width = levels.shape
    even = np.pad(levels, ((0, 0), (0, width % 2)))
    packed = even[:, 0::2] << 4 | even[:, 1::2]
    raw = b"".join(b"\0" + line.tobytes() for line in packed)

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", width, height, 4, 3, 0, 0, 0)  # four bits a pixel, palette
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"PLTE", palette().tobytes())
    data += chunk(b"IDAT", zlib.compress(raw, 9)) + chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(data).decode()


def image(href: str, x: float, y: float, width: float, height: float, fit: str = "none") -> str:
    """A picture; ``href`` must be a checked data address. Photographs are smoothed, small ones keep their pixels."""
    look = ' image-rendering="pixelated"' if href.startswith("data:image/png") else ""
    return (
        f'<image href="{href}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
        f' preserveAspectRatio="{fit}"{look}/>'
    )


def top_keys(heat: NDArray[np.uint8], count: int = TOP) -> list[tuple[int, int]]:
    """Places of the strongest keys, strongest first; ties in reading order; keys without weight are none."""
    order = np.argsort(-heat.astype(np.int64).ravel(), kind="stable")[:count]
    return [(int(k) // heat.shape[1], int(k) % heat.shape[1]) for k in order if heat.ravel()[k] > 0]


def _sides(grid: tuple[int, int], most: float) -> tuple[float, float]:
    """Width and height of a drawing of a grid whose longer side is ``most``."""
    rows, columns = grid
    return most * columns / max(grid), most * rows / max(grid)


def _cross(x: float, y: float, reach: float) -> str:
    lines = f"M{x - reach:.1f} {y:.1f}h{2 * reach:.1f}M{x:.1f} {y - reach:.1f}v{2 * reach:.1f}"
    return f'<path style="fill:none;stroke-width:3.6;stroke:#fff" d="{lines}"/><path class="line c0" d="{lines}"/>'


def attention_drawing(view: Attention, layer: Layer, reference: int = 0) -> str:
    """A row per image: the picture with the reference patch, then what each head attends to from there."""
    if layer.maps is None:
        return ""
    row, column = layer.references[reference]
    rows, columns = layer.grid
    parts: list[str] = []
    parts.append(text(4, 11, f"{layer.name}, asked by the patch in row {row + 1}, column {column + 1}"))
    y, per_line, side = 20.0, 5, 60
    for i, seen in enumerate(view.images):
        truth, said = label(view.classes, seen.truth), label(view.classes, seen.said)
        words = f"{seen.name}: {truth}" + ("" if seen.truth == seen.said else f", taken for {said}")
        parts.append(f"<g{tip(words)}>{text(4, y + 10, trim(words, 70), style='strong')}</g>")
        top = y + 18
        width, height = _sides(layer.grid, 96)
        if seen.picture:
            parts.append(image(seen.picture, 4, top, width, height))
        parts.append(f'<rect class="axis" x="4" y="{top:g}" width="{width:g}" height="{height:g}"/>')
        if max(layer.grid) <= 16:
            across = "".join(f"M4 {top + height * r / rows:.1f}h{width:g}" for r in range(1, rows))
            down = "".join(f"M{4 + width * c / columns:.1f} {top:g}v{height:g}" for c in range(1, columns))
            parts.append(f'<path class="grid" opacity=".5" d="{across}{down}"/>' if across + down else "")
        parts.append(_cross(4 + width * (column + 0.5) / columns, top + height * (row + 0.5) / rows, 4))
        for head in range(layer.heads):
            x = 112 + (head % per_line) * (side + 6)
            at = top + (head // per_line) * (side + 18)
            parts.append(_map(layer, i, reference, head, x, at, side))
        lines = (layer.heads - 1) // per_line + 1
        y = top + max(height + 8, lines * (side + 18)) + 6
    return svg(parts, f"Attention of {layer.name}", WIDTH, y)


def _map(layer: Layer, i: int, reference: int, head: int, x: float, y: float, side: float) -> str:
    if layer.maps is None:
        return ""
    heat = layer.maps[i, reference, head]
    width, height = _sides(layer.grid, side)
    rows, columns = layer.grid
    row, column = layer.references[reference]
    peak = None if layer.peaks is None else float(layer.peaks[i, reference, head])
    most = f", largest weight {peak:.3g}" if peak is not None and np.isfinite(peak) else ""
    parts = [image(heat_png(heat), x, y, width, height)]
    parts.append(_cross(x + width * (column + 0.5) / columns, y + height * (row + 0.5) / rows, 3))
    for number, (r, c) in enumerate(top_keys(heat), 1):
        beside = 6 if (r, c) == (row, column) else 0  # the cross stays readable
        place = f'x="{x + width * (c + 0.5) / columns + beside:.1f}" y="{y + height * (r + 0.5) / rows + 3:.1f}"'
        parts.append(f"<text {place} {_MARK}>{number}</text>")
    parts.append(text(x, y + height + 11, f"head {head + 1}"))
    return f"<g{tip(f'head {head + 1}{most}')}>{''.join(parts)}</g>"


def boxes_drawing(layers: Sequence[Layer], k: int) -> str:
    """A box per layer: quartiles, whiskers, the median as a line and the mean as a triangle."""
    boxes = [(layer.name, layer.distance.get(k)) for layer in layers]
    known = [b for _, b in boxes if b is not None]
    if not known:
        return ""
    left, right, top, bottom = 40, WIDTH - 6, 20, 190
    low = min(0.0, *(b.low for b in known))
    high = max(*(b.high for b in known), *(b.mean or 0 for b in known), low + 1e-9)
    parts = [text(4, 12, f"mean distance to the {k} strongest keys, patches")]

    def y(value: float) -> float:
        return bottom - (value - low) / (high - low) * (bottom - top)

    for v in ticks(low, high):
        parts.append(f'<path class="grid" d="M{left} {y(v):.1f}H{right}"/>')
        parts.append(text(left - 5, round(y(v) + 4, 1), f"{v:.4g}", "end"))
    parts.append(f'<path class="axis" d="M{left} {top}V{bottom}H{right}"/>')
    gap = (right - left) / len(boxes)
    half = min(gap * 0.35, 14)
    skip = -(-len(boxes) // 16)
    for i, (name, box) in enumerate(boxes):
        x = left + gap * (i + 0.5)
        if i % skip == 0:
            parts.append(text(round(x, 1), bottom + 14, str(i + 1), "middle"))
        if box is None:
            continue
        words = f"{name}: median {box.median:.3g}, quartiles {box.q1:.3g} to {box.q3:.3g}"
        words += f", whiskers {box.low:.3g} to {box.high:.3g}" + (f", mean {box.mean:.3g}" if box.mean else "")
        stems = f"M{x:.1f} {y(box.low):.1f}V{y(box.q1):.1f}M{x:.1f} {y(box.q3):.1f}V{y(box.high):.1f}"
        caps = "".join(f"M{x - half / 2:.1f} {y(v):.1f}h{half:.1f}" for v in (box.low, box.high))
        tall = max(y(box.q1) - y(box.q3), 0)
        drawn = (
            f'<path class="whisker" d="{stems}{caps}"/>'
            f'<rect class="ring c0" x="{x - half:.1f}" y="{y(box.q3):.1f}" width="{2 * half:.1f}" height="{tall:.1f}"/>'
            f'<path class="line c1" d="M{x - half:.1f} {y(box.median):.1f}h{2 * half:.1f}"/>'
        )
        if box.mean is not None:
            size = min(half, 5)
            peak = f"M{x:.1f} {y(box.mean) - size:.1f}l{size:.1f} {1.8 * size:.1f}h{-2 * size:.1f}z"
            drawn += f'<path class="bar c2" d="{peak}"/>'
        parts.append(f"<g{tip(words)}>{drawn}</g>")
    parts.append(text((left + right) / 2, bottom + 30, "layer", "middle"))
    return svg(parts, f"Attention distance, {k} strongest keys", WIDTH, bottom + 36)


def similarity_drawing(layers: Sequence[Layer]) -> str:
    """A matrix per layer: the lighter, the more alike two heads look."""
    parts, per_line, side = [], 6, 62
    known = [layer for layer in layers if layer.similarity is not None and layer.heads > 1]
    for i, layer in enumerate(known):
        if layer.similarity is None:
            continue
        x, y = 4 + (i % per_line) * 73, 4 + (i // per_line) * 88
        matrix = layer.similarity
        words = f"{layer.name}, {layer.heads} heads"
        rest = np.where(np.eye(layer.heads, dtype=bool), -np.inf, matrix)
        a, b = divmod(int(rest.argmax()), layer.heads)
        mean = f", mean {layer.redundancy:.2f}" if layer.redundancy is not None else ""
        words += f"{mean}; most alike {a + 1} and {b + 1}: {matrix[a, b]:.2f}"
        heat = (np.clip(matrix, 0, 1) * 255).round().astype(np.uint8)
        parts.append(f"<g{tip(words)}>{image(heat_png(heat), x, y, side, side)}")
        parts.append(f"{text(x, y + side + 12, trim(layer.name, 12))}</g>")
    if not parts:
        return ""
    lines = (len(known) - 1) // per_line + 1
    y = 4 + lines * 88
    parts.append(f"{image(heat_png(np.arange(0, 256, 16, dtype=np.uint8)[None]), 30, y, 120, 8)}")
    parts += [text(24, y + 8, "0", "end"), text(156, y + 8, "1 (the same map)")]
    return svg(parts, "Likeness of the heads of each layer", WIDTH, y + 14)
