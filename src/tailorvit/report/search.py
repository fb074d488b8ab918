"""Section 3: the search: every trial against its cost, the generations, and where the winner comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from statistics import median
from typing import Any

from tailorvit.report import charts
from tailorvit.report.ancestry import ancestry, line_of
from tailorvit.report.facts import Facts, Trial, real, table, whole
from tailorvit.report.figure import Figure
from tailorvit.report.parts import (
    arch_in_words,
    cell,
    clean,
    data_block,
    fold,
    grid,
    metric_name,
    none,
    percent,
    size,
)

_BEST = 10
_FRONT = 200  # dots of the front with words; the line is always whole
_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def main_stage(facts: Facts) -> str | None:
    """The search proper, or else the last stage that evolved, or else the last one."""
    names = list(dict.fromkeys(t.stage for t in facts.trials))
    evolved = {t.stage for t in facts.trials if t.generation}
    if "search" in names or not names:
        return "search" if names else None
    return next((n for n in reversed(names) if n in evolved), names[-1])


def search(facts: Facts) -> str:
    """The trials drawn, the generations, the ancestry and the best as a table."""
    stage = main_stage(facts)
    if stage is None:
        return none("One network was given, so nothing was searched." if facts.given else "No trial has been recorded.")
    every = [t for t in facts.trials if t.stage == stage]
    cloud, *beside = [f.html() for f in figures(facts)] or [""]
    text = cloud + (f'<div class="pair">{"".join(beside)}</div>' if beside else "") + _filtered(facts)
    winner = _winner(every, facts.result)
    steps = line_of(winner, every) if winner is not None else []
    if len(steps) > 1:
        text += fold(f"The winner's line, {len(steps) - 1} steps back", grid(("trial", "what changed"), steps))
    ranked = sorted((t for t in every if t.merit is not None), key=lambda t: -(t.merit or 0.0))[:_BEST]
    if ranked:
        text += f"<h3>The best {len(ranked)} of {len(every):,}</h3>{_table(ranked, costs(every))}"
    return text + data_block("search-data", _data(facts, stage, winner))


def _filtered(facts: Facts) -> str:
    """What the pre-filter was asked, and whether it knew more than chance."""
    told = table(facts.result.get("prefilter"))
    if not told:
        return ""
    tau, first = real(told.get("tau")), real(told.get("tau_first"))
    fitted = bool(table(told.get("fit")))  # it learnt from the first population
    asked, evaluated = whole(told.get("asked")) or 0, whole(told.get("evaluated")) or 0
    words = [
        f"A pre-filter ({clean(told.get('name'), 40)}) looked at {asked:,} architectures, of which {evaluated:,} were"
        " evaluated."
    ]
    if first is not None:
        knew = "it helped" if told.get("helps") is True else "that is no more than chance gives, so it hardly helped"
        words.append(
            f"Kendall's tau-b between its answers and the accuracies was {first:+.2f} in the first population, "
            + ("each answer from a fit without it" if fitted else "which it did not choose")
            + f": {knew}."
        )
    rest = "what it chose" if fitted else "all that was evaluated"
    words += [f"Over {rest} it was {tau:+.2f}."] if tau is not None else []
    return f"<p>{cell(' '.join(words))}</p>"


def figures(facts: Facts) -> list[Figure]:
    """The drawings of this section."""
    stage = main_stage(facts)
    if stage is None:
        return []
    every = [t for t in facts.trials if t.stage == stage]
    winner = _winner(every, facts.result)
    tree = ancestry(winner, every) if winner is not None else None
    return [f for f in (_trials(facts, stage, every, winner), _generations(every), tree) if f is not None]


def costs(trials: Sequence[Trial]) -> list[str]:
    """The costs these trials know, parameters and MACs first."""
    named = [k for k in ("params", "macs") if any(t.cost(k) is not None for t in trials)]
    return named + sorted({k for t in trials for k in t.costs} - {"params", "macs"})


def merit_label(trials: Sequence[Trial]) -> str:
    """What the trials were judged by."""
    if any(t.accuracy is not None for t in trials):
        return "accuracy, %"
    proxy = next((clean(t.proxy, 30) for t in trials if t.proxy), "")
    return f"score ({proxy})" if proxy else "score"


def _winner(trials: Sequence[Trial], result: Mapping[str, Any]) -> Trial | None:
    wanted = table(result.get("arch"))
    return next((t for t in trials if t.arch == wanted), None)


def _said(trial: Trial, label: str) -> str:
    """A trial in a few lines, for the hover."""
    judged = percent(trial.accuracy) or (f"{label} {trial.score:.4g}" if trial.score is not None else "")
    sizes = [f"{size(v, m)} {clean(metric_name(m), 30)}" for m in costs([trial]) if (v := trial.cost(m)) is not None]
    return "\n".join(filter(None, (judged, ", ".join(sizes), clean(arch_in_words(trial.arch), 400))))


def _axis(facts: Facts, known: Sequence[str]) -> str:
    """The cost drawn first: the one with an upper limit, else parameters."""
    limits = table(facts.result.get("limits"))
    limited = [m for m in known if real(table(limits.get(m)).get("max")) is not None]
    return (limited or [*known, "params"])[0]


def _trials(facts: Facts, stage: str, every: Sequence[Trial], winner: Trial | None) -> Figure | None:
    metric, label = _axis(facts, costs(every)), merit_label(every)
    spots = [(t, (x, y)) for t in every if (x := t.cost(metric)) is not None and (y := t.merit) is not None]
    if not spots:
        return None
    # All sources in one order, so that a colour means the same here and after the script draws anew.
    groups: dict[str, list[charts.Point]] = {t.source: [] for t in facts.trials}
    for trial, point in spots:
        groups[trial.source].append(point)
    keys = zip(charts.legend([clean(s, 40) or "unnamed" for s in groups]), groups.values(), strict=True)
    best = charts.front([p for _, p in spots])
    by_point = {p: t for t, p in reversed(spots)}
    hinted = [(p, _said(by_point[p], label)) for p in best]
    chosen = next(((p, f"chosen\n{_said(t, label)}") for t, p in spots if t is winner), None)
    name = clean(metric_name(metric), 40)
    title = f"{'Score' if label.startswith('score') else 'Accuracy'} against {name}"
    drawing = charts.scatter(groups, title, name, label, hinted[:_FRONT], chosen, ' data-chart="search"')
    ring = " The ring is the network chosen." if chosen else ""
    known = costs(facts.trials)
    front = {id(by_point[p]) for p in best}
    rows = [
        (
            *(t.stage, t.source, t.generation, t.accuracy, t.score),
            *(t.cost(c) for c in known),
            *(arch_in_words(t.arch), id(t) in front, t is winner),
        )
        for t in facts.trials
    ]
    return Figure(
        "search-trials",
        title,
        f"{len(every):,} trials of the stage {clean(stage, 40)}; the line joins those no smaller one beats.{ring}"
        " Accuracies are with inherited weights on the search images."
        if not label.startswith("score")
        else f"{len(every):,} trials, scored without training; the line joins those no smaller one beats.{ring}",
        ("stage", "source", "generation", "accuracy", "score", *known, "architecture", "front", "chosen"),
        rows,
        drawing,
        tuple(key for key, points in keys if points),
        _controls(facts, stage, metric),
    )


def _controls(facts: Facts, stage: str, metric: str) -> str:
    def choose(name: str, label: str, options: Mapping[str, str], at: str) -> str:
        every = "".join(
            f'<option value="{escape(k)}"{" selected" if k == at else ""}>{escape(v)}</option>'
            for k, v in options.items()
        )
        return f'<label>{label} <select name="{name}" id="search-{name}">{every}</select></label>'

    stages = {str(i): clean(s, 40) for i, s in enumerate(dict.fromkeys(t.stage for t in facts.trials))}
    sources = {str(i): clean(s, 40) or "unnamed" for i, s in enumerate(dict.fromkeys(t.source for t in facts.trials))}
    known = costs(facts.trials)
    here = str(list(dict.fromkeys(t.stage for t in facts.trials)).index(stage))
    generations = [t.generation for t in facts.trials if t.generation is not None]
    low, high = (min(generations), max(generations)) if generations else (0, 0)
    span = "".join(
        f'<label>{word} <input type="number" name="{name}" id="search-{name}" min="{low}" max="{high}"'
        f' value="{v}"></label>'
        for name, word, v in (("from", "generation", low), ("to", "to", high))
        if low < high
    )
    return (
        '<div class="controls tool" data-controls="search">'
        + choose(
            "cost", "cost", {str(i): clean(metric_name(c), 40) for i, c in enumerate(known)}, str(known.index(metric))
        )
        + choose("stage", "stage", {**stages, "-1": "all stages"}, here)
        + choose("source", "source", {"-1": "all sources", **sources}, "-1")
        + f'{span}<output class="soft" aria-live="polite"></output></div>'
    )


def _data(facts: Facts, stage: str, winner: Trial | None) -> dict[str, Any]:
    """The trials for the page's script, packed: a gene is one character a block."""
    stages = list(dict.fromkeys(t.stage for t in facts.trials))
    sources = list(dict.fromkeys(t.source for t in facts.trials))
    known, genes = costs(facts.trials), _genes(facts.trials)
    at_stage, at_source = ({s: i for i, s in enumerate(names)} for names in (stages, sources))

    def packed(arch: Mapping[str, Any]) -> str:
        if genes is None:
            return clean(arch_in_words(arch), 200)
        return ".".join("".join([letters[v] for v in _values(arch.get(k))]) for k, letters in genes.items())

    rows = [
        [
            at_stage[t.stage],
            at_source[t.source],
            t.generation,
            None if t.merit is None else float(f"{t.merit:.7g}"),
            *((None if (c := t.cost(k)) is None else int(c) if c.is_integer() else float(f"{c:.5g}")) for k in known),
            packed(t.arch),
        ]
        for t in facts.trials
    ]
    return {
        "stages": [clean(s, 40) for s in stages],
        "sources": [clean(s, 40) or "unnamed" for s in sources],
        "costs": [[c, clean(metric_name(c), 40)] for c in map(str, known)],
        "merits": [merit_label([t for t in facts.trials if t.stage == s]) for s in stages],
        "genes": None if genes is None else [[clean(k, 30), [clean(v, 20) for v in g]] for k, g in genes.items()],
        "chosen": next((i for i, t in enumerate(facts.trials) if t is winner), -1),
        "rows": rows,
    }


def _values(value: Any) -> list[Any]:
    return [] if value is None else value if isinstance(value, list) else [value]


def _genes(trials: Sequence[Trial]) -> dict[str, dict[Any, str]] | None:
    """Every gene with a letter for each value it takes; None when a gene takes more than the alphabet can name."""
    found: dict[str, dict[Any, None]] = {}
    try:
        for trial in trials:
            for key, value in trial.arch.items():
                if key != "family":
                    found.setdefault(key, {}).update(dict.fromkeys(_values(value)))
    except TypeError:  # a damaged architecture: tables and lists have no letter
        return None
    if any(len(values) > len(_ALPHABET) for values in found.values()):
        return None
    return {key: dict(zip(values, _ALPHABET)) for key, values in found.items()}


def _generations(every: Sequence[Trial]) -> Figure | None:
    found: dict[int, list[float]] = {}
    for trial in every:
        if trial.generation is not None and trial.merit is not None:
            found.setdefault(trial.generation, []).append(trial.merit)
    if len(found) < 2:
        return None
    rows, so_far = [], float("-inf")
    for generation, merits in sorted(found.items()):
        so_far = max(so_far, *merits)
        rows.append((generation, len(merits), max(merits), median(merits), so_far))
    series = {
        name: [(float(row[0]), float(row[i])) for row in rows]
        for name, i in (("best of the generation", 2), ("median of the generation", 3), ("best so far", 4))
    }
    title = "Best and median per generation"
    return Figure(
        "search-generations",
        title,
        "What each generation reached; the best so far never falls.",
        ("generation", "trials", "best", "median", "best so far"),
        rows,
        charts.lines(series, title, "generation", merit_label(every)),
        charts.legend(list(series)),
    )


def _table(ranked: Sequence[Trial], known: Sequence[str]) -> str:
    label = merit_label(ranked)
    scored = label.startswith("score")
    head = ("architecture", "from", "generation", label if scored else "accuracy", *(metric_name(c) for c in known))
    body, keys = [], []
    for t in ranked:
        shown = f"{t.merit:.4g}" if scored and t.merit is not None else percent(t.merit)
        words = clean(arch_in_words(t.arch), 400)
        body.append((words, clean(t.source), t.generation, shown, *(size(t.cost(c), c) for c in known)))
        keys.append((words[:60], clean(t.source, 30), t.generation, t.merit, *(t.cost(c) for c in known)))
    return grid(head, body, len(head) - 2, keys)
