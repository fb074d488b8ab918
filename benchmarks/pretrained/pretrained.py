"""How good a network cut from a pretrained one is, beside other ways to the same size.

python benchmarks/pretrained/pretrained.py    # fills the tables of this folder's page from the stored results
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.extend(str(place) for place in Path(__file__).resolve().parents[:2])
from common import fill, markdown, number, spread
from trainings import key

HERE = Path(__file__).resolve().parent
PAGE, RESULTS = HERE / "README.md", HERE / "results"
Row = Mapping[str, Any]
LIMITS = (11e6, 6e6, 3e6)
WORDS = {
    "tailored": "TailorViT",
    "first": "the first blocks",
    "every_other": "evenly spaced blocks",
    "slimmed": "uniform slimming by magnitude",
    "torch_pruned": "Torch-Pruning",
    "scratch": "the first blocks' shape from scratch",
}


def rows() -> list[Row]:
    """Stored trainings that came to an end; of those made again, for test images, the last."""
    lines = [line for path in sorted(RESULTS.glob("rivals-*.jsonl")) for line in path.read_text("utf-8").splitlines()]
    found = [row for row in map(json.loads, lines) if "failed" not in row and "images" not in row]
    return list({key(row): row for row in found}.values())


def described(row: Row) -> str:
    """A way to a smaller network in words."""
    words = WORDS[row["network"]]
    if row["network"] == "slimmed":
        words += f", {row['blocks']} blocks"
    if row["network"] == "torch_pruned":
        words += f", {row['importance']}, {'isomorphic' if row['isomorphic'] else 'uniform'}"
    return words + (", taught" if row.get("taught") else "")


def best(found: Sequence[Row]) -> list[Row]:
    """The seeds at the learning rate that did best on the search images."""
    rates: dict[float, list[Row]] = {}
    for row in found:
        rates.setdefault(row["lr"], []).append(row)
    return max(rates.values(), key=lambda own: statistics.fmean(r["search"] for r in own), default=[])


def whole() -> str:
    """The pretrained network fine-tuned whole."""
    found = [r for r in rows() if r["network"] == "whole"]
    lines = []
    for data in dict.fromkeys(r["data"] for r in found):
        own = best([r for r in found if r["data"] == data])
        accuracies = (spread((r.get(split) for r in own), 1) for split in ("search", "test"))
        lines.append([data, number(own[0]["params"]), number(own[0]["macs"] / 1e6), len(own), *accuracies])
    return markdown(("images", "parameters", "M MACs", "seeds", "search %", "test %"), lines)


def rivals() -> str:
    """Every way at every limit: accuracy on the test images and parameters."""
    found = [r for r in rows() if r["network"] in WORDS]
    order = list(WORDS)
    cases = sorted({(r["data"], order.index(r["network"]), described(r)) for r in found})
    lines = []
    for data, _, words in cases:
        cells = []
        for limit in LIMITS:
            own = best([r for r in found if r["data"] == data and described(r) == words and r["limit"] == limit])
            size = f" ({number(own[0]['params'] / 1e6, 2)}M)" if own else ""
            cells.append(spread((r.get("test") for r in own), 1) + size)
        lines.append([data, words, *cells])
    return markdown(("images", "network", *(f"at most {limit / 1e6:.0f}M" for limit in LIMITS)), lines)


def lines_of(name: str) -> list[Row]:
    """Rows of study.py that came to an end."""
    found = map(json.loads, (RESULTS / name).read_text(encoding="utf-8").splitlines())
    return [row for row in found if "failed" not in row]


BASE = {"lr": 5e-4, "share": 0.5, "features": 2.0, "augment": "mild", "order": "ours"}
CHANGED = {
    "lr": "learning rate {}",
    "features": "weight {} of the teacher's tokens",
    "share": "share {} of the teacher's outputs",
    "augment": "{} augmentation",
    "order": "ordered by {}",
}


def shapes() -> str:
    """Even shapes at two sizes."""
    found = [r for r in lines_of("cuts-2026-11-18.jsonl") if all(r[k] == v for k, v in BASE.items())]
    lines = [[r["shape"], number(r["params"]), number(r["untrained"], 1), number(r["search"], 1)] for r in found]
    return markdown(("shape", "parameters", "search % before training", "search %"), lines)


def changes() -> str:
    """The deep shapes with one thing changed."""
    seen: dict[str, dict[str, float]] = {}
    for row in lines_of("cuts-2026-11-18.jsonl"):
        differ = [text.format(row[k]) for k, text in CHANGED.items() if row[k] != BASE[k]]
        words = "no teacher" if not (row["share"] or row["features"]) else ", ".join(differ) or "as above"
        if row["shape"].endswith("deep"):
            seen.setdefault(words, {})[row["shape"]] = row["search"]
    lines = [[words, *(number(own.get(shape), 1) for shape in ("6M deep", "3M deep"))] for words, own in seen.items()]
    return markdown(("changed", "6M deep, search %", "3M deep, search %"), lines)


ORDERS = {"ours": "Taylor, stream turned", "taylor": "Taylor", "activation": "activation", "magnitude": "magnitude"}
PARTS = {"hidden": "hidden units", "heads": "heads", "embed": "channels of the stream", "depth": "blocks"}


def kept() -> str:
    """What is left of the accuracy with a share of one kind of part, before any training."""
    found = {row["order"]: row["kept"] for row in lines_of("kept-2026-11-18.jsonl")}
    shares = ("0.75", "0.5", "0.25")
    lines = [
        [f"{words}, {float(share):.0%}", *(number(found[order][f"{gene} {share}"], 1) for order in ORDERS)]
        for gene, words in PARTS.items()
        for share in shares
    ]
    return markdown(("kept", *ORDERS.values()), lines)


def rates() -> str:
    """The cuts that the method makes, at several learning rates and weights of the teacher's tokens."""
    seen: dict[tuple[float, float], dict[str, float]] = {}
    for row in lines_of("rates-2026-11-18.jsonl"):
        seen.setdefault((row["lr"], row["features"]), {})[row["shape"]] = row["search"]
    names = ("11M even", "6M even", "3M deep")
    lines = [[f"{lr:g}", f"{w:g}", *(number(own.get(n), 1) for n in names)] for (lr, w), own in sorted(seen.items())]
    return markdown(("learning rate", "weight of the tokens", *(f"at most {n.split()[0]}" for n in names)), lines)


def few() -> str:
    """The whole network tuned on few photos at several learning rates and layer decays."""
    seen: dict[tuple[float, float], dict[str, float]] = {}
    for row in lines_of("wholes-cpu-2026-11-18.jsonl"):
        seen.setdefault((row["lr"], row["decay"]), {})[row["data"]] = row["acc"]
    lines = [
        [f"{lr:g}", f"{decay:g}", *(number(own.get(name), 1) for name in ("pets12", "flowers34"))]
        for (lr, decay), own in seen.items()
    ]
    return markdown(("learning rate", "layer decay", "Pets, %", "Flowers, %"), lines)


def supernet() -> str:
    """A run that searched a supernet."""
    (row,) = lines_of("supernet-2026-11-18.jsonl")
    found, first = row["candidates"]
    named = [("found, at most 11M", found), ("first blocks", first)]
    lines = [
        [name, number(c["params"]), number(c["search_accuracy"], 1), number(c["final_search_accuracy"], 1)]
        for name, c in named
    ]
    lines[1][2] = "-"  # nothing to inherit
    for own in reversed(row["sizes"]):
        name = f"found, at most {own['size'] / 1e6:.0f}M"
        figures = (number(own[k], 1) for k in ("inherited_accuracy", "final_search_accuracy"))
        lines.append([name, number(own["params"]), *figures])
    return markdown(("network", "parameters", "inherited, search %", "trained to the end, search %"), lines)


def refitted() -> str:
    """What cut networks keep before any training, and what refitting gives back."""
    lines = []
    for row in lines_of("refit-2026-11-20.jsonl"):
        share = [f"at most {row['limit']}", number(row["params"])]
        lines.append([row["data"], *share, *(number(row[k], 1) for k in ("cut", "refitted", "whole"))])
    head = ("images", "limit", "parameters", "cut, search %", "cut and refitted, search %", "the whole, search %")
    return markdown(head, lines)


def own() -> str:
    """Whole runs on a CPU, with and without refitting."""
    lines = []
    for row in lines_of("cpu-2026-11-20.jsonl"):
        figures = [number(row.get(k), 1) for k in ("untrained", "search", "test")]
        size = [row["data"], row["network"], number(row["params"]), number(row["macs"] / 1e6)]
        lines.append([*size, "yes" if row["refit"] else "no" if row["refit"] is False else "", row["epochs"], *figures])
    head = ("images", "network", "parameters", "M MACs", "refitted", "epochs")
    return markdown((*head, "before training, search %", "search %", "test %"), lines)


def photos() -> str:
    """A run on a CPU."""
    row = json.loads((RESULTS / "photos-2026-11-18.json").read_text(encoding="utf-8"))
    named = [
        ("the whole, fine-tuned", row["peers"][0]),
        *zip(("cut and taught", "first blocks, taught alike"), row["candidates"]),
    ]
    lines = [
        [
            name,
            number(c["params"]),
            number(c["macs"] / 1e6),
            number(c["final_search_accuracy"], 1),
            number(c["test_accuracy"], 1),
        ]
        for name, c in named
    ]
    return markdown(("network", "parameters", "M MACs", "search %", "test %"), lines)


MAKERS = (shapes, changes, kept, refitted, own, rates, few, supernet, photos, whole, rivals)


def tables() -> dict[str, str]:
    """The page's tables by name."""
    return {maker.__name__: maker() for maker in MAKERS}


if __name__ == "__main__":
    fill(PAGE, tables())
