"""The seven sections of the page, each a function from facts to HTML."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from tailorvit.report import charts
from tailorvit.report.facts import Facts, Trial, real, rows, table
from tailorvit.report.parts import (
    Html,
    arch_in_words,
    cell,
    duration,
    figure,
    grid,
    limits_in_words,
    many,
    percent,
    size,
)

_EVENTS = 300  # the page stays light; run.db has them all
_LEGAL = 5


def _none(what: str) -> str:
    return f'<p class="soft">{what}</p>'


def answer(facts: Facts) -> str:
    """One plain paragraph, then the numbers."""
    result, baseline = facts.result, table(facts.result.get("baseline"))
    if not result:
        best = max((t.accuracy for t in facts.trials if t.accuracy is not None), default=None)
        so_far = (
            f" The best of {len(facts.trials):,} trials so far reached {percent(best)}." if best is not None else ""
        )
        return f"<p>There is no result yet.{so_far}</p>"
    asked = limits_in_words(result.get("limits"))
    words = [f"Asked was the most accurate network {f'with {asked}' if asked else 'without a limit'}."]
    words.append(
        f"The search ({result.get('method', 'method not recorded')}) found one with"
        f" {size(result.get('params')) or 'an unknown number of'} parameters and"
        f" {size(result.get('macs')) or 'an unknown number of'} MACs."
    )
    found, hand = real(result.get("test_accuracy")), real(baseline.get("test_accuracy"))
    if found is not None:
        words.append(f"It is right on {percent(found)} of the test images.")
    if found is not None and hand is not None:
        gap = found - hand
        than = "the same as" if abs(gap) < 0.005 else f"{abs(gap):.2f} points {'more' if gap > 0 else 'less'} than"
        words.append(
            f"That is {than} the hand-designed baseline ({size(baseline.get('params')) or '?'} parameters)"
            " in this one run with one seed."
        )
    else:
        words.append("Without both test accuracies it cannot be compared with a baseline.")
    spent = facts.seconds or {k: s for k, v in table(result.get("seconds")).items() if (s := real(v)) is not None}
    if spent:
        words.append(f"The work took {duration(sum(spent.values()))}.")
    lines = [
        ("Parameters", size(result.get("params")), size(baseline.get("params"))),
        ("MACs (papers' FLOPs)", size(result.get("macs")), size(baseline.get("macs"))),
        ("Accuracy on the search images", percent(result.get("search_accuracy")), None),
        ("Accuracy on the test images", percent(found), percent(hand)),
    ]
    times = (
        grid(("stage", "time"), [(k, duration(v)) for k, v in spent.items()], 1) if spent else _none("Not recorded.")
    )
    return f"<p>{cell(' '.join(words))}</p>{grid(('', 'found', 'baseline'), lines, 2)}<h3>Time</h3>{times}"


def path(facts: Facts) -> str:
    """The intervals of every dimension, the decisions, the slopes behind them."""
    if not facts.spaces:
        return _none("No space has been recorded.")
    keys = list(dict.fromkeys(k for s in facts.spaces for k in s.dims))
    drawn = [charts.intervals(k, [(s.t, s.dims.get(k, ())) for s in facts.spaces]) for k in keys]
    steps = [
        (
            s.t,
            many(s.count_log10),
            size(s.params),
            size(s.macs),
            "repair" if s.repair else "",
        )
        for s in facts.spaces
    ]
    text = f'<div class="small">{"".join(drawn)}</div>'
    text += grid(("step", "architectures", "largest, parameters", "largest, MACs", ""), steps, 4)
    decided = {d.t: d for d in facts.decisions}
    for t in sorted({s.t for s in facts.slopes} | set(decided)):
        text += f"<h3>Step {t}</h3>"
        if t in decided:
            plain = "The search of the space stopped." if decided[t].stop else f"Moved: {decided[t].gamma}."
            text += f"<p>{cell(decided[t].sentence or plain)}</p>"
        here = [s for s in facts.slopes if s.t == t and s.z_step is not None]
        bars = [(s.dim, s.z_step, s.se_step) for s in here if s.z_step is not None]
        pairs = max((s.pairs for s in here if s.pairs is not None), default=None)
        if bars:
            text += charts.slopes(bars, f"Slopes at step {t}")
            count = f", from {pairs} pairs each" if pairs else ""
            text += _none(f"Points of accuracy per step of a dimension, with one standard error{count}.")
        if t in decided and decided[t].legal:
            best = sorted(decided[t].legal, key=lambda d: -2 if d.cosine is None else d.cosine, reverse=True)[:_LEGAL]
            body = [(d.gamma, size(d.size), figure(d.cosine, "+.3f"), figure(d.gain, "+.3f")) for d in best]
            legal = grid(("move", "size after", "cosine", "predicted gain"), body, 3)
            text += f"<details><summary>Best of {len(decided[t].legal)} legal moves</summary>{legal}</details>"
    return text


def trials(facts: Facts) -> str:
    """Accuracy against size per stage; the search itself first, what served the slopes folded away."""
    stages: dict[str, list[Trial]] = {}
    for trial in facts.trials:
        stages.setdefault(trial.stage, []).append(trial)
    if not stages:
        return _none("No trial has been recorded.")
    evolved = [name for name, each in stages.items() if any(t.generation is not None for t in each)]
    main = (evolved or list(stages))[-1]
    text = f"<h3>{cell(main)}</h3>{_stage(stages[main], facts.result)}"
    for name, each in stages.items():
        if name != main:
            inner = _stage(each, {}, most=300)
            text += f"<details><summary>{cell(name)}: {len(each):,} trials</summary>{inner}</details>"
    return text


def _stage(each: Sequence[Trial], result: Mapping[str, Any], most: int = 2000) -> str:
    points = [(t.params, t.accuracy) for t in each if t.params is not None and t.accuracy is not None]
    params, accuracy = real(result.get("params")), real(result.get("search_accuracy"))
    chosen = (params, accuracy) if params is not None and accuracy is not None else None
    text, drawn = charts.scatter(points, "Accuracy against parameters", "parameters", "accuracy, %", chosen, most)
    if points:
        thinned = f" Drawn are {drawn:,} of {len(points):,} dots; the front is complete." if drawn < len(points) else ""
        ring = " The ring is the network chosen." if chosen else ""
        text += _none(f"{len(each):,} trials; the line joins those no smaller one beats.{ring}{thinned}")
    generations: dict[int, list[float]] = {}
    for t in each:
        if t.generation is not None and t.accuracy is not None:
            generations.setdefault(t.generation, []).append(t.accuracy)
    if len(generations) > 1:
        series = {
            "best": [(float(g), max(a)) for g, a in sorted(generations.items())],
            "median": [(float(g), median(a)) for g, a in sorted(generations.items())],
        }
        text += charts.lines(series, "Best and median per generation", "generation", "accuracy, %")
    best = sorted((t for t in each if t.accuracy is not None), key=lambda t: -(t.accuracy or 0))[:10]
    body = [(arch_in_words(t.arch), t.source, percent(t.accuracy), size(t.params), size(t.macs)) for t in best]
    table_text = grid(("architecture", "from", "accuracy", "parameters", "MACs"), body, 3)
    return text + f"<details><summary>The best {len(best)}</summary>{table_text}</details>"


def network(facts: Facts) -> str:
    """The chosen architecture as a table per stage, and where its parameters and MACs lie."""
    arch = table(facts.result.get("arch"))
    if not arch:
        return _none("No network has been chosen yet.")
    single = {k: v for k, v in arch.items() if not isinstance(v, list)}
    text = grid(tuple(single), [tuple(single.values())])
    stages: dict[str, dict[str, list[Any]]] = {}
    for key, value in arch.items():
        if isinstance(value, list):
            name, _, stage = key.partition(".")
            stages.setdefault(stage, {})[name] = value
    for stage, columns in sorted(stages.items()):
        depth = max(map(len, columns.values()))
        highest = {k: max((real(v) or 0 for v in vs), default=0) for k, vs in columns.items()}
        body = [
            (i + 1, *(_bar(vs[i], highest[k]) if i < len(vs) else None for k, vs in columns.items()))
            for i in range(depth)
        ]
        text += (f"<h3>Stage {cell(stage)}</h3>" if stage else "<h3>Blocks</h3>") + grid(("block", *columns), body)
    parts = [table(p) for p in rows(facts.result.get("parts"))]
    if parts:
        counts = [real(p.get("params")) or 0 for p in parts]
        shares = [f"{100 * count / (sum(counts) or 1):.1f} %" for count in counts]
        lines = [
            (p.get("part"), size(p.get("params")), size(p.get("macs")), share)
            for p, share in zip(parts, shares, strict=True)
        ]
        text += "<h3>Parts</h3>" + grid(("part", "parameters", "MACs", "of all parameters"), lines, 3)
    return text


def _bar(value: Any, highest: float) -> Html:
    width = 4 * max(real(value) or 0, 0) / highest if highest else 0
    return Html(f'<i style="width:{width:.2f}rem"></i>{cell(value)}')


def training(facts: Facts) -> str:
    """Loss, accuracy and speed over epochs, one line per stage."""
    if not facts.epochs:
        return _none("No epoch has been recorded.")
    names = list(dict.fromkeys(e.stage for e in facts.epochs))
    text = ""
    for field, label in (
        ("loss", "loss"),
        ("accuracy", "accuracy, %"),
        ("lr", "learning rate"),
        ("speed", "images a second"),
    ):
        series = {
            name: sorted(
                (float(e.epoch), v) for e in facts.epochs if e.stage == name and (v := getattr(e, field)) is not None
            )
            for name in names
        }
        drawing = charts.lines(series, f"Training: {label}", "epoch", label)
        if drawing and field in ("lr", "speed"):
            drawing = f"<details><summary>{label}</summary>{drawing}</details>"
        text += drawing
    return text or _none("No epoch has a finite loss or accuracy.")


def events(facts: Facts) -> str:
    """What happened besides: skipped images, rollbacks, resumes."""
    if not facts.events:
        return _none("Nothing out of the ordinary.")
    counts = ", ".join(f"{kind} {count:,}" for kind, count in Counter(e.kind for e in facts.events).items())
    older = len(facts.events) - _EVENTS
    note = f" Shown are the last {_EVENTS}; {older:,} older ones are in run.db." if older > 0 else ""
    body = [(e.time, e.kind, e.text) for e in facts.events[-_EVENTS:]]
    return f"<p>{cell(counts)}.{note}</p>{grid(('time', 'kind', 'what'), body)}"


def again(facts: Facts) -> str:
    """Command, versions, seed, data and recipe."""
    info = dict(facts.info)
    command = info.pop("command", None)
    line = shlex.join(map(str, command)) if isinstance(command, list) else command
    text = f"<pre>{cell(line)}</pre>" if line else _none("The command was not recorded.")
    versions = table(info.pop("versions", None))
    if "seed" in facts.result:
        info.setdefault("seed", facts.result["seed"])
    if info:
        text += grid(("fact", "value"), [(k.replace("_", " "), _flat(v)) for k, v in info.items()])
    if versions:
        text += "<h3>Versions</h3>" + grid(("package", "version"), list(versions.items()))
    recipe = f"<pre>{cell(facts.recipe)}</pre>" if facts.recipe else _none("The recipe is missing.")
    return f"{text}<h3>Recipe</h3>{recipe}"


def _flat(value: Any) -> Any:
    if isinstance(value, Mapping):
        return ", ".join(f"{k}: {_flat(v)}" for k, v in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else value
