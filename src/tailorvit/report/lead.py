"""The first sentence of the page: what the user gets, how it compares, and what to do next."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import NamedTuple

from tailorvit.report.markup import Html, cell, clean, counted, percent, size
from tailorvit.report.reading import Facts
from tailorvit.report.result import difference_interval
from tailorvit.report.tailored import first_blocks_in_words, share_of_whole

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
    *front, last = [_compared(found, other) for other in _others(facts)] or [""]
    others = f"{', '.join(front)} and {last}" if front else last
    words = f"You get {_network(facts)} that classifies {percent(found)} of the test images correctly"
    words += f", {others}" if others else ""
    return f'<p class="lead">{cell(words)}; to take it away, run {Html(f"<code>{cell(command)}</code>")}.</p>\n'


def _network(facts: Facts) -> str:
    if facts.tailored:
        return _cut(facts)
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


def _cut(facts: Facts) -> str:
    """``a network with 5.6M parameters, 26 % of the size of timm:NAME,``."""
    first = first_blocks_in_words(facts).removeprefix("its ") if facts.result.by_hand else ""
    params, share = size(facts.result.params), share_of_whole(facts, facts.result.params)
    name = clean(facts.pretrained, 100) or "the pretrained network"
    words = f"the {first}" if first else "a network"
    words += f" with {params} parameters" if params else ""
    return f"{words}, {share} of the size of {name}," if share else f"{words}, cut from {name},"


def _others(facts: Facts) -> Iterator[Other]:
    """The whole network where one was cut, this one untuned, the baseline unless it is this, the best of the peers."""
    whole = facts.result.whole_peer
    if whole is not None and whole.test_accuracy is not None:
        yield Other("the whole network after fine-tuning", whole.test_accuracy, whole.gap.clear)
    if (before := facts.result.start.test_accuracy) is not None:
        yield Other("before fine-tuning", before, _clear(facts, before))
    baseline = facts.result.baseline.test_accuracy
    if baseline is not None and not facts.result.by_hand:
        name = first_blocks_in_words(facts) if facts.tailored else "the hand-designed baseline"
        yield Other(name, baseline, _clear(facts, baseline))
    peers = [(p, v) for p in facts.result.peers if (v := p.test_accuracy) is not None and not p.whole]
    if peers:
        peer, accuracy = max(peers, key=lambda row: row[1])
        over = ", over the limit" if peer.over else ""
        name = f"{clean(peer.short, 60)} of timm" if peer.of_timm else f"the {clean(peer.short, 60)}"
        yield Other(f"{name}{over}", accuracy, peer.gap.clear)


def _clear(facts: Facts, other: float) -> bool:
    """Whether the test images tell a network of that accuracy apart from the one delivered."""
    found, images = facts.result.test_accuracy or 0.0, facts.test_images
    low, high = difference_interval(found, other, images) if images else (found - other, found - other)
    return not low <= 0 <= high


def _compared(found: float, other: Other) -> str:
    """``1.25 points more than the baseline (62.25 %)``, or that the images cannot tell them apart."""
    gap = found - other.accuracy
    shown = f"{other.name} ({percent(other.accuracy)})"
    if not other.clear or abs(gap) < 0.005:
        return f"about as many as {shown}"
    return f"{abs(gap):.2f} points {'more' if gap > 0 else 'less'} than {shown}"
