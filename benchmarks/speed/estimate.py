"""What the ImageNet-sized recipes need on one H200, from rates measured on smaller work. None of them was run.

python benchmarks/speed/estimate.py            # the figures, and how well the rule predicts rows it was not fitted to
python benchmarks/speed/estimate.py table      # fills the page and the heads of the recipes

Rates are those of the AutoFormer-S supernet in results/ (recorded and compiled, as train.graphs and train.compile run
it). The time of an image is the sum of three parts, whose shares the profile gives: matrix products, attention, and
norms with all else. Each is scaled by its own count: MACs, MACs, and tokens times width times depth.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import re
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from common import fill, markdown, number  # noqa: E402 - after the path is set

import tailorvit  # noqa: E402
from tailorvit.arch import Arch  # noqa: E402
from tailorvit.config import Config, configure, read_recipe  # noqa: E402
from tailorvit.costs import Counter, Limits, Meter  # noqa: E402
from tailorvit.families import named_space  # noqa: E402
from tailorvit.methods.first_space import baseline_arch  # noqa: E402
from tailorvit.portable import MARGIN, stored_size  # noqa: E402
from tailorvit.search.evolution import EvolutionSettings  # noqa: E402
from tailorvit.seek.s4 import broken_limit, repair_move  # noqa: E402
from tailorvit.space import Space  # noqa: E402
from tailorvit.train import SinglePath  # noqa: E402

GIB = 2**30
RECIPES = Path(tailorvit.__file__).parent / "recipes"
TABLE, LOOP, INPUT = "gpu-2026-11-15-c", "gpu-2026-11-15-d", "gpu-2026-11-16-h"
SEED, WARM, TIMED = 0, 40, 24  # of gpu_steps.py: the architectures whose steps were timed
WEIGHT = 4  # bytes
MOMENTS = 2  # AdamW's averages beside each weight
PROCESS = 1.0  # GiB of a process with torch loaded (benchmarks/faults: 844 MiB)
NAMES_BYTES = 300  # of the path, the name and the size of one file, as Python keeps them


# -- counts -----------------------------------------------------------------------------------------------------------


class Work(NamedTuple):
    """What one image costs a forward pass: MACs of products and of attention, and numbers that norms go over."""

    products: float
    attention: float
    elements: float


def work_of(counter: Counter, arch: Arch) -> Work:
    """The three counts of an architecture."""
    parts = {row.part: row.macs for row in counter.parts(arch)}
    attention = sum(macs for part, macs in parts.items() if part in ("blocks.attn", "blocks.attn.relative"))
    tokens = int(counter.shared.tokens)
    return Work(sum(parts.values()) - attention, attention, tokens * arch.one("embed") * arch.one("depth"))


def executed(space: Space, arch: Arch) -> Arch:
    """What a recorded step computes: width and depth are cut, heads and hidden widths keep their largest size."""
    depth = int(arch.one("depth"))
    most = {d.key: (d.choices[-1],) * depth for d in space.dims if d.scope == "block"}
    return arch.replace(**most)


def mean_work(space: Space, archs: Iterable[Arch]) -> Work:
    """The mean of the three counts over architectures as they are executed."""
    counter = Counter(space.family, dict(space.settings))
    rows = [work_of(counter, executed(space, arch)) for arch in archs]
    return Work(*(statistics.fmean(column) for column in zip(*rows, strict=True)))


def groups(space: Space) -> list[Arch]:
    """One architecture of every width and depth: single-path training draws them evenly."""
    largest, counts = space.largest(), [d for d in space.dims if d.scope != "block"]
    found = []
    for values in itertools.product(*(d.choices for d in counts)):
        genes = dict(zip((d.key for d in counts), values, strict=True))
        blocks = {d.key: (largest.many(d.key)[0],) * int(genes["depth"]) for d in space.dims if d.scope == "block"}
        found.append(Arch(space.family, **genes, **blocks))
    return found


# -- measured rates ---------------------------------------------------------------------------------------------------


@cache
def rows(name: str) -> tuple[dict[str, Any], ...]:
    """The stored rows of a measurement."""
    text = (HERE / "results" / f"{name}.jsonl").read_text(encoding="utf-8")
    return tuple(json.loads(line) for line in text.splitlines())


def row(name: str, section: str, what: str, variant: str = "graphs", **more: Any) -> dict[str, Any]:
    """One stored row."""
    wanted = {"section": section, "what": what, "variant": variant, **more}
    return next(r for r in rows(name) if all(r.get(k) == v for k, v in wanted.items()))


def measured_space(size: int = 224, patch: int = 16) -> Space:
    """The space whose supernet was measured."""
    return named_space("autoformer-s", image_size=(size, size), patch=patch, classes=1000)


def timed_archs(space: Space) -> list[Arch]:
    """The architectures of the timed steps."""
    rule = SinglePath(space)
    return [arch for step in range(WARM, WARM + TIMED) for arch in rule.archs_at(SEED, step) if arch is not None]


@cache
def seconds_per_count(batch: int) -> Work:
    """Seconds of training per MAC of a product, per MAC of attention and per element, at a measured batch."""
    what, space = f"training, batch {batch}", measured_space()
    share = row(TABLE, "profile", what)["shares"]
    parts = share["matrix products"], share["attention"]
    done = mean_work(space, timed_archs(space))
    image = 1 / row(TABLE if batch == 128 else LOOP, "loop", what)["img_s"]
    return Work(*(image * s / count for s, count in zip((*parts, 1 - sum(parts)), done, strict=True)))


def training_seconds(work: Work, batch: int) -> float:
    """Seconds of training per image; a larger batch than the measured ones is as quick as the largest of them."""
    return sum(a * b for a, b in zip(work, seconds_per_count(512 if batch >= 512 else 128), strict=True))


def evaluation_seconds(work: Work) -> float:
    """Seconds per image of an evaluation, in the proportions of a training."""
    space = measured_space()
    rate = row(LOOP, "growth", "evaluation against candidates", "graphs, one by one", x=64)["img_s"]
    return training_seconds(work, 512) / training_seconds(mean_work(space, timed_archs(space)), 512) / float(rate)


def decoding_rate() -> float:
    """Training images a second from files that are decoded anew, standard augmentation, 15 workers."""
    (found,) = (r for r in rows(INPUT) if r["section"] == "input")
    return float(next(r for r in found["rows"] if (r["images"], r["augment"]) == FIRST)["per_second"])


FIRST = ("files, first pass", "standard")


# -- memory of the device ---------------------------------------------------------------------------------------------


def activations(space: Space) -> float:
    """Numbers that the largest network keeps for the gradients of one image: inputs of its layers."""
    counter = Counter(space.family, dict(space.settings))
    blocks = counter.family.outline(counter.shared, space.largest())
    return float(sum(b["tokens"] * (2 * b["embed"] + 3 * b["qkv"] + b["hidden"]) for b in blocks))


def training_gib(space: Space, batch: int) -> float:
    """Peak memory of a training, from the two peaks measured: one part grows with the batch, the other does not."""
    small, large = (row(TABLE, "table", f"training, batch {b}")["peak_gib"] for b in (128, 512))
    image = (large - small) / (512 - 128)
    fixed, known = small - 128 * image, measured_space()
    params = largest_params(space) / largest_params(known)
    return float(fixed * params + batch * image * activations(space) / activations(known))


def largest_params(space: Space) -> int:
    """Parameters of the supernet."""
    return Counter(space.family, dict(space.settings)).params(space.largest())


# -- how well the rule predicts rows it was not fitted to -------------------------------------------------------------


def predictions() -> list[tuple[str, float, float]]:
    """(what, measured, predicted) of stored rows: milliseconds a step, images a second, GiB."""
    space, found = measured_space(), []
    middle = {d.key: d.choices[len(d.choices) // 2] for d in space.dims if d.scope != "block"}
    for key, curve in (("embed", "width"), ("depth", "depth")):
        for point in (r for r in rows(LOOP) if r.get("what") == f"step against {curve}" and "ms" in r):
            if point["variant"] == "graphs":
                genes = {**middle, key: point["x"]}
                arch = Arch("vit", **genes, heads=(5,) * genes["depth"], mlp=(3,) * genes["depth"])
                step = 1e3 * 128 * training_seconds(mean_work(space, [arch]), 128)
                found.append((f"step at {curve} {point['x']}, ms", point["ms"], step))
    small, what = measured_space(32, 4), "32 px, patch 4, training, batch 1024"
    rate = 1 / training_seconds(mean_work(small, timed_archs(small)), 1024)
    found.append((f"{what}, images a second", row(TABLE, "table", what)["img_s"], rate))
    found.append((f"{what}, GiB", row(TABLE, "table", what)["peak_gib"], training_gib(small, 1024)))
    return found


# -- the recipes ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Images:
    """The images of a data set: how many there are to divide, how many are for the test, how they are kept."""

    pool: int  # training and search images, and the test images too where the recipe draws them
    test: int
    classes: int
    margin: float = MARGIN  # of the stored side over the network's; 1 where the images are smaller
    array: bool = False  # one array, which the host keeps at the network's size


DATA = {
    "imagenet": Images(1_281_167, 50_000, 1000),
    "cifar10": Images(50_000, 10_000, 10, 1.0, array=True),
    "cifar100": Images(50_000, 10_000, 100, 1.0, array=True),
    "tiny-imagenet": Images(100_000, 10_000, 200, 1.0),
    "sun397": Images(108_754, 0, 397),
}
NAMES = {
    **{f"autoformer-{size}-imagenet": "imagenet" for size in "tsb"},
    **{f"s4-vit-{name}": name for name in ("cifar100", "tiny-imagenet", "sun397")},
    "s4-vit-cifar10-paper": "cifar10",
}


@dataclass(frozen=True)
class Need:
    """What a recipe needs on one H200; at most, where the number of steps of the space is not known."""

    recipe: str
    supernets: int
    macs: float  # of a mean step in the first space, as it is executed, in billions
    supernet_hours: float  # all of them
    evaluations: int
    evaluation_hours: float
    last_hours: float  # final training and baseline
    wanted: float  # training images a second that the device can take
    given: float  # that come from files; infinite where the device keeps them
    device_gib: float
    host_gib: float
    disk_gib: float

    @property
    def hours(self) -> float:
        """All of it."""
        return self.supernet_hours + self.evaluation_hours + self.last_hours

    def lines(self) -> dict[str, str]:
        """The lines of the recipe's head."""
        parts = [f"{_hours(self.supernet_hours)} for {_counted(self.supernets, 'supernet')}"]
        parts.append(f"{_hours(self.evaluation_hours)} for {self.evaluations:,} evaluations")
        parts += [f"{_hours(self.last_hours)} for the last training and the baseline"] if self.last_hours else []
        rates = f"the GPU trains on {round(self.wanted, -2):,.0f} images a second"
        if math.isinf(self.given):
            rates += " and keeps them all"
        else:
            limit = ", so files are the limit" if self.given < self.wanted else ""
            rates += f", 15 cores read {round(self.given, -2):,.0f} from files{limit}"
        most = "at most" if self.supernets > 1 else "about"
        return {
            "time": f"{most} {_hours(self.hours)} on one H200 ({', '.join(parts)}); {rates}; estimated from measured"
            " rates by benchmarks/speed/estimate.py, not run here",
            "memory": f"{self.device_gib:.0f} GiB of the GPU, {self.host_gib:.0f} GiB of the host,"
            f" {self.disk_gib:.1f} GiB of disk for the run folder; estimated likewise",
        }


def _hours(hours: float) -> str:
    return f"{60 * hours:.0f} minutes" if hours < 1 else f"{hours:.1f} hours" if hours < 10 else f"{hours:.0f} hours"


def _counted(count: int, one: str) -> str:
    return f"{count} {one}{'' if count == 1 else 's'}"


def first_space(config: Config, classes: int) -> tuple[Space, Meter]:
    """The space that is trained first: S4 repairs one whose largest network breaks the limit."""
    space = named_space(str(config.space), classes=classes)
    meter = Meter.for_space(space, Limits.of(**config.limits))
    broken = broken_limit(space, meter, config.s4.sized_by) if config.method == "s4" else None
    keep = None if broken is None else baseline_arch(space, meter)
    while broken is not None:
        space = repair_move(space, meter, config.s4, None, broken, keep).space
        broken = broken_limit(space, meter, config.s4.sized_by)
    return space, meter


@cache
def need(recipe: str) -> Need:
    """What one recipe needs."""
    config, images = configure(read_recipe(recipe)), DATA[NAMES[recipe]]
    space, meter = first_space(config, images.classes)
    steps = config.s4.iterations if config.method == "s4" else 0
    shares = float(config.data.search_share or 0.1), 0.0 if images.test else float(config.data.test_share)
    search, train = round(shares[0] * images.pool), round((1 - sum(shares)) * images.pool)

    stored = math.prod(stored_size((224, 224), images.margin)) * 3
    kept = train * stored < 0.25 * float(device_gib()) * GIB
    given = math.inf if kept else decoding_rate()
    mean, batch = mean_work(space, groups(space)), config.train.batch
    seconds = max(training_seconds(mean, batch), 1 / given)
    supernets = (steps + 1) * config.train.epochs * train * seconds / 3600

    searcher = config.search_settings()
    assert isinstance(searcher, EvolutionSettings)
    pairs = 2 * config.s4.pairs * len(space.dims) * steps
    scored = searcher.population * (searcher.generations + 1) + config.analysis.samples * (steps + 1) + pairs
    evaluations = scored * search * evaluation_seconds(mean) / 3600

    last = [] if config.final.how == "inherit" else [baseline_arch(space, meter)] * (2 if config.baseline else 1)
    counter = meter.counter
    finals = sum(
        config.final.train.epochs * train * max(training_seconds(work_of(counter, a), batch), 1 / given)
        for a in last
        if a is not None
    )
    device = training_gib(space, batch) + (train + search) * stored * kept / GIB + search * stored * (not kept) / GIB
    every = images.pool + images.test
    host = (
        PROCESS + every * (stored if images.array else NAMES_BYTES) / GIB + config.data.cache * (not images.array) / GIB
    )
    return Need(
        recipe,
        steps + 1,
        (mean.products + mean.attention) / 1e9,
        supernets,
        scored,
        evaluations,
        finals / 3600,
        1 / training_seconds(mean, batch),
        given,
        device,
        host,
        disk_gib(largest_params(space), [counter.params(a) for a in last if a is not None], steps + 1),
    )


def device_gib() -> float:
    """Memory of the measured device."""
    return float(rows(TABLE)[0]["device_memory_gib"])


def disk_gib(supernet: int, plain: Sequence[int], supernets: int) -> float:
    """The run folder at its fullest: of a finished stage weights and the last checkpoint, of the one being trained two.

    A checkpoint inside an epoch holds weights and moments twice: as they are, and as a roll-back needs them.
    """
    inside = 2 * (1 + MOMENTS) * WEIGHT
    sizes = [*[supernet] * supernets, *plain]
    ended = (1 + 1 + MOMENTS) * WEIGHT
    return (sum(sizes) * ended + max(sizes) * (2 * inside - ended)) / GIB


# -- pages ------------------------------------------------------------------------------------------------------------


def tables() -> dict[str, str]:
    """The tables of the page."""
    head = ("recipe", "GMACs a step computes", "supernets, h", "evaluations", "h", "last trainings, h", "all, h")
    head += ("images a second: GPU", "files", "GPU, GiB", "host, GiB", "disk, GiB")
    body = []
    for n in map(need, NAMES):
        rates = number(n.wanted), "kept" if math.isinf(n.given) else number(n.given)
        hours = (f"{n.supernets} x {n.supernet_hours / n.supernets:.1f}", number(n.evaluations))
        hours += (number(n.evaluation_hours, 1), number(n.last_hours, 1), number(n.hours, 0))
        sizes = (number(n.device_gib), number(n.host_gib), number(n.disk_gib, 1))
        body.append((f"`{n.recipe}`", number(n.macs, 2), *hours, *rates, *sizes))
    checks = [(what, number(a, 1), number(b, 1), f"{100 * (b / a - 1):+.0f} %") for what, a, b in predictions()]
    return {
        "estimates": markdown(head, body),
        "estimates-checked": markdown(("stored row, not fitted to", "measured", "predicted", "off by"), checks),
    }


def heads() -> dict[str, dict[str, str]]:
    """The lines of the recipes' heads that come from here, by recipe and word."""
    return {n.recipe: n.lines() for n in map(need, NAMES)}


def shown(recipe: str) -> dict[str, str]:
    """The same lines as the recipe's file has them."""
    text = (RECIPES / f"{recipe}.toml").read_text(encoding="utf-8")
    return dict(re.findall(r"^# (time|memory): (.*)$", text, re.M))


def fill_heads() -> None:
    """Write the lines into the recipes."""
    for recipe, lines in heads().items():
        path = RECIPES / f"{recipe}.toml"
        kept = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("# memory: ")]
        at = next(i for i, line in enumerate(kept) if line.startswith("# time: "))
        kept[at : at + 1] = [f"# {word}: {text}" for word, text in lines.items()]
        path.write_text("\n".join(kept) + "\n", encoding="utf-8")
        print(f"filled {path}")


def main() -> None:
    """Print the figures, or put them where they belong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", nargs="?", choices=("table",))
    if parser.parse_args().verb == "table":
        fill(HERE / "README.md", tables())
        fill_heads()
    else:
        print("\n\n".join(tables().values()))
        for recipe, lines in heads().items():
            print("", recipe, *(f"  {word}: {text}" for word, text in lines.items()), sep="\n")


if __name__ == "__main__":
    main()
