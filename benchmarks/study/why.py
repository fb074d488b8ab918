"""Why S4 moved where it did on CIFAR-10: slopes by every judge of the first space beside slopes of full trainings.

True slopes are differences between networks trained from scratch for the final epochs: the middle member of S4's first
space (after its repair) and its eight neighbours, one step up or down in one dimension.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from study.sizes import Size
from study.slopes import pick, space_at
from tailorvit.families import family
from tailorvit.seek.directions import Floats
from tailorvit.seek.moves import middle as middle_of
from tailorvit.seek.moves import moves
from tailorvit.seek.s4 import S4Settings, seek
from tailorvit.space import Space

Table = dict[str, Any]
LENGTHS = (1, 2, 4)  # epochs of a supernet, in those of the study
TRUE, PLANE = "true, nine neighbours", "true, plane through all trained"  # the second where there is one
POINTS, DEVIATIONS = "points", "standard deviations"
# (column, cases whose slopes of step 0 it takes, unit)
JUDGES = (
    *((f"supernet x{n}", (f"length x{n}", *(("d s4",) if n == 1 else ())), POINTS) for n in LENGTHS),
    ("alike", ("g s4 alike",), POINTS),
    ("tuned", ("g s4 tuned",), POINTS),
    ("training, short", ("g s4 training",), POINTS),
    ("predictor", ("f s4 predictor",), DEVIATIONS),
    ("dss", ("f s4 dss",), DEVIATIONS),
)


def start_space(size: Size) -> Space:
    """The space S4 measures first: the first one after the repair that its size asks for."""
    none = S4Settings(iterations=0)
    return seek(size.first(), size.meter(), lambda _space, _t: lambda _archs: [], none, 0)[0]


def neighbours(size: Size) -> dict[str, Table]:
    """The middle member of that space and its neighbours by label (``depth-up``), as tables of equal blocks."""
    space = start_space(size)
    arch = middle_of(space)
    middle = {d.key: arch.one(d.key) if d.scope != "block" else arch.many(d.key)[0] for d in space.dims}
    found = {"middle": {"family": "vit", **middle}}
    for dim in space.dims:
        for way, step in (("up", dim.shift), ("down", -dim.shift)):
            if middle[dim.key] + step >= dim.minimum:
                found[f"{dim.key}-{way}"] = {"family": "vit", **middle, dim.key: middle[dim.key] + step}
    return found


def unseen(row: Table) -> float:
    """Percent of the 15,000 images that were not trained on, search and test split together."""
    return float((5 * row["search"] + 10 * row["test"]) / 15)


def repeated(rows: Sequence[Table]) -> dict[str, list[Table]]:
    """Trainings of one network from scratch with several seeds, by its architecture; at the study's rate."""
    groups: dict[str, list[Table]] = {}
    for r in rows:
        if r["case"] in ("a hand-designed", "truth", "landscape", "noise"):
            groups.setdefault(str(r["arch"]), []).append(r)
    return {k: g for k, g in groups.items() if len(g) > 1}


def from_plane(rows: Sequence[Table]) -> tuple[float, int]:
    """Squares by which the nine true trainings of a seed miss a plane, and their degrees of freedom.

    Over one step up and down accuracy should be a plane; where it is not, this counts curvature as noise.
    """
    squares, freedom = 0.0, 0
    for seed in {r["seed"] for r in rows if r["case"] == "truth"}:
        some = {label_of(r): unseen(r) for r in rows if r["case"] == "truth" and r["seed"] == seed}
        keys = sorted({k.partition("-")[0] for k in some if "-" in k})
        if "middle" not in some or len(some) <= 1 + len(keys):
            continue
        side = {"up": 1.0, "down": -1.0}
        ways = [k.partition("-") for k in some]
        sides = [[1.0, *(side[way] if key == k else 0.0 for k in keys)] for key, _, way in ways]
        plane, values = np.array(sides), np.array(list(some.values()))
        rest = values - plane @ np.linalg.lstsq(plane, values, rcond=None)[0]
        squares, freedom = squares + float(rest @ rest), freedom + len(values) - plane.shape[1]
    return squares, freedom


def label_of(row: Table) -> str:
    """``depth-up`` of ``truth-depth-up-0``."""
    return str(row["name"]).split("-", 1)[1].rsplit("-", 1)[0]


def retraining_noise(rows: Sequence[Table]) -> tuple[float, int]:
    """Standard deviation of one network's trainings from scratch, and its degrees of freedom.

    Pooled over networks with several seeds and over what true trainings miss a plane by.
    """
    some = [np.array([unseen(r) for r in g]) for g in repeated(rows).values()]
    squares, freedom = from_plane(rows)
    freedom += sum(len(g) - 1 for g in some)
    squares += sum(float(((g - g.mean()) ** 2).sum()) for g in some)
    return (math.sqrt(squares / freedom) if freedom else math.nan), freedom


def true_slopes(rows: Sequence[Table], keys: Sequence[str]) -> dict[str, tuple[float, float, int]]:
    """(points per step, standard error, seeds) of dimensions both of whose neighbours were trained with one seed.

    The error is that of retrainings, as the difference of two of them over two steps.
    """
    by = {(label_of(r), r["seed"]): unseen(r) for r in rows if r["case"] == "truth"}
    sd, found = retraining_noise(rows)[0], {}
    for key in keys:
        seeds = [s for s in range(100) if (f"{key}-up", s) in by and (f"{key}-down", s) in by]
        if seeds:
            each = [(by[f"{key}-up", s] - by[f"{key}-down", s]) / 2 for s in seeds]
            found[key] = (float(np.mean(each)), sd / math.sqrt(2 * len(seeds)), len(seeds))
    return found


def plane_slopes(rows: Sequence[Table], space: Space, size: Size) -> dict[str, tuple[float, float, int]]:
    """(points per step, standard error, networks) of a plane through all networks trained at the study's rate.

    Networks within three blocks of the space's middle member, whoever chose them: ten times as many as the neighbours
    of one network, at the price of calling a wider region flat.
    """
    middle = neighbours(size)["middle"]
    known = [r for r in rows if "test" in r and r["case"] != "noise half rate"]
    some = [r for r in known if abs(r["arch"]["depth"] - middle["depth"]) <= 3]
    if len(some) < 3 * (1 + len(space.keys)):
        return {}
    each = [[float(np.mean(r["arch"][k])) / float(space[k].shift) for k in space.keys] for r in some]
    plane: Floats = np.column_stack([np.ones(len(some)), np.array(each) - np.mean(each, axis=0)])
    if np.linalg.matrix_rank(plane) < plane.shape[1]:
        return {}
    values: Floats = np.array([unseen(r) for r in some])
    found = np.linalg.lstsq(plane, values, rcond=None)[0]
    rest = values - plane @ found
    variance = float(rest @ rest) / (len(some) - plane.shape[1])
    errors = np.sqrt(variance * np.diag(np.linalg.inv(plane.T @ plane)))
    return {k: (float(found[1 + i]), float(errors[1 + i]), len(some)) for i, k in enumerate(space.keys)}


def same(a: Space | None, b: Space) -> bool:
    """Whether two spaces have the same choices; a run's own also knows its data."""
    return a is not None and {d.key: d.choices for d in a.dims} == {d.key: d.choices for d in b.dims}


def measured(rows: Sequence[Table], cases: Sequence[str], space: Space) -> list[dict[str, tuple[float, float]]]:
    """Slopes of step 0 in that space with the error of their pairs, by seed, of the first of the cases that has any."""
    for case in cases:
        runs = [r for r in rows if r["case"] == case and r["slopes"] and same(space_at(r, 0), space)]
        runs.sort(key=lambda r: r["seed"])
        each = [{s["dim"]: (s["z_step"], s["se_step"]) for s in r["slopes"] if s["t"] == 0} for r in runs]
        if each:
            return each
    return []


def judged_slopes(rows: Sequence[Table], cases: Sequence[str], space: Space) -> dict[str, tuple[float, float, int]]:
    """Their means over seeds; the error is that between seeds, and that of the pairs where there is one seed."""
    each = measured(rows, cases, space)
    found = {}
    for k in space.keys if each else ():
        slopes = [e[k][0] for e in each]
        error = float(np.std(slopes, ddof=1)) / math.sqrt(len(each)) if len(each) > 1 else each[0][k][1]
        found[k] = (float(np.mean(slopes)), error, len(each))
    return found


def seeds_apart(rows: Sequence[Table], size: Size, grid: Any) -> str:
    """One space's slopes by supernets of several seeds, beside the error that the pairs of one of them tell."""
    space = start_space(size)
    each = measured(rows, ("d s4",), space)
    if len(each) < 2:
        return "Not run yet."
    lines = [[f"supernet {i}", *(f"{e[k][0]:+.2f} ± {e[k][1]:.2f}" for k in space.keys)] for i, e in enumerate(each)]
    deviations = [f"{np.std([e[k][0] for e in each], ddof=1):.2f}" for k in space.keys]
    pairs = [f"{math.sqrt(np.mean([e[k][1] ** 2 for e in each])):.2f}" for k in space.keys]
    lines += [["deviation between supernets", *deviations], ["error by pairs of one", *pairs]]
    return str(grid(("points a step", *space.keys), lines))


def cosine(a: Floats, b: Floats) -> float | None:
    """Of two rows of slopes; None where one is nothing."""
    length = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / length if length > 0 else None


def beyond_size(slopes: Floats, grows: Floats) -> Floats:
    """Slopes without their part along the growth of size: a space at its limit cannot grow, only trade."""
    return np.asarray(slopes - grows * (slopes @ grows) / (grows @ grows))


def step_params(size: Size) -> dict[str, float]:
    """Parameters that a step of each dimension adds to the middle member, where it has both neighbours."""
    meter, near = size.meter(), neighbours(size)
    count = {k: meter.cost("params", family("vit").arch(a)) for k, a in near.items()}
    both = [k for k in size.first().keys if f"{k}-up" in count and f"{k}-down" in count]
    return {k: (count[f"{k}-up"] - count[f"{k}-down"]) / 2 for k in both}


def compare(rows: Sequence[Table], size: Size) -> Table:
    """Every judge's slopes, their cosine with the true ones, and the move S4 would have made by each."""
    space = start_space(size)
    keys, options = space.keys, moves(space, size.meter())
    columns = {TRUE: (true_slopes(rows, keys), POINTS), PLANE: (plane_slopes(rows, space, size), POINTS)}
    columns |= {name: (judged_slopes(rows, cases, space), unit) for name, cases, unit in JUDGES}
    truth = columns[PLANE][0] or columns[TRUE][0]
    found: Table = {"space": space.to_dict(), "step_params": step_params(size), "columns": {}}
    for name, (slopes, unit) in columns.items():
        whole = len(slopes) == len(keys)
        z: Floats = np.array([slopes[k][0] for k in keys]) if whole else np.zeros(len(keys))
        shifts: Floats = np.array([float(space[k].shift) for k in keys])
        true: Floats | None = np.array([truth[k][0] for k in keys]) if len(truth) == len(keys) else None
        gamma = list(options[pick(options, z / shifts, shifts, "step")].gamma) if whole and options else None
        found["columns"][name] = {
            "unit": unit,
            "slopes": {k: list(v) for k, v in slopes.items()},
            "cosine": cosine(z, true) if whole and true is not None else None,
            "gamma": gamma,
            "true_gain": float(np.array(gamma) @ true) if gamma is not None and true is not None else None,
        }
    return found


def told(found: Table, grid: Any) -> str:
    """The comparison as a table: a line a judge."""
    keys, grown = list(found["space"]["dims"]), found["step_params"]
    lines = [["parameters a step", "-", "-", *(f"{grown[k]:+,.0f}" if k in grown else "-" for k in keys), *["-"] * 3]]
    for name, facts in found["columns"].items():
        slopes = facts["slopes"]
        seeds = max((v[2] for v in slopes.values()), default=0)
        what = f"{seeds} networks" if name == PLANE else seeds if seeds > 1 else "one"
        if not slopes:
            lines.append([name, "not run yet", *["-"] * (len(keys) + 4)])
            continue
        cells = [
            f"{slopes[k][0]:+.2f}" + (f" ± {slopes[k][1]:.2f}" if math.isfinite(slopes[k][1]) else "")
            if k in slopes
            else "-"
            for k in keys
        ]
        gamma = "-" if facts["gamma"] is None else " ".join(f"{g:+d}" if g else "0" for g in facts["gamma"])
        rest = ["-" if facts[k] is None else f"{facts[k]:+.2f}" for k in ("cosine", "true_gain")]
        lines.append([name, what, facts["unit"], *cells, rest[0], gamma, rest[1]])
    head = ("judge", "seeds", "per step, in", *keys, "cosine with true", "move", "true slopes promise it")
    return str(grid(head, lines))


def chance(rows: Sequence[Table], grid: Any) -> str:
    """Networks trained several times, at the study's rate and at half of it."""
    halves: dict[str, list[Table]] = {}
    for r in rows:
        if r["case"] == "noise half rate":
            halves.setdefault(str(r["arch"]), []).append(r)
    lines = []
    for rate, groups in (("the study's", repeated(rows)), ("half", {k: g for k, g in halves.items() if len(g) > 1})):
        for group in groups.values():
            arch, tests = group[0]["arch"], [r["test"] for r in group]
            shape = [arch[k] if not isinstance(arch[k], list) else f"{arch[k][0]:g}" for k in ("depth", "embed")]
            blocks = [f"{np.mean(arch[k]):.2g}" for k in ("heads", "mlp")]
            each = ", ".join(f"{t:.2f}" for t in tests)
            lines.append([rate, *shape, *blocks, each, f"{np.std(tests, ddof=1):.2f}"])
    text = str(grid(("rate", "depth", "embed", "heads", "mlp", "test %", "deviation"), lines))
    squares, freedom = from_plane(rows)
    if freedom:
        miss = math.sqrt(squares / freedom)
        text += f"\n\nTrue trainings of one seed miss a plane by {miss:.2f} points ({freedom} degrees of freedom); "
        sd, every = retraining_noise(rows)
        text += f"with the repeated ones above at the study's rate: {sd:.2f} points ({every})."
    return text


def lengths(rows: Sequence[Table], grid: Any) -> str:
    """What supernets trained longer find in the same space, without a move."""
    lines = []
    for n in LENGTHS:
        for r in [r for r in rows if r["case"] == f"length x{n}"]:
            told = [f"{r[k]:.2f}" for k in ("inherited", "test")]
            lines.append([f"x{n}", r["seed"], f"{r['params']:,}", *told])
    return str(grid(("supernet epochs", "seed", "parameters", "inherited, search %", "retrained, test %"), lines))
