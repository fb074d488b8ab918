"""What there is, for ``tailorvit list``, and what named architectures cost: read from catalogue.json, without torch.

``python -m tailorvit.catalogue`` writes the file from the records; a test compares the two.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from importlib import resources
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tailorvit.errors import unknown
from tailorvit.registry import Registry

Rows = list[dict[str, Any]]
FILE = Path(__file__).with_suffix(".json")


def kinds() -> list[str]:
    """The kinds of parts that plug-ins may add to, by the plural that ``tailorvit list`` takes."""
    return list(_written()["parts"])


def listing(what: str) -> Rows:
    """Rows of one table: name, summary, and for parts that plug-ins may add also where they come from."""
    found: dict[str, Callable[[], Rows]] = {kind: partial(_parts, kind) for kind in kinds()}
    found |= {what: partial(_of_families, what) for what in ("spaces", "archs")}
    found |= {"presets": lambda: _written()["presets"], "recipes": _recipes}
    if what not in found:
        raise unknown("list", what, found)
    return found[what]()


def known_cost(name: str) -> dict[str, Any] | None:
    """What ``lookup.cost`` says of one of our named architectures at its own size; None for others."""
    found: dict[str, Any] | None = _written()["costs"].get(name)
    return found


def _written() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def _parts(kind: str) -> Rows:
    """From the records where they are loaded anyhow, as others may have been registered; else from the file."""
    if "torch" in sys.modules:
        from tailorvit.plugins import registries

        return registries()[kind][1].rows()
    return _recorded(kind).rows()  # of plug-ins by their records, which may well import torch


def _recorded(kind: str) -> Registry[Any]:
    """The registry of a kind, with what the file says of our own parts in place of their records."""
    known = _written()["parts"][kind]
    return Registry(known["kind"], known["group"], {row["name"]: SimpleNamespace(**row) for row in known["rows"]})


def _of_families(what: str) -> Rows:
    """Spaces or architectures of all families; from the file where there are no families but ours."""
    rows: Rows = _written()[what]
    ours = {row["name"] for row in _written()["parts"]["families"]["rows"]}
    if "torch" not in sys.modules and set(_recorded("families")) == ours:
        return rows
    return _spaces() if what == "spaces" else _archs()


def _spaces() -> Rows:
    from tailorvit.families import FAMILIES

    def line(space: Any) -> str:
        return "; ".join(f"{d.key} {', '.join(map(str, d.choices))}" for d in space.dims)

    return [{"name": n, "family": f.name, "summary": line(s)} for f in FAMILIES.working() for n, s in f.spaces.items()]


def _archs() -> Rows:
    from tailorvit.costs import Counter
    from tailorvit.families import FAMILIES

    return [
        {"name": n, "family": f.name, "summary": a.source, "params": Counter(f.name, a.settings).params(a.arch)}
        for f in FAMILIES.working()
        for n, a in f.archs.items()
    ]


def _recipes() -> Rows:
    files = [f for f in resources.files("tailorvit.recipes").iterdir() if f.name.endswith(".toml")]
    first = {f.name.removesuffix(".toml"): f.read_text(encoding="utf-8").splitlines()[0] for f in files}
    return [{"name": name, "summary": first[name].lstrip("# ").strip()} for name in sorted(first)]


# -- writing it --------------------------------------------------------------------------------------------------------


def from_records() -> dict[str, Any]:
    """The content that catalogue.json must have: our own parts, as their records describe them, and what they cost."""
    from tailorvit.families import FAMILIES
    from tailorvit.lookup import cost
    from tailorvit.methods.finetune import PRESETS
    from tailorvit.plugins import registries
    from tailorvit.registry import HOME

    parts = {
        name: {
            "kind": registry.kind,
            "group": registry.group,
            "rows": [
                {k: v for k, v in row.items() if k != "origin"} for row in registry.rows() if row["origin"] == HOME
            ],
        }
        for name, (_, registry) in registries().items()
    }
    presets = [{"name": p.name, "summary": p.summary, "source": p.source} for p in PRESETS.values()]
    known: Any = parts["families"]["rows"]
    ours = [row["name"] for row in known]
    spaces, archs = ([row for row in rows() if row["family"] in ours] for rows in (_spaces, _archs))
    costs = {name: cost(name) for family in ours for name in FAMILIES[family].archs}
    plain: dict[str, Any] = json.loads(
        json.dumps({"parts": parts, "presets": presets, "spaces": spaces, "archs": archs, "costs": costs})
    )
    return plain


if __name__ == "__main__":
    FILE.write_text(json.dumps(from_records(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
