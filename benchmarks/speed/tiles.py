"""Which tiles suit the kernels of relative position on this GPU: TILES in plain/relative_kernel.py comes from here.

    python benchmarks/speed/tiles.py --out benchmarks/speed/results/tiles-DATE.json    # 35 seconds on an H200
    python benchmarks/speed/tiles.py table                                             # the page's table

Each kernel is timed with every candidate while the others keep theirs. An output that differs from the dense formula by
more than bfloat16 explains counts as wrong, whatever its time.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from common import fill, markdown, read, write

HERE = Path(__file__).parent
# images, heads, grid, reach, width of a head: networks for CIFAR-10, AutoFormer-S at 32 px and at 224 px
SHAPES = {
    "65 tokens, heads of 32": (512, 4, (8, 8), 7, 32),
    "65 tokens, heads of 64": (512, 7, (8, 8), 14, 64),
    "197 tokens, heads of 64": (128, 7, (14, 14), 14, 64),
}
QUERIES = [(64, 32, 4, 3), (64, 64, 4, 2), (64, 16, 4, 3), (32, 32, 2, 2), (32, 32, 2, 3), (32, 64, 2, 2)]
QUERIES += [(32, 16, 2, 3), (16, 16, 1, 2), (16, 16, 1, 3), (16, 32, 1, 2), (16, 32, 1, 3), (16, 64, 1, 2)]
QUERIES += [(128, 32, 8, 2)]
KEYS = [(32, 64, 4, 2), (32, 64, 4, 3), (32, 32, 2, 2), (32, 32, 2, 3), (16, 32, 2, 2), (16, 16, 1, 2)]
KEYS += [(16, 16, 1, 3), (32, 16, 1, 2), (32, 16, 1, 3), (64, 64, 4, 2), (32, 128, 8, 2)]
CANDIDATES = {"forward": QUERIES, "queries": QUERIES, "keys": KEYS}
NAMES = ("rows", "columns", "num_warps", "num_stages")
CALLS = 10  # in one graph: launching takes longer than some of these kernels run


class Case:
    """One shape: its tensors, the right outputs, and one call forward or backward."""

    def __init__(self, kernel: Any, shape: tuple[int, int, tuple[int, int], int, int]) -> None:
        from tailorvit.families.vit.relative import Places, Tables, attend, half_of

        images, heads, grid, reach, dim = shape
        torch.manual_seed(0)
        here: dict[str, Any] = {"device": "cuda"}
        self.kernel, self.grid, self.reach, self.scale = kernel, list(grid), reach, dim**-0.5
        tokens, half = grid[0] * grid[1] + 1, half_of(reach)
        self.qkv = torch.randn(images, tokens, 3, heads, dim, **here).bfloat16()
        self.grad = torch.randn(images, tokens, heads, dim, **here).bfloat16()
        tables = Tables(*(torch.randn(2 * reach + 2, dim, **here).mul(0.3).requires_grad_() for _ in range(4)))
        wide = [[torch.nn.functional.pad(t, (0, 0, 0, half - len(t))) for t in two] for two in (tables[:2], tables[2:])]
        self.tables = [torch.cat(two).detach().bfloat16() for two in wide]
        places = Places(grid, reach, dim).cuda()
        self.hot = places.onehot.bfloat16()
        few = self.qkv[:4].float().requires_grad_()
        q, k, v = few.permute(2, 0, 3, 1, 4).unbind(0)
        right = attend(q, k, v, tables, places, self.scale, "dense").transpose(1, 2)
        self.right = right.detach(), torch.autograd.grad(right, few, self.grad[:4].float())[0]
        self.saved: Any = self.forward()

    def forward(self) -> Any:
        """Output, and what the backward pass needs."""
        return self.kernel.relative_attention(self.qkv, *self.tables, self.hot, None, self.grid, self.reach, self.scale)

    def backward(self) -> Any:
        """Gradients of projections and tables."""
        ends = (self.grid, self.reach, self.scale)
        return self.kernel.relative_attention_grad(
            self.grad, self.qkv, *self.tables, self.hot, None, *self.saved, *ends
        )

    def wrong(self, name: str) -> float:
        """How far the outputs for the first images are from the dense formula."""
        made, right = (self.forward()[0], self.right[0]) if name == "forward" else (self.backward()[0], self.right[1])
        return float((made[:4].float() - right).norm() / right.norm())

    def microseconds(self, name: str) -> float:
        """The median of replays."""
        work = self.forward if name == "forward" else self.backward
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(CALLS):
                work()
        spent = []
        for _ in range(9):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            spent.append(1e3 * start.elapsed_time(end) / CALLS)
        return sorted(spent)[4]


def measure(kernel: Any, share: tuple[int, int] | None = None) -> list[dict[str, Any]]:
    """A row for each shape, kernel and tile; with ``share`` only compile some of them, for the cache on disk."""
    kernel.FEW, rows = {}, []
    jobs = [(s, n, t) for s in SHAPES for n, tiles in CANDIDATES.items() for t in tiles]
    for shape, group in itertools.groupby(jobs[share[0] :: share[1]] if share else jobs, lambda j: j[0]):
        case = Case(kernel, SHAPES[shape])
        for _, name, tile in group:
            before = kernel.TILES[name]
            kernel.TILES[name] = dict(zip(NAMES, tile, strict=True))
            row: dict[str, Any] = {"shape": shape, "kernel": name, "tile": tile}
            try:
                row["wrong"] = case.wrong(name)
                row["us"] = None if share else case.microseconds(name)
            except Exception as error:  # too much shared memory, say: the others must still be tried
                row["error"] = f"{type(error).__name__}: {error}"[:200]
            kernel.TILES[name] = before
            rows.append(row)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Microseconds of the first candidate and of the best; those of queries and keys are of the whole backward pass."""
    lines = []
    for shape in SHAPES:
        line = [shape]
        for name in CANDIDATES:
            tried = [r for r in rows if (r["shape"], r["kernel"]) == (shape, name)]
            best = min((r for r in tried if r.get("us") and r["wrong"] < 1e-2), key=lambda r: r["us"])
            height, width, warps, stages = best["tile"]
            line.append(f"{tried[0].get('us') or 0:.0f}")
            line.append(f"{best['us']:.0f} ({height} x {width}, warps {warps}, stages {stages})")
        lines.append(line)
    first = {name: f"{tiles[0][0]} x {tiles[0][1]}" for name, tiles in CANDIDATES.items()}
    return markdown(("shape", *(h for name in CANDIDATES for h in (f"{name}, {first[name]}", "best"))), lines)


def tables() -> dict[str, str]:
    """The page's table by name."""
    return {"tiles": table(read(HERE / "results" / "tiles-2026-11-15.json")["rows"])}


def main() -> None:
    """Fill the cache of compiled kernels in several processes, then measure in one."""
    if sys.argv[1:] == ["table"]:
        fill(HERE / "README.md", tables())
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--processes", type=int, default=min(12, os.cpu_count() or 1), help="that compile")
    parser.add_argument("--share", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    from tailorvit.families.vit import relative_kernel

    started = time.perf_counter()
    if options.share is not None:
        measure(relative_kernel, tuple(options.share))
        return
    own = [sys.executable, __file__, "--share"]
    compiling = [subprocess.Popen([*own, str(k), str(options.processes)]) for k in range(options.processes)]
    for process in compiling:
        process.wait()
    rows = measure(relative_kernel)
    spent = time.perf_counter() - started
    print(table(rows))
    if options.out:
        facts = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "seconds": spent}
        write({**facts, "rows": rows}, options.out)


if __name__ == "__main__":
    main()
