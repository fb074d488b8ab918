"""Search methods over one ask-evaluate-tell loop. SEARCHERS names them; plug-ins add to it."""

from __future__ import annotations

from tailorvit.registry import Registry
from tailorvit.search.base import Candidate, Searcher, SearchMethod, Trial, best_trial, merit, run_search

SEARCHERS: Registry[SearchMethod] = Registry(
    "searcher",
    "tailorvit.searchers",
    {
        "evolution": "tailorvit.search.evolution:EVOLUTION",
        "nsga2": "tailorvit.search.nsga2:NSGA2",
        "random": "tailorvit.search.random_search:RANDOM",
    },
)

__all__ = ["SEARCHERS", "Candidate", "SearchMethod", "Searcher", "Trial", "best_trial", "merit", "run_search"]
