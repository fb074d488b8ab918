"""Latency of networks of one size: trained ViTs of CIFAR-10, and the hand-designed networks of the other families.

python benchmarks/win/latency.py [--out FILE]    # needs onnx, onnxscript and onnxruntime; a quiet machine
python benchmarks/win/latency.py --gpu [--out FILE]    # PyTorch on a GPU: eager, and recorded as a CUDA graph

One image at a time, with onnxruntime and with PyTorch, on the CPU; networks are timed in turns, several times, and the
median counts. Weights are random: they do not change the time. Accuracies are those of benchmarks/cifar10 (16 epochs).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

sys.path.append(str(Path(__file__).resolve().parents[1]))
from common import machine, write

from tailorvit.costs.limits import Limits
from tailorvit.export.network import Card, Network
from tailorvit.export.onnx_format import latency, session, trace
from tailorvit.families import family
from tailorvit.methods.contest import largest_of, stem_settings

HERE = Path(__file__).resolve().parent
ROWS = HERE.parent / "cifar10" / "results" / "rows.jsonl"
WINS = HERE / "results" / "runs-2026-11-18.jsonl"
SIZE, LIMIT, EPOCHS, TURNS = 32, 1_500_000, 16, 5
WARM, REPEATS = 10, 40  # calls of a turn on a GPU
VIT = {"image_size": (SIZE, SIZE), "channels": 3, "classes": 10, "patch": 4, "head_dim": 32, "reach": 7}
Case = dict[str, Any]


def trained() -> list[Case]:
    """ViTs of CIFAR-10 whose blocks are all alike, with MLP ratio 4, and their mean accuracy."""
    found: dict[str, list[float]] = defaultdict(list)
    for line in ROWS.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if not row["ok"] or row["size"] != "1.5M" or row["epochs"] != EPOCHS or row.get("test") is None:
            continue
        arch = row["arch"]
        if arch["family"] == "vit" and set(arch["mlp"]) == {4} and len(set(arch["heads"])) == 1:
            found[json.dumps(arch)].append(row["test"])
    return [
        {"family": "vit", "arch": json.loads(arch), "settings": VIT, "test": statistics.fmean(v), "seeds": len(v)}
        for arch, v in found.items()
    ]


def designed() -> list[Case]:
    """The hand-designed networks of the contest."""
    data: Any = SimpleNamespace(image_size=(SIZE, SIZE), channels=3, classes=["class"] * 10, trunk=None)
    limits, cases = Limits.of(max_params=LIMIT), []
    usual = [(name, "usual") for name in ("vit", "pit", "swin", "windowed", "shunted", "hybrid")]
    for name, stem in [*usual, ("hybrid", "fine")]:
        settings = stem_settings(name, stem, data, limits)
        arch = largest_of(family(name).baseline, name, settings, limits)
        assert arch is not None
        case = {"family": name, "stem": stem, "arch": arch.to_dict(), "settings": dict(settings)}
        cases.append({**case, **won(name, stem)})
    return cases


def won(name: str, stem: str) -> Case:
    """The accuracy of default runs on CIFAR-10 whose contest this network won."""
    found = []
    for line in WINS.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row["case"] == "default" and row["data"] == "cifar10":
            winner = row["contest"]["entries"][row["contest"]["winner"]]
            if (winner["family"], winner["stem"], winner["shape"]) == (name, stem, "hand-designed"):
                found.append(row)
    if not found:
        return {}
    accuracies = [row["test_accuracy"] for row in found]
    return {"test": statistics.fmean(accuracies), "seeds": len(found), "epochs": found[0]["epochs"]}


def on_gpu(cases: list[Case]) -> None:
    """Milliseconds of one image on a GPU, in float32, eager and recorded."""
    x, calls = torch.randn(1, 3, SIZE, SIZE, device="cuda"), []
    for case in cases:
        own = family(case["family"])
        model = own.build(own.settings(case["settings"]), own.arch(case["arch"]), 0.0).eval().cuda()
        case["params"] = sum(p.numel() for p in model.parameters())
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad():
            for _ in range(WARM):
                model(x)
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                model(x)
        calls.append((model, graph))

    def timed(call: Callable[[], Any]) -> float:
        times = []
        with torch.no_grad():
            for _ in range(WARM + REPEATS):
                torch.cuda.synchronize()
                begin = time.perf_counter()
                call()
                torch.cuda.synchronize()
                times.append(1e3 * (time.perf_counter() - begin))
        return statistics.median(times[WARM:])

    times: list[tuple[list[float], list[float]]] = [([], []) for _ in cases]
    for _ in range(TURNS - 2):
        for (model, graph), (slow, quick) in zip(calls, times, strict=True):
            slow.append(timed(lambda model=model: model(x)))
            quick.append(timed(graph.replay))
    for case, (slow, quick) in zip(cases, times, strict=True):
        case |= {"gpu_ms": statistics.median(slow), "graph_ms": statistics.median(quick)}


def main() -> None:
    """Time them all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "latency-cpu.json")
    parser.add_argument("--gpu", action="store_true")
    options = parser.parse_args()
    cases, calls = [*trained(), *designed()], []
    if options.gpu:
        on_gpu(cases)
        facts = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
        return write({**facts, "command": "python benchmarks/win/latency.py --gpu", "networks": cases}, options.out)
    x = torch.randn(1, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    with tempfile.TemporaryDirectory() as folder:
        for i, case in enumerate(cases):
            own = family(case["family"])
            arch = own.arch(case["arch"])
            model = own.build(own.settings(case["settings"]), arch, 0.0).eval()
            case["params"] = sum(p.numel() for p in model.parameters())
            sides = {"image_size": (SIZE, SIZE), "channels": 3, "mean": (0.5,) * 3, "std": (0.5,) * 3}
            card = Card(arch, case["settings"], ("class",) * 10, sides, {})
            path = Path(folder, f"{i}.onnx")
            job: Any = SimpleNamespace(network=SimpleNamespace(model=model, card=card))
            trace(job, path)
            calls.append((session(path), Network(model, card).model))
            print(i, case["family"], case["params"], flush=True)
        times: list[tuple[list[float], list[float]]] = [([], []) for _ in cases]
        for _ in range(TURNS):
            for (onnx, eager), (quick, slow) in zip(calls, times, strict=True):
                quick.append(latency(onnx, x))
                slow.append(latency(eager, x))
    for case, (quick, slow) in zip(cases, times, strict=True):
        case |= {"onnx_ms": 1e3 * statistics.median(quick), "torch_ms": 1e3 * statistics.median(slow)}
    facts = {**machine(), "threads": torch.get_num_threads(), "command": "python benchmarks/win/latency.py"}
    write({**facts, "networks": cases}, options.out)


if __name__ == "__main__":
    main()
