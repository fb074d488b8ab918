"""Which of the finished networks a run delivers: the best by the search images, compared in pairs, with its doubt.

Networks that so few images cannot tell apart are tied. A tie goes to the network that uses the budget, or to the
smallest one where the user prefers that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tailorvit.stats import Paired, paired_difference

Prefer = Literal["accuracy", "small"]
ALIKE = 0.9  # a network with this share of the largest one's size counts as large: accuracy decides between such


@dataclass(frozen=True, eq=False)
class Contender:
    """A finished network: what it uses of the budget, and which of the search images it classifies correctly."""

    name: str  # "found", "found 2", "baseline"
    used: float  # share of the upper limits, their mean; the parameters where there is no upper limit
    correct: NDArray[np.bool_]

    @property
    def accuracy(self) -> float:
        """Percent."""
        return 100 * int(self.correct.sum()) / max(len(self.correct), 1)

    @property
    def words(self) -> str:
        """Its name in a sentence."""
        known = {"found": "the network found", "baseline": "the hand-designed baseline"}
        known |= {"contest": "the network as the contest left it", "first blocks": "the first blocks"}
        return known.get(self.name) or self.name.replace("found", "found network")


@dataclass(frozen=True)
class Choice:
    """The network to deliver, those that cannot be told apart from the most accurate, and why it is this one."""

    chosen: str
    tied: tuple[str, ...]
    why: str
    comparison: tuple[dict[str, Any], ...]  # every pair: first less second, in points

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for a stage and for result.json."""
        rows = [dict(row) for row in self.comparison]
        return {"chosen": self.chosen, "tied": list(self.tied), "why": self.why, "comparison": rows}


def choose(contenders: Sequence[Contender], prefer: Prefer = "accuracy", limited: bool = True) -> Choice:
    """Compare all pairs, find those tied with the most accurate, and choose among them."""
    best = max(contenders, key=lambda c: (c.accuracy, c.used))
    tied = [c for c in contenders if c is best or not paired_difference(best.correct, c.correct).clear]
    if prefer == "small":
        chosen = min(tied, key=lambda c: (c.used, -c.accuracy))
    else:
        most = max(c.used for c in tied)
        chosen = max((c for c in tied if c.used >= ALIKE * most), key=lambda c: (c.accuracy, c.used))
    comparison = tuple(
        {"first": a.name, "second": b.name, **gap._asdict(), "clear": gap.clear, "images": len(a.correct)}
        for a, b in combinations(contenders, 2)
        for gap in (paired_difference(a.correct, b.correct),)
    )
    why = _why(contenders, tied, chosen, best, prefer, limited)
    return Choice(chosen.name, tuple(c.name for c in tied), why, comparison)


def _why(
    contenders: Sequence[Contender],
    tied: Sequence[Contender],
    chosen: Contender,
    best: Contender,
    prefer: Prefer,
    limited: bool,
) -> str:
    """One sentence."""
    images = f"{len(chosen.correct):,} search images"
    if len(contenders) == 1:
        return "No other network was trained to the end, so there was nothing to choose from."
    if len(tied) == 1:
        second = max((c for c in contenders if c is not best), key=lambda c: (c.accuracy, c.used))
        gap = paired_difference(best.correct, second.correct)
        return (
            f"{_capital(best.words)} is the most accurate on the {images} ({best.accuracy:.1f} %): "
            f"{gap.difference:.1f} points more than {second.words} ({_interval(gap)})."
        )
    if len({c.accuracy for c in tied}) == 1:
        doubt = f"all classify {best.accuracy:.1f} % correctly"
    elif len(tied) == 2:
        other = next(c for c in tied if c is not best)
        gap = paired_difference(best.correct, other.correct)
        doubt = f"{best.words} is {gap.difference:.1f} points more accurate than {other.words}, {_interval(gap)}"
    else:
        doubt = f"{min(c.accuracy for c in tied):.1f} to {best.accuracy:.1f} % correct"
    names = _listed([c.words for c in tied])
    return f"The {images} cannot tell {names} apart ({doubt}), so {_reason(tied, chosen, prefer, limited)} was taken."


def _reason(tied: Sequence[Contender], chosen: Contender, prefer: Prefer, limited: bool) -> str:
    """What decided among the tied."""
    if prefer == "small":
        return f"the smallest, {chosen.words},"
    rivals = [c.used for c in tied if c is not chosen and c.accuracy >= chosen.accuracy]
    if not rivals:
        return f"the most accurate, {chosen.words},"
    if not limited:
        return f"the larger, {chosen.words},"
    shares = f"{100 * chosen.used:.0f} % against {100 * max(rivals):.0f} %"
    return f"the one that uses more of the budget ({shares}), {chosen.words},"


def _interval(gap: Paired) -> str:
    return f"95 % interval {gap.low:+.1f} to {gap.high:+.1f}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"
