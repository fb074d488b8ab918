"""What S4 would find on CIFAR-10 by right supernets: the real method on a surface through all trained networks.

The surface is accuracy over the logarithms of depth, ratio, heads and width, bent where the networks show it; supernets
are off it by a slope that all of them share (bias) and one of their own (spread), both measured. Each can be left out.
A survey's members are trained half as long: what they say comes from a surface of their own, with its own noise.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from study import bends
from study.bends import Surface
from study.sizes import Size, uniform
from study.slopes import space_at
from study.why import unseen
from tailorvit.arch import Arch
from tailorvit.costs.meter import Meter
from tailorvit.families import family
from tailorvit.rng import generator
from tailorvit.seek.directions import Floats
from tailorvit.seek.s4 import S4Settings, seek
from tailorvit.seek.survey import wider
from tailorvit.space import Space

Table = dict[str, Any]
KEYS = ("depth", "mlp", "heads", "embed")
PLAIN = ("d s4", "e s4 warm", "g s4 sized by middle")  # runs whose slopes are a supernet's own, size and all
JUDGES = ("right", "spread", "bias", "both")


def logs(arch: Table) -> Floats:
    """Doublings of every dimension, the mean over blocks."""
    return np.array([math.log2(float(np.mean(arch[k]))) for k in KEYS])


def trained(rows: Sequence[Table]) -> list[Table]:
    """Rows of networks trained at the study's rate; two methods that found and trained the same one count once."""
    found = {(str(r["arch"]), r["seed"]): r for r in rows if "test" in r and r["case"] != "noise half rate"}
    return list(found.values())


def fit(rows: Sequence[Table]) -> Surface | None:
    """The surface through all of them; None while there are too few."""
    some = trained(rows)
    if len(some) < 25:
        return None
    return bends.fit(np.array([logs(r["arch"]) for r in some]), np.array([unseen(r) for r in some]))


def middle(space: Space) -> Floats:
    """Doublings of a space's middle."""
    return np.array([math.log2((float(space[k].low) + float(space[k].high)) / 2) for k in KEYS])


def judged(rows: Sequence[Table]) -> list[tuple[int, int, Space, Floats]]:
    """(seed, step, space, points a step) of every supernet that measured plain slopes; each supernet once."""
    found: dict[tuple[Any, ...], tuple[int, int, Space, Floats]] = {}
    for r in (r for r in rows if r["case"] in PLAIN):
        for t in sorted({s["t"] for s in r["slopes"]}):
            by, space = {s["dim"]: float(s["z_step"]) for s in r["slopes"] if s["t"] == t}, space_at(r, t)
            if space is not None:
                z = np.array([by[k] for k in KEYS])
                found.setdefault((r["seed"], *z.round(6)), (r["seed"], t, space, z))
    return list(found.values())


def doublings_a_step(space: Space) -> Floats:
    """In the middle of a space, one step up."""
    return np.array([math.log2(1 + float(space[k].shift) / 2**v) for k, v in zip(KEYS, middle(space))])


def supernets(rows: Sequence[Table]) -> list[tuple[Floats, Floats]]:
    """(middle of a space, points a doubling) by every supernet."""
    return [(middle(space), z / doublings_a_step(space)) for _, _, space, z in judged(rows)]


def errors_of(surface: Surface, judged: Sequence[tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
    """What supernets share in their error, and how far single ones lie from that; points a doubling."""
    off = np.array([slopes - surface.slopes_at(at) for at, slopes in judged])
    return off.mean(axis=0), off.std(axis=0, ddof=1)


def chance(surface: Surface, judged: Sequence[tuple[Floats, Floats]]) -> tuple[float, float]:
    """Chi-squared of the supernets' shared error on four degrees of freedom, and how often chance alone reaches it.

    Both sides count: how well the surface knows its slopes where the spaces are, and how far supernets lie apart.
    """
    off = np.array([slopes - surface.slopes_at(at) for at, slopes in judged])
    doubt = surface.doubt_at(middles(judged)) + np.cov(off, rowvar=False) / len(off)
    mean = off.mean(axis=0)
    square = float(mean @ np.linalg.solve(doubt, mean))
    return square, math.exp(-square / 2) * (1 + square / 2)


def middles(judged: Sequence[tuple[Floats, Floats]]) -> Floats:
    """The mean of the spaces that supernets judged."""
    return np.asarray(np.mean([at for at, _ in judged], axis=0))


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
    """By seed: members' own trainings, off their surface by as much as those it goes through."""

    def of(seed: int) -> Any:
        def evaluator(_space: Space, t: int) -> Callable[[Sequence[Arch]], list[float]]:
            rng = generator(seed, "training", t)
            return lambda archs: [
                surface.at(logs(a.to_dict())) + surface.deviation * float(rng.standard_normal()) for a in archs
            ]

        return evaluator

    return of


MIDDLE = {"sized_by": "middle", "iterations": 8}
WAYS: dict[str, tuple[str, int, Table]] = {  # the start, grid steps a move and the settings
    "as in the paper, three moves": ("s4", 1, {}),
    "two steps a move": ("s4", 2, {}),
    "adaptive steps": ("s4", 1, {"stride": "adaptive"}),
    "eight moves": ("s4", 1, {"iterations": 8}),
    "eight moves from the shallow start": ("shallow", 1, {"iterations": 8}),
    "four moves of two steps from there": ("shallow", 2, {"iterations": 4}),
    "eight adaptive moves from there": ("shallow", 1, {"iterations": 8, "stride": "adaptive"}),
    "eight moves from the deep start": ("deep", 1, {"iterations": 8}),
    "four moves of two steps from the deep start": ("deep", 2, {"iterations": 4}),
    "eight adaptive moves from the deep start": ("deep", 1, {"iterations": 8, "stride": "adaptive"}),
    "sized by the middle, three moves": ("s4", 1, {"sized_by": "middle"}),
    "sized by the middle, eight moves": ("s4", 1, MIDDLE),
    "the same, momentum 0.5": ("s4", 1, {**MIDDLE, "momentum": 0.5}),
    "the same from the shallow start": ("shallow", 1, MIDDLE),
    "the same from the deep start": ("deep", 1, MIDDLE),
}
SURVEYS = ((16, 2), (16, 4), (32, 4))  # members, reach
MOVES = (3, 4, 6, 8)


def what_if(
    rows: Sequence[Table], surveys: Sequence[Table], size: Size, seeds: int = 10, ways: Sequence[str] = tuple(WAYS)
) -> Table:
    """The best network by the surface after every way of moving, by supernets with and without each error."""
    surface, judged = fit(rows), supernets(rows)
    if surface is None or len(judged) < 3:
        return {}
    bias, spread = errors_of(surface, judged)
    none, meter, where = np.zeros(len(KEYS)), size.meter(), middles(judged)
    errors = {"right": (none, none), "spread": (none, spread), "bias": (bias, none), "both": (bias, spread)}
    found: Table = {}

    def reached(first: Space, settings: S4Settings, judge: Callable[[int], Any], count: int) -> list[float]:
        ends = [seek(first, meter, judge(seed), settings, seed)[0] for seed in range(count)]
        best = [best_in(space, surface, meter) for space in ends]
        return [round(b[0], 2) for b in best if b is not None]

    for name in ways:
        start, stride, more = WAYS[name]
        found[name] = {
            judge: reached(
                size.first(start, stride),
                S4Settings(pairs=20, **more),
                supernet(surface, b, s),
                seeds if s.any() else 1,
            )
            for judge, (b, s) in errors.items()
        }
    short, by_surveys = through_surveys(surveys), {}
    for count, reach in SURVEYS if short and len(ways) == len(WAYS) else ():
        for moves in MOVES:
            how = S4Settings(design="survey", survey=count, reach=reach, sized_by="middle", iterations=moves)
            name = f"{count} members, reach {reach}"
            by_surveys.setdefault(name, {})[str(moves)] = reached(size.first(), how, own_training(short), seeds)
    return {
        "surface": figures(surface, where),
        "short": figures(short, where) if short else None,
        "where": [2**v for v in where],
        "supernets": len(judged),
        "bias": dict(zip(KEYS, bias.tolist())),
        "spread": dict(zip(KEYS, spread.tolist())),
        "chance": chance(surface, judged),
        "first": best_in(size.first(), surface, meter)[0],  # type: ignore[index]
        "hand": surface.at(logs(uniform(*size.hand))),
        "top": top(surface, rows, size) if len(ways) == len(WAYS) else None,
        "ways": found,
        "surveys": by_surveys,
    }


REACH = 16  # steps around the first space that the top is looked for in
RESAMPLED = 200


def top(surface: Surface, rows: Sequence[Table], size: Size) -> Table:
    """The best uniform network within the limits by the surface, and by how much it beats (a).

    Only within the values that were trained; a surface knows nothing beyond. The error is that of the surface as it is.
    Networks drawn anew with replacement, bends chosen anew, tell how little is known where few were trained: the range
    holds nine tenths of what such surfaces say of their own tops.
    """
    some, meter = trained(rows), size.meter()
    each, values = np.array([logs(r["arch"]) for r in some]), np.array([unseen(r) for r in some])
    region = wider(size.first(), REACH, KEYS)
    low, high = 2 ** each.min(axis=0) * (1 - 1e-9), 2 ** each.max(axis=0) * (1 + 1e-9)
    choices = [[c for c in region[k].choices if low[i] <= c <= high[i]] for i, k in enumerate(KEYS)]
    known = [dict(zip(KEYS, choice)) for choice in itertools.product(*choices)]
    inside = [a for a in known if meter.fits(family("vit").arch({"family": "vit", **a}))]
    places, hand = np.array([logs(a) for a in inside]), logs(uniform(*size.hand))
    best = int(surface.all_at(places).argmax())
    gains, rng = [], generator(0, "top")
    for _ in range(RESAMPLED):
        at = rng.integers(0, len(some), len(some))
        again = bends.fit(each[at], values[at])
        gains.append(float(again.all_at(places).max()) - again.at(hand))
    return {
        "arch": inside[best],
        "percent": surface.at(places[best]),
        "over_hand": surface.between(places[best], hand),
        "resampled": np.percentile(gains, [5, 95]).tolist(),
    }


def figures(surface: Surface, where: Floats) -> Table:
    """A surface in numbers: slopes at a place, bends, and how well it is known."""
    each = {"slopes": surface.slopes_at(where), "errors": surface.errors_at(where), "bends": surface.bends}
    told_of = {name: dict(zip(KEYS, values.tolist())) for name, values in each.items()}
    return {"networks": surface.networks, "deviation": surface.deviation, **told_of}


def through_surveys(surveys: Sequence[Table]) -> Surface | None:
    """The surface through all members of surveys, each survey with a constant of its own: seeds split images anew."""
    if not surveys:
        return None
    members = [(s["seed"], m) for s in surveys for m in s["members"]]
    places = np.array([logs(m["arch"]) for _, m in members])
    return bends.fit(places, np.array([m["percent"] for _, m in members]), [seed for seed, _ in members])


def _mean(values: Sequence[float]) -> str:
    spread = f" ± {np.std(values, ddof=1):.1f}" if len(values) > 1 else ""
    return f"{np.mean(values):.1f}{spread}" if values else "-"


def _slope(of: Table, key: str) -> str:
    bent = of["bends"][key]
    return f"{of['slopes'][key]:+.2f} ± {of['errors'][key]:.2f}" + (
        f", bending by {bent:+.2f}" if abs(bent) >= 0.005 else ""
    )


def _top(of: Table | None) -> str:
    if of is None:
        return ""
    shape = "{depth} blocks, ratio {mlp:g}, {heads} heads, width {embed}".format(**of["arch"])
    (gain, error), (low, high) = of["over_hand"], of["resampled"]
    return (
        f", the best uniform network within what was trained {of['percent']:.1f} % ({shape}), {gain:.1f} ± {error:.1f} "
        f"more than (a), and tops of surfaces through networks drawn anew lie {low:.1f} to {high:.1f} above it"
    )


def told(found: Table, grid: Callable[..., str]) -> str:
    """The surface, what supernets say of it, and the ways over it."""
    if not found:
        return "Not run yet."
    whole, short = found["surface"], found["short"]
    lines = [
        [k, _slope(whole, k), f"{found['bias'][k]:+.2f}", f"{found['spread'][k]:.2f}"]
        + ([_slope(short, k)] if short else [])
        for k in KEYS
    ]
    head = ["points a doubling", f"surface, {whole['networks']} networks", f"bias of {found['supernets']} supernets"]
    head += ["spread"] + ([f"surface, {short['networks']} members of surveys"] if short else [])
    depth, mlp, heads, embed = found["where"]
    text = grid(head, lines) + (
        f"\n\nSlopes at the mean middle of the supernets' spaces: {depth:.1f} blocks, ratio {mlp:.1f}, {heads:.1f} "
        f"heads, width {embed:.0f}. One network lies {whole['deviation']:.2f} points off the surface. The bias is none "
        f"of chance: chi-squared {found['chance'][0]:.0f} on 4 degrees of freedom (p = {found['chance'][1]:.0e}, if "
        f"supernets were independent). By the surface (a) has {found['hand']:.1f} %, the best of the first space "
        f"{found['first']:.1f} %{_top(found['top'])}; what S4 finds:\n\n"
    )
    ways = [[name, *(_mean(by[j]) for j in JUDGES)] for name, by in found["ways"].items()]
    text += grid(("S4", "right slopes", "with spread", "with bias", "with both, as measured"), ways)
    surveys = [[name, *(_mean(values) for values in by.values())] for name, by in found["surveys"].items()]
    if not surveys:
        return text
    head = ["S4 by a survey, sized by the middle", *(f"{m} moves" for m in MOVES)]
    return (
        f"{text}\n\n{grid(head, surveys)}\n\nSurveys ask the surface through their own members, with the "
        f"{short['deviation']:.2f} points that one of these lies off it; what they find is judged by the other."
    )
