"""Section 1: the goal, the network delivered and why, the baseline and the peers beside it, and the time it took."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence

from tailorvit.report import charts
from tailorvit.report.charts import Figure, figures_of
from tailorvit.report.fields import whole
from tailorvit.report.latency_facts import LatencyBy
from tailorvit.report.markup import (
    cards,
    cell,
    clean,
    counted,
    duration,
    fold,
    grid,
    limits_in_words,
    metric_name,
    pair,
    paragraph,
    percent,
    size,
    soft,
    stage_name,
)
from tailorvit.report.reading import CONTEST, Facts, Network, Peer
from tailorvit.stats import wilson

Interval = tuple[float, float]
TIMES = {  # kind of stage: colour and name
    "contest": ("c6", "the contest"),
    "supernet": ("c0", "training supernets"),
    "slopes": ("c1", "estimating slopes"),
    "et": ("c1", "measuring errors per choice"),
    "search": ("c2", "search"),
    "score": ("c2", "scoring without training"),
    "final": ("c3", "training the network found"),
    "baseline": ("c4", "training the baseline"),
    "peer": ("c7", "training peers"),
    "whole": ("c6", "fine-tuning the whole network"),
    "ordered": ("c1", "ordering its parts"),
    "refit": ("c4", "refitting what was cut"),
    "shape": ("c2", "trying shapes"),
    "other": ("c5", "other work"),
}


def interval(accuracy: float, images: int) -> Interval:
    """The 95 % interval (Wilson) of an accuracy in percent, counted on so many images."""
    low, high = wilson(min(max(accuracy, 0.0), 100.0) / 100 * images, images)
    return 100 * low, 100 * high


def difference_interval(first: float, second: float, images: int) -> Interval:
    """The 95 % interval (Newcombe) of first less second, both counted on so many images."""
    (low1, high1), (low2, high2) = interval(first, images), interval(second, images)
    gap = first - second
    return gap - math.hypot(first - low1, high2 - second), gap + math.hypot(high1 - first, second - low2)


def section(facts: Facts) -> str:
    """A short story, then the numbers."""
    drawn = {f.key: f.html() for f in figures(facts)}
    rows = [(stage_name(k), k, duration(v)) for k, v in facts.spent.items()]
    stages = fold("Time of every stage", grid(("stage", "name in the run folder", "time"), rows, 1)) if rows else ""
    times = drawn.get("result-time", "") + stages
    if not facts.finished:
        return paragraph(_so_far(facts)) + times
    result, trunk, compared = facts.result, facts.result.trunk, networks(facts)
    images, found = facts.test_images, result.test_accuracy
    of = " of the decoder" if trunk.params is not None else ""
    search = facts.search_seconds if facts.searched else None
    heads = cards(
        [
            (percent(found), f"accuracy on the test images{_interval_words(found, images)}"),
            (size(result.params), f"parameters{of}"),
            (size(result.macs), f"MACs per image{of}"),
            (
                duration(sum(facts.spent.values())) if facts.spent else None,
                f"in total, {duration(search)} of it for the search" if search else "in total",
            ),
        ]
    )
    shown = [n for n, _, _ in compared]
    before = "in the contest" if facts.contest_only else "before training" if facts.tailored else "inherited weights"
    lines = [
        ("Parameters", *(size(n.params) for n in shown)),
        ("MACs (multiply-adds; papers call them FLOPs)", *(size(n.macs) for n in shown)),
        ("Parameters of the frozen trunk, not counted above", size(trunk.params), *[None] * (len(shown) - 1)),
        ("MACs of the frozen trunk, not counted above", size(trunk.macs), *[None] * (len(shown) - 1)),
        (f"Accuracy on the search split, {before}", *(percent(n.search_accuracy) for n in shown)),
        ("Accuracy on the search split, after final training", *(percent(n.final_search_accuracy) for n in shown)),
        ("Accuracy on the test images", *(percent(n.test_accuracy) for n in shown)),
        ("Top-5 accuracy on the test images", *(percent(n.metrics.top5_accuracy) for n in shown)),
        ("Macro-F1 on the test images", *(percent(n.metrics.macro_f1) for n in shown)),
        ("Balanced accuracy on the test images", *(percent(n.metrics.balanced_accuracy) for n in shown)),
        ("Calibration error on the test images", *(percent(n.metrics.calibration_error) for n in shown)),
        (f"Images a second{_measured(shown)}", *(_speed(n) for n in shown)),
        ("Epoch whose weights were kept", *(_kept(n) for n in shown)),
    ]
    titles = ("", *(title for _, _, title in compared))
    numbers = grid(titles, [row for row in lines if any(row[1:])], len(shown), stack=len(shown) > 2)
    numbers += _notes(shown) + _pairs(facts)
    side = pair(drawn.get("result-limits", ""), drawn.get("result-accuracy", ""))
    return f"{_story(facts)}{heads}{side}{numbers}{times}"


def figures(facts: Facts) -> list[Figure]:
    """The figures of this section."""
    return figures_of(_limits(facts), _accuracy(facts), _time(facts))


def networks(facts: Facts) -> list[tuple[Network, str, str]]:
    """What is compared: the network found, the baseline and the peers, each with a name and the head of its column."""
    result = facts.result
    rival, delivered = result.rival, result.rival if result.by_hand else result.chosen
    rows: list[tuple[Network, str, str]] = [(result.found, "found", "found"), (result.baseline, rival, rival)]
    if (facts.contest_only or facts.tailored) and result.baseline.params is None:
        del rows[1]  # the hand-designed network won, or not one whole block keeps the limits
    if result.chosen and result.candidates[1:]:
        rows = [(n, k, f"{k} (delivered)" if k == delivered else k) for n, k, _ in rows]
    for peer in result.peers:
        rows.append((peer, peer.short, f"{peer.short} (over the limit)" if peer.over else peer.short))
    return rows


def _measured(shown: Sequence[Network]) -> str:
    """How images a second were measured; alike for all networks of a run."""
    words = next((n.throughput.conditions for n in shown if n.throughput.conditions), "")
    return f" ({words})" if words else ""


def _speed(network: Network) -> str | None:
    value = network.throughput.images_per_second
    return None if value is None else f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _kept(network: Network) -> str | None:
    kept = network.kept
    if kept.epoch is None:
        return None
    ended = kept.of is not None and kept.planned is not None and kept.of < kept.planned
    plan = f" (planned: {kept.planned:,})" if ended else ""
    return f"{kept.epoch:,} of {kept.of:,}{plan}" if kept.of else f"{kept.epoch:,}"


def _notes(shown: Sequence[Network]) -> str:
    """What the figures of the table mean."""
    words = []
    if any(n.metrics.macro_f1 is not None for n in shown):
        words.append(
            "Macro-F1 and balanced accuracy (mean recall) count every class alike, however many images it has."
            " The calibration error is the mean difference between confidence and accuracy over 15 bins of"
            " confidence, weighed by their images: 0 is best."
        )
    if any(n.kept.epoch is not None for n in shown):
        words.append(
            "The weights are those of the epoch that was best on the search images, so the accuracy on the search split"
            " is a little too high. The test images took no part in that."
        )
    return "".join(map(soft, words))


def _pairs(facts: Facts) -> str:
    """The comparison in pairs that decided what is delivered."""
    rows = [
        (
            f"{g.first} less {g.second}",
            f"{g.difference:+.1f}",
            f"{g.low:+.1f} to {g.high:+.1f}",
            "yes" if g.clear else "no",
        )
        for g in facts.result.comparison
        if g.difference is not None and g.low is not None and g.high is not None
    ]
    head = ("on the search images", "points", "95 % interval", "told apart")
    return fold("The choice: networks compared in pairs", grid(head, rows, 3)) if rows else ""


def _interval_words(accuracy: float | None, images: int | None) -> str:
    if accuracy is None or not images:
        return ""
    low, high = interval(accuracy, images)
    return f" (95 % interval {low:.1f} to {high:.1f} %, {images:,} images)"


def _so_far(facts: Facts) -> str:
    """What an unfinished run has reached."""
    merits = [m for t in facts.trials if (m := t.merit) is not None]
    words = ["There is no result yet."]
    if merits:
        by_score = all(t.accuracy is None for t in facts.trials)
        best = f"a score of {max(merits):.4g}" if by_score else f"{percent(max(merits))}"
        words.append(f"The best of {counted(len(facts.trials), 'trial')} so far reached {best}.")
    if facts.status == "failed":
        last = next(e.text for e in reversed(facts.events) if e.kind == "failed")
        words.append(f"The run failed: {clean(last, 500).rstrip('.')}.")
    elif facts.status == "interrupted":
        words.append("The run was interrupted.")
    if facts.status in ("failed", "interrupted"):
        words.append(f"To continue: {shlex.join(['tailorvit', 'resume', clean(facts.place or facts.folder, 1000)])}")
    return " ".join(words)


def _story(facts: Facts) -> str:
    parts = {
        "Goal": _goal(facts),
        "Result": _found(facts),
        "Latency": latency_in_words(facts.result.latency_by),
        "Choice": facts.result.why if facts.result.candidates[1:] else "",
        "Whole network": _beside([p for p in facts.result.peers if p.whole], ""),
        "First blocks" if facts.tailored else "Baseline": _compared(facts),
        "Beside": _beside([p for p in facts.result.peers if not p.whole and not p.of_timm], ""),
        "Peers": _beside([p for p in facts.result.peers if p.of_timm], _OF_TIMM),
        "Method": _method(facts),
    }
    return "".join(f"<p><b>{name}:</b> {cell(words)}</p>\n" for name, words in parts.items() if words)


def _goal(facts: Facts) -> str:
    data = facts.data
    train = whole(data.counts.get("train"))
    about = [f"{train:,} training images"] if train else []
    about += [f"{data.classes:,} classes"] if data.classes else []
    images = f" for {clean(data.source)}" if data.source else ""
    images += f" ({', '.join(about)})" if about else ""
    if not facts.searched:
        task = "fine-tune a finished network" if facts.method == "finetune" else "train one given network"
        return f"{task}{images}."
    limits = limits_in_words(facts.result.limits)
    images = f" cut from {clean(facts.pretrained, 100)}{images}" if facts.tailored and facts.pretrained else images
    return f"the most accurate network{images} {f'with {limits}' if limits else 'without a limit'}."


def _found(facts: Facts) -> str:
    result, trunk = facts.result, facts.result.trunk
    unknown = "an unknown number of"
    costs = f"{size(result.params) or unknown} parameters and {size(result.macs) or unknown} MACs"
    clear = [p for p in result.peers if p.gap.clear and (p.gap.difference or 0) > 0 and p.test_accuracy is not None]
    better = [p for p in clear if not p.whole]  # that a cut costs accuracy is told elsewhere
    by_hand = "the first blocks" if facts.tailored else "the hand-designed network"
    words = [f"{by_hand}, with {costs}." if result.by_hand else f"a network with {costs}."]
    if better:
        best = max(better, key=lambda p: p.test_accuracy or 0.0)
        over = ", over the limit," if best.over else ""
        figures = f"{percent(best.test_accuracy)} of the test images against {percent(result.test_accuracy)}"
        name = best.name if best.of_timm else f"the {best.short}"
        words.insert(0, f"{name}{over} was better than the network delivered: {figures}. Delivered is")
    if trunk.params is not None or trunk.source:
        source = f" {clean(trunk.source)}" if trunk.source else ""
        words.append(
            f"It decodes the features of the frozen trunk{source} ({size(trunk.params) or '?'} parameters,"
            f" {size(trunk.macs) or '?'} MACs), which is not counted."
        )
    if result.test_accuracy is not None:
        shown = _interval_words(result.test_accuracy, facts.test_images)
        words.append(f"It classifies {percent(result.test_accuracy)} of the test images correctly{shown}.")
    return " ".join(words)


def latency_in_words(by: LatencyBy) -> str:
    """With what the latency was measured, or how well it is predicted; nothing where it was not limited."""
    threads = f"{by.threads} thread{'' if by.threads == 1 else 's'}" if by.threads else ""
    where = ", ".join(word for word in (clean(by.provider, 60), threads) if word)
    runtime = f"{clean(by.runtime, 60)}{f' ({where})' if where else ''}"
    if by.how == "measured" and by.runtime:
        return f"measured in {runtime} on the run's device, one image at a time."
    if by.how != "predicted":
        return ""
    known = by.table
    words = f"predicted for {clean(known.host, 100) or 'another host'}, not measured there"
    if known.median_error is not None and known.worst_error is not None:
        tau = "" if known.tau is None else f", Kendall's tau {known.tau:.2f}"
        words += (
            f"; from {known.rows or 'the'} networks of {clean(known.name, 60)}, measured in {runtime}. On rows the fit "
            f"did not see the median error is {100 * known.median_error:.1f} %, the worst "
            f"{100 * known.worst_error:.1f} %{tau}"
        )
    beyond = ", ".join(clean(word, 40) for word in by.beyond)
    doubt = f" The network lies beyond what was measured in {beyond}: its own error may be larger." if beyond else ""
    return f"{words}.{doubt}"


def _compared(facts: Facts) -> str:
    """The network against the baseline; one run with one seed carries little."""
    baseline, found, images = facts.result.baseline, facts.result.found.test_accuracy, facts.test_images
    if facts.contest_only and baseline.test_accuracy is None:
        return "the hand-designed networks of every family that fits took part in the contest (section 2)."
    if facts.tailored and baseline.test_accuracy is None:
        return "not trained: the recipe has none, the network has stages, or not one whole block keeps the limits."
    if found is None or baseline.test_accuracy is None:
        return "there is none, so there is nothing to compare with." if facts.searched else ""
    gap = found - baseline.test_accuracy
    than = "equally" if abs(gap) < 0.005 else f"{abs(gap):.2f} points {'more' if gap > 0 else 'less'}"
    epochs = f", trained for {baseline.epochs:,} epochs" if baseline.epochs else ""
    kind = "the most that keep the limits, taught alike" if facts.tailored else _UNIFORM
    reached, was = ("reach", "were") if facts.tailored else ("reaches", "was")
    words = (
        f"{kind} ({size(baseline.params) or '?'} parameters{epochs})"
        f" {reached} {percent(baseline.test_accuracy)}{f' and {was} delivered' if facts.result.by_hand else ''}."
        f" The network found is {than} accurate."
    )
    if not images:
        return words
    low, high = difference_interval(found, baseline.test_accuracy, images)
    better = "the network found is better" if gap > 0 else f"{_the_rival(facts)} better"
    verdict = (
        "It includes 0: this run does not show which is better" if low <= 0 <= high else f"On these images {better}"
    )
    return f"{words} The 95 % interval of the difference is {low:+.1f} to {high:+.1f} points. {verdict}."


_UNIFORM = "the largest network of uniform blocks within the limits"
_OF_TIMM = "models of timm, trained from scratch by the same recipe. "


def _the_rival(facts: Facts) -> str:
    return "the first blocks are" if facts.tailored else "the baseline is"


def _beside(peers: Sequence[Peer], about: str) -> str:
    """Networks beside, each against the delivered network on the same test images."""
    words = []
    for peer in peers:
        costs = f"{size(peer.params) or '?'} parameters{', over the limit' if peer.over else ''}"
        name = f"fine-tuned ({costs}), it" if peer.whole else f"{peer.short} ({costs})"
        if peer.test_accuracy is None:
            words.append(f"{name} could not be trained: {peer.problem or 'no reason given'}.")
            continue
        gap, doubt = peer.gap, ""
        if gap.low is not None and gap.high is not None:
            verdict = "" if gap.clear else ", so these images cannot tell the two apart"
            points = f"95 % interval {gap.low:+.1f} to {gap.high:+.1f} points"
            doubt = f" (compared with the network delivered: {points}{verdict})"
        words.append(f"{name} reaches {percent(peer.test_accuracy)}{doubt}.")
    return f"{about}{' '.join(words)}" if words else ""


def _method(facts: Facts) -> str:
    result, spent = facts.result, sum(facts.spent.values())
    time = f" Everything took {duration(spent)}" if spent else ""
    if not facts.searched:
        return f"There was no search.{_started(facts)}{time}{'.' if time else ''}"
    trials = len(facts.trials) or result.trials or 0
    scored = sum(t.accuracy is None and (bool(t.proxy) or t.score is not None) for t in facts.trials)
    proxy = next((clean(t.proxy, 40) for t in facts.trials if t.proxy), "")
    alone = sum(t.stage.startswith(("slopes-", "et-")) for t in facts.trials) if result.seek.epochs else 0
    raced = sum(t.stage.partition("-")[0] == CONTEST for t in facts.trials)
    trials -= raced
    entries = len(result.contest.entries)
    before = f"{counted(entries, 'network')} competed; then " if entries else ""
    if facts.contest_only:
        then = " The winner was then trained from scratch." if result.final != "inherit" else ""
        return f"{counted(entries, 'network')} competed.{then}{time}{'.' if time else ''}"
    steps = [
        (f"visited {counted(len(facts.spaces), 'space')}", len(facts.spaces)),
        (f"scored {scored:,} architectures without training" + (f" ({proxy})" if proxy else ""), scored),
        (f"trained {alone:,} architectures by themselves", alone),
        (
            f"evaluated {trials - scored - alone:,} architectures with the weights of a supernet",
            trials > scored + alone,
        ),
    ]
    done = [words for words, there in steps if there] or ["ran"]
    how = {"finetune": "fine-tuned", "retrain": "trained from scratch", "inherit": "used with its inherited weights"}
    last = f" The best network was then {how[result.final]}." if result.final in how else ""
    search = facts.search_seconds
    if facts.tailored:
        before = "the whole network was fine-tuned and its parts ordered; then "
        last = last.replace(".", ", with the whole network as its teacher.")
        if not any(t.stage == "search" for t in facts.trials):
            tried = sum(t.stage.startswith("shape-") for t in facts.trials)
            shapes = f" {counted(tried, 'shape')} were trained for a short while." if tried else ""
            cut = "The whole network was fine-tuned, its parts ordered, and then cut to the limits, all blocks alike."
            if "refit" in facts.spent:
                cut = cut.replace(", all blocks alike", ", all blocks alike, and refitted to follow the whole one")
            return f"{cut}{shapes}{last.replace('best', 'cut')}{time}{'.' if time else ''}"
    time += f", the search {duration(search)} of it." if time and search else "." if time else ""
    together = ", ".join(done[:-1]) + f" and {done[-1]}" if len(done) > 1 else done[0]
    return f"{before}the search ({clean(facts.method or 'method not recorded', 40)}) {together}.{last}{time}"


def _started(facts: Facts) -> str:
    """The network before fine-tuning."""
    start = facts.result.start
    if len(start.image_size) != 2:
        return ""
    head = "kept its head" if start.head == "kept" else "got a new head"
    before = percent(start.test_accuracy)
    first = f"; before training it classified {before} of the test images correctly" if before else ""
    return f" The network comes from one for {start.image_size[0]}x{start.image_size[1]} px and {head}{first}."


def _limits(facts: Facts) -> Figure | None:
    """How much of the limit the network uses; the tightest limit is drawn, all are in the numbers."""
    result, found, baseline = facts.result, facts.result.found, facts.result.baseline
    known: list[tuple[str, float, float | None, float | None, float | None]] = []
    for metric, bounds in result.limits.items():
        value = found.cost(metric)
        if value is not None and value >= 0 and (bounds.min or bounds.max):
            known.append((metric, value, baseline.cost(metric), bounds.min, bounds.max))
    if not known:
        return None
    metric, value, other, low, high = max(known, key=lambda row: row[1] / row[4] if row[4] else 0.0)
    rows = [("found", value, size(value, metric) or "", "c0")]
    if other is not None and other >= 0:
        rows.append((result.rival, other, size(other, metric) or "", "c4"))
    marks = [(v, f"{word} {size(v, metric)}") for v, word in ((low, "at least"), (high, "at most")) if v and v > 0]
    name = clean(metric_name(metric), 40)
    share = f" The network found uses {100 * value / high:.0f} % of the upper limit." if high else ""
    title = f"Size and limit: {name}"
    return Figure(
        "result-limits",
        title,
        f"Bars show {name}, dashed lines the limits.{share}",
        ("metric", "found", result.rival, "at least", "at most"),
        known,
        charts.levels(rows, marks, title),
    )


def _accuracy(facts: Facts) -> Figure | None:
    images = facts.test_images
    known = [(clean(name, 60), n.test_accuracy) for n, name, _ in networks(facts)]
    if not images or known[0][1] is None:
        return None
    rows = [(name, v, *interval(v, images), images) for name, v in known if v is not None]
    styles = {"found": "c0", facts.result.rival: "c4"}
    title = "Accuracy on the test images"
    dots = []
    for name, v, low, high, _ in rows:
        words = f"{name}: {v:.2f} %, between {low:.2f} and {high:.2f} %"
        mark = charts.Mark(v, styles.get(name, "c5"), words, (low, high))
        dots.append((name, [mark]))
    svg = charts.dot_rows(dots, title, "accuracy, %")
    caption = f"Dots: accuracy on {images:,} test images. Whiskers: its 95 % interval (Wilson)."
    return Figure("result-accuracy", title, caption, ("network", "accuracy", "low", "high", "images"), rows, svg)


def _time(facts: Facts) -> Figure | None:
    total = sum(facts.spent.values())
    if total <= 0:
        return None
    sums: dict[str, float] = {}
    for stage, seconds in facts.spent.items():
        kind = stage.partition("-")[0]
        kind = kind if kind in TIMES else "other"
        sums[kind] = sums.get(kind, 0.0) + seconds
    names = {k: name for k, (_, name) in TIMES.items()}
    names |= {"baseline": "training the first blocks", "final": "training what was found"} if facts.tailored else {}
    pieces = [(names[k], v, f"{duration(v)}, {100 * v / total:.0f} %", TIMES[k][0]) for k, v in sums.items()]
    title = f"Time by kind of work: {duration(total)}"
    return Figure(
        "result-time",
        title,
        "Working time, summed over all resumes. Other work: samples of the spaces, the analysis for this page.",
        ("stage", "seconds", "share"),
        [(stage, seconds, seconds / total) for stage, seconds in facts.spent.items()],
        charts.stack(pieces, title),
        tuple((style, f"{name} {words}") for name, _, words, style in pieces),
    )
