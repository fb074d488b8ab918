"""The surveys of the CIFAR-10 study: what their members scored, what their slopes are worth, where the space went.

A run of S4 by a survey that did not end has told this already, so it is read from the run folders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from study.bends import Surface
from study.sizes import Size
from study.surface import KEYS, doublings_a_step, fit, judged, middle
from study.why import beyond_size, cosine
from tailorvit.arch import Arch
from tailorvit.families import family
from tailorvit.methods import members as judges
from tailorvit.runs import Run
from tailorvit.seek.directions import Floats
from tailorvit.seek.survey import read
from tailorvit.space import Space

Table = dict[str, Any]


def collect(runs: Path) -> list[Table]:
    """Of every run by a survey in a folder: its members with what they scored, and its moves."""
    found = []
    for folder in sorted(runs.glob("g-s4-survey-*")):
        if not (folder / "info.json").is_file():
            continue
        with Run.open(folder, lock=False) as record:
            trials = [t for t in record.trials() if t["stage"].startswith("slopes-")]
            moves = [{k: d[k] for k in ("t", "gamma", "sentence")} for d in record.decisions() if d["kind"] == "move"]
        seed = int(folder.name.rpartition("-")[2])
        found.append({"name": folder.name, "seed": seed, "members": [_member(t) for t in trials], "moves": moves})
    return found


def _member(trial: Table) -> Table:
    percent = round(trial["accuracy"], 2)
    return {"stage": trial["stage"], "arch": _one(trial["arch"]), "params": trial["params"], "percent": percent}


def _one(arch: Arch) -> Table:
    """Blocks of a survey's members are alike: one number a dimension."""
    genes = arch.to_dict()
    return {k: np.ravel(genes[k])[0].item() for k in KEYS}


@contextmanager
def answered(members: Sequence[Table]) -> Iterator[list[Table]]:
    """What a survey that did not end has heard is not asked again; the members that were looked up come out.

    Everything else of the run is as if it had trained them itself, which with the same seed it had.
    """
    known = {(m["stage"], *(m["arch"][k] for k in KEYS)): m for m in members}
    trained, used = judges.own_accuracy, list[Table]()

    def answer(session: Any, arch: Arch, settings: Any, stage: str, start: Any = None) -> float:
        found = known.get((stage, *_one(arch).values()))
        if found is None:
            return trained(session, arch, settings, stage, start)
        used.append(found)
        return float(found["percent"])

    judges.own_accuracy = answer
    try:
        yield used
    finally:
        judges.own_accuracy = trained


def slopes_of(survey: Table, space: Space) -> tuple[Floats, Floats]:
    """Points a step and their errors in the middle of a space, as S4 read them: from the members asked first."""
    entry = family("vit")
    first = [m for m in survey["members"] if m["stage"] == "slopes-0"]
    known = [(entry.arch({"family": "vit", **m["arch"]}), float(m["percent"])) for m in first]
    by = {s.dim: s for s in read(space, space.dims, known)}
    return np.array([by[k].z_step for k in KEYS]), np.array([by[k].se * float(by[k].shift) for k in KEYS])


def true_slopes(surface: Surface, space: Space) -> Floats:
    """Points a step by the surface through the networks of the study, in the middle of a space."""
    return np.asarray(surface.slopes_at(middle(space)) * doublings_a_step(space))


def params_a_step(space: Space, size: Size) -> Floats:
    """Parameters that one step of every dimension adds, between its smallest and its largest choice."""
    meter, entry = size.meter(), family("vit")
    middle_one = {k: space[k].choices[len(space[k].choices) // 2] for k in KEYS}

    def params(key: str, value: float) -> float:
        return meter.cost("params", entry.arch({"family": "vit", **middle_one, key: value}))

    dims = [space[k] for k in KEYS]
    return np.array([(params(d.key, d.high) - params(d.key, d.low)) / (d.high - d.low) * d.shift for d in dims])


def agreement(z: Floats, surface: Surface, space: Space, size: Size) -> tuple[float, float]:
    """Cosine of slopes with the surface's there, and the same of what is left of both without what size gives.

    That larger is better every judge knows. A space at its limit can only trade, and is led by the rest.
    """
    true, grows = true_slopes(surface, space), params_a_step(space, size)
    return cosine(z, true) or 0.0, cosine(beyond_size(z, grows), beyond_size(true, grows)) or 0.0


def told(surveys: Sequence[Table], rows: Sequence[Table], size: Size, grid: Callable[..., str]) -> str:
    """Slopes of surveys in the first space and of the supernets there, how far they agree with the surface, and why."""
    surface = fit(rows)
    if not surveys or surface is None:
        return "Not run yet."
    space = size.first()
    true = true_slopes(surface, space)
    lines = [["surface", str(surface.networks), *(f"{v:+.2f}" for v in true), "", "", ""]]
    both: dict[str, list[tuple[float, float]]] = {"surveys": [], "supernets": []}
    for s in surveys:
        z, errors = slopes_of(s, space)
        both["surveys"].append(agreement(z, surface, space, size))
        asked = sum(m["stage"] == "slopes-0" for m in s["members"])
        each = [f"{v:+.2f} ± {e:.2f}" for v, e in zip(z, errors)]
        lines.append([s["name"], str(asked), *each, *_two(both["surveys"][-1]), _moves(s["moves"])])
    made = {r["seed"]: _moves([d for d in r["decisions"] if d["kind"] == "move"]) for r in rows if r["case"] == "d s4"}
    for seed, t, there, z in judged(rows):
        both["supernets"].append(agreement(z, surface, there, size))
        if t == 0 and not np.allclose(middle(there), middle(space)):
            each, agrees = [f"{v:+.2f}" for v in z], _two(both["supernets"][-1])
            lines.append([f"supernet {seed}, space repaired", "-", *each, *agrees, made.get(seed, "")])
    head = ("points a step", "members", *KEYS, "cosine with the surface", "along the limit", "moves")
    means = {k: np.mean(v, axis=0) for k, v in both.items()}
    low, high = (f([b for _, b in both["supernets"]]) for f in (min, max))
    return grid(head, lines) + (
        f"\n\nMean cosines: {len(surveys)} surveys {means['surveys'][0]:.2f}, along the limit "
        f"{means['surveys'][1]:.2f}; {len(both['supernets'])} supernets of all steps, each in its own space, "
        f"{means['supernets'][0]:.2f}, along the limit {means['supernets'][1]:.2f} ({low:+.2f} to {high:+.2f})."
    )


def _two(values: tuple[float, float]) -> list[str]:
    return [f"{v:+.2f}" for v in values]


def _moves(moves: Sequence[Table]) -> str:
    return ", then ".join(" ".join(f"{k} {v:+d}" for k, v in m["gamma"].items() if v) for m in moves)
