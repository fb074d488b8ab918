"""Section 5: training over the epochs, and what the test images say."""

from __future__ import annotations

from collections.abc import Sequence

from tailorvit.report import charts
from tailorvit.report.draw_training import (
    Share,
    coarse_drawing,
    confusion_drawing,
    mistakes_drawing,
    pairs_drawing,
    shares_drawing,
)
from tailorvit.report.figure import Figure
from tailorvit.report.parts import none, percent
from tailorvit.report.records import Epoch, Facts
from tailorvit.report.views import Tested, label, scored
from tailorvit.stats import wilson

_FULL, _COARSE = 30, 120  # classes: up to here every cell with its count, up to there a pixel a cell
_PAIRS = 20
_BARS, _ENDS = 40, 15  # classes: up to here all bars, beyond it so many of the worst and of the best
_MISTAKES = 24
_STAGES = 12  # lines of a chart; more would not be told apart
Series = dict[str, list[tuple[float, float]]]


def figures(facts: Facts) -> list[Figure]:
    """The drawings of this section."""
    view, _ = scored(facts.analysis)
    return [*_curves(facts.epochs), *(_test(view) if view is not None else [])]


def training(facts: Facts) -> str:
    """Curves of the training, then confusion, classes and mistakes."""
    drawn = {figure.key: figure for figure in figures(facts)}
    if not facts.epochs:
        text = none("No epoch has been recorded.")
    else:
        main = ("training-loss", "training-accuracy", "training-supernets", "training-watched")
        curves = "".join(drawn[key].html() for key in main if key in drawn)
        rest = "".join(drawn[key].html() for key in ("training-rate", "training-speed") if key in drawn)
        text = f'<div class="pair">{curves}</div>' if curves else none("No epoch has a finite loss or accuracy.")
        if rest:
            text += f'<details><summary>Learning rate and speed</summary><div class="pair">{rest}</div></details>'
    return text + "<h3>The test images</h3>" + _tested(facts, drawn)


def _tested(facts: Facts, drawn: dict[str, Figure]) -> str:
    view, wrong = scored(facts.analysis)
    if view is None:
        return none("Which test images were right and which wrong was not recorded.")
    text = ""
    if view.count:
        low, high = wilson(view.correct, view.count)
        text = (
            f"<p>{view.correct:,} of {view.count:,} test images are right ({percent(100 * view.correct / view.count)});"
            f" from so many images the 95 % interval of the accuracy is {100 * low:.1f} to {100 * high:.1f} %.</p>"
        )
    for key in ("confusion", "confused-pairs", "confusion-coarse", "class-accuracy", "mistakes"):
        text += drawn[key].html() if key in drawn else ""
    if view.count and view.correct == view.count:
        text += none("No test image was taken for another class.")
    if max(len(view.classes), len(view.per_class)) > _COARSE:
        text += none(f"A matrix of more than {_COARSE} classes is not drawn; the pairs are in the CSV file.")
    return text + "".join(none(sentence) for sentence in wrong)


def _curves(epochs: Sequence[Epoch]) -> list[Figure]:
    loss: Series = {}
    accuracy: Series = {}
    rate: Series = {}
    speed: Series = {}
    watched: Series = {}
    for epoch in epochs:
        at = float(epoch.epoch)
        for series, value in ((loss, epoch.loss), (accuracy, epoch.accuracy), (rate, epoch.lr), (speed, epoch.speed)):
            if value is not None:
                series.setdefault(epoch.stage, []).append((at, value))
        if "search_accuracy" in epoch.watched:
            watched.setdefault(epoch.stage, []).append((at, epoch.watched["search_accuracy"]))
    kinds = (
        ("loss", "Loss", "loss", loss, "Mean loss of the training images per epoch, a line for every stage."),
        (
            "accuracy",
            "Accuracy on the training images",
            "accuracy, %",
            accuracy,
            "While weights still move, and on augmented images: lower than it would be on the plain ones.",
        ),
        (
            "watched",
            "Accuracy on the search images",
            "accuracy, %",
            watched,
            "Of single networks while they train; these images choose, the test images do not.",
        ),
        ("rate", "Learning rate", "learning rate", rate, "The learning rate at the end of every epoch."),
        ("speed", "Images a second", "images a second", speed, "Training images per second; other work slows it."),
    )
    stages = list(dict.fromkeys(epoch.stage for epoch in epochs))  # a stage has one colour in all charts
    found = [
        _curve(f"training-{key}", title, words, {s: series.get(s, []) for s in stages}, caption)
        for key, title, words, series, caption in kinds
    ]
    return [figure for figure in (*found, _supernets(epochs)) if figure is not None]


def _supernets(epochs: Sequence[Epoch]) -> Figure | None:
    """The largest and the smallest network of every supernet: one colour a supernet, the smallest thin."""
    series: dict[str, Series] = {}
    for epoch in epochs:
        for name in ("largest", "smallest"):
            if name in epoch.watched:
                each = series.setdefault(epoch.stage, {"largest": [], "smallest": []})
                each[name].append((float(epoch.epoch), epoch.watched[name]))
    shown = dict(list(series.items())[-charts.COLOURS :])
    every = [p for each in shown.values() for points in each.values() for p in points]
    if not every:
        return None
    axes = charts.Axes((p[0] for p in every), (p[1] for p in every), "epoch", "accuracy, %")
    for (style, _), each in zip(charts.legend(list(shown)), shown.values(), strict=True):
        axes.path(charts.thin(sorted(each["largest"]), 400), f"line {style}")
        axes.path(charts.thin(sorted(each["smallest"]), 400), f"line thin {style}")
    title = "Largest and smallest network of each supernet"
    return Figure(
        key="training-supernets",
        title=title,
        caption="Accuracy on the search images with inherited weights while the supernet trains; thin: the smallest.",
        columns=("stage", "network", "epoch", "accuracy"),
        rows=[(s, name, int(x), y) for s, each in series.items() for name, at in each.items() for x, y in at],
        svg=axes.svg(title),
        legend=charts.legend(list(shown)),
    )


def _curve(key: str, title: str, y_label: str, series: Series, caption: str) -> Figure | None:
    ordered = {name: sorted(points) for name, points in series.items()}
    shown = dict(list(ordered.items())[-_STAGES:])
    drawing = charts.lines(shown, title, "epoch", y_label)
    if not drawing:
        return None
    left = len(ordered) - len(shown)
    more = f" The first {left} stages are in the CSV file only." if left else ""
    return Figure(
        key=key,
        title=title,
        caption=caption + more,
        columns=("stage", "epoch", y_label),
        rows=[(name, int(x), y) for name, points in ordered.items() for x, y in points],
        svg=drawing,
        legend=tuple(pair for pair in charts.legend(list(shown)) if shown[pair[1]]),
    )


def _test(view: Tested) -> list[Figure]:
    size = max(len(view.classes), len(view.per_class))
    counts: dict[tuple[int, int], int] = {}
    for truth, said, count in view.confusion:
        counts[truth, said] = counts.get((truth, said), 0) + count
    totals = [0] * size
    for (truth, _), count in counts.items():
        totals[truth] += count
    body = [(label(view.classes, a), label(view.classes, b), n) for (a, b), n in sorted(counts.items())]
    columns = ("truth", "said", "count")
    found = []
    if counts and size <= _FULL:
        found.append(
            Figure(
                key="confusion",
                title="What was taken for what",
                caption="Rows: what an image shows; columns: what the network said; numbers: test images. Blue: right,"
                " orange: wrong; the stronger, the larger the share of its row.",
                columns=columns,
                rows=body,
                svg=confusion_drawing(counts, view.classes, size),
                legend=(("c0", "right"), ("c1", "wrong")),
            )
        )
    wrong = sorted(((n, a, b) for (a, b), n in counts.items() if a != b), key=lambda row: (-row[0], row[1:]))[:_PAIRS]
    if wrong and size > _FULL:
        pairs = [(label(view.classes, a), label(view.classes, b), n, totals[a]) for n, a, b in wrong]
        found.append(
            Figure(
                key="confused-pairs",
                title=f"The {len(pairs)} most confused pairs",
                caption="What it shows → what was said, by the number of test images. The CSV file has all pairs.",
                columns=columns,
                rows=body,
                svg=pairs_drawing(pairs),
            )
        )
    if counts and _FULL < size <= _COARSE:
        found.append(
            Figure(
                key="confusion-coarse",
                title="What was taken for what",
                caption="Rows: what an image shows; columns: what the network said, both in the order of the classes.",
                columns=columns,
                rows=body,
                svg=coarse_drawing(counts, size),
            )
        )
    classes, mistakes = _classes(view), _mistakes(view)
    return [*found, *(figure for figure in (classes, mistakes) if figure is not None)]


def _classes(view: Tested) -> Figure | None:
    shares: list[Share] = []
    for i, row in enumerate(view.per_class):
        if row is not None:
            shares.append((label(view.classes, i), row[0], row[1], *wilson(row[1], row[0])))
    if not shares:
        return None
    shares.sort(key=lambda s: (s[2] / s[1] if s[1] else 2.0, -s[1]))  # classes without images last
    seen = [share for share in shares if share[1]]
    groups: list[tuple[str, Sequence[Share]]] = [("", shares)]
    if len(shares) > _BARS and len(seen) > 2 * _ENDS:
        groups = [(f"The {_ENDS} worst", seen[:_ENDS]), (f"The {_ENDS} best", seen[-_ENDS:])]
    elif len(shares) > _BARS:
        groups = [("", shares[:_BARS])]
    return Figure(
        key="class-accuracy",
        title="Accuracy per class",
        caption="Worst first, with the number of test images. Whiskers: 95 % interval of the accuracy (Wilson), wide"
        f" where a class has few images. {len(shares):,} classes in all.",
        columns=("class", "images", "correct", "low", "high"),
        rows=shares,
        svg=shares_drawing(groups),
    )


def _mistakes(view: Tested) -> Figure | None:
    if not view.mistakes:
        return None
    return Figure(
        key="mistakes",
        title="The most confident mistakes",
        caption="Test images the network was surest about and wrong, with how sure it was of each class, and the file.",
        columns=("file", "truth", "said", "probability", "truth_probability"),
        rows=[
            (m.name, label(view.classes, m.truth), label(view.classes, m.said), m.probability, m.truth_probability)
            for m in view.mistakes
        ],
        svg=mistakes_drawing(view.mistakes[:_MISTAKES], view.classes),
    )
