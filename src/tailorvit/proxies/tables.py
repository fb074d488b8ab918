"""Tables of architectures with known accuracies: three published forms and our own, read into one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tailorvit.arch import Arch
from tailorvit.costs import Counter
from tailorvit.errors import TailorError, unknown
from tailorvit.families import FAMILIES, family
from tailorvit.stats import Floats
from tailorvit.texts import read_json

LABELS = frozenset({"name", "id", "index", "note", "source", "seed"})  # keys that are no accuracies
_SIZES = ("params", "flops", "macs")  # any key with one of these words is a size, not an accuracy
_SIZE_TOLERANCE = 0.005  # a share: sizes printed with three digits agree within it


class Row(NamedTuple):
    """One architecture and the shared settings it was measured with."""

    arch: Arch
    settings: Mapping[str, Any]


@dataclass(frozen=True, eq=False)  # arrays have no single truth value to compare
class Table:
    """Architectures, their counted sizes, and every accuracy of the file; NaN where the file has null."""

    name: str
    form: str
    rows: tuple[Row, ...]
    params: Floats
    macs: Floats
    blocks: Floats
    targets: Mapping[str, Floats]
    notes: tuple[str, ...] = ()

    def check_target(self, key: str | None) -> None:
        """Refuse an accuracy that the table does not have."""
        if key is not None and key not in self.targets:
            raise unknown("target", key, self.targets)

    def take(self, places: Sequence[int]) -> Table:
        """The table with these rows only."""
        at = np.asarray(places, dtype=np.int64)
        return replace(
            self,
            rows=tuple(self.rows[int(i)] for i in at),
            params=self.params[at],
            macs=self.macs[at],
            blocks=self.blocks[at],
            targets={k: v[at] for k, v in self.targets.items()},
        )

    def limit(self, count: int | None) -> Table:
        """At most ``count`` rows, evenly spaced: files are often sorted, so the first rows would be similar."""
        if count is None or count >= len(self.rows):
            return self
        if count < 2:
            raise TailorError(f"A ranking needs at least 2 rows, not {count}.")
        return self.take(np.linspace(0, len(self.rows) - 1, count).round().astype(int).tolist())

    def missing(self, key: str) -> int:
        """How many rows have no value for this accuracy."""
        return int((~np.isfinite(self.targets[key])).sum())


class _Form(NamedTuple):
    """A published form: its keys, and how they become an architecture of a family."""

    name: str
    keys: tuple[str, ...]
    nested: bool  # the keys are under "arch"
    like: tuple[str, str]  # (family, space) whose settings the table was made with
    read: Callable[[Mapping[str, Any]], dict[str, Any]]


def _vit(embed: str, heads: str) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    def read(row: Mapping[str, Any]) -> dict[str, Any]:
        depth = row["depth"]
        # Lists may be as long as the deepest network of the table; entries beyond the depth are not used.
        per_block = {"heads": row[heads], "mlp": row["mlp_ratio"]}
        cut = {k: v[:depth] if isinstance(v, list) and isinstance(depth, int) else v for k, v in per_block.items()}
        return {"embed": row[embed], "depth": depth, **cut}

    return read


def _pit(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"base": row["base_dim"], "depth": row["depth"], "heads": row["num_heads"], "mlp": row["mlp_ratio"]}


_VIT, _PIT = ("vit", "autoformer-t"), ("pit", "pit-ti")
FORMS = (
    _Form(
        "vitbench autoformer",
        ("hidden_dim", "depth", "num_heads", "mlp_ratio"),
        True,
        _VIT,
        _vit("hidden_dim", "num_heads"),
    ),
    _Form("vitbench pit", ("base_dim", "depth", "num_heads", "mlp_ratio"), True, _PIT, _pit),
    _Form("ood-vit-nas", ("embed", "depth", "heads", "mlp_ratio"), False, _VIT, _vit("embed", "heads")),
)


def read_table(path: str | Path) -> Table:
    """Read a table; an error names the row and the key that do not fit."""
    place = Path(path)
    try:
        data = read_json(place)
    except FileNotFoundError:
        raise TailorError(f"There is no table '{path}'.") from None
    except (OSError, ValueError) as error:
        raise TailorError(f"'{path}' is not readable JSON: {error}.") from None
    shared: Mapping[str, Any] = {}
    if isinstance(data, dict) and "rows" in data:
        shared, data = data.get("settings", data.get("fixed")) or {}, data["rows"]
    elif isinstance(data, dict) and data and all(isinstance(v, dict) for v in data.values()):
        data = list(data.values())
    if not isinstance(data, list) or not data or not isinstance(data[0], dict):
        raise TailorError(f"'{path}' must hold a list of rows, each an architecture with its accuracies.")
    return table_of(place.name, data, shared)


def table_of(name: str, data: Sequence[Mapping[str, Any]], shared: Mapping[str, Any] | None = None) -> Table:
    """A table from rows already read; ``shared`` holds settings common to all of them."""
    form = _recognise(name, data[0])
    rows, numbers = [], []
    for i, entry in enumerate(data, 1):
        if not isinstance(entry, dict):
            raise TailorError(f"Row {i} of '{name}' is not an object but {entry!r}.")
        rows.append(_row(name, i, entry, form, shared or {}))
        numbers.append(_numbers(name, i, entry, () if form is None or form.nested else form.keys))
    for i, found in enumerate(numbers, 1):
        for key in [*(k for k in numbers[0] if k not in found), *(k for k in found if k not in numbers[0])]:
            without = i if key not in found else 1
            raise TailorError(f"Row {without} of '{name}' has no '{key}', which other rows have; write null for none.")
    columns = {k: np.array([n[k] for n in numbers]) for k in numbers[0]}
    params, macs, blocks = _sizes(rows)
    targets = {k: v for k, v in columns.items() if not _is_size(k)}
    if not targets:
        raise TailorError(f"'{name}' holds no accuracies: no numeric key besides architecture and sizes.")
    notes = _size_notes({k: v for k, v in columns.items() if _is_size(k)}, params)
    return Table(name, form.name if form else "tailorvit", tuple(rows), params, macs, blocks, targets, notes)


def _recognise(name: str, first: Mapping[str, Any]) -> _Form | None:
    """The form with most of its keys in the first row; None is our own, whose arch names its family."""
    inner = first.get("arch", {})
    if isinstance(inner, dict) and "family" in inner:
        return None
    best, hits = None, 0
    for form in FORMS:
        source = inner if form.nested else first
        found = sum(k in source for k in form.keys) if isinstance(source, dict) else 0
        if found > hits:
            best, hits = form, found
    if best is None:
        forms = "; ".join(f"{f.name}: {'arch.' if f.nested else ''}{', '.join(f.keys)}" for f in FORMS)
        raise TailorError(
            f"Row 1 of '{name}' has no architecture under known keys: 'arch' with a 'family', or {forms}."
        )
    return best


def _row(name: str, i: int, entry: Mapping[str, Any], form: _Form | None, shared: Mapping[str, Any]) -> Row:
    where = f"Row {i} of '{name}'"
    if form is None:
        genes, settings = entry.get("arch"), entry.get("settings", entry.get("fixed", {}))
        if not isinstance(genes, dict) or not isinstance(genes.get("family"), str):
            raise TailorError(f"{where} has no 'arch' with a 'family'.")
        if not isinstance(settings, dict):
            raise TailorError(f"{where}: 'settings' must be an object of shared settings, not {settings!r}.")
        named, genes, settings = genes["family"], dict(genes), {**shared, **settings}
    else:
        source = entry.get("arch", {}) if form.nested else entry
        for key in form.keys:
            if not isinstance(source, dict) or key not in source:
                raise TailorError(f"{where} has no '{'arch.' * form.nested}{key}', which a {form.name} row needs.")
        for key in set(source) - set(form.keys) if form.nested else ():
            raise TailorError(f"{where} has an unknown key 'arch.{key}'; known: {', '.join(form.keys)}.")
        named, space = form.like
        genes, settings = form.read(source), {**dict(FAMILIES[named].spaces[space].settings), "classes": 1000, **shared}
    try:
        return Row(family(named).arch(genes), settings)
    except (TailorError, TypeError) as error:
        raise TailorError(f"{where} is not a valid architecture: {error}") from None


def _numbers(name: str, i: int, entry: Mapping[str, Any], genes: Sequence[str]) -> dict[str, float]:
    """Sizes and accuracies of one row; NaN for null."""
    found = {}
    for key, value in entry.items():
        if key in ("arch", "settings", "fixed") or key in genes or key in LABELS:
            continue
        if value is None:
            found[key] = float("nan")
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value):
            raise TailorError(
                f"Row {i} of '{name}' has '{key}' = {value!r}, neither an architecture key nor a finite number."
            )
        found[key] = float(value)
    return found


def _is_size(key: str) -> bool:
    return any(word in key.lower() for word in _SIZES)


def same_settings(rows: Sequence[Row]) -> list[list[int]]:
    """Row numbers in groups of one family and one set of shared settings."""
    groups: dict[str, list[int]] = {}
    for i, (arch, settings) in enumerate(rows):
        groups.setdefault(json.dumps([arch.family, dict(settings)], sort_keys=True, default=str), []).append(i)
    return list(groups.values())


def counters(rows: Sequence[Row]) -> list[Counter]:
    """A counter per row, shared by rows of one family and one set of settings."""
    found: dict[int, Counter] = {}
    for group in same_settings(rows):
        first = rows[group[0]]
        counter = Counter(first.arch.family, first.settings)
        found |= dict.fromkeys(group, counter)
    return [found[i] for i in range(len(rows))]


def _sizes(rows: Sequence[Row]) -> tuple[Floats, Floats, Floats]:
    sizes = [(*c.both(r.arch), len(c.family.outline(c.shared, r.arch))) for r, c in zip(rows, counters(rows))]
    params, macs, blocks = np.ascontiguousarray(np.array(sizes, dtype=np.float64).T)
    return params, macs, blocks


def _size_notes(stated: Mapping[str, Floats], params: Floats) -> tuple[str, ...]:
    """Compare the file's sizes with our counts; only parameters, since MACs are counted in many ways."""
    notes = []
    for key, values in stated.items():
        unit = {"params": 1.0, "params_m": 1e6, "params_k": 1e3}.get(key.lower())
        if unit is None:
            continue
        error = np.nan_to_num(np.abs(values * unit / params - 1))
        wrong = int((error > _SIZE_TOLERANCE).sum())
        if wrong:
            i = int(error.argmax())
            notes.append(
                f"'{key}' disagrees with our count in {wrong} of {len(params)} rows, most in row {i + 1}: "
                f"{values[i] * unit:,.0f} in the file, {params[i]:,.0f} by our count."
            )
    return tuple(notes)
