"""Compare: several runs side by side, grouped over seeds, with mean, spread and what the differences tell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from tailorvit import units
from tailorvit.errors import TailorError
from tailorvit.report.answer import search_seconds
from tailorvit.report.files import csv_text
from tailorvit.report.parts import clean, duration, limits_in_words, size
from tailorvit.report.records import Facts, real, table, whole
from tailorvit.report.snapshot import read
from tailorvit.report.spread import Gap, Stat, gap, paired, stat
from tailorvit.runs.atomic import dumps

# What a run may differ in and still count as the same experiment: chance, the machine, and how work is cut up.
NEUTRAL = (
    *("seed", "device", "threads", "tensorboard", "data.cache", "data.source", "evaluate.batch"),
    *("trunk.batch", "trunk.cache"),
    *(f"{part}.{key}" for part in ("train", "final.train") for key in ("checkpoint_seconds", "compile")),
)
METRICS = ("test_accuracy", "params", "macs", "search_seconds", "baseline_accuracy", "gain")
HEADS = ("run", "group", "seed", "status", "test accuracy", "parameters", "MACs", "search time", "baseline", "gain")
_PAIRS = 6  # up to so many groups are compared each with each; more, each with the first


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
    counted: bool
    facts: Facts = field(repr=False, compare=False)


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed only."""

    number: int
    name: str
    label: str  # the part of its name that tells it from the others
    runs: tuple[str, ...]
    counted: int
    stats: Mapping[str, Stat]
    against_baseline: Gap | None


@dataclass(frozen=True)
class Comparison:
    """Runs, groups, the differences between groups, the recipe keys that differ, and what was left out."""

    runs: tuple[RunRow, ...]
    groups: tuple[Group, ...]
    gaps: tuple[tuple[int, int, Gap], ...]  # (group, other group, other less group) in test accuracy
    keys: tuple[tuple[str, tuple[str, ...]], ...]  # (recipe key, its value in every run)
    notes: tuple[str, ...]

    def sentences(self) -> list[str]:
        """What the differences tell, in words."""
        text = [
            f"Group {g.number} against its own baselines: {g.against_baseline.words()}"
            for g in self.groups
            if g.against_baseline is not None
        ]
        text += [f"Group {b} against group {a}: {between.words()}" for a, b, between in self.gaps]
        if len(text) > 1:
            text.append(f"These are {len(text)} comparisons; their intervals are not widened for that.")
        return text

    def to_dict(self) -> dict[str, Any]:
        """Plain data for programs."""
        keys = ("name", "path", "group", "status", "seed", "method", "source", "limits", *METRICS, "counted")
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
                    "against_baseline": g.against_baseline.to_dict() if g.against_baseline else None,
                }
                for g in self.groups
            ],
            "differences": [{"group": a, "other": b, **between.to_dict()} for a, b, between in self.gaps],
            "recipe": {key: list(values) for key, values in self.keys},
            "notes": list(self.notes),
        }

    def csv(self) -> str:
        """One line a run, numbers unrounded."""
        keys = ("name", "group", "seed", "status", "counted", "method", "source", "limits", *METRICS, "path")
        return csv_text(keys, [[getattr(r, k) for k in keys] for r in self.runs])

    def text(self) -> str:
        """Aligned tables for a terminal."""
        lines = _aligned(HEADS, [run_cells(r) for r in self.runs])
        lines += ["", *_aligned(GROUP_HEADS, [group_cells(g) for g in self.groups]), ""]
        lines += [f"group {g.number}: {clean(g.name)}" for g in self.groups]
        lines += ["", *self.sentences()] if self.sentences() else []
        lines += ["", *map(clean_line, self.notes)] if self.notes else []
        return "\n".join(lines)


GROUP_HEADS = ("group", "n", "test accuracy", "parameters", "MACs", "search time", "baseline", "gain")


def clean_line(words: str) -> str:
    """A sentence for a terminal: no control characters from a file's name."""
    return clean(words, 600)


def run_cells(row: RunRow) -> tuple[str | None, ...]:
    """A run's figures in words."""
    return (
        clean(row.name),
        str(row.group),
        None if row.seed is None else str(row.seed),
        row.status,
        _number(row.test_accuracy, ".2f", " %"),
        size(row.params),
        size(row.macs, "macs"),
        None if row.search_seconds is None else duration(row.search_seconds),
        _number(row.baseline_accuracy, ".2f", " %"),
        _number(row.gain, "+.2f"),
    )


def group_cells(group: Group) -> tuple[str | None, ...]:
    """A group's figures in words: mean, deviation and range; one run stands alone."""

    def tell(key: str, show: Any) -> str | None:
        s = group.stats.get(key)
        if s is None:
            return None
        mean = show(s.mean)
        if s.sd is None:
            return f"{mean} (one run)"
        return mean if s.low == s.high else f"{mean} ± {show(s.sd).lstrip('+')} ({show(s.low)} to {show(s.high)})"

    return (
        str(group.number),
        str(group.counted),
        tell("test_accuracy", lambda v: f"{v:.2f}"),
        tell("params", units.show),
        tell("macs", lambda v: units.show(v, "macs")),
        tell("search_seconds", duration),
        tell("baseline_accuracy", lambda v: f"{v:.2f}"),
        tell("gain", lambda v: f"{v:+.2f}"),
    )


def _number(value: float | None, form: str, unit: str = "") -> str | None:
    return None if value is None else f"{value:{form}}{unit}"


def _aligned(head: Sequence[str], body: Sequence[Sequence[str | None]]) -> list[str]:
    cells = [list(head), *([v if v is not None else "-" for v in row] for row in body)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    return ["  ".join(v.ljust(w) for v, w in zip(row, widths, strict=True)).rstrip() for row in cells]


def compare(folders: Sequence[Path]) -> Comparison:
    """Read runs and put them side by side; one run is allowed. Unfinished and damaged ones are listed, not averaged."""
    if not folders:
        raise TailorError("Name at least one run folder to compare.")
    places = [Path(f) for f in folders]
    seen: dict[Path, Path] = {}
    for place in places:
        real_place = place.resolve()
        if real_place in seen:
            raise TailorError(f"'{place}' was given twice; each run counts once.")
        seen[real_place] = place
    every = [read(place) for place in places]
    flat = [_flat(f.settings) for f in every]
    alike = [_experiment(f, keys) for f, keys in zip(every, flat, strict=True)]
    order = list(dict.fromkeys(alike))
    rows = _once(
        _row(name, place, order.index(kind) + 1, facts)
        for name, place, kind, facts in zip(_names(places), places, alike, every, strict=True)
    )
    groups = _groups(rows, _titles(rows, flat))
    return Comparison(rows, groups, _gaps(rows, groups), _differing(rows, flat), _notes(rows))


def _once(rows: Iterable[RunRow]) -> tuple[RunRow, ...]:
    """Each seed of a group counts once: a copy or a repetition would make the spread look smaller than it is."""
    known: set[tuple[int, int]] = set()
    kept = []
    for row in rows:
        again = row.counted and row.seed is not None and (row.group, row.seed) in known
        if row.counted and row.seed is not None:
            known.add((row.group, row.seed))
        kept.append(replace(row, counted=False) if again else row)
    return tuple(kept)


def _names(places: Sequence[Path]) -> list[str]:
    """The shortest endings of the paths that tell the runs apart."""
    parts = [p.resolve().parts for p in places]
    deepest = max(map(len, parts))
    for count in range(1, deepest + 1):
        names = ["/".join(p[-count:]) for p in parts]
        if len(set(names)) == len(names):
            return names
    return ["/".join(p) for p in parts]


def _flat(settings: Mapping[str, Any], before: str = "") -> dict[str, str]:
    """A recipe as ``train.epochs -> 40``."""
    flat: dict[str, str] = {}
    for key, value in settings.items():
        name = f"{before}{key}"
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{name}.")
        else:
            flat[name] = value if isinstance(value, str) else dumps(value) if _plain(value) else str(value)
    return flat


def _plain(value: Any) -> bool:
    return isinstance(value, bool | int | float | list | None)


def _matters(key: str) -> bool:
    return key not in NEUTRAL and not key.startswith(("limits.", "analysis."))


def _source(facts: Facts) -> str:
    told = (facts.result.get("data"), facts.info.get("data"), facts.settings.get("data"))
    return next((str(s) for t in told if (s := table(t).get("source"))), "data not recorded")


def _limits(facts: Facts) -> str:
    """The limits in words, however they were spelled; read from the recipe while there is no result."""
    limits: dict[str, dict[str, float]] = {}
    for key, value in table(facts.settings.get("limits")).items():
        side, _, metric = key.partition("_")
        try:
            limits.setdefault(metric, {})[side] = units.parse(value, metric)
        except (TailorError, KeyError):
            continue
    return limits_in_words(facts.result.get("limits") or limits) or "no limit"


def _experiment(facts: Facts, flat: Mapping[str, str]) -> tuple[Any, ...]:
    """What runs of one group share. The fingerprint stands for the images: a folder may have another name elsewhere."""
    images = table(facts.info.get("data")).get("fingerprint") or _source(facts)
    kept = tuple(sorted((k, v) for k, v in flat.items() if _matters(k)))
    return facts.method, str(images), _limits(facts), kept


def _row(name: str, place: Path, group: int, facts: Facts) -> RunRow:
    result, baseline = facts.result, table(facts.result.get("baseline"))
    found, hand = real(result.get("test_accuracy")), real(baseline.get("test_accuracy"))
    seeds = (whole(t.get("seed")) for t in (result, facts.info, facts.settings))
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
        params=real(result.get("params")),
        macs=real(result.get("macs")),
        search_seconds=search_seconds(facts),
        baseline_accuracy=hand,
        gain=None if found is None or hand is None else found - hand,
        counted=facts.finished and found is not None,
        facts=facts,
    )


def _titles(rows: Sequence[RunRow], flat: Sequence[Mapping[str, str]]) -> dict[int, list[str]]:
    """The parts of every group's name: method, images, limits, and the keys that set it apart from one alike."""
    firsts = {r.group: i for i, r in reversed(list(enumerate(rows)))}
    heads = {g: [rows[i].method, rows[i].source, rows[i].limits] for g, i in firsts.items()}
    titles = {}
    for number in sorted(firsts):
        same = [firsts[g] for g, head in heads.items() if head == heads[number]]
        keys = sorted({k for i in same for k in flat[i] if _matters(k) and len({flat[j].get(k) for j in same}) > 1})
        mine = flat[firsts[number]]
        # The last training follows the recipe's own unless told otherwise; once is enough.
        told = [k for k in keys if k not in (f"final.{other}" for other in keys) or mine.get(k) != mine.get(k[6:])]
        titles[number] = heads[number] + [f"{k} = {mine.get(k, 'not set')}" for k in told[:3]]
        titles[number] += [f"and {len(told) - 3} more keys"] if len(told) > 3 else []
    return titles


def _groups(rows: Sequence[RunRow], titles: Mapping[int, Sequence[str]]) -> tuple[Group, ...]:
    shared = set.intersection(*(set(parts) for parts in titles.values())) if len(titles) > 1 else set()
    groups = []
    for number, parts in titles.items():
        mine = [r for r in rows if r.group == number]
        counted = [r for r in mine if r.counted]
        values = {k: [v for r in counted if (v := getattr(r, k)) is not None] for k in METRICS}
        stats = {k: s for k, vs in values.items() if (s := stat(vs)) is not None}
        against = paired(values["gain"]) if values["gain"] else None
        label = ", ".join(p for p in parts if p not in shared) or ", ".join(parts)
        names = tuple(r.name for r in mine)
        groups.append(Group(number, ", ".join(parts), label, names, len(counted), stats, against))
    return tuple(groups)


def _gaps(rows: Sequence[RunRow], groups: Sequence[Group]) -> tuple[tuple[int, int, Gap], ...]:
    pairs = combinations(groups, 2) if len(groups) <= _PAIRS else ((groups[0], g) for g in groups[1:])
    found = []
    for a, b in pairs:
        sides = [
            [
                (r.seed, r.test_accuracy)
                for r in rows
                if r.group == g.number and r.counted and r.test_accuracy is not None
            ]
            for g in (a, b)
        ]
        between = gap(sides[0], sides[1])
        if between is not None:
            found.append((a.number, b.number, between))
    return tuple(found)


def _differing(rows: Sequence[RunRow], flat: Sequence[Mapping[str, str]]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Recipe keys, and versions, that are not the same in all runs."""
    whole_rows = [
        {**f, **{f"version of {k}": str(v) for k, v in table(r.facts.info.get("versions")).items()}}
        for r, f in zip(rows, flat, strict=True)
    ]
    keys = dict.fromkeys(k for row in whole_rows for k in row)
    table_rows = ((k, tuple(row.get(k, "not set") for row in whole_rows)) for k in keys)
    return tuple((k, values) for k, values in table_rows if len(set(values)) > 1)


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
            notes.append(f"{r.name}: its recipe cannot be read, so it is a group of its own kind.")
    singles = [str(g) for g in sorted({r.group for r in rows}) if sum(r.counted for r in rows if r.group == g) == 1]
    if singles:
        notes.append(f"One finished run only, so no spread: group {', '.join(singles)}.")
    return tuple(notes)
