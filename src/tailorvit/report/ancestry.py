"""Where the winner comes from: its parents and theirs, drawn by generation, with what changed at each step."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tailorvit.report import charts
from tailorvit.report.facts import Trial
from tailorvit.report.figure import Figure, tip
from tailorvit.report.parts import arch_in_words, clean

_DRAWN, _ROW = 60, 7  # nodes in all, nodes in one generation
_STEPS = 100  # steps of the winner's line worth listing
_CHANGES = 4


@dataclass(frozen=True)
class Node:
    """An ancestor: its architecture, its trial where one is known, and who its parents are."""

    key: str
    arch: Mapping[str, Any]
    trial: Trial | None
    level: int
    parents: tuple[str, ...]


def arch_key(arch: Mapping[str, Any]) -> str:
    """One spelling of an architecture."""
    return json.dumps(arch, sort_keys=True, default=str)


def changes(old: Mapping[str, Any], new: Mapping[str, Any], most: int = _CHANGES) -> str:
    """What differs, in words: ``embed 40 -> 48, heads of block 2: 3 -> 4``."""
    words = []
    for name in dict.fromkeys([*old, *new]):
        a, b = old.get(name), new.get(name)
        if a == b:
            continue
        if isinstance(a, list) and isinstance(b, list):
            words += [f"{name} of block {i}: {x} -> {y}" for i, (x, y) in enumerate(zip(a, b), 1) if x != y]
        else:
            words.append(f"{name} {a} -> {b}")
    left = len(words) - most
    return ", ".join(words[:most]) + (f" and {left} more" if left > 0 else "") if words else "nothing"


def family_tree(winner: Trial, trials: Sequence[Trial]) -> list[Node]:
    """The winner and all its ancestors, nearest first; each once, also in data that goes in circles."""
    if not winner.parents:
        return [Node(arch_key(winner.arch), winner.arch, winner, 0, ())]
    known = {arch_key(t.arch): t for t in reversed(trials)}
    found: dict[str, Node] = {}
    edge: list[tuple[Mapping[str, Any], int]] = [(winner.arch, 0)]
    while edge:
        after: list[tuple[Mapping[str, Any], int]] = []
        for arch, level in edge:
            key = arch_key(arch)
            if key in found:
                continue
            trial = known.get(key)
            parents = trial.parents if trial is not None else ()
            found[key] = Node(key, arch, trial, level, tuple(dict.fromkeys(map(arch_key, parents))))
            after += [(p, level + 1) for p in parents]
        edge = after
    return list(found.values())


def line_of(winner: Trial, trials: Sequence[Trial]) -> list[tuple[str, str]]:
    """The winner back through the better parent of each: what each is, and what changed from that parent."""
    nodes = {n.key: n for n in family_tree(winner, trials)}
    rows: list[tuple[str, str]] = []
    node, seen = nodes[arch_key(winner.arch)], set[str]()
    while len(rows) < _STEPS:
        seen.add(node.key)
        before = [nodes[k] for k in node.parents if k in nodes and k not in seen]
        best = max(before, key=_merit, default=None)
        what = "drawn at random" if best is None else f"from the better parent: {changes(best.arch, node.arch)}"
        rows.append((_said(node), clean(what, 400)))
        if best is None:
            break
        node = best
    return rows


def _merit(node: Node) -> float:
    return node.trial.merit if node.trial is not None and node.trial.merit is not None else float("-inf")


def _generation(node: Node) -> int | None:
    return node.trial.generation if node.trial is not None else None


def _said(node: Node) -> str:
    generation = _generation(node)
    when = "" if generation is None else f"generation {generation}, "
    shown = f"{_merit(node):.4g}" if _merit(node) > float("-inf") else "not evaluated here"
    source = clean(node.trial.source, 30) if node.trial is not None else "unknown"
    return f"{when}{source}, {shown}: {clean(arch_in_words(node.arch), 300)}"


def ancestry(winner: Trial, trials: Sequence[Trial]) -> Figure | None:
    """The tree: a row per generation, the winner on top."""
    nodes = family_tree(winner, trials)
    if len(nodes) < 2:
        return None
    # Rows by generation; parents nobody recorded go below all.
    rows: dict[int, list[Node]] = {}
    last = min((g for n in nodes if (g := _generation(n)) is not None), default=0) - 1
    for node in nodes[:_DRAWN]:
        generation = _generation(node)
        row = rows.setdefault(last if generation is None else generation, [])
        if len(row) < _ROW:
            row.append(node)
    order = sorted(rows, reverse=True)
    left, high, wide, tall = 58.0, 50.0, 46.0, 20.0
    places: dict[str, tuple[float, float]] = {}
    for r, generation in enumerate(order):
        gap = (charts.WIDTH - left) / len(rows[generation])
        for i, node in enumerate(rows[generation]):
            places[node.key] = (left + gap * (i + 0.5), 16 + high * r)
    parts = [
        f'<path class="line thin c5" d="M{x:.1f} {y + tall / 2:.1f}L{places[p][0]:.1f} {places[p][1] - tall / 2:.1f}"/>'
        for node in nodes
        if node.key in places
        for p in node.parents
        if p in places
        for x, y in [places[node.key]]
    ]
    for r, generation in enumerate(order):
        name = "not known" if generation == last else f"gen. {generation}"
        parts.append(charts.text(2, 20 + high * r, name))
        for node in rows[generation]:
            x, y = places[node.key]
            style = "c3" if node.level == 0 else "c1" if len(node.parents) > 1 else "c0" if node.parents else "c5"
            shown = f"{_merit(node):.4g}" if _merit(node) > float("-inf") else "?"
            parts.append(
                f'<g{tip(_said(node))} tabindex="0"><rect class="node {style}" x="{x - wide / 2:.1f}"'
                f' y="{y - tall / 2:.1f}" width="{wide:g}" height="{tall:g}" rx="4"/>'
                f"{charts.text(x, y + 4, shown, 'middle', 'strong')}</g>"
            )
    by_key = {n.key: n for n in nodes}
    numbers = [
        (
            n.level,
            _generation(n),
            n.trial.source if n.trial else None,
            n.trial.merit if n.trial else None,
            arch_in_words(n.arch),
            arch_in_words(by_key[p].arch) if p else None,
            changes(by_key[p].arch, n.arch, 1000) if p else None,
        )
        for n in nodes
        for p in (n.parents or ("",))
    ]
    lost = len(nodes) - len(places)
    left_out = f" {lost:,} further ancestors are in the numbers only." if lost else ""
    title = "Ancestry of the winner"
    return Figure(
        "search-ancestry",
        title,
        f"The winner on top, its parents below, a row per generation; the number is what the search went by.{left_out}",
        ("steps back", "generation", "source", "merit", "architecture", "parent", "changed from that parent"),
        numbers,
        charts.svg(parts, title, charts.WIDTH, 16 + high * (len(order) - 1) + tall),
        (("c3", "the winner"), ("c1", "crossed"), ("c0", "mutated"), ("c5", "drawn at random")),
    )
