"""Counts against figures computed elsewhere: the specification's vectors, the papers' tables and timm's networks."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from tailorvit.costs import Counter
from tailorvit.errors import TailorError
from tailorvit.families import FAMILIES, named_arch, named_space
from tailorvit.families.vit.spaces import vit_arch

PAPER = dict(named_space("autoformer-s").settings)


def counter(**fixed):
    return Counter("vit", {**PAPER, **fixed})


def counter_of(name):
    named = named_arch(name)
    return Counter("vit", named.settings), named.arch


# -- test vectors -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "no_relative", "relative", "none", "factored", "dense"),
    [
        ((192, 3, 4, 12), 5717416, 5809576, 1253683200, 1308149760, 1432515072),
        ((384, 6, 4, 12), 22050664, 22142824, 4598882304, 4707815424, 4956546048),
        ((768, 12, 4, 12), 86567656, 86659816, 17563828224, 17781694464, 18279155712),
    ],
)
def test_uniform_vits(shape, no_relative, relative, none, factored, dense):
    arch = vit_arch(*shape)
    assert counter().params(arch) == relative
    assert counter(relative=False).both(arch) == (no_relative, none)
    assert counter().macs(arch) == factored
    readings = counter().readings(arch)
    assert [readings[f"macs_{r}"] for r in ("none", "factored", "dense")] == [none, factored, dense]
    plain = counter(relative=False).readings(arch)
    assert {plain[f"macs_{r}"] for r in ("none", "factored", "dense", "fused")} == {none}


def test_term_split():
    parts = {p.part: p.params for p in counter().parts(vit_arch(384, 6, 4, 12))}
    assert parts == {
        "patch_embed": 295296,
        "cls_token": 384,
        "pos_embed": 75648,
        "blocks.norm": 18432,
        "blocks.attn.qkv": 5322240,
        "blocks.attn": 0,
        "blocks.attn.relative": 92160,
        "blocks.attn.proj": 1774080,
        "blocks.mlp.fc1": 7096320,
        "blocks.mlp.fc2": 7082496,
        "norm": 768,
        "head": 385000,
    }


@pytest.mark.parametrize(
    ("depth", "ratio", "heads", "embed", "classes", "eq3", "exact"),
    [
        (12, 3.5, 2, 336, 200, 12284024, 12075704),
        (14, 4, 14, 384, 200, 36671816, 36430664),
        (13, 3.5, 12, 360, 200, 26990492, 26765852),
        (12, 4, 6, 384, 1000, 22380904, 22142824),
    ],
)
def test_s4_equation_3(depth, ratio, heads, embed, classes, eq3, exact):
    arch, count = vit_arch(embed, heads, ratio, depth), counter(classes=classes)
    assert count.params(arch) == exact
    assert count.readings(arch)["params_eq3"] == eq3
    assert eq3 - exact == 572 * embed + 4 * depth * embed


# -- spaces -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "count", "text"),
    [
        ("autoformer-t", 3 * sum(4**a for a in (12, 13, 14)), "1.057e+09"),
        ("autoformer-s", 3 * sum(9**a for a in (12, 13, 14)), "7.710e+13"),
        ("autoformer-b", 3 * sum(6**a for a in (14, 15, 16)), "1.011e+13"),
        ("autoformer-b-wide", 3 * sum(9**a for a in (14, 15, 16)), "6.245e+15"),
        ("autoformer-t-wide", 3 * sum(6**a for a in (12, 13, 14)), "2.808e+11"),
    ],
)
def test_number_of_architectures(name, count, text):
    assert named_space(name).count() == count
    assert f"{count:.3e}" == text


@pytest.mark.parametrize(
    ("name", "classes", "params", "none", "dense"),
    [
        ("autoformer-t", 1000, (5.37, 10.52), (1.17, 2.26), (1.35, 2.54)),
        ("autoformer-s", 1000, (13.06, 34.79), (2.77, 7.20), (3.07, 7.68)),
        ("autoformer-b", 1000, (41.69, 76.88), (8.67, 15.74), (9.30, 16.54)),
        ("autoformer-b-wide", 1000, (39.79, 76.88), None, None),
        ("s4-vit", 100, (12.04, 36.39), None, None),
    ],
)
def test_ranges(name, classes, params, none, dense):
    space = named_space(name, classes=classes)
    count = Counter("vit", dict(space.settings))
    ends = (space.smallest(), space.largest())
    assert tuple(round(count.params(a) / 1e6, 2) for a in ends) == params
    for reading, expected in (("macs_none", none), ("macs_dense", dense)):
        if expected:
            assert tuple(round(count.readings(a)[reading] / 1e9, 2) for a in ends) == expected


def test_s4_initial_space_and_its_legal_neighbours():
    space = named_space("s4-vit", classes=200)
    count = Counter("vit", dict(space.settings))
    assert count.params(space.largest()) == 36430664

    def legal(start, nonpositive):
        found = {}
        for gamma in product((-1, 0, 1), repeat=4):
            try:
                moved = start.shift(dict(zip(start.keys, gamma)), nonpositive)
            except TailorError:
                continue
            if any(gamma) and count.params(moved.largest()) < 30e6:
                found[gamma] = round(count.params(moved.largest()) / 1e6, 2)
        return found

    assert space.keys == ("depth", "mlp", "heads", "embed")
    assert legal(space, "drop") == {
        (-1, -1, -1, 0): 29.38,
        (-1, -1, 0, -1): 29.17,
        (0, -1, -1, -1): 28.79,
        (-1, 0, -1, -1): 28.45,
        (-1, -1, -1, -1): 26.77,
    }
    assert set(legal(space, "strict")) == {(-1, -1, 0, -1)}
    following = space.shift({"depth": -1, "mlp": -1, "embed": -1})
    assert count.params(following.largest()) == 29167004
    assert len(legal(following, "strict")) == 24  # the specification's figure; 47 when heads may drop a choice


# -- published architectures ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "params", "none", "factored", "dense"),
    [
        ("autoformer-t", 5867944, None, 1.344, None),
        ("autoformer-s", 22891432, None, 4.892, 5.161),
        ("autoformer-b", 53691688, None, 11.242, None),
        ("tftas-ti", 6237736, 1.371, 1.436, 1.584),
        ("tftas-s", 23935336, 5.007, 5.134, 5.424),
        ("tftas-b", 57134920, 11.780, 11.995, 12.486),
        ("tftas-ti-yaml", 6200776, None, None, None),
        ("deit-ti", 5717416, 1.254, 1.254, 1.254),
        ("deit-s", 22050664, 4.599, 4.599, 4.599),
        ("deit-b", 86567656, 17.564, 17.564, 17.564),
    ],
)
def test_published_architectures(name, params, none, factored, dense):
    count, arch = counter_of(name)
    assert count.params(arch) == params
    for reading, giga in (("none", none), ("factored", factored), ("dense", dense)):
        assert giga is None or round(count.readings(arch)[f"macs_{reading}"] / 1e9, 3) == giga


def test_measured_dense_autoformer_s():
    count, arch = counter_of("autoformer-s")
    assert count.readings(arch)["macs_dense"] == 5161400832


@pytest.mark.parametrize(
    ("name", "printed"),
    [("autoformer-t", 1344034362), ("autoformer-s", 4892144730), ("autoformer-b", 11236929660)],
)
def test_released_complexity(name, printed):
    count, arch = counter_of(name)
    assert count.readings(arch)["official_complexity"] == printed


def test_autoformer_t_leaves_its_published_space():
    arch = named_arch("autoformer-t").arch
    assert "dimension 'mlp' has 3; the choices are 3.5, 4" in named_space("autoformer-t").problem(arch)
    assert named_space("autoformer-t-wide").contains(arch)
    for name in ("autoformer-s", "autoformer-b"):
        assert named_space(name).contains(named_arch(name).arch)
    for size, name in zip("tsb", ("tftas-ti", "tftas-s", "tftas-b")):
        assert named_space(f"autoformer-{size}").contains(named_arch(name).arch)


# -- timm -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ours", "theirs"), [("deit-ti", "tiny"), ("deit-s", "small"), ("deit-b", "base")])
@torch.no_grad()
def test_deit_is_timms_network(ours, theirs):
    import timm

    count, arch = counter_of(ours)
    with torch.device("meta"):  # initialising 86 million numbers twice would take most of the time
        reference = timm.create_model(f"deit_{theirs}_patch16_224", pretrained=False)
        plain = FAMILIES["vit"].build(count.shared, arch)
    reference.to_empty(device="cpu").eval()
    torch.manual_seed(0)
    for name, p in reference.named_parameters():
        p.normal_(float("norm" in name and "weight" in name), 0.03)
    weights = reference.state_dict()
    assert sum(w.numel() for w in weights.values()) == count.params(arch)
    plain.load_state_dict(weights, assign=True)
    x = torch.randn(1, 3, 224, 224)
    expected = reference(x)
    assert expected.std() > 0.1
    torch.testing.assert_close(plain.eval()(x), expected, atol=1e-5, rtol=1e-5)
