"""Section 2: why this space: its path, the slopes, the legal moves, the decisions, and the quality of every space."""

from __future__ import annotations

import re

import numpy as np

from tailorvit.proxies.settings import TUNED
from tailorvit.report import charts
from tailorvit.report.draw_space import fits, stages
from tailorvit.report.draw_survey import surveyed
from tailorvit.report.facts import Decision, Facts, Slope, real, rows, table, whole
from tailorvit.report.figure import Figure
from tailorvit.report.parts import cell, clean, figure, fold, grid, limits_in_words, many, metric_name, none, size
from tailorvit.seek.quality import quality

_LEGAL = 5
_FOLDED = 200  # legal moves on the page; the numbers of the figure have them all
_PANELS = 16  # dimensions without stages drawn as intervals
_TOP = 50  # S3's Q_t: the mean error of the best 50


def why(facts: Facts) -> str:
    """The intervals of every dimension, the decisions, the slopes behind them."""
    charted = {f.key: f.html() for f in figures(facts)}
    if not facts.spaces:
        if facts.given:
            return none("One network was given, so no space was searched.")
        text = none("No space has been recorded.")
    else:
        beside = charted.get("space-path", "") + charted.get("space-size", "")
        text = charted.get("space-stages", "") + (f'<div class="pair">{beside}</div>' if beside else "")
        head = ("step", "architectures", "largest, parameters", "largest, MACs", "")
        steps = [
            (s.label, many(s.count_log10), size(s.params), size(s.macs), "repair" if s.repair else "")
            for s in facts.spaces
        ]
        text += grid(head, steps, 4)
        if len(facts.spaces) == 1 and not facts.decisions and facts.finished:
            text += none("The space was given and did not move.")
    text += _untrained(facts) + charted.get("survey", "")
    decided = {d.t: d for d in facts.decisions}
    for t in sorted({s.t for s in facts.slopes} | set(decided)):
        text += f"<h3>Step {t}</h3>"
        if t in decided:
            plain = "The search of the space stopped." if decided[t].stop else f"Moved: {decided[t].gamma}."
            text += f"<p>{cell(decided[t].sentence or plain)}</p>"
        pair = charted.get(f"slopes-{t}", "") + charted.get(f"moves-{t}", "")
        text += charted.get(f"fits-{t}", "") + (f'<div class="pair">{pair}</div>' if pair else "")
        if t in decided and decided[t].legal:
            text += _legal(decided[t])
    return text + charted.get("edf", "")


def _untrained(facts: Facts) -> str:
    """What was scored without training, where anything was, and how much of the ranking is size alone."""
    proxy, seek = table(facts.result.get("proxy")), table(facts.result.get("seek"))
    words = []
    epochs = whole(seek.get("epochs"))
    if epochs and seek.get("evaluator") == TUNED:
        words.append(
            f"Slopes are not from inherited accuracy: every member asked for was taken out of the supernet of its space"
            f" and trained by itself for {epochs:,} epoch{'s' if epochs > 1 else ''} more."
        )
    elif epochs:
        words.append(
            f"No supernet was trained while the space moved: every member asked for was trained from scratch for"
            f" {epochs:,} epoch{'s' if epochs > 1 else ''}, and slopes are of its accuracy on the search split."
        )
        reach = whole(seek.get("reach"))
        words += [
            f"They come from up to {reach:,} step{'s' if reach > 1 else ''} around the space and serve every"
            " step: slopes are those of a surface through all of them."
        ] if reach else []  # fmt: skip
    elif seek:
        beyond = ", each less what its size leads to expect" if seek.get("per_size") is True else ""
        words.append(
            f"No supernet was trained while the space moved: slopes are in standard deviations of"
            f" {seek.get('evaluator')} over members of the space{beyond}."
        )
    if proxy:
        names = ", ".join(map(str, rows(proxy.get("names"))))
        count, lost, tau = whole(proxy.get("scored")), whole(proxy.get("without_score")), real(proxy.get("tau_params"))
        words.append(f"{count or 0:,} untrained networks of the last space were scored ({names}) and the best trained.")
        words += [f"{lost:,} of them had no score and could not be chosen."] if lost else []
        words += [
            f"Kendall's tau-b between score and number of parameters was {tau:+.2f} among them: the nearer to 1, the"
            " more the ranking is one by size."
        ] * (tau is not None)
    return f"<p>{cell(' '.join(words))}</p>" if words else ""


def figures(facts: Facts) -> list[Figure]:
    """The drawings of this section."""
    found = [_path(facts), stages(facts), _largest(facts), surveyed(facts)]
    for t in sorted({s.t for s in facts.slopes}):
        here = [s for s in facts.slopes if s.t == t]
        found += [_slopes(t, here, facts.scale), fits(t, here, facts.scale)]
    found += [_moves(d, facts) for d in facts.decisions]
    return [f for f in (*found, _edf(facts)) if f is not None]


def _ordered(decision: Decision) -> list[tuple[str, str | None, str | None, str | None]]:
    best = sorted(decision.legal, key=lambda d: -2.0 if d.cosine is None else d.cosine, reverse=True)
    return [(d.gamma, size(d.size), figure(d.cosine, "+.3f"), figure(d.gain, "+.3f")) for d in best]


def _legal(decision: Decision) -> str:
    head, body = ("move", "size after", "cosine", "predicted gain"), _ordered(decision)
    count = f"{len(body):,} legal move{'s' if len(body) != 1 else ''}"
    text = f"<h4>The best of {count}</h4>{grid(head, body[:_LEGAL], 3)}"
    rest = body[_LEGAL:_FOLDED]
    if rest:
        left = len(body) - _LEGAL - len(rest)
        more = none(f"{left:,} more are in the figure's numbers.") if left else ""
        text += fold(f"The next {len(rest):,}", grid(head, rest, 3) + more)
    return text


def _path(facts: Facts) -> Figure | None:
    """Every dimension without a stage; those with stages have a drawing of their own."""
    keys = list(dict.fromkeys(k for s in facts.spaces for k in s.dims if "." not in k))
    panels = {clean(k, 30): [(s.label, s.dims.get(k, ())) for s in facts.spaces] for k in keys[:_PANELS]}
    title = "The path of the space"
    drawing = charts.intervals(panels, title)
    if not drawing:
        return None
    rows = [
        (s.step, s.repair, k, min(s.dims[k]), max(s.dims[k]), " ".join(f"{c:g}" for c in s.dims[k]))
        for s in facts.spaces
        for k in keys
        if s.dims.get(k)
    ]
    left = f" {len(keys) - _PANELS} more dimensions are in the numbers only." if len(keys) > _PANELS else ""
    mended = " An r marks a space reached by repair." if any(s.repair for s in facts.spaces) else ""
    caption = f"Choices of each dimension at every step: dots are choices, the line joins their means.{mended}{left}"
    return Figure(
        "space-path", title, caption, ("step", "repair", "dimension", "low", "high", "choices"), rows, drawing
    )


def _largest(facts: Facts) -> Figure | None:
    """The largest member over the steps, by the first metric that has an upper limit."""
    limits = table(facts.result.get("limits"))
    metric = next((m for m in ("params", "macs") if real(table(limits.get(m)).get("max")) is not None), "params")
    at = [(float(i), s.params if metric == "params" else s.macs) for i, s in enumerate(facts.spaces)]
    points = [(x, v) for x, v in at if v is not None]
    if len(points) < 2:
        return None
    bounds = table(limits.get(metric))
    rules = [
        (v, f"{words} {size(v, metric)}")
        for side, words in (("min", "at least"), ("max", "at most"))
        if (v := real(bounds.get(side))) is not None
    ]
    names = {float(i): s.label for i, s in enumerate(facts.spaces)}
    title, words = "The largest member of every space", metric_name(metric)
    limit = f" The dashed lines are the limits: {limits_in_words({metric: bounds})}." if rules else ""
    return Figure(
        "space-size",
        title,
        f"Size of the largest architecture each space holds.{limit}",
        ("step", "repair", "params", "macs", "log10 of the number of architectures"),
        [(s.step, s.repair, s.params, s.macs, s.count_log10) for s in facts.spaces],
        charts.lines({"largest member": points}, title, "step", words, rules=rules, x_names=names),
    )


def _slopes(t: int, here: list[Slope], scale: str) -> Figure | None:
    bars = [(clean(s.dim, 30), s.z_step, s.se_step) for s in here if s.z_step is not None]
    if not bars:
        return None
    pairs = max((s.pairs or 0 for s in here), default=0)
    count = f", from {pairs} pairs each" if pairs else ""
    count += "; slopes of earlier steps are part of them" if any(s.carried for s in here) else ""
    title = f"Slopes at step {t}"
    return Figure(
        f"slopes-{t}",
        title,
        f"{clean(scale[0].upper() + scale[1:], 60)} per step of a dimension, with one standard error{count}.",
        ("step", "dimension", "slope per unit", "its error", "slope per step", "its error per step", "pairs"),
        [(t, s.dim, s.z, s.se, s.z_step, s.se_step, s.pairs) for s in here],
        charts.bars(bars, title),
    )


def _moves(decision: Decision, facts: Facts) -> Figure | None:
    """Cosine against size of every legal move; the one taken has a ring."""
    points = [(d, (d.size, d.cosine)) for d in decision.legal if d.size is not None and d.cosine is not None]
    places = [(size_, cosine) for _, (size_, cosine) in points if size_ is not None and cosine is not None]
    if not places:
        return None
    words = [f"{clean(d.gamma)}: cosine {d.cosine:+.3f}, size {size(d.size)}" for d, _ in points]
    order = sorted(range(len(places)), key=lambda i: -places[i][1])
    best = [(places[i], words[i]) for i in order[:_LEGAL]]
    taken = next((i for i, (d, _) in enumerate(points) if d.gamma == decision.gamma and not decision.stop), None)
    title = f"Legal moves at step {decision.t}"
    axes = charts.Axes((x for x, _ in places), [0.0, *(y for _, y in places)], "size after the move", "cosine")
    axes.rule(0.0, "", "c5")
    axes.cloud(places, "c0")
    for place, hint in best:
        axes.dot(place, "dot c0", 4, hint)
    if taken is not None:
        axes.dot(places[taken], "ring c3", 6, f"taken: {words[taken]}")
    ring = " The ring is the move taken." if taken is not None else " None was taken."
    return Figure(
        f"moves-{decision.t}",
        title,
        f"Each dot is a neighbouring space within the limits; higher follows the slopes better.{ring}",
        ("step", "move", "size", "cosine", "predicted gain", "taken"),
        [(decision.t, d.gamma, d.size, d.cosine, d.gain, d.gamma == decision.gamma) for d in decision.legal],
        axes.svg(title),
    )


def _edf(facts: Facts) -> Figure | None:
    """The share of each space's members with at most a given error."""
    samples: dict[int, list[float]] = {}
    for trial in facts.trials:
        found = re.fullmatch(r"edf-(\d{1,9})", trial.stage)
        if found and trial.accuracy is not None:
            samples.setdefault(int(found[1]), []).append(100 - trial.accuracy)
    if not samples:
        return None
    series: dict[str, list[tuple[float, float]]] = {}
    rows: list[tuple[int, float, float, float, float, float]] = []
    for t, errors in sorted(samples.items()):
        errors.sort()
        mean, top, both = quality(np.array(errors), _TOP)
        curve = [(e, (i + 1) / len(errors)) for i, e in enumerate(errors)]
        series[f"step {t}: Q {both:.2f} (mean {mean:.2f}, best {min(_TOP, len(errors))}: {top:.2f})"] = [
            (curve[0][0], 0.0),
            *curve,
        ]
        rows += [(t, error, share, mean, top, both) for error, share in curve]
    title = "Error distribution of every space"
    longer = (
        " With warm start a later supernet has also trained longer, which moves its curve to the left by itself."
        if len(samples) > 1 and table(facts.settings.get(facts.method)).get("warm_start") is True
        else ""
    )
    return Figure(
        "edf",
        title,
        "Share of uniformly drawn members with at most this error, with inherited weights on the search images;"
        " a curve further left is a better space. Q is S3's quality of a space in percent of error, lower is better."
        + longer,
        ("step", "error", "share", "Q_e, mean error", "Q_t, mean of the best 50", "Q"),
        rows,
        charts.lines(series, title, "error, %", "share of members", stairs=True),
        charts.legend(list(series)),
    )
