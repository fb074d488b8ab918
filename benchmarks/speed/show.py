"""gpu.py, telling: tables in Markdown from the rows of one run, so that no figure is typed by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from speed.bench import COMPILED, VARIANTS, Row
from speed.growth import slope
from speed.table import MEMORY, WORKS

ORDER = tuple(reversed(VARIANTS))
MARKS = ("<!-- gpu-table -->", "<!-- /gpu-table -->")


def markdown(head: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    """A table."""
    lines = [list(head), ["---"] * len(head), *([str(c) for c in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def figure(value: float | None, digits: int = 0) -> str:
    """A number for a cell, or a dash."""
    return "-" if value is None else f"{value:,.{digits}f}"


def of(rows: Sequence[Row], section: str) -> list[Row]:
    """The rows of a section that hold figures."""
    return [r for r in rows if r["section"] == section and "error" not in r and "skipped" not in r]


def _pick(rows: Sequence[Row], what: str, variant: str, key: str) -> float | None:
    return next((r.get(key) for r in rows if r["what"] == what and r["variant"] == variant), None)


def short(rows: Sequence[Row]) -> str:
    """The table of issue 6. Speed is judged by the quickest variant, memory by the one quickest at that batch."""
    found, lines = of(rows, "table"), []
    for work in (*WORKS[:2], MEMORY, *WORKS[2:]):
        memory = work is MEMORY
        what = WORKS[1].what if memory else work.what
        speeds = {v: s for v in VARIANTS if (s := _pick(found, what, v, "img_s")) is not None}
        ours = {v: _pick(found, what, v, "peak_gib") for v in VARIANTS} if memory else speeds
        best = ours.get(max(speeds, key=lambda v: speeds[v])) if speeds else None
        reached = "-" if best is None else "yes" if (best <= work.target if memory else best >= work.target) else "no"
        digits = 1 if memory else 0
        known = [figure(v, digits) for v in (work.released, work.prototype)]
        cells = [figure(ours.get(v), digits) for v in ORDER]
        lines.append((work.what, *known, *cells, figure(work.target), reached, figure(work.dream)))
    here = ("released formula here", *ORDER[1:])
    return markdown(("img/s", "released code", "prototype", *here, "must reach", "reached", "dream"), lines)


def steps(rows: Sequence[Row]) -> str:
    """The same measurements with sizes, rates, memory and compilation."""
    top = next((r["tflops"] for r in of(rows, "ceilings")), None)
    lines = [
        (
            r["what"],
            r["variant"],
            figure(r["img_s"]),
            f"{figure(r['img_s_low'])} to {figure(r['img_s_high'])} ({r['passes']})",
            figure(r["params_m"], 1),
            figure(r["gmacs"], 2),
            figure(r["tflops"], 1),
            "-" if top is None else f"{100 * r['tflops'] / top:.0f} %",
            figure(r.get("peak_drawn_gib"), 1),
            figure(r.get("peak_gib"), 1),
            figure(r["compile_s"], 1) if r["variant"] in COMPILED else "-",
            r["graphs"] if r["variant"] in COMPILED else "-",
        )
        for r in of(rows, "table")
    ]
    head = ("what", "variant", "img/s", "passes (how many)", "params M", "GMACs", "TFLOP/s", "of the matrix rate",
            "peak GiB, drawn", "peak GiB, largest too", "compile s", "graphs")  # fmt: skip
    return markdown(head, lines)


def loops(rows: Sequence[Row]) -> str:
    """The loop against bare steps."""
    lines = []
    for r in of(rows, "loop"):
        bare = _pick(of(rows, "table"), r["what"], r["variant"], "img_s")
        against = None if bare is None else r["img_s"] / bare
        lines.append((r["what"], r["variant"], figure(r["img_s"]), figure(r["ms"], 1), figure(against, 2)))
    return markdown(("training loop", "variant", "img/s", "ms a step", "against bare steps"), lines)


def profiles(rows: Sequence[Row]) -> str:
    """Shares of device time, then the kernels that take most."""
    found = of(rows, "profile")
    kinds = list(dict.fromkeys(k for r in found for k in r["shares"]))
    head = ("profile", "variant", "ms a step", "device ms", "kernels a step", "device busy", *kinds)
    lines = [
        (
            r["what"],
            r["variant"],
            figure(r["ms"], 1),
            figure(r["device_ms_a_step"], 1),
            figure(r["kernels_a_step"]),
            "-" if "busy_share_unprofiled" not in r else f"{100 * r['busy_share_unprofiled']:.0f} %",
            *(f"{100 * r['shares'].get(k, 0):.0f} %" for k in kinds),
        )
        for r in found
    ]
    tops = [
        (r["what"], r["variant"], t["kernel"].replace("|", "/")[:70], t["kind"], f"{100 * t['share']:.1f} %",
         figure(t["calls_a_step"]))
        for r in found for t in r["top"][:5]
    ]  # fmt: skip
    kernels = markdown(("profile", "variant", "kernel", "kind", "share", "calls a step"), tops)
    return f"{markdown(head, lines)}\n\n{kernels}"


def windows(rows: Sequence[Row]) -> str:
    """Windowed networks."""
    lines = [
        (
            r["what"],
            r["variant"],
            figure(r["img_s"]),
            figure(r["gmacs"], 2),
            figure(r["tmacs_s"], 1),
            figure(r["compile_s"], 1) if r["variant"].startswith("compiled") else "-",
        )
        for r in sorted(of(rows, "windowed"), key=lambda r: str(r["what"]))
    ]
    return markdown(("windowed, 224 px", "network", "img/s", "GMACs", "TMAC/s", "compile s"), lines)


def curves(rows: Sequence[Row]) -> str:
    """Growth: the points of every curve in milliseconds, and its exponent."""
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for r in of(rows, "growth"):
        if "x" in r:  # its points, not the row that sums them up: a run cut off has no such row
            found.setdefault((r["what"], r["variant"]), []).append((r["x"], r["ms"]))
    lines = [
        (*key, ", ".join(f"{x:g}: {ms:,.1f}" for x, ms in points), figure(slope(*zip(*points)), 2))
        for key, points in found.items()
    ]
    return markdown(("growth", "variant", "ms", "slope (log-log)"), lines)


def differences(rows: Sequence[Row]) -> str:
    """Precision."""
    lines = [
        (r["what"], r["variant"], f"{r['largest']:.1e}", f"{r['mean']:.1e}", r["archs"]) for r in of(rows, "precision")
    ]
    return markdown(("relative difference", "variant", "largest", "mean", "architectures"), lines)


FIRST, LATER, PASSES = "files, first pass", "files, later passes", 10


def data(rows: Sequence[Row]) -> str:
    """What benchmarks/pipeline.py measured, against the quickest training at the same image size."""
    found = {(r["images"], r["side"], r["batch"], r["augment"]): r for row in of(rows, "input") for r in row["rows"]}
    for (images, *rest), r in [*found.items()]:
        later = found.get((LATER, *rest))
        if images == FIRST and later is not None:
            found[(f"files, {PASSES} passes, from these", *rest)] = _passes(r, later)
    lines = []
    for (images, side, batch, augment), r in sorted(found.items(), key=lambda f: (f[0][0] != "kept", *f[0][1:])):
        works = [w for w in WORKS if w.kind == "training" and w.size == side]
        same = [w for w in works if w.batch == batch] or works
        speeds = [_pick(of(rows, "table"), w.what, v, "img_s") for w in same for v in VARIANTS]
        fastest = max((s for s in speeds if s), default=None)
        against = "-" if fastest is None else f"{r['per_second'] / fastest:.1f}x"
        lines.append((images, side, batch, augment, figure(r["per_second"]), figure(r["host_ms"], 2), against))
    head = ("input alone", "px", "batch", "augmentation", "img/s", "host ms a batch", "against training")
    return markdown(head, lines)


def _passes(first: Row, later: Row) -> Row:
    """A training decodes its files once: so fast all its passes are together."""
    share = 1 / PASSES
    ms = share * first["host_ms"] + (1 - share) * later["host_ms"]
    return {"per_second": 1 / (share / first["per_second"] + (1 - share) / later["per_second"]), "host_ms": ms}


def missing(rows: Sequence[Row]) -> str:
    """What failed or was left out, with the reason; one line a section, variant and reason."""
    gaps: dict[tuple[str, str, str], list[str]] = {}
    for r in rows:
        reason = r.get("error") or r.get("skipped")
        if reason:
            what = f"{r.get('what', '')}{' ' + format(r['x'], 'g') if 'x' in r else ''}"
            gaps.setdefault((r["section"], r.get("variant", ""), reason), []).append(what)
    return "\n".join(f"- {s}, {v}: {'; '.join(whats)}: {reason}" for (s, v, reason), whats in gaps.items())


PARTS: tuple[tuple[str, Callable[[Sequence[Row]], str]], ...] = (
    ("table", steps),
    ("loop", loops),
    ("profile", profiles),
    ("windowed", windows),
    ("growth", curves),
    ("precision", differences),
    ("input", data),
)


def latest(rows: Sequence[Row]) -> list[Row]:
    """Of measurements made more than once the last that holds figures; facts of all runs stay."""
    found: dict[object, Row] = {}
    for i, r in enumerate(rows):
        key = i if r["section"] in ("facts", "end") else tuple(r.get(k) for k in ("section", "what", "variant", "x"))
        if not ({"error", "skipped"} & r.keys() and key in found):
            found.pop(key, None)
            found[key] = r
    return list(found.values())


def everything(rows: Sequence[Row], *names: str) -> str:
    """All tables of a run, or of several, of which later ones replace what they measured again."""
    heads = [
        f"Measured on {f['date']} with `{f['command']}` ({f['device']}, torch {f['torch']}; `results/{name}`)"
        for f, name in zip((r for r in rows if r["section"] == "facts"), names)
    ]
    rows = latest(rows)
    told = ["; ".join(heads) + ":", short(rows)]
    told += [part(rows) for section, part in PARTS if of(rows, section)]
    gaps = missing(rows)
    return "\n\n".join([*(t for t in told if t), *([f"Not measured:\n\n{gaps}"] if gaps else [])])


def put_into(page: Path, text: str) -> None:
    """Replace what stands between the marks of a page."""
    before, found, rest = page.read_text().partition(MARKS[0])
    _, closed, after = rest.partition(MARKS[1])
    if not found or not closed:
        raise SystemExit(f"{page} has no {MARKS[0]} ... {MARKS[1]}")
    page.write_text(f"{before}{MARKS[0]}\n{text}\n{MARKS[1]}{after}")
