"""Section 4: the network found, block by block, and its attention."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tailorvit.report import charts
from tailorvit.report.charts import WIDTH, Figure, bar, figures_of, heat_png, image, short, svg, text, tip, trim
from tailorvit.report.markup import arch_in_words, counted, data_block, fold, grid, pair, paragraph, size, soft, tidy
from tailorvit.report.reading import Analysis, Attention, Block, Facts, Layer, Part, Seen, blocks

_EMBEDDED = 800_000  # bytes of attention maps on the page; the analysis keeps about 400,000
_CELLS = 60_000  # rows of the CSV of maps
_PROBLEMS = 20
_TOP_KEYS = 5  # keys numbered on every map, as in the S3 paper
# The columns of a block with their names; a family may lack some of them.
_COLUMNS = {
    "stage": "stage",
    "block": "block",
    "tokens": "tokens",
    "embed": "width",
    "heads": "heads",
    "qkv": "Q-K-V",
    "mlp": "MLP ratio",
    "hidden": "MLP width",
    "window": "window",
}
# Marks lie on heat maps and photographs, whose colours do not follow the page: a white edge keeps them readable.
_MARK = 'text-anchor="middle" style="font-size:8px;fill:#14161a;stroke:#fff;stroke-width:1.8px;paint-order:stroke"'


def figures(facts: Facts) -> list[Figure]:
    """The figures of this section."""
    rows, parts, seen = blocks(facts.result), facts.result.parts, facts.analysis.attention
    found = [_blocks(rows, parts), _parts(parts)]
    if seen is not None:
        found += [_maps(facts.analysis, seen), _distance(seen.layers), _similarity(seen.layers)]
    return figures_of(*found)


def section(facts: Facts) -> str:
    """The network as a drawing, its parts, and its attention."""
    if not facts.result.arch:
        return soft("No network has been chosen yet.")
    drawn = {figure.key: figure.html() for figure in figures(facts)}
    words = paragraph(f"{trim(arch_in_words(facts.result.arch), 2000)}.") + drawn.get("network-blocks", "")
    rows = blocks(facts.result)
    if rows:
        columns, names = _columns(rows)
        body = [(*_values(b, columns), size(b.params), size(b.macs)) for b in rows]
        table = grid((*names, "parameters", "MACs"), body, len(columns) + 2)
        words += fold("The blocks in numbers", table)
    return f"{words}{drawn.get('network-parts', '')}<h3>Attention</h3>{_attention(facts, drawn)}"


def _attention(facts: Facts, drawn: dict[str, str]) -> str:
    seen = facts.analysis.attention
    problems = list(seen.problems) if seen is not None else []
    more = (
        [f"{len(problems) - _PROBLEMS} more parts of the attention are damaged."] if len(problems) > _PROBLEMS else []
    )
    notes = "".join(map(soft, [*problems[:_PROBLEMS], *more, *(trim(n, 500) for n in facts.analysis.notes)]))
    if seen is None or not seen.layers:
        return soft("The attention of this network was not recorded.") + notes
    words = drawn["attention-maps"] + _script_data(facts.analysis, seen) if "attention-maps" in drawn else ""
    words += pair(drawn.get("attention-distance", ""), drawn.get("head-similarity", ""))
    if all(layer.heads == 1 for layer in seen.layers):
        words += soft("Every layer has one head, so there are no heads to compare.")
    return words + notes


# -- blocks and parts -------------------------------------------------------------------------------------------------


def _columns(rows: Sequence[Block]) -> tuple[list[str], list[str]]:
    """The columns that any block has, and their names; those of the family itself come last."""
    known = [k for k in _COLUMNS if any(getattr(b, k) is not None for b in rows)]
    others = list(dict.fromkeys(k for b in rows for k in b.others))
    return [*known, *others], [*(_COLUMNS[k] for k in known), *others]


def _values(block: Block, columns: Sequence[str]) -> tuple[Any, ...]:
    return tuple(getattr(block, k) if k in _COLUMNS else block.others.get(k) for k in columns)


def _plain(value: float) -> str:
    return f"{value:.10g}" if abs(value) < 1e4 else short(value)


def block_in_words(block: Block) -> str:
    """One block on a line."""
    words = [f"width {_plain(block.embed)}"] if block.embed is not None else []
    if block.heads is not None:
        words.append(counted(block.heads, "head"))
    if block.qkv is not None:
        words.append(f"Q-K-V {_plain(block.qkv)}")
    if block.hidden is not None or block.mlp is not None:
        ratio = f" (x {block.mlp:g})" if block.mlp is not None else ""
        words.append(f"MLP{'' if block.hidden is None else f' {_plain(block.hidden)}'}{ratio}")
    if block.window is not None:
        words.append(f"window {block.window}")
    words += [f"{k} {v if isinstance(v, str) else _plain(v)}" for k, v in block.others.items()]
    return ", ".join(words) or "no details recorded"


def _stage_in_words(group: Sequence[Block], stage: int | None) -> str:
    words = [f"Stage {stage}" if stage is not None else "Blocks"]
    for form, key in (("{} tokens", "tokens"), ("width {}", "embed"), ("window {}", "window")):
        known = sorted({v for b in group if (v := getattr(b, key)) is not None})
        if known:
            words.append(form.format(_plain(known[0]) + (f" to {_plain(known[-1])}" if len(known) > 1 else "")))
    return ", ".join([*words, counted(len(group), "block")])


def _sum(parts: Sequence[Part]) -> Part | None:
    if not parts:
        return None
    params, macs = (sum(v for v in column if v is not None) for column in zip(*((p.params, p.macs) for p in parts)))
    return Part(part=", ".join(p.part for p in parts), params=params, macs=macs)


def _ends(parts: Sequence[Part]) -> dict[str, Part]:
    """What lies before, between and after the blocks; parts are listed in the order of the network."""
    inside = [i for i, p in enumerate(parts) if p.part.startswith(("blocks", "stages"))]
    if inside:
        first, last = inside[0], inside[-1] + 1
    else:
        first = last = next((i for i, p in enumerate(parts) if p.part in ("norm", "head")), len(parts))
    between = [p for p in parts[first:last] if not p.part.startswith(("blocks", "stages"))]
    found = {"stem": _sum(parts[:first]), "between": _sum(between), "head": _sum(parts[last:])}
    return {name: part for name, part in found.items() if part is not None}


def _blocks(rows: Sequence[Block], parts: Sequence[Part]) -> Figure | None:
    if not rows:
        return None
    ends, (columns, _) = _ends(parts), _columns(rows)
    body = [("block", *_values(b, columns), b.params, b.macs) for b in rows]
    body += [(name, *[None] * len(columns), p.params, p.macs) for name, p in ends.items()]
    lanes = {
        "embed": ("c5", "width", "Grey: the width of a block."),
        "qkv": ("c0", "Q-K-V by head", "Blue: queries, keys and values, one box per head."),
        "hidden": ("c1", "MLP", "Orange: the hidden layer of the MLP."),
    }
    drawn = [lane for key, lane in lanes.items() if key in columns]
    return Figure(
        key="network-blocks",
        title="The network, block by block",
        caption=" ".join(["Images enter at the top.", *(words for *_, words in drawn), "All widths share one scale."]),
        columns=("part", *columns, "params", "macs"),
        rows=body,
        svg=_network_drawing(rows, ends),
        legend=(*((style, name) for style, name, _ in drawn), ("c2", "parameters"), ("c4", "MACs")),
    )


def _network_drawing(rows: Sequence[Block], ends: dict[str, Part]) -> str:
    """Top to bottom: stem, blocks by stage, head."""
    left, lane = 34, 204
    at, wide = (248, 345), 40  # where the bars of parameters and MACs begin; on a phone text needs 50 units after them
    roomy = len(rows) <= 16  # a line of text per block; 48 of them would fill four screens
    widest = max((w for b in rows for w in (b.embed, b.qkv, b.hidden) if w is not None), default=0) or 1
    sizes = [*((b.params, b.macs) for b in rows), *((p.params, p.macs) for p in ends.values())]
    most = [max((v for v in values if v is not None), default=0) or 1 for values in zip(*sizes)]
    parts = [text(left, 12, "channels"), text(at[0], 12, "parameters"), text(at[1], 12, "MACs")]
    y = 20.0

    def costs(y: float, values: tuple[float | None, float | None]) -> None:
        for x, value, top, style in zip(at, values, most, ("c2", "c4")):
            if value is not None:
                parts.append(bar(x, y, wide * value / top, 8, style))
                parts.append(text(x + wide + 4, y + 8, short(value)))

    def end(name: str) -> float:
        if name not in ends:
            return 0
        part = ends[name]
        words = f"{text(4, y + 13, name, style='strong')}{text(66, y + 13, trim(part.part, 22))}"
        parts.append(f"<g{tip(f'{name}: {part.part}')}>{words}</g>")
        costs(y + 5, (part.params, part.macs))
        return 22

    y += end("stem")
    for stage, same in groupby(rows, key=lambda b: b.stage):
        group = list(same)
        parts.append(f'<path class="grid" d="M0 {y + 3:g}H{WIDTH}"/>')
        parts.append(text(4, y + 17, _stage_in_words(group, stage), style="strong"))
        y += 23
        for block in group:
            parts.append(_block_drawing(block, y, left, lane / widest, roomy))
            costs(y + 5, (block.params, block.macs))
            y += 40 if roomy else 20
    parts.append(f'<path class="grid" d="M0 {y + 3:g}H{WIDTH}"/>')
    y += 4
    y += end("between")
    y += end("head")
    return svg(parts, "The network block by block", WIDTH, y + 4)


def _block_drawing(block: Block, y: float, left: float, scale: float, roomy: bool) -> str:
    words = block_in_words(block)
    tall, lane = (23, 8) if roomy else (18, 6)
    tokens = f", {block.tokens:,} tokens" if block.tokens is not None else ""
    parts = [text(left - 8, y + 14, str(block.block), "end")]
    if block.embed is not None:
        parts.append(bar(left, y, block.embed * scale, tall, "c5", ' opacity=".35"'))
    if block.qkv is not None:
        parts.append(bar(left, y + 2, block.qkv * scale, lane, "c0"))
        if block.heads is not None and 1 < block.heads <= 128:
            step = block.qkv * scale / block.heads
            cuts = "".join(f"M{left + step * i:.1f} {y + 2:g}v{lane}" for i in range(1, block.heads))
            parts.append(f'<path class="grid" d="{cuts}"/>')
    if block.hidden is not None:
        parts.append(bar(left, y + 4 + lane + (2 if roomy else 0), block.hidden * scale, lane, "c1"))
    if roomy:
        parts.append(text(left, y + 34, trim(words, 60)))
    return f"<g{tip(f'block {block.block}: {words}{tokens}')}>{''.join(parts)}</g>"


def _parts(parts: Sequence[Part]) -> Figure | None:
    if not parts:
        return None
    columns = [[p.params for p in parts], [p.macs for p in parts]]
    sums = [sum(v or 0 for v in column) or 1 for column in columns]
    most = [max(v or 0 for v in column) or 1 for column in columns]
    at, wide = (138, 289), 44  # on a phone text needs 100 units after each bar
    drawn = [text(at[0], 12, "parameters", style="strong"), text(at[1], 12, "MACs", style="strong")]
    for i, part in enumerate(parts):
        y = 20 + 19 * i
        drawn.append(f"<g{tip(part.part)}>{text(at[0] - 6, y + 11, trim(part.part, 20), 'end')}</g>")
        for x, value, total, top, style in zip(at, (part.params, part.macs), sums, most, ("c2", "c4")):
            if value is not None:
                drawn.append(bar(x, y + 2, wide * value / top, 10, style))
                drawn.append(text(x + wide + 4, y + 11, f"{short(value)}, {100 * value / total:.1f} %"))
    shares = [[None if v is None else v / total for v in column] for column, total in zip(columns, sums)]
    title = "Parameters and MACs by part"
    return Figure(
        key="network-parts",
        title=title,
        caption="Each part is summed over all blocks, with its share of the whole network.",
        columns=("part", "params", "params_share", "macs", "macs_share"),
        rows=[(p.part, p.params, shares[0][i], p.macs, shares[1][i]) for i, p in enumerate(parts)],
        svg=svg(drawn, title, WIDTH, 24 + 19 * len(parts)),
    )


# -- attention --------------------------------------------------------------------------------------------------------


def _maps(analysis: Analysis, seen: Attention) -> Figure | None:
    """The last layer with maps; the page's script shows the others."""
    layer = next((layer for layer in reversed(seen.layers) if layer.maps is not None), None)
    if layer is None or layer.maps is None or not seen.images:
        return None
    weight = layer.maps[:, 0].astype(np.float64) / 255
    if layer.peaks is not None:
        weight *= np.nan_to_num(layer.peaks[:, 0].astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)[..., None, None]
    row, column = layer.references[0]
    places = np.ndindex(*weight.shape) if weight.size <= _CELLS else ()
    return Figure(
        key="attention-maps",
        title="Attention maps of the heads",
        caption="Test images. + marks the query patch; a map shows how much each head attends to every patch, from dark"
        " (little) to light (most). 1 to 5: the strongest keys. With scripts on, choose image, layer and head, or click"
        " on a patch of a picture.",
        columns=("image", "layer", "reference_row", "reference_column", "head", "row", "column", "weight"),
        rows=[
            (seen.images[i].name, layer.name, row + 1, column + 1, head + 1, r + 1, c + 1, float(weight[i, head, r, c]))
            for i, head, r, c in places
        ],
        svg=_maps_drawing(analysis, seen.images, layer, layer.maps),
        controls='<div id="attention-controls" class="tool controls" hidden></div>',
    )


def image_in_words(analysis: Analysis, seen: Seen) -> str:
    """An image's name and class, and the prediction where it is wrong."""
    wrong = "" if seen.truth == seen.predicted else f", predicted {analysis.label(seen.predicted)}"
    return f"{seen.name}: {analysis.label(seen.truth)}{wrong}"


def _sides(grid: tuple[int, int], most: float) -> tuple[float, float]:
    """Width and height of a drawing of a grid whose longer side is ``most``."""
    rows, columns = grid
    return most * columns / max(grid), most * rows / max(grid)


def _cross(x: float, y: float, reach: float) -> str:
    lines = f"M{x - reach:.1f} {y:.1f}h{2 * reach:.1f}M{x:.1f} {y - reach:.1f}v{2 * reach:.1f}"
    return f'<path style="fill:none;stroke-width:3.6;stroke:#fff" d="{lines}"/><path class="line c0" d="{lines}"/>'


def _maps_drawing(analysis: Analysis, images: Sequence[Seen], layer: Layer, maps: NDArray[np.uint8]) -> str:
    """A row per image: the picture with the query patch, then the map of each head."""
    row, column = layer.references[0]
    rows, columns = layer.grid
    parts = [text(4, 11, f"{layer.name}, query patch in row {row + 1}, column {column + 1}")]
    y, per_line, side = 20.0, 5, 60
    for i, seen in enumerate(images):
        words = image_in_words(analysis, seen)
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
            x, at = 112 + (head % per_line) * (side + 6), top + (head // per_line) * (side + 18)
            parts.append(_map_drawing(layer, maps[i, 0, head], i, head, x, at, side))
        lines = (layer.heads - 1) // per_line + 1
        y = top + max(height + 8, lines * (side + 18)) + 6
    return svg(parts, f"Attention of {layer.name}", WIDTH, y)


def top_keys(heat: NDArray[np.uint8], count: int = _TOP_KEYS) -> list[tuple[int, int]]:
    """Places of the strongest keys, strongest first, ties in reading order; keys without weight are left out."""
    order = np.argsort(-heat.astype(np.int64).ravel(), kind="stable")[:count]
    return [(int(k) // heat.shape[1], int(k) % heat.shape[1]) for k in order if heat.ravel()[k] > 0]


def _map_drawing(layer: Layer, heat: NDArray[np.uint8], i: int, head: int, x: float, y: float, side: float) -> str:
    width, height = _sides(layer.grid, side)
    rows, columns = layer.grid
    row, column = layer.references[0]
    peak = None if layer.peaks is None else float(layer.peaks[i, 0, head])
    most = f", largest weight {peak:.3g}" if peak is not None and np.isfinite(peak) else ""
    parts = [image(heat_png(heat), x, y, width, height)]
    parts.append(_cross(x + width * (column + 0.5) / columns, y + height * (row + 0.5) / rows, 3))
    for number, (r, c) in enumerate(top_keys(heat), 1):
        beside = 6 if (r, c) == (row, column) else 0  # the cross stays readable
        place = f'x="{x + width * (c + 0.5) / columns + beside:.1f}" y="{y + height * (r + 0.5) / rows + 3:.1f}"'
        parts.append(f"<text {place} {_MARK}>{number}</text>")
    parts.append(text(x, y + height + 11, f"head {head + 1}"))
    return f"<g{tip(f'head {head + 1}{most}')}>{''.join(parts)}</g>"


def _script_data(analysis: Analysis, seen: Attention) -> str:
    """The maps of all layers for the page's script."""
    layers, spent = [], 0
    for layer in reversed(seen.layers):  # if there are too many, the last layers matter most
        if layer.maps is None or spent + layer.maps.nbytes > _EMBEDDED:
            continue
        spent += layer.maps.nbytes
        layers.append(
            {
                "name": tidy(layer.name),
                "heads": layer.heads,
                "grid": layer.grid,
                "references": layer.references,
                "maps": base64.b64encode(layer.maps.tobytes()).decode(),
                "peaks": None if layer.peaks is None else base64.b64encode(layer.peaks.tobytes()).decode(),
            }
        )
    images = [
        {
            "name": trim(tidy(each.name), 200),
            "truth": trim(tidy(analysis.label(each.truth)), 80),
            "predicted": trim(tidy(analysis.label(each.predicted)), 80),
            "picture": each.picture,
        }
        for each in seen.images
    ]
    data = {"palette": charts.palette().tolist(), "images": images, "layers": layers[::-1]}
    return data_block("attention-data", data)


def _distance(layers: Sequence[Layer]) -> Figure | None:
    """A box per layer with whiskers, the median as a line and the mean as a triangle."""
    found = [(float(i), layer.name, box) for i, layer in enumerate(layers, 1) if (box := layer.distance.get(_TOP_KEYS))]
    if not found:
        return None
    heights = [0.0, *(v for *_, b in found for v in (b.low, b.high, b.mean or 0.0))]
    ends, skip = [0.5, len(layers) + 0.5], -(-len(layers) // 16)
    names = {float(i): str(i) for i in range(1, len(layers) + 1, skip)}
    axes = charts.Axes(ends, heights, "layer", "patches", charts.Box(height=226), names)
    half = min((axes.x(2) - axes.x(1)) * 0.35, 14)
    for i, name, box in found:
        x, y = axes.x(i), axes.y
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
            side = min(half, 5)
            peak = f"M{x:.1f} {y(box.mean) - side:.1f}l{side:.1f} {1.8 * side:.1f}h{-2 * side:.1f}z"
            drawn += f'<path class="bar c2" d="{peak}"/>'
        axes.parts.append(f"<g{tip(words)}>{drawn}</g>")
    title = "Attention distance by layer"
    return Figure(
        key="attention-distance",
        title=title,
        caption=f"Mean distance from a query patch to its {_TOP_KEYS} strongest keys, over all queries, heads and some"
        " test images, in patches of that layer. Box: quartiles; line: median; triangle: mean.",
        columns=("layer", "low", "q1", "median", "q3", "high", "mean"),
        rows=[(name, b.low, b.q1, b.median, b.q3, b.high, b.mean) for _, name, b in found],
        svg=axes.svg(title),
        legend=(("c0", "quartiles"), ("c1", "median"), ("c2", "mean")),
    )


def _similarity(layers: Sequence[Layer]) -> Figure | None:
    """A matrix per layer: the lighter, the more similar two heads are."""
    numbered = [(n, layer, layer.similarity) for n, layer in enumerate(layers, 1)]
    known = [(n, layer, matrix) for n, layer, matrix in numbered if matrix is not None and layer.heads > 1]
    if not known:
        return None
    parts, per_line, side, rows = list[str](), 6, 62, []
    for i, (n, layer, matrix) in enumerate(known):
        x, y = 4 + (i % per_line) * 73, 4 + (i // per_line) * 88
        rest = np.where(np.eye(layer.heads, dtype=bool), -np.inf, matrix)
        a, b = divmod(int(rest.argmax()), layer.heads)
        mean = "" if layer.redundancy is None else f": {layer.redundancy:.2f}"
        words = f"{layer.name}, {layer.heads} heads; most similar {a + 1} and {b + 1}: {matrix[a, b]:.2f}"
        heat = (np.clip(matrix, 0, 1) * 255).round().astype(np.uint8)
        parts.append(f"<g{tip(words)}>{image(heat_png(heat), x, y, side, side)}")
        parts.append(f"{text(x, y + side + 12, f'{n}{mean}')}</g>")
        rows += [(layer.name, a + 1, b + 1, float(matrix[a, b])) for a, b in np.ndindex(matrix.shape)]
    y = 4 + ((len(known) - 1) // per_line + 1) * 88
    parts += [charts.heat_scale(30, y), text(24, y + 8, "0", "end"), text(156, y + 8, "1 (the same map)")]
    title = "Similarity of the heads of each layer"
    return Figure(
        key="head-similarity",
        title=title,
        caption="Cosine of the attention maps of two heads, mean over some test images. Below a matrix: the layer and"
        " the mean over different heads; close to 1, heads repeat each other.",
        columns=("layer", "head", "other_head", "cosine"),
        rows=rows,
        svg=svg(parts, title, WIDTH, y + 14),
    )
