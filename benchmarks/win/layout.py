"""A training step of a hybrid with its maps channels first and channels last.

python benchmarks/win/layout.py [--device cuda] [--size 64] [--batch 32] [--steps 30]

The two take turns; the median counts. On a GPU in bfloat16 and eager, so launches count too.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
import torch.nn.functional as F

from tailorvit.families import family
from tailorvit.families.hybrid import plain
from tailorvit.families.hybrid.spaces import baseline, settle

LIMIT, CLASSES = 1_000_000, 10


def main() -> None:
    """Time both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    hybrid, sides = family("hybrid"), (options.size, options.size)
    shared = hybrid.settings({**settle(sides, LIMIT), "image_size": sides, "classes": CLASSES})
    models = (hybrid.build(shared, arch) for arch in baseline(shared.to_dict()))
    model = next(m for m in models if sum(p.numel() for p in m.parameters()) > LIMIT).to(options.device).train()
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(options.batch, 3, *sides, device=options.device)
    y = torch.randint(CLASSES, (options.batch,), device=options.device)
    times: dict[str, list[float]] = {"channels first": [], "channels last": []}
    kept = plain.stem_features
    for step in range(2 * options.steps):
        name = list(times)[step % 2]
        plain.stem_features = _as_given if name == "channels first" else kept
        begin = time.perf_counter()
        optimizer.zero_grad()
        with torch.autocast(x.device.type, torch.bfloat16, enabled=x.is_cuda):
            loss = F.cross_entropy(model(x).float(), y)
        loss.backward()
        optimizer.step()
        if x.is_cuda:
            torch.cuda.synchronize()
        times[name].append(1e3 * (time.perf_counter() - begin))
    for name, found in times.items():
        print(f"{name}: {statistics.median(found[2:]):.1f} ms")


def _as_given(convs, norms, x):
    for conv, norm in zip(convs, norms, strict=True):
        x = F.gelu(norm(conv(x)))
    return x


if __name__ == "__main__":
    main()
