"""The tables of gpu.py from its rows."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gpu_steps import COMPILED, VARIANTS, WORKS, Row

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from common import markdown, number, read

RESULTS = Path(__file__).parent / "results"
# The files of the page: later ones replace what they measured again.
FILES = (
    *(f"gpu-2026-11-{name}.jsonl" for name in ("15-c", "15-b", "15-d", "15-e", "16-g", "16-h", "16-i")),
    "gpu-2026-11-18-families.jsonl",
)
MEMORY = "peak memory, training, batch 512, GiB"
FIRST, LATER, PASSES = "files, first pass", "files, later passes", 10


def slope(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    """The exponent of y against x: a straight line through the logarithms."""
    return float(np.polyfit(np.log(xs), np.log(ys), 1)[0]) if len(set(xs)) > 1 else None


def of(rows: Sequence[Row], section: str) -> list[Row]:
    """The rows of a section that hold figures."""
    return [r for r in rows if r["section"] == section and "error" not in r and "skipped" not in r]


def pick(rows: Sequence[Row], what: str, variant: str, key: str = "img_s") -> float | None:
    """One figure."""
    return next((r.get(key) for r in rows if r["what"] == what and r["variant"] == variant), None)


def summary(rows: Sequence[Row]) -> str:
    """Images a second and peak memory, beside the released code."""
    found, released = of(rows, "table"), read(RESULTS / "released-autoformer.json")
    variants = [v for v in reversed(VARIANTS) if any(r["variant"] == v for r in found)]
    lines = []
    for what in (*(w.what for w in WORKS), MEMORY):
        memory = what == MEMORY
        ours = [pick(found, WORKS[1].what, v, "peak_gib") if memory else pick(found, what, v) for v in variants]
        known = [v for v in ours if v is not None]
        ratio = "-"
        if known:
            ratio = f"{released[what] / min(known):.1f}x less" if memory else f"{max(known) / released[what]:.1f}x"
        digits = 1 if memory else 0
        lines.append((what, number(released[what], digits), *(number(v, digits) for v in ours), ratio))
    return markdown(("img/s", "released code", *variants, "best against released code"), lines)


def steps(rows: Sequence[Row]) -> str:
    """The same measurements with sizes, rates, memory and compilation."""
    top = next((r["tflops"] for r in of(rows, "ceilings")), None)
    lines = [
        (
            r["what"],
            r["variant"],
            number(r["img_s"]),
            number(r["params_m"], 1),
            number(r["gmacs"], 2),
            number(r["tflops"], 1),
            "-" if top is None else f"{100 * r['tflops'] / top:.0f} %",
            number(r.get("peak_gib"), 1),
            number(r["compile_s"], 1) if r["variant"] in COMPILED else "-",
        )
        for r in of(rows, "table")
    ]
    head = ("what", "variant", "img/s", "params M", "GMACs", "TFLOP/s", "of the matrix rate", "peak GiB", "compile s")
    return markdown(head, lines)


def loops(rows: Sequence[Row]) -> str:
    """The loop against bare steps."""
    lines = []
    for r in of(rows, "loop"):
        bare = pick(of(rows, "table"), r["what"], r["variant"])
        share = None if bare is None else r["img_s"] / bare
        lines.append((r["what"], r["variant"], number(r["img_s"]), number(r["ms"], 1), number(share, 2)))
    return markdown(("training loop", "variant", "img/s", "ms a step", "against bare steps"), lines)


def profiles(rows: Sequence[Row]) -> str:
    """Shares of device time by kind of kernel."""
    found = of(rows, "profile")
    kinds = list(dict.fromkeys(k for r in found for k in r["shares"]))
    lines = [
        (
            r["what"],
            r["variant"],
            number(r["ms"], 1),
            number(r["kernels_a_step"]),
            "-" if "busy_share_unprofiled" not in r else f"{100 * r['busy_share_unprofiled']:.0f} %",
            *(f"{100 * r['shares'].get(k, 0):.0f} %" for k in kinds),
        )
        for r in found
    ]
    return markdown(("profile", "variant", "ms a step", "kernels a step", "device busy", *kinds), lines)


def windows(rows: Sequence[Row]) -> str:
    """Windowed networks."""
    found = sorted(of(rows, "windowed"), key=lambda r: str(r["what"]))
    lines = [
        (r["what"], r["variant"], number(r["img_s"]), number(r["gmacs"], 2), number(r["tmacs_s"], 1)) for r in found
    ]
    return markdown(("windowed, 224 px", "network", "img/s", "GMACs", "TMAC/s"), lines)


def plain(rows: Sequence[Row]) -> str:
    """Plain networks of every family: one line a network and image size, eager beside recorded."""
    found = of(rows, "families")
    batches = sorted({r["batch"] for r in found})
    lines: list[tuple[str, ...]] = []
    for name, side in dict.fromkeys((r["name"], r["side"]) for r in found):
        own = [r for r in found if (r["name"], r["side"]) == (name, side)]
        line = [str(name), str(side), number(own[0]["params_m"], 2)]
        for batch in batches:
            what = f"{name}, {side} px, batch {batch}"
            eager, recorded = (pick(own, what, variant) for variant in ("eager", "graphs"))
            ratio = "-" if not eager or not recorded else f"{recorded / eager:.1f}x"
            line += [number(eager), number(recorded), ratio]
        lines.append(tuple(line))
    heads = [h for b in batches for h in (f"eager, batch {b}", f"recorded, batch {b}", "faster")]
    return markdown(("plain network, img/s", "px", "params M", *heads), lines) if lines else ""


def curves(rows: Sequence[Row]) -> str:
    """Growth: the points of every curve in milliseconds, and its exponent."""
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for r in of(rows, "growth"):
        if "x" in r:  # its points, not the row that sums them up: a run that was cut off has no such row
            found.setdefault((r["what"], r["variant"]), []).append((r["x"], r["ms"]))
    lines = [
        (*key, ", ".join(f"{x:g}: {ms:,.1f}" for x, ms in points), number(slope(*zip(*points)), 2))
        for key, points in found.items()
    ]
    return markdown(("growth", "variant", "ms", "exponent"), lines)


def differences(rows: Sequence[Row]) -> str:
    """Precision."""
    lines = [
        (r["what"], r["variant"], f"{r['largest']:.1e}", f"{r['mean']:.1e}", r["archs"]) for r in of(rows, "precision")
    ]
    return markdown(("relative difference", "variant", "largest", "mean", "architectures"), lines)


def input_rates(rows: Sequence[Row]) -> dict[tuple[Any, ...], Row]:
    """Rates of the input pipeline by (images, side, batch, augmentation), with ``share``: against training."""
    found = {(r["images"], r["side"], r["batch"], r["augment"]): r for row in of(rows, "input") for r in row["rows"]}
    for (images, *rest), r in [*found.items()]:
        later = found.get((LATER, *rest))
        if images == FIRST and later is not None:
            found[(f"files, {PASSES} passes", *rest)] = _all_passes(r, later)
    rated = {}
    for (images, side, batch, augment), r in sorted(found.items(), key=lambda f: (f[0][0] != "kept", *f[0][1:])):
        works = [w for w in WORKS if w.kind == "training" and w.size == side]
        same = [w for w in works if w.batch == batch] or works
        speeds = [pick(of(rows, "table"), w.what, v) for w in same for v in VARIANTS]
        fastest = max((s for s in speeds if s), default=None)
        share = None if fastest is None else r["per_second"] / fastest
        rated[images, side, batch, augment] = r | {"share": share}
    return rated


def _all_passes(first: Row, later: Row) -> Row:
    """A training decodes its files once: the rate of all its passes together."""
    part = 1 / PASSES
    ms = part * first["host_ms"] + (1 - part) * later["host_ms"]
    return {"per_second": 1 / (part / first["per_second"] + (1 - part) / later["per_second"]), "host_ms": ms}


def data(rows: Sequence[Row]) -> str:
    """What pipeline.py measured, against the quickest training at the same image size."""
    lines = [
        (*key, number(r["per_second"]), number(r["host_ms"], 2), "-" if r["share"] is None else f"{r['share']:.1f}x")
        for key, r in input_rates(rows).items()
    ]
    head = ("input alone", "px", "batch", "augmentation", "img/s", "host ms a batch", "against training")
    return markdown(head, lines)


def missing(rows: Sequence[Row]) -> str:
    """What failed or was left out, with the reason; one line for each section, variant and reason."""
    gaps: dict[tuple[str, str, str], list[str]] = {}
    for r in rows:
        reason = r.get("error") or r.get("skipped")
        if reason:
            what = f"{r.get('what', '')}{' ' + format(r['x'], 'g') if 'x' in r else ''}"
            gaps.setdefault((r["section"], r.get("variant", ""), reason), []).append(what)
    return "\n".join(f"- {s}, {v}: {'; '.join(whats)}: {reason}" for (s, v, reason), whats in gaps.items())


SECTIONS: dict[str, Callable[[Sequence[Row]], str]] = {
    "table": steps,
    "loop": loops,
    "profile": profiles,
    "windowed": windows,
    "families": plain,
    "growth": curves,
    "precision": differences,
    "input": data,
}


def latest(rows: Sequence[Row]) -> list[Row]:
    """Of measurements made more than once the last that holds figures."""
    found: dict[object, Row] = {}
    for i, r in enumerate(rows):
        key = i if r["section"] in ("facts", "end") else tuple(r.get(k) for k in ("section", "what", "variant", "x"))
        if not ({"error", "skipped"} & r.keys() and key in found):
            found.pop(key, None)
            found[key] = r
    return list(found.values())


def everything(rows: Sequence[Row]) -> str:
    """All tables of a run."""
    heads = [
        f"Measured on {f['date']} with `{f['command']}` ({f['device']}, torch {f['torch']})" for f in of(rows, "facts")
    ]
    rows = latest(rows)
    parts = ["; ".join(heads) + ":", summary(rows)]
    parts += [part(rows) for section, part in SECTIONS.items() if of(rows, section)]
    gaps = missing(rows)
    return "\n\n".join([*parts, *([f"Not measured:\n\n{gaps}"] if gaps else [])])


def stored() -> list[Row]:
    """The rows of the page."""
    lines = (line for name in FILES for line in (RESULTS / name).read_text(encoding="utf-8").splitlines())
    return latest([json.loads(line) for line in lines])


def tables() -> dict[str, str]:
    """The page's tables by name."""
    rows = stored()
    return {"gpu": summary(rows), **{f"gpu-{name}": part(rows) for name, part in SECTIONS.items()}}
