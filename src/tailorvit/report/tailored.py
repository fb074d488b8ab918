"""A pretrained network that was cut: what its size costs, which parts were kept, and what the last training added."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tailorvit.report.charts import WIDTH, Axes, Box, Figure, bar, figures_of, short, svg, text, tip, trim
from tailorvit.report.fields import whole
from tailorvit.report.markup import Html, cell, clean, counted, fold, grid, paragraph, percent, size, soft
from tailorvit.report.reading import Facts
from tailorvit.report.result import interval
from tailorvit.report.tailored_facts import genes

_WIDE = 10  # sizes that differ by this factor need an axis of factors: on a plain one the small ones would touch
_LETTER, _LINE = 7.4, 13.0  # the room of a letter on a phone, and of a line
_ROWS = 64  # blocks drawn; the numbers hold all
_LISTED = 12  # blocks left out that are named in a sentence
_KINDS = {"c0": "cut and taught", "c4": "first blocks, taught alike", "c5": "the whole network, fine-tuned"}


class Point(NamedTuple):
    """A network of the figure and of the table."""

    name: str
    style: str
    params: float | None
    macs: float | None
    inherited: float | None
    search: float | None
    test: float | None
    delivered: bool = False


class Kept(NamedTuple):
    """What is left of one block of the whole network."""

    block: int  # counted through all stages
    rank: int  # in importance, from 1
    heads: int | None  # None where the block was left out
    hidden: int | None
    stage: int  # counted from 0


def there(facts: Facts) -> bool:
    """Whether a pretrained network was cut."""
    return facts.tailored


def section(facts: Facts) -> str:
    """What the size costs, the networks in numbers, what was kept, and what the last training added."""
    if not facts.finished:
        return paragraph(_so_far(facts))
    drawn = {figure.key: figure.html() for figure in figures(facts)}
    words = paragraph(_opening(facts)) + drawn.get("tailored-sizes", "") + _table(facts)
    words += paragraph(clean(" ".join(facts.result.doubts), 1000))
    kept = drawn.get("tailored-kept", "")
    words += f"<h3>What was kept</h3>{paragraph(_kept_in_words(facts))}{kept or soft(_UNKNOWN)}"
    return words + paragraph(_supernet(facts)) + _front_folders(facts) + _plan(facts)


def figures(facts: Facts) -> list[Figure]:
    """The figures of this section."""
    return figures_of(_sizes(facts), _kept_figure(facts)) if facts.finished else []


# -- words ------------------------------------------------------------------------------------------------------------

_UNKNOWN = "Which blocks were kept is not recorded, or damaged."


def _source(facts: Facts) -> str:
    return clean(facts.pretrained, 100) or "the pretrained network"


def _so_far(facts: Facts) -> str:
    """How far an unfinished run has come."""
    tuned = [e for e in facts.epochs if e.stage == "whole"]
    words = [f"{_source(facts)} is fine-tuned whole, then its parts are ordered and cut."]
    if tuned:
        reached = next((e.search_accuracy for e in reversed(tuned) if e.search_accuracy is not None), None)
        best = "" if reached is None else f" and classifies {percent(reached)} of the search images correctly"
        words.append(f"The whole network has had {counted(tuned[-1].epoch, 'epoch')}{best}.")
    if "ordered" in facts.spent:
        words.append("Its parts are ordered.")
    return " ".join([*words, "No network has been chosen yet."])


def _opening(facts: Facts) -> str:
    """What was cut, and how small it is now."""
    every = facts.result.whole_peer
    params = _whole_params(facts)
    words = f"{_source(facts)} was fine-tuned whole"
    words += f" ({size(params)} parameters" if params else ""
    test = every.test_accuracy if every is not None else None
    words += f"{', ' if params else ' ('}{percent(test)} of the test images" if test is not None else ""
    words += ")" if params or test is not None else ""
    refitted = ", cut, and refitted to follow the whole network" if "refit" in facts.spent else " and cut"
    words += f". Its parts were put in the order of their importance{refitted}; the whole network taught what was left."
    share = share_of_whole(facts, facts.result.params)
    return f"{words} The network delivered has {share} of its parameters." if share else words


def _whole_params(facts: Facts) -> float | None:
    """As the limits count them, so that one network has one number on the page."""
    peer = facts.result.whole_peer
    known = [p for p in (peer.params if peer is not None else None, facts.result.whole.params) if p and p > 0]
    return known[0] if known else None


def share_of_whole(facts: Facts, params: float | None) -> str | None:
    """Parameters as a share of the whole network's."""
    every = _whole_params(facts)
    return None if params is None or not every else f"{100 * params / every:.0f} %"


def first_blocks_in_words(facts: Facts) -> str:
    """``its first 3 blocks``."""
    depth = whole(facts.result.baseline.arch.get("depth"))
    return "its first blocks" if depth is None else "its first block" if depth == 1 else f"its first {depth} blocks"


def _supernet(facts: Facts) -> str:
    """Inherited against final accuracy, of every network that was cut."""
    steps = []
    for point in _points(facts):
        if point.inherited is not None and point.search is not None:
            name = "the network delivered" if point.delivered else f"the network {point.name}"
            name = "the network found" if point.name == "found" else name
            gain = f"{point.search - point.inherited:+.1f}"
            steps.append(f"{name} {percent(point.inherited)}, then {percent(point.search)} ({gain} points)")
    if not steps:
        return ""
    return f"Search images classified correctly before and after the last training: {'; '.join(steps)}."


def _front_folders(facts: Facts) -> str:
    """How the other sizes are taken away."""
    place = clean(facts.place or facts.folder, 1000)
    rows = [
        (f"at most {size(cut.size)}", Html(f"<code>{cell(_export(place, cut.folder))}</code>"))
        for cut in facts.result.sizes
        if cut.folder and cut.size is not None
    ]
    return fold("The other sizes: how to take them away", grid(("parameters", "command"), rows)) if rows else ""


def _plan(facts: Facts) -> str:
    """How the budget of time was shared out, folded."""
    plan = facts.result.plan
    rows = [
        (
            clean(piece.label, 120),
            f"{piece.epoch:.3g}" if piece.epoch else None,
            f"{piece.planned:g}" if piece.planned else None,
        )
        for piece in plan.pieces
    ]
    if not rows:
        return ""
    words = "The speed of every training was measured before the run, and all epochs follow from the time."
    words += "" if plan.final_epochs is None else f" In the end the final trainings had {plan.final_epochs:g} epochs."
    return fold(
        "How the time was shared out",
        paragraph(words) + grid(("work", "seconds an epoch", "epochs"), rows, 2),
    )


def _export(place: str, folder: str) -> str:
    return shlex.join(["tailorvit", "export", f"{place}/{clean(folder, 100)}", "--to", "onnx"])


# -- the networks -----------------------------------------------------------------------------------------------------


def _points(facts: Facts) -> list[Point]:
    """The whole network, the one delivered, the other sizes, the first blocks."""
    result, every = facts.result, facts.result.whole_peer
    found, first = result.found, result.baseline
    points = []
    if every is not None or result.whole.params is not None:
        search, macs, test = result.whole.search_accuracy, None, None
        if every is not None:
            search = every.final_search_accuracy if every.final_search_accuracy is not None else search
            macs, test = every.macs, every.test_accuracy
        points.append(Point("whole network", "c5", _whole_params(facts), macs, None, search, test))
    costs = (found.params, found.macs, found.search_accuracy, found.final_search_accuracy, found.test_accuracy)
    points.append(Point("found" if result.by_hand else "delivered", "c0", *costs, not result.by_hand))
    for cut in sorted(result.sizes, key=lambda c: -(c.params or 0.0)):
        name = f"for {size(cut.size)}" if cut.size is not None else "of another size"
        accuracies = (cut.inherited_accuracy, cut.final_search_accuracy, cut.test_accuracy)
        points.append(Point(name, "c0", cut.params, cut.macs, *accuracies))
    if first.params is not None or first.test_accuracy is not None:
        name = first_blocks_in_words(facts).removeprefix("its ")
        accuracies = (None, first.final_search_accuracy, first.test_accuracy)
        points.append(Point(name, "c4", first.params, first.macs, *accuracies, result.by_hand))
    return points


def _table(facts: Facts) -> str:
    """The same in numbers."""
    head: tuple[str, ...] = (
        "network",
        "parameters",
        "of the whole",
        "MACs",
        "before",
        "search",
        "test",
        "95 % interval",
    )
    body: list[tuple[str | None, ...]] = [
        (
            f"{p.name} (delivered)" if p.delivered and p.style == "c4" else clean(p.name, 60),
            size(p.params),
            share_of_whole(facts, p.params),
            size(p.macs, "macs"),
            percent(p.inherited),
            percent(p.search),
            percent(p.test),
            _interval(p.test, facts.test_images),
        )
        for p in _points(facts)
    ]
    if not facts.test_images:
        head, body = head[:-1], [row[:-1] for row in body]
    remark = "The last column is the interval (Wilson) of the accuracy on the test images." if facts.test_images else ""
    return grid(head, body, len(head) - 1, stack=True) + soft(
        "Accuracy on the search images before the last training, on the search images after it,"
        f" and on the test images. {remark}"
    )


def _interval(accuracy: float | None, images: int | None) -> str | None:
    if accuracy is None or not images:
        return None
    low, high = interval(accuracy, images)
    return f"{low:.1f} to {high:.1f} %"


def _decades(low: float, high: float) -> dict[float, str]:
    """Round sizes between two sizes, by their place on an axis of factors."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    every = [m * 10.0**p for p in powers for m in (1, 2, 5)]
    return {math.log10(v): short(v) for v in every if 0.95 * low <= v <= 1.05 * high}


def _sizes(facts: Facts) -> Figure | None:
    """Accuracy against parameters, a named dot per network."""
    points = _points(facts)
    known = [(p, x, y) for p in points if (x := p.params) is not None and x > 0 and (y := p.test) is not None]
    if not known:
        return None
    sizes = [x for _, x, _ in known]
    wide = max(sizes) >= _WIDE * min(sizes)
    at = math.log10 if wide else float
    heights = [y for *_, y in known]
    spread = max(heights) - min(heights) or 1.0
    # Room above and below for the names.
    tall = [*heights, max(min(heights) - 0.12 * spread, 0.0), min(max(heights) + 0.12 * spread, 100.0)]
    label, across = f"parameters{', in factors' if wide else ''}", [at(x) for x in sizes]
    names = _decades(min(sizes), max(sizes)) if wide else None
    axes = Axes(across if wide else [0.0, *across], tall, label, "accuracy on the test images, %", _BOX, names)
    cuts = sorted((at(x), y) for p, x, y in known if p.style == "c0")
    axes.path(cuts, "line thin c0")
    spots = [(axes.x(at(x)), axes.y(y)) for _, x, y in known]
    for p, x, y in known:
        share = share_of_whole(facts, x)
        hint = f"{p.name}\n{size(x)} parameters{f', {share} of the whole' if share else ''}\n{percent(y)}"
        axes.dot((at(x), y), f"dot solid {p.style}", 4.5, hint)
        if p.delivered:
            axes.dot((at(x), y), f"ring {p.style}", 8)
    axes.parts += _names([p for p, *_ in known], spots, axes)
    title = "Accuracy against size"
    line = " The line joins the networks that were cut and taught." if len(cuts) > 1 else ""
    return Figure(
        "tailored-sizes",
        title,
        f"Each dot is a network; the ring marks the one delivered.{line} Further left is smaller, higher is better.",
        (
            "network",
            "parameters",
            "MACs",
            "before the last training, search images",
            "search images",
            "test images",
            "delivered",
        ),
        [(p.name, p.params, p.macs, p.inherited, p.search, p.test, p.delivered) for p in points],
        axes.svg(title),
        tuple((style, words) for style, words in _KINDS.items() if any(p.style == style for p, *_ in known)),
    )


_BOX = Box(height=300)


def _names(points: Sequence[Point], spots: Sequence[tuple[float, float]], axes: Axes) -> Iterator[str]:
    """The names beside their dots, each where it covers the least of other names and dots."""
    taken = [(x - 8, y - 8, x + 8, y + 8) for x, y in spots]
    for point, (x, y) in zip(points, spots, strict=True):
        words = trim(clean(point.name, 60), 24)
        wide = _LETTER * len(words)
        choices = [
            (x + 12, y + 4, "start"),
            (x - 12, y + 4, "end"),
            (x, y - 13, "middle"),
            (x, y + 21, "middle"),
            (x + 8, y - 13, "start"),
            (x - 8, y - 13, "end"),
            (x + 8, y + 21, "start"),
            (x - 8, y + 21, "end"),
        ]

        def box(choice: tuple[float, float, str], wide: float = wide) -> tuple[float, float, float, float]:
            left = choice[0] - {"start": 0.0, "middle": wide / 2, "end": wide}[choice[2]]
            return left, choice[1] - _LINE + 3, left + wide, choice[1] + 3

        def cost(choice: tuple[float, float, str]) -> float:
            a, b, c, d = box(choice)
            outside = max(axes.left - a, 0) + max(c - axes.box.width, 0) + max(axes.top - b, 0)
            outside += max(d - axes.bottom, 0)
            return _LINE * 10 * outside + sum(
                max(min(c, r) - max(a, p), 0) * max(min(d, s) - max(b, q), 0) for p, q, r, s in taken
            )

        best = min(choices, key=cost)
        taken.append(box(best))
        yield text(best[0], best[1], words, best[2], "strong halo" if point.delivered else "halo")


# -- what was kept ----------------------------------------------------------------------------------------------------


Tops = dict[str, int]  # blocks, heads, hidden units and channels of one stage of the whole network


def _ends(facts: Facts) -> list[str]:
    """What the names of genes end with, stage by stage: nothing where there are no stages, else ``.1`` and so on."""
    arch = facts.result.arch
    return [""] if "depth" in arch else sorted(k.removeprefix("depth") for k in arch if k.startswith("depth."))


def _tops(facts: Facts) -> list[Tops]:
    """Of every stage of the whole network: the most that its space holds."""
    dims = facts.spaces[0].dims if facts.spaces else {}
    found = []
    for end in _ends(facts):
        known = ((k, dims.get(f"{k}{end}")) for k in ("depth", "heads", "hidden", "embed"))
        found.append({k: int(max(values)) for k, values in known if values and max(values) >= 1})
    return found


def kept(facts: Facts) -> list[Kept]:
    """Every block of the whole network; empty where the numbers do not agree."""
    order, arch, ends = facts.result.whole.blocks, facts.result.arch, _ends(facts)
    counts = [len(order)] if len(ends) == 1 else [tops.get("depth", 0) for tops in _tops(facts)]
    if not order or sum(counts) != len(order):
        return []
    rows: list[Kept] = []
    for stage, (end, count) in enumerate(zip(ends, counts, strict=True)):
        first, depth = len(rows), whole(arch.get(f"depth{end}"))
        heads, hidden = genes(arch.get(f"heads{end}")), genes(arch.get(f"hidden{end}"))
        if depth != len(heads) or depth != len(hidden) or not 0 < depth <= count:
            return []
        every = range(first, first + count)
        ranked = list(every) if facts.result.by_hand else [block for block in order if block in every]
        left = {block: (heads[i], hidden[i]) for i, block in enumerate(sorted(ranked[:depth]))}
        for block in every:
            mine, units = left.get(block, (None, None))
            rows.append(Kept(block, order.index(block) + 1, mine, units, stage))
    return rows


def _kept_in_words(facts: Facts) -> str:
    """``9 of 12 blocks (without 3, 7 and 8), 192 of 384 channels, ...``."""
    rows, tops = kept(facts), _tops(facts)
    if not rows:
        return ""
    inside = [row for row in rows if row.heads is not None]
    gone = [str(row.block + 1) for row in rows if row.heads is None]
    listed = f"{', '.join(gone[:-1])} and {gone[-1]}" if len(gone) > 1 else "".join(gone)
    without = f" (without {listed})" if gone and len(gone) <= _LISTED and not facts.result.by_hand else ""
    first = "The first " if facts.result.by_hand else ""
    parts = [f"{first}{len(inside)} of {counted(len(rows), 'block')}{without}"]
    widths = [whole(facts.result.arch.get(f"embed{end}")) for end in _ends(facts)]
    if all(widths) and all("embed" in own for own in tops):
        left, of = ("-".join(f"{n:,}" for n in numbers) for numbers in (widths, [own["embed"] for own in tops]))
        parts.append(f"{left} of {of} channels")
    for key, name in (("heads", "heads"), ("hidden", "hidden units")):
        if all(key in own for own in tops):
            every = sum(tops[row.stage][key] for row in rows)
            parts.append(f"{sum(getattr(row, key) for row in inside):,} of {every:,} {name}")
    return f"{', '.join(parts)}."


def _kept_figure(facts: Facts) -> Figure | None:
    """A row per block of the whole network: its heads and hidden units as shares."""
    rows, tops = kept(facts), _tops(facts)
    if not rows or not all(own.get("heads") and own.get("hidden") for own in tops):
        return None
    title = "What was kept of every block"
    more = f" The first {_ROWS} of {len(rows)} blocks are drawn." if len(rows) > _ROWS else ""
    return Figure(
        "tailored-kept",
        title,
        "A row per block of the whole network; images enter at the top. Filled: kept. A row without bars: the block was"
        f" left out.{more}",
        ("block", "importance (1 = most)", "kept", "heads", "of heads", "hidden units", "of hidden units"),
        [
            (r.block + 1, r.rank, r.heads is not None, r.heads, own["heads"], r.hidden, own["hidden"])
            for r, own in ((row, tops[row.stage]) for row in rows)
        ],
        _kept_drawing(rows[:_ROWS], tops, len(rows), title),
        (("c0", "heads"), ("c1", "hidden units of the MLP")),
    )


def _kept_drawing(rows: Sequence[Kept], tops: Sequence[Tops], blocks: int, title: str) -> str:
    at, wide, step = {"heads": 62.0, "hidden": 240.0}, 96.0, 20
    parts = [
        text(4, 12, "block"),
        text(at["heads"], 12, f"heads{_of(tops, 'heads')}"),
        text(at["hidden"], 12, f"hidden units{_of(tops, 'hidden')}"),
    ]
    for i, row in enumerate(rows):
        y = 20 + step * i
        hint = f"block {row.block + 1}, number {row.rank} of {blocks} in importance\n"
        if row.heads is None or row.hidden is None:
            drawn = text(at["heads"], y + 12, "left out")
            parts.append(
                f'<g{tip(f"{hint}left out")} tabindex="0">{text(38, y + 12, str(row.block + 1), "end")}{drawn}</g>'
            )
            continue
        drawn = text(38, y + 12, str(row.block + 1), "end", "strong")
        for key, style, value in (("heads", "c0", row.heads), ("hidden", "c1", row.hidden)):
            share = min(value / tops[row.stage][key], 1.0)
            drawn += bar(at[key], y + 2, wide, 12, style, ' opacity=".2"') + bar(
                at[key], y + 2, wide * share, 12, style
            )
            drawn += text(at[key] + wide + 6, y + 12, f"{value:,} ({100 * share:.0f} %)")
        hint += f"{counted(row.heads, 'head')}, {row.hidden:,} hidden units"
        parts.append(f'<g{tip(hint)} tabindex="0">{drawn}</g>')
    return svg(parts, title, WIDTH, 24 + step * len(rows))


def _of(tops: Sequence[Tops], key: str) -> str:
    """How many there were, where all stages had as many."""
    return f", of {tops[0][key]:,}" if len(tops) == 1 else ""
