"""The contest: who took part, how each round went, what every choice was worth, and why the winner won."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tailorvit.report import charts
from tailorvit.report.charts import COLOURS, WIDTH, Axes, Box, Figure, figures_of, short, text, tip, trim
from tailorvit.report.contest_facts import Contest, Entry, Leg, Plan, Worth
from tailorvit.report.markup import (
    arch_in_words,
    clean,
    counted,
    duration,
    fold,
    grid,
    pair,
    paragraph,
    percent,
    size,
    soft,
)
from tailorvit.report.reading import Facts

# A family has the same colour in every report; families from outside take the colours again, dashed.
_FAMILIES = {
    "vit": "c0",
    "pit": "c1",
    "shunted": "c2",
    "swin": "c3",
    "ladder": "c4",
    "windowed": "c5",
    "hybrid": "c6",
}
_CHOICES = ("shape", "augmentation", "learning rate")
_USUAL = "usual"  # the stem that needs no name
_ROWS = 24  # entries in the open table; the rest is folded
_APART = 0.09  # share of the axis between two numbers, so that they do not touch on a phone


def there(facts: Facts) -> bool:
    """Whether the run began with a contest."""
    return bool(facts.result.contest.entries)


def section(facts: Facts) -> str:
    """Why the winner won, the race, what every choice was worth, the rounds (rungs of the file) and the entries."""
    contest = facts.result.contest
    drawn = {figure.key: figure.html() for figure in figures(facts)}
    why, timed = contest.why[:1].upper() + contest.why[1:], bool(facts.result.plan.entries)
    words = "".join(map(paragraph, (why, _took_part(contest), _worth_in_words(contest.worth, timed))))
    words += pair(drawn.get("contest-rungs", ""), drawn.get("contest-worth", ""))
    return words + _rungs_table(contest) + _entries_table(contest) + _plan(facts.result.plan)


def figures(facts: Facts) -> list[Figure]:
    """The figures of this section."""
    return figures_of(_race(facts.result.contest), _worth(facts.result.contest.worth))


# -- words ------------------------------------------------------------------------------------------------------------


def _family(entry: Entry) -> str:
    """The family, and its stem where that is not the usual one."""
    return entry.family if entry.stem in ("", _USUAL) else f"{entry.family} {entry.stem}"


def entry_in_words(entry: Entry) -> str:
    """An entry on a line: ``shunted, hand-designed, mild augmentation, learning rate 0.001``."""
    words = [_family(entry), entry.shape]
    words += [f"{entry.augment} augmentation"] if entry.augment else []
    words += [f"learning rate {entry.lr:g}"] if entry.lr is not None else []
    return clean(", ".join(filter(None, words))) or "a network"


def _rungs(contest: Contest) -> list[int]:
    """The numbers of the rungs, from the entries and from the list of rungs."""
    found = {leg.rung for e in contest.entries for leg in e.rungs} | {r.rung for r in contest.rungs}
    return sorted(r for r in found if r is not None)


def _legs(contest: Contest, rung: int) -> list[Leg]:
    return [leg for e in contest.entries if (leg := e.leg(rung)) is not None]


def _took_part(contest: Contest) -> str:
    families = {e.family for e in contest.entries if e.family}
    of = f" of {counted(len(families), 'family', 'families')}" if families else ""
    rounds = counted(len(_rungs(contest)), "round")
    legs = [leg for e in contest.entries for leg in e.rungs]
    images = max((leg.images or 0 for leg in legs), default=0)
    judged = f"{images:,} search images" if images else "the search images"
    seconds = sum(leg.seconds or 0.0 for leg in legs)
    time = f" It took {duration(seconds)}." if seconds else ""
    return (
        f"{counted(len(contest.entries), 'network')}{of} took part in {rounds}. After each round the best trained on"
        f" and the others were left out, judged on {judged}; the test images were not used.{time}"
    )


def _span(worth: Worth) -> str:
    ends = [round(v, 1) + 0.0 for v in (worth.low, worth.high) if v is not None]  # + 0.0: no -0.0
    return f"{ends[0]:.1f} to {ends[1]:.1f}" if len(ends) == 2 else ""


def _clear(worth: Worth) -> bool:
    """Whether the interval leaves no doubt who is better."""
    return worth.low is not None and worth.high is not None and (worth.low > 0 or worth.high < 0)


def _worth_in_words(every: Sequence[Worth], timed: bool) -> str:
    """Under a budget of time a slower network has seen fewer epochs, so not all else was equal."""
    known = sorted(((w.points, w) for w in every if w.points is not None), key=lambda row: -abs(row[0]))
    if not known:
        return ""
    words = []
    points, most = known[0]
    if _clear(most):
        how = "in the same time" if timed else "all else equal"
        words.append(
            f"The choice that mattered most was the {clean(most.what, 40)}: {clean(most.best, 40)} was {points:.1f}"
            f" points better than {clean(most.worst, 40)} (95 % interval {_span(most)}), {how}."
        )
    doubtful = [clean(w.what, 40) for _, w in known if not _clear(w)]
    if doubtful:
        words.append(f"This contest shows no clear difference by {' or '.join(doubtful)}.")
    return " ".join(words)


# -- the race ---------------------------------------------------------------------------------------------------------


def _colours(contest: Contest) -> dict[str, str]:
    """The colour of every family that took part."""
    names = dict.fromkeys(e.family for e in contest.entries)
    others = [name for name in names if name not in _FAMILIES]
    return {n: _FAMILIES.get(n) or f"c{others.index(n) % COLOURS} dashed" for n in names}


def _epochs(leg: Leg) -> float | None:
    total = leg.total_epochs if leg.total_epochs is not None else leg.epochs
    return total if total is not None and total > 0 else None


def _line(entry: Entry) -> list[tuple[Leg, float, float]]:
    """Its rungs in order: each with the epochs trained by then and the accuracy."""
    found = [(leg, x, y) for leg in entry.rungs if (x := _epochs(leg)) is not None and (y := leg.accuracy) is not None]
    return sorted(found, key=lambda row: row[1])


def _best_first(contest: Contest) -> list[Entry]:
    """The winner, then those that came far, then those that were accurate there."""
    champion = contest.champion

    def key(entry: Entry) -> tuple[bool, float, float]:
        line = _line(entry)
        return (entry is not champion, -line[-1][1] if line else 0.0, -line[-1][2] if line else 0.0)

    return sorted(contest.entries, key=key)


def _marks(places: Sequence[float], shown: Sequence[float]) -> dict[float, str]:
    """The numbers of the axis: the last, and as many others as have room."""
    wide = max(places) - min(places)
    found: dict[float, str] = {}
    for place, value in sorted(set(zip(places, shown, strict=True)), reverse=True):
        if all(abs(place - other) >= _APART * wide for other in found):
            found[place] = short(value)
    return found


def _race(contest: Contest) -> Figure | None:
    """A line per entry over the epochs it was trained; the winner is thick and named."""
    lines = {id(e): _line(e) for e in contest.entries}
    every = [row for line in lines.values() for row in line]
    if not every:
        return None
    totals = [x for _, x, _ in every]
    wide = max(totals) >= 4 * min(totals)  # rungs grow by factors: on a plain scale the first would touch
    at = math.log2 if wide else float
    colours, champion = _colours(contest), contest.champion
    label = f"epochs trained{', in factors' if wide else ''}"
    heights = [y for *_, y in every]
    room = max(heights) + 0.08 * (max(heights) - min(heights))  # for the winner's name
    places = [at(x) for x in totals]
    axes = Axes(
        places, [*heights, room], label, "accuracy on the search images, %", Box(height=300), _marks(places, totals)
    )
    for entry in reversed(_best_first(contest)):
        won, colour = entry is champion, colours[entry.family]
        line = lines[id(entry)]
        axes.path([(at(x), y) for _, x, y in line], f"line {'thick' if won else 'faded'} {colour}")
        for leg, x, y in line:
            axes.dot((at(x), y), f"dot {'solid' if won else 'faded'} {colour}", 4 if won else 3, _hint(entry, leg, won))
        if won and line:
            axes.parts.append(_winner(axes, at(line[-1][1]), line[-1][2], entry))
    title = "Accuracy after every round"
    return Figure(
        "contest-rungs",
        title,
        "Each line is a network; it ends where the network was left out. Newcomers of a round begin there. Thick: the"
        " winner.",
        ("entry", "family", "stem", *_CHOICES, "round", "epochs", "accuracy", "kept", "won"),
        [
            (e.id, e.family, e.stem, e.shape, e.augment, e.lr, _number(leg), x, y, leg.kept, e is champion)
            for e in contest.entries
            for leg, x, y in lines[id(e)]
        ],
        axes.svg(title),
        tuple((style, clean(name, 40) or "family not recorded") for name, style in colours.items()),
    )


def _number(leg: Leg) -> int | None:
    return None if leg.rung is None else leg.rung + 1


def _hint(entry: Entry, leg: Leg, won: bool) -> str:
    rung = "" if leg.rung is None else f"round {leg.rung + 1}, "
    after = "the winner" if won else "went on" if leg.kept else "left out"
    total = f"{_epochs(leg):g} epochs: " if _epochs(leg) is not None else ""
    return f"{entry_in_words(entry)}\n{rung}{total}{percent(leg.accuracy)}, {after}"


def _winner(axes: Axes, x: float, y: float, entry: Entry) -> str:
    name = ", ".join(filter(None, (_family(entry), entry.shape)))
    place, right = axes.x(x), axes.x(x) > (axes.left + axes.right) / 2
    words = trim(f"winner: {clean(name, 60)}", 40)
    return text(place + (5 if right else -5), axes.y(y) - 9, words, "end" if right else "start", "strong halo")


# -- what every choice was worth --------------------------------------------------------------------------------------


def _worth(every: Sequence[Worth]) -> Figure | None:
    """A row per choice: the points between the best and the worst of it, with the interval and a line at zero."""
    known = [(w, w.points) for w in every if w.points is not None]
    if not known:
        return None
    left, right, step, tall = 8.0, WIDTH - 8.0, 44, 14
    low, high = charts.span([0.0, *(v for w, p in known for v in (p, w.low, w.high) if v is not None)])
    bottom = step * len(known)

    def at(v: float) -> float:
        return left + (v - low) / (high - low) * (right - left)

    parts = [text(at(v), bottom + 14, short(v), "middle") for v in charts.ticks(low, high, 4)]
    for i, (worth, points) in enumerate(known):
        y = step * i + tall
        clear, between = _clear(worth), _span(worth)
        over = f"{worth.best} over {worth.worst}" if worth.best and worth.worst else worth.best
        verdict = "" if clear or not between else "; no clear difference"
        hint = f"{worth.what}: {over}, {points:+.1f} points{f', 95 % interval {between}' if between else ''}{verdict}"
        for v in charts.ticks(low, high, 4):
            parts.append(f'<path class="{"axis" if v == 0 else "grid"}" d="M{at(v):.1f} {y + 5}v{step - tall - 7}"/>')
        middle = y + 5 + (step - tall - 7) / 2
        whole = worth.low is not None and worth.high is not None
        ends = charts.whisker(at(worth.low or 0.0), at(worth.high or 0.0), middle, 5) if whole else ""
        dot = f'<circle class="dot solid {"c0" if clear else "c5"}" cx="{at(points):.1f}" cy="{middle:g}" r="5"/>'
        name = text(4, y, trim(f"{worth.what}: {over}" if over else worth.what, 46), style="strong")
        value = text(WIDTH - 4, y, f"{points:+.1f}{f' ({between})' if between else ''}", "end")
        parts.append(f'<g{tip(hint)} tabindex="0">{name}{value}{ends}{dot}</g>')
    parts.append(text((left + right) / 2, bottom + 30, "points of accuracy", "middle"))
    title = "What each choice was worth"
    return Figure(
        "contest-worth",
        title,
        "Best less worst of each choice, between networks that differ in nothing else. Whiskers: the 95 % interval;"
        " where it includes 0 (grey) the choice made no clear difference.",
        ("choice", "best", "worst", "points", "low", "high"),
        [(w.what, w.best, w.worst, w.points, w.low, w.high) for w in every],
        charts.svg(parts, title, WIDTH, bottom + 36),
    )


# -- tables -----------------------------------------------------------------------------------------------------------


def _rungs_table(contest: Contest) -> str:
    """A row per round: what was asked, who was there, how it went."""
    about = {r.rung: r for r in contest.rungs}
    rows: list[tuple[Any, ...]] = []
    for rung in _rungs(contest):
        legs, facts = _legs(contest, rung), about.get(rung)
        lengths = [leg.epochs for leg in legs if leg.epochs is not None]
        ends = dict.fromkeys(f"{n:g}" for n in (min(lengths), max(lengths))) if lengths else {}
        seconds = sum(leg.seconds or 0.0 for leg in legs)
        rows.append(
            (
                rung + 1,
                clean(facts.asks) if facts is not None and facts.asks else None,
                " to ".join(ends) or None,
                facts.entries if facts is not None and facts.entries is not None else len(legs),
                facts.kept if facts is not None and facts.kept is not None else sum(leg.kept for leg in legs),
                percent(max((leg.accuracy or 0.0 for leg in legs), default=None)),
                duration(seconds) if seconds else None,
            )
        )
    if not rows:
        return ""
    head = ("round", "asked for", "epochs", "networks", "kept", "best accuracy", "time")
    return f"<h3>How each round went</h3>{grid(head, rows, 5, stack=True)}"


def _plan(plan: Plan) -> str:
    """How the budget of time was shared out, folded."""
    if not plan.entries:
        return ""
    rows = [
        (
            clean(row.label, 120),
            None if row.epoch is None else f"{row.epoch:.3g}",
            (None if row.epochs is None else f"{row.epochs:g}") if row.inside else "left out: too slow",
        )
        for row in plan.entries
    ]
    final = "" if plan.final_epochs is None else f" In the end it had {plan.final_epochs:g} epochs."
    words = "Every network had the same time, by its speed before the contest; the last column is the final training."
    return fold(
        "How the time was shared out",
        paragraph(words + final) + grid(("network", "seconds an epoch", "epochs"), rows, 2),
    )


def _reached(entry: Entry, contest: Contest) -> int | None:
    """The last rung where the entry was; one more for the winner."""
    last = max((leg.rung for leg in entry.rungs if leg.rung is not None), default=None)
    return last if last is None or entry is not contest.champion else last + 1


def _entries_table(contest: Contest) -> str:
    """A row per entry, the winner first; sortable. What all entries share is said once, under the table."""
    every, rungs = _best_first(contest), _rungs(contest)
    choices: dict[str, list[str | None]] = {
        "family": [_family(e) for e in every],
        "shape": [e.shape for e in every],
        "augmentation": [e.augment for e in every],
        "learning rate": [None if e.lr is None else f"{e.lr:g}" for e in every],
    }
    shared = {k: values[0] for k, values in choices.items() if len(every) > 1 and len(set(values)) == 1}
    shown = {k: values for k, values in choices.items() if k not in shared}
    head = (*shown, "reached", "parameters", "MACs", *(f"round {r + 1}, %" for r in rungs))
    body, keys = [], []
    for i, entry in enumerate(every):
        names = [clean(values[i], 60) if values[i] else None for values in shown.values()]
        exact = [None if (leg := entry.leg(r)) is None else leg.accuracy for r in rungs]
        reached = _reached(entry, contest)
        fate = "won" if entry is contest.champion else None if reached is None else f"round {reached + 1}"
        accuracies = [None if v is None else f"{v:.2f}" for v in exact]
        body.append((*names, fate, size(entry.params), size(entry.macs, "macs"), *accuracies))
        keys.append((*names, reached, entry.params, entry.macs, *exact))
    table = grid(head, body[:_ROWS], 2 + len(rungs), keys[:_ROWS], stack=True)
    rest = body[_ROWS:]
    if rest:
        table += fold(f"The other {len(rest):,}", grid(head, rest, 2 + len(rungs), keys[_ROWS:], stack=True))
    same = ", ".join(f"{k} {clean(value, 60)}" for k, value in shared.items() if value)
    champion = contest.champion
    best = f" The winner: {clean(arch_in_words(champion.arch), 400)}." if champion and champion.arch else ""
    words = f"{f'All of them: {same}.' if same else ''}{best}".strip()
    return f"<h3>Who took part</h3>{table}{soft(words) if words else ''}"
