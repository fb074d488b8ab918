"""Tables in the published forms with accuracies from a formula, and the real ones where they are at hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

REFERENCE = Path(__file__).parents[3] / "shared" / "reference"  # beside the project, never inside it


def vit_rows(count: int, seed: int = 0, form: str = "ood") -> list[dict]:
    """Architectures of AutoFormer-T; accuracy grows with depth and with late MLPs, plus a little noise."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        depth, embed = int(rng.integers(12, 15)), int(rng.choice([192, 216, 240]))
        heads = [int(h) for h in rng.integers(3, 5, depth)]
        mlp = [float(m) for m in rng.choice([3.5, 4.0], depth)]
        late = float(np.mean(mlp[depth // 2 :]) - np.mean(mlp[: depth // 2]))
        accuracy = 70 + 2 * np.log(depth / 12) * 10 + late + 0.05 * rng.normal()
        if form == "ood":
            rows.append({"embed": embed, "depth": depth, "heads": heads, "mlp_ratio": mlp, "top1": accuracy})
        else:
            arch = {"hidden_dim": embed, "depth": depth, "num_heads": heads, "mlp_ratio": mlp}
            rows.append({"arch": arch, "c100_acc": accuracy, "noise_acc": float(rng.normal())})
    return rows


def pit_rows(count: int, seed: int = 0) -> list[dict]:
    """Architectures of PiT-Ti; accuracy grows with depth at any size."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        depth = [int(rng.integers(1, 4)), int(rng.choice([4, 6, 8])), int(rng.choice([2, 4, 6]))]
        heads = [[2, 4, 8], [2, 2, 4], [4, 4, 8]][int(rng.integers(3))]
        arch = {"base_dim": int(rng.choice([16, 24, 32])), "mlp_ratio": int(rng.choice([2, 4, 6]))}
        arch |= {"depth": depth, "num_heads": heads}
        rows.append({"arch": arch, "c100_acc": float(60 + sum(depth) + 0.1 * rng.normal())})
    return rows


def tiny_rows(count: int, seed: int = 0) -> list[dict]:
    """Our own form, small enough to score for real."""
    rng = np.random.default_rng(seed)
    fixed = {"image_size": 8, "patch": 2, "head_dim": 8, "reach": 3, "channels": 1, "classes": 4}
    rows = []
    for i in range(count):
        depth = 1 + i % 3
        arch = {"family": "vit", "depth": depth, "embed": int(rng.choice([16, 24])), "heads": [2] * depth}
        arch["mlp"] = [float(m) for m in rng.choice([2, 3], depth)]
        rows.append({"arch": arch, "fixed": fixed, "accuracy": float(depth + 0.1 * rng.normal())})
    return rows


def write(path: Path, rows: list[dict]) -> Path:
    path.write_text(json.dumps(rows), encoding="utf-8")
    return path
