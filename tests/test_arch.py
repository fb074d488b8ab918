from __future__ import annotations

import copy
import json
import pickle
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tailorvit.arch import Arch, gene, number
from tailorvit.errors import TailorError

ARCH = Arch("vit", depth=2, embed=64, heads=(2, 3), mlp=(3.5, 4))

numbers = st.integers(-1000, 1000) | st.floats(-1000, 1000).map(lambda v: round(v, 3))
genes = st.dictionaries(st.sampled_from(["depth", "embed", "heads.0", "mlp"]), numbers | st.lists(numbers, max_size=5))


def test_one_spelling_of_one_architecture():
    same = [
        Arch("vit", mlp=[3.5, 4.0], heads=[2.0, 3], embed=64.0, depth=2),
        Arch("vit", depth=np.int64(2), embed=np.float32(64), heads=(2, np.int32(3)), mlp=(np.float64(3.5), 4)),
        Arch("vit", depth=Fraction(2), embed=64, heads=(2, 3), mlp=(Fraction(7, 2), 4)),
        Arch("vit", depth=torch.tensor(2), embed=torch.tensor(64.0), heads=(2, 3), mlp=(3.5, 4)),
        Arch.from_json(ARCH.to_json()),
    ]
    for other in same:
        assert other == ARCH and hash(other) == hash(ARCH) and other.to_json() == ARCH.to_json()
        assert type(other["embed"]) is int and type(other["mlp"][0]) is float and type(other["mlp"][1]) is int
    assert len({ARCH, *same}) == 1


def test_differences_are_seen():
    assert ARCH.replace(embed=65) != ARCH
    assert ARCH.replace(heads=(3, 2)) != ARCH
    assert Arch("pit", **dict(ARCH)) != ARCH
    assert dict(ARCH) != ARCH
    assert Arch("vit", depth=1) != Arch("vit", depth=(1,))


def test_it_is_a_value():
    with pytest.raises(AttributeError, match="build a new one"):
        ARCH.family = "pit"
    with pytest.raises(TypeError):
        ARCH["depth"] = 3
    with pytest.raises(AttributeError):
        ARCH.extra = 1
    changed = ARCH.replace(embed=32)
    assert ARCH.one("embed") == 64 and changed.one("embed") == 32
    given_list = [2, 3]
    arch = ARCH.replace(heads=given_list)
    given_list.append(9)
    assert arch.many("heads") == (2, 3)


def test_copies_and_pickles():
    assert pickle.loads(pickle.dumps(ARCH)) == copy.deepcopy(ARCH) == copy.copy(ARCH) == ARCH


def test_reading_genes():
    assert ARCH.one("depth") == 2 and ARCH.many("mlp") == (3.5, 4)
    with pytest.raises(TypeError, match="'mlp' holds one value per block"):
        ARCH.one("mlp")
    with pytest.raises(TypeError, match="'depth' holds a single value"):
        ARCH.many("depth")
    assert list(ARCH) == ["depth", "embed", "heads", "mlp"] and len(ARCH) == 4 and dict(**ARCH)["depth"] == 2
    assert eval(repr(ARCH), {"Arch": Arch}) == ARCH


@settings(deadline=None)
@given(st.sampled_from(["vit", "swin"]), genes)
def test_json_identity(family, values):
    arch = Arch(family, **values)
    back = Arch.from_json(arch.to_json())
    assert back == arch and hash(back) == hash(arch) and back.to_json() == arch.to_json()
    assert json.loads(arch.to_json()) == arch.to_dict()
    assert Arch.from_dict(arch.to_dict()) == arch


@pytest.mark.parametrize("bad", [True, "3", None, float("nan"), float("inf"), [1], {}])
def test_not_a_number(bad):
    with pytest.raises(TailorError, match="is not a"):
        number(bad)


def test_gene_refuses_what_is_inside_a_list():
    assert gene([1, 2.0, 2.5]) == (1, 2, 2.5)
    with pytest.raises(TailorError, match="'x' is not a number"):
        gene([1, "x"])


def test_from_dict_needs_a_family():
    with pytest.raises(TailorError, match="needs a 'family'"):
        Arch.from_dict({"depth": 2})
