"""Whole runs and single trainings by one recipe, for the tables that compare them.

python benchmarks/win/runs.py CASE --data NAME=SOURCE [--image-size 96] --budget 5m --seed 1 --out rows.jsonl

Cases, in the order in which they build on each other:
  default    the run as it comes, with a budget of time (or --epochs)
  families   the hand-designed network of every family, by the recipe that run chose, for as many epochs
  screen     models of timm at two learning rates for a third of the epochs, judged by the search images
  peers      the best of them (--best), at their better rate, by the recipes that run trained to the end, as many epochs
  larger     the same on images enlarged to twice their size (--image-size says what they have)
  parts      the winner without one of the things that made it: start, learning rate, augmentation, length
  s4         a ViT by S4, by that recipe; with --on winner S4 on the winner's family
  old        what version 0.2 did by default (--old-source: its src folder)
  shapes     the ladder of ViT shapes of CIFAR-10, 40 epochs
Every case appends rows to the output and skips what is there already. lease.py beside this runs all of them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent))
from sweep import tried

LIMIT = 1_500_000
FAMILIES = ("vit", "pit", "swin", "windowed", "shunted", "hybrid")
PEERS = (  # models of timm that keep the limit; efficientvit_b0 has 2.1M
    "mobilevit_xxs",
    "edgenext_xx_small",
    "mobilevitv2_050",
    "ese_vovnet19b_slim_dw",
    "mobilenetv3_small_075",
    "starnet_s100",
    "tinynet_d",
    "mobilenetv4_conv_small_050",
)
RATES = (1e-3, 2e-3)
LARGE = ("parts", "blocks", "spaces", "front", "fixed", "comparison", "data", "seed")  # of result.json, not in rows
SHAPES = (  # depth, width, heads, MLP ratio; CIFAR-10, at most 1.5M
    (12, 100, 3, 4),
    (5, 192, 6, 2),
    (4, 176, 5, 4),
    (7, 132, 4, 4),
    (3, 200, 6, 4),
)
Job = dict[str, Any]


def rows(path: Path) -> list[Job]:
    """What is known; a line that another process is still writing is left out."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


class Study:
    """One set of images and one seed."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.name, _, self.source = options.data.partition("=")
        self.options, self.out = options, options.out
        self.key = {"data": self.name, "seed": options.seed}

    def add(self, **row: Any) -> None:
        """Store a row."""
        line = json.dumps({"case": self.options.case, **self.key, **row}) + "\n"
        file = os.open(self.out, os.O_APPEND | os.O_CREAT | os.O_WRONLY)
        os.write(file, line.encode())  # at once: other processes write here too
        os.close(file)
        print(json.dumps(row)[:300], flush=True)

    def part(self, work: Sequence[Any]) -> Sequence[Any]:
        """The share of one process, where several do a case."""
        part, parts = (int(n) for n in self.options.part.split("/"))
        return work[part::parts]

    def chosen(self) -> Job:
        """The recipe and network of the default run."""
        for row in rows(self.out):
            if row["case"] == "default" and all(row[k] == v for k, v in self.key.items()):
                winner = row["contest"]["entries"][row["contest"]["winner"]]
                self.options.epochs = row["plan"]["final_epochs"] if "plan" in row else row["epochs"]
                augment = next(c["augment"] for c in row["candidates"] if c["chosen"])
                trained = dict.fromkeys([augment, *(c["augment"] for c in row["candidates"] if c["name"] != "contest")])
                own = {k: winner[k] for k in ("lr", "family", "stem", "shape")}
                return {"augment": augment, "augments": list(trained), **own}
        raise SystemExit(f"{self.key}: run the case 'default' first.")

    def run(self, text: str, *more: str, source: str | None = None) -> Job:
        """``tailorvit run`` of a recipe; its result."""
        with tempfile.TemporaryDirectory() as folder:
            recipe, out = Path(folder, "recipe.toml"), Path(folder, "run")
            recipe.write_text(text)
            size = ["--image-size", str(self.options.image_size)] if self.options.image_size else []
            command = [sys.executable, "-m", "tailorvit", "run", str(recipe), "--data", self.source, *size]
            command += ["--max-params", str(LIMIT), "--seed", str(self.options.seed), "--out", str(out), "--quiet"]
            paths = {"PYTHONPATH": os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))}
            begin = time.monotonic()
            done = subprocess.run([*command, *more], env={**os.environ, **paths}, capture_output=True, text=True)
            if done.returncode:
                return {"failed": (done.stderr or done.stdout)[-500:]}
            result = json.loads((out / "result.json").read_text())
            result["wall"] = time.monotonic() - begin
            return {k: v for k, v in result.items() if k not in LARGE}

    def train(self, **job: Any) -> None:
        """One training by the recipe of the default run, unless its row is there."""
        job = {**job, "epochs": job.get("epochs", self.options.epochs)}
        same = {"case": self.options.case, **self.key, **job}
        if not any(all(row.get(k) == v for k, v in same.items()) for row in rows(self.out)):
            asked = {**self.key, **job, "source": self.source, "test": True, "limit": LIMIT}
            found = tried({**asked, "image_size": self.options.image_size})
            self.add(**{k: v for k, v in found.items() if k != "source"})


# -- cases ------------------------------------------------------------------------------------------------------------


def recipe(epochs: int, method: str = "contest", family: str = "auto", **train: Any) -> str:
    """The recipe image-folder without its budget of time."""
    own = {"epochs": epochs, "batch": 0, "lr": 2e-3, "warmup": 3, "drop_path": 0.05, "precision": "auto", **train}
    lines = [f"{k} = {json.dumps(v)}" for k, v in own.items()]
    return "\n".join([f'method = "{method}"\nfamily = "{family}"\n[data]\nsource = "photos"\n[train]', *lines]) + "\n"


def default(study: Study) -> None:
    """The default run."""
    budget = ["--budget", study.options.budget] if study.options.budget else []
    study.add(epochs=study.options.epochs, **study.run(recipe(study.options.epochs), *budget))


def families(study: Study) -> None:
    """Every family's hand-designed network."""
    chosen = study.chosen()
    for name in study.part(FAMILIES):
        study.train(family=name, augment=chosen["augment"], lr=chosen["lr"])


def screen(study: Study) -> None:
    """Short trainings of models of timm, as the contest asks for its own learning rate."""
    for name, rate in study.part(list(itertools.product(PEERS, RATES))):
        study.train(peer=name, augment="mild", lr=rate, epochs=max(1, study.options.epochs // 3))


def peers(study: Study) -> None:
    """The best models of timm; the very best with every augmentation that the default run trained to the end."""
    augments, found = study.chosen()["augments"], dict[str, Job]()
    for row in sorted(rows(study.out), key=lambda row: row.get("search", 0.0)):
        if row["case"] == "screen" and row["data"] == study.name and "search" in row:
            found[row["peer"]] = row  # the better of its two rates comes last
    for i, row in enumerate(sorted(found.values(), key=lambda row: -row["search"])[: study.options.best]):
        for augment in augments if i == 0 else augments[:1]:
            study.train(peer=row["peer"], augment=augment, lr=row["lr"])


def larger(study: Study) -> None:
    """The best two models of timm on small images enlarged to twice their size, where their last maps have cells."""
    chosen, study.options.image_size = study.chosen(), 2 * study.options.image_size
    best = sorted({r["peer"] for r in rows(study.out) if r["case"] == "peers" and r["data"] == study.name})
    for name in best:
        study.train(peer=name, augment=chosen["augment"], lr=chosen["lr"])


def without(chosen: Mapping[str, Any], epochs: int) -> Iterator[Job]:
    """The winner, and the winner without one thing."""
    network = {k: chosen[k] for k in ("family", "stem", "shape")}
    yield {**network, "augment": chosen["augment"], "lr": chosen["lr"]}
    yield {**network, "augment": chosen["augment"], "lr": chosen["lr"], "init": "paper"}
    yield {**network, "augment": chosen["augment"], "lr": 5e-4}
    for augment in ("mild", "light", "medium", "standard"):
        if augment != chosen["augment"]:
            yield {**network, "augment": augment, "lr": chosen["lr"]}
    yield {**network, "augment": chosen["augment"], "lr": chosen["lr"], "epochs": max(1, epochs // 3)}


def parts(study: Study) -> None:
    """What the parts are worth."""
    for job in study.part(list(without(study.chosen(), study.options.epochs))):
        study.train(**job)


def search(epochs: int) -> str:
    """What the recipe image-folder-gpu of version 0.2 had, its 100 and 300 epochs scaled."""
    return (
        "[s4]\niterations = 3\npairs = 40\nwarm_start = true\n"
        f'[search]\nname = "evolution"\n[final]\nhow = "retrain"\n[final.train]\nepochs = {epochs}\n'
    )


def s4(study: Study) -> None:
    """S4 by the chosen recipe."""
    chosen = study.chosen()
    epochs = study.options.epochs
    family = chosen["family"] if study.options.on == "winner" else "vit"
    third = -(-epochs // 3)
    text = recipe(third, "s4", family, augment=chosen["augment"], lr=chosen["lr"], warmup=0.2 * third)
    study.add(family=family, **study.run(text.replace("[data]", 'space = "auto"\n[data]') + search(epochs)))


def old(study: Study) -> None:
    """Version 0.2's default, with this study's epochs."""
    study.chosen()
    epochs = study.options.epochs
    third = -(-epochs // 3)  # its warm-up, five of a hundred epochs, is shortened alike, but not under a fifth
    warmup = max(0.2, 0.05 * third)
    text = recipe(third, "s4", "vit", lr=1e-3, batch=256, warmup=warmup, drop_path=0.1, precision="bf16")
    text = text.replace('family = "vit"', 'space = "auto"').replace("source =", "cache = 8589934592\nsource =")
    study.add(**study.run(text + search(epochs), source=study.options.old_source))


def shapes(study: Study) -> None:
    """ViTs of one size and other shapes."""
    for depth, embed, heads, ratio in SHAPES:
        arch = {"embed": embed, "depth": depth, "heads": heads, "mlp": ratio}
        study.train(family="vit", arch=arch, augment="mild", lr=1e-3, batch=256)


CASES = {f.__name__: f for f in (default, families, screen, peers, larger, parts, s4, old, shapes)}


def main() -> None:
    """One case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--data", required=True, help="NAME=SOURCE")
    parser.add_argument("--image-size", type=int, default=None)
    parser.add_argument("--budget", default=None)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--part", default="0/1", help="K/N trains every Nth from K on")
    parser.add_argument("--best", type=int, default=1, help="how many models of timm are trained to the end")
    parser.add_argument("--on", choices=("vit", "winner"), default="vit")
    parser.add_argument("--old-source", default=None)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    CASES[options.case](Study(options))


if __name__ == "__main__":
    main()
