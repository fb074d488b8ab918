"""Every training rule is a pure function of (seed, step) whose architectures belong to the space."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tailorvit.families import FAMILIES, named_space
from tailorvit.train import RULES, Fixed, Rule, Sandwich

SPACES = sorted(n for f in FAMILIES.values() for n in f.spaces)
rules = pytest.mark.parametrize("name", sorted(RULES))
spaces = pytest.mark.parametrize("where", SPACES)


@rules
@spaces
def test_pure_in_seed_and_step(name, where):
    rule: Rule = RULES[name](named_space(where))
    steps = [0, 1, 2, 17, 10**6]
    first = {(seed, step): rule.archs_at(seed, step) for seed in (0, 1, 2**31 - 1) for step in steps}
    np.random.seed(3)  # noqa: NPY002 - neither global state nor the order of questions may matter
    torch.manual_seed(3)
    second = RULES[name](named_space(where))
    for (seed, step), archs in reversed(first.items()):
        assert second.archs_at(seed, step) == archs
    # Fifteen draws; a space of 18 architectures repeats some, one of thousands hardly any (few have the least depth).
    least = len(first) - 1 if named_space(where).count() > 1000 else 3
    assert len(set(first.values())) >= least, "other seeds and steps draw other architectures"


@rules
@spaces
def test_architectures_of_the_space(name, where):
    space = named_space(where)
    rule = RULES[name](space)
    for step in range(50):
        archs = rule.archs_at(0, step)
        assert isinstance(archs, tuple) and archs
        assert all(space.contains(a) for a in archs)


@rules
def test_leaves_global_randomness_alone(name):
    before = np.random.get_state()[1].copy(), torch.get_rng_state()  # noqa: NPY002
    RULES[name](named_space("vit-8px")).archs_at(0, 0)
    assert (np.random.get_state()[1] == before[0]).all()  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), before[1])


@spaces
def test_the_sandwich_holds_smallest_and_largest(where):
    space = named_space(where)
    for step in range(100):
        archs = Sandwich(space).archs_at(4, step)
        assert archs[:2] == (space.largest(), space.smallest()) and len(archs) == 4
    assert len(Sandwich(space, middle=0).archs_at(0, 0)) == 2


def test_single_path_meets_every_choice():
    space = named_space("vit-8px")
    drawn = [RULES["single_path"](space).archs_at(0, step)[0] for step in range(200)]
    for dim in space.dims:
        seen = {v for a in drawn for v in (a.many(dim.key) if dim.scope == "block" else (a.one(dim.key),))}
        assert seen == set(dim.choices)


def test_fixed_is_always_the_same():
    space = named_space("vit-8px")
    assert Fixed().archs_at(0, 0) == (None,)
    assert Fixed(space.largest()).archs_at(3, 9) == (space.largest(),)
