"""Section 7: how to get it again, and what happened on the way."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping
from typing import Any

from tailorvit.report.facts import Facts, table
from tailorvit.report.figure import Figure
from tailorvit.report.parts import cell, clean, fold, grid, none, whole_text

_EVENTS = 300  # the page stays light; run.db has them all


def figures(facts: Facts) -> list[Figure]:
    """This section has no drawings."""
    return []


def again(facts: Facts) -> str:
    """Command, seed, data, versions and recipe; the events folded away."""
    info = dict(facts.info)
    command = info.pop("command", None)
    line = shlex.join(map(str, command)) if isinstance(command, list) else command
    text = f"<pre>{cell(line)}</pre>" if line else none("The command was not recorded.")
    versions = table(info.pop("versions", None))
    if "seed" in facts.result:
        info.setdefault("seed", facts.result["seed"])
    if facts.recipe:
        text += none(
            "The recipe below is complete, and the folder holds it as recipe.toml: given to tailorvit run, it repeats"
            " the run. On the same machine's CPU with the same versions the weights come out the same, bit for bit."
        )
    if info:
        text += grid(("fact", "value"), [(clean(k).replace("_", " "), _flat(v)) for k, v in info.items()])
    if versions:
        text += f"<h3>Versions</h3><p>{cell(', '.join(f'{k} {v}' for k, v in versions.items()))}</p>"
    lines = facts.recipe.count("\n")
    recipe = (
        fold(f"recipe.toml, {lines} lines", f"<pre>{whole_text(facts.recipe)}</pre>")
        if facts.recipe
        else none("The recipe is missing.")
    )
    return f"{text}<h3>Recipe</h3>{recipe}<h3>Events</h3>{_events(facts)}"


def _events(facts: Facts) -> str:
    """What happened besides: skipped images, rollbacks, resumes."""
    if not facts.events:
        return none("Nothing out of the ordinary.")
    kinds = Counter(clean(e.kind, 40) for e in facts.events)
    counts = ", ".join(f"{kind} {count:,}" for kind, count in kinds.most_common(20))
    older = len(facts.events) - _EVENTS
    note = f" Shown are the last {_EVENTS}; {older:,} older ones are in run.db." if older > 0 else ""
    body = [(e.time, e.kind, e.text) for e in facts.events[-_EVENTS:]]
    listed = grid(("time", "kind", "what"), body)
    return f"<p>{cell(counts)}.{note}</p>{fold(f'{len(body):,} events', listed)}"


def _flat(value: Any, depth: int = 0) -> Any:
    if depth > 3:
        return "…"
    if isinstance(value, Mapping):
        return ", ".join(f"{k}: {_flat(v, depth + 1)}" for k, v in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else value
