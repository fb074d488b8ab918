"""The Triton kernels of relative position, run by Triton's interpreter on a CPU, against the dense formula."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="Triton comes with torch for CUDA on Linux")

# The interpreter is chosen when Triton is imported, so it gets a process of its own.
SCRIPT = """
import json
import torch
import torch.nn.functional as F
from tailorvit.families.vit import relative_kernel as kernel
from tailorvit.families.vit.relative import Places, Tables, attend, half_of

torch.manual_seed(0)
rows = []
kernel.FEW = {}  # the cases choose their tiles
for grid, reach, dim, tile, other, dead in {cases}:
    for name in ("forward", "queries", "keys"):
        kernel.TILES[name] = dict(rows=tile, columns=other)
    kernel.TILES["tables"] = dict(rows=tile)
    kernel.SHARES = 4  # fewer than heads: each share sums several
    tokens, heads = grid[0] * grid[1] + 1, 3
    qkv = torch.randn(2, tokens, 3, heads, dim, requires_grad=True)
    tables = Tables(*(torch.randn(2 * reach + 2, dim, requires_grad=True) for _ in range(4)))
    places, scale, half = Places(tuple(grid), reach, dim), dim**-0.5, half_of(reach)
    alive = torch.ones(heads, dim)
    alive[heads - dead:] = 0
    q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    right = attend(q, k, v, tables, places, scale, "dense").transpose(1, 2) * alive
    seen = torch.randn_like(right) * alive
    wanted = torch.autograd.grad(right, [qkv, *tables], seen)
    wide = [torch.cat([F.pad(t, (0, 0, 0, half - len(t))) for t in pair]) for pair in (tables[:2], tables[2:])]
    switch = alive.flatten() if dead else None
    out, *_ = kernel.relative_attention(qkv, *wide, places.onehot, switch, list(grid), reach, scale)
    found = torch.autograd.grad(out, [qkv, *tables], seen)
    rows.append([float((a - b).norm() / b.norm()) for a, b in zip([out, *found], [right, *wanted])])
from tailorvit.families.vit import relative
assert relative.KERNEL is kernel.relative_attention
print(json.dumps(rows))
"""
CASES = [
    ((4, 4), 14, 16, 16, 16, 0),  # far more bins than places
    ((5, 3), 4, 16, 16, 32, 0),  # not square, reach just enough
    ((8, 8), 7, 32, 32, 16, 0),  # 65 tokens: the last tile holds one
    ((4, 4), 3, 16, 16, 16, 1),  # a head nobody reads
]


def test_kernels_equal_the_dense_formula() -> None:
    """Output, and gradients of projections and all four tables; a dead head gives and takes nothing."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.replace("{cases}", repr(CASES))],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    rows = json.loads(done.stdout.splitlines()[-1])
    assert len(rows) == len(CASES)
    assert max(max(row) for row in rows) < 1e-5, rows
