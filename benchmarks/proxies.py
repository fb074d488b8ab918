"""How fast training-free scores are: norms, building a candidate, a whole score, architectures a second, memory.

    python benchmarks/proxies.py            # AutoFormer-T at 224 px, minutes
    python benchmarks/proxies.py --quick    # a small space, seconds: that it runs, not how fast
    python benchmarks/proxies.py --device cuda

Every time is a median over architectures, one process, one run; the plain way is timed on the same networks.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from tailorvit.arch import Arch
from tailorvit.families import named_space
from tailorvit.proxies import ProxySettings, Task
from tailorvit.proxies.dss import WeightNorms, _gradients, _keys, _one_thread, nuclear
from tailorvit.proxies.layers import weights
from tailorvit.proxies.score import Scorer, ScorerPool
from tailorvit.rng import generator
from tailorvit.space import Space

RESULTS = Path(__file__).parent / "results"


def timed(work: Callable[[], Any], device: str) -> tuple[float, Any]:
    """Seconds, the device's work included, and what came out."""
    if device != "cpu":
        torch.cuda.synchronize()
    start = time.perf_counter()
    result = work()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - start, result


def plain_norms(layers: list[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """One svdvals after the other, as the formula reads."""
    return sum(float(torch.linalg.svdvals(w).sum() * torch.linalg.svdvals(g).sum()) for w, g in layers)


def one(scorer: Scorer, arch: Arch, norms: WeightNorms, device: str) -> dict[str, float]:
    """All times for one architecture."""
    family, frame = scorer.family, scorer.counter.frame
    ordinary, _ = timed(lambda: family.build(frame, arch).to(device), device)
    build, model = timed(lambda: scorer.network(arch), device)
    task = Task(arch, family.name, frame, 0, 0, lambda: model, 0)
    chosen = [w for w in weights(task, model) if w.part in ("mixing", "mlp")]
    _gradients(task, model, chosen)  # once to warm up: a first pass pays for the allocator
    passes, gradients = timed(lambda: _gradients(task, model, chosen), device)
    layers = [(w, g) for w, g in zip(chosen, gradients, strict=True) if w.part == "mixing"]
    plain, reference = timed(lambda: plain_norms([(w.tensor.detach(), g) for w, g in layers]), device)

    # LAPACK's threads get in each other's way on matrices this small: the plain way is also timed without them.
    with _one_thread():
        plain_one, _ = timed(lambda: plain_norms([(w.tensor.detach(), g) for w, g in layers]), device)

    def ours() -> float:
        of_weights = norms(_keys([w for w, _ in layers]), lambda i: layers[i][0].tensor)
        return sum(a * b for a, b in zip(of_weights, nuclear([g for _, g in layers], low_rank=True), strict=True))

    quick, value = timed(ours, device)
    whole, _ = timed(lambda: scorer([arch]), device)
    error = abs(value - reference) / reference
    return {
        "ordinary": ordinary, "build": build, "pass": passes, "plain": plain,
        "plain_one_thread": plain_one, "norms": quick, "whole": whole,
        "error": error,
    }  # fmt: skip


def resident(device: str) -> float:
    """MiB held now: on the device, or by this process."""
    if device != "cpu":
        return float(torch.cuda.memory_allocated()) / 2**20
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def rate(scorer: Scorer, archs: list[Arch], device: str) -> dict[str, Any]:
    """Architectures a second over a set, memory at a few points on the way."""
    marks, done = [], 0
    step = max(1, len(archs) // 5)
    start = time.perf_counter()
    while done < len(archs):
        scorer(archs[done : done + step])
        done += step
        marks.append(round(resident(device), 1))
    seconds = time.perf_counter() - start
    return {"architectures": len(archs), "a_second": len(archs) / seconds, "mib_on_the_way": marks}


def paced(args: argparse.Namespace, space: Space, archs: list[Arch], scorer: Scorer) -> dict[str, Any]:
    """The rate of this process or of several, which first start and score one architecture each."""
    if args.workers == 1:
        return rate(scorer, archs[1:], args.device)
    asked = {"space": space, "settings": ProxySettings(("dss",)), "device": args.device}
    with ScorerPool(args.workers, **asked) as workers:
        workers(archs[: args.workers])
        start = time.perf_counter()
        workers(archs[args.workers :])
        seconds = time.perf_counter() - start
    count = len(archs) - args.workers
    return {"architectures": count, "a_second": count / seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--archs", type=int, default=None, help="timed one by one (default 40)")
    parser.add_argument("--rate", type=int, default=None, help="scored for architectures a second (40; GPU 400)")
    parser.add_argument("--workers", type=int, default=1, help="processes for architectures a second")
    parser.add_argument("--flat", type=int, default=None, help="small networks scored for memory (default 10000)")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    space = named_space("vit-8px" if args.quick else "autoformer-t")
    count = args.archs or (4 if args.quick else 40)
    rng = generator(0, "benchmark")
    archs = [space.sample(rng) for _ in range(count)]
    scorer = Scorer(space, settings=ProxySettings(("dss",)), device=args.device)
    scorer(archs[:1])
    norms = WeightNorms()
    rows = [one(scorer, arch, norms, args.device) for arch in archs]
    middle = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
    # The weights' norms are paid once a slice, so the first architectures pay and the later ones do not: sums tell.
    total = {key: sum(row[key] for row in rows) for key in ("plain", "plain_one_thread", "norms")}
    last = [one(scorer, arch, norms, args.device) for arch in archs[-5:]]  # all their slices are known now
    known = {key: sum(row[key] for row in last) for key in ("plain", "plain_one_thread", "norms")}
    many = args.rate or (4 if args.quick else 400 if args.device != "cpu" else 40)
    small = named_space("vit-8px")
    flat = Scorer(small, settings=ProxySettings(("dss",)), device=args.device)
    flat_count = args.flat or (40 if args.quick else 10_000)
    answer = {
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "space": "vit-8px" if args.quick else "autoformer-t",
        "device": torch.cuda.get_device_name() if args.device != "cpu" else platform.processor() or "cpu",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "archs": count,
        "median_seconds": middle,
        "norms_times_faster": total["plain"] / total["norms"],
        "norms_known_times_faster": known["plain"] / known["norms"],
        "norms_times_faster_than_one_thread": total["plain_one_thread"] / total["norms"],
        "norms_known_times_faster_than_one_thread": known["plain_one_thread"] / known["norms"],
        "norms_first_times_faster": rows[0]["plain"] / rows[0]["norms"],
        "largest_relative_error": max(row["error"] for row in rows),
        "build_times_faster": middle["ordinary"] / middle["build"],
        "whole_over_pass": statistics.median(row["whole"] / row["pass"] for row in rows),
        "workers": args.workers,
        "rate": paced(args, space, [space.sample(rng) for _ in range(many + args.workers)], scorer),
        "memory": rate(flat, [small.sample(rng) for _ in range(flat_count)], args.device),
    }
    text = json.dumps(answer, indent=1)
    print(text)
    out = args.out or (None if args.quick else RESULTS / f"proxies-{answer['made'][:10]}-{args.device}.json")
    if out is not None:
        out.parent.mkdir(exist_ok=True)
        out.write_text(text + "\n")


if __name__ == "__main__":
    main()
