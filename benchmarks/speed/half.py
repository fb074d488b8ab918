"""A training step on a CPU in fp32 and in bf16, for networks from scratch and pretrained ones.

python benchmarks/speed/half.py          # two minutes on two cores that do nothing else
python benchmarks/speed/half.py table    # the table of the page, from the stored result
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from common import fill, machine, markdown, number, read, write

HERE = Path(__file__).parent
RESULT = HERE / "results" / "half-2026-11-20-cpu.json"
BATCH, STEPS = 64, 6
CASES = (  # network, pixels, parameters at most
    *((name, 64, 1e6) for name in ("vit", "pit", "swin", "windowed", "shunted", "hybrid")),
    ("hybrid", 96, 1.5e6),
    *((name, 64, 5e6) for name in ("vit", "swin", "hybrid")),
    ("timm:vit_small_patch14_dinov2", 98, None),
)


def made(name: str, pixels: int, limit: float | None) -> nn.Module:
    """The hand-designed network of a family at a limit, or timm's."""
    from tailorvit.costs.limits import Limits
    from tailorvit.families import family
    from tailorvit.methods.contest import largest_of, stem_settings

    if limit is None:
        import timm

        model: nn.Module = timm.create_model(name.removeprefix("timm:"), img_size=pixels, num_classes=10)
        return model
    data: Any = SimpleNamespace(image_size=(pixels, pixels), channels=3, classes=[str(i) for i in range(10)])
    limits = Limits.of(max_params=limit)
    settings = stem_settings(name, "usual", data, limits)
    arch = largest_of(family(name).baseline, name, settings, limits)
    assert arch is not None
    return family(name).build(family(name).settings(dict(settings)), arch)


def step_ms(model: nn.Module, pixels: int, half: bool) -> float:
    """Median milliseconds of a training step."""
    optimizer = torch.optim.AdamW(model.parameters())
    x, y, times = torch.randn(BATCH, 3, pixels, pixels), torch.randint(10, (BATCH,)), []
    for _ in range(STEPS):
        begin = time.perf_counter()
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            out = model(x)
        F.cross_entropy(out.float(), y).backward()
        optimizer.step()
        times.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times[2:])


def main() -> None:
    """Measure and store."""
    rows = []
    for name, pixels, limit in CASES:
        model = made(name, pixels, limit)
        params = sum(p.numel() for p in model.parameters())
        full, half = (step_ms(model, pixels, on) for on in (False, True))
        rows.append({"network": name, "pixels": pixels, "params": params, "fp32_ms": full, "bf16_ms": half})
        print(rows[-1], flush=True)
    words = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    has = [w for w in ("avx512_bf16", "amx_bf16") if w in words]
    write({**machine(), "bf16": has, "threads": torch.get_num_threads(), "batch": BATCH, "rows": rows}, RESULT)


def tables() -> dict[str, str]:
    """The table of the page."""
    lines = [
        [
            row["network"],
            row["pixels"],
            number(row["params"]),
            number(row["fp32_ms"]),
            number(row["bf16_ms"]),
            number(row["fp32_ms"] / row["bf16_ms"], 2),
        ]
        for row in read(RESULT)["rows"]
    ]
    return {"half": markdown(("network", "px", "parameters", "fp32, ms", "bf16, ms", "times as fast"), lines)}


if __name__ == "__main__":
    if sys.argv[1:] == ["table"]:
        fill(HERE / "README.md", tables())
    else:
        main()
