"""What the choices of a contest are worth, and whole runs on photos beside models of timm.

python benchmarks/win/win.py    # fills the tables of this folder's page from the stored results
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))
from common import fill, markdown, number, read

HERE = Path(__file__).resolve().parent
PAGE, RESULTS = HERE / "README.md", HERE / "results"
RULES = {"paper": "0.02", "step": "step at 128", "scaled": "max(0.02, 0.5/sqrt(n))", "unbounded": "0.58/sqrt(n)"}
LADDER = ("mild", "light", "medium", "strong")
Row = Mapping[str, Any]


def rows(name: str) -> list[Row]:
    """Stored trainings."""
    return [json.loads(line) for line in (RESULTS / name).read_text(encoding="utf-8").splitlines()]


WORDS = {  # the designs of hybrid.py
    "base": "two stages of convolutions, two of attention (CCTT)",
    "ln": "layer norm instead of batch norm",
    "tbn": "batch norm around attention",
    "tbn-fn": "batch norm around attention and in its MLP",
    "wide": "early stages wider (1, 1.5, 2.5, 4)",
    "wider": "early stages wider still (1, 1.2, 1.7, 2.5)",
    "short": "fewer blocks (2, 2, 3, 1)",
    "early": "more blocks early (3, 4, 4, 2)",
    "CCCC": "no attention",
    "CCCT": "attention in the last stage only",
    "CTTT": "attention in three stages",
    "FCTT": "full convolutions in the first stage",
    "FFTT": "full convolutions in the first two stages",
    "XXTT": "ConvNeXt's blocks",
    "se": "squeeze-and-excitation",
    "nodw": "no convolution in the MLP of attention",
    "nodw-lepe": "a convolution of the values instead of it",
    "lepe": "a convolution of the values besides",
    "relu": "ReLU",
    "ec2": "half the expansion, wider",
    "et2": "half the MLP ratio, wider",
    "k5": "5x5 convolutions",
    "zero": "branches that start at zero",
    "he": "He's initialisation",
    "stem1": "a wider stem of three convolutions",
    "last": "a wide layer before the head",
    "hd32": "heads of 32",
}


def designs() -> str:
    """What each part of a design is worth."""
    found = [r for r in rows("hybrid-2026-11-18.jsonl") if r["epochs"] in (10, 4)]
    seen = {(r.get("v") or r.get("peer") or r.get("family"), r["data"]): r["search"] for r in found}
    names = sorted({name for name, _ in seen}, key=lambda name: (-seen.get((name, "flowers"), 0.0), name))
    lines = [
        [WORDS.get(name, name), number(seen.get((name, "flowers")), 1), number(seen.get((name, "cifar10")), 1)]
        for name in names
    ]
    return markdown(("design", "Flowers-102, 10 epochs", "CIFAR-10, 4 epochs"), lines)


def longer() -> str:
    """The designs made from that, trained longer."""
    found = [r for r in rows("hybrid-2026-11-18.jsonl") if r["epochs"] in (30, 6)]
    seen = {(r.get("v") or r.get("peer") or r.get("family"), r["data"]): r["search"] for r in found}
    names = sorted({name for name, _ in seen}, key=lambda name: (-seen.get((name, "flowers"), 0.0), name))
    lines = [[n, number(seen.get((n, "flowers")), 1), number(seen.get((n, "cifar10")), 1)] for n in names]
    return markdown(("design", "Flowers-102, 30 epochs", "CIFAR-10, 6 epochs"), lines)


def screened() -> str:
    """Models of timm after a third of the epochs, at the better of two learning rates, beside the contest's winner."""
    found = rows("runs-2026-11-18.jsonl")
    sets = ("flowers", "cifar10", "pets", "fashion")
    best: dict[tuple[str, str], float] = {}
    for r in found:
        if r["case"] == "screen" and "search" in r:
            key = (r["peer"], r["data"])
            best[key] = max(best.get(key, 0.0), r["search"])
    lines = [
        [f"timm:{name}", *(number(best.get((name, data)), 1) for data in sets)]
        for name in sorted({name for name, _ in best}, key=lambda name: (-best[name, "flowers"], name))
    ]
    tuned = ["the contest's winner", *(number(_tuned(found, data), 1) for data in sets)]
    return markdown(("network", *sets), [tuned, *lines])


def _first(found: list[Row]) -> list[Row]:
    return [r for r in found if r["case"] == "default" and r["seed"] == 1 and "contest" in r]


def _tuned(found: list[Row], data: str) -> float | None:
    """The winner in the round that sets the learning rate, which is as long as the screening."""
    for r in _first(found):
        if r["data"] == data:
            rung = next(g["rung"] for g in r["contest"]["rungs"] if g["asks"] == "learning rate")
            return max(g["accuracy"] for e in r["contest"]["entries"] for g in e["rungs"] if g["rung"] == rung)
    return None


def defaults() -> str:
    """Whole runs."""
    lines = []
    for r in sorted(rows("runs-2026-11-18.jsonl"), key=lambda r: (r["data"], r["seed"])):
        if r["case"] == "default" and "contest" in r:
            won = r["contest"]["entries"][r["contest"]["winner"]]
            chosen = next(c for c in r["candidates"] if c["chosen"])
            name = f"{won['family']}{'' if won['stem'] == 'usual' else ' ' + won['stem']}, {won['shape']}"
            figures = (number(r[key], 1) for key in ("final_search_accuracy", "test_accuracy"))
            how = (won["lr"], chosen["augment"], r["epochs"])
            lines.append([r["data"], r["seed"], name, number(r["params"]), *how, *figures])
    head = ("images", "seed", "winner", "parameters", "learning rate", "augmentation", "final epochs")
    return markdown((*head, "search %", "test %"), lines)


def ends() -> str:
    """Two augmentations in the climb and at the end, where the contest trained both to the end."""
    lines = []
    for r in sorted(rows("runs-2026-11-18.jsonl"), key=lambda r: (r["data"], r["seed"])):
        if r["case"] != "default":
            continue
        made = {c["augment"]: c for c in r["candidates"] if c["name"] != "contest"}
        if len(made) < 2:
            continue
        rung = next(g["rung"] for g in r["contest"]["rungs"] if g["asks"] == "augmentation")
        climb = {e["augment"]: g["accuracy"] for e in r["contest"]["entries"] for g in e["rungs"] if g["rung"] == rung}
        figures = [climb[name] for name in ("mild", "light")]
        figures += [made[name][k] for k in ("final_search_accuracy", "test_accuracy") for name in ("mild", "light")]
        lines.append([r["data"], r["seed"], *(number(f, 1) for f in figures)])
    head = ("images", "seed", "climb: mild", "light", "end, search: mild", "light", "end, test: mild", "light")
    return markdown(head, lines)


def peers() -> str:
    """Models of timm at full length beside the default run."""
    found = rows("runs-2026-11-18.jsonl")
    ours = {(r["data"], r["seed"]): r["test_accuracy"] for r in found if r["case"] == "default"}
    lines = [
        [
            r["data"],
            r["seed"],
            f"timm:{r['peer']}",
            r["augment"],
            number(r["test"], 1),
            number(ours[r["data"], r["seed"]], 1),
        ]
        for r in sorted(found, key=lambda r: (r["data"], r["seed"]))
        if r["case"] == "peers"
    ]
    return markdown(("images", "seed", "model", "augmentation", "test %", "the default run, test %"), lines)


SETS = {"cifar10": "CIFAR-10", "fashion": "Fashion-MNIST", "flowers": "Flowers-102", "pets": "Pets"}
WHOLE = {"default": "the default run", "s4": "ViT by S4, the same recipe", "old": "version 0.2's default"}
FAMILIES = ("hybrid", "shunted", "pit", "swin", "windowed", "vit")
ORDER = (
    "the default run",
    "the best model of timm",
    *(f"{name}, hand-designed" for name in FAMILIES),
    "ViT by S4, the same recipe",
    "version 0.2's default",
)


def finished() -> dict[str, dict[str, dict[int, float]]]:
    """Everything that was trained to the end: by way and images, percent of the test images by seed."""
    found = [r for r in rows("runs-2026-11-18.jsonl") if "failed" not in r]
    ways: dict[str, dict[str, dict[int, float]]] = {}

    def add(way: str, row: Row, key: str) -> None:
        ways.setdefault(way, {}).setdefault(row["data"], {})[row["seed"]] = row[key]

    for row in found:
        if row["case"] in WHOLE:
            add(WHOLE[row["case"]], row, "test_accuracy")
        elif row["case"] == "families":
            add(f"{row['family']}, hand-designed", row, "test")
    peers = [r for r in found if r["case"] == "peers"]
    for row in sorted(peers, key=lambda r: r["search"]):  # the best on the search images comes last
        add("the best model of timm", row, "test")
    return {way: ways[way] for way in ORDER if way in ways}


def summary() -> str:
    """The same as a table: means over seeds."""

    def cell(figures: Mapping[int, float]) -> str:
        seeds = f" ({len(figures)} seeds)" if len(figures) > 1 else ""
        return f"{statistics.fmean(figures.values()):.1f}{seeds}" if figures else "-"

    lines = [[way, *(cell(own.get(data, {})) for data in SETS)] for way, own in finished().items()]
    return markdown(("network", *SETS.values()), lines)


def starts() -> str:
    """Rules of initialisation, one line a network."""
    found = [r for r in rows("flowers-2026-11-18.jsonl") if "init" in r]
    lines = []
    for network in dict.fromkeys((r["family"], r["shape"]) for r in found):
        own = {r["init"]: r["search"] for r in found if (r["family"], r["shape"]) == network}
        lines.append([", ".join(network), *(number(own.get(rule), 1) for rule in RULES)])
    return markdown(("network", *RULES.values()), lines)


def networks() -> str:
    """Families, stems and shapes."""
    found = [r for r in rows("flowers-2026-11-18.jsonl") if "init" not in r and r["augment"] == "mild"]
    scaled = [r for r in rows("flowers-2026-11-18.jsonl") if r.get("init") == "scaled"]
    seen: dict[tuple[str, str, str], Row] = {}
    for r in [*found, *scaled]:
        seen.setdefault((r["family"], r.get("stem", "usual"), r.get("shape", "hand-designed")), r)
    ranked = sorted(seen.items(), key=lambda item: -item[1]["search"])
    lines = [[*key, number(r["params"]), number(r["macs"] / 1e6), number(r["search"], 1)] for key, r in ranked]
    return markdown(("family", "stem", "shape", "parameters", "M MACs", "search %"), lines)


def ladder() -> str:
    """Augmentation against the length of the training."""
    found = rows("ladder-2026-11-18.jsonl")
    lines = []
    for case in dict.fromkeys((r["family"], r["epochs"]) for r in found):
        own = {r["augment"]: r["search"] for r in found if (r["family"], r["epochs"]) == case}
        if len(own) == len(LADDER):
            lines.append([case[0], str(case[1]), *(number(own[name], 1) for name in LADDER)])
    lines.sort(key=lambda line: (line[0], int(line[1])))
    return markdown(("family", "epochs", *LADDER), lines)


def run() -> str:
    """A whole run beside peers."""
    facts = read(RESULTS / "flowers-run-2026-11-18.json")
    name = facts["contest"]["entries"][facts["contest"]["winner"]]["family"]
    lines = [
        [f"TailorViT: {name}", number(facts["params"]), number(facts["macs"] / 1e6), number(facts["test_accuracy"], 1)]
    ]
    for peer in facts["peers"]:
        lines.append(
            [peer["name"], number(peer["params"]), number(peer["macs"] / 1e6), number(peer["test_accuracy"], 1)]
        )
    return markdown(("network", "parameters", "M MACs", "test %"), lines)


def worth() -> str:
    """What each choice of that run was worth."""
    facts = read(RESULTS / "flowers-run-2026-11-18.json")
    return markdown(
        ("choice", "best", "worst", "points", "95 % interval"),
        [
            [w["what"], str(w["best"]), str(w["worst"]), number(w["points"], 1), f"{w['low']:.1f} to {w['high']:.1f}"]
            for w in facts["contest"]["worth"]
        ],
    )


def short() -> str:
    """A run in a budget of time."""
    (row,) = rows("flowers-short-2026-11-18.jsonl")
    winner = row["contest"]["entries"][row["contest"]["winner"]]
    chosen = next(c for c in row["candidates"] if c["chosen"])
    return markdown(
        ("network", "parameters", "learning rate", "augmentation", "final epochs", "seconds in all", "test %"),
        [
            [
                f"{winner['family']}, {winner['shape']}",
                number(row["params"]),
                winner["lr"],
                chosen["augment"],
                row["plan"]["final_epochs"],
                number(row["wall"]),
                number(row["test_accuracy"], 1),
            ]
        ],
    )


def photos() -> str:
    """Whole runs on a CPU, and a model of timm."""
    head = ("run", "winner", "parameters", "final epochs", "minutes", "test %")
    found = read(RESULTS / "photos-2026-11-18.json")["rows"]
    return markdown(
        head,
        [
            [r["form"], r["winner"], number(r["params"]), r["epochs"], number(r["minutes"], 1), number(r["test"], 1)]
            for r in found
        ],
    )


def cpu() -> str:
    """Forms of the contest on a CPU."""
    head = ("form of the contest", "winner", "final epochs", "minutes", "test %")
    facts = read(RESULTS / "photos-cpu-2026-11-18.json")
    found = [*facts["rows"], facts["peer"]]
    return markdown(
        head, [[r["form"], r["winner"], r["epochs"], number(r["minutes"], 1), number(r["test"], 1)] for r in found]
    )


def _which(row: Row) -> str:
    return json.dumps([row["arch"], row["params"], row.get("stem")])


def latency() -> str:
    """Shapes of a ViT, the quickest first, beside the hand-designed networks of all families."""
    found = sorted(read(RESULTS / "latency-cpu.json")["networks"], key=lambda r: r["onnx_ms"])
    gpu = {_which(r): r for r in read(RESULTS / "latency-gpu.json")["networks"]}
    lines = []
    for r in found:
        arch = r["arch"]
        shape = f"{arch['depth']} x {arch['embed']}, MLP ratio {arch['mlp'][0]:g}" if r["family"] == "vit" else ""
        stem = "" if r.get("stem", "usual") == "usual" else f" {r['stem']}"
        name = f"{r['family']}{stem}, hand-designed {shape}" if "stem" in r else f"{r['family']} {shape}"
        length = f", {r['epochs']} epochs" if "epochs" in r else ""
        accuracy = f"{r['test']:.2f} ({r['seeds']}{length})" if r.get("test") else "-"
        there = gpu[_which(r)]
        times = (r["onnx_ms"], r["torch_ms"], there["gpu_ms"], there["graph_ms"])
        lines.append([name.strip(), number(r["params"]), *(number(ms, 2) for ms in times), accuracy])
    head = ("network", "parameters", "CPU, onnxruntime, ms", "CPU, PyTorch", "H200, PyTorch", "H200, CUDA graph")
    return markdown((*head, "test % (seeds)"), lines)


def tables() -> dict[str, str]:
    """The page's tables by name."""
    makers = (
        designs,
        longer,
        screened,
        defaults,
        ends,
        peers,
        summary,
        starts,
        networks,
        ladder,
        run,
        worth,
        short,
        photos,
        cpu,
        latency,
    )
    return {maker.__name__: maker() for maker in makers}


if __name__ == "__main__":
    fill(PAGE, tables())
