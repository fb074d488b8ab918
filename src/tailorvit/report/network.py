"""Section 4: the network found, block by block, and what its attention looks at."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence

import numpy as np

from tailorvit.report import charts
from tailorvit.report.draw_analysis import (
    attention_drawing,
    boxes_drawing,
    palette,
    similarity_drawing,
)
from tailorvit.report.draw_network import Part, block_in_words, network_drawing, parts_drawing
from tailorvit.report.figure import Figure
from tailorvit.report.parts import arch_in_words, cell, grid, none, size, tidy
from tailorvit.report.records import Facts, real, rows, table
from tailorvit.report.views import Attention, Block, Layer, attended, blocks, label, trim

_EMBED_MOST = 800_000  # bytes of maps on the page; the analysis keeps some 400,000
_CELLS_MOST = 60_000  # rows of the CSV of maps


def figures(facts: Facts) -> list[Figure]:
    """The drawings of this section."""
    view, _ = attended(facts.analysis)
    found = [_blocks(facts), _parts(facts)]
    if view is not None:
        found += [_maps(view), _distance(view.layers, 5), _distance(view.layers, 10)]
        found += [_similarity(view.layers), _redundancy(view.layers)]
    return [figure for figure in found if figure is not None]


def network(facts: Facts) -> str:
    """The drawing of the network, its parts, and the analysis of its attention."""
    arch = table(facts.result.get("arch"))
    if not arch:
        return none("No network has been chosen yet.")
    drawn = {figure.key: figure for figure in figures(facts)}
    text = f"<p>{cell(trim(arch_in_words(arch), 2000))}.</p>"
    body = [(b.stage, b.block, b.tokens, block_in_words(b), size(b.params), size(b.macs)) for b in blocks(facts)]
    exact = grid(("stage", "block", "tokens", "made of", "parameters", "MACs"), body, 2)
    for key in ("network-blocks", "network-parts"):
        text += drawn[key].html() if key in drawn else ""
        if key == "network-blocks" and body:
            text += f"<details><summary>The blocks in numbers</summary>{exact}</details>"
    return text + "<h3>Attention</h3>" + _attention(facts, drawn)


def _attention(facts: Facts, drawn: dict[str, Figure]) -> str:
    view, wrong = attended(facts.analysis)
    told = [trim(str(note), 500) for note in rows(facts.analysis.get("notes"))[:20]]
    notes = "".join(none(sentence) for sentence in [*wrong[:20], *told])
    if len(wrong) > 20:
        notes += none(f"{len(wrong) - 20} more parts of the attention are damaged.")
    if view is None or not view.layers:
        return none("The attention of this network was not recorded.") + notes
    text = drawn["attention-maps"].html() + _data(view) if "attention-maps" in drawn else ""
    for keys in (("attention-distance-5", "attention-distance-10"), ("head-similarity", "head-redundancy")):
        pair = "".join(drawn[key].html() for key in keys if key in drawn)
        text += f'<div class="pair">{pair}</div>' if pair else ""
    if all(layer.heads == 1 for layer in view.layers):
        text += none("Every layer has one head: there is nothing to compare.")
    return text + notes


def _part_rows(facts: Facts) -> list[Part]:
    found = [table(p) for p in rows(facts.result.get("parts"))]
    return [(str(p.get("part")), _cost(p.get("params")), _cost(p.get("macs"))) for p in found if p]


def _cost(value: object) -> float | None:
    number = real(value)
    return number if number is not None and number >= 0 else None


def _joined(parts: Sequence[Part]) -> Part | None:
    if not parts:
        return None
    known = [[v for v in column if v is not None] for column in ([p[1] for p in parts], [p[2] for p in parts])]
    return ", ".join(p[0] for p in parts), sum(known[0]), sum(known[1])


def _ends(parts: Sequence[Part]) -> tuple[Part | None, Part | None, Part | None]:
    """What lies before, between and after the blocks; parts are listed in the order of the network."""
    inside = [i for i, p in enumerate(parts) if p[0].startswith(("blocks", "stages"))]
    if not inside:
        last = next((i for i, p in enumerate(parts) if p[0] in ("norm", "head")), len(parts))
        return _joined(parts[:last]), None, _joined(parts[last:])
    between = [p for p in parts[inside[0] : inside[-1] + 1] if not p[0].startswith(("blocks", "stages"))]
    return _joined(parts[: inside[0]]), _joined(between), _joined(parts[inside[-1] + 1 :])


def _blocks(facts: Facts) -> Figure | None:
    found = blocks(facts)
    if not found:
        return None
    stem, between, head = _ends(_part_rows(facts))
    ends = [("stem", stem), ("joints", between), ("head", head)]
    body = [("block", *_numbers(block)) for block in found]
    body += [(name, *[None] * 9, p[1], p[2]) for name, p in ends if p is not None]
    return Figure(
        key="network-blocks",
        title="The network, block by block",
        caption="Images enter at the top. Grey: the width of a block; blue: queries, keys and values, one box a head;"
        " orange: the hidden layer of its MLP; all on one scale. To the right its parameters and MACs.",
        columns=(
            *("part", "stage", "block", "tokens", "embed", "heads", "qkv", "mlp", "hidden", "window"),
            *("params", "macs"),
        ),
        rows=body,
        svg=network_drawing(found, stem, between, head),
        legend=(("c5", "width"), ("c0", "Q-K-V by head"), ("c1", "MLP"), ("c2", "parameters"), ("c4", "MACs")),
    )


def _numbers(b: Block) -> tuple[float | None, ...]:
    return (b.stage, b.block, b.tokens, b.embed, b.heads, b.qkv, b.mlp, b.hidden, b.window, b.params, b.macs)


def _parts(facts: Facts) -> Figure | None:
    found = _part_rows(facts)
    if not found:
        return None
    sums = [sum(p[1] or 0 for p in found) or 1, sum(p[2] or 0 for p in found) or 1]
    body = [
        (name, params, None if params is None else params / sums[0], macs, None if macs is None else macs / sums[1])
        for name, params, macs in found
    ]
    return Figure(
        key="network-parts",
        title="Where parameters and MACs lie",
        caption="The same part of all blocks taken together, with its share of the whole network.",
        columns=("part", "params", "params_share", "macs", "macs_share"),
        rows=body,
        svg=parts_drawing(found),
    )


def _maps(view: Attention) -> Figure | None:
    layer = next((each for each in reversed(view.layers) if each.maps is not None), None)
    if layer is None or layer.maps is None or not view.images:
        return None
    weight = layer.maps[:, 0].astype(np.float64) / 255
    if layer.peaks is not None:
        weight *= np.nan_to_num(layer.peaks[:, 0].astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)[..., None, None]
    row, column = layer.references[0]
    places = np.ndindex(*weight.shape) if weight.size <= _CELLS_MOST else ()
    cells = [
        (view.images[i].name, layer.name, row + 1, column + 1, head + 1, r + 1, c + 1, float(weight[i, head, r, c]))
        for i, head, r, c in places
    ]
    return Figure(
        key="attention-maps",
        title="What the heads look at",
        caption="Test images. + is the patch that asks; a map shows how much each head takes from every patch, dark for"
        " little, light for the most; 1 to 5 are the strongest. With scripts on: choose image, layer and head, or click"
        " a patch of a picture.",
        columns=("image", "layer", "reference_row", "reference_column", "head", "row", "column", "weight"),
        rows=cells,
        svg=attention_drawing(view, layer),
        controls='<div id="attention-controls" class="tool controls" hidden></div>',
    )


def _data(view: Attention) -> str:
    """The maps of all layers for the page's script; text in a script cannot end it, since no < is left."""
    # JSON writes a mark that turns text around as an escape, which the page's own cleaning would not see.
    layers, spent = [], 0
    for layer in reversed(view.layers):  # the last layers matter most, should there be too many
        if layer.maps is None or spent + layer.maps.nbytes > _EMBED_MOST:
            continue
        spent += layer.maps.nbytes
        peaks = None if layer.peaks is None else base64.b64encode(layer.peaks.tobytes()).decode()
        layers.append(
            {
                "name": tidy(layer.name),
                "heads": layer.heads,
                "grid": layer.grid,
                "references": layer.references,
                "maps": base64.b64encode(layer.maps.tobytes()).decode(),
                "peaks": peaks,
            }
        )
    images = [
        {
            "name": trim(tidy(seen.name), 200),
            "truth": trim(tidy(label(view.classes, seen.truth)), 80),
            "said": trim(tidy(label(view.classes, seen.said)), 80),
            "picture": seen.picture,
        }
        for seen in view.images
    ]
    data = {"palette": palette().tolist(), "images": images, "layers": layers[::-1]}
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c").replace(">", "\\u003e")
    return f'<script type="application/json" id="attention-data">{text}</script>\n'


def _distance(layers: Sequence[Layer], k: int) -> Figure | None:
    drawing = boxes_drawing(layers, k)
    if not drawing:
        return None
    body = [
        (layer.name, k, box.low, box.q1, box.median, box.q3, box.high, box.mean)
        for layer in layers
        if (box := layer.distance.get(k)) is not None
    ]
    return Figure(
        key=f"attention-distance-{k}",
        title=f"Attention distance, {k} strongest keys",
        caption="How far from its own patch a patch looks, over all queries, heads and some test images; the unit is"
        " one patch of that layer. Box: quartiles; line: median; triangle: mean.",
        columns=("layer", "k", "low", "q1", "median", "q3", "high", "mean"),
        rows=body,
        svg=drawing,
        legend=(("c0", "quartiles"), ("c1", "median"), ("c2", "mean")),
    )


def _similarity(layers: Sequence[Layer]) -> Figure | None:
    drawing = similarity_drawing(layers)
    if not drawing:
        return None
    body = [
        (layer.name, a + 1, b + 1, float(layer.similarity[a, b]))
        for layer in layers
        if layer.similarity is not None
        for a in range(layer.heads)
        for b in range(layer.heads)
    ]
    return Figure(
        key="head-similarity",
        title="How alike the heads of a layer are",
        caption="Cosine of the attention maps of every two heads of a layer, mean over some test images.",
        columns=("layer", "head", "other_head", "cosine"),
        rows=body,
        svg=drawing,
    )


def _redundancy(layers: Sequence[Layer]) -> Figure | None:
    found = [(i, layer) for i, layer in enumerate(layers, 1) if layer.redundancy is not None]
    points = [(float(i), layer.redundancy or 0.0) for i, layer in found]
    names = {float(i): str(i) for i, _ in found} if len(found) <= 16 else None
    drawing = charts.lines(
        {"redundancy": points}, "Redundancy of heads per layer", "layer", "mean cosine of two heads", x_names=names
    )
    if not drawing:
        return None
    return Figure(
        key="head-redundancy",
        title="Redundancy of heads per layer",
        caption="Mean cosine of two different heads: near 1, heads repeat each other. Layers with one head have none.",
        columns=("layer", "name", "redundancy"),
        rows=[(i, layer.name, layer.redundancy) for i, layer in found],
        svg=drawing,
    )
