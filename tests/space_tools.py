"""Spaces to try things on, and their members the slow way."""

from __future__ import annotations

import json
import tomllib
from itertools import product

import numpy as np
import pytest
import tomli_w
from hypothesis import strategies as st

from tailorvit.arch import Arch
from tailorvit.space import Dim, Space

VIT = Space(
    "vit",
    (
        Dim.span("depth", 1, 4, 1),
        Dim.span("mlp", 2, 3, 0.5, scope="block"),
        Dim.span("heads", 2, 6, 2, scope="block"),
        Dim("embed", (16, 24, 40), minimum=8),
    ),
    (("classes", 10),),
)
STAGED = Space(
    "s3",
    (
        Dim("depth", (1, 2, 3), scope="stage", stage=0),
        Dim("embed", (16, 24), scope="stage", stage=0),
        Dim("heads", (1, 2), scope="block", stage=0),
        Dim("window", (7, 14), scope="block", stage=0),
        Dim("depth", (2, 4), scope="stage", stage=1),
        Dim("heads", (4, 6, 8), scope="block", stage=1),
        Dim("mlp", (3, 3.5, 4)),
    ),
)

seeds = st.integers(0, 2**32 - 1)
chances = st.sampled_from([0.0, 0.2, 0.5, 1.0])
both = pytest.mark.parametrize("space", [VIT, STAGED], ids=["one stage", "two stages"])


def rng(seed):
    return np.random.default_rng(seed)


@st.composite
def made_spaces(draw):
    """Spaces of one or two stages with random choices, halves among them: no name that stands for a count."""
    stages = draw(st.sampled_from([(None,), (0, 1)]))
    values = st.lists(st.integers(1, 12).map(lambda v: v / 2), min_size=1, max_size=4, unique=True).map(sorted)
    dims = []
    for stage in stages:
        depths = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3, unique=True).map(sorted))
        dims.append(Dim("depth", tuple(depths), scope="global" if stage is None else "stage", stage=stage))
        for name in draw(st.lists(st.sampled_from(["share", "mlp", "ratio"]), unique=True)):
            dims.append(Dim(name, tuple(draw(values)), scope="block", stage=stage))
    dims.append(Dim("scale", tuple(draw(values))))
    return Space("any", tuple(draw(st.permutations(dims))), (("classes", draw(st.integers(1, 9))),))


def members(space):
    """Every member, the slow way."""
    plain = [d for d in space.dims if d.scope != "block"]
    for values in product(*(d.choices for d in plain)):
        genes = dict(zip((d.key for d in plain), values, strict=True))
        blocks = [d for d in space.dims if d.scope == "block"]
        depths = [genes["depth" if d.stage is None else f"depth.{d.stage}"] for d in blocks]
        for rows in product(*(product(d.choices, repeat=n) for d, n in zip(blocks, depths, strict=True))):
            yield Arch(space.family, **genes, **{d.key: r for d, r in zip(blocks, rows, strict=True)})


def round_trips(space):
    plain = space.to_dict()
    for back in (
        Space.from_dict(plain),
        Space.from_dict(json.loads(json.dumps(plain))),
        Space.from_dict(tomllib.loads(tomli_w.dumps(plain))),
    ):
        assert back == space and hash(back) == hash(space) and back.keys == space.keys and back.to_dict() == plain
