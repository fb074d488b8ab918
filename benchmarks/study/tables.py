"""From the rows of the CIFAR-10 study to its JSON and to the tables of cifar10.md; nothing is typed by hand."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from study.figures import draw
from study.jobs import CASES
from study.queue import finished, read_rows
from study.ranks import study
from study.sizes import FULL, TINY, Size
from study.slopes import stability
from study.surface import best_in, fit
from study.surface import told as surface_told
from study.surveys import told as surveys_told
from study.why import chance, compare, lengths, seeds_apart, told
from tailorvit.space import Space

Table = dict[str, Any]
MARKS = ("<!-- tables -->", "<!-- end of tables -->")
DIMS = ("depth", "mlp", "heads", "embed")
PAIRS = (("g s4 survey", "a hand-designed"), ("g s4 survey", "b autoformer"), ("g s4 survey", "d s4"))


def grid(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Markdown; "not run yet" where there are no rows."""
    if not rows:
        return "Not run yet."
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(map(str, r))} |" for r in rows)])


def mean(values: Sequence[float], form: str = "{:.2f}", spread: bool = True) -> str:
    """Mean and, from two values on, standard deviation."""
    known = [v for v in values if v is not None and math.isfinite(v)]
    if not known:
        return "-"
    text = form.format(float(np.mean(known)))
    return f"{text} ± {form.format(float(np.std(known, ddof=1)))}" if spread and len(known) > 1 else text


def noise(groups: Mapping[str, Sequence[Table]]) -> tuple[float, int]:
    """Standard deviation of test accuracy between seeds of one case, pooled over cases, and its degrees of freedom."""
    squares, freedom = 0.0, 0
    for rows in groups.values():
        tests = np.array([r["test"] for r in rows])
        if len(tests) > 1:
            squares, freedom = squares + float(((tests - tests.mean()) ** 2).sum()), freedom + len(tests) - 1
    return (math.sqrt(squares / freedom) if freedom else math.nan), freedom


def student(freedom: int) -> float:
    """The 97.5 % quantile of Student's t; over ten degrees of freedom to two decimals by its usual expansion."""
    few = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
    return few[freedom - 1] if freedom <= len(few) else 1.96 + 2.372 / freedom + 2.82 / freedom**2


def methods(rows: Sequence[Table], size: str) -> str:
    """One line a case: accuracy, its distance to the hand-designed network, what it cost; also those not run yet."""
    wanted = [r for r in rows if r["size"] == size and r["case"][:2] in ("a ", "b ", "c ", "d ", "e ", "f ", "g ")]
    wanted = [_averaged(r, rows) for r in wanted]
    groups = {c: [r for r in wanted if r["case"] == c] for c in sorted({*planned(size), *(r["case"] for r in wanted)})}
    sd, freedom = noise(groups)
    hand = next((g for c, g in groups.items() if c.startswith("a ")), [])
    lines = []
    for case, some in groups.items():
        if not some:
            lines.append([case, "not run yet", *["-"] * 8])
            continue
        apart = "-"
        if hand and some is not hand:
            gap = float(np.mean([r["test"] for r in some]) - np.mean([r["test"] for r in hand]))
            reach = student(freedom) * sd * math.sqrt(1 / len(some) + 1 / len(hand)) if freedom else math.nan
            apart = f"{gap:+.2f}" + (f" ± {reach:.2f}" if math.isfinite(reach) else "")
        counts = [mean([r[k] for r in some], "{:,.0f}", False) for k in ("params", "macs")]
        tests = mean([r["test"] for r in some])
        times = _times(some)
        moved = mean([sum(d["kind"] == "move" for d in r["decisions"]) for r in some], "{:.1f}", False)
        seeds = str(len(some)) if len(some) > 1 else "one seed"
        trained = sum(r["trainings"] for r in some)
        lines.append([case, seeds, trained, *counts, tests, apart, *times, moved])
    head = (
        "case",
        "seeds",
        "trainings",
        "parameters",
        "MACs",
        "test %",
        "against (a)",
        "search, s",
        "whole run, s",
        "moves",
    )
    each = ", ".join(
        f"{c} {noise({c: g})[0]:.2f} ({len(g)} seeds)" for c, g in groups.items() if len(g) > 1 and freedom
    )
    told = (
        f"Standard deviation between seeds, pooled over the cases: {sd:.2f} points ({freedom} degrees of freedom); "
        f"by case: {each}."
    )
    told += "".join(f" {text}" for pair in PAIRS if (text := _pair(groups, *(c + _ending(size) for c in pair))))
    return grid(head, lines) + (f"\n\n{told}" if freedom else "")


def _times(some: Sequence[Table]) -> list[str]:
    """Seconds of search and of the whole run, by the runs that did all of it in one piece, where there are any.

    Others found their members' trainings done by an earlier process, whose time is not known.
    """
    whole = [r for r in some if not r.get("asked_before")] or list(some)
    before = max(r.get("asked_before", 0) for r in whole)
    more = f" and {before} trainings" if before else "" if len(whole) == len(some) else " (runs in one piece)"
    return [mean([r[k] for r in whole], "{:.0f}", False) + more for k in ("search_seconds", "seconds")]


def _ending(size: str) -> str:
    """What the names of cases of a size end in."""
    return "" if size == "1.5M" else f" {size}"


def _pair(groups: Mapping[str, Sequence[Table]], one: str, other: str) -> str:
    """Two cases compared by the deviation of these two alone; nothing where a seed of either stands alone."""
    both = {c: groups.get(c, []) for c in (one, other)}
    if min(map(len, both.values())) < 2:
        return ""
    sd, freedom = noise(both)
    a, b = ([r["test"] for r in rows] for rows in both.values())
    reach = student(freedom) * sd * math.sqrt(1 / len(a) + 1 / len(b))
    return f"By the deviation of the two alone, {one} less {other}: {np.mean(a) - np.mean(b):+.2f} ± {reach:.2f}."


def _averaged(row: Table, rows: Sequence[Table]) -> Table:
    """A row with the mean test accuracy of its network's trainings, where that was trained again."""
    more = [r["test"] for r in rows if r["name"].startswith(f"again-{row['name']}-")]
    return {**row, "test": float(np.mean([row["test"], *more])), "trainings": 1 + len(more)}


def planned(size: str) -> list[str]:
    """The cases of a size's table that the study has jobs for."""
    if size == "1.5M":
        return ["a hand-designed", *CASES]
    return [case + _ending(size) for case in ("a hand-designed", "b autoformer", "c s3", "d s4", "g s4 far")]


def _span(space: Table) -> str:
    parts = []
    for key in DIMS:
        choices = space["dims"][key]["choices"]
        parts.append(f"{key} {choices[0]:g}-{choices[-1]:g}" if len(choices) > 1 else f"{key} {choices[0]:g}")
    return ", ".join(parts)


def paths(rows: Sequence[Table]) -> str:
    """Every space passed, with the error distribution of its members under the supernet there."""
    lines = []
    for row in rows:
        for i, place in enumerate(row["path"] if len(row["path"]) > 1 else []):
            step, last = place.get("step", 0), i + 1 == len(row["path"])
            repaired = place.get("repair") or (not last and row["path"][i + 1].get("repair"))
            seen = [] if repaired and not place.get("repair") else row["edf"].get(f"edf-{step}") or []
            errors = 100 - np.array([v for v in seen if v is not None])
            told = [f"{np.quantile(errors, q):.1f}" for q in (0, 0.25, 0.5, 0.75)] if len(errors) else ["-"] * 4
            sizes = row["edf_params"].get(f"edf-{step}") or []
            size = f"{np.mean(sizes) / 1e6:.2f}M" if sizes and len(errors) else "-"
            what = "repair" if place.get("repair") else f"step {step}"
            top = f"{place['largest']['params'] / 1e6:.2f}M"
            lines.append([row["name"], what, _span(place["space"]), top, size, len(errors), *told])
    head = (
        "run",
        "space",
        "choices",
        "largest",
        "mean member",
        "members",
        "least error",
        "quartile",
        "median",
        "third",
    )
    return grid(head, lines)


def landscape(rows: Sequence[Table], cases: Sequence[str]) -> str:
    """Uniform networks at the limit, from shallow to deep."""
    shapes: dict[tuple[Any, ...], list[Table]] = {}
    for r in (r for r in rows if r["case"] in cases):
        arch = r["arch"]
        shapes.setdefault((arch["depth"], arch["embed"], arch["heads"][0], f"{arch['mlp'][0]:g}"), []).append(r)
    lines = [
        [*shape, mean([r["params"] for r in g], "{:,.0f}", False), len(g), mean([r["test"] for r in g])]
        for shape, g in sorted(shapes.items())
    ]
    return grid(("depth", "embed", "heads", "ratio", "parameters", "seeds", "test %"), lines)


def ranks(found: Table) -> str:
    """Kendall's tau of every ranking against retrained accuracy."""
    lines = []
    for row in found["taus"]:
        band = row["interval"]
        told = "-" if row["tau"] is None else f"{row['tau']:+.2f}"
        reach = "-" if band is None else f"{band[0]:+.2f} to {band[1]:+.2f}"
        lines.append([row["space"], row["by"], row["networks"], told, reach])
    text = grid(("space", "ranked by", "networks", "tau", "95 % interval"), lines)
    if found.get("gap_per_block") is not None:
        text += (
            f"\n\nRetrained less inherited accuracy grows by {found['gap_per_block']:+.2f} points a block and "
            f"{found['gap_per_100k']:+.2f} points per 100,000 parameters: what the supernets hide."
        )
    return text


def slopes(rows: Sequence[Table], sizes: Mapping[str, Size]) -> tuple[str, list[Table]]:
    """Per step: slopes with errors, the moves both readings choose, and how often pairs drawn anew choose them."""
    lines, kept = [], []
    for row in rows:
        if row["method"] != "s4" or not row["slopes"] or "edf-0" not in row["edf"]:
            continue
        if any(s.get("per_log_size") or s.get("added") or s.get("carried") for s in row["slopes"]):
            continue  # their slopes are not the pairs' means, and "middle" has other legal moves
        if "middle" in row["case"]:
            continue
        for step in sorted({s["t"] for s in row["slopes"]}):
            found = stability(row, step, sizes[row["size"]])
            if found is None:
                continue
            kept.append({"name": row["name"], **found})
            z = ", ".join(f"{k} {v:+.2f} ± {found['se_step'][k]:.2f}" for k, v in found["z_step"].items())
            gamma = [" ".join(f"{g:+d}" if g else "0" for g in found["gamma"][u]) for u in ("step", "raw")]
            shares = [f"{100 * found['again'][u]:.0f} %" for u in ("step", "raw")]
            same = f"{100 * found['same']:.0f} %"
            lines.append([row["name"], step, z, found["legal"], gamma[0], shares[0], gamma[1], shares[1], same])
    head = ("run", "step", "points per step ± s.e.", "legal", "by step", "again", "by raw", "again", "both the same")
    return grid(head, lines), kept


def next_spaces(rows: Sequence[Table]) -> str:
    """Members near the limit of the spaces that step and raw slopes choose, retrained."""
    lines = []
    for units in ("step", "raw"):
        some = [r for r in rows if r["case"] == f"slopes {units}"]
        if some:
            tests = [r["test"] for r in some]
            size = mean([r["params"] for r in some], "{:,.0f}", False)
            lines.append([units, len(some), size, mean(tests), f"{max(tests):.2f}"])
    return grid(("slopes", "members", "parameters", "test %", "best"), lines)


def travels(rows: Sequence[Table], size: Size) -> str:
    """How far S4 went from three starts, what was found there, and what the surface says of both ends."""
    lines, surface, meter = [], fit(rows), size.meter()
    for row in [r for r in rows if r["case"].startswith("travel")]:
        _, start, mode = row["case"].split()
        gone = sum(sum(map(abs, d["gamma"].values())) for d in row["decisions"] if d["kind"] == "move")
        moved = sum(d["kind"] == "move" for d in row["decisions"])
        spaces = [row["path"][0]["space"], row["path"][-1]["space"]]
        best = [best_in(Space.from_dict(s), surface, meter) if surface else None for s in spaces]
        there = " to ".join("-" if b is None else f"{b[0]:.1f}" for b in best)
        figures = [f"{row['params']:,}", *(f"{row[k]:.2f}" for k in ("inherited", "search", "test")), there]
        figures.append(f"{row['search_seconds']:.0f}")
        lines.append([start, mode, moved, gone * (2 if mode == "x2" else 1), *map(_span, spaces), *figures])
    head = ("start", "steps", "moves", "grid steps in all", "from", "to", "parameters")
    head += ("inherited, search %", "retrained, search %", "test %", "best within, by the surface", "search, s")
    return grid(head, lines)


def write(
    place: Path,
    json_path: Path,
    markdown: Path,
    tiny: bool,
    surface: Table | None = None,
    surveys: Sequence[Table] = (),
) -> None:
    """Write the JSON and put the tables between the marks of the page."""
    found, sizes = read_rows(place), TINY if tiny else FULL
    same = found[0].get("settings") if found else None
    every = [r for r in found if r.get("settings") == same]  # figures of other epochs, batches or rates are apart
    done = finished(every)
    rows = [r for r in done.values() if "test" in r]
    small = [r for r in rows if r["size"] == "1.5M"]
    ranked = study(done, sizes["1.5M"])
    slope_text, stable = slopes(rows, sizes)
    moving = [r for r in small if r["case"][0] in "cdefg" and r["case"][1] == " "]
    lost = {r["name"]: r["error"].splitlines()[-1][-160:] for r in every if not r.get("ok") and r["name"] not in done}
    why = compare(small, sizes["1.5M"])
    parts = {
        "1.5M parameters": methods(rows, "1.5M"),
        "6M parameters": methods(rows, "6M"),
        "Slopes of S4's first space by every judge": told(why, grid),
        "The same slopes by supernets of other seeds": seeds_apart(small, sizes["1.5M"], grid),
        "Chance of one training": chance(small, grid),
        "S4 on a surface through all trained networks": surface_told(surface or {}, grid),
        "Longer supernets in that space, no move": lengths(small, grid),
        "What surveys say of the first space, and where they led": surveys_told(surveys, small, sizes["1.5M"], grid),
        "Networks that a surface through 43 networks called best": landscape(small, ("summit",)),
        "Uniform networks at the limit": landscape(small, ("landscape", "a hand-designed")),
        "The way of the space, and errors of its members with inherited weights": paths(moving),
        "What knows retrained accuracy": ranks(ranked),
        "Slopes: step or raw, and their noise": slope_text,
        "Spaces that step and raw slopes choose": next_spaces(small),
        "Travel": travels(small, sizes["1.5M"]),
        "Jobs that failed": grid(("job", "why"), list(lost.items())) if lost else "None.",
    }
    text = "\n\n".join(f"### {title}\n\n{body}" for title, body in parts.items())
    json_path.parent.mkdir(parents=True, exist_ok=True)
    kept = [_compact(r) for r in rows]
    facts = {"date": date.today().isoformat(), "rows": kept, "ranks": ranked, "stability": stable, "failed": lost}
    facts |= {"settings": same, "why": why}
    json_path.write_text(json.dumps(facts) + "\n", encoding="utf-8")
    page = markdown.read_text(encoding="utf-8") if markdown.is_file() else ""
    if MARKS[0] not in page:
        page += f"\n{MARKS[0]}\n{MARKS[1]}\n"
    block = f"{MARKS[0]}\n{text}\n{MARKS[1]}"
    page = re.sub(re.escape(MARKS[0]) + ".*" + re.escape(MARKS[1]), lambda _: block, page, flags=re.S)
    markdown.write_text(page, encoding="utf-8")
    draw(small, markdown.parent / "figures")
    print(f"{text}\n\nwrote {json_path} ({json_path.stat().st_size / 1e6:.1f} MB) and {markdown}")


def _compact(row: Table) -> Table:
    """A row as the repository keeps it: without tables that can be computed again."""
    kept = {k: v for k, v in row.items() if k not in ("best", "edf_params", "stages", "warnings")}
    kept["decisions"] = [{k: v for k, v in d.items() if k != "legal"} for d in row["decisions"]]
    kept["path"] = [{k: v for k, v in p.items() if k != "space"} | _dims(p["space"]) for p in row["path"]]
    return kept


def _dims(space: Table) -> Table:
    return {"dims": {k: space["dims"][k]["choices"] for k in space["dims"]}}
