"""Section 6: checks of this run whose answer a user can act on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tailorvit.report.charts import Figure
from tailorvit.report.markup import cell, clean, counted, metric_name, size, soft
from tailorvit.report.reading import Facts
from tailorvit.report.result import difference_interval, interval

_IDLE = 0.9  # a limit of which less than this share is used counts as unused
_WIDE = 4.0  # points; a wider interval of the test accuracy hides most differences


class Check(NamedTuple):
    """A question, whether the answer is fine, the answer, and what the user can do."""

    question: str
    fine: bool
    answer: str
    advice: str = ""


def figures(facts: Facts) -> list[Figure]:
    """This section has no figures."""
    return []


def section(facts: Facts) -> str:
    """The checks, a paragraph each."""
    found = checks(facts)
    if not found:
        return soft("There is nothing to check yet.")
    marks = {True: '<span class="badge c2">ok</span>', False: '<span class="badge c1">warning</span>'}
    return "".join(
        f"<p>{marks[c.fine]} <b>{cell(c.question)}</b> {cell(c.answer)}"
        f' <span class="soft">{cell(c.advice)}</span></p>\n'
        for c in found
    )


def checks(facts: Facts) -> list[Check]:
    """Every check that this run has the numbers for."""
    return [*_accuracy(facts), *_limits(facts), *_data(facts), *_training(facts)]


def _accuracy(facts: Facts) -> Iterator[Check]:
    found, other, images = facts.result.test_accuracy, facts.result.baseline.test_accuracy, facts.test_images
    if found is None or not images:
        return
    than, use = f"than the {facts.result.rival}?", f"Use the {facts.result.rival}"
    if facts.result.by_hand:
        advice = "A longer search, longer training or another space may find a better network."
        yield Check(f"Is the network found better {than}", False, f"No: {facts.result.why}", advice)
    elif other is not None:
        low, high = difference_interval(found, other, images)
        gap = f"{found - other:+.2f} points, 95 % interval {low:+.1f} to {high:+.1f}"
        question = f"Is the network better {than}"
        if low > 0:
            yield Check(question, True, f"Yes: {gap}.", "Repeat with other seeds before you rely on it.")
        elif high < 0:
            advice = f"{use}, or search again with longer training or another space."
            yield Check(question, False, f"No, it is worse: {gap}.", advice)
        else:
            advice = "Repeat with other seeds and put the runs side by side: tailorvit compare RUN RUN ..."
            yield Check(question, False, f"Not clear: {gap}.", advice)
    low, high = interval(found, images)
    answer = f"The 95 % interval of the accuracy spans {high - low:.1f} points ({images:,} images)."
    enough = high - low <= _WIDE
    yield Check("Are there enough test images?", enough, answer, "" if enough else "Give the run more test images.")


def _limits(facts: Facts) -> Iterator[Check]:
    result = facts.result
    for metric, bounds in result.limits.items():
        value, limit = result.cost(metric), bounds.max
        if value is None or limit is None or limit <= 0:
            continue
        name = clean(metric_name(metric), 40)
        bound = f"the limit of {size(limit, metric)} {name if metric in ('params', 'macs') else f'({name})'}"
        known = [v for s in facts.spaces if (v := {"params": s.params, "macs": s.macs}.get(metric)) is not None]
        used = f"It uses {100 * value / limit:.0f} % of {bound}."
        if known and max(known) < _IDLE * limit:
            answer = f"{used} The largest sub-network of all spaces has {size(max(known), metric)}: the limit was idle."
            yield Check("Does the network use its limit?", False, answer, "Choose a larger space, or lower the limit.")
        elif value < _IDLE * limit:
            advice = "Larger networks were not better here. Longer training may change that."
            yield Check("Does the network use its limit?", False, used, advice)
        else:
            yield Check("Does the network use its limit?", True, used)


def _data(facts: Facts) -> Iterator[Check]:
    lost = facts.data.skipped or 0
    messages = [e.text for e in facts.events if e.kind == "skipped"]
    if lost or messages:
        answer = clean(" ".join(messages), 400) or f"{counted(lost, 'image')} could not be read."
        yield Check("Were all images read?", False, answer, "skipped.json lists the files; repair or remove them.")
    elif facts.data.skipped is not None:
        yield Check("Were all images read?", True, "Yes.")


def _training(facts: Facts) -> Iterator[Check]:
    kinds = [e.kind for e in facts.events]
    skipped, back = kinds.count("skip"), kinds.count("rollback")
    if skipped or back:
        answer = f"{counted(skipped, 'step')} skipped, {counted(back, 'return', 'returns')} to an earlier checkpoint."
        yield Check("Was training stable?", False, answer, "Lower the learning rate (train.lr) or raise train.warmup.")
    elif facts.epochs:
        yield Check("Was training stable?", True, "Yes: every step had a finite loss.")
    warnings = [clean(e.text, 300) for e in facts.events if e.kind == "warning"]
    if warnings:
        more = f" {len(warnings) - 3} more are listed among the events." if len(warnings) > 3 else ""
        yield Check(f"{counted(len(warnings), 'warning')} during the run", False, " ".join(warnings[:3]) + more)
