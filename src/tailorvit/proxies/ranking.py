"""``tailorvit rank``: how well scores rank the architectures of a table, always beside #params, #MACs and depth.

Size alone ranks most tables well, so a score that only follows size looks good over all pairs. Among pairs whose
parameters differ by a few percent it does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tailorvit.arch import Arch
from tailorvit.errors import TailorError
from tailorvit.families import FAMILIES
from tailorvit.memory import usable_device
from tailorvit.proxies import proxy
from tailorvit.proxies.base import ProxySettings
from tailorvit.proxies.score import Scorer
from tailorvit.proxies.tables import Table, read_table, same_settings
from tailorvit.rng import generator
from tailorvit.space import Space
from tailorvit.stats import Floats, band_taus, ranks, spearman

FREE = ("params", "macs", "depth")  # cost nothing, so they stand beside every score
BAND = 0.05  # pairs of similar size differ by at most this share of their parameters
LEAST_ROWS = 5  # in a size bin that gets a correlation of its own
Values = list[float | None]  # one score per row, larger is better; None where there is none
# (family, shared settings, architectures, proxy names, seed) -> scores per proxy, and sentences about missing ones
ScoreArchs = Callable[
    [str, Mapping[str, Any], Sequence[Arch], Sequence[str], int], tuple[Mapping[str, Values], list[str]]
]


# -- agreement of one score with one accuracy -------------------------------------------------------------------------


@dataclass(frozen=True)
class Estimate:
    """A correlation and its 95 % bootstrap interval over rows; None where one side is all ties or no pair is left."""

    value: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Agreement:
    """One score against one accuracy."""

    rows: int  # that have both
    tau: Estimate
    rho: Estimate
    pairs: int  # within the band
    band_tau: Estimate
    bins: int  # groups of rows of similar size
    bin_tau: float | None  # mean over the bins, weighted by pairs
    bin_rho: float | None  # mean over the bins, weighted by rows
    gain: Estimate | None = None  # band tau less that of the reference on the same rows and resamples
    by_seed: tuple[float | None, ...] = ()  # band tau of each seed's scores alone

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def agree(
    score: Sequence[float | None],
    truth: Floats,
    params: Floats,
    band: float,
    *,
    bootstrap: int = 200,
    seed: int = 0,
    reference: Floats | None = None,
) -> Agreement:
    """One score against one accuracy over the rows that have both; ``reference`` is a score to compare it with."""
    scores = np.array([np.nan if s is None else s for s in score], dtype=np.float64)
    both = np.isfinite(scores) & np.isfinite(truth)
    s, t, p = scores[both], truth[both], params[both]
    if len(s) < 2:
        nothing = Estimate(None, None, None)
        return Agreement(len(s), nothing, nothing, 0, nothing, 0, None, None)
    samples = resamples(len(s), bootstrap, seed)
    banded = band_taus(s, t, p, band, samples)
    gain = None
    if reference is not None:
        gain = estimate(banded - band_taus(reference[both], t, p, band, samples))
    groups = size_bins(p, band)
    bin_taus = [float(band_taus(s[g], t[g], p[g], None, np.ones((1, len(g))))[0]) for g in groups]
    bin_rhos = [spearman(s[g].tolist(), t[g].tolist()) for g in groups]
    return Agreement(
        rows=len(s),
        tau=estimate(band_taus(s, t, p, None, samples)),
        rho=estimate(_rhos(s, t, samples)),
        pairs=pairs_within(p, band),
        band_tau=estimate(banded),
        bins=len(groups),
        bin_tau=_weighted_mean(bin_taus, [len(g) * (len(g) - 1) / 2 for g in groups]),
        bin_rho=_weighted_mean([np.nan if r is None else r for r in bin_rhos], [len(g) for g in groups]),
        gain=gain,
    )


def pairs_within(params: Floats, band: float) -> int:
    """Pairs whose parameters differ by at most this share of the smaller."""
    logs = np.sort(np.log(params))
    last = np.searchsorted(logs, logs + np.log1p(band) + 1e-12, side="right")
    return int((last - np.arange(len(logs)) - 1).sum())


def size_bins(params: Floats, band: float) -> list[list[int]]:
    """Rows in groups of similar size, from the smallest upward, each as wide as the band; small groups are left out."""
    groups: list[list[int]] = []
    for i in np.argsort(params, kind="stable"):
        if groups and params[i] <= params[groups[-1][0]] * (1 + band):
            groups[-1].append(int(i))
        else:
            groups.append([int(i)])
    return [g for g in groups if len(g) >= LEAST_ROWS]


def resamples(rows: int, count: int, seed: int) -> Floats:
    """The table itself, then ``count`` resamples of its rows with replacement, as counts per row."""
    rng = generator(seed, "bootstrap")
    found = [np.ones(rows)]
    found += [np.bincount(rng.integers(0, rows, rows), minlength=rows).astype(np.float64) for _ in range(count)]
    return np.array(found)


def estimate(values: Floats) -> Estimate:
    """The first value with the middle 95 % of the others."""
    first, rest = values[0], values[1:][np.isfinite(values[1:])]
    if not np.isfinite(first):
        return Estimate(None, None, None)
    low, high = (float(v) for v in np.quantile(rest, (0.025, 0.975))) if len(rest) else (None, None)
    return Estimate(float(first), low, high)


def _rhos(score: Floats, truth: Floats, samples: Floats) -> Floats:
    """Spearman's rho of every resample: the weighted correlation of the mean ranks."""
    found = []
    for counts in samples:
        x, y = (_weighted_ranks(v, counts) for v in (score, truth))
        total = counts.sum()
        x, y = x - (counts * x).sum() / total, y - (counts * y).sum() / total
        scale = np.sqrt((counts * x * x).sum() * (counts * y * y).sum())
        found.append((counts * x * y).sum() / scale if scale > 0 else np.nan)
    return np.array(found)


def _weighted_ranks(values: Floats, counts: Floats) -> Floats:
    _, place = np.unique(values, return_inverse=True)
    weight = np.bincount(place, counts)
    middle: Floats = (np.cumsum(weight) - weight / 2)[place]
    return middle


def _weighted_mean(values: Sequence[float], weights: Sequence[float]) -> float | None:
    pairs = [(v, w) for v, w in zip(values, weights, strict=True) if np.isfinite(v)]
    total = sum(w for _, w in pairs)
    return float(sum(v * w for v, w in pairs) / total) if total else None


# -- all scores against all accuracies --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    """One score against one accuracy."""

    score: str
    target: str
    agreement: Agreement

    @property
    def verdict(self) -> str:
        """Whether it ranks networks of similar size better than their size does."""
        gain = self.agreement.gain
        if self.score == "params" or gain is None or gain.low is None or gain.high is None:
            return ""
        if gain.low > 0:
            return "better than #params"
        return "worse than #params" if gain.high < 0 else "no clear difference from #params"


@dataclass(frozen=True)
class Ranking:
    """How well the scores rank one table."""

    table: str
    form: str
    rows: int
    band: float
    seeds: int
    entries: tuple[Entry, ...]
    notes: tuple[str, ...]

    def of(self, target: str) -> list[Entry]:
        """The entries of one accuracy."""
        return [e for e in self.entries if e.target == target]

    @property
    def targets(self) -> list[str]:
        """The accuracies ranked against."""
        return list(dict.fromkeys(e.target for e in self.entries))

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "table": self.table,
            "form": self.form,
            "rows": self.rows,
            "band": self.band,
            "seeds": self.seeds,
            "results": [
                {"score": e.score, "target": e.target, "verdict": e.verdict, **e.agreement.to_dict()}
                for e in self.entries
            ],
            "notes": list(self.notes),
        }

    def text(self) -> str:
        """For the terminal."""
        lines = [f"{self.table} ({self.form}): {self.rows} architectures"]
        band = f"{100 * self.band:g} %"
        for target in self.targets:
            lines.append("")
            lines.append(f"{target}; {self.of(target)[0].agreement.pairs:,} pairs within {band} of size")
            head = ("score", "tau, all", "rho, all", f"tau, within {band}", "tau, bins", "verdict")
            rows = [head, *(self._cells(e) for e in self.of(target))]
            widths = [max(len(row[k]) for row in rows) for k in range(len(head))]
            lines += ["  " + "  ".join(cell.ljust(w) for cell, w in zip(row, widths)).rstrip() for row in rows]
        return "\n".join([*lines, *(["", *self.notes] if self.notes else [])])

    def _cells(self, entry: Entry) -> tuple[str, ...]:
        a = entry.agreement
        rows = f" ({a.rows} rows)" if a.rows < self.rows else ""
        known = [t for t in a.by_seed if t is not None]
        spread = f", seeds {min(known):.2f} to {max(known):.2f}" if len(known) > 1 else ""
        bins = "-" if a.bin_tau is None else f"{a.bin_tau:+.2f}"
        return entry.score + rows, _show(a.tau), _show(a.rho), _show(a.band_tau) + spread, bins, entry.verdict


def _show(e: Estimate) -> str:
    if e.value is None:
        return "-"
    return f"{e.value:+.2f}" + (f" [{e.low:+.2f}, {e.high:+.2f}]" if e.low is not None and e.high is not None else "")


def rank(
    table: Table,
    names: Sequence[str],
    score: ScoreArchs | None = None,
    *,
    target: str | None = None,
    band: float = BAND,
    seeds: int = 1,
    seed: int = 0,
    bootstrap: int = 200,
) -> Ranking:
    """Scores of all rows against the accuracies of the table; several seeds are merged by the sum of their ranks."""
    if not 0 < band < 10:
        raise TailorError(f"The band must be a share of the size above zero, for example 5%, not {band:g}.")
    if seeds < 1:
        raise TailorError(f"The number of seeds must be at least 1, not {seeds}.")
    if len(table.rows) < 2:
        raise TailorError(f"'{table.name}' has {len(table.rows)} row; a ranking needs at least 2.")
    table.check_target(target)
    targets = list(table.targets) if target is None else [target]
    notes = [*table.notes, *_missing_notes(table, targets)]
    needed = to_compute(names)
    counted: dict[str, Values] = dict(
        zip(FREE, (table.params.tolist(), table.macs.tolist(), table.blocks.tolist()), strict=True)
    )
    runs = []
    for k in range(seeds if needed else 1):
        found, said = _score_rows(table, needed, score or proxy_scores(ProxySettings()), seed + k)
        runs.append({**counted, **found})
        notes += said
    entries = []
    for key in targets:
        for name in dict.fromkeys((*FREE, *names)):
            by_seed = [run[name] for run in runs]
            entries.append(Entry(name, key, _agreement(by_seed, table, key, band, bootstrap, seed)))
    unique = tuple(dict.fromkeys(notes))
    return Ranking(table.name, table.form, len(table.rows), band, seeds, tuple(entries), unique)


def to_compute(names: Sequence[str]) -> list[str]:
    """Those of the proxies that have to be computed; an unknown name is an error that lists the known ones."""
    for name in names:
        proxy(name)
    return [n for n in dict.fromkeys(names) if n not in FREE]


def _agreement(by_seed: Sequence[Values], table: Table, key: str, band: float, bootstrap: int, seed: int) -> Agreement:
    truth, params = table.targets[key], table.params
    random = any(values != by_seed[0] for values in by_seed[1:])
    merged = rank_sum(by_seed) if random else by_seed[0]
    found = agree(merged, truth, params, band, bootstrap=bootstrap, seed=seed, reference=params)
    alone = [agree(v, truth, params, band, bootstrap=0).band_tau.value for v in by_seed] if random else []
    return replace(found, by_seed=tuple(alone))


def rank_sum(columns: Sequence[Sequence[float | None]]) -> Values:
    """Per row the sum of its ranks in all columns; a row that lacks one of the scores has none."""
    rows = list(zip(*columns, strict=True))
    whole = [i for i, row in enumerate(rows) if all(v is not None and np.isfinite(v) for v in row)]
    places = [ranks([float(rows[i][k] or 0.0) for i in whole]) for k in range(len(columns))]
    found: Values = [None] * len(rows)
    for n, i in enumerate(whole):
        found[i] = sum(column[n] for column in places)
    return found


def _missing_notes(table: Table, targets: Sequence[str]) -> list[str]:
    missing = [(key, table.missing(key)) for key in targets]
    return [f"'{key}' is null in {n} of {len(table.rows)} rows, which are left out for it." for key, n in missing if n]


def _score_rows(
    table: Table, names: Sequence[str], score: ScoreArchs, seed: int
) -> tuple[dict[str, Values], list[str]]:
    """Rows of one family and one set of settings are scored together."""
    found: dict[str, Values] = {n: [None] * len(table.rows) for n in names}
    notes: list[str] = []
    for group in same_settings(table.rows) if names else ():
        first = table.rows[group[0]]
        archs = [table.rows[i].arch for i in group]
        scores, said = score(first.arch.family, first.settings, archs, names, seed)
        notes += said
        for name in names:
            for i, value in zip(group, scores[name], strict=True):
                found[name][i] = value if value is not None and np.isfinite(value) else None
    return found, notes


def proxy_scores(settings: ProxySettings, device: str = "cpu") -> ScoreArchs:
    """The proxies as :func:`rank` takes them: larger is better, one sentence per proxy about missing scores."""

    def score(
        family: str, shared: Mapping[str, Any], archs: Sequence[Arch], names: Sequence[str], seed: int
    ) -> tuple[Mapping[str, Values], list[str]]:
        space = _common_space(family, archs) or family
        scored = Scorer(space, shared, replace(settings, names=tuple(names)), seed, device)(archs)
        notes = []
        for n in names:
            sentences = [s.problems[n] for s in scored if n in s.problems]
            if sentences:
                notes.append(f"{n} has no score for {len(sentences)} of {len(archs)} architectures: {sentences[0]}")
        return {n: [s.value(n) for s in scored] for n in names}, notes

    return score


def _common_space(name: str, archs: Sequence[Arch]) -> Space | None:
    """A named space that contains every row: one supernet for all; otherwise each row needs its own."""
    return next((s for s in FAMILIES[name].spaces.values() if all(s.contains(arch) for arch in archs)), None)


# -- the command ------------------------------------------------------------------------------------------------------


def rank_file(
    path: str | Path,
    names: Sequence[str],
    *,
    target: str | None = None,
    band: str = "5%",
    seeds: int = 1,
    seed: int = 0,
    limit: int | None = None,
    image_size: int | None = None,
    device: str = "cpu",
) -> Ranking:
    """Read a table and rank it."""
    width = share(band)
    needed = to_compute(names)  # an unknown name must stop before anything is read or scored
    table = read_table(path).limit(limit)
    table.check_target(target)
    without_images = [n for n in needed if proxy(n).needs == "images"]
    settings = ProxySettings(image_size=image_size, noise=bool(without_images))
    score = proxy_scores(settings, usable_device(device))
    found = rank(table, names, score, target=target, band=width, seeds=seeds, seed=seed)
    if without_images:
        note = f"{', '.join(without_images)} saw seeded noise and random labels: a table comes without images."
        found = replace(found, notes=(*found.notes, note))
    return found


def share(text: str) -> float:
    """A band as people write it: 5%, 5 % or 0.05."""
    try:
        bare = text.strip()
        return float(bare.removesuffix("%")) / 100 if bare.endswith("%") else float(bare)
    except ValueError:
        raise TailorError(f"Cannot read '{text}' as a band of sizes; write it like 5% or 0.05.") from None
