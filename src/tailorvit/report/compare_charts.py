"""The figures of a comparison: each a function from a Comparison to a Figure, or to nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tailorvit.report.axes import COLOURS, WIDTH, Axes, Point, svg, text, thin
from tailorvit.report.compare import Comparison, RunRow
from tailorvit.report.figure import Figure, tip
from tailorvit.report.parts import clean, duration, metric_name
from tailorvit.report.records import Facts, real, table
from tailorvit.report.views import trim

_SHOWN = 40  # characters of a name in a legend
_MOST = 400  # points of a line


def colour(group: int) -> str:
    """The class of a group's colour."""
    return f"c{(group - 1) % COLOURS}"


def _legend(comparison: Comparison) -> tuple[tuple[str, str], ...]:
    return tuple((colour(g.number), f"{g.number}: {clean(g.label, 2 * _SHOWN)}") for g in comparison.groups)


def _who(row: RunRow) -> str:
    return f"{clean(row.name, _SHOWN)}, seed {'not known' if row.seed is None else row.seed}"


def accuracy(comparison: Comparison) -> Figure | None:
    """Test accuracy: a dot a run, the mean with one standard deviation, rings for the baselines."""
    found = [(r, r.test_accuracy) for r in comparison.runs if r.counted and r.test_accuracy is not None]
    if not found:
        return None
    groups = [g for g in comparison.groups if g.counted]
    place = {g.number: float(i) for i, g in enumerate(groups)}
    stats = {g.number: g.stats["test_accuracy"] for g in groups}
    reach = [v for s in stats.values() for v in (s.mean - (s.sd or 0), s.mean + (s.sd or 0))]
    heights = [
        *(a for _, a in found),
        *(r.baseline_accuracy for r, _ in found if r.baseline_accuracy is not None),
        *reach,
    ]
    names = {x: str(number) for number, x in place.items()}
    axes = Axes([-0.5, len(groups) - 0.5], heights, "group", "test accuracy, %", x_names=names)
    for row, value in found:
        mates = [r for r, _ in found if r.group == row.group]
        shift = 0.0 if len(mates) == 1 else 0.24 * (mates.index(row) / (len(mates) - 1) - 0.5)
        x = place[row.group] + shift
        if row.baseline_accuracy is not None:
            words = f"baseline of {_who(row)}: {row.baseline_accuracy:.2f} %"
            axes.dot((x + 0.03, row.baseline_accuracy), "ring c5", 3.5, words)
        axes.dot((x - 0.03, value), f"dot solid {colour(row.group)}", 4, f"{_who(row)}: {value:.2f} %")
    for number, s in stats.items():
        x, a, b = axes.x(place[number] + 0.28), axes.y(s.mean - (s.sd or 0)), axes.y(s.mean + (s.sd or 0))
        told = f"group {number}: mean {s.mean:.2f} %, " + ("one run" if s.sd is None else f"sd {s.sd:.2f}, n = {s.n}")
        bar = "" if s.sd is None else f"M{x:.1f} {a:.1f}V{b:.1f}M{x - 4:.1f} {a:.1f}h8M{x - 4:.1f} {b:.1f}h8"
        axes.parts.append(f'<path class="whisker" d="{bar}M{x - 8:.1f} {axes.y(s.mean):.1f}h16"{tip(told)}/>')
    rows = [(r.name, r.group, r.seed, a, r.baseline_accuracy) for r, a in found]
    caption = (
        "A dot is a run, a grey ring its baseline; beside them the mean, with one standard deviation to both sides"
    )
    caption += " where a group has more than one run."
    columns = ("run", "group", "seed", "test accuracy, %", "baseline, %")
    title = "Test accuracy by group"
    return Figure("compare-accuracy", title, caption, columns, rows, axes.svg(title), _legend(comparison))


def sizes(comparison: Comparison) -> Figure | None:
    """Test accuracy against parameters."""
    found = [
        (r, r.params, r.test_accuracy)
        for r in comparison.runs
        if r.counted and r.params is not None and r.test_accuracy is not None
    ]
    if not found:
        return None
    hands = [
        (r, p, r.baseline_accuracy)
        for r, _, _ in found
        if (p := real(table(r.facts.result.get("baseline")).get("params"))) is not None
        and r.baseline_accuracy is not None
    ]
    every = [*found, *hands]
    axes = Axes((p for _, p, _ in every), (a for _, _, a in every), "parameters", "test accuracy, %")
    for row, p, a in hands:
        axes.dot((p, a), "ring c5", 3.5, f"baseline of {_who(row)}: {a:.2f} %, {p:,.0f} parameters")
    for row, p, a in found:
        axes.dot((p, a), f"dot solid {colour(row.group)}", 4, f"{_who(row)}: {a:.2f} %, {p:,.0f} parameters")
    rows = [(r.name, r.group, kind, p, a) for kind, part in (("found", found), ("baseline", hands)) for r, p, a in part]
    title = "Test accuracy against size"
    caption = "Higher and further left is better. Grey rings are the hand-designed baselines of the same runs."
    columns = ("run", "group", "network", "parameters", "test accuracy, %")
    return Figure("compare-size", title, caption, columns, rows, axes.svg(title), _legend(comparison))


def _lines(
    comparison: Comparison,
    lines: Sequence[tuple[RunRow, Sequence[Point]]],
    key: str,
    title: str,
    caption: str,
    labels: tuple[str, str],
    stairs: bool = False,
    rules: Sequence[tuple[float, str]] = (),
    x_names: dict[float, str] | None = None,
) -> Figure | None:
    """One line a run in the colour of its group."""
    every = [p for _, points in lines for p in points]
    if not every:
        return None
    heights = [*(y for _, y in every), *(h for h, _ in rules)]
    axes = Axes((x for x, _ in every), heights, *labels, x_names=x_names)
    for height, words in rules:
        axes.rule(height, words, "c5")
    for row, points in lines:
        shown = thin(points, _MOST)
        axes.path(shown, f"line {colour(row.group)}", stairs)
        if shown:
            axes.dot(shown[-1], f"dot solid {colour(row.group)}", 3, f"{_who(row)}: {labels[1]} {shown[-1][1]:.6g}")
    rows = [(row.name, row.group, x, y) for row, points in lines for x, y in points]
    columns = ("run", "group", *labels)
    return Figure(key, title, caption, columns, rows, axes.svg(title), _legend(comparison))


def path(comparison: Comparison) -> Figure | None:
    """The largest member of every space visited, against the limit."""
    bounded = [m for m in ("params", "macs") if any(_limit(r.facts, m) is not None for r in comparison.runs)]
    metric = bounded[0] if bounded else "params"
    lines = []
    for row in comparison.runs:
        steps = [(s.t, s.params if metric == "params" else s.macs) for s in row.facts.spaces]
        lines.append((row, [(float(t), v) for t, v in steps if v is not None]))
    if not any(len(points) > 1 for _, points in lines):
        return None  # spaces that never move have no path
    limits = dict.fromkeys(v for r in comparison.runs if (v := _limit(r.facts, metric)) is not None)
    ends = {x: f"{x:g}" for _, points in lines for x, _ in points}
    name = metric_name(metric)
    caption = f"The {name} of the largest member of each space visited; dashed is the limit."
    labels = ("space visited", f"{name} of the largest")
    title = "The path of the space"
    rules = [(v, "limit") for v in limits]
    names = ends if len(ends) <= 12 else None
    return _lines(comparison, lines, "compare-path", title, caption, labels, False, rules, names)


def _limit(facts: Facts, metric: str) -> float | None:
    return real(table(table(facts.result.get("limits")).get(metric)).get("max"))


def errors(comparison: Comparison) -> Figure | None:
    """The error distribution of the last space of every run."""
    lines = []
    for row in comparison.runs:
        stages = {t.stage for t in row.facts.trials if t.stage.startswith("edf-") and t.stage[4:].isdecimal()}
        last = max(stages, key=lambda s: int(s[4:]), default="")
        missed = sorted(100 - t.accuracy for t in row.facts.trials if t.stage == last and t.accuracy is not None)
        lines.append((row, [(e, (i + 1) / len(missed)) for i, e in enumerate(missed)]))
    caption = "Of members drawn at random from the last space, the share with at most this error on the search images."
    caption += " Further left is the better space."
    labels = ("error, %", "share of members")
    return _lines(comparison, lines, "compare-edf", "Error distribution of the last space", caption, labels, True)


def progress(comparison: Comparison) -> Figure | None:
    """Best accuracy so far over the trials of the search."""
    lines = []
    for row in comparison.runs:
        best, points = float("-inf"), []
        seen = [t.accuracy for t in row.facts.trials if t.stage == "search"]
        for i, value in enumerate(seen, 1):
            if value is not None:
                best = max(best, value)
                points.append((float(i), best))
        lines.append((row, points))
    caption = (
        "On the search images, with inherited weights: it ranks candidates and is no estimate of the test accuracy."
    )
    labels = ("trial of the search", "best accuracy so far, %")
    return _lines(comparison, lines, "compare-progress", "Best so far", caption, labels, True)


def seconds(comparison: Comparison) -> Figure | None:
    """Time by kind of stage, a bar a run."""
    spent = [(r, _kinds(r.facts)) for r in comparison.runs if r.facts.seconds]
    if not spent:
        return None
    kinds = list(dict.fromkeys(k for _, per in spent for k in per))
    style = {k: f"c{min(i, COLOURS - 1)}" for i, k in enumerate(kinds)}
    reach = max(sum(per.values()) for _, per in spent) or 1.0
    left, step = 146, 24  # names share their beginnings more often than their ends, so the middle goes
    parts = []
    for i, (row, per) in enumerate(spent):
        x, y = float(left), 4 + step * i
        parts.append(text(left - 6, y + 14, f"{row.group}: {trim(clean(row.name, 300), 16)}", "end"))
        for kind, value in per.items():
            width = value / reach * (WIDTH - left - 84)
            words = tip(f"{_who(row)}: {clean(kind, _SHOWN)} {duration(value)}")
            parts.append(
                f'<rect class="bar edge {style[kind]}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="18"{words}/>'
            )
            x += width
        parts.append(text(x + 5, y + 14, duration(sum(per.values()))))
    rows = [(r.name, r.group, kind, value) for r, per in spent for kind, value in per.items()]
    legend = tuple((style[k], clean(k, _SHOWN)) for k in kinds)
    title, columns = "Seconds by stage", ("run", "group", "stage", "seconds")
    caption = "Working time of every run, over all its resumes. Runs on different machines do not compare."
    drawing = svg(parts, title, WIDTH, 8 + step * len(spent))
    return Figure("compare-seconds", title, caption, columns, rows, drawing, legend)


def _kinds(facts: Facts) -> dict[str, float]:
    """``supernet-0`` and ``supernet-1`` are one kind."""
    kinds: dict[str, float] = {}
    for stage, value in facts.seconds.items():
        name, _, number = stage.rpartition("-")
        kind = name if name and number.isdecimal() else stage
        kinds[kind] = kinds.get(kind, 0.0) + max(value, 0.0)
    return kinds


CHARTS: tuple[Callable[[Comparison], Figure | None], ...] = (accuracy, sizes, path, errors, progress, seconds)


def comparison_figures(comparison: Comparison) -> list[Figure]:
    """Every figure there is something to draw for."""
    return [figure for chart in CHARTS if (figure := chart(comparison)) is not None]
