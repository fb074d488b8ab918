"""Section 3: the search: every trial against its cost, the generations, the best trials and the trained candidates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from statistics import median
from typing import Any

from tailorvit.report import charts
from tailorvit.report.charts import Figure, figures_of
from tailorvit.report.markup import (
    arch_in_words,
    clean,
    data_block,
    grid,
    metric_name,
    pair,
    percent,
    size,
    soft,
    stage_name,
)
from tailorvit.report.reading import CONTEST, Facts, Network, Trial
from tailorvit.report.tailored_facts import FIRST

_BEST = 10
_FRONT = 200  # dots of the front with hints; the line is always whole
_CANDIDATES = 40  # candidates drawn; the numbers hold all
_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def there(facts: Facts) -> bool:
    """Whether there was a search after the contest."""
    searched = any(t.stage.partition("-")[0] != CONTEST for t in facts.trials)
    return searched or not facts.contest_only or not facts.finished


def _without_contest(facts: Facts) -> Facts:
    """The trials of a contest have a section of their own as soon as it is over."""
    if not facts.result.contest.entries:
        return facts
    return replace(facts, trials=tuple(t for t in facts.trials if t.stage.partition("-")[0] != CONTEST))


def main_stage(facts: Facts) -> str | None:
    """The search itself, or else the last stage with generations, or else the last one."""
    names = list(dict.fromkeys(t.stage for t in facts.trials))
    evolved = {t.stage for t in facts.trials if t.generation}
    if "search" in names or not names:
        return "search" if names else None
    return next((n for n in reversed(names) if n in evolved), names[-1])


def section(facts: Facts) -> str:
    """The trials as a figure and the best of them as a table."""
    facts = _without_contest(facts)
    stage = main_stage(facts)
    drawn = {f.key: f.html() for f in figures(facts)}
    if stage is None:
        words = "No trial has been recorded." if facts.searched else "One network was given, so nothing was searched."
        words = "The contest chose the network; nothing was searched after it." if facts.contest_only else words
        return soft(words) + drawn.get("candidates", "")
    every = [t for t in facts.trials if t.stage == stage]
    text = drawn.get("search-trials", "")
    text += pair(drawn.get("search-generations", ""), drawn.get("candidates", ""))
    ranked = sorted((t for t in every if t.merit is not None), key=lambda t: -(t.merit or 0.0))[:_BEST]
    if ranked:
        text += f"<h3>The best {len(ranked)} of {len(every):,}</h3>{_best_table(ranked, costs(every))}"
    return text + data_block("search-data", _script_data(facts, _winner(every, facts)))


def figures(facts: Facts) -> list[Figure]:
    """The figures of this section."""
    facts = _without_contest(facts)
    stage = main_stage(facts)
    every = [t for t in facts.trials if t.stage == stage]
    trials = _trials(facts, stage, every) if stage is not None else None
    return figures_of(trials, _generations(every), _candidates(facts))


def costs(trials: Sequence[Trial]) -> list[str]:
    """The costs known of these trials, parameters and MACs first."""
    named = [k for k in ("params", "macs") if any(t.cost(k) is not None for t in trials)]
    return named + sorted({k for t in trials for k in t.costs} - {"params", "macs"})


def merit_label(trials: Sequence[Trial]) -> str:
    """What the search maximised."""
    if any(t.accuracy is not None for t in trials):
        return "accuracy, %"
    proxy = next((clean(t.proxy, 30) for t in trials if t.proxy), "")
    return f"score ({proxy})" if proxy else "score"


def _winner(trials: Sequence[Trial], facts: Facts) -> Trial | None:
    return next((t for t in trials if t.arch == facts.result.arch), None)


def _hint(trial: Trial, label: str) -> str:
    """A trial in a few lines."""
    merit = percent(trial.accuracy) or (f"{label} {trial.score:.4g}" if trial.score is not None else "")
    sizes = [f"{size(v, m)} {clean(metric_name(m), 30)}" for m in costs([trial]) if (v := trial.cost(m)) is not None]
    return "\n".join(filter(None, (merit, ", ".join(sizes), clean(arch_in_words(trial.arch), 400))))


def _axis(facts: Facts, known: Sequence[str]) -> str:
    """The cost drawn first: the one with an upper limit, else parameters."""
    limited = [m for m in known if facts.result.limit(m).max is not None]
    return (limited or [*known, "params"])[0]


def _trials(facts: Facts, stage: str, every: Sequence[Trial]) -> Figure | None:
    metric, label, winner = _axis(facts, costs(every)), merit_label(every), _winner(every, facts)
    spots = [(t, (x, y)) for t in every if (x := t.cost(metric)) is not None and (y := t.merit) is not None]
    if not spots:
        return None
    # All sources in one order, so that a colour means the same here and after the script has drawn.
    groups: dict[str, list[charts.Point]] = {t.source: [] for t in facts.trials}
    for trial, point in spots:
        groups[trial.source].append(point)
    keys = zip(charts.legend([clean(s, 40) or "unnamed" for s in groups]), groups.values(), strict=True)
    best = charts.front([p for _, p in spots])
    by_point = {p: t for t, p in reversed(spots)}
    hints = [(p, _hint(by_point[p], label)) for p in best]
    chosen = next(((p, f"chosen\n{_hint(t, label)}") for t, p in spots if t is winner), None)
    name, by_score = clean(metric_name(metric), 40), label.startswith("score")
    title = f"{'Score' if by_score else 'Accuracy'} against {name}"
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
    how = (
        "scored without training"
        if by_score
        else f"of the stage {clean(stage_name(stage), 60)}, with inherited weights on the search split"
    )
    ring = " Ring: the network chosen." if chosen else ""
    crowd = charts.crowded(groups.values())
    return Figure(
        "search-trials",
        title,
        f"{len(every):,} trials {how}. Line: the Pareto front; no smaller network is better.{ring}{crowd}",
        ("stage", "source", "generation", "accuracy", "score", *known, "architecture", "front", "chosen"),
        rows,
        charts.scatter(groups, title, name, label, hints[:_FRONT], chosen, ' data-chart="search"'),
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

    names = list(dict.fromkeys(t.stage for t in facts.trials))
    stages = {str(i): clean(stage_name(s), 40) for i, s in enumerate(names)}
    sources = {str(i): clean(s, 40) or "unnamed" for i, s in enumerate(dict.fromkeys(t.source for t in facts.trials))}
    known = costs(facts.trials)
    generations = [t.generation for t in facts.trials if t.generation is not None]
    low, high = (min(generations), max(generations)) if generations else (0, 0)
    span = "".join(
        f'<label>{word} <input type="number" name="{name}" id="search-{name}" min="{low}" max="{high}"'
        f' value="{v}"></label>'
        for name, word, v in (("from", "generation", low), ("to", "to", high))
        if low < high
    )
    named = {str(i): clean(metric_name(c), 40) for i, c in enumerate(known)}
    return (
        '<div class="controls tool" data-controls="search">'
        + choose("cost", "cost", named, str(known.index(metric)))
        + choose("stage", "stage", {**stages, "-1": "all stages"}, str(names.index(stage)))
        + choose("source", "source", {"-1": "all sources", **sources}, "-1")
        + f'{span}<output class="soft" aria-live="polite"></output></div>'
    )


def _script_data(facts: Facts, winner: Trial | None) -> dict[str, Any]:
    """The trials for the page's script; an architecture takes one character per value."""
    stages = list(dict.fromkeys(t.stage for t in facts.trials))
    sources = list(dict.fromkeys(t.source for t in facts.trials))
    known, genes = costs(facts.trials), _letters(facts.trials)
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
        "stages": [clean(stage_name(s), 40) for s in stages],
        "sources": [clean(s, 40) or "unnamed" for s in sources],
        "costs": [[c, clean(metric_name(c), 40)] for c in map(str, known)],
        "merits": [merit_label([t for t in facts.trials if t.stage == s]) for s in stages],
        "genes": None if genes is None else [[clean(k, 30), [clean(v, 20) for v in g]] for k, g in genes.items()],
        "chosen": next((i for i, t in enumerate(facts.trials) if t is winner), -1),
        "rows": rows,
    }


def _values(value: Any) -> list[Any]:
    return [] if value is None else value if isinstance(value, list) else [value]


def _letters(trials: Sequence[Trial]) -> dict[str, dict[Any, str]] | None:
    """Every dimension with a letter for each of its values; None where one has more values than letters."""
    found: dict[str, dict[Any, None]] = {}
    try:
        for trial in trials:
            for key, value in trial.arch.items():
                if key != "family":
                    found.setdefault(key, {}).update(dict.fromkeys(_values(value)))
    except TypeError:  # a damaged architecture: objects and lists have no letter
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
    title = "Best and median of every generation"
    return Figure(
        "search-generations",
        title,
        "The best so far never falls.",
        ("generation", "trials", "best", "median", "best so far"),
        rows,
        charts.lines(series, title, "generation", merit_label(every)),
        charts.legend(list(series)),
    )


def _label(candidate: Network, place: int) -> str | int:
    return candidate.name if candidate.name in ("baseline", "contest", FIRST) else place


def _candidates(facts: Facts) -> Figure | None:
    """The networks that were trained at the end: accuracy before and after, a row each."""
    found, how = facts.result.candidates, facts.result.final
    after = {"finetune": "fine-tuned", "retrain": "trained from scratch"}.get(how, "finished")
    before = "in the contest" if facts.contest_only else "before training" if facts.tailored else "inherited weights"
    kinds = (before, after, f"{after}, test images")
    values = [(c.search_accuracy, c.final_search_accuracy, c.test_accuracy) for c in found]
    if len(found) < 2:
        return None
    rows = []
    for i, (candidate, row) in enumerate(zip(found[:_CANDIDATES], values), 1):
        words = clean(arch_in_words(candidate.arch), 400)
        marks = [
            charts.Mark(value, f"c{k}", f"{kind}: {value:.2f} %; {words}")
            for k, (kind, value) in enumerate(zip(kinds, row, strict=True))
            if value is not None
        ]
        rows.append((f"{_label(candidate, i)}{'*' if candidate.chosen else ''}", marks))
    title = "The candidates before and after their training"
    more = f" {_CANDIDATES} of {len(found)} are drawn." if len(found) > _CANDIDATES else ""
    return Figure(
        "candidates",
        title,
        f"The best networks of the search and the {facts.result.rival} were trained; * is the one delivered, chosen"
        f" by the search images. If the order changes much, train more candidates (final.candidates).{more}",
        ("candidate", "architecture", "parameters", "inherited", "after training", "test", "chosen"),
        [
            (_label(c, i), arch_in_words(c.arch), c.params, *row, c.chosen)
            for i, (c, row) in enumerate(zip(found, values, strict=True), 1)
        ],
        charts.dot_rows(rows, title, "accuracy, %", 16),
        tuple((f"c{k}", kind) for k, kind in enumerate(kinds) if any(row[k] is not None for row in values)),
    )


def _best_table(ranked: Sequence[Trial], known: Sequence[str]) -> str:
    label = merit_label(ranked)
    scored = label.startswith("score")
    head = (label if scored else "accuracy", *(metric_name(c) for c in known), "generation", "source", "architecture")
    body, keys = [], []
    for t in ranked:
        shown = f"{t.merit:.4g}" if scored and t.merit is not None else percent(t.merit)
        words = clean(arch_in_words(t.arch), 400)
        body.append((shown, *(size(t.cost(c), c) for c in known), t.generation, clean(t.source), words))
        keys.append((t.merit, *(t.cost(c) for c in known), t.generation, clean(t.source, 30), words[:60]))
    return grid(head, body, -(len(head) - 2), keys, stack=True)
