"""The first sentence of the page: what the user gets, how it compares, and what to do next."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import NamedTuple

from tailorvit.report.markup import Html, cell, clean, counted, percent, size
from tailorvit.report.reading import Facts, listed, number
from tailorvit.report.result import difference_interval

_NAMES = {"vit": "ViT", "pit": "PiT", "swin": "Swin", "shunted": "Shunted"}


class Other(NamedTuple):
    """A network to compare with."""

    name: str
    accuracy: float


def lead(facts: Facts) -> str:
    """One sentence in a paragraph; nothing while there is no network."""
    found = facts.result.test_accuracy
    if not facts.finished or found is None or not facts.result.arch:
        return ""
    command = shlex.join(["tailorvit", "export", clean(facts.place or facts.folder, 1000), "--to", "onnx"])
    others = ", ".join(_compared(facts, found, other) for other in _others(facts))
    words = f"You get {_network(facts)} that classifies {percent(found)} of the test images correctly"
    words += f", {others}" if others else ""
    return f'<p class="lead">{cell(words)}; to take it away, run {Html(f"<code>{cell(command)}</code>")}.</p>\n'


def _network(facts: Facts) -> str:
    family = facts.result.arch.get("family")
    name = f"{_NAMES.get(family, clean(family, 40))} network" if isinstance(family, str) and family else "network"
    first = f"the hand-designed {name}" if _delivers_baseline(facts) else f"a {name}"
    params = size(facts.result.params)
    words = f"{first} with {params} parameters" if params else first
    rivals, families = facts.result.contest.entries, {e.family for e in facts.result.contest.entries}
    among = f"{counted(len(rivals), 'network')} of {counted(len(families), 'family', 'families')}"
    return f"{words}, the winner among {among}," if facts.contest_only and len(rivals) > 1 else words


def _delivers_baseline(facts: Facts) -> bool:
    """Whether the run hands out the hand-designed network because the search found nothing better."""
    return str(facts.result.chosen) == "baseline"


def _others(facts: Facts) -> Iterator[Other]:
    """The baseline, unless it is the network itself, and the best of the peers."""
    baseline = facts.result.baseline.test_accuracy
    if baseline is not None and not _delivers_baseline(facts):
        yield Other("the hand-designed baseline", baseline)
    rows = [dict(row) for row in listed(getattr(facts.result, "peers", None))]
    peers = [
        Other(clean(row.get("name"), 60), v) for row in rows if (v := number(row.get("test_accuracy"))) is not None
    ]
    if peers:
        yield max(peers, key=lambda peer: peer.accuracy)


def _compared(facts: Facts, found: float, other: Other) -> str:
    """``1.25 points more than the baseline (62.25 %)``, or that the images cannot tell them apart."""
    images, gap = facts.test_images, found - other.accuracy
    low, high = difference_interval(found, other.accuracy, images) if images else (gap, gap)
    shown = f"{other.name} ({percent(other.accuracy)})"
    if low <= 0 <= high:
        return f"about as many as {shown}"
    return f"{abs(gap):.2f} points {'more' if gap > 0 else 'less'} than {shown}"
