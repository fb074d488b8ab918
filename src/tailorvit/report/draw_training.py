"""Drawings of the test: confusion, accuracy per class, and pictures of the most confident mistakes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tailorvit.report.axes import WIDTH, svg, text, ticks
from tailorvit.report.draw_analysis import heat_png, image
from tailorvit.report.draw_network import bar
from tailorvit.report.figure import tip
from tailorvit.report.views import Seen, label, trim

Share = tuple[str, int, int, float, float]  # name, images, correct, ends of the interval in [0, 1]
_LEFT = 96


def percent(share: float) -> str:
    """A share in words: 97 %, 0.4 %."""
    return f"{100 * share:.0f} %" if share >= 0.01 or share == 0 else f"{100 * share:.1g} %"


def confusion_drawing(counts: Mapping[tuple[int, int], int], classes: Sequence[str], size: int) -> str:
    """Every cell with its count: rows are the truth, columns what was said; right ones blue, wrong ones orange."""
    side = (WIDTH - _LEFT - 4) / size
    top, totals = 16.0, [0] * size
    for (truth, _), count in counts.items():
        totals[truth] += count
    parts = [text(_LEFT, 10, "said →"), text(_LEFT - 6, 10, "truth ↓", "end")]
    for i in range(size):
        name = label(classes, i)
        y = top + side * (i + 0.5) + 4
        parts.append(f"<g{tip(f'{name}: {totals[i]:,} images')}>{text(_LEFT - 6, y, trim(name, 14), 'end')}</g>")
        parts.append(
            text(_LEFT + side * (i + 0.5), top + side * size + 13, trim(name, max(2, int(side / 7))), "middle")
        )
    for (truth, said), count in sorted(counts.items()):
        share = count / totals[truth]
        x, y = _LEFT + side * said, top + side * truth
        words = f"{label(classes, truth)} taken for {label(classes, said)}: {count:,} of {totals[truth]:,}"
        if truth == said:
            words = f"{label(classes, truth)} right: {count:,} of {totals[truth]:,}"
        # The root lifts rare mistakes: one image in a hundred would not be seen otherwise.
        ink = bar(x, y, side - 1, round(side - 1, 1), "c0" if truth == said else "c1", f' opacity="{share**0.5:.2f}"')
        number = (
            text(x + side / 2, y + side / 2 + 4, f"{count}", "middle", "strong") if side > 7 * len(str(count)) else ""
        )
        parts.append(f"<g{tip(words)}>{ink}{number}</g>")
    edge = f'<rect class="axis" x="{_LEFT}" y="{top:g}" width="{side * size:.1f}" height="{side * size:.1f}"/>'
    return svg([*parts, edge], "Confusion matrix", WIDTH, top + side * size + 20)


def coarse_drawing(counts: Mapping[tuple[int, int], int], size: int) -> str:
    """One pixel a cell, for many classes: the share of a class that was taken for another."""
    matrix = np.zeros((size, size))
    for (truth, said), count in counts.items():
        matrix[truth, said] = count
    matrix /= np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    side, left, top = 384.0, 52.0, 16.0
    heat = (np.sqrt(matrix) * 255).round().astype(np.uint8)
    parts = [
        image(heat_png(heat), left, top, side, side),
        text(left, 10, "said →"),
        text(left - 4, 10, "truth ↓", "end"),
    ]
    for i in ticks(0, size - 1, 8):
        at = top + side * (i + 0.5) / size
        parts.append(text(left - 4, at + 4, f"{i + 1:g}", "end"))
        parts.append(text(at - top + left, top + side + 13, f"{i + 1:g}", "middle"))
    parts += [image(heat_png(np.arange(0, 256, 16, dtype=np.uint8)[None]), left, top + side + 22, 120, 8)]
    parts.append(text(left + 126, top + side + 30, "none of a class to all of it (root scale)"))
    return svg(parts, "Confusion matrix, a pixel a cell", WIDTH, top + side + 38)


def pairs_drawing(pairs: Sequence[tuple[str, str, int, int]]) -> str:
    """Bars of the most confused pairs: truth, said, count, images of the truth."""
    most = max(count for _, _, count, _ in pairs)
    parts = []
    for i, (truth, said, count, total) in enumerate(pairs):
        y = 2 + 30 * i
        words = f"{truth} taken for {said}: {count:,} of {total:,}"
        parts.append(
            f"<g{tip(words)}>{text(4, y + 11, f'{trim(truth, 28)} → {trim(said, 28)}')}"
            f"{bar(4, y + 15, 340 * count / most, 8, 'c1')}"
            f"{text(WIDTH - 4, y + 23, f'{count:,} of {total:,}', 'end')}</g>"
        )
    return svg(parts, "Most confused pairs", WIDTH, 4 + 30 * len(pairs))


def shares_drawing(groups: Sequence[tuple[str, Sequence[Share]]]) -> str:
    """Bars of accuracy per class with 95 % intervals, in groups with a heading each."""
    left, right = 120, WIDTH - 92
    parts: list[str] = []
    y = 4.0
    for heading, shares in groups:
        if heading:
            parts.append(text(4, y + 12, heading, style="strong"))
            y += 18
        for name, count, correct, low, high in shares:
            share = correct / count if count else 0.0
            a, b, end = (left + v * (right - left) for v in (low, high, share))
            words = f"{name}: {correct:,} of {count:,} right, 95 % interval {100 * low:.1f} to {100 * high:.1f} %"
            whisker = f"M{a:.1f} {y + 8:g}H{b:.1f}M{a:.1f} {y + 4:g}v8M{b:.1f} {y + 4:g}v8"
            told = f"{100 * share:.1f} %, {count:,}" if count else "no image"
            parts.append(
                f"<g{tip(words)}>{text(left - 6, y + 12, trim(name, 18), 'end')}"
                f"{bar(left, y + 2, end - left, 12, 'c0')}"
                + (f'<path class="whisker" d="{whisker}"/>' if count else "")
                + f"{text(WIDTH - 4, y + 12, told, 'end')}</g>"
            )
            y += 18
    parts.append(f'<path class="axis" d="M{left} 0V{y:g}"/>')
    return svg(parts, "Accuracy per class", WIDTH, y + 4)


def mistakes_drawing(mistakes: Sequence[Seen], classes: Sequence[str]) -> str:
    """Pictures in rows of three: what was said, what it is, which file."""
    line, tall, side = 3, 150, 100
    wide = WIDTH / line
    parts = []
    for i, seen in enumerate(mistakes):
        x, y = wide * (i % line) + 4, 4 + tall * (i // line)
        said, truth = label(classes, seen.said), label(classes, seen.truth)
        sure = "" if seen.probability is None else f" {percent(seen.probability)}"
        doubt = "" if seen.truth_probability is None else f" ({percent(seen.truth_probability)})"
        picture = image(seen.picture, x, y, side, side, "xMidYMid") if seen.picture else ""
        frame = f'<rect class="axis" x="{x:g}" y="{y}" width="{side}" height="{side}"/>' if not picture else ""
        parts.append(
            f"<g{tip(f'said {said}{sure}, is {truth}{doubt}: {seen.name}')}>{picture}{frame}"
            f"{text(x, y + side + 12, f'said {trim(said, 9)}{sure}', style='strong')}"
            f"{text(x, y + side + 25, f'is {trim(truth, 9)}{doubt}')}"
            f"{text(x, y + side + 38, trim(seen.name, 20))}</g>"
        )
    return svg(parts, "Most confident mistakes", WIDTH, 4 + tall * -(-len(mistakes) // line))
