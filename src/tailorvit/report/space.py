"""Section 2: the search space step by step: its choices, the slopes, the possible moves, the decisions, its quality."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tailorvit.report import charts
from tailorvit.report.charts import WIDTH, Axes, Box, Figure, figures_of, tip
from tailorvit.report.fields import number, table
from tailorvit.report.markup import (
    clean,
    count_of,
    counted,
    fold,
    grid,
    limits_in_words,
    metric_name,
    pair,
    paragraph,
    points,
    size,
    soft,
)
from tailorvit.report.reading import Decision, Facts, Slope, SpaceStep, Trial

Floats = NDArray[np.float64]
_BEST_MOVES, _FOLDED_MOVES = 5, 200  # moves in the table, and in its fold; the figure's numbers hold all
_PANELS = 16  # dimensions without stages that are drawn
_ROWS, _STAGES, _FITS = 12, 8, 48  # of the drawings of staged spaces; the numbers hold all
_SURVEY_PANELS, _SURVEY_HEIGHT = 24, 132.0
_AGREEMENT = "agreement with the slopes"
_TOP = 50  # S3 rates a space by the mean error of all and of the best 50 sub-networks


def there(facts: Facts) -> bool:
    """Whether there may be a space; a contest alone needs none."""
    return not facts.contest_only


def section(facts: Facts) -> str:
    """The choices of every dimension, then every step with its slopes and its decision."""
    drawn = {f.key: f.html() for f in figures(facts)}
    if not facts.spaces and not facts.searched:
        return soft("One network was given, so no space was searched.")
    text = _spaces(facts, drawn) if facts.spaces else soft("No space has been recorded.")
    text += paragraph(_judged(facts)) + drawn.get("survey", "")
    decided = {d.t: d for d in facts.decisions}
    if any(d.legal for d in facts.decisions):
        text += soft(
            "A slope is the estimated gain when one dimension moves by one step. Agreement says how well a move follows"
            " all slopes together (it is the cosine between the two): 1 is the same direction, 0 unrelated, -1 the"
            " opposite."
        )
    for t in sorted({s.t for s in facts.slopes} | set(decided)):
        text += f"<h3>Step {t}</h3>"
        if t in decided:
            plain = "The search of the space stopped." if decided[t].stop else f"Moved: {decided[t].gamma}."
            text += paragraph(_plain_words(decided[t].sentence) or plain)
        text += drawn.get(f"fits-{t}", "") + pair(drawn.get(f"slopes-{t}", ""), drawn.get(f"moves-{t}", ""))
        if t in decided and decided[t].legal:
            text += _moves_table(decided[t])
    return text + drawn.get("edf", "")


def figures(facts: Facts) -> list[Figure]:
    """The figures of this section."""
    found = [_path(facts), _stages(facts), _largest(facts), survey(facts)]
    for t in sorted({s.t for s in facts.slopes}):
        here = [s for s in facts.slopes if s.t == t]
        found += [_slopes(t, here, facts.scale), _fits(t, here, facts.scale)]
    return figures_of(*found, *(_moves(d) for d in facts.decisions), _errors(facts))


def _plain_words(sentence: str) -> str:
    """A decision as the run wrote it, in the words of this page."""
    named = re.sub(r"\bhas cosine (\S+) with the slopes", r"has agreement \1 with the slopes", sentence)
    named = re.sub(r"\bcosine (?=[-+]?\d)", "agreement ", named)
    return named.replace(" has params ", " has parameters ")


def _spaces(facts: Facts, drawn: Mapping[str, str]) -> str:
    text = drawn.get("space-stages", "") + pair(drawn.get("space-path", ""), drawn.get("space-size", ""))
    repaired = any(s.repair for s in facts.spaces)
    head = (
        "step",
        "architectures",
        "parameters of the largest",
        "MACs of the largest",
        *(["repair"] if repaired else []),
    )
    rows = [
        (s.label, count_of(s.count_log10), size(s.params), size(s.macs), *(["repair" if s.repair else ""] * repaired))
        for s in facts.spaces
    ]
    text += grid(head, rows, len(head) - 1)
    if len(facts.spaces) == 1 and not facts.decisions and facts.finished:
        where = "comes from the pretrained network" if facts.tailored else "was given"
        text += soft(f"The space {where} and did not move.")
    return text


def _judged(facts: Facts) -> str:
    """How sub-networks were judged where no supernet did it, and what was scored without training."""
    seek, proxy, words = facts.result.seek, facts.result.proxy, []
    epochs = counted(seek.epochs or 0, "epoch")
    if seek.epochs and seek.evaluator == "tuned":
        words.append(
            "Slopes do not come from inherited accuracy: every sub-network was taken out of the supernet of its space"
            f" and trained by itself for {epochs} more."
        )
    elif seek.epochs:
        words.append(
            f"No supernet was trained while the space moved: every sub-network was trained from scratch for {epochs},"
            " and slopes are those of its accuracy on the search split."
        )
        if seek.reach:
            words.append(
                f"They come from up to {counted(seek.reach, 'step')} around the space and serve every step: slopes are"
                " those of a surface fitted to all of them."
            )
    elif seek.evaluator:
        words.append(
            "No supernet was trained while the space moved: slopes are in standard deviations of"
            f" {seek.evaluator} over sub-networks of the space."
        )
    names = ", ".join(proxy.names) or proxy.name
    if proxy.scored is not None or names:
        words.append(
            f"{proxy.scored or 0:,} untrained networks of the last space were scored ({names}) and the best trained."
        )
        if proxy.without_score:
            words.append(f"{proxy.without_score:,} of them had no score and could not be chosen.")
        if proxy.tau_params is not None:
            words.append(
                f"Kendall's tau-b between score and number of parameters was {proxy.tau_params:+.2f} among them: close"
                " to 1, the score ranks networks by their size alone."
            )
    return " ".join(words)


# -- the path of the space --------------------------------------------------------------------------------------------


def _split(key: str) -> tuple[str, str]:
    name, _, stage = key.partition(".")
    return name, stage


def _path(facts: Facts) -> Figure | None:
    """Every dimension without a stage; those with stages have a drawing of their own."""
    keys = list(dict.fromkeys(k for s in facts.spaces for k in s.dims if "." not in k))
    panels = {clean(k, 30): [(s.label, s.dims.get(k, ())) for s in facts.spaces] for k in keys[:_PANELS]}
    title = "The choices of every dimension"
    rows = [
        (s.step, s.repair, k, min(s.dims[k]), max(s.dims[k]), " ".join(f"{c:g}" for c in s.dims[k]))
        for s in facts.spaces
        for k in keys
        if s.dims.get(k)
    ]
    left = f" {len(keys) - _PANELS} more dimensions are in the numbers only." if len(keys) > _PANELS else ""
    repairs = " An r marks a space reached by a repair." if any(s.repair for s in facts.spaces) else ""
    return Figure(
        "space-path",
        title,
        f"Dots: the choices of each dimension. Line: their mean.{repairs}{left}",
        ("step", "repair", "dimension", "low", "high", "choices"),
        rows,
        charts.intervals(panels, title),
    )


def _stages(facts: Facts) -> Figure | None:
    """Rows are dimensions, columns stages; each cell shows the choices of every step."""
    keys = [k for k in dict.fromkeys(k for s in facts.spaces for k in s.dims) if "." in k]
    names = list(dict.fromkeys(_split(k)[0] for k in keys))[:_ROWS]
    columns = sorted({_split(k)[1] for k in keys}, key=lambda s: (len(s), s))[:_STAGES]
    if not keys:
        return None
    left, top, high = 62.0, 20.0, 78.0
    wide = (WIDTH - left) / len(columns)
    parts = [charts.text(left + wide * (i + 0.5), 13, f"stage {clean(c, 12)}", "middle") for i, c in enumerate(columns)]
    for r, name in enumerate(names):
        y0 = top + high * r
        values = [c for s in facts.spaces for k, cs in s.dims.items() if _split(k)[0] == name and "." in k for c in cs]
        parts.append(charts.text(2, y0 + high / 2, clean(name, 12), style="strong"))
        if not values:
            continue
        low, top_value = charts.span(values)

        def at(v: float, y0: float = y0, low: float = low, top_value: float = top_value) -> float:
            return y0 + high - 8 - (v - low) / (top_value - low) * (high - 16)

        for v in (min(values), max(values)):
            parts.append(charts.text(left - 4, at(v) + 4, charts.short(v), "end"))
            parts.append(f'<path class="grid" d="M{left} {at(v):.1f}H{WIDTH}"/>')
        for c, stage in enumerate(columns):
            parts += _stage_cell(facts.spaces, f"{name}.{stage}", left + wide * c, wide, at)
    for i in range(len(columns) + 1):
        parts.append(f'<path class="grid" d="M{left + wide * i:.1f} {top}V{top + high * len(names):.1f}"/>')
    title = "The choices of every stage"
    rows = [
        (s.step, s.repair, *_split(k), " ".join(f"{c:g}" for c in s.dims[k]), sum(s.dims[k]) / len(s.dims[k]))
        for s in facts.spaces
        for k in keys
        if s.dims.get(k)
    ]
    return Figure(
        "space-stages",
        title,
        "Steps go from left to right in each cell. Dots: the choices. Line: their mean.",
        ("step", "repair", "dimension", "stage", "choices", "mean"),
        rows,
        charts.svg(parts, title, WIDTH, top + high * len(names) + 4),
    )


def _stage_cell(spaces: Sequence[SpaceStep], key: str, x0: float, wide: float, at: charts.Scale) -> list[str]:
    parts, means = [], []
    gap = wide / len(spaces)
    for i, space in enumerate(spaces):
        choices = space.dims.get(key, ())
        if not choices:
            continue
        x, words = x0 + gap * (i + 0.5), f"{clean(key)}, step {space.label}: {', '.join(f'{v:g}' for v in choices)}"
        parts += [f'<circle class="dot c0" cx="{x:.1f}" cy="{at(v):.1f}" r="2.6"{tip(words)}/>' for v in choices]
        means.append((x, at(sum(choices) / len(choices))))
    for (a, b), (c, d) in pairwise(means):
        parts.append(f'<path class="line c1" d="M{a:.1f} {b:.1f}L{c:.1f} {d:.1f}"/>')
    return parts


def _largest(facts: Facts) -> Figure | None:
    """The largest sub-network over the steps, by the first metric that has an upper limit."""
    metric = next((m for m in ("params", "macs") if facts.result.limit(m).max is not None), "params")
    bounds = facts.result.limit(metric)
    at = [(float(i), s.params if metric == "params" else s.macs) for i, s in enumerate(facts.spaces)]
    known = [(x, v) for x, v in at if v is not None]
    if len(known) < 2:
        return None
    marks = ((bounds.min, "at least"), (bounds.max, "at most"))
    rules = [(v, f"{words} {size(v, metric)}") for v, words in marks if v is not None]
    names = {float(i): s.label for i, s in enumerate(facts.spaces)}
    title = "The largest sub-network of every space"
    limit = f" Dashed: the limit, {limits_in_words({metric: bounds})}." if rules else ""
    return Figure(
        "space-size",
        title,
        f"Size of the largest architecture in each space.{limit}",
        ("step", "repair", "params", "macs", "log10 of the number of architectures"),
        [(s.step, s.repair, s.params, s.macs, s.count_log10) for s in facts.spaces],
        charts.lines({"largest": known}, title, "step", metric_name(metric), rules=rules, x_names=names),
    )


# -- slopes and moves -------------------------------------------------------------------------------------------------


def _slopes(t: int, here: Sequence[Slope], scale: str) -> Figure | None:
    bars = [(clean(s.dim, 30), s.z_step, s.se_step) for s in here if s.z_step is not None]
    pairs = max((s.pairs or 0 for s in here), default=0)
    count = f", from {pairs} pairs each" if pairs else ""
    title = f"Slopes at step {t}"
    return Figure(
        f"slopes-{t}",
        title,
        f"{clean(scale[0].upper() + scale[1:], 60)} per step of a dimension, with one standard error{count}.",
        ("step", "dimension", "slope per unit", "its error", "slope per step", "its error per step", "pairs"),
        [(t, s.dim, s.z, s.se, s.z_step, s.se_step, s.pairs) for s in here],
        charts.bars(bars, title),
    )


def _moves(decision: Decision) -> Figure | None:
    """Agreement with the slopes against size of every possible move; the one taken has a ring."""
    known = [(m, (m.size, m.cosine)) for m in decision.legal if m.size is not None and m.cosine is not None]
    places = [(a, b) for _, (a, b) in known if a is not None and b is not None]
    if not places:
        return None
    words = [f"{clean(m.gamma)}: agreement {m.cosine:+.3f}, size {size(m.size)}" for m, _ in known]
    order = sorted(range(len(places)), key=lambda i: -places[i][1])
    taken = next((i for i, (m, _) in enumerate(known) if m.gamma == decision.gamma and not decision.stop), None)
    title = f"Possible moves at step {decision.t}"
    axes = Axes((x for x, _ in places), [0.0, *(y for _, y in places)], "size after the move", _AGREEMENT)
    axes.rule(0.0, "", "c5")
    axes.cloud(places, "c0")
    for i in order[:_BEST_MOVES]:
        axes.dot(places[i], "dot c0", 4, words[i])
    if taken is not None:
        axes.dot(places[taken], "ring c3", 6, f"taken: {words[taken]}")
    ring = " Ring: the move taken." if taken is not None else " None was taken."
    return Figure(
        f"moves-{decision.t}",
        title,
        f"Each dot is a neighbouring space within the limits; a higher one agrees better with the slopes.{ring}"
        f"{charts.crowded([places])}",
        ("step", "move", "size", _AGREEMENT, "predicted gain", "taken"),
        [(decision.t, m.gamma, m.size, m.cosine, m.gain, m.gamma == decision.gamma) for m in decision.legal],
        axes.svg(title),
    )


def _moves_table(decision: Decision) -> str:
    best = sorted(decision.legal, key=lambda m: -2.0 if m.cosine is None else m.cosine, reverse=True)
    head = ("move", "size after", "agreement", "predicted gain")
    body = [(m.gamma, size(m.size), points(m.cosine, "+.3f"), points(m.gain, "+.3f")) for m in best]
    text = f"<h4>The best of {counted(len(body), 'possible move')}</h4>{grid(head, body[:_BEST_MOVES], 3)}"
    rest = body[_BEST_MOVES:_FOLDED_MOVES]
    if rest:
        left = len(body) - _BEST_MOVES - len(rest)
        more = soft(f"{left:,} more are in the figure's numbers.") if left else ""
        text += fold(f"The next {len(rest):,}", grid(head, rest, 3) + more)
    return text


def _fits(t: int, here: Sequence[Slope], scale: str) -> Figure | None:
    """S3: a panel per dimension with the error of each choice and the fitted line, whose slope decides the shift."""
    shown = [s for s in here if s.fit is not None and any(e is not None for e in s.fit.errors)]
    if not shown:
        return None
    names = list(dict.fromkeys(_split(s.dim)[0] for s in shown))
    shown.sort(key=lambda s: (names.index(_split(s.dim)[0]), _split(s.dim)[1]))
    stages = len({_split(s.dim)[1] for s in shown})
    columns = stages if stages in (2, 4) else 3  # a row per dimension where stages fit beside each other
    wide, high = WIDTH / columns, 118.0
    accuracy = scale == "points of accuracy"
    parts: list[str] = []
    rows = []
    for n, slope in enumerate(shown):
        fit = slope.fit
        if fit is None:
            continue
        for x, error in enumerate(fit.errors):
            line = fit.slope * x + fit.offset if fit.slope is not None and fit.offset is not None else None
            choice = fit.choices[x] if x < len(fit.choices) else None
            rows.append((t, slope.dim, choice, error, line, fit.slope, fit.shift))
        if n < _FITS:
            box = Box(wide * (n % columns), high * (n // columns), wide, high, 36, 6, 30, 20)
            parts += _fit_panel(slope, "E-T error {:.3f} %" if accuracy else "{:.3f} lost", box)
    left = f" {len(shown) - _FITS} more are in the numbers only." if len(shown) > _FITS else ""
    title = f"{'E-T error' if accuracy else 'Score lost'} per choice at step {t}"
    dots = (
        "E-T error of sub-networks with that choice, the mean of the average error and of the best ones' error"
        if accuracy
        else f"{clean(scale, 60)} lost by sub-networks with that choice"
    )
    return Figure(
        f"fits-{t}",
        title,
        f"Dots: the {dots}. Line: its fit; w is the slope of the line per choice, k the shift that followed. A falling"
        f" line asks for larger choices.{left}",
        ("step", "dimension", "choice", "E-T error", "fitted", "slope w", "shift k"),
        rows,
        charts.svg(parts, title, WIDTH, high * -(-min(len(shown), _FITS) // columns)),
    )


def _fit_panel(slope: Slope, unit: str, box: Box) -> list[str]:
    fit = slope.fit
    if fit is None:
        return []
    known = [(float(x), e) for x, e in enumerate(fit.errors) if e is not None]
    line = []
    if fit.slope is not None and fit.offset is not None:
        line = [(x, fit.slope * x + fit.offset) for x in (known[0][0], known[-1][0])]
    names = {float(x): charts.short(c) for x, c in enumerate(fit.choices)}
    axes = Axes([x for x, _ in known], [y for _, y in (*known, *line)], "", "", box, names, 3)
    if line:
        axes.path(line, "line c1")
    for x, error in known:
        axes.dot((x, error), "dot solid c0", 3, f"{clean(slope.dim)} {names.get(x, '')}: {unit.format(error)}")
    w = "" if fit.slope is None else f"w {fit.slope:+.3g}"
    k = "" if fit.shift is None else f"k {fit.shift:+d}"
    axes.parts.append(charts.text(box.x + 4, box.y + 12, clean(slope.dim, 18), style="strong"))
    axes.parts.append(charts.text(box.x + 4, box.y + 25, ", ".join(filter(None, (w, k)))))
    return axes.parts


# -- a survey ---------------------------------------------------------------------------------------------------------


def survey(facts: Facts) -> Figure | None:
    """A panel per dimension: sub-networks trained by themselves, and the surface that gives the slopes.

    None where S4 made no survey, or has no slopes yet.
    """
    s4 = table(facts.settings.get("s4"))
    if s4.get("design", "survey" if number(s4.get("survey")) else "pairs") != "survey":  # design: version 0.1
        return None
    keys = list(dict.fromkeys(s.dim for s in facts.slopes if s.z_step))  # dimensions outside the survey have none
    trained = [t for t in facts.trials if re.fullmatch(r"slopes-\d{1,9}", t.stage) and t.accuracy is not None]
    known = [(t, values) for t in trained if (values := _values(t.arch, keys)) is not None]
    if not keys or len(known) < len(keys) + 2:
        return None
    places: Floats = np.array([[math.log2(values[k]) for k in keys] for _, values in known])
    scores: Floats = np.array([t.accuracy for t, _ in known], dtype=np.float64)
    away: Floats = places - places.mean(axis=0)
    found, errors = _least_squares(np.column_stack([np.ones(len(away)), away]), scores)
    rest: Floats = scores - found[0] - away @ found[1:]
    alone: Floats = found[0] + found[1:] * away  # the surface along each dimension, the others at their mean
    seen: Floats = alone + rest[:, None]
    columns, parts = 2 if len(keys) in (2, 4) else 3, list[str]()
    heights = [float(f(v)) for v in (seen, alone) for f in (np.min, np.max)]  # one scale for all panels
    words = [_survey_words(t, values, keys) for t, values in known]
    for n, key in enumerate(keys[:_SURVEY_PANELS]):
        x, y, wide = WIDTH / columns * (n % columns), _SURVEY_HEIGHT * (n // columns), WIDTH / columns
        box = Box(x, y, wide, _SURVEY_HEIGHT, 36, 8, 32, 20)
        parts += _survey_panel(key, box, places[:, n], alone[:, n], seen[:, n], heights, words)
        error = "" if math.isinf(errors[1 + n]) else f" ± {errors[1 + n]:.2f}"
        parts.append(charts.text(box.x + 4, box.y + 25, f"{found[1 + n]:+.2f}{error} a doubling"))
    title = "Accuracy of the surveyed sub-networks"
    hidden = len(keys) - _SURVEY_PANELS
    left = f" {hidden} more dimensions are in the numbers only." if hidden > 0 else ""
    return Figure(
        "survey",
        title,
        f"Each dot is one of {len(known):,} sub-networks trained by themselves: its accuracy in percent, with the other"
        " dimensions moved to their mean along the surface. Line: the surface, straight over doublings; its slope is in"
        f" points of accuracy.{left}",
        ("stage", *keys, "accuracy", "surface"),
        [
            (t.stage, *(values[k] for k in keys), t.accuracy, float(s - r))
            for (t, values), s, r in zip(known, scores, rest, strict=True)
        ],
        charts.svg(parts, title, WIDTH, _SURVEY_HEIGHT * -(-min(len(keys), _SURVEY_PANELS) // columns)),
    )


def _least_squares(rows: Floats, values: Floats) -> tuple[Floats, Floats]:
    """Coefficients and their standard errors; infinite while the coefficients can follow every value."""
    found: Floats = np.linalg.lstsq(rows, values, rcond=None)[0].astype(np.float64)
    rest, freedom = values - rows @ found, len(values) - rows.shape[1]
    if freedom <= 0 or np.linalg.matrix_rank(rows) < rows.shape[1]:
        return found, np.full(rows.shape[1], math.inf)
    return found, np.asarray(np.sqrt(float(rest @ rest) / freedom * np.diag(np.linalg.inv(rows.T @ rows))), np.float64)


def _values(arch: Mapping[str, Any], keys: Sequence[str]) -> dict[str, float] | None:
    """One positive number per dimension, of blocks that are alike; None where a row holds anything else."""
    found = {}
    for key in keys:
        value = arch.get(key)
        blocks = value if isinstance(value, (list, tuple)) else [value]
        first = number(blocks[0]) if blocks and all(b == blocks[0] for b in blocks) else None
        if first is None or first <= 0:
            return None
        found[key] = first
    return found


def _survey_words(trial: Trial, values: Mapping[str, float], keys: Sequence[str]) -> str:
    named = ", ".join(f"{clean(k, 18)} {values[k]:g}" for k in keys[:5])
    return f"{named}: {trial.accuracy:.2f} %"


def _survey_panel(
    key: str, box: Box, x: Floats, line: Floats, y: Floats, heights: Sequence[float], words: Sequence[str]
) -> list[str]:
    ends = [int(x.argmin()), int(x.argmax())]
    between = int(np.abs(x - x[ends].mean()).argmin())
    names = {float(x[i]): charts.short(2 ** float(x[i])) for i in (*ends, between)}
    axes = Axes(x.tolist(), heights, "", "", box, names, 3)
    axes.path([(float(x[i]), float(line[i])) for i in ends], "line c1")
    for a, b, hint in zip(x, y, words, strict=True):
        axes.dot((float(a), float(b)), "dot solid c0", 3, hint)
    axes.parts.append(charts.text(box.x + 4, box.y + 12, clean(key, 18), style="strong"))
    return axes.parts


# -- the quality of every space ---------------------------------------------------------------------------------------


def error_curve(errors: Sequence[float]) -> list[tuple[float, float]]:
    """The share of sub-networks with at most this error."""
    return [(e, (i + 1) / len(errors)) for i, e in enumerate(sorted(errors))]


def _errors(facts: Facts) -> Figure | None:
    """The distribution of errors in a random sample of every space (stages edf-0, edf-1, ...)."""
    samples: dict[int, list[float]] = {}
    for trial in facts.trials:
        found = re.fullmatch(r"edf-(\d{1,9})", trial.stage)
        if found and trial.accuracy is not None:
            samples.setdefault(int(found[1]), []).append(100 - trial.accuracy)
    if not samples:
        return None
    series: dict[str, list[tuple[float, float]]] = {}
    rows = []
    for t, errors in sorted(samples.items()):
        curve = error_curve(errors)
        mean, top = fmean(errors), fmean(sorted(errors)[:_TOP])
        series[f"step {t}: mean error {mean:.2f} %, best {min(_TOP, len(errors))} {top:.2f} %"] = [
            (curve[0][0], 0.0),
            *curve,
        ]
        rows += [(t, error, share, mean, top, (mean + top) / 2) for error, share in curve]
    warm = len(samples) > 1 and table(facts.settings.get(facts.method)).get("warm_start") is True
    longer = " With warm start a later supernet has trained longer, which alone moves its curve to the left."
    title = "Errors of random sub-networks of every space"
    return Figure(
        "edf",
        title,
        "Share of sub-networks with at most this error, with inherited weights on the search split. A curve further to"
        " the left is a better space." + (longer if warm else ""),
        ("step", "error", "share", "mean error", "mean error of the best 50", "mean of both (Q of S3)"),
        rows,
        charts.lines(series, title, "error, %", "share of sub-networks", stairs=True),
        charts.legend(list(series)),
    )
