"""The first sentence of the page: what the user gets, how it compares, and what to do next."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import NamedTuple

from tailorvit.report.markup import Html, cell, clean, counted, percent, size
from tailorvit.report.reading import Facts
from tailorvit.report.result import difference_interval

_NAMES = {"vit": "ViT", "pit": "PiT", "swin": "Swin", "shunted": "Shunted"}


class Other(NamedTuple):
    """A network to compare with, and whether the test images tell the two apart."""

    name: str
    accuracy: float
    clear: bool


def lead(facts: Facts) -> str:
    """One sentence in a paragraph; nothing while there is no network."""
    found = facts.result.test_accuracy
    if not facts.finished or found is None or not facts.result.arch:
        return ""
    command = shlex.join(["tailorvit", "export", clean(facts.place or facts.folder, 1000), "--to", "onnx"])
    others = " and ".join(_compared(found, other) for other in _others(facts))
    words = f"You get {_network(facts)} that classifies {percent(found)} of the test images correctly"
    words += f", {others}" if others else ""
    return f'<p class="lead">{cell(words)}; to take it away, run {Html(f"<code>{cell(command)}</code>")}.</p>\n'


def _network(facts: Facts) -> str:
    family = facts.result.arch.get("family")
    name = f"{_NAMES.get(family, clean(family, 40))} network" if isinstance(family, str) and family else "network"
    first = f"{'the hand-designed' if facts.result.by_hand else 'a'} {name}"
    params = size(facts.result.params)
    words = f"{first} with {params} parameters" if params else first
    if facts.result.by_hand:
        return f"{words} (the search found nothing clearly better)"
    rivals, families = facts.result.contest.entries, {e.family for e in facts.result.contest.entries}
    among = f"{counted(len(rivals), 'network')} of {counted(len(families), 'family', 'families')}"
    return f"{words}, the winner among {among}," if facts.contest_only and len(rivals) > 1 else words


def _others(facts: Facts) -> Iterator[Other]:
    """The baseline, unless it is the network itself, and the best of the peers."""
    baseline, images, found = facts.result.baseline.test_accuracy, facts.test_images, facts.result.test_accuracy or 0.0
    if baseline is not None and not facts.result.by_hand:
        low, high = difference_interval(found, baseline, images) if images else (found - baseline, found - baseline)
        yield Other("the hand-designed baseline", baseline, not low <= 0 <= high)
    peers = [(peer, v) for peer in facts.result.peers if (v := peer.test_accuracy) is not None]
    if peers:
        peer, accuracy = max(peers, key=lambda row: row[1])
        over = ", over the limit" if peer.over else ""
        yield Other(f"{clean(peer.short, 60)} of timm{over}", accuracy, peer.gap.clear)


def _compared(found: float, other: Other) -> str:
    """``1.25 points more than the baseline (62.25 %)``, or that the images cannot tell them apart."""
    gap = found - other.accuracy
    shown = f"{other.name} ({percent(other.accuracy)})"
    if not other.clear or abs(gap) < 0.005:
        return f"about as many as {shown}"
    return f"{abs(gap):.2f} points {'more' if gap > 0 else 'less'} than {shown}"
