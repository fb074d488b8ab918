"""Section 1: what was asked, what happened, what came out, and how sure that is."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from typing import Any

from tailorvit.report import charts
from tailorvit.report.facts import Facts, real, rows, table, whole
from tailorvit.report.figure import Figure
from tailorvit.report.parts import (
    cards,
    cell,
    clean,
    duration,
    fold,
    grid,
    limits_in_words,
    metric_name,
    percent,
    size,
)
from tailorvit.stats import wilson

_KINDS = {
    "supernet": "c0",
    "slopes": "c1",
    "edf": "c5",
    "search": "c2",
    "score": "c2",
    "final": "c3",
    "baseline": "c4",
}
_NAMES = {
    "supernet": "training supernets",
    "slopes": "measuring slopes",
    "edf": "sampling spaces",
    "score": "scoring without training",
    "final": "training the network found",
    "baseline": "training the baseline",
}


def interval(share: float, count: int) -> tuple[float, float]:
    """The 95 % interval (Wilson) of an accuracy in percent counted on ``count`` images."""
    low, high = wilson(min(max(share, 0.0), 100.0) / 100 * count, count)
    return 100 * low, 100 * high


def spent(facts: Facts) -> dict[str, float]:
    """Seconds per stage."""
    told = facts.seconds or table(facts.result.get("seconds"))
    return {str(k): s for k, v in told.items() if (s := real(v)) is not None and s >= 0}


def _work(facts: Facts) -> str:
    search = search_seconds(facts)
    return f"of work, {duration(search)} of them search" if search and not facts.given else "of work"


def search_seconds(facts: Facts) -> float | None:
    """What finding the network took: supernets, slopes, samples and search, without its training and the baseline's."""
    after = ("final", "baseline", "analysis")
    found = [s for stage, s in spent(facts).items() if stage.partition("-")[0] not in after]
    return sum(found) if found else None


def tests(facts: Facts) -> int | None:
    """How many test images were counted."""
    counts = table(table(facts.result.get("data") or facts.info.get("data")).get("counts"))
    found = whole(counts.get("test")) or whole(table(facts.analysis.get("test")).get("count"))
    return found if found and found > 0 else None


def answer(facts: Facts) -> str:
    """One plain paragraph, then the numbers."""
    charted = {f.key: f.html() for f in figures(facts)}
    times = spent(facts)
    rows = [(k, duration(v)) for k, v in times.items()]
    folded = fold("Time of every stage", grid(("stage", "time"), rows, 1)) if rows else ""
    clock = f"{charted.get('answer-time', '')}{folded}"
    if not facts.result:
        return f"<p>{cell(_so_far(facts))}</p>{clock}"
    result, baseline = facts.result, table(facts.result.get("baseline"))
    trunk = table(result.get("trunk"))
    lines = [
        ("Parameters", size(result.get("params")), size(baseline.get("params"))),
        ("MACs (papers' FLOPs)", size(result.get("macs")), size(baseline.get("macs"))),
        ("Parameters of the frozen trunk, not counted above", size(trunk.get("params")), None),
        ("MACs of the frozen trunk, not counted above", size(trunk.get("macs")), None),
        ("Accuracy on the search images, inherited weights", percent(result.get("search_accuracy")), None),
        ("Accuracy on the search images, finished", percent(result.get("final_search_accuracy")), None),
        ("Accuracy on the test images", percent(result.get("test_accuracy")), percent(baseline.get("test_accuracy"))),
    ]
    n, found = tests(facts), real(result.get("test_accuracy"))
    error = f", ± {_reach(found, n):.1f} points (95 %, {n:,} images)" if n and found is not None else ""
    heads = cards(
        [
            (percent(found), f"of the test images right{error}"),
            (size(result.get("params")), "parameters of the decoder" if trunk else "parameters"),
            (size(result.get("macs")), "MACs for one image" + (" in the decoder" if trunk else "")),
            (duration(sum(times.values())) if times else None, _work(facts)),
        ]
    )
    pair = f'<div class="pair">{charted.get("answer-limits", "")}{charted.get("answer-accuracy", "")}</div>'
    table_text = grid(("", "found", "baseline"), [row for row in lines if row[1] or row[2]], 2)
    return f"<p>{cell(_story(facts))}</p>{heads}{pair}{table_text}{clock}"


def figures(facts: Facts) -> list[Figure]:
    """The drawings of this section."""
    return [f for f in (_limits(facts), _accuracy(facts), _time(facts)) if f is not None]


def _so_far(facts: Facts) -> str:
    seen = [m for t in facts.trials if (m := t.merit) is not None]
    free = bool(seen) and all(t.accuracy is None for t in facts.trials)
    best = f" The best of {len(facts.trials):,} trials so far reached " if seen else ""
    reached = f"a score of {max(seen):.4g}." if free else f"{percent(max(seen))}." if seen else ""
    why = ""
    if facts.status == "failed":
        last = next(e.text for e in reversed(facts.events) if e.kind == "failed")
        why = f" The run failed: {clean(last, 500).rstrip('.')}."
    elif facts.status == "interrupted":
        why = " The run was interrupted."
    if why:
        why += f" To go on: {shlex.join(['tailorvit', 'resume', clean(facts.folder)])}"
    return f"There is no result yet.{best}{reached}{why}"


def _asked(facts: Facts) -> str:
    data = table(facts.result.get("data") or facts.info.get("data"))
    counts = table(data.get("counts"))
    train, classes = whole(counts.get("train")), whole(data.get("classes"))
    about = [f"{train:,} training images"] if train else []
    about += [f"{classes:,} classes"] if classes else []
    source = f" for {clean(data['source'])}" if data.get("source") else ""
    note = f" ({', '.join(about)})" if about else ""
    limits = limits_in_words(facts.result.get("limits"))
    if facts.given:
        asked = "fine-tune a finished network" if facts.method == "finetune" else "train one given network"
        return f"Asked was to {asked}{source}{note}."
    return f"Asked was the most accurate network{source}{note} {f'with {limits}' if limits else 'without a limit'}."


def _happened(facts: Facts) -> str:
    result, method = facts.result, clean(facts.method or "method not recorded", 40)
    what = (
        f"{size(result.get('params')) or 'an unknown number of'} parameters and"
        f" {size(result.get('macs')) or 'an unknown number of'} MACs"
    )
    if facts.given:
        return f"There was no search. The network has {what}.{_started(facts)}"
    spaces, trials = len(facts.spaces), len(facts.trials) or whole(result.get("trials")) or 0
    looked = f" looked at {spaces} space{'s' if spaces != 1 else ''} and" if spaces else ""
    free = sum(t.accuracy is None and (bool(t.proxy) or t.score is not None) for t in facts.trials)
    proxy = next((clean(t.proxy, 40) for t in facts.trials if t.proxy), "")
    scored = f"scored {free:,} architectures without training" + (f" ({proxy})" if proxy else "")
    own = sum(t.stage.startswith(("slopes-", "et-")) for t in facts.trials) if seek_epochs(facts) else 0
    alone = f"trained {own:,} architectures by themselves"
    rest = f"evaluated {trials - free - own:,} architectures with the weights of a supernet"
    judged = " and ".join(w for w, there in ((scored, free), (alone, own), (rest, trials > free + own)) if there)
    how = {"finetune": "fine-tuned", "retrain": "trained from scratch", "inherit": "taken as it was"}
    ended = how.get(str(result.get("final")), "")
    last = f", which was then {ended}" if ended else ""
    return f"The search ({method}){looked} {judged if trials else 'ran'}. It found a network with {what}{last}."


def seek_epochs(facts: Facts) -> int:
    """Epochs that members of a moving space were trained by themselves; 0 where others judged them."""
    return whole(table(facts.result.get("seek")).get("epochs")) or 0


def _started(facts: Facts) -> str:
    """What a fine-tuned network was before."""
    start = table(facts.result.get("start"))
    sides = [n for n in map(whole, rows(start.get("image_size"))) if n]
    if len(sides) != 2:
        return ""
    head = "kept its head" if start.get("head") == "kept" else "got a new head"
    before = real(start.get("test_accuracy"))
    first = f"; before training it was right on {percent(before)} of the test images" if before is not None else ""
    return f" It comes from a network for {sides[0]}x{sides[1]} px and {head}{first}."


def _trunk(facts: Facts) -> list[str]:
    """The frozen part before a decoder, which neither trains nor counts."""
    trunk = table(facts.result.get("trunk"))
    if not trunk:
        return []
    source = f", {clean(trunk['source'])}," if trunk.get("source") else ""
    return [
        f"It decodes a frozen trunk{source} of {size(trunk.get('params')) or '?'} parameters and"
        f" {size(trunk.get('macs')) or '?'} MACs, which are counted apart."
    ]


def _story(facts: Facts) -> str:
    result, baseline = facts.result, table(facts.result.get("baseline"))
    words = [_asked(facts), _happened(facts), *_trunk(facts)]
    found, hand, n = real(result.get("test_accuracy")), real(baseline.get("test_accuracy")), tests(facts)
    if found is not None:
        words.append(f"It is right on {percent(found)} of the test images.")
        if n:
            low, high = interval(found, n)
            words.append(f"Counted on {n:,} images, that stands for {low:.1f} to {high:.1f} % (95 %).")
    if found is not None and hand is not None:
        words.append(_compared(found, hand, n, baseline))
    elif not facts.given:
        words.append("Without both test accuracies it cannot be compared with a baseline.")
    times = spent(facts)
    if times:
        words.append(f"The work took {duration(sum(times.values()))}.")
        search = search_seconds(facts)
        words += [f"Of that the search took {duration(search)}."] if search and not facts.given else []
    return " ".join(words)


def _compared(found: float, hand: float, n: int | None, baseline: Mapping[str, Any]) -> str:
    gap = found - hand
    than = "the same as" if abs(gap) < 0.005 else f"{abs(gap):.2f} points {'more' if gap > 0 else 'less'} than"
    epochs = whole(baseline.get("epochs"))
    trained = f", trained for {epochs:,} epochs" if epochs else ""
    words = (
        f"That is {than} the hand-designed baseline ({size(baseline.get('params')) or '?'} parameters{trained})"
        " in this one run with one seed."
    )
    if not n:
        return words
    noise = math.hypot(_reach(found, n), _reach(hand, n))
    within = abs(gap) <= noise
    judged = "so it decides nothing" if within else "so it is more than the choice of test images explains"
    return f"{words} The counting error of such a difference is {noise:.1f} points, {judged}."


def _reach(share: float, count: int) -> float:
    low, high = interval(share, count)
    return (high - low) / 2


def _limits(facts: Facts) -> Figure | None:
    """How much of each limit the network uses; the tightest limit is drawn, all are in the numbers."""
    result, baseline = facts.result, table(facts.result.get("baseline"))
    told: list[tuple[str, float, float | None, float | None, float | None]] = []
    for metric, bounds in table(result.get("limits")).items():
        low, high = real(table(bounds).get("min")), real(table(bounds).get("max"))
        value = real(result.get(metric))
        if value is not None and value >= 0 and (low or high):
            told.append((str(metric), value, real(baseline.get(metric)), low, high))
    if not told:
        return None
    metric, value, other, low, high = max(told, key=lambda row: row[1] / row[4] if row[4] else 0.0)
    rows = [("found", value, size(value, metric) or "", "c0")]
    if other is not None and other >= 0:
        rows.append(("baseline", other, size(other, metric) or "", "c4"))
    marks = [(v, f"{word} {size(v, metric)}") for v, word in ((low, "at least"), (high, "at most")) if v and v > 0]
    name = clean(metric_name(metric), 40)
    share = f" It uses {100 * value / high:.0f} % of the limit." if high else ""
    title = f"Size against the limit: {name}"
    return Figure(
        "answer-limits",
        title,
        f"The bars are {name}; the dashed lines are what was asked.{share}",
        ("metric", "found", "baseline", "at least", "at most"),
        told,
        charts.levels(rows, marks, title),
    )


def _accuracy(facts: Facts) -> Figure | None:
    n = tests(facts)
    known = {
        "found": real(facts.result.get("test_accuracy")),
        "baseline": real(table(facts.result.get("baseline")).get("test_accuracy")),
    }
    if not n or known["found"] is None:
        return None
    rows = [(name, v, *interval(v, n), n) for name, v in known.items() if v is not None]
    styles = {"found": "c0", "baseline": "c4"}
    title = "Accuracy on the test images"
    svg = charts.estimates([(a, v, low, high, styles[a]) for a, v, low, high, _ in rows], title, "accuracy, %")
    caption = f"Dots are what was counted on {n:,} test images, whiskers the 95 % interval of that count (Wilson)."
    return Figure("answer-accuracy", title, caption, ("network", "accuracy", "low", "high", "images"), rows, svg)


def _time(facts: Facts) -> Figure | None:
    times = spent(facts)
    total = sum(times.values())
    if total <= 0:
        return None
    sums: dict[str, float] = {}
    for stage, seconds in times.items():
        kind = stage.partition("-")[0]
        kind = kind if kind in _KINDS else "other"
        sums[kind] = sums.get(kind, 0.0) + seconds
    styles = {**_KINDS, "other": "c5"}
    pieces = [(k, v, f"{duration(v)}, {100 * v / total:.0f} %", styles[k]) for k, v in sums.items()]
    title = f"Where the time went: {duration(total)}"
    keys = tuple((style, f"{_NAMES.get(k, k)} {words}") for k, _, words, style in pieces)
    caption = "Working time by kind of stage, over all resumes."
    rows = [(stage, seconds, seconds / total) for stage, seconds in times.items()]
    return Figure("answer-time", title, caption, ("stage", "seconds", "share"), rows, charts.stack(pieces, title), keys)
