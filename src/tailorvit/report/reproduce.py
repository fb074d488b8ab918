"""Section 7: how to repeat the run, and the events during it."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping
from typing import Any

from tailorvit.report.charts import Figure
from tailorvit.report.fields import table
from tailorvit.report.markup import cell, clean, counted, fold, full_text, grid, soft
from tailorvit.report.reading import Facts

_EVENTS = 300  # the page stays small; run.db holds all events


def figures(facts: Facts) -> list[Figure]:
    """This section has no figures."""
    return []


def section(facts: Facts) -> str:
    """Command, seed, data, versions, recipe and events."""
    info = dict(facts.info)
    command = info.pop("command", None)
    line = shlex.join(map(str, command)) if isinstance(command, list) else command
    text = f"<pre>{cell(line)}</pre>" if line else soft("The command was not recorded.")
    versions = table(info.pop("versions", None))
    if facts.result.seed is not None:
        info.setdefault("seed", facts.result.seed)
    if facts.recipe and facts.task_name:
        text += soft(
            "The recipe below is complete; the command above gives it again. On a CPU of the same machine with the same"
            " versions the weights are identical to the bit."
        )
    elif facts.recipe:
        text += soft(
            "The recipe below is complete; the run folder holds it as recipe.toml. To repeat the run, pass it to"
            " tailorvit run. On a CPU of the same machine with the same versions the weights are identical to the bit."
        )
    if info:
        text += grid(("fact", "value"), [(clean(k).replace("_", " "), _flat(v)) for k, v in info.items()])
    if versions:
        text += f"<h3>Versions</h3><p>{cell(', '.join(f'{k} {v}' for k, v in versions.items()))}</p>"
    recipe = soft("The recipe is missing.")
    if facts.recipe:
        lines = facts.recipe.count("\n")
        recipe = fold(f"recipe.toml, {counted(lines, 'line')}", f"<pre>{full_text(facts.recipe)}</pre>")
    return f"{text}<h3>Recipe</h3>{recipe}<h3>Events</h3>{_events(facts)}"


def _events(facts: Facts) -> str:
    """Warnings, decisions, skipped images, resumes."""
    if not facts.events:
        return soft("No events were recorded.")
    kinds = Counter(clean(e.kind, 40) for e in facts.events)
    counts = ", ".join(f"{kind} {count:,}" for kind, count in kinds.most_common(20))
    older = len(facts.events) - _EVENTS
    note = f" The last {_EVENTS} are shown; {older:,} older ones are in run.db." if older > 0 else ""
    body = [(e.time, e.kind, e.text) for e in facts.events[-_EVENTS:]]
    return f"<p>{cell(counts)}.{note}</p>{fold(counted(len(body), 'event'), grid(('time', 'kind', 'event'), body))}"


def _flat(value: Any, depth: int = 0) -> Any:
    if depth > 3:
        return "…"
    if isinstance(value, Mapping):
        return ", ".join(f"{k}: {_flat(v, depth + 1)}" for k, v in value.items() if v is not None)
    return ", ".join(map(str, value)) if isinstance(value, list) else value
