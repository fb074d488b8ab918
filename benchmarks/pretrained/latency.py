"""Latency of a whole ViT-S/14 and of what is left of it: one image at a time under onnxruntime on a CPU.

python benchmarks/pretrained/latency.py [--out FILE]    # needs onnx, onnxscript and onnxruntime; a quiet machine

Networks are timed in turns, several times, and the median counts. Weights are random: they do not change the time.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

sys.path.extend(str(place) for place in Path(__file__).resolve().parents[:2])
from common import machine, write

from tailorvit.costs.limits import Limits
from tailorvit.costs.meter import Meter
from tailorvit.export.network import Card, Network
from tailorvit.export.onnx_format import latency, session, trace
from tailorvit.families.tailored.elastic import build
from tailorvit.families.tailored.plain import PlainTailored, TailoredSettings
from tailorvit.methods.tailor import even_shapes, tailored_space, whole_blocks

HERE = Path(__file__).resolve().parent
SIZE, CLASSES, TURNS = 98, 102, 7
SIZES = (11e6, 10e6, 9e6, 6e6, 5e6, 4.5e6, 4e6, 3.5e6, 3e6)
WHOLE = {"embed": 384, "heads": [6] * 12, "hidden": [1536] * 12}
Case = dict[str, Any]


def cases() -> list[Case]:
    """The whole, its first blocks, and even cuts from deep to shallow at several sizes."""
    shared = TailoredSettings((SIZE, SIZE), 14, 3, CLASSES, head_dim=64)
    whole = PlainTailored(shared, **WHOLE)
    found: list[Case] = [{"network": "whole", "arch": whole_blocks(whole, 12), "shared": shared}]
    for blocks in (8, 6, 4, 3):
        found.append({"network": f"first {blocks} blocks", "arch": whole_blocks(whole, blocks), "shared": shared})
    turned = replace(shared, norm="rms", width=384)
    space = tailored_space(whole_blocks(whole, 12), turned.to_dict())
    for size in SIZES:
        meter = Meter("tailored", dict(space.settings), Limits.of(max_params=size))
        for arch in even_shapes(space, meter)[:3]:
            name = f"even, {arch.one('depth')} blocks, at most {size / 1e6:g}M"
            found.append({"network": name, "size": size, "arch": arch, "shared": turned})
    return found


def main() -> None:
    """Time them all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "latency-cpu.json")
    options = parser.parse_args()
    x, runners, rows = torch.randn(1, 3, SIZE, SIZE), [], cases()
    with tempfile.TemporaryDirectory() as folder:
        for i, case in enumerate(rows):
            model = build(case["shared"], case["arch"], 0.0).eval()
            case["params"] = sum(p.numel() for p in model.parameters())
            print(case["network"], case["params"], flush=True)
            sides = {"image_size": (SIZE, SIZE), "channels": 3, "mean": (0.5,) * 3, "std": (0.5,) * 3}
            card = Card(case["arch"], case["shared"].to_dict(), ("class",) * CLASSES, sides, {})
            job: Any = SimpleNamespace(network=SimpleNamespace(model=Network(model, card).model, card=card))
            path = Path(folder, f"{i}.onnx")
            trace(job, path)
            runners.append(session(path))
        times: list[list[float]] = [[] for _ in rows]
        for _ in range(TURNS):
            for runner, own in zip(runners, times, strict=True):
                own.append(latency(runner, x))
    for case, own in zip(rows, times, strict=True):
        case |= {"arch": case["arch"].to_dict(), "onnx_ms": 1e3 * statistics.median(own)}
        del case["shared"]
    command = "python benchmarks/pretrained/latency.py"
    write(
        {**machine(), "threads": torch.get_num_threads(), "command": command, "pixels": SIZE, "networks": rows},
        options.out,
    )


if __name__ == "__main__":
    main()
