from __future__ import annotations

import json

import pytest

from tailorvit import scoring
from tailorvit.errors import TailorError
from tailorvit.families import named_space
from tailorvit.proxies.base import ProxySettings
from tailorvit.proxies.score import Scorer, ScorerPool
from tailorvit.rng import generator

SPACE = named_space("vit-8px")
SETTINGS = ProxySettings(("dss", "te"), batch=4)


def test_several_processes_give_the_same_scores():
    rng = generator(0, "workers")
    archs = [SPACE.sample(rng) for _ in range(6)]
    with ScorerPool(2, space=SPACE, settings=SETTINGS, seed=3) as pool:
        found = pool(archs)
        again = pool(archs[:2])
    alone = Scorer(SPACE, settings=SETTINGS, seed=3)
    assert [r.to_dict() for r in found] == [r.to_dict() for r in alone(archs)]
    assert [r.to_dict() for r in again] == [r.to_dict() for r in alone(archs[:2])], "te ranks within a call"


def test_mistakes_are_told_before_a_process_starts():
    with pytest.raises(TailorError, match="at least one worker, not 0"):
        ScorerPool(0, space=SPACE)
    with pytest.raises(TailorError, match="Unknown proxy 'dsss'"):
        ScorerPool(2, space=SPACE, settings=ProxySettings(("dsss",)))


def test_the_command_takes_workers():
    one = scoring.score("vit-8px", ProxySettings(), n=4)
    two = scoring.score("vit-8px", ProxySettings(), n=4, workers=2)
    assert json.dumps(one) == json.dumps(two) and len(one["rows"]) == 4
