"""SEARCHERS: the explicit table of search methods over one ask-evaluate-tell loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tailorvit.errors import unknown
from tailorvit.search.base import Candidate, Searcher, Trial, best_trial, run_search
from tailorvit.search.evolution import PRESETS, Evolution, EvolutionSettings
from tailorvit.search.nsga2 import Nsga2, Nsga2Settings
from tailorvit.search.random_search import RandomSearch, RandomSettings

__all__ = [
    "PRESETS",
    "SEARCHERS",
    "Candidate",
    "Entry",
    "EvolutionSettings",
    "Nsga2Settings",
    "RandomSettings",
    "Searcher",
    "Trial",
    "best_trial",
    "run_search",
    "searcher",
]


@dataclass(frozen=True)
class Entry:
    """The record of a search method."""

    name: str
    summary: str
    factory: Callable[..., Searcher]  # (space, legal, seed, settings) -> searcher
    settings: type[Any]  # the dataclass its settings are
    finds: Literal["best", "front"]  # one most accurate network, or a front of accuracy against a cost
    tiny: Mapping[str, int]  # settings that make it a matter of seconds, for the tiny form of any recipe


SEARCHERS: Mapping[str, Entry] = {
    e.name: e
    for e in (
        Entry(
            "evolution",
            "cross and mutate the best (AutoFormer, S3, S4)",
            Evolution,
            EvolutionSettings,
            "best",
            {"population": 6, "parents": 3, "generations": 2, "crossover": 2, "mutation": 2},
        ),
        Entry(
            "nsga2",
            "a front of accuracy against a cost (NSGA-II)",
            Nsga2,
            Nsga2Settings,
            "front",
            {"population": 6, "generations": 2},
        ),
        Entry(
            "random",
            "different random networks, the baseline",
            RandomSearch,
            RandomSettings,
            "best",
            {"budget": 8, "batch": 4},
        ),
    )
}


def searcher(name: str) -> Entry:
    """The search method of that name."""
    if name not in SEARCHERS:
        raise unknown("searcher", name, SEARCHERS)
    return SEARCHERS[name]
