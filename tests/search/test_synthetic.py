from __future__ import annotations

import math
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest

from tailorvit.errors import TailorError
from tailorvit.families import named_space
from tailorvit.families.vit.spaces import vit_arch
from tailorvit.rng import generator
from tailorvit.search import Candidate
from tailorvit.testing.synthetic import Synthetic

SPACE = named_space("vit-8px")
OPTIMUM = {"depth": 4, "mlp": 2.5, "heads": 3, "embed": 48}


def test_formula():
    problem = Synthetic(SPACE, OPTIMUM, {"heads": 2.0, "embed": 3.0}, size=4.5, size_weight=7, floor=20)
    best = vit_arch(48, 3, 2.5, 4)
    size = 7 * (math.log10(problem.counter.params(best)) - 4.5) ** 2
    assert problem.accuracy(best) == pytest.approx(80 - size)
    plain = replace(problem, size=None)
    assert plain.accuracy(best) == 80
    assert plain.accuracy(best.replace(embed=56)) == pytest.approx(80 - 3)  # one step of 8
    assert plain.accuracy(best.replace(heads=(4, 4, 4, 4))) == pytest.approx(80 - 2)
    assert plain.accuracy(best.replace(mlp=(3, 3, 3, 3))) == pytest.approx(80 - 1)  # a coefficient left out is 1
    assert plain.accuracy(best.replace(heads=(4, 4, 3, 3))) == pytest.approx(80 - 2 * 0.25)  # by the mean


def test_optimum_is_the_best_of_the_space():
    problem = Synthetic(SPACE, OPTIMUM)
    rng = generator(0, "test")
    assert max(problem.accuracy(SPACE.sample(rng)) for _ in range(300)) <= problem.accuracy(vit_arch(48, 3, 2.5, 4))


def test_noise_is_a_function_of_seed_and_arch():
    problem = Synthetic(SPACE, OPTIMUM, noise=2.0, seed=5)
    rng = generator(1, "test")
    archs = [SPACE.sample(rng) for _ in range(400)]
    assert [problem.accuracy(a) for a in archs] == [replace(problem).accuracy(a) for a in archs]
    assert [problem.accuracy(a) for a in archs] != [replace(problem, seed=6).accuracy(a) for a in archs]
    errors = np.array([problem.accuracy(a) - problem.clean(a) for a in archs])
    assert abs(errors.mean()) < 0.35
    assert errors.std() == pytest.approx(2, rel=0.15)


def test_architectures_of_moved_spaces_are_accepted():
    moved = SPACE.shift({"embed": 3, "depth": 2})
    assert Synthetic(SPACE, OPTIMUM).accuracy(moved.largest()) < Synthetic(SPACE, OPTIMUM).accuracy(SPACE.largest())


def test_trials_carry_costs_and_descent():
    problem = Synthetic(SPACE, OPTIMUM)
    child, parent = SPACE.largest(), SPACE.smallest()
    (trial,) = problem.evaluate([Candidate(child, "mutate", (parent,))], 3)
    assert (trial.params, trial.macs) == problem.counter.both(child)
    assert (trial.source, trial.generation, trial.parents) == ("mutate", 3, (parent,))


def test_unknown_dimension_and_frozen():
    with pytest.raises(TailorError, match="no dimension 'width'; it has depth, mlp, heads, embed"):
        Synthetic(SPACE, {"width": 3})
    with pytest.raises(FrozenInstanceError):
        Synthetic(SPACE, OPTIMUM).noise = 1.0
