"""What is fast on a CPU, and against what: start-up, exact costs, attention with relative position, data.

python benchmarks/speed/cpu.py            # under five minutes
python benchmarks/speed/cpu.py --quick    # seconds, to try it; writes no results
python benchmarks/speed/cpu.py table      # the tables of the page, from the stored results
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["KINETO_LOG_LEVEL"] = "6"  # the memory figures come from torch's profiler, which prints too much

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from common import fill, machine, markdown, number, read, write

from tailorvit import Counter, named_space, open_data
from tailorvit.costs.measure import cpu_name
from tailorvit.data import augment_preset
from tailorvit.rng import generator, seed_everything

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
    """The quickest of several calls."""
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
    """Memory that is still free."""
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
    """Sampling, and exact parameters and MACs by a fresh counter, timed separately."""
    space, n = named_space("autoformer-s"), 5_000 if quick else 60_000
    rng = generator(0, "benchmark")
    start = time.perf_counter()
    archs = [space.sample(rng) for _ in range(n)]
    sampling = time.perf_counter() - start
    counter = Counter(space.family, dict(space.settings))
    start = time.perf_counter()
    for arch in archs:
        counter.both(arch)
    seconds = time.perf_counter() - start
    return {"space": "autoformer-s", "archs": n, "sampled_per_second": n / sampling, "counted_per_second": n / seconds}


def attention(quick: bool) -> list[dict[str, Any]]:
    """One attention layer, forward and backward, in its three executions as tokens grow."""
    from tailorvit.families.vit.plain import Attention, ViTSettings
    from tailorvit.families.vit.relative import EXECUTIONS, Places

    rows: list[dict[str, Any]] = []
    for side in SIDES[:4] if quick else SIDES:
        seed_everything(0, "benchmark", side)
        shared = ViTSettings(image_size=(side, side), patch=1, head_dim=HEAD_DIM, reach=14)
        places = Places(shared.grid, shared.reach, shared.head_dim)
        x = torch.rand(BATCH, shared.tokens, HEADS * HEAD_DIM, requires_grad=True)
        base: dict[str, Any] = {}
        for execution in reversed(EXECUTIONS):  # dense first: the others are compared with it
            row: dict[str, Any] = {"patches": side * side, "execution": execution}
            rows.append(row)
            # Two tables of sums, what they are made from, and their gradients: some ten (N, N, head_dim) tensors.
            need = 10 * shared.tokens**2 * HEAD_DIM * 4
            if execution == "dense" and need > 0.7 * free_bytes():
                row["skipped"] = f"needs about {need / 2**30:.1f} GiB"
                continue
            layer = Attention(shared, places, HEADS * HEAD_DIM, HEADS, execution)
            for parameter in layer.parameters():
                torch.nn.init.trunc_normal_(parameter, std=0.02)

            def step(layer: torch.nn.Module = layer, x: torch.Tensor = x) -> None:
                layer(x).square().mean().backward()
                layer.zero_grad(set_to_none=True)
                x.grad = None

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


# -- tables -----------------------------------------------------------------------------------------------------------


def ratio(value: float | None) -> str:
    """``0.25x``, or a dash where there is nothing to compare with."""
    return "-" if value is None else f"{value:.2f}x"


def tables_of(facts: dict[str, Any]) -> dict[str, str]:
    """The tables of one measurement by name."""
    counting, starts = facts["counting"], facts["start_up"]
    small = [
        (f"`tailorvit --help`, best of {starts['runs']}", f"{starts['seconds']:.2f} s"),
        (f"exact costs of {counting['space']}", f"{counting['counted_per_second']:,.0f} architectures a second"),
        ("sampling", f"{counting['sampled_per_second']:,.0f} architectures a second"),
    ]
    rows = []
    for r in facts["attention"]:
        if "skipped" in r:
            rows.append((r["patches"], r["execution"], r["skipped"], "-", "-", "-"))
            continue
        ms, mib = number(1e3 * r["seconds"], 1), number(r["peak_bytes"] / 2**20, 1)
        ratios = ratio(r["time_against_dense"]), ratio(r["memory_against_dense"])
        rows.append((r["patches"], r["execution"], ms, ratios[0], mib, ratios[1]))
    head = ("patches", "attention", "ms a step", "time against dense", "peak MiB", "memory against dense")
    images = [(r["images"], r["augment"], number(r["per_second"])) for r in facts["pipeline"]]
    return {
        "cpu": markdown(("what", "figure"), small),
        "cpu-attention": markdown(head, rows),
        "cpu-data": markdown(("training images", "augmentation", "images a second"), images),
    }


def tables() -> dict[str, str]:
    """The page's tables by name."""
    return tables_of(read(HERE / "results" / "cpu-2026-11-15.json"))


def main() -> None:
    """Measure, write, print."""
    if sys.argv[1:] == ["table"]:
        fill(HERE / "README.md", tables())
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few seconds, to try this script; writes no results")
    parser.add_argument("--out", type=Path, help="where the JSON goes (default: results/cpu-DATE.json)")
    options = parser.parse_args()
    started, facts = time.perf_counter(), machine()
    facts["machine"] |= {
        "cpu": cpu_name(),
        "threads": torch.get_num_threads(),
        "load_before": os.getloadavg()[0],
        "memory_free": free_bytes(),
        "torch": torch.__version__,
    }
    facts["attention_layer"] = {"heads": HEADS, "head_dim": HEAD_DIM, "batch": BATCH}
    for work in (start_up, counting, attention, pipeline):
        print(f"{work.__name__} ...", flush=True)
        facts[work.__name__] = work(options.quick)
    facts["seconds"] = time.perf_counter() - started
    print("\n\n".join(tables_of(facts).values()))
    if options.out or not options.quick:
        write(facts, options.out or HERE / "results" / f"cpu-{facts['date']}.json")


if __name__ == "__main__":
    main()
