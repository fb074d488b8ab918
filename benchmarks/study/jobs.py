"""The jobs of the CIFAR-10 study: which runs, in which order, with which recipes, and what each costs in epochs."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from study.sizes import FULL, TINY, Size, Table, uniform
from study.why import LENGTHS, neighbours
from tailorvit.config import merged, overrides

TRAIN_IMAGES, SEARCH_IMAGES = 45_000, 5_000
FORWARD = 1 / 3  # of a training step: what scoring an image costs


@dataclass(frozen=True)
class Job:
    """One process of work: a whole run, and what to look at once it has ended."""

    name: str
    case: str
    seed: int
    size: str
    recipe: Table
    epochs: float  # of 45,000 images at the cost of the 1.5M network, for the estimate of its time
    needs: str = ""  # the job whose row gives this one its architecture
    pick: tuple[str, int] | None = None  # (list in that row, place)
    rank: str = ""  # "first" or "last": members of that space to score with the run's inherited weights
    members: int = 0  # how many, and how many to draw from the spaces two ways of reading slopes would choose
    settings: Table = field(default_factory=dict)  # what a row must agree in to serve again


S4 = {"method": "s4"}
WARM = {**S4, "s4": {"warm_start": True}}


def _warm(**more: Any) -> Table:
    return {**S4, "s4": {"warm_start": True, **more}}


# Many short moves with every doubt heeded: what two sessions suggest.
FAR = _warm(
    sized_by="middle",
    per_size=True,
    significance=1.0,
    momentum=0.5,
    stride="adaptive",
    iterations=8,
    pairs=12,
    warm_share=0.25,
)
CASES: dict[str, Table] = {
    "b autoformer": {"method": "autoformer"},
    # S3's paper trains by the sandwich. Here all supernets are trained alike: methods differ in how the space moves.
    "c s3": {"method": "s3", "train": {"rule": "single_path"}},
    "d s4": S4,
    "e s4 warm": WARM,
    "f s4 dss": {**S4, "seek": {"evaluator": "dss"}},
    "f s4 predictor": {**S4, "seek": {"evaluator": "predictor"}},
    "g s4 raw slopes": _warm(slope_units="raw"),
    "g s4 sized by middle": _warm(sized_by="middle"),
    "g s4 beyond size": _warm(per_size=True, significance=1.0),
    "g s4 anchors": _warm(sized_by="middle", anchors=6),
    "g s4 alike": {**S4, "train": {"alike": 0.5}},
    "g s4 momentum": {**S4, "s4": {"momentum": 0.5}},
    "g s4 far": FAR,
    # The same with heads kept at 2 to 4: their slope is what supernets are most wrong about.
    "g s4 held": {**FAR, "space": {"dims": {"heads": {"maximum": 4}}}},
    # Own trainings of members from far around, asked once: their slopes have no supernet's bias.
    "g s4 survey": {
        **S4,
        "s4": {"design": "survey", "survey": 16, "reach": 4, "sized_by": "middle"},
        "seek": {"evaluator": "training", "train_epochs": 8},  # a training must be long enough to be a judge
    },
    "g s4 sandwich": {**WARM, "train": {"rule": "sandwich"}},
    "g s4 training": {**S4, "s4": {"design": "plane"}, "seek": {"evaluator": "training"}},
    "g s4 tuned": {**S4, "s4": {"design": "plane"}, "seek": {"evaluator": "tuned"}},
}
TRAINED = ("g s4 training", "g s4 tuned")  # members judged by their own training
OTHERS = ("g s4 raw slopes", "g s4 beyond size", "g s4 anchors")  # one setting each, the least urgent


def settings(asked: argparse.Namespace) -> Table:
    """What the figures of a row depend on beside its job; rows that differ in it are not compared."""
    numbers = {"E": asked.epochs_supernet, "F": asked.epochs_final, "batch": asked.batch, "lr": asked.lr}
    return numbers | ({"tiny": True} if asked.tiny else {})


def base(asked: argparse.Namespace, seed: int, size: Size) -> Table:
    """What all runs of a size share: data, limits, training, search."""
    train = {
        "batch": asked.batch,
        "lr": asked.lr,
        "precision": asked.precision,
        "compile": asked.compile,
        "augment": "mild",  # shifts by four pixels, flips, label smoothing: what suits some forty epochs
        "checkpoint_seconds": 60.0,
    }
    half = max(1, asked.population // 2 - 1)
    recipe: Table = {
        "seed": seed,
        "device": asked.device,
        "threads": 1,
        "baseline": False,
        "data": {"source": str(asked.data), "image_size": 32},
        "limits": size.limits,
        "space": size.space(),
        "train": {**train, "epochs": asked.epochs_supernet, "warmup": asked.epochs_supernet / 10},
        "evaluate": {"batch": asked.eval_batch},
        "search": {"name": "evolution", "population": asked.population, "parents": max(2, asked.population // 4)},
        "final": {
            "how": "retrain",
            "train": {**train, "epochs": asked.epochs_final, "warmup": asked.epochs_final / 10},
        },
        "s4": {"iterations": asked.moves, "pairs": asked.pairs},
        "s3": {"updates": asked.moves, "samples": asked.samples, "top": max(1, asked.samples // 4), "max_shift": 1},
        "seek": {"samples": asked.scored, "train_epochs": asked.epochs_member},
        "proxy": {"candidates": asked.candidates},
        "analysis": {"samples": asked.edf, "images": 0, "mistakes": 0},
    }
    recipe["search"] |= {"generations": asked.generations, "crossover": half, "mutation": half}
    return recipe


def cost(recipe: Table, heavy: float) -> float:
    """Epochs of a run at the cost of the 1.5M network: supernets, scores, anchors and the last training."""
    s4, method, total = recipe["s4"], recipe["method"], float(recipe["final"]["train"]["epochs"])
    judge = recipe["seek"].get("evaluator", "supernet")
    if method == "fixed" or judge not in ("supernet", "training", "tuned"):
        return heavy * total
    moves = {"autoformer": 0, "s3": recipe["s3"]["updates"]}.get(method, s4["iterations"])
    share = s4.get("warm_share", 0.5) if s4.get("warm_start") and method == "s4" else 1.0
    own = recipe["train"]["epochs"] * (4 if recipe["train"].get("rule") == "sandwich" else 1)
    stays = s4.get("stop_at", 0) > 1  # slopes are measured and no move is made
    spaces = 1 if judge == "training" or stays else moves + 1  # that have a supernet
    scored = spaces * recipe["analysis"]["samples"]
    scored += recipe["search"]["population"] * (1 + recipe["search"]["generations"])
    members = moves * (11 * recipe["s3"]["samples"] if method == "s3" else 8 * s4["pairs"])
    members = s4["survey"] if s4.get("design") == "survey" else members
    scored += members
    total += members * {"training": recipe["seek"]["train_epochs"], "tuned": 1}.get(judge, 0)
    anchors = s4.get("anchors", 0) * s4.get("anchor_share", 0.5) * total
    return heavy * (
        total + own * (1 + (spaces - 1) * share) + anchors + FORWARD * scored * SEARCH_IMAGES / TRAIN_IMAGES
    )


class List:
    """Jobs in the order of how much they are wanted."""

    def __init__(self, asked: argparse.Namespace) -> None:
        self.asked, self.jobs = asked, list[Job]()
        self.sizes, self.same = TINY if asked.tiny else FULL, {"settings": settings(asked)}

    def add(self, case: str, seed: int, more: Table, size: str = "1.5M", name: str = "", **rest: Any) -> None:
        """A run: what all share, what the case adds, what was set by hand."""
        recipe = merged(merged(base(self.asked, seed, self.sizes[size]), more), overrides(self.asked.sets))
        if recipe["train"].get("rule") == "sandwich":  # four networks a step: a quarter of the epochs is the same work
            recipe["train"]["epochs"] = max(1, recipe["train"]["epochs"] // 4)
            recipe["train"]["warmup"] = recipe["train"]["epochs"] / 10
        if case in TRAINED:  # a training costs more than a look at a supernet and has less noise: few pairs
            recipe["s4"]["pairs"] = self.asked.member_pairs
        label = name or f"{case.replace(' ', '-')}-{seed}"
        self.jobs.append(
            Job(label, case, seed, size, recipe, cost(recipe, self.sizes[size].heavy), **rest, **self.same)
        )

    def plain(self, case: str, seed: int, arch: Table | None, name: str = "", size: str = "1.5M", **rest: Any) -> None:
        """One network from scratch; without an architecture another job's row will tell it."""
        more = {"method": "fixed"} if arch is None else {"method": "fixed", "arch": arch}
        self.add(case, seed, {**more, "limits": {"min_params": 1}}, size, name, **rest)

    def hand(self, seed: int, size: str = "1.5M", suffix: str = "") -> None:
        """The hand-designed network."""
        self.plain(f"a hand-designed{suffix}", seed, uniform(*self.sizes[size].hand), size=size)

    def ladder(self, seed: int) -> None:
        """Uniform networks at the limit, from shallow to deep: where the good region truly is."""
        for depth, embed, heads in self.sizes["1.5M"].ladder:
            self.plain("landscape", seed, uniform(depth, embed, heads), f"landscape-{depth}-{seed}")

    def summit(self) -> None:
        """Networks that the surface through the first 43 trained ones calls best, of 1, 2 and 3 heads."""
        for depth, embed, heads, mlp in self.sizes["1.5M"].summit:
            arch = {"family": "vit", "depth": depth, "embed": embed, "heads": heads, "mlp": mlp}
            for seed in (0, 1):
                self.plain("summit", seed, arch, f"summit-{heads}-heads-{seed}")

    def study(self, seed: int, cases: tuple[str, ...]) -> None:
        """Methods at 1.5M; seed 0 also serves the study of ranks and that of slopes."""
        for case in cases:
            looked = {"b autoformer": "first", "e s4 warm": "last"} if seed == 0 else {}
            members = self.asked.rank if case in looked else self.asked.slopes if case == "d s4" and not seed else 0
            self.add(case, seed, CASES[case], rank=looked.get(case, ""), members=members)

    def lengths(self, seed: int) -> None:
        """Slopes of the first space by supernets of its own length, twice and four times that; then search, no move.

        Each has a schedule of its own: half way through a long one the rate would still be high.
        """
        for n in LENGTHS:
            train = {"epochs": n * self.asked.epochs_supernet, "warmup": n * self.asked.epochs_supernet / 10}
            more = {**S4, "s4": {"iterations": 1, "stop_at": 2.0}, "train": train}  # no cosine is above 2
            self.add(f"length x{n}", seed, more, name=f"length-x{n}-{seed}")

    def truth(self, seed: int) -> None:
        """The middle member of that space and its neighbours from scratch: what slopes should have said."""
        for label, arch in neighbours(self.sizes["1.5M"]).items():
            self.plain("truth", seed, arch, f"truth-{label}-{seed}")

    def noise(self, label: str, seeds: tuple[int, ...], half: tuple[int, ...]) -> None:
        """A network of which the first training fell out of line, again with other seeds and at half the rate.

        In the second session two networks of 4 heads lay one to two points below their neighbours on both sides.
        """
        some = neighbours(self.sizes["1.5M"]) | {
            f"depth-{d}": uniform(d, e, h) for d, e, h in self.sizes["1.5M"].ladder[:2]
        }
        if label not in some:  # the tiny sizes have fewer
            return
        for seed in seeds:
            self.plain("noise", seed, some[label], f"noise-{label}-{seed}")
        for seed in half:
            slow = {"final": {"train": {"lr": self.asked.lr / 2}}}
            more = {"method": "fixed", "arch": some[label], "limits": {"min_params": 1}, **slow}
            self.add("noise half rate", seed, more, name=f"noise-half-rate-{label}-{seed}")

    def again(self, seed: int, cases: tuple[str, ...], times: int = 2) -> None:
        """The networks that methods found, trained with other seeds: what is chance of the last training."""
        for case in cases:
            job = f"{case.replace(' ', '-')}-{seed}"
            for k in range(times):
                self.plain(f"again {case}", 10 + k, None, f"again-{job}-{k}", needs=job, pick=("arch", 0))

    def travel(self, mode: str, starts: tuple[str, ...]) -> None:
        """Many short moves from a start: one grid step a move, two, or as many as repeat the direction (adaptive).

        Two steps a move make half as many moves: as far at half the price.
        """
        count = max(1, self.asked.travel // 2) if mode == "x2" else self.asked.travel
        more = {"warm_start": True, "warm_share": 0.25, "iterations": count}
        more |= {"pairs": max(4, self.asked.pairs * 3 // 5)} | ({"stride": "adaptive"} if mode == "adaptive" else {})
        for start in starts:
            first = self.sizes["1.5M"].space(start, 2 if mode == "x2" else 1)
            self.add(f"travel {start} {mode}", 0, {**S4, "space": first, "s4": more})


def jobs(asked: argparse.Namespace) -> list[Job]:
    """All jobs: what others wait for and what takes long first, then the most wanted."""
    todo = List(asked)
    whole = ("c s3", "d s4", "e s4 warm", "b autoformer", "f s4 dss", "f s4 predictor")
    for seed in (0, 1, 2):
        todo.hand(seed)
    todo.study(0, whole)
    for seed in (1, 2):
        todo.study(seed, whole[:3])
    todo.study(0, ("g s4 sized by middle",))
    todo.truth(0)
    todo.ladder(0)
    for case in ("d s4", "c s3"):  # of the 6M column these take longest
        todo.add(f"{case} 6M", 0, CASES[case], "6M")
    todo.add("b autoformer 6M", 0, CASES["b autoformer"], "6M")
    for seed in (1, 2):
        todo.study(seed, ("f s4 dss", "b autoformer", "f s4 predictor"))
    todo.travel("x1", ("deep",))
    for seed in (0, 1, 2):
        todo.study(seed, ("g s4 survey",))
    todo.travel("x1", ("shallow",))
    todo.travel("adaptive", ("deep", "shallow"))
    for label in ("depth-6", "middle"):
        todo.noise(label, (1,), (0,))
    todo.hand(0, "6M", " 6M")
    todo.summit()
    first = todo.sizes["1.5M"].first()
    for k, arch in enumerate(todo.sizes["1.5M"].near(first, asked.rank, "first")):
        todo.plain("rank first", 0, arch.to_dict(), f"rank-first-{k}")
    for k in range(asked.rank):
        todo.plain("rank last", 0, None, f"rank-last-{k}", needs="e-s4-warm-0", pick=("rank", k))
    for k in range(asked.slopes):
        for units in ("step", "raw"):
            todo.plain(f"slopes {units}", 0, None, f"slopes-{units}-{k}", needs="d-s4-0", pick=(f"next_{units}", k))
    for seed in (1, 2):
        todo.add("d s4 6M", seed, CASES["d s4"], "6M")
    todo.travel("x2", ("deep", "shallow"))
    todo.lengths(0)
    for seed in (1, 2):
        todo.add("b autoformer 6M", seed, CASES["b autoformer"], "6M")
        todo.hand(seed, "6M", " 6M")
    for seed in (0, 1, 2):
        todo.again(seed, ("g s4 survey",), 1)
    for seed in (1, 2):
        todo.add("c s3 6M", seed, CASES["c s3"], "6M")
    for seed in (1, 2):
        todo.study(seed, ("g s4 sized by middle",))
    for seed in (0, 1, 2):
        todo.study(seed, ("g s4 far", "g s4 held"))
    for label in ("depth-6", "middle"):
        todo.noise(label, (2,), (1,))
    for case in ("d s4", "b autoformer", "c s3", "e s4 warm"):
        for seed in (0, 1, 2):
            todo.again(seed, (case,), 1)
    todo.ladder(1)
    for seed in (0, 1, 2):
        todo.study(seed, ("g s4 momentum",))
    todo.study(0, ("g s4 tuned",))
    todo.travel("adaptive", ("s4",))
    todo.add("g s4 far 6M", 0, CASES["g s4 far"], "6M")
    todo.study(0, ("g s4 beyond size", "g s4 alike", "g s4 training"))
    todo.truth(1)
    todo.study(0, ("g s4 anchors", "g s4 raw slopes", "g s4 sandwich"))
    for seed in (1, 2):
        todo.study(seed, (*OTHERS, "g s4 alike", *TRAINED))
    for seed in (3, 4):  # the two that three seeds could not tell apart
        todo.hand(seed)
        todo.study(seed, ("g s4 survey",))
    return todo.jobs


def ready(job: Job, rows: Mapping[str, Table]) -> Table | str | None:
    """The job's recipe; a sentence where it cannot be run at all; None while it waits for another job's row."""
    if job.pick is None:
        return job.recipe
    if job.needs not in rows:
        return None
    listed = rows[job.needs].get(job.pick[0]) or []
    listed = [listed] if isinstance(listed, dict) else listed
    if job.pick[1] >= len(listed):
        return f"{job.needs} names no such network"
    arch = listed[job.pick[1]]
    return {**job.recipe, "arch": arch.get("genes", arch)}
