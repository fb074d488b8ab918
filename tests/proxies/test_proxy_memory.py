"""Memory does not grow with the number of architectures scored."""

from __future__ import annotations

import gc
import resource
from pathlib import Path

import torch
from proxy_tools import sample, scorer, small_space

from tailorvit.proxies.dss import WeightNorms
from tailorvit.rng import generator


def resident() -> int:
    """Bytes this process holds now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def tensors() -> int:
    gc.collect()
    return sum(type(o) in (torch.Tensor, torch.nn.Parameter) for o in gc.get_objects())


def test_memory_is_flat():
    scores, rng = scorer("vit", "dss"), generator(2, "memory")
    archs = [small_space("vit").sample(rng) for _ in range(140)]
    scores(archs[:40])  # first the caches fill
    held, before = tensors(), resident()
    for arch in archs[40:]:
        scores([arch])
    more = resident() - before
    # A kept network of 121,718 numbers would be half a megabyte and a hundred tensors: 100 of them 50 MB.
    assert more < 20_000_000, more
    assert tensors() <= held + 20


def test_remembered_norms_are_bounded():
    norms = WeightNorms(limit=5)
    for i in range(20):
        assert norms([i], lambda _: torch.eye(3)) == [3.0]
    assert len(norms) == 5
    asked = []
    assert norms([19, 2], lambda i: asked.append(i) or torch.eye(3)) == [3.0, 3.0]
    assert asked == [1], "what is remembered is not asked for again"


def test_slices_of_equal_shape_are_told_apart():
    """A pit of base 8 with 4 heads and one of base 16 with 2 are as wide, and use other entries of the supernet."""
    scores = scorer("pit", "dss")
    archs = sample("pit", 12)
    shared = [r.scores["dss"] for r in scores(archs)]
    assert shared == [scorer("pit", "dss")([a])[0].scores["dss"] for a in archs]
