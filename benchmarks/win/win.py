"""What the choices of a contest are worth, and whole runs on photos beside models of timm.

python benchmarks/win/win.py    # fills the tables of this folder's page from the stored results
"""

from __future__ import annotations

import json
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


def cpu() -> str:
    """Forms of the contest on a CPU."""
    head = ("form of the contest", "winner", "final epochs", "minutes", "test %")
    facts = read(RESULTS / "photos-cpu-2026-11-18.json")
    found = [*facts["rows"], facts["peer"]]
    return markdown(
        head, [[r["form"], r["winner"], r["epochs"], number(r["minutes"], 1), number(r["test"], 1)] for r in found]
    )


def latency() -> str:
    """Shapes of a ViT, the quickest first, beside the hand-designed networks of all families."""
    found = sorted(read(RESULTS / "latency-cpu.json")["networks"], key=lambda r: r["onnx_ms"])
    lines = []
    for r in found:
        arch = r["arch"]
        shape = f"{arch['depth']} x {arch['embed']}, MLP ratio {arch['mlp'][0]:g}" if r["family"] == "vit" else ""
        name = f"{r['family']} {shape}".strip() if r.get("test") else f"{r['family']}, hand-designed {shape}".strip()
        accuracy = f"{r['test']:.2f} ({r['seeds']})" if r.get("test") else "-"
        lines.append([name, number(r["params"]), number(r["onnx_ms"], 2), number(r["torch_ms"], 2), accuracy])
    return markdown(("network", "parameters", "onnxruntime, ms", "PyTorch, ms", "test % (seeds)"), lines)


def tables() -> dict[str, str]:
    """The page's tables by name."""
    makers = (starts, networks, ladder, run, worth, short, cpu, latency)
    return {maker.__name__: maker() for maker in makers}


if __name__ == "__main__":
    fill(PAGE, tables())
