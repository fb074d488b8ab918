"""The kernels that cut a block's weights, run by Triton's interpreter on a CPU, against the plain path and autograd."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

from tailorvit.families.vit import compiled

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="Triton comes with torch for CUDA on Linux")
HEAD = """
import json
import torch
from tailorvit.families.vit import compiled, cut_kernel

def both(boxes, dtypes, masks, whole):
    ends = []
    for kernel in (None, cut_kernel):
        compiled.KERNEL = kernel
        out = compiled.Cut.apply(boxes, dtypes, masks, *whole)
        torch.manual_seed(1)
        # Columns first, as a product may leave its gradients.
        pulls = [torch.randn(o.shape[::-1]).permute(*reversed(range(o.dim()))).to(o.dtype) for o in out]
        ends.append([*out, *torch.autograd.grad(out, whole, pulls)])
    served = out[0].grad_fn.layout is not None
    same = [a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b) for a, b in zip(*ends)]
    return served, same
"""


def interpreted(script: str) -> object:
    """The last line a script prints, as JSON. Triton chooses the interpreter at import, so it needs a new process."""
    done = subprocess.run(
        [sys.executable, "-c", HEAD + script],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


# Sixteen parameters, as many as the kernels take: one to four axes, whole, cut in several axes, cut in the last only.
CASES = """
cut_kernel.BLOCK = 256  # several programs each, the last one seldom full
S, A = slice, slice(None)
cases = [
    ((112,), (S(100),)), ((112,), (S(112),)), ((7,), ()), ((200,), (S(129),)),
    ((3, 4, 8, 28), (A, S(3), A, S(25))), ((3, 4, 8), (A, S(3))), ((28, 32), (S(25), S(24))), ((28,), (S(25),)),
    ((84, 28), (S(77), S(25))), ((84,), (S(77),)), ((28, 84), (S(25), S(77))), ((28,), (S(1),)),
    ((30, 8), ()), ((30, 8), (A, S(5))), ((30, 8), (S(9),)), ((5, 3, 7), (S(2), S(2), S(3))),
]
boxes, rows = [b for _, b in cases], []
for half in (torch.float32, torch.float16, torch.bfloat16):
    torch.manual_seed(0)
    whole = [torch.randn(s) for s, _ in cases]
    whole[13] = torch.randn(8, 30).T  # not contiguous
    masks = [None] * 16
    masks[6], masks[10] = torch.arange(24) % 3 / 2, (torch.arange(77) < 50).float()
    if half == torch.bfloat16:  # the interpreter cuts bits off where a GPU rounds: only what needs no rounding
        whole = [w.bfloat16().float() for w in whole]
        masks[6] = masks[6].round()
    whole = [w.requires_grad_() for w in whole]
    dtypes = [torch.float32] * 4 + [half] * 12
    served, same = both(boxes, dtypes, masks, whole)
    rows.append([served, len(same), all(same)])
    count = len(cut_kernel._LAYOUTS)
    served, same = both(boxes, dtypes, [None] * 16, [w.detach().neg().requires_grad_() for w in whole])
    rows.append([served, len(same), all(same)])
    others = [w.detach().clone(memory_format=torch.preserve_format) for w in whole]
    assert cut_kernel.layout_of(boxes, dtypes, masks, others) is not None
    assert len(cut_kernel._LAYOUTS) == count + 1, "other weights of the same shapes use the same layout"
print(json.dumps(rows))
"""


@needs_triton
def test_kernels_equal_the_plain_path_to_the_bit() -> None:
    """Cut tensors and whole gradients of sixteen parameters, with and without masks."""
    assert interpreted(CASES) == [[True, 32, True]] * 6


UNSERVED = """
one, half, f = torch.randn(6, 4).requires_grad_(), torch.bfloat16, torch.float32
box, ones = (slice(3), slice(2)), torch.ones(2)
deep = torch.randn(1, 2, 1, 2, 3).requires_grad_()
cases = {
    "seventeen": ([box] * 17, [half] * 17, [None] * 17, [one.detach().clone().requires_grad_() for _ in range(17)]),
    "double": ([box], [half], [None], [one.detach().double().requires_grad_()]),
    "two kinds of half": ([box] * 2, [half, torch.float16], [None] * 2, [one, one.detach().clone().requires_grad_()]),
    "three masks": ([box] * 3, [f] * 3, [ones] * 3, [one.detach().clone().requires_grad_() for _ in range(3)]),
    "five axes": ([(slice(1), slice(1))], [f], [None], [deep]),
}
print(json.dumps({name: both(*case) for name, case in cases.items()}))
"""


@needs_triton
def test_what_the_kernels_cannot_handle_takes_the_plain_path() -> None:
    rows = interpreted(UNSERVED)
    assert isinstance(rows, dict)
    assert len(rows) == 5
    assert all(not served and same and all(same) for served, same in rows.values()), rows


SUPERNET = """
from functools import partial
from tailorvit.families import family
from tailorvit.train.compiled import compiled as compiled_call

vit = family("vit")
space = vit.shrink(vit.spaces["vit-32px"])
torch.compile = partial(torch.compile, backend="aot_eager")
torch.manual_seed(0)
model = vit.supernet(space, 0.0).train()
small, large = space.smallest(), space.largest()
x = torch.randn(2, model.shared.channels, *model.shared.image_size)
ends, graphs = [], []
for kernel in (None, cut_kernel):
    compiled.KERNEL = kernel
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    call = compiled_call(model)
    found = []
    for arch in (small, large):
        loss = call(x, arch).square().mean()
        found += [loss, *torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)]
    ends.append(found)
    graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
same = [a is b if a is None else torch.equal(a, b) for a, b in zip(*ends)]
print(json.dumps([all(same), sum(g is not None for g in ends[0]), graphs, len(cut_kernel._LAYOUTS), len(model.blocks)]))
"""


@needs_triton
def test_blocks_of_a_supernet_still_share_one_graph_per_width() -> None:
    same, gradients, graphs, layouts, blocks = interpreted(SUPERNET)  # type: ignore[misc]
    assert same
    assert gradients > 20
    assert blocks > 1
    assert graphs == [2, 2]  # two widths
    assert layouts == 2  # made once per shape, not once per block


@needs_triton
@pytest.mark.parametrize("half", ["float32", "bfloat16"])
def test_kernels_compile_for_hopper(half: str, tmp_path, monkeypatch) -> None:
    """The interpreter accepts what the compiler refuses; neither needs a GPU."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from tailorvit.families.vit import cut_kernel

    numbers = {"half": getattr(triton.language, half), "row": cut_kernel.ROW, "block": cut_kernel.BLOCK}
    pointers = {"table": "*i32", "work": "*i32", "whole": "*fp32"}
    for kernel in (cut_kernel._cut, cut_kernel._uncut):
        types = {n: "constexpr" if n in numbers else pointers.get(n, "i64") for n in kernel.arg_names}
        made = triton.compile(ASTSource(kernel, types, numbers), target=GPUTarget("cuda", 90, 32))
        assert ("cvt.rn.bf16" in made.asm["ptx"]) == (half == "bfloat16")  # rounds to nearest, as torch does


@pytest.mark.parametrize("half", [torch.float32, torch.bfloat16])
def test_the_plain_path_equals_autograd(half: torch.dtype) -> None:
    """A prefix, a cast and a product, each differentiated by torch."""
    torch.manual_seed(0)
    whole = [torch.randn(s).requires_grad_() for s in ((10,), (3, 4, 2, 7), (6, 8))]
    boxes = [(slice(7),), (slice(None), slice(3), slice(None), slice(5)), (slice(6), slice(3))]
    mask = torch.tensor([1.0, 0.0, 1.0])
    out = compiled.Cut.apply(boxes, [torch.float32, half, half], [None, None, mask], *whole)
    by_hand = [whole[0][:7], whole[1][:, :3, :, :5].flatten(0, 2).to(half), whole[2][:, :3].to(half) * mask.to(half)]
    pulls = [torch.randn(o.shape).to(o.dtype) for o in by_hand]
    found, wanted = (torch.autograd.grad(ends, whole, pulls) for ends in (out, by_hand))
    for one, other in zip([*out, *found], [*by_hand, *wanted], strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
