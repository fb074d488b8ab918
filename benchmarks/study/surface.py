"""What S4 would find on CIFAR-10 by right supernets: the real method on a surface through all trained networks.

The surface is accuracy over the logarithms of depth, ratio, heads and width, with a bend in depth; supernets are off it
by a slope that all of them share (bias) and one of their own (spread), both measured. Each can be left out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from study.sizes import Size, uniform
from study.slopes import space_at
from study.why import unseen
from tailorvit.arch import Arch
from tailorvit.costs.meter import Meter
from tailorvit.families import family
from tailorvit.rng import generator
from tailorvit.seek.directions import Floats
from tailorvit.seek.s4 import S4Settings, seek
from tailorvit.space import Space

Table = dict[str, Any]
KEYS = ("depth", "mlp", "heads", "embed")
BEND = math.log2(12)  # the depth the bend is counted from: that of (a)
PLAIN = ("d s4", "e s4 warm", "g s4 sized by middle")  # runs whose slopes are a supernet's own, size and all
JUDGES = ("right", "spread", "bias", "both")


def logs(arch: Table) -> Floats:
    """Doublings of every dimension, the mean over blocks."""
    return np.array([math.log2(float(np.mean(arch[k]))) for k in KEYS])


@dataclass(frozen=True)
class Surface:
    """Points of accuracy: a constant, a slope a doubling for each dimension, and a bend in depth."""

    constant: float
    slopes: Floats
    bend: float
    covariance: Floats  # of the four slopes and the bend
    deviation: float  # of one network from it
    networks: int

    @property
    def errors(self) -> Floats:
        """Standard errors of the slopes."""
        return np.asarray(np.sqrt(np.diag(self.covariance)[:4]))

    def at(self, doublings: Floats) -> float:
        """Percent."""
        return float(self.constant + self.slopes @ doublings + self.bend * (doublings[0] - BEND) ** 2)

    def slopes_at(self, doublings: Floats) -> Floats:
        """Points a doubling, the bend included."""
        return self.slopes + np.array([2 * self.bend * (doublings[0] - BEND), 0, 0, 0])


def trained(rows: Sequence[Table]) -> list[Table]:
    """Rows of networks trained at the study's rate; two methods that found and trained the same one count once."""
    found = {(str(r["arch"]), r["seed"]): r for r in rows if "test" in r and r["case"] != "noise half rate"}
    return list(found.values())


def fit(rows: Sequence[Table]) -> Surface | None:
    """Least squares through all of them; None while there are too few."""
    some = trained(rows)
    if len(some) < 25:
        return None
    each = np.array([logs(r["arch"]) for r in some])
    plan: Floats = np.column_stack([np.ones(len(some)), each, (each[:, 0] - BEND) ** 2])
    values: Floats = np.array([unseen(r) for r in some])
    found = np.linalg.lstsq(plan, values, rcond=None)[0]
    rest = values - plan @ found
    variance = float(rest @ rest) / (len(some) - plan.shape[1])
    covariance = variance * np.linalg.inv(plan.T @ plan)[1:, 1:]
    return Surface(float(found[0]), found[1:5], float(found[5]), covariance, math.sqrt(variance), len(some))


def middle(space: Space) -> Floats:
    """Doublings of a space's middle."""
    return np.array([math.log2((float(space[k].low) + float(space[k].high)) / 2) for k in KEYS])


def supernets(rows: Sequence[Table]) -> list[tuple[Floats, Floats]]:
    """(middle of a space, points a doubling) by every supernet that measured plain slopes; each supernet once."""
    found: dict[tuple[str, int], tuple[Floats, Floats]] = {}
    for r in (r for r in rows if r["case"] in PLAIN):
        for t in sorted({s["t"] for s in r["slopes"]}):
            space = space_at(r, t)
            if space is None:
                continue
            per = {s["dim"]: (float(s["z_step"]), float(s["shift"])) for s in r["slopes"] if s["t"] == t}
            at = middle(space)
            step = [math.log2(1 + per[k][1] / 2**v) for k, v in zip(KEYS, at)]  # doublings in one step up
            slopes = np.array([per[k][0] / s for k, s in zip(KEYS, step)])
            found.setdefault((str(slopes.round(6).tolist()), r["seed"]), (at, slopes))
    return list(found.values())


def errors_of(surface: Surface, judged: Sequence[tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
    """What supernets share in their error, and how far single ones lie from that; points a doubling."""
    off = np.array([slopes - surface.slopes_at(at) for at, slopes in judged])
    return off.mean(axis=0), off.std(axis=0, ddof=1)


def chance(surface: Surface, judged: Sequence[tuple[Floats, Floats]]) -> tuple[float, float]:
    """Chi-squared of the supernets' shared error on four degrees of freedom, and how often chance alone reaches it.

    Both sides count: how well the surface knows its slopes where the spaces are, and how far supernets lie apart.
    """
    off = np.array([slopes - surface.slopes_at(at) for at, slopes in judged])
    where = np.mean([at for at, _ in judged], axis=0)
    to_slopes = np.column_stack([np.eye(4), [2 * (where[0] - BEND), 0, 0, 0]])
    doubt = to_slopes @ surface.covariance @ to_slopes.T + np.cov(off, rowvar=False) / len(off)
    mean = off.mean(axis=0)
    square = float(mean @ np.linalg.solve(doubt, mean))
    return square, math.exp(-square / 2) * (1 + square / 2)


def best_in(space: Space, surface: Surface, meter: Meter, draws: int = 200) -> tuple[float, Arch] | None:
    """The best member within the limits by the surface, of those with equal blocks and of some draws."""
    entry, rng = family("vit"), generator(0, "surface")
    every = itertools.product(*(space[k].choices for k in KEYS))
    members = [entry.arch({"family": "vit", **dict(zip(KEYS, values))}) for values in every]
    members += [space.sample(rng) for _ in range(draws)]
    fits = [a for a in members if meter.fits(a)]
    return max(((surface.at(logs(a.to_dict())), a) for a in fits), key=lambda p: p[0], default=None)


def supernet(surface: Surface, bias: Floats, spread: Floats) -> Callable[[int], Any]:
    """By seed: supernets off the surface by a slope they share and one of each step."""

    def of(seed: int) -> Any:
        def evaluator(_space: Space, t: int) -> Callable[[Sequence[Arch]], list[float]]:
            off = bias + spread * generator(seed, "supernet", t).standard_normal(len(KEYS))
            return lambda archs: [surface.at(x) + float(off @ x) for x in (logs(a.to_dict()) for a in archs)]

        return evaluator

    return of


def own_training(surface: Surface) -> Callable[[int], Any]:
    """By seed: members' own trainings, off the surface by as much as the networks it goes through."""

    def of(seed: int) -> Any:
        def evaluator(_space: Space, t: int) -> Callable[[Sequence[Arch]], list[float]]:
            rng = generator(seed, "training", t)
            return lambda archs: [
                surface.at(logs(a.to_dict())) + surface.deviation * float(rng.standard_normal()) for a in archs
            ]

        return evaluator

    return of


MIDDLE = {"sized_by": "middle", "iterations": 8}
WAYS: dict[str, tuple[str, Table]] = {  # the start and the settings
    "as in the paper, three moves": ("s4", {}),
    "eight moves": ("s4", {"iterations": 8}),
    "sized by the middle, three moves": ("s4", {"sized_by": "middle"}),
    "sized by the middle, eight moves": ("s4", MIDDLE),
    "the same, momentum 0.5": ("s4", {**MIDDLE, "momentum": 0.5}),
    "the same from the shallow start": ("shallow", MIDDLE),
    "the same from the deep start": ("deep", MIDDLE),
}
SURVEYS = ((16, 2), (16, 4), (24, 2), (24, 4))  # members, reach


def what_if(rows: Sequence[Table], size: Size, seeds: int = 10, ways: Sequence[str] = tuple(WAYS)) -> Table:
    """The best network by the surface after every way of moving, by supernets with and without each error."""
    surface, judged = fit(rows), supernets(rows)
    if surface is None or len(judged) < 3:
        return {}
    bias, spread = errors_of(surface, judged)
    none, meter = np.zeros(len(KEYS)), size.meter()
    errors = {"right": (none, none), "spread": (none, spread), "bias": (bias, none), "both": (bias, spread)}
    found: Table = {}

    def reached(start: str, settings: S4Settings, judge: Callable[[int], Any], count: int) -> list[float]:
        ends = [seek(size.first(start), meter, judge(seed), settings, seed)[0] for seed in range(count)]
        best = [best_in(space, surface, meter) for space in ends]
        return [round(b[0], 2) for b in best if b is not None]

    for name in ways:
        start, more = WAYS[name]
        found[name] = {
            judge: reached(start, S4Settings(pairs=20, **more), supernet(surface, b, s), seeds if s.any() else 1)
            for judge, (b, s) in errors.items()
        }
    surveys = {
        f"{count} members, reach {reach}": reached(
            "s4",
            S4Settings(design="survey", survey=count, reach=reach, **MIDDLE),
            own_training(surface),
            seeds,
        )
        for count, reach in (SURVEYS if len(ways) == len(WAYS) else ())
    }
    return {
        "networks": surface.networks,
        "deviation": surface.deviation,
        "slopes": dict(zip(KEYS, surface.slopes.tolist())),
        "errors": dict(zip(KEYS, surface.errors.tolist())),
        "bend": surface.bend,
        "supernets": len(judged),
        "bias": dict(zip(KEYS, bias.tolist())),
        "spread": dict(zip(KEYS, spread.tolist())),
        "chance": chance(surface, judged),
        "first": best_in(size.first(), surface, meter)[0],  # type: ignore[index]
        "hand": surface.at(logs(uniform(*size.hand))),
        "ways": found,
        "surveys": surveys,
    }


def _mean(values: Sequence[float]) -> str:
    spread = f" ± {np.std(values, ddof=1):.1f}" if len(values) > 1 else ""
    return f"{np.mean(values):.1f}{spread}" if values else "-"


def told(found: Table, grid: Callable[..., str]) -> str:
    """The surface, what supernets say of it, and the ways over it."""
    if not found:
        return "Not run yet."
    by = [{k: f"{found[name][k]:.2f}" for k in KEYS} for name in ("errors", "spread")]
    lines = [[k, f"{found['slopes'][k]:+.2f} ± {by[0][k]}", f"{found['bias'][k]:+.2f}", by[1][k]] for k in KEYS]
    networks, nets = f"surface, {found['networks']} networks", f"bias of {found['supernets']} supernets"
    head = ("points a doubling", networks, nets, "spread")
    text = grid(head, lines) + (
        f"\n\nDepth bends by {found['bend']:+.2f} (doublings from 12 blocks, squared). One network lies "
        f"{found['deviation']:.2f} points off the surface. The bias is none of chance: chi-squared "
        f"{found['chance'][0]:.0f} on 4 degrees of freedom (p = {found['chance'][1]:.0e}, if supernets were "
        f"independent). By the surface (a) has {found['hand']:.1f} %, the best member of the first space "
        f"{found['first']:.1f} %; what S4 finds:\n\n"
    )
    ways = [[name, *(_mean(by[j]) for j in JUDGES)] for name, by in found["ways"].items()]
    text += grid(("S4", "right slopes", "with spread", "with bias", "with both, as measured"), ways)
    surveys = [[name, _mean(values)] for name, values in found["surveys"].items()]
    head = ("S4 by a survey, sized by the middle, eight moves", "own trainings with their noise", "", "")
    return f"{text}\n\n{grid(head[:2], surveys)}"
