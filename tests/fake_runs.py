"""Made-up runs with everything that a report shows: S4, S3, training-free, fixed; finished, failed, half-finished."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tailorvit.rng import generator
from tailorvit.runs import Run
from tailorvit.space import Dim, Space

SPACE = Space(
    "vit",
    (
        Dim("depth", (12, 13, 14)),
        Dim("mlp", (3.5, 4), "block"),
        Dim("heads", (2, 4), "block"),
        Dim("embed", (64, 96, 128)),
    ),
)
STAGED = Space(
    "swin",
    tuple(
        Dim(name, choices, scope, stage=stage)
        for stage in (1, 2, 3, 4)
        for name, choices, scope in (
            ("depth", (1, 2, 3), "stage"),
            ("embed", (24 * stage, 24 * stage + 24), "stage"),
            ("window", (5, 7), "block"),
            ("mlp", (2, 3, 4), "block"),
        )
    ),
)
CUT = Space(
    "tailored",
    (
        Dim("depth", tuple(range(3, 13))),
        Dim("hidden", tuple(range(192, 1537, 192)), "block"),
        Dim("heads", (1, 2, 3, 4, 5, 6), "block"),
        Dim("embed", (144, 192, 240, 288, 336, 384)),
    ),
)
METHODS = {"s4": "s4", "s3": "s3", "free": "tftas", "fixed": "fixed"}


def picture(shade: int = 120) -> str:
    """A small PNG as a data address."""
    buffer = io.BytesIO()
    Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8) + np.uint8(shade)).save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def analysis(classes: list[str], images: int = 2, blocks: int = 3, heads: int = 2, evil: str = "") -> dict[str, Any]:
    """An analysis.json as the end of a run writes it."""
    rng = generator(1, "analysis")
    n, side, references = len(classes), 4, [[2, 2], [0, 0], [3, 1]]
    counts = [10 + i % 3 for i in range(n)]
    wrong = [(i, (i + 1) % n, 1 + i % 2) for i in range(n) if n > 1]
    layers = []
    for block in range(1, blocks + 1):
        maps = rng.integers(0, 256, size=(images, len(references), heads, side, side)).astype(np.uint8)
        maps.reshape(-1, side * side)[:, 0] = 255
        box = {"low": 0.5, "q1": 1.0, "median": 1.2 + block / 10, "q3": 1.9, "high": 3.0, "mean": 1.4}
        similarity = [[1.0 if a == b else 0.3 for a in range(heads)] for b in range(heads)]
        layers.append(
            {
                "name": f"block {block}",
                "stage": None,
                "block": block,
                "heads": heads,
                "grid": [side, side],
                "references": references,
                "maps": base64.b64encode(maps.tobytes()).decode(),
                "peaks": base64.b64encode(np.full(maps.shape[:3], 0.25, np.float32).tobytes()).decode(),
                "distance": {"5": box, "10": {**box, "mean": 1.6}},
                "similarity": similarity,
                "redundancy": 0.3 if heads > 1 else None,
            }
        )
    mistakes = [
        {
            "name": f"photos/{i}{evil}.jpg",
            "truth": a,
            "said": b,
            "probability": 0.97 - i / 100,
            "truth_probability": 0.02,
            "picture": picture(i),
        }
        for i, (a, b, _) in enumerate(wrong[:12])
    ]
    return {
        "format": 1,
        "classes": classes,
        "test": {
            "count": sum(counts),
            "correct": sum(counts) - sum(c for *_, c in wrong),
            "confusion": [*([a, b, c] for a, b, c in wrong), *([i, i, counts[i] - 1 - i % 2] for i in range(n))],
            "per_class": [[counts[i], counts[i] - (1 + i % 2 if n > 1 else 0)] for i in range(n)],
            "mistakes": mistakes,
        },
        "attention": {
            "images": [
                {"name": f"photos/{i}{evil}.jpg", "truth": i % n, "said": i % n, "picture": picture(40 * i)}
                for i in range(images)
            ],
            "layers": layers,
        },
        "notes": [f"A note{evil}."],
    }


def outline(arch: dict[str, Any], params: float, macs: float) -> list[dict[str, Any]]:
    """Rows of ``blocks`` as result.json holds them."""
    stages = sorted({k.partition(".")[2] for k in arch if k.partition(".")[0] == "depth"})
    rows, total = [], sum(int(arch[f"depth.{s}" if s else "depth"]) for s in stages)
    for stage in stages:
        tail = f".{stage}" if stage else ""
        for i in range(int(arch[f"depth{tail}"])):
            embed, heads = int(arch[f"embed{tail}"]), int(arch["heads"][i] if "heads" in arch else 3)
            mlp = arch[f"mlp{tail}"][i]
            rows.append(
                {
                    "stage": int(stage) if stage else None,
                    "block": len(rows) + 1,
                    "tokens": 196,
                    "embed": embed,
                    "heads": heads,
                    "qkv": 16 * heads,
                    "mlp": mlp,
                    "hidden": int(embed * mlp),
                    "window": arch[f"window{tail}"][i] if f"window{tail}" in arch else None,
                    "params": int(params / total),
                    "macs": int(macs / total),
                }
            )
    return rows


def spaces(run: Run, kind: str, evil: str) -> Space:
    """Two spaces with slopes and a decision between them; the last space."""
    first = STAGED if kind == "s3" else SPACE
    gamma = {"depth.3": 1, "embed.1": -1} if kind == "s3" else {"depth": -1, "embed": 1}
    steps = (first, first.shift(gamma)) if kind in ("s4", "s3") else (first,)
    for t, space in enumerate(steps):
        largest = {"params": 9e6 - t * 1.2e6, "macs": 1e9}
        run.record_space(t, space, step=t, largest=largest, count_log10=7.5, repair=t == 1 and kind == "s4")
        for i, key in enumerate(space.keys if len(steps) > 1 else ()):
            z = 0.02 * (i - 1.5)
            if kind == "s3":
                choices = list(space[key].choices)
                errors = [30 - z * 20 * x for x in range(len(choices))]
                run.record_slope(
                    t, key, {"kind": "et", "choices": choices, "errors": errors, "fit": [-20 * z, 30], "k": 1}
                )
            else:
                run.record_slope(t, key, {"dim": key, "z": z, "se": 0.01, "z_step": z * 2, "pairs": 40})
    if len(steps) > 1:
        plain = {"size": 8e6, "cosine": 0.9, "gain": 0.4}
        listed = [gamma.get(k, 0) for k in first.keys]  # possible moves are lists in the order of the dimensions
        other = [1 if k.startswith("mlp") else 0 for k in first.keys]
        legal = [{"gamma": listed, **plain}, {"gamma": other, "size": 7e6, "cosine": -0.2, "gain": -0.1}]
        sentence = f"Moved depth down and embed up{evil}: cosine 0.90."
        run.record_decision(0, {"t": 0, "gamma": gamma, "reason": "best", "sentence": sentence, "legal": legal})
    return steps[-1]


def draw(space: Space, trials: int, kind: str, evil: str) -> list[dict[str, Any]]:
    """Rows of a search with parents, generations and costs."""
    rng = generator(0, "fake run")
    archs = list(dict.fromkeys(space.sample(rng) for _ in range(3 * trials)))[:trials]
    quarter = max(len(archs) // 4, 1)
    found = []
    for i, arch in enumerate(archs):
        old = archs[i - quarter : i - quarter + 2] if i >= quarter else []
        row = {
            "arch": arch,
            "accuracy": None if kind == "free" else 60 + 3 * i / len(archs) + 2 * float(rng.random()),
            "params": 10**6 * int(rng.integers(2, 9)) + i,
            "macs": 10**8 + 10**5 * i,
            "source": f"cross{evil}" if old else "random",
            "generation": i * 4 // len(archs),
            "parents": old,
            "costs": {"latency": 0.01 + i / 1e5},
        }
        found.append({**row, "score": float(rng.normal()), "proxy": f"dss{evil}"} if kind == "free" else row)
    return found


def contest(evil: str = "") -> dict[str, Any]:
    """The contest of a result.json: four families in two shapes, then augmentation and learning rate."""
    families = {"shunted": 52.0, "pit": 47.0, "swin": 41.0, "vit": 44.5}
    rungs = [
        {"rung": 0, "asks": f"family and shape{evil}", "epochs": 3, "entries": 8, "kept": 3},
        {"rung": 1, "asks": "augmentation and learning rate", "epochs": 6, "entries": 5, "kept": 2},
        {"rung": 2, "asks": "the winner", "epochs": 18, "entries": 2, "kept": 1},
    ]
    totals = (3, 9, 27)
    entries: list[dict[str, Any]] = []

    def enter(family: str, shape: str, augment: str, lr: float, first: int, accuracies: list[float]) -> None:
        legs = [
            {
                "rung": first + i,
                "epochs": rungs[first + i]["epochs"],
                "total_epochs": totals[first + i],
                "accuracy": accuracy,
                "images": 500,
                "seconds": 4.0 + i,
                "kept": i < len(accuracies) - 1,
            }
            for i, accuracy in enumerate(accuracies)
        ]
        entries.append(
            {
                "id": len(entries),
                "family": f"{family}{evil}",
                "stem": "fine" if family == "pit" else "usual",
                "shape": shape,
                "arch": {"family": family, "depth": 4, "embed": 64},
                "settings": {"patch": 4},
                "augment": augment,
                "lr": lr,
                "params": 1_480_000 - 1000 * len(entries),
                "macs": 16_000_000,
                "rungs": legs,
                "won": False,
            }
        )

    for family, base in families.items():
        best = family == "shunted"
        enter(family, "hand-designed", "mild", 1e-3, 0, [base, 63.0, 71.5] if best else [base])
        enter(family, "shallow and wide", "mild", 1e-3, 0, [base - 1.5, 61.0] if best else [base - 1.5])
    enter("shunted", "hand-designed", "medium", 1e-3, 1, [64.2, 74.0])
    enter("shunted", "hand-designed", "mild", 2e-3, 1, [58.8])
    entries[8]["won"] = True
    entries[8]["rungs"][-1]["kept"] = True
    return {
        "entries": entries,
        "rungs": rungs,
        "worth": [
            {"what": "family", "best": "shunted", "worst": "swin", "points": 11.0, "low": 6.4, "high": 15.5},
            {
                "what": "shape",
                "best": "hand-designed",
                "worst": "shallow and wide",
                "points": 1.5,
                "low": 0.2,
                "high": 2.9,
            },
            {"what": "augmentation", "best": "medium", "worst": "mild", "points": 1.2, "low": -0.6, "high": 3.1},
            {"what": "learning rate", "best": "0.001", "worst": "0.002", "points": 4.2, "low": 2.0, "high": 6.4},
        ],
        "winner": 8,
        "why": f"Shunted, hand-designed, with medium augmentation won{evil}: 2.5 points ahead after 27 epochs.",
    }


def peers() -> list[dict[str, Any]]:
    """Two models of timm beside the run, with long names."""
    gap = {"difference": 1.5, "low": -3.0, "high": 6.0, "clear": False, "images": 400}
    row = {"params": 9e6, "macs": 1e9, "test_accuracy": 65.0, "final_search_accuracy": 66.0, "gap": gap}
    names = ("timm:efficientvit_b0_of_some_length", "timm:mobilevit_xxs")
    return [{"name": name, **row, "over": over} for name, over in zip(names, ("params 9M > 8M", None), strict=True)]


def fill(
    run: Run,
    trials: int = 60,
    evil: str = "",
    finished: bool = True,
    kind: str = "s4",
    failed: bool = False,
    with_analysis: bool = True,
    classes: int = 3,
    with_contest: bool = False,
) -> None:
    """Write a run; ``kind`` is s4, s3, free (training-free) or fixed."""
    space = spaces(run, kind, evil) if kind != "fixed" else SPACE
    for epoch in range(1, 6):
        facts = {"loss": 2 / epoch, "accuracy": 10.0 * epoch, "lr": 1e-3 / epoch, "images_per_second": 500}
        run.record_epoch("final" if kind in ("free", "fixed") else "supernet-0", epoch, **facts)
    run.record_epoch("final", 6, loss=float("nan"), accuracy=None, search_accuracy=61.0)
    run.event("skipped", f"3 images could not be read{evil}: a.jpg", count=3)
    run.event("resume", "went on after epoch 3")
    rows = draw(space, 1 if kind == "fixed" else trials, kind, evil)
    if kind in ("s4", "s3"):
        run.record_trials("slopes-0", [{**r, "parents": [], "source": "pair", "generation": 0} for r in rows[:6]])
        for t in (0, 1):
            sample = [
                {**r, "accuracy": r["accuracy"] + t, "parents": [], "source": "random", "generation": None}
                for r in rows[:30]
            ]
            run.record_trials(f"edf-{t}", sample)
    if failed:
        run.event("failed", f"RuntimeError: out of memory{evil}")
    if failed or not finished:
        return
    if kind != "fixed":
        run.record_trials("search", rows)
        run.spend("search", 75.0)
    run.spend(f"final{evil}", 30.0)
    best = max(rows, key=lambda r: r["score"] if kind == "free" else r["accuracy"])
    params, macs, arch = best["params"], best["macs"], best["arch"].to_dict()
    names = [f"rose {i}{evil}" for i in range(classes)]
    order = sorted(rows, key=lambda r: -(r["score"] if kind == "free" else r["accuracy"]))[:4]
    run.write_json(
        "result",
        {
            "method": METHODS[kind],
            "arch": arch,
            "params": params,
            "macs": macs,
            "limits": {"params": {"min": None, "max": 8e6}},
            "search_accuracy": best["accuracy"],
            "final_search_accuracy": 64.0,
            "test_accuracy": 63.5,
            "baseline": {"arch": rows[0]["arch"].to_dict(), "params": 7.9e6, "macs": 9e8, "test_accuracy": 62.25},
            "final": "retrain" if kind in ("free", "fixed") else "finetune",
            "spaces": []
            if kind == "fixed"
            else [{"t": 0, "dims": {"depth": [12, 13, 14]}, "largest": {"params": 9e6, "macs": 1e9}}],
            "blocks": outline(arch, params * 0.9, macs * 0.9),
            "candidates": [
                {
                    "arch": r["arch"].to_dict(),
                    "params": r["params"],
                    "macs": r["macs"],
                    "search_accuracy": r["accuracy"],
                    "final_search_accuracy": 64.0 - i,
                    "test_accuracy": 63.5 - i,
                    "chosen": i == 0,
                }
                for i, r in enumerate(order)
            ],
            "data": {"source": f"photos{evil}", "counts": {"train": 900, "search": 100, "test": 400}, "classes": 3},
            "trials": len(rows),
            "seconds": {"search": 75.0},
            "seed": 5,
            "parts": [
                {"part": f"patch{evil}", "params": 3e6, "macs": 1e7},
                {"part": "head", "params": 1e6, "macs": 1e6},
            ],
            **({"contest": contest(evil), "peers": peers()} if with_contest else {}),
        },
    )
    if with_analysis:
        run.write_json("analysis", analysis(names, blocks=len(outline(arch, 1, 1)), evil=evil))


def cut_arch(depth: int, embed: int) -> dict[str, Any]:
    """An architecture of the pretrained network after its cut."""
    heads, hidden = [6 - i % 4 for i in range(depth)], [1536 - 192 * (i % 5) for i in range(depth)]
    return {"family": "tailored", "depth": depth, "embed": embed, "heads": heads, "hidden": hidden}


def tailored_result(evil: str = "", first: bool = False) -> dict[str, Any]:
    """The result.json of a network that was cut; with ``first`` the first blocks are delivered."""
    arch, by_hand = cut_arch(8, 240), {**cut_arch(3, 384), "heads": [6, 6, 6], "hidden": [1536, 1536, 1536]}
    found = {"arch": arch, "params": 5_800_000, "macs": 58_000_000, "search_accuracy": 81.0}
    found |= {"final_search_accuracy": 86.5, "test_accuracy": 85.25}
    blocks = {"arch": by_hand, "params": 5_550_000, "macs": 55_000_000, "search_accuracy": None}
    blocks |= {"final_search_accuracy": 74.0, "test_accuracy": 73.5}
    rows = [{"name": "found", **found, "chosen": not first}, {"name": "first blocks", **blocks, "chosen": first}]
    gap = {"difference": 3.5, "low": 1.5, "high": 5.5, "clear": True, "images": 400}
    every = {"params": 21_516_676, "macs": 215_000_000, "final_search_accuracy": 90.0, "test_accuracy": 88.75}
    return {
        "method": "tailor",
        **(blocks if first else found),
        "limits": {"params": {"min": None, "max": 6e6}},
        "chosen": "found",
        "why": f"The network found is the most accurate on the 100 search images{evil}.",
        "candidates": rows,
        "baseline": None,
        "peers": [
            {"name": "whole network, fine-tuned", **every, "over": "params 21.52M > 6M", "epochs": 3, "gap": gap}
        ],
        "final": "finetune",
        "blocks": [],
        "parts": [{"part": "head", "params": 1000, "macs": 1000}],
        "data": {"source": f"photos{evil}", "counts": {"train": 900, "search": 100, "test": 400}, "classes": 3},
        "trials": 12,
        "seed": 5,
        "whole": {
            "network": f"timm:vit_small_patch14_dinov2{evil}",
            "sha256": "c13e",
            "params": 21_526_276,
            "blocks": [11, 10, 5, 4, 3, 0, 9, 1, 8, 2, 6, 7],
            "search_accuracy": 90.0,
        },
        "sizes": [
            {
                "size": size,
                "arch": cut_arch(depth, 192),
                "params": int(0.95 * size),
                "macs": int(9.5 * size),
                "inherited_accuracy": accuracy - 6,
                "final_search_accuracy": accuracy + 1,
                "test_accuracy": accuracy,
                "folder": f"front/{size / 1e6:g}M{evil}",
            }
            for size, depth, accuracy in ((3e6, 5, 79.5), (1.5e6, 3, 66.0))
        ],
    }


def fill_tailored(run: Run, evil: str = "", stages: int = 99, finished: bool = True, first: bool = False) -> None:
    """A run that cuts a pretrained network, or its first ``stages`` of training."""
    names = ("whole", "supernet-0", "baseline", "final-3M", "final")
    for stage in names[:stages]:
        for epoch in (1, 2, 3):
            run.record_epoch(stage, epoch, loss=1 / epoch, accuracy=20.0 * epoch, search_accuracy=25.0 * epoch)
        run.spend(stage, 30.0)
        if stage == "whole":
            run.spend("ordered", 12.0)
            run.record_space(0, CUT, step=0, largest={"params": 21_516_676, "macs": 215_000_000}, count_log10=21.0)
    if not finished or stages < len(names):
        return
    run.record_trials("search", draw(CUT, 12, "tailor", evil))
    run.spend("search", 8.0)
    run.write_json("result", tailored_result(evil, first))
    run.write_json("analysis", analysis([f"rose {i}{evil}" for i in range(3)], evil=evil))


def write_tailored(folder: Path, evil: str = "", seed: int = 5, **how: Any) -> Path:
    """Make the folder of a run that cuts a pretrained network; ``how`` goes to ``fill_tailored``."""
    recipe = f'method = "tailor"\nseed = {seed}\n[start]\nnetwork = "timm:vit_small_patch14_dinov2"\n'
    info = {"command": ["tailorvit", "run"], "seed": seed, "data_fingerprint": "abc123"}
    with Run.create(folder, recipe, info) as run:
        fill_tailored(run, evil, **how)
        return run.folder


def write_run(folder: Path, evil: str = "", **how: Any) -> Path:
    """Make a run folder; ``how`` goes to ``fill``."""
    info = {
        "command": ["tailorvit", "search", f"my data{evil}"],
        "versions": {"torch": f"2.6{evil}"},
        "seed": 5,
        "data_fingerprint": "abc123",
        "classes": [f"rose{evil}"],
    }
    with Run.create(folder, f"# recipe{evil}\nseed = 5\n", info) as run:
        fill(run, evil=evil, **how)
        return run.folder
