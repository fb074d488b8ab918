"""Ranking a table: every score against every accuracy, always beside #params, #MACs and depth."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from tailorvit.arch import Arch
from tailorvit.errors import TailorError, unknown
from tailorvit.families import FAMILIES
from tailorvit.proxies import PROXIES
from tailorvit.proxies.agreement import Agreement, Estimate, agree, rank_sum
from tailorvit.proxies.base import ProxySettings
from tailorvit.proxies.predictor import BAND, Predictor, default, pooled
from tailorvit.proxies.tables import Table, read_table
from tailorvit.space import Space

FREE = ("params", "macs", "depth")  # cost nothing, so they stand beside every score
PREDICTOR, SUM = "predictor", "rank:"
Scores = Mapping[str, Sequence[float | None]]  # larger is better in each
# (family, shared settings, architectures, names, seed) -> scores, larger is better; problems, a sentence a score
ScoreArchs = Callable[
    [str, Mapping[str, Any], Sequence[Arch], Sequence[str], int], tuple[Mapping[str, list[float | None]], list[str]]
]


@dataclass(frozen=True)
class Entry:
    """One score against one accuracy."""

    score: str
    target: str
    agreement: Agreement

    @property
    def verdict(self) -> str:
        """Whether it knows more than the size, among networks of like size."""
        gain = self.agreement.gain
        if self.score == "params" or gain is None or gain.low is None or gain.high is None:
            return ""
        if gain.low > 0:
            return "better than #params"
        return "worse than #params" if gain.high < 0 else "no clear difference from #params"


@dataclass(frozen=True)
class Ranking:
    """What the scores are worth on one table."""

    table: str
    form: str
    rows: int
    band: float
    seeds: int
    entries: tuple[Entry, ...]
    notes: tuple[str, ...]
    points: Mapping[str, Any]  # params, scores and targets, for figures

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
        """For people."""
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
        some = f" ({a.rows} rows)" if a.rows < self.rows else ""
        spread = ""
        known = [t for t in a.by_seed if t is not None]
        if len(known) > 1:
            spread = f", seeds {min(known):.2f} to {max(known):.2f}"
        bins = "-" if a.bin_tau is None else f"{a.bin_tau:+.2f}"
        return entry.score + some, _show(a.tau), _show(a.rho), _show(a.band_tau) + spread, bins, entry.verdict


def _show(e: Estimate) -> str:
    if e.value is None:
        return "-"
    return f"{e.value:+.2f}" + (f" [{e.low:+.2f}, {e.high:+.2f}]" if e.low is not None and e.high is not None else "")


def parse_names(names: Sequence[str]) -> list[str]:
    """Proxies a list of names needs, 'rank:a+b' taken apart; an unknown one lists those there are."""
    wanted = []
    for name in names:
        parts = name.removeprefix(SUM).split("+") if name.startswith(SUM) else [name]
        for part in parts:
            if part not in PROXIES:
                raise unknown("proxy", part, PROXIES)
            wanted.append(part)
    return [n for n in dict.fromkeys(wanted) if n not in FREE and n != PREDICTOR]


def scoring(settings: ProxySettings, device: str = "cpu", images: tuple[Tensor, Tensor] | None = None) -> ScoreArchs:
    """The proxies of the house as ``rank`` wants them: larger is better, trouble told once a proxy."""
    from tailorvit.proxies.score import Scorer

    def score(
        family: str, fixed: Mapping[str, Any], archs: Sequence[Arch], names: Sequence[str], seed: int
    ) -> tuple[Mapping[str, list[float | None]], list[str]]:
        home = _home(family, archs) or family
        scored = Scorer(home, fixed, replace(settings, names=tuple(names)), seed, device, images)(archs)
        found = {n: [None if s.scores[n] is None else s.rank_value(n) for s in scored] for n in names}
        trouble = []
        for n in names:
            sentences = [s.problems[n] for s in scored if n in s.problems]
            if sentences:
                trouble.append(f"{n} has no score for {len(sentences)} of {len(archs)} architectures: {sentences[0]}")
        return found, trouble

    return score


def _home(name: str, archs: Sequence[Arch]) -> Space | None:
    """A named space that holds every row: one supernet for all, where each row would need its own otherwise."""
    return next((s for s in FAMILIES[name].spaces.values() if all(s.contains(arch) for arch in archs)), None)


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
    predictor: Predictor | None = None,
) -> Ranking:
    """Scores of all rows (mean rank over seeds where there are several) against the accuracies of the table."""
    if not 0 < band < 10:
        raise TailorError(f"The band must be a share of the size above zero, for example 5%, not {band:g}.")
    if seeds < 1:
        raise TailorError(f"The number of seeds must be at least 1, not {seeds}.")
    if len(table.rows) < 2:
        raise TailorError(f"'{table.name}' has {len(table.rows)} row; a ranking needs at least 2.")
    targets = list(table.targets) if target is None else [table.target(target)]
    proxies = parse_names(names)
    if proxies and score is None:
        score = scoring(ProxySettings())
    notes: dict[str, None] = dict.fromkeys(table.notes)
    free = {"params": table.params.tolist(), "macs": table.macs.tolist(), "depth": table.blocks.tolist()}
    runs: list[dict[str, list[float | None]]] = []
    for k in range(seeds if proxies else 1):
        found: dict[str, list[float | None]] = {n: list(v) for n, v in free.items()}
        if score is not None and proxies:
            scored, problems = _score_rows(table, proxies, score, seed + k)
            found |= scored
            notes |= dict.fromkeys(problems)
        if any(PREDICTOR in n for n in names):
            model = predictor or default()
            mean, _ = model.predict([r.arch for r in table.rows], [r.fixed for r in table.rows])
            found[PREDICTOR] = mean.tolist()
            if dict(model.facts.get("tables", {})).get(table.name) is not None:
                told = f"The predictor was fitted on '{table.name}', so its figures here are no test of it."
                notes |= {told: None}
        for name in names:
            if name.startswith(SUM):
                found[name] = rank_sum({n: found[n] for n in name.removeprefix(SUM).split("+")})
        runs.append(found)
    entries, points = [], {}
    for name in dict.fromkeys((*FREE, *names)):
        each = [run[name] for run in runs]
        random = any(e != each[0] for e in each[1:])
        merged = rank_sum({str(k): e for k, e in enumerate(each)}) if random else each[0]
        points[name] = merged
        for key in targets:
            truth = table.targets[key]
            facts = agree(merged, truth, table.params, band, bootstrap=bootstrap, seed=seed, beside=table.params)
            alone = [agree(e, truth, table.params, band, bootstrap=0).band_tau.value for e in each] if random else []
            entries.append(Entry(name, key, replace(facts, by_seed=tuple(alone))))
    order = {key: i for i, key in enumerate(targets)}
    entries.sort(key=lambda e: order[e.target])
    shown = {"params": free["params"], "scores": points, "targets": {k: table.targets[k].tolist() for k in targets}}
    return Ranking(table.name, table.form, len(table.rows), band, seeds, tuple(entries), tuple(notes), shown)


def _score_rows(
    table: Table, names: Sequence[str], score: ScoreArchs, seed: int
) -> tuple[dict[str, list[float | None]], list[str]]:
    """Rows of one family and one set of settings are scored together."""
    groups: dict[str, list[int]] = {}
    for i, (arch, fixed) in enumerate(table.rows):
        groups.setdefault(json.dumps([arch.family, dict(fixed)], sort_keys=True, default=str), []).append(i)
    found: dict[str, list[float | None]] = {n: [None] * len(table.rows) for n in names}
    problems: list[str] = []
    for places in groups.values():
        first = table.rows[places[0]]
        archs = [table.rows[i].arch for i in places]
        scores, trouble = score(first.arch.family, first.fixed, archs, names, seed)
        problems += trouble
        for name in names:
            for i, value in zip(places, scores[name], strict=True):
                found[name][i] = value if value is not None and np.isfinite(value) else None
    return found, problems


def share(text: str) -> float:
    """A band as people write it: 5%, 5 % or 0.05."""
    try:
        bare = text.strip()
        return float(bare.removesuffix("%")) / 100 if bare.endswith("%") else float(bare)
    except ValueError:
        raise TailorError(f"Cannot read '{text}' as a band of sizes; write it like 5% or 0.05.") from None


def rank_file(
    path: str | Path,
    names: Sequence[str],
    *,
    target: str | None = None,
    band: str = "5%",
    seeds: int = 1,
    seed: int = 0,
    limit: int | None = None,
    fit: str | Path | None = None,
    image_size: int | None = None,
    device: str = "cpu",
) -> Ranking:
    """``tailorvit rank``: read a table and rank it; ``fit`` is a table or a saved predictor to predict from instead."""
    width = share(band)
    needed = parse_names(names)  # a name nobody knows must stop before anything is read or scored
    table = read_table(path).limit(limit)
    table.target(target)
    model = None
    if fit is not None:
        if not any(PREDICTOR in n for n in names):
            raise TailorError("--fit makes a predictor: name it too, as in --proxy predictor.")
        model = _fitted(fit)
    blind = [n for n in needed if PROXIES[n].needs == "images"]
    settings = ProxySettings(names=tuple(needed) or ("params",), image_size=image_size, noise=bool(blind))
    score = scoring(settings, device)
    found = rank(table, names, score, target=target, band=width, seeds=seeds, seed=seed, predictor=model)
    if blind:
        note = f"{', '.join(blind)} saw seeded noise and random labels: a table comes without images."
        found = replace(found, notes=(*found.notes, note))
    return found


def _fitted(fit: str | Path) -> Predictor:
    """A saved predictor, or one fitted on another table."""
    try:
        data = json.loads(Path(fit).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        data = None  # the table's reader has the sentence for it
    if isinstance(data, dict) and data.get("model"):
        return Predictor.load(fit)
    return pooled([read_table(fit)], bootstrap=0)
