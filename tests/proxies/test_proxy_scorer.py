"""The scorer: memory does not grow with the architectures scored; several processes give the same scores."""

from __future__ import annotations

import gc
import json
import resource
from pathlib import Path

import pytest
import torch
from proxy_tools import sample, scorer, small_space

from tailorvit import scoring
from tailorvit.errors import TailorError
from tailorvit.families import named_space
from tailorvit.proxies import ProxySettings
from tailorvit.proxies.dss import WeightNorms
from tailorvit.proxies.score import Scorer, ScorerPool
from tailorvit.rng import generator

SPACE = named_space("vit-8px")
SETTINGS = ProxySettings(("dss", "te"), batch=4)


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
    # 100 networks of 121,718 parameters that are not freed would be 50 MB and ten thousand tensors.
    assert more < 20_000_000, more
    assert tensors() <= held + 20


def test_remembered_norms_are_bounded():
    norms = WeightNorms(limit=5)
    for i in range(20):
        assert norms([i], lambda _: torch.eye(3)) == [3.0]
    assert len(norms) == 5
    computed = []
    assert norms([19, 2], lambda i: computed.append(i) or torch.eye(3)) == [3.0, 3.0]
    assert computed == [1], "a remembered norm is not computed again"


def test_slices_of_equal_shape_are_distinguished():
    """A pit of base 8 with 4 heads and one of base 16 with 2 are as wide, and use other entries of the supernet."""
    scores = scorer("pit", "dss")
    archs = sample("pit", 12)
    shared = [r.scores["dss"] for r in scores(archs)]
    assert shared == [scorer("pit", "dss")([a])[0].scores["dss"] for a in archs]


# -- several processes -------------------------------------------------------------------------------------------------


def test_several_processes_give_the_same_scores():
    rng = generator(0, "workers")
    archs = [SPACE.sample(rng) for _ in range(6)]
    with ScorerPool(2, space=SPACE, settings=SETTINGS, seed=3) as pool:
        found = pool(archs)
        fewer = pool(archs[:2])
    alone = Scorer(SPACE, settings=SETTINGS, seed=3)
    assert [r.to_dict() for r in found] == [r.to_dict() for r in alone(archs)]
    assert [r.to_dict() for r in fewer] == [r.to_dict() for r in alone(archs[:2])], "te ranks within a call"


def test_mistakes_are_refused_before_a_process_starts():
    with pytest.raises(TailorError, match="at least one worker, not 0"):
        ScorerPool(0, space=SPACE)
    with pytest.raises(TailorError, match="Unknown proxy 'dsss'"):
        ScorerPool(2, space=SPACE, settings=ProxySettings(("dsss",)))


def test_the_command_takes_workers():
    one = scoring.score("vit-8px", ProxySettings(), n=4)
    two = scoring.score("vit-8px", ProxySettings(), n=4, workers=2)
    assert json.dumps(one) == json.dumps(two) and len(one["rows"]) == 4
