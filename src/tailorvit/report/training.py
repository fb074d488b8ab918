"""Section 5: training over the epochs, and the predictions on the test images."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tailorvit.report import charts
from tailorvit.report.charts import (
    WIDTH,
    Figure,
    Point,
    bar,
    figures_of,
    heat_png,
    image,
    svg,
    text,
    tip,
    trim,
    whisker,
)
from tailorvit.report.markup import fold, pair, percent, soft, stage_name
from tailorvit.report.reading import CONTEST, Analysis, Epoch, Facts, Tested
from tailorvit.stats import wilson

_FULL, _COARSE = 30, 120  # classes: up to here every cell with its count, up to there one pixel per cell
_PAIRS = 20
_BARS, _ENDS = 40, 15  # classes: up to here all bars, beyond it so many of the worst and of the best
_MISTAKES = 24
_STAGES = 12  # lines of a chart; more could not be distinguished
_LEFT = 96  # space for class names beside the confusion matrix
Series = dict[str, list[Point]]
Counts = Mapping[tuple[int, int], int]
ClassRow = tuple[str, int, int, float, float]  # name, images, correct, ends of the interval in [0, 1]


def figures(facts: Facts) -> list[Figure]:
    """The figures of this section."""
    tested = facts.analysis.test
    after = [e for e in facts.epochs if e.stage.partition("-")[0] != CONTEST]  # the contest has its own figure
    return [*_curves(after or facts.epochs), *(_test(facts.analysis, tested) if tested is not None else [])]


def curves(facts: Facts) -> list[Figure]:
    """The figures of a training alone."""
    return _curves(facts.epochs)


def curves_section(facts: Facts) -> str:
    """The curves of a training alone."""
    return pair(*(f.html() for f in curves(facts))) or soft("No epoch has been recorded.")


def section(facts: Facts) -> str:
    """Curves of the training, then confusion, classes and mistakes."""
    drawn = {figure.key: figure.html() for figure in figures(facts)}
    if not facts.epochs:
        words = soft("No epoch has been recorded.")
    else:
        main = ("training-loss", "training-accuracy", "training-supernets", "training-watched")
        curves = pair(*(drawn[key] for key in main if key in drawn))
        rest = pair(*(drawn[key] for key in ("training-rate", "training-speed") if key in drawn))
        words = curves or soft("No epoch has a finite loss or accuracy.")
        words += fold("Learning rate and speed", rest) if rest else ""
    return words + "<h3>The test images</h3>" + _test_images(facts, drawn)


def _test_images(facts: Facts, drawn: Mapping[str, str]) -> str:
    tested = facts.analysis.test
    if tested is None:
        return soft("The predictions on the test images were not recorded.")
    words = ""
    if tested.count:
        low, high = wilson(tested.correct, tested.count)
        words = (
            f"<p>{tested.correct:,} of {tested.count:,} test images are classified correctly:"
            f" {percent(100 * tested.correct / tested.count)}, 95 % interval {100 * low:.1f} to {100 * high:.1f} %.</p>"
        )
    for key in ("confusion", "confused-pairs", "confusion-coarse", "class-accuracy", "mistakes"):
        words += drawn.get(key, "")
    if tested.count and tested.correct == tested.count:
        words += soft("No test image was misclassified.")
    if max(len(facts.analysis.classes), len(tested.per_class)) > _COARSE:
        words += soft(f"A matrix of more than {_COARSE} classes is not drawn; the CSV file holds all pairs.")
    return words + "".join(map(soft, tested.problems))


# -- curves -----------------------------------------------------------------------------------------------------------


def _curves(epochs: Sequence[Epoch]) -> list[Figure]:
    kinds: tuple[tuple[str, str, str, Callable[[Epoch], float | None], str], ...] = (
        ("loss", "Training loss", "loss", lambda e: e.loss, "Mean loss of the training images per epoch."),
        (
            "accuracy",
            "Accuracy on the training images",
            "accuracy, %",
            lambda e: e.accuracy,
            "Measured during the epoch on augmented images: lower than on plain images after it.",
        ),
        (
            "watched",
            "Accuracy on the search split",
            "accuracy, %",
            lambda e: e.search_accuracy,
            "Of single networks during their training. The search split chooses networks; the test images do not.",
        ),
        ("rate", "Learning rate", "learning rate", lambda e: e.lr, "The learning rate at the end of every epoch."),
        (
            "speed",
            "Images per second",
            "images per second",
            lambda e: e.images_per_second,
            "Training images per second; other work on the machine slows it down.",
        ),
    )
    stages = list(dict.fromkeys(epoch.stage for epoch in epochs))  # a stage has the same colour in all charts
    found = []
    for key, title, label, value_of, caption in kinds:
        series: Series = {stage: [] for stage in stages}
        for epoch in epochs:
            if (value := value_of(epoch)) is not None:
                series[epoch.stage].append((float(epoch.epoch), value))
        found.append(_curve(f"training-{key}", title, label, series, caption))
    return figures_of(*found, _supernets(epochs))


def _curve(key: str, title: str, label: str, series: Series, caption: str) -> Figure:
    ordered = {name: sorted(points) for name, points in series.items()}
    shown = {stage_name(name): points for name, points in list(ordered.items())[-_STAGES:]}
    left = len(ordered) - len(shown)
    more = f" The first {left} stages are in the CSV file only." if left else ""
    return Figure(
        key=key,
        title=title,
        caption=caption + more,
        columns=("stage", "epoch", label),
        rows=[(name, int(x), y) for name, points in ordered.items() for x, y in points],
        svg=charts.lines(shown, title, "epoch", label),
        legend=tuple(entry for entry in charts.legend(list(shown)) if shown[entry[1]]),
    )


def _supernets(epochs: Sequence[Epoch]) -> Figure | None:
    """The largest and the smallest sub-network of every supernet, in one colour per supernet."""
    series: dict[str, Series] = {}
    for epoch in epochs:
        for name, value in (("largest", epoch.largest), ("smallest", epoch.smallest)):
            if value is not None:
                curves = series.setdefault(epoch.stage, {"largest": [], "smallest": []})
                curves[name].append((float(epoch.epoch), value))
    shown = dict(list(series.items())[-charts.COLOURS :])
    every = [p for curves in shown.values() for points in curves.values() for p in points]
    if not every:
        return None
    legend = charts.legend([stage_name(stage) for stage in shown])
    axes = charts.Axes((p[0] for p in every), (p[1] for p in every), "epoch", "accuracy, %")
    for (style, _), curves in zip(legend, shown.values(), strict=True):
        axes.path(charts.thin(sorted(curves["largest"]), 400), f"line {style}")
        axes.path(charts.thin(sorted(curves["smallest"]), 400), f"line thin {style}")
    title = "Largest and smallest sub-network of each supernet"
    return Figure(
        key="training-supernets",
        title=title,
        caption="Accuracy on the search split with the supernet's weights. Thin lines: the smallest sub-network.",
        columns=("stage", "network", "epoch", "accuracy"),
        rows=[(s, name, int(x), y) for s, curves in series.items() for name, at in curves.items() for x, y in at],
        svg=axes.svg(title),
        legend=legend,
    )


# -- the test images --------------------------------------------------------------------------------------------------


def _test(analysis: Analysis, tested: Tested) -> list[Figure]:
    size = max(len(analysis.classes), len(tested.per_class), 1)
    counts: dict[tuple[int, int], int] = {}
    for truth, predicted, count in tested.confusion:
        counts[truth, predicted] = counts.get((truth, predicted), 0) + count
    confusion = _confusion(analysis, counts, size) if counts else []
    return figures_of(*confusion, _classes(analysis, tested), _mistakes(analysis, tested))


def _confusion(analysis: Analysis, counts: Counts, size: int) -> list[Figure]:
    totals = [0] * size
    for (truth, _), count in counts.items():
        totals[truth] += count
    columns = ("truth", "predicted", "count")
    body = [(analysis.label(a), analysis.label(b), n) for (a, b), n in sorted(counts.items())]
    where = "Rows: the true class. Columns: the predicted class"
    if size <= _FULL:
        return [
            Figure(
                key="confusion",
                title="Confusion matrix",
                caption=f"{where}. Numbers: test images. The stronger the colour, the larger the share of its row.",
                columns=columns,
                rows=body,
                svg=_confusion_drawing(analysis, counts, totals),
                legend=(("c0", "correct"), ("c1", "wrong")),
            )
        ]
    wrong = sorted(((n, a, b) for (a, b), n in counts.items() if a != b), key=lambda row: (-row[0], row[1:]))[:_PAIRS]
    found = []
    if wrong:
        pairs = [(analysis.label(a), analysis.label(b), n, totals[a]) for n, a, b in wrong]
        title = f"The {len(pairs)} most confused pairs of classes"
        caption = "True class → predicted class, with the number of test images. The CSV file holds all pairs."
        found.append(Figure("confused-pairs", title, caption, columns, body, _pairs_drawing(pairs, title)))
    if size <= _COARSE:
        caption = f"{where}, both in the order of the classes."
        drawing = _coarse_drawing(counts, size)
        found.append(Figure("confusion-coarse", "Confusion matrix", caption, columns, body, drawing))
    return found


def _confusion_drawing(analysis: Analysis, counts: Counts, totals: Sequence[int]) -> str:
    """Every cell with its count."""
    size = len(totals)
    side, top = (WIDTH - _LEFT - 4) / size, 16.0
    parts = [text(_LEFT, 10, "predicted →"), text(_LEFT - 6, 10, "true ↓", "end")]
    for i, total in enumerate(totals):
        name = analysis.label(i)
        y = top + side * (i + 0.5) + 4
        parts.append(f"<g{tip(f'{name}: {total:,} images')}>{text(_LEFT - 6, y, trim(name, 14), 'end')}</g>")
        below = trim(name, max(2, int(side / 7)))
        parts.append(text(_LEFT + side * (i + 0.5), top + side * size + 13, below, "middle"))
    for (truth, predicted), count in sorted(counts.items()):
        share = count / totals[truth]
        x, y = _LEFT + side * predicted, top + side * truth
        kind = "correct" if truth == predicted else f"predicted as {analysis.label(predicted)}"
        words = f"{analysis.label(truth)} {kind}: {count:,} of {totals[truth]:,}"
        # The square root makes rare mistakes visible: one image in a hundred would be lost otherwise.
        style = "c0" if truth == predicted else "c1"
        ink = bar(x, y, side - 1, round(side - 1, 1), style, f' opacity="{share**0.5:.2f}"')
        fits = side > 7 * len(str(count))
        number = text(x + side / 2, y + side / 2 + 4, f"{count}", "middle", "strong") if fits else ""
        parts.append(f"<g{tip(words)}>{ink}{number}</g>")
    edge = f'<rect class="axis" x="{_LEFT}" y="{top:g}" width="{side * size:.1f}" height="{side * size:.1f}"/>'
    return svg([*parts, edge], "Confusion matrix", WIDTH, top + side * size + 20)


def _coarse_drawing(counts: Counts, size: int) -> str:
    """One pixel per cell: the share of a class that was predicted as another."""
    matrix = np.zeros((size, size))
    for (truth, predicted), count in counts.items():
        matrix[truth, predicted] = count
    matrix /= np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    side, left, top = 384.0, 52.0, 16.0
    heat = (np.sqrt(matrix) * 255).round().astype(np.uint8)
    parts = [image(heat_png(heat), left, top, side, side)]
    parts += [text(left, 10, "predicted →"), text(left - 4, 10, "true ↓", "end")]
    for i in charts.ticks(0, size - 1, 8):
        at = top + side * (i + 0.5) / size
        parts.append(text(left - 4, at + 4, f"{i + 1:g}", "end"))
        parts.append(text(at - top + left, top + side + 13, f"{i + 1:g}", "middle"))
    parts.append(charts.heat_scale(left, top + side + 22))
    parts.append(text(left + 126, top + side + 30, "none of a class to all of it (root scale)"))
    return svg(parts, "Confusion matrix, one pixel per cell", WIDTH, top + side + 38)


def _pairs_drawing(pairs: Sequence[tuple[str, str, int, int]], title: str) -> str:
    """Bars of (true class, predicted class, count, images of the true class)."""
    most = max(count for _, _, count, _ in pairs)
    parts = []
    for i, (truth, predicted, count, total) in enumerate(pairs):
        y = 2 + 30 * i
        parts.append(
            f"<g{tip(f'{truth} predicted as {predicted}: {count:,} of {total:,}')}>"
            f"{text(4, y + 11, f'{trim(truth, 28)} → {trim(predicted, 28)}')}"
            f"{bar(4, y + 15, 340 * count / most, 8, 'c1')}"
            f"{text(WIDTH - 4, y + 23, f'{count:,} of {total:,}', 'end')}</g>"
        )
    return svg(parts, title, WIDTH, 4 + 30 * len(pairs))


def _classes(analysis: Analysis, tested: Tested) -> Figure | None:
    rows: list[ClassRow] = [
        (analysis.label(i), *row, *wilson(row[1], row[0])) for i, row in enumerate(tested.per_class) if row is not None
    ]
    if not rows:
        return None
    rows.sort(key=lambda r: (r[2] / r[1] if r[1] else 2.0, -r[1]))  # classes without images last
    known = [row for row in rows if row[1]]
    groups: list[tuple[str, Sequence[ClassRow]]] = [("", rows[:_BARS])]
    if len(rows) > _BARS and len(known) > 2 * _ENDS:
        groups = [(f"The {_ENDS} worst", known[:_ENDS]), (f"The {_ENDS} best", known[-_ENDS:])]
    return Figure(
        key="class-accuracy",
        title="Accuracy by class",
        caption=f"Worst first, with the number of test images; {len(rows):,} classes in all. Whiskers: 95 % interval"
        " (Wilson), wide where a class has few images.",
        columns=("class", "images", "correct", "low", "high"),
        rows=rows,
        svg=_classes_drawing(groups),
    )


def _classes_drawing(groups: Sequence[tuple[str, Sequence[ClassRow]]]) -> str:
    """Bars from 0 to 100 % with their intervals, in groups with a heading each."""
    left, right = 120, WIDTH - 92
    parts: list[str] = []
    y = 4.0
    for heading, rows in groups:
        if heading:
            parts.append(text(4, y + 12, heading, style="strong"))
            y += 18
        for name, count, correct, low, high in rows:
            share = correct / count if count else 0.0
            a, b, end = (left + v * (right - left) for v in (low, high, share))
            words = f"{name}: {correct:,} of {count:,} correct, 95 % interval {100 * low:.1f} to {100 * high:.1f} %"
            shown = f"{100 * share:.1f} %, {count:,}" if count else "no image"
            parts.append(
                f"<g{tip(words)}>{text(left - 6, y + 12, trim(name, 18), 'end')}"
                f"{bar(left, y + 2, end - left, 12, 'c0')}{whisker(a, b, y + 8) if count else ''}"
                f"{text(WIDTH - 4, y + 12, shown, 'end')}</g>"
            )
            y += 18
    parts.append(f'<path class="axis" d="M{left} 0V{y:g}"/>')
    return svg(parts, "Accuracy by class", WIDTH, y + 4)


def _sure(probability: float | None) -> str:
    if probability is None:
        return ""
    digits = ".0f" if probability >= 0.01 or probability == 0 else ".1g"
    return f" ({100 * probability:{digits}} %)"


def _mistakes(analysis: Analysis, tested: Tested) -> Figure | None:
    """Pictures in rows of three: predicted class, true class, file."""
    if not tested.mistakes:
        return None
    per_line, tall, side = 3, 150, 100
    parts, shown = [], tested.mistakes[:_MISTAKES]
    for i, seen in enumerate(shown):
        x, y = WIDTH / per_line * (i % per_line) + 4, 4 + tall * (i // per_line)
        predicted, truth = analysis.label(seen.predicted), analysis.label(seen.truth)
        sure, doubt = _sure(seen.probability), _sure(seen.truth_probability)
        picture = f'<rect class="axis" x="{x:g}" y="{y}" width="{side}" height="{side}"/>'
        if seen.picture:
            picture = image(seen.picture, x, y, side, side, "xMidYMid")
        parts.append(
            f"<g{tip(f'predicted {predicted}{sure}, true class {truth}{doubt}: {seen.name}')}>{picture}"
            f"{text(x, y + side + 12, f'{trim(predicted, 14)}{sure}', style='strong')}"
            f"{text(x, y + side + 25, f'is {trim(truth, 12)}{doubt}')}"
            f"{text(x, y + side + 38, trim(seen.name, 20))}</g>"
        )
    title = "The most confident mistakes"
    return Figure(
        key="mistakes",
        title=title,
        caption="Bold: the predicted class with its probability. Below: the true class with its probability, and the"
        " file.",
        columns=("file", "truth", "predicted", "probability", "truth_probability"),
        rows=[
            (m.name, analysis.label(m.truth), analysis.label(m.predicted), m.probability, m.truth_probability)
            for m in tested.mistakes
        ],
        svg=svg(parts, title, WIDTH, 4 + tall * -(-len(shown) // per_line)),
    )
