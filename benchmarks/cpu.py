"""What is fast on a CPU, and against what: start-up, exact costs, sampling, evaluation, attention, data, S4 steps."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from datetime import date
from pathlib import Path
from typing import Any

os.environ["KINETO_LOG_LEVEL"] = "6"  # the memory figures come from torch's profiler, which chats

import numpy as np
import torch
from steps import steps

from tailorvit import Counter, named_space, open_data
from tailorvit.costs.measure import cpu_name
from tailorvit.data import augment_preset
from tailorvit.families import family
from tailorvit.families.vit.plain import Attention, Frame
from tailorvit.families.vit.relative import EXECUTIONS, Places
from tailorvit.rng import generator, seed_everything
from tailorvit.train import Evaluator

HERE = Path(__file__).parent
SIDES = (4, 8, 14, 16, 24, 32)  # 16 to 1,024 patches
HEADS, HEAD_DIM, BATCH = 3, 64, 8


def median_seconds(work: Callable[[], Any], budget: float, least: int = 3) -> float:
    """Median time of a call after one warm-up: at least ``least`` calls, then until the budget is used."""
    work()
    times: list[float] = []
    while len(times) < least or (sum(times) < budget and len(times) < 200):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def best_seconds(work: Callable[[], Any], runs: int) -> float:
    """The quickest of some calls."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def peak_bytes(work: Callable[[], Any]) -> int:
    """The most bytes the allocator had handed out at once during a call, from its own trace."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
        work()
    live = peak = 0
    events = (e for e in trace.profiler.kineto_results.events() if e.name() == "[memory]")
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


def free_bytes() -> int:
    """Memory that can still be had."""
    for line in Path("/proc/meminfo").read_text().splitlines() if Path("/proc/meminfo").exists() else ():
        if line.startswith("MemAvailable"):
            return int(line.split()[1]) * 1024
    return 8 << 30


# -- the measurements -------------------------------------------------------------------------------------------------


def start_up(quick: bool) -> dict[str, Any]:
    """Wall time of ``tailorvit --help``."""
    script = Path(sys.executable).with_name("tailorvit")
    command = [str(script)] if script.exists() else [sys.executable, "-m", "tailorvit"]
    runs = 2 if quick else 5
    seconds = best_seconds(lambda: subprocess.run([*command, "--help"], stdout=subprocess.DEVNULL, check=True), runs)
    return {"seconds": seconds, "runs": runs}


def counting(quick: bool) -> dict[str, Any]:
    """Sampling, and exact parameters and MACs by a fresh counter; the two are timed apart."""
    space, n = named_space("autoformer-s"), 5_000 if quick else 60_000
    rng = generator(0, "benchmark")
    start = time.perf_counter()
    archs = [space.sample(rng) for _ in range(n)]
    sampling = time.perf_counter() - start
    counter = Counter(space.family, dict(space.fixed))
    start = time.perf_counter()
    for arch in archs:
        counter.both(arch)
    seconds = time.perf_counter() - start
    return {"space": "autoformer-s", "archs": n, "sampled_per_second": n / sampling, "counted_per_second": n / seconds}


def evaluation(quick: bool) -> list[dict[str, Any]]:
    """Sub-networks of untrained supernets: sliced one by one against masked, several in a pass."""
    digits = open_data("digits")
    noise = torch.rand(256, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    cases = (
        ("vit-8px", "digits, search split", list(digits.eval_batches("search", 512)), 16 if quick else 200),
        ("vit-32px", "256 random images", [(noise, torch.arange(256) % 10)], 4 if quick else 8),
    )
    rows = []
    for name, images, batches, n in cases:
        space = named_space(name, classes=10)
        seed_everything(0, "benchmark")
        model = family(space.family).supernet(space)
        rng = generator(0, "benchmark", name)
        archs = list(dict.fromkeys(space.sample(rng) for _ in range(4 * n)))[:n]
        sliced: list[float] = []
        for together in (t for t in (1, 4, 8, 16) if t <= n):
            Evaluator(model, batches, together=together)(archs[:1])  # warm-up
            start = time.perf_counter()
            figures = Evaluator(model, batches, together=together)(archs)
            seconds = time.perf_counter() - start
            sliced = sliced or figures
            rows.append(
                {
                    "space": name,
                    "images": images,
                    "archs": n,
                    "how": "sliced" if together == 1 else f"masked x{together}",
                    "seconds": seconds,
                    "largest_difference": max(abs(a - b) for a, b in zip(sliced, figures)),
                }
            )
        for row in rows:
            if row["space"] == name:
                row["speed_against_sliced"] = next(r["seconds"] for r in rows if r["space"] == name) / row["seconds"]
    return rows


def attention(quick: bool) -> list[dict[str, Any]]:
    """One attention layer, forward and backward, in its three executions as tokens grow."""
    rows: list[dict[str, Any]] = []
    for side in SIDES[:4] if quick else SIDES:
        seed_everything(0, "benchmark", side)
        frame = Frame(image_size=(side, side), patch=1, head_dim=HEAD_DIM, reach=14)
        places = Places(frame.grid, frame.reach, frame.head_dim)
        x = torch.rand(BATCH, frame.tokens, HEADS * HEAD_DIM, requires_grad=True)
        base: dict[str, Any] = {}
        for execution in reversed(EXECUTIONS):  # dense first: the others are told against it
            row: dict[str, Any] = {"patches": side * side, "execution": execution}
            rows.append(row)
            # Two tables of sums, what they are made from, and their gradients: some ten (N, N, head_dim) tensors.
            need = 10 * frame.tokens**2 * HEAD_DIM * 4
            if execution == "dense" and need > 0.7 * free_bytes():
                row["skipped"] = f"needs about {need / 2**30:.1f} GiB"
                continue
            layer = Attention(frame, places, HEADS * HEAD_DIM, HEADS, execution)
            for parameter in layer.parameters():
                torch.nn.init.trunc_normal_(parameter, std=0.02)

            def clear(layer: Attention = layer, x: torch.Tensor = x) -> None:
                layer.zero_grad(set_to_none=True)
                x.grad = None

            def step(layer: Attention = layer, x: torch.Tensor = x) -> None:
                layer(x).square().mean().backward()
                clear(layer, x)

            row["seconds"] = median_seconds(step, 0.2 if quick else 2.0)
            row["peak_bytes"] = peak_bytes(step)
            base = base or row
            row["time_against_dense"] = row["seconds"] / base["seconds"] if base["execution"] == "dense" else None
            row["memory_against_dense"] = (
                row["peak_bytes"] / base["peak_bytes"] if base["execution"] == "dense" else None
            )
    return rows


def pipeline(quick: bool) -> list[dict[str, Any]]:
    """Training images a second, as the loop gets them, with nothing else running."""
    from PIL import Image

    budget = 0.5 if quick else 3.0
    rng, rows = generator(0, "benchmark", "images"), []
    with tempfile.TemporaryDirectory() as place:
        arrays = Path(place) / "arrays.npz"
        np.savez(arrays, x=rng.integers(0, 256, (4000, 32, 32, 3), dtype=np.uint8), y=np.arange(4000) % 10)
        folder = Path(place) / "photos"
        for i in range(60 if quick else 300):
            path = folder / f"class{i % 3}" / f"{i}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            small = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
            small.resize((400, 300), Image.Resampling.BICUBIC).save(path, quality=90)
        cases = (
            ("digits 8 px", "digits", "mild", {}),
            ("array 32 px", str(arrays), "mild", {}),
            ("array 32 px", str(arrays), "standard", {}),
            ("JPEG 400x300 to 96 px, cached", str(folder), "mild", {"image_size": 96}),
            ("JPEG 400x300 to 96 px, decoded each time", str(folder), "mild", {"image_size": 96, "cache_bytes": 0}),
        )
        for what, source, augment, rest in cases:
            data = open_data(source, **rest)
            preset = augment_preset(augment, data.image_size, source, channels=data.channels)
            batches, seen, start, warm = data.train_batches(64, 0, preset), 0, 0.0, 5
            for i, batch in enumerate(batches.iterate(0, 100_000)):
                if i == warm:
                    start = time.perf_counter()
                elif i > warm:
                    seen += len(batch.y)
                    if time.perf_counter() - start > budget:
                        break
            rows.append({"images": what, "augment": augment, "per_second": seen / (time.perf_counter() - start)})
    return rows


# -- telling ----------------------------------------------------------------------------------------------------------


def table(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """Markdown."""
    head = list(head)
    lines = [head, ["---"] * len(head), *([str(c) for c in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def ratio(value: float | None) -> str:
    """``0.25x``, or nothing where there is nothing to compare with."""
    return "-" if value is None else f"{value:.2f}x"


def show(facts: dict[str, Any]) -> None:
    """Print what was measured."""
    c = facts["counting"]
    print(f"\ntailorvit --help: {facts['start_up']['seconds']:.2f} s (best of {facts['start_up']['runs']})")
    print(f"exact costs: {c['counted_per_second']:,.0f} architectures of {c['space']} a second", end="; ")
    print(f"sampling: {c['sampled_per_second']:,.0f} a second ({c['archs']:,} architectures)\n")
    rows = [
        (r["space"], r["images"], r["archs"], r["how"], f"{r['seconds']:.2f}", ratio(r["speed_against_sliced"]))
        for r in facts["evaluation"]
    ]
    print(table(("space", "images", "sub-networks", "how", "seconds", "speed against sliced"), rows), end="\n\n")
    cells = []
    for r in facts["attention"]:
        if "skipped" in r:
            cells.append((r["patches"], r["execution"], r["skipped"], "-", "-", "-"))
            continue
        time_, memory = f"{1e3 * r['seconds']:.1f}", f"{r['peak_bytes'] / 2**20:.1f}"
        ratios = ratio(r["time_against_dense"]), ratio(r["memory_against_dense"])
        cells.append((r["patches"], r["execution"], time_, ratios[0], memory, ratios[1]))
    head = ("patches", "attention", "ms a step", "time against dense", "peak MiB", "memory against dense")
    print(table(head, cells), end="\n\n")
    rows = [(r["images"], r["augment"], f"{r['per_second']:,.0f}") for r in facts["pipeline"]]
    print(table(("training images", "augmentation", "images a second"), rows), end="\n\n")
    rows = [
        (
            r["family"],
            r["method"],
            r["dims"],
            f"{r['params']:,}",
            f"{r['macs'] / 1e6:.2f}",
            f"{r['supernet']:.1f}",
            f"{r['slopes']:.1f}",
            ratio(r["step_against_vit"]),
        )
        for r in facts["steps"]
    ]
    head = (
        "family",
        "method",
        "dimensions",
        "largest params",
        "largest MMACs",
        "supernet s",
        "slopes s",
        "step against ViT",
    )
    print(table(head, rows))


def main() -> None:
    """Measure, write, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few seconds, to try this script; writes no results")
    parser.add_argument("--out", type=Path, help="where the JSON goes (default: benchmarks/results/cpu-DATE.json)")
    options = parser.parse_args()
    started = time.perf_counter()
    facts: dict[str, Any] = {
        "date": date.today().isoformat(),
        "machine": {
            "cpu": cpu_name(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "load_before": os.getloadavg()[0],
            "memory_free": free_bytes(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "system": platform.platform(),
        },
        "attention_layer": {"heads": HEADS, "head_dim": HEAD_DIM, "batch": BATCH},
    }
    for work in (start_up, counting, evaluation, attention, pipeline, steps):
        print(f"{work.__name__} ...", flush=True)
        facts[work.__name__] = work(options.quick)
    facts["seconds"] = time.perf_counter() - started
    show(facts)
    print(f"\n{facts['machine']['cpu']}, {facts['machine']['threads']} threads, {facts['seconds']:.0f} s in all")
    if options.out or not options.quick:
        out = options.out or HERE / "results" / f"cpu-{facts['date']}.json"
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(facts, indent=1) + "\n")
        print(f"wrote {out}")


if __name__ == "__main__":
    main()
