"""The study of a run: the best network of each space, retrained; and networks inherited, tuned and retrained."""

from __future__ import annotations

from collections.abc import Sequence

from tailorvit.report.charts import Figure, Mark, dot_rows, figures_of
from tailorvit.report.markup import arch_in_words, clean, counted, grid, paragraph, percent, points, size, soft
from tailorvit.report.reading import Facts
from tailorvit.report.study_facts import Agreement, Drawn, Judged, SpaceBest

_WAYS = {"c4": "inherited", "c1": "tuned", "c0": "retrained"}
_ROWS = 40  # networks drawn; the numbers hold all
_WORDS = 300


def there(facts: Facts) -> bool:
    """Whether the run was studied."""
    return bool(facts.study.spaces or facts.study.networks)


def section(facts: Facts) -> str:
    """The spaces with their best networks, then the networks in three ways."""
    drawn = {figure.key: figure.html() for figure in figures(facts)}
    text = ""
    if facts.study.spaces:
        text += "<h3>The best network of each space, retrained</h3>" + paragraph(_spaces_in_words(facts))
        text += drawn.get("study-spaces", "") + _spaces_table(facts.study.spaces)
    if facts.study.networks:
        text += "<h3>Inherited, tuned and retrained weights</h3>" + paragraph(_networks_in_words(facts))
        text += drawn.get("study-networks", "") + _networks_table(facts.study.networks)
        text += _agreement_table(facts.study.agreement)
    return text


def figures(facts: Facts) -> list[Figure]:
    """The figures of this section."""
    return figures_of(_spaces_figure(facts.study.spaces), _networks_figure(facts.study.networks))


# -- words ------------------------------------------------------------------------------------------------------------


def _epochs(facts: Facts) -> str:
    return "" if facts.study.epochs is None else f" for {counted(facts.study.epochs, 'epoch')}"


def _spaces_in_words(facts: Facts) -> str:
    rows = facts.study.spaces
    empty = [row for row in rows if row.problem]
    words = (
        "In every space that the run passed, the network with the best inherited accuracy within the limits was"
        f" trained from scratch{_epochs(facts)}, all by the same recipe."
    )
    if empty:
        words += f" {counted(len(empty), 'space has', 'spaces have')} no such network."
    return words


def _networks_in_words(facts: Facts) -> str:
    tuned = facts.study.tuned_epochs
    short = "" if tuned is None else f" for {counted(tuned, 'epoch')}"
    words = (
        f"{counted(len(facts.study.networks), 'network')} were drawn at random from the last space, within the limits:"
        f" with inherited weights, tuned from these{short}, and trained from scratch{_epochs(facts)}."
    )
    rank = next((a for a in facts.study.agreement if (a.first, a.second) == ("inherited", "retrained")), None)
    if rank is None or rank.tau is None:
        return words
    if rank.low is not None and rank.low > 0:
        return f"{words} The supernet ranks them as a training of their own does, more often than not."
    return f"{words} These networks do not show that the supernet ranks as a training of their own does."


def _interval(row: Judged) -> str | None:
    return None if row.low is None or row.high is None else f"{row.low:.1f} to {row.high:.1f} %"


# -- the spaces -------------------------------------------------------------------------------------------------------


def _name(row: SpaceBest) -> str:
    return "space" if row.t is None else f"space {row.t}{', searched' if row.searched else ''}"


def _spaces_figure(rows: Sequence[SpaceBest]) -> Figure | None:
    marks = [(_name(row), _marks([("c0", row.retrained)])) for row in rows]
    marks = [(name, row) for name, row in marks if row]
    if not marks:
        return None
    title = "The best network of each space, retrained"
    return Figure(
        "study-spaces",
        title,
        "Whiskers: 95 % interval (Wilson) over the test images; one training each, so seeds add more doubt.",
        ("space", "searched", "parameters", "MACs", "inherited, search images", "retrained, test images", "problem"),
        [(r.t, r.searched, r.params, r.macs, r.inherited, r.retrained.test_accuracy, r.problem or None) for r in rows],
        dot_rows(marks, title, "accuracy on the test images, %"),
    )


def _spaces_table(rows: Sequence[SpaceBest]) -> str:
    head = ("space", "network", "found by", "parameters", "MACs", "inherited", "retrained", "95 % interval")
    body = [
        (
            _name(row),
            clean(row.problem, _WORDS) if row.problem else clean(arch_in_words(row.arch), _WORDS),
            clean(row.how, _WORDS) or None,
            size(row.params),
            size(row.macs, "macs"),
            percent(row.inherited),
            percent(row.retrained.test_accuracy),
            _interval(row.retrained),
        )
        for row in rows
    ]
    return grid(head, body, 5, stack=True) + soft("Inherited: on the search images. Retrained: on the test images.")


# -- the networks -----------------------------------------------------------------------------------------------------


def _ways(row: Drawn) -> list[tuple[str, Judged]]:
    return [("c4", row.inherited), ("c1", row.tuned), ("c0", row.retrained)]


def _marks(ways: Sequence[tuple[str, Judged]]) -> list[Mark]:
    found = []
    for style, row in ways:
        if row.test_accuracy is not None:
            span = (row.low, row.high) if row.low is not None and row.high is not None else None
            words = f"{_WAYS[style]}: {percent(row.test_accuracy)}{f', {_interval(row)}' if span else ''}"
            # Three whiskers in one row would hide one another.
            found.append(Mark(row.test_accuracy, style, words, span if len(ways) == 1 else None))
    return found


def _networks_figure(rows: Sequence[Drawn]) -> Figure | None:
    order = sorted(rows, key=lambda r: -(r.retrained.test_accuracy or 0.0))
    marks = [(clean(row.name, 60) or "network", _marks(_ways(row))) for row in order[:_ROWS]]
    title = "Inherited, tuned and retrained weights"
    return Figure(
        "study-networks",
        title,
        "A row per network, the best after retraining first. Where the ways agree, their dots fall in the same order.",
        ("network", "parameters", "MACs", *_WAYS.values()),
        [(r.name, r.params, r.macs, *(way.test_accuracy for _, way in _ways(r))) for r in rows],
        dot_rows(marks, title, "accuracy on the test images, %", 24),
        tuple(_WAYS.items()),
    )


def _networks_table(rows: Sequence[Drawn]) -> str:
    head = ("network", "architecture", "parameters", "MACs", *_WAYS.values())
    body = [
        (
            clean(row.name, 60),
            clean(arch_in_words(row.arch), _WORDS),
            size(row.params),
            size(row.macs, "macs"),
            *(percent(way.test_accuracy) for _, way in _ways(row)),
        )
        for row in rows
    ]
    return grid(head, body, 5, stack=True) + soft("Accuracy on the test images.")


def _agreement_table(rows: Sequence[Agreement]) -> str:
    body = [
        (
            f"{clean(row.first, 40)} and {clean(row.second, 40)}",
            points(row.tau),
            None if row.low is None or row.high is None else f"{row.low:+.2f} to {row.high:+.2f}",
            points(row.gain),
        )
        for row in rows
    ]
    if not body:
        return ""
    head = ("ways", "Kendall's tau", "95 % interval", "second less first, points")
    return grid(head, body, 3, stack=True) + soft(
        "Tau is 1 where both put the networks in the same order and -1 where they reverse it. Its interval comes from"
        " redrawn networks; with so few of them it is rough."
    )
