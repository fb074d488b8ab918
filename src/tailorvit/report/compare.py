"""Several runs side by side: groups over seeds, mean and spread, intervals of differences, figures, and the page."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from tailorvit import units
from tailorvit.errors import TailorError
from tailorvit.report.charts import COLOURS, WIDTH, Axes, Figure, Point, bar, svg, text, thin, tip, trim
from tailorvit.report.fields import table, whole, whole_text
from tailorvit.report.files import csv_text, write_figures, write_page
from tailorvit.report.markup import (
    cell,
    clean,
    counted,
    duration,
    fold,
    grid,
    limits_in_words,
    metric_name,
    pair,
    percent,
    points,
    size,
    soft,
    stage_name,
)
from tailorvit.report.page import navigation, shell
from tailorvit.report.reading import Facts, Limit, collect
from tailorvit.report.result import TIMES
from tailorvit.report.space import error_curve
from tailorvit.runs.atomic import dumps

# Keys in which runs of one group may differ: chance, the machine, and how work is divided.
NEUTRAL = (
    *("seed", "device", "threads", "tensorboard", "data.cache", "data.source", "evaluate.batch"),
    "evaluate.throughput",
    *("trunk.batch", "trunk.cache"),
    *(f"{part}.{key}" for part in ("train", "final.train") for key in ("checkpoint_seconds", "compile")),
)
METRICS = ("test_accuracy", "params", "macs", "search_seconds", "baseline_accuracy", "gain")
# Beside these, in a table of their own.
MORE = {
    "top5_accuracy": "top-5 accuracy",
    "macro_f1": "macro-F1",
    "balanced_accuracy": "balanced accuracy",
    "calibration_error": "calibration error",
    "latency": "latency",
    "images_per_second": "images a second",
}
_NUMBERS = ("test accuracy", "parameters", "MACs", "search time", "baseline", "gain")
HEADS, GROUP_HEADS = ("run", "group", "seed", "status", *_NUMBERS), ("group", "n", *_NUMBERS)
MORE_HEADS, GROUP_MORE_HEADS = ("run", "group", *MORE.values()), ("group", "n", *MORE.values())
LEVEL = 0.95
ENOUGH = 3  # runs on each side before a difference gets a verdict
_PAIRS = 6  # up to so many groups are compared with each other; more, with the first only
_OPEN = 16  # differing recipe keys in the open table; the others are folded
_KEYS = 200  # differing recipe keys on the page; the JSON holds all
_NAME = 40  # characters of a name in a legend
Seeded = Sequence[tuple[int | None, float]]  # (seed, value)


# -- mean, spread and differences -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stat:
    """A number over runs; one run has no spread."""

    n: int
    mean: float
    sd: float | None
    low: float
    high: float

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {"n": self.n, "mean": self.mean, "sd": self.sd, "min": self.low, "max": self.high}


@dataclass(frozen=True)
class Gap:
    """A mean difference; ``low`` and ``high`` are its 95 % t interval where there are enough runs for one."""

    kind: str  # paired (by seed), welch (unpaired) or plain (no interval)
    n: tuple[int, int]  # runs on each side, or pairs
    mean: float
    low: float | None = None
    high: float | None = None

    def words(self) -> str:
        """The difference in a sentence, with how far it can be trusted."""
        count = {
            "paired": f"{self.n[0]} pairs of the same seed",
            "welch": f"unpaired, n = {self.n[0]} and {self.n[1]}",
            "plain": f"n = {self.n[0]} and {self.n[1]}",
        }[self.kind]
        words = f"{self.mean:+.2f} points ({count})"
        if self.low is not None and self.high is not None:
            words += f", 95 % interval {self.low:+.2f} to {self.high:+.2f}"
        if min(self.n) < ENOUGH:
            return f"{words}; too few runs to judge."
        if self.low is None or self.high is None:
            return f"{words}."
        inside = self.low <= 0 <= self.high
        return f"{words}; {'it includes 0: no clear difference' if inside else 'it does not include 0'}."


def stat(values: Sequence[float]) -> Stat | None:
    """Mean, sample deviation and range; None without values."""
    if not values:
        return None
    return Stat(len(values), fmean(values), stdev(values) if len(values) > 1 else None, min(values), max(values))


def _reach(error: float, freedom: float) -> float:
    from scipy.stats import t

    return float(t.ppf((1 + LEVEL) / 2, freedom)) * error


def paired(differences: Sequence[float]) -> Gap:
    """From differences within pairs: the paired t interval."""
    n, mean = len(differences), fmean(differences)
    if n < 2:
        return Gap("plain", (n, n), mean)
    reach = _reach(stdev(differences) / math.sqrt(n), n - 1)
    return Gap("paired", (n, n), mean, mean - reach, mean + reach)


def welch(first: Sequence[float], second: Sequence[float]) -> Gap:
    """Second less first, with unequal spread: Welch's t interval."""
    sizes, mean = (len(first), len(second)), fmean(second) - fmean(first)
    if min(sizes) < 2:
        return Gap("plain", sizes, mean)
    parts = [stdev(side) ** 2 / len(side) for side in (first, second)]
    if not sum(parts):
        return Gap("welch", sizes, mean, mean, mean)
    freedom = sum(parts) ** 2 / sum(p * p / (len(side) - 1) for p, side in zip(parts, (first, second), strict=True))
    reach = _reach(math.sqrt(sum(parts)), freedom)
    return Gap("welch", sizes, mean, mean - reach, mean + reach)


def gap(first: Seeded, second: Seeded) -> Gap | None:
    """Second less first, from (seed, value): paired where two or more seeds are the same, else unpaired."""
    if not first or not second:
        return None
    a, b = _by_seed(first), _by_seed(second)
    shared = sorted(set(a) & set(b))
    if len(shared) >= 2:
        return paired([b[seed] - a[seed] for seed in shared])
    return welch([v for _, v in first], [v for _, v in second])


def _by_seed(values: Seeded) -> Mapping[int, float]:
    """One value per seed: the mean where a seed was run more than once."""
    every: dict[int, list[float]] = {}
    for seed, value in values:
        if seed is not None:
            every.setdefault(seed, []).append(value)
    return {seed: fmean(vs) for seed, vs in every.items()}


# -- runs and groups --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunRow:
    """One run. ``counted`` says whether it enters the means."""

    name: str
    path: str
    group: int
    status: str
    seed: int | None
    method: str
    source: str
    limits: str
    test_accuracy: float | None
    params: float | None
    macs: float | None
    search_seconds: float | None
    baseline_accuracy: float | None
    gain: float | None
    top5_accuracy: float | None
    macro_f1: float | None
    balanced_accuracy: float | None
    calibration_error: float | None
    latency: float | None
    images_per_second: float | None
    conditions: str  # of the images a second
    counted: bool
    facts: Facts = field(repr=False, compare=False)

    def cells(self) -> tuple[str | None, ...]:
        """The row of the table."""
        return (
            clean(self.name),
            str(self.group),
            None if self.seed is None else str(self.seed),
            self.status,
            percent(self.test_accuracy),
            size(self.params),
            size(self.macs, "macs"),
            None if self.search_seconds is None else duration(self.search_seconds),
            percent(self.baseline_accuracy),
            points(self.gain),
        )

    def more_cells(self) -> tuple[str | None, ...]:
        """The row of the table with the other figures; None where it has none of them."""
        values = ((key, getattr(self, key)) for key in MORE)
        return clean(self.name), str(self.group), *(None if v is None else _more_words(key, v) for key, v in values)


def _more_words(key: str, value: float) -> str:
    """A figure of the second table."""
    if key == "latency":
        return units.show(value, "latency")
    return f"{value:,.0f}" if key == "images_per_second" else f"{value:.2f}"


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed only."""

    number: int
    name: str
    label: str  # the part of its name that the other groups do not share
    runs: tuple[str, ...]
    counted: int
    stats: Mapping[str, Stat]
    against_baseline: Gap | None

    def cells(self) -> tuple[str | None, ...]:
        """The row of the table: mean and deviation; the accuracy with its range, or with the remark (one run)."""

        def shown(key: str, words: Callable[[float], str]) -> str | None:
            s = self.stats.get(key)
            if s is None:
                return None
            spread = "" if s.sd is None or s.low == s.high else f" ± {words(s.sd).lstrip('+')}"
            if key != "test_accuracy":
                return words(s.mean) + spread
            span = f" ({words(s.low)} to {words(s.high)})" if spread else ""
            return f"{words(s.mean)} (one run)" if s.sd is None else words(s.mean) + spread + span

        return (
            str(self.number),
            str(self.counted),
            shown("test_accuracy", "{:.2f}".format),
            shown("params", units.show),
            shown("macs", lambda v: units.show(v, "macs")),
            shown("search_seconds", duration),
            shown("baseline_accuracy", "{:.2f}".format),
            shown("gain", "{:+.2f}".format),
        )

    def more_cells(self) -> tuple[str | None, ...]:
        """The row of the table with the other figures: mean and deviation."""

        def shown(key: str) -> str | None:
            s = self.stats.get(key)
            if s is None:
                return None
            spread = "" if s.sd is None or s.low == s.high else f" ± {_more_words(key, s.sd)}"
            return _more_words(key, s.mean) + spread

        return str(self.number), str(self.counted), *(shown(key) for key in MORE)


@dataclass(frozen=True)
class Comparison:
    """Runs, groups, the differences between groups, the recipe keys that differ, and remarks."""

    runs: tuple[RunRow, ...]
    groups: tuple[Group, ...]
    gaps: tuple[tuple[int, int, Gap], ...]  # (group, other group, other less group) in test accuracy
    keys: tuple[tuple[str, tuple[str, ...]], ...]  # (recipe key, its value in every run)
    notes: tuple[str, ...]

    @property
    def more(self) -> bool:
        """Whether any run has figures for the second table."""
        return any(getattr(r, key) is not None for r in self.runs for key in MORE)

    def sentences(self) -> list[str]:
        """The differences in words."""
        words = [
            f"Group {g.number} against its own baselines: {g.against_baseline.words()}"
            for g in self.groups
            if g.against_baseline is not None
        ]
        words += [f"Group {b} against group {a}: {between.words()}" for a, b, between in self.gaps]
        if len(words) > 1:
            words.append(f"These are {len(words)} comparisons; their intervals are not widened for that.")
        return words

    def to_dict(self) -> dict[str, Any]:
        """Plain data for programs."""
        keys = ("name", "path", "group", "status", "seed", "method", "source", "limits", *METRICS, *MORE)
        keys += ("conditions", "counted")
        return {
            "format": 1,
            "runs": [{k: getattr(r, k) for k in keys} for r in self.runs],
            "groups": [
                {
                    "group": g.number,
                    "name": g.name,
                    "label": g.label,
                    "runs": list(g.runs),
                    "counted": g.counted,
                    "stats": {k: s.to_dict() for k, s in g.stats.items()},
                    "against_baseline": _plain(g.against_baseline) if g.against_baseline else None,
                }
                for g in self.groups
            ],
            "differences": [{"group": a, "other": b, **_plain(between)} for a, b, between in self.gaps],
            "recipe": {key: list(values) for key, values in self.keys},
            "notes": list(self.notes),
        }

    def csv(self) -> str:
        """One line per run, numbers unrounded."""
        keys = ("name", "group", "seed", "status", "counted", "method", "source", "limits", *METRICS, *MORE, "path")
        return csv_text(keys, [[getattr(r, k) for k in keys] for r in self.runs])

    def text(self) -> str:
        """Aligned tables for a terminal."""
        lines = _aligned(HEADS, [r.cells() for r in self.runs])
        lines += ["", *_aligned(GROUP_HEADS, [g.cells() for g in self.groups]), ""]
        if self.more:
            lines += [*_aligned(GROUP_MORE_HEADS, [g.more_cells() for g in self.groups]), ""]
        lines += [f"group {g.number}: {clean(g.name)}" for g in self.groups]
        lines += ["", *self.sentences()] if self.sentences() else []
        lines += ["", *(clean(note, 600) for note in self.notes)] if self.notes else []
        return "\n".join(lines)


def _plain(between: Gap) -> dict[str, Any]:
    return {**asdict(between), "n": list(between.n)}


def _aligned(head: Sequence[str], body: Sequence[Sequence[str | None]]) -> list[str]:
    cells = [list(head), *([v if v is not None else "-" for v in row] for row in body)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    return ["  ".join(v.ljust(w) for v, w in zip(row, widths, strict=True)).rstrip() for row in cells]


def compare(folders: Sequence[Path]) -> Comparison:
    """Put runs side by side; one run is allowed. Unfinished and damaged runs are listed, but not averaged."""
    if not folders:
        raise TailorError("Name at least one run folder to compare.")
    places = [Path(f) for f in folders]
    seen: set[Path] = set()
    for place in places:
        if place.resolve() in seen:
            raise TailorError(f"'{place}' was given twice; each run counts once.")
        seen.add(place.resolve())
    every = [collect(place) for place in places]
    for place, facts in zip(places, every, strict=True):
        if facts.task_name:
            raise TailorError(
                f"'{place}' is a run of the task {facts.task_name}; compare takes runs that tell classes apart."
            )
    flat = [_flat(_current_keys(f.settings)) for f in every]
    kinds = [_experiment(f, keys) for f, keys in zip(every, flat, strict=True)]
    order = list(dict.fromkeys(kinds))
    rows = _each_seed_once(
        _row(name, place, order.index(kind) + 1, facts)
        for name, place, kind, facts in zip(_names(places), places, kinds, every, strict=True)
    )
    groups = _groups(rows, _titles(rows, flat))
    return Comparison(rows, groups, _gaps(rows, groups), _differing(rows, flat), _notes(rows))


def _each_seed_once(rows: Iterable[RunRow]) -> tuple[RunRow, ...]:
    """A seed counts once per group: a copy would make the spread look smaller than it is."""
    known: set[tuple[int, int]] = set()
    found = []
    for row in rows:
        if row.counted and row.seed is not None:
            row = replace(row, counted=(row.group, row.seed) not in known)
            known.add((row.group, row.seed or 0))
        found.append(row)
    return tuple(found)


def _names(places: Sequence[Path]) -> list[str]:
    """The shortest endings of the paths that differ."""
    parts = [p.resolve().parts for p in places]
    for count in range(1, max(map(len, parts)) + 1):
        names = ["/".join(p[-count:]) for p in parts]
        if len(set(names)) == len(names):
            break
    return names


def _flat(settings: Mapping[str, Any], before: str = "") -> dict[str, str]:
    """A recipe as ``train.epochs -> 40``."""
    flat: dict[str, str] = {}
    for key, value in settings.items():
        name = f"{before}{key}"
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{name}.")
        else:
            flat[name] = dumps(value) if isinstance(value, bool | int | float | list | None) else str(value)
    return flat


def _current_keys(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """A recipe in today's keys with all defaults, so that runs of different versions can be one group."""
    from tailorvit.config import configure, modernised

    try:
        return asdict(configure(modernised(settings, "an older version")))
    except (TailorError, TypeError, LookupError):  # damaged, or with keys that are gone: compared as it is
        return settings


def _matters(key: str) -> bool:
    return key not in NEUTRAL and not key.startswith(("limits.", "analysis."))


def _source(facts: Facts) -> str:
    return facts.data.source or str(table(facts.settings.get("data")).get("source") or "data not recorded")


def _limits(facts: Facts) -> str:
    """The limits in words, however they were written; from the recipe while there is no result."""
    limits: dict[str, dict[str, float]] = {}
    for key, value in table(facts.settings.get("limits")).items():
        side, _, metric = key.partition("_")
        try:
            limits.setdefault(metric, {})[side] = units.parse(value, metric)
        except (TailorError, KeyError):
            continue
    recipe = {metric: Limit(min=bounds.get("min"), max=bounds.get("max")) for metric, bounds in limits.items()}
    return limits_in_words(facts.result.limits or recipe) or "no limit"


def _experiment(facts: Facts, flat: Mapping[str, str]) -> tuple[Any, ...]:
    """What runs of one group share. The fingerprint stands for the images, whose folder may be named differently."""
    images = table(facts.info.get("data")).get("fingerprint") or _source(facts)
    return facts.method, str(images), _limits(facts), tuple(sorted((k, v) for k, v in flat.items() if _matters(k)))


def _row(name: str, place: Path, group: int, facts: Facts) -> RunRow:
    result, found, other = facts.result, facts.result.test_accuracy, facts.result.baseline.test_accuracy
    seeds = (result.seed, whole(facts.info.get("seed")), whole(facts.settings.get("seed")))
    return RunRow(
        name=name,
        path=str(place),
        group=group,
        status="not finished" if facts.status == "running" else facts.status,
        seed=next((s for s in seeds if s is not None), None),
        method=facts.method or "method not recorded",
        source=_source(facts),
        limits=_limits(facts),
        test_accuracy=found,
        params=result.params,
        macs=result.macs,
        search_seconds=facts.search_seconds,
        baseline_accuracy=other,
        gain=None if found is None or other is None else found - other,
        top5_accuracy=result.metrics.top5_accuracy,
        macro_f1=result.metrics.macro_f1,
        balanced_accuracy=result.metrics.balanced_accuracy,
        calibration_error=result.metrics.calibration_error,
        latency=result.cost("latency"),
        images_per_second=result.throughput.images_per_second,
        conditions=result.throughput.conditions,
        counted=facts.finished and found is not None,
        facts=facts,
    )


def _titles(rows: Sequence[RunRow], flat: Sequence[Mapping[str, str]]) -> dict[int, list[str]]:
    """The parts of every group's name: method, images, limits, and the keys in which similar groups differ."""
    firsts = {r.group: i for i, r in reversed(list(enumerate(rows)))}
    heads = {g: [rows[i].method, rows[i].source, rows[i].limits] for g, i in firsts.items()}
    titles = {}
    for number in sorted(firsts):
        same = [firsts[g] for g, head in heads.items() if head == heads[number]]
        keys = sorted({k for i in same for k in flat[i] if _matters(k) and len({flat[j].get(k) for j in same}) > 1})
        mine = flat[firsts[number]]
        # The final training follows the recipe's own unless it says otherwise; once is enough.
        shown = [k for k in keys if k not in (f"final.{other}" for other in keys) or mine.get(k) != mine.get(k[6:])]
        titles[number] = heads[number] + [f"{k} = {mine.get(k, 'not set')}" for k in shown[:3]]
        titles[number] += [f"and {counted(len(shown) - 3, 'more key')}"] if len(shown) > 3 else []
    return titles


def _groups(rows: Sequence[RunRow], titles: Mapping[int, Sequence[str]]) -> tuple[Group, ...]:
    shared = set.intersection(*(set(parts) for parts in titles.values())) if len(titles) > 1 else set()
    groups = []
    for number, parts in titles.items():
        mine = [r for r in rows if r.group == number]
        counted = [r for r in mine if r.counted]
        values = {k: [v for r in counted if (v := getattr(r, k)) is not None] for k in (*METRICS, *MORE)}
        stats = {k: s for k, vs in values.items() if (s := stat(vs)) is not None}
        against = paired(values["gain"]) if values["gain"] else None
        label = ", ".join(p for p in parts if p not in shared) or ", ".join(parts)
        names = tuple(r.name for r in mine)
        groups.append(Group(number, ", ".join(parts), label, names, len(counted), stats, against))
    return tuple(groups)


def _gaps(rows: Sequence[RunRow], groups: Sequence[Group]) -> tuple[tuple[int, int, Gap], ...]:
    def values(group: Group) -> Seeded:
        mine = (r for r in rows if r.group == group.number and r.counted)
        return [(r.seed, r.test_accuracy) for r in mine if r.test_accuracy is not None]

    pairs = combinations(groups, 2) if len(groups) <= _PAIRS else ((groups[0], g) for g in groups[1:])
    found = ((a.number, b.number, gap(values(a), values(b))) for a, b in pairs)
    return tuple((a, b, between) for a, b, between in found if between is not None)


def _differing(rows: Sequence[RunRow], flat: Sequence[Mapping[str, str]]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Recipe keys and versions that are not the same in all runs."""
    every = [
        {**f, **{f"version of {k}": str(v) for k, v in table(r.facts.info.get("versions")).items()}}
        for r, f in zip(rows, flat, strict=True)
    ]
    keys = dict.fromkeys(k for row in every for k in row)
    found = ((k, tuple(row.get(k, "not set") for row in every)) for k in keys)
    return tuple((k, values) for k, values in found if len(set(values)) > 1)


def _notes(rows: Sequence[RunRow]) -> tuple[str, ...]:
    notes = []
    for r in rows:
        if not r.facts.finished:
            notes.append(f"{r.name} is {r.status} and not in the means.")
        elif r.test_accuracy is None:
            notes.append(f"{r.name} has no test accuracy and is not in the means.")
        elif not r.counted:
            notes.append(f"{r.name} repeats seed {r.seed} of group {r.group} and is not in the means.")
        notes += [f"{r.name}: {s}" for s in r.facts.missing if "has not finished" not in s]
        if not r.facts.settings:
            notes.append(f"{r.name}: its recipe cannot be read, so it forms a group of its own.")
    if len(measured := {r.conditions for r in rows if r.conditions}) > 1:
        notes.append(
            f"Images a second were measured in several ways, which do not compare: {'; '.join(sorted(measured))}."
        )
    singles = [str(g) for g in sorted({r.group for r in rows}) if sum(r.counted for r in rows if r.group == g) == 1]
    if singles:
        notes.append(f"One finished run only, so no spread: group {', '.join(singles)}.")
    return tuple(notes)


# -- figures ----------------------------------------------------------------------------------------------------------


def _colour(group: int) -> str:
    return f"c{(group - 1) % COLOURS}"


def _legend(comparison: Comparison) -> tuple[tuple[str, str], ...]:
    return tuple((_colour(g.number), f"{g.number}: {clean(g.label)}") for g in comparison.groups)


def _who(row: RunRow) -> str:
    return f"{clean(row.name, _NAME)}, seed {'not known' if row.seed is None else row.seed}"


def _accuracy(comparison: Comparison) -> Figure | None:
    """Test accuracy: a dot per run, the mean with one standard deviation, rings for the baselines."""
    found = [(r, r.test_accuracy) for r in comparison.runs if r.counted and r.test_accuracy is not None]
    if not found:
        return None
    groups = [g for g in comparison.groups if g.counted]
    place = {g.number: float(i) for i, g in enumerate(groups)}
    stats = {g.number: g.stats["test_accuracy"] for g in groups}
    heights = [
        *(a for _, a in found),
        *(r.baseline_accuracy for r, _ in found if r.baseline_accuracy is not None),
        *(v for s in stats.values() for v in (s.mean - (s.sd or 0), s.mean + (s.sd or 0))),
    ]
    names = {x: str(number) for number, x in place.items()}
    axes = Axes([-0.5, len(groups) - 0.5], heights, "group", "test accuracy, %", x_names=names)
    for row, value in found:
        same = [r for r, _ in found if r.group == row.group]
        shift = 0.0 if len(same) == 1 else 0.24 * (same.index(row) / (len(same) - 1) - 0.5)
        x = place[row.group] + shift
        if row.baseline_accuracy is not None:
            words = f"baseline of {_who(row)}: {row.baseline_accuracy:.2f} %"
            axes.dot((x + 0.03, row.baseline_accuracy), "ring c5", 3.5, words)
        axes.dot((x - 0.03, value), f"dot solid {_colour(row.group)}", 4, f"{_who(row)}: {value:.2f} %")
    for number, s in stats.items():
        x, a, b = axes.x(place[number] + 0.28), axes.y(s.mean - (s.sd or 0)), axes.y(s.mean + (s.sd or 0))
        words = f"group {number}: mean {s.mean:.2f} %, " + ("one run" if s.sd is None else f"sd {s.sd:.2f}, n = {s.n}")
        ends = "" if s.sd is None else f"M{x:.1f} {a:.1f}V{b:.1f}M{x - 4:.1f} {a:.1f}h8M{x - 4:.1f} {b:.1f}h8"
        axes.parts.append(f'<path class="whisker" d="{ends}M{x - 8:.1f} {axes.y(s.mean):.1f}h16"{tip(words)}/>')
    rows = [(r.name, r.group, r.seed, a, r.baseline_accuracy) for r, a in found]
    caption = "Dot: a run. Grey ring: its baseline. Beside them: the mean with one standard deviation to both sides."
    columns = ("run", "group", "seed", "test accuracy, %", "baseline, %")
    title = "Test accuracy by group"
    return Figure("compare-accuracy", title, caption, columns, rows, axes.svg(title), _legend(comparison))


def _sizes(comparison: Comparison) -> Figure | None:
    """Test accuracy against parameters."""
    every: dict[str, list[tuple[RunRow, float, float]]] = {"baseline": [], "found": []}
    for r in comparison.runs:
        if r.counted and r.params is not None and r.test_accuracy is not None:
            every["found"].append((r, r.params, r.test_accuracy))
            other = r.facts.result.baseline.params
            if other is not None and r.baseline_accuracy is not None:
                every["baseline"].append((r, other, r.baseline_accuracy))
    if not every["found"]:
        return None
    both = [*every["found"], *every["baseline"]]
    axes = Axes((p for _, p, _ in both), (a for _, _, a in both), "parameters", "test accuracy, %")
    for row, p, a in every["baseline"]:
        axes.dot((p, a), "ring c5", 3.5, f"baseline of {_who(row)}: {a:.2f} %, {p:,.0f} parameters")
    for row, p, a in every["found"]:
        axes.dot((p, a), f"dot solid {_colour(row.group)}", 4, f"{_who(row)}: {a:.2f} %, {p:,.0f} parameters")
    rows = [(r.name, r.group, kind, p, a) for kind in ("found", "baseline") for r, p, a in every[kind]]
    title = "Test accuracy against size"
    caption = "Higher and further left is better. Grey rings: the baselines of the same runs."
    columns = ("run", "group", "network", "parameters", "test accuracy, %")
    return Figure("compare-size", title, caption, columns, rows, axes.svg(title), _legend(comparison))


def _lines(
    comparison: Comparison,
    lines: Sequence[tuple[RunRow, Sequence[Point]]],
    key: str,
    title: str,
    caption: str,
    labels: tuple[str, str],
    stairs: bool = False,
    rules: Sequence[tuple[float, str]] = (),
    x_names: dict[float, str] | None = None,
) -> Figure | None:
    """One line per run in the colour of its group."""
    every = [p for _, line in lines for p in line]
    if not every:
        return None
    heights = [*(y for _, y in every), *(h for h, _ in rules)]
    axes = Axes((x for x, _ in every), heights, *labels, x_names=x_names)
    for height, words in rules:
        axes.rule(height, words, "c5")
    for row, line in lines:
        shown = thin(line, 400)
        axes.path(shown, f"line {_colour(row.group)}", stairs)
        if shown:
            words = f"{_who(row)}: {labels[1]} {shown[-1][1]:.6g}"
            axes.dot(shown[-1], f"dot solid {_colour(row.group)}", 3, words)
    rows = [(row.name, row.group, x, y) for row, line in lines for x, y in line]
    columns = ("run", "group", *labels)
    return Figure(key, title, caption, columns, rows, axes.svg(title), _legend(comparison))


def _path(comparison: Comparison) -> Figure | None:
    """The largest sub-network of every space visited, against the limit."""
    bounds = {m: [r.facts.result.limit(m).max for r in comparison.runs] for m in ("params", "macs")}
    metric = next((m for m, limits in bounds.items() if any(v is not None for v in limits)), "params")
    lines = []
    for row in comparison.runs:
        steps = [(s.t, s.params if metric == "params" else s.macs) for s in row.facts.spaces]
        lines.append((row, [(float(t), v) for t, v in steps if v is not None]))
    if not any(len(line) > 1 for _, line in lines):
        return None  # no space moved
    ends = {x: f"{x:g}" for _, line in lines for x, _ in line}
    name = metric_name(metric)
    caption = f"The {name} of the largest sub-network of each space visited. Dashed: the limit."
    labels = ("space visited", f"{name} of the largest")
    rules = [(v, "limit") for v in dict.fromkeys(bounds[metric]) if v is not None]
    names = ends if len(ends) <= 12 else None
    title = "Size of the search space"
    return _lines(comparison, lines, "compare-path", title, caption, labels, False, rules, names)


def _errors(comparison: Comparison) -> Figure | None:
    """The error distribution of the last space of every run."""
    lines = []
    for row in comparison.runs:
        samples: dict[int, list[float]] = {}
        for trial in row.facts.trials:
            name, _, place = trial.stage.partition("-")
            if name == "edf" and trial.accuracy is not None and (t := whole_text(place)) is not None:
                samples.setdefault(t, []).append(100 - trial.accuracy)
        curve = error_curve(samples[max(samples)]) if samples else []
        lines.append((row, [(curve[0][0], 0.0), *curve] if curve else []))
    caption = "Share of random sub-networks of the last space with at most this error on the search split. A curve"
    caption += " further to the left is a better space."
    labels = ("error, %", "share of sub-networks")
    return _lines(comparison, lines, "compare-edf", "Errors of the last space", caption, labels, True)


def _progress(comparison: Comparison) -> Figure | None:
    """Best accuracy so far over the trials of the search."""
    lines = []
    for row in comparison.runs:
        best, line = float("-inf"), []
        seen = [t.accuracy for t in row.facts.trials if t.stage == "search"]
        for i, value in enumerate(seen, 1):
            if value is not None:
                best = max(best, value)
                line.append((float(i), best))
        lines.append((row, line))
    caption = "On the search split with inherited weights: it ranks candidates and does not estimate test accuracy."
    labels = ("trial of the search", "best accuracy so far, %")
    return _lines(comparison, lines, "compare-progress", "Best accuracy so far", caption, labels, True)


def _seconds(comparison: Comparison) -> Figure | None:
    """Time by kind of stage, a bar per run."""
    spent = [(r, _kinds(r.facts)) for r in comparison.runs if r.facts.seconds]
    if not spent:
        return None
    kinds = dict.fromkeys(k for _, per in spent for k in per)
    looks = {k: TIMES.get(k, TIMES["other"]) for k in kinds}
    reach = max(sum(per.values()) for _, per in spent) or 1.0
    step = 38  # a line for the name, which may be long, and a bar under it
    parts = []
    for i, (row, per) in enumerate(spent):
        x, y = 4.0, 4 + step * i
        parts.append(f"<g{tip(_who(row))}>{text(4, y + 10, trim(f'{row.group}: {clean(row.name, 300)}', 58))}</g>")
        for kind, value in per.items():
            width = value / reach * (WIDTH - 92)
            words = tip(f"{_who(row)}: {clean(stage_name(kind), _NAME)} {duration(value)}")
            parts.append(bar(round(x, 1), y + 15, width, 16, f"edge {looks[kind][0]}", words))
            x += width
        parts.append(text(x + 5, y + 27, duration(sum(per.values()))))
    rows = [(r.name, r.group, kind, value) for r, per in spent for kind, value in per.items()]
    legend = tuple(dict.fromkeys(looks.values()))
    title, columns = "Time by kind of work", ("run", "group", "stage", "seconds")
    caption = "Working time of every run, summed over its resumes. Times of different machines do not compare."
    drawing = svg(parts, title, WIDTH, 8 + step * len(spent))
    return Figure("compare-seconds", title, caption, columns, rows, drawing, legend)


def _kinds(facts: Facts) -> dict[str, float]:
    """Seconds by kind: ``supernet-0`` and ``supernet-1`` are one."""
    kinds: dict[str, float] = {}
    for stage, value in facts.seconds.items():
        name, _, number = stage.rpartition("-")
        kind = name if name and number.isdecimal() else stage
        kinds[kind] = kinds.get(kind, 0.0) + max(value, 0.0)
    return kinds


def comparison_figures(comparison: Comparison) -> list[Figure]:
    """Every figure that has something to draw."""
    charts = (_accuracy, _sizes, _path, _errors, _progress, _seconds)
    return [figure for chart in charts if (figure := chart(comparison)) is not None]


# -- the page ---------------------------------------------------------------------------------------------------------


def render_comparison(comparison: Comparison) -> str:
    """The comparison as one page."""
    title = f"{counted(len(comparison.runs), 'run')} compared"
    drawn = pair(*(f.html() for f in comparison_figures(comparison)))
    parts = [
        ("groups", "Groups", "The groups", _group_section(comparison)),
        ("figures", "Figures", "Figures", drawn or soft("No run has anything to draw yet.")),
        ("runs", "Runs", "The runs", _run_section(comparison)),
        ("recipes", "Recipes", "Differences between the recipes", _recipe_section(comparison)),
    ]
    body = "".join(
        f'<section id="{key}"><h2>{number}. {cell(name)}</h2>\n{inner}\n</section>\n'
        for number, (key, _, name, inner) in enumerate(parts, 1)
    )
    links = navigation([(key, name) for key, name, _, _ in parts])
    items = "".join(f"<li>{cell(sentence)}</li>" for sentence in comparison.notes)
    notes = f'<div class="note"><ul>{items}</ul></div>\n' if items else ""
    return shell(f"{title} – TailorViT", f"{links}<main>\n<h1>{cell(title)}</h1>\n{notes}{body}</main>\n")


def _group_section(comparison: Comparison) -> str:
    words = "<p>Runs that differ only in their seed and the machine form one group.</p>"
    words += f"<ol>{''.join(f'<li>{cell(g.name)}</li>' for g in comparison.groups)}</ol>"
    words += grid(GROUP_HEADS, [g.cells() for g in comparison.groups], len(GROUP_HEADS) - 1, stack=True)
    words += soft(
        "Mean ± standard deviation over finished runs (lowest to highest). Gain: found less its own baseline."
    )
    if comparison.more:
        more = [g.more_cells() for g in comparison.groups]
        words += grid(GROUP_MORE_HEADS, more, len(GROUP_MORE_HEADS) - 1, stack=True)
        ways = "; ".join(sorted({r.conditions for r in comparison.runs if r.conditions}))
        words += soft(
            "On the test images, in percent. Macro-F1 and balanced accuracy count every class alike; of the calibration"
            f" error less is better. Images a second on the run's device{f' ({ways})' if ways else ''}."
        )
    items = "".join(f"<li>{cell(sentence)}</li>" for sentence in comparison.sentences())
    return words + (f"<h3>Differences in test accuracy</h3><ul>{items}</ul>" if items else "")


def _run_section(comparison: Comparison) -> str:
    keys = [(r.name, r.group, r.seed, r.status, *(getattr(r, m) for m in METRICS)) for r in comparison.runs]
    paths = grid(("run", "folder"), [(r.name, r.path) for r in comparison.runs])
    table_of_runs = grid(HEADS, [r.cells() for r in comparison.runs], 6, keys, stack=True)
    if comparison.more:
        rows = [r.more_cells() for r in comparison.runs]
        table_of_runs += fold("More figures of every run", grid(MORE_HEADS, rows, len(MORE_HEADS) - 1, stack=True))
    return table_of_runs + fold("Folders", paths)


def _recipe_section(comparison: Comparison) -> str:
    if not comparison.keys:
        return soft("All recipes are the same." if len(comparison.runs) > 1 else "There is one run only.")
    head = ("key", *(r.name for r in comparison.runs))
    rest = len(comparison.keys) - _KEYS
    more = soft(f"{rest} more keys differ.") if rest > 0 else ""
    rows = [(key, *values) for key, values in comparison.keys[:_KEYS]]
    later = fold(f"{len(rows) - _OPEN} more keys", grid(head, rows[_OPEN:])) if rows[_OPEN:] else ""
    return grid(head, rows[:_OPEN]) + later + more


def write_comparison(comparison: Comparison | Sequence[Path], out: Path) -> Path:
    """Write the page of a comparison, or of some folders, in one step."""
    ready = comparison if isinstance(comparison, Comparison) else compare(comparison)
    out = Path(out)
    if out.is_dir():
        raise TailorError(f"'{out}' is a folder; name the file to write, such as {out / 'compare.html'}.")
    return write_page(out, render_comparison(ready))


def write_comparison_figures(
    comparison: Comparison, folder: Path, formats: Sequence[str] = ("svg", "csv")
) -> list[Path]:
    """Every figure of a comparison as files."""
    return write_figures(comparison_figures(comparison), Path(folder), formats)
