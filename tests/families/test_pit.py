"""PiT against the published numbers, against timm, and what its ties and its order of channels promise."""

from __future__ import annotations

import json
from itertools import product

import pytest
import torch
from typer.testing import CliRunner

from tailorvit.cli import app
from tailorvit.costs import Counter
from tailorvit.elastic.slicing import prefix
from tailorvit.errors import TailorError
from tailorvit.families import FAMILIES, family, named_arch, named_space, plain_class, with_settings
from tailorvit.families.pit.elastic import ElasticPiT
from tailorvit.families.pit.plain import PitSettings, PlainPiT, pit_settings
from tailorvit.families.pit.spaces import SPACES, pit_arch, settle
from tailorvit.lookup import cost
from tailorvit.rng import generator

PIT = FAMILIES["pit"]
LEVELS = ("pit-ti", "pit-xs", "pit-s")


def cli(*words):
    answer = CliRunner().invoke(app, [*words, "--json"])
    assert answer.exit_code == 0, answer.output
    return json.loads(answer.stdout)


# -- published numbers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "params", "macs"),
    [
        ("pit-ti", 4_847_272, 699_059_456),
        ("pit-xs", 10_618_888, "1.395"),
        ("pit-s", 23_461_912, 2_870_796_096),
        ("pit-b", 73_764_840, "12.402"),
        ("tftas-pit-ti", "4.732", "0.672"),
        ("tftas-pit-xs", "10.643", "1.826"),
        ("tftas-pit-s", "14.451", "2.406"),
        ("tftas-pit-s-yaml", "24.966", "3.406"),
    ],
)
def test_published_architectures_have_their_size(name, params, macs):
    """To the last digit, or to those there are (in millions of parameters, in thousands of millions of MACs)."""
    told = cost(name)
    assert params in (told["params"], f"{told['params'] / 1e6:.3f}")
    assert macs in (told["macs"], f"{told['macs'] / 1e9:.3f}")
    assert told["params"] == sum(p["params"] for p in told["parts"])


def test_the_command_line_tells_costs_and_spaces():
    told = cli("cost", "pit-ti")
    assert (told["params"], told["macs"]) == (4_847_272, 699_059_456)
    told = cli("space", "pit-ti")
    assert told["count"] == 4_320
    assert (told["smallest"]["params"], told["largest"]["params"]) == (143_592, 35_921_640)


@pytest.mark.parametrize(
    ("name", "least", "most"), [("pit-ti", 0.14e6, 35.9e6), ("pit-xs", 0.58e6, 91.1e6), ("pit-s", 0.96e6, 257.7e6)]
)
def test_spaces_count_and_range(name, least, most):
    space = named_space(name)
    assert space.count() == 4_320 and space.count(tied=False) == 11_664
    count = Counter("pit", {**dict(space.settings), "classes": 1000})
    assert count.params(space.smallest()) == pytest.approx(least, rel=0.04)
    assert count.params(space.largest()) == pytest.approx(most, rel=0.001)


def test_three_levels_hold_what_the_paper_could_have_meant():
    assert sum(named_space(n).count() for n in LEVELS) == 12_960
    assert sum(named_space(n).count(tied=False) for n in LEVELS) == 34_992


def test_searched_networks_lie_in_their_spaces():
    for arch, space in (("tftas-pit-ti", "pit-ti"), ("tftas-pit-xs", "pit-xs"), ("tftas-pit-s-yaml", "pit-s")):
        named_space(space).check(named_arch(arch).arch)
    named_space("pit-ti").check(named_arch("pit-ti").arch)


# -- timm -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ti", "xs", "s"])
@torch.no_grad()
def test_timm_weights_load_and_give_the_same(name):
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    theirs = timm.create_model(f"pit_{name}_224").eval()
    for p in theirs.parameters():  # biases and norms at birth would hide a mix-up
        p.add_(0.02 * torch.randn_like(p))
    named = named_arch(f"pit-{name}")
    ours = PIT.build(PIT.settings(named.settings), named.arch).eval()
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(1, 3, 224, 224)
    torch.testing.assert_close(ours(x), theirs(x), atol=1e-4, rtol=1e-4)
    for mine, known in zip(
        ours.forward_intermediates(x, intermediates_only=True),
        theirs.forward_intermediates(x, intermediates_only=True),
        strict=True,
    ):
        torch.testing.assert_close(mine, known, atol=1e-4, rtol=1e-4)
    assert [i["num_chs"] for i in ours.feature_info] == [i["num_chs"] for i in theirs.feature_info]


# -- the plain network ------------------------------------------------------------------------------------------------


def little(**fixed):
    shared = PitSettings(**{"image_size": (8, 8), "patch": 2, "stride": 1, "channels": 1, "classes": 10, **fixed})
    torch.manual_seed(0)
    return PlainPiT(shared, 4, [1, 2, 1], [1, 2, 4], 2).eval()


@torch.no_grad()
def test_settings_bring_the_network_back():
    model, x = little(image_size=(8, 12)), torch.randn(2, 1, 8, 12)
    again = plain_class("pit").from_settings(json.loads(json.dumps(model.settings))).eval()
    assert again.settings == model.settings
    again.load_state_dict(model.state_dict())
    torch.testing.assert_close(again(x), model(x), atol=0, rtol=0)


@torch.no_grad()
def test_features_and_heads():
    model, x = little(), torch.randn(2, 1, 8, 8)
    features = model.forward_features(x)
    assert features.shape == (2, 1, model.num_features) and model.forward_head(features, True).shape == (2, 16)
    torch.testing.assert_close(model.forward_head(features), model(x))
    final, maps = model.forward_intermediates(x, 2, norm=True)
    torch.testing.assert_close(final, features)
    assert [m.shape[1:] for m in maps] == [(8, 4, 4), (16, 2, 2)]
    assert maps[-1].mean(1).abs().max() < 1e-5, "the last map is normalised"
    (rows,) = model.forward_intermediates(x, [0], output_fmt="NLC", intermediates_only=True)
    assert rows.shape == (2, 49, 4)
    model.reset_classifier(3)
    assert model(x).shape == (2, 3) and model.num_classes == 3
    model.reset_classifier(0)
    assert model(x).shape == (2, 16)
    with pytest.raises(ValueError, match=r"'token'.*'avg'"):
        model.reset_classifier(3, "avg")


def test_starts():
    torch.manual_seed(0)
    small, official = little(), little(init="official")
    assert float(small.transformers[1].pool.conv.weight.detach().std()) < 0.3
    assert float(official.transformers[1].pool.conv.weight.detach().std()) == pytest.approx(1, abs=0.3)
    assert float(official.head.weight.detach().std()) < 0.03
    space = named_space("pit-8px")
    elastic, plain = ElasticPiT(space), PIT.build(PIT.settings(dict(space.settings)), space.largest())
    for name, p in plain.named_parameters():  # the supernet starts as the plain network does
        twin = dict(elastic.named_parameters())[name]
        assert twin.numel() == p.numel()
        if p.numel() > 500:
            assert float(twin.detach().std()) == pytest.approx(float(p.detach().std()), rel=0.25), name


# -- sharing ----------------------------------------------------------------------------------------------------------


def arch_8px(**genes):
    return pit_arch(**{"base": 8, "depth": (1, 1, 1), "heads": (1, 2, 2), "mlp": 2, **genes})


def test_heads_share_their_weights_at_every_base():
    model = ElasticPiT(named_space("pit-8px"))
    weight = dict(model.named_parameters())["transformers.1.blocks.0.attn.qkv.weight"]
    for base, heads in product((8, 12, 16), (2, 4)):
        arch = arch_8px(base=base, heads=(1, heads, heads))
        cut = prefix(weight, *model.slices(arch)["transformers.1.blocks.0.attn.qkv.weight"])
        assert cut.shape == (3, heads, base, heads, base)
        for j in range(heads):
            assert cut[0, j, 0, 0, 0].data_ptr() == weight[0, j, 0, 0, 0].data_ptr()


@torch.no_grad()
def test_a_pooled_head_filters_the_same_head_whatever_the_stages_are():
    model = ElasticPiT(named_space("pit-8px")).eval()
    pool = model.transformers[1].pool
    widths, _ = model.plan(arch_8px(heads=(1, 2, 2)))
    wider, _ = model.plan(arch_8px(heads=(2, 4, 4), base=12))
    x = torch.randn(1, 2, 12, 7, 7)
    narrow, _ = pool(x[:, :1, :8].flatten(1, 2), torch.zeros(1, 1, 8), widths[0], widths[1])
    wide, _ = pool(x.flatten(1, 2), torch.zeros(1, 1, 24), wider[0], wider[1])
    torch.testing.assert_close(narrow.unflatten(1, (2, 8))[:, 0], wide.unflatten(1, (4, 12))[:, 0, :8])


@torch.no_grad()
def test_extraction_is_exact_where_both_poolings_copy():
    space = named_space("pit-8px")
    model = ElasticPiT(space).eval()
    for p in model.parameters():
        p.copy_(0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
    x = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    for arch in (arch_8px(heads=(1, 2, 4)), arch_8px(heads=(1, 4, 4), base=12), arch_8px(heads=(2, 4, 4), base=16)):
        torch.testing.assert_close(PIT.extract(model, arch).eval()(x), model(x, arch), atol=2e-4, rtol=2e-4)


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("genes", "words"),
    [
        ({"heads": [2, 3, 6]}, "heads.2 is 3, no multiple of 2"),
        ({"heads": [2, 4]}, "needs three values of 'heads', not [2, 4]"),
        ({"heads": 2}, "needs three values of 'heads', not 2"),
        ({"embed": 2}, "no gene 'embed'; it has base, depth.1"),
        ({"base": 2.5}, "whole positive 'base', not 2.5"),
        ({"base": [2]}, "one value of 'base', not [2]"),
        ({"mlp": -1}, "positive MLP ratio, not -1"),
    ],
)
def test_wrong_architectures_are_named(genes, words):
    with pytest.raises(TailorError) as error:
        arch_8px(**genes)
    assert words in str(error.value)
    with pytest.raises(TailorError, match="needs 'mlp'"):
        pit_arch(base=8, depth=[1, 1, 1], heads=[1, 1, 1])


@pytest.mark.parametrize(
    ("fixed", "words"),
    [
        ({"image_size": (225, 224)}, "one patch (16) and whole strides (8) more, not [225, 224]"),
        ({"image_size": 8}, "one patch (16)"),
        ({"stride": 17}, "stride 17 exceeds its patch 16"),
        ({"patch": 0}, "'patch' must be a positive whole number, not 0"),
        ({"init": "zero"}, "'init' must be scaled or paper or official, not 'zero'"),
        ({"eps": 0.0}, "'eps' must be a small positive number"),
    ],
)
def test_wrong_settings_are_named(fixed, words):
    with pytest.raises(TailorError) as error:
        pit_settings(fixed)
    assert words in str(error.value)


def test_a_network_the_supernet_cannot_hold_is_refused():
    space = named_space("pit-8px")
    model, x = ElasticPiT(space), torch.zeros(1, 1, 8, 8)
    for genes, gene in (({"base": 17}, "base"), ({"depth": (1, 3, 1)}, "depth.2"), ({"heads": (1, 2, 8)}, "heads.3")):
        with pytest.raises(TailorError, match=f"'{gene}' needs"):
            model(x, arch_8px(**genes))
    with pytest.raises(TailorError, match="'mlp' needs"):
        model(x, arch_8px(base=16, heads=(2, 4, 4), mlp=5))
    with pytest.raises(TailorError, match="no multiple of 2"):
        model(x, space.largest().replace(**{"heads.2": 1}))
    with pytest.raises(TailorError, match="no multiple of"):
        Counter("pit", dict(space.settings)).params(space.largest().replace(**{"heads.2": 1}))


# -- settings and small forms -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "size", [(s, s) for s in (*range(8, 65), 96, 97, 128, 160, 224, 256, 384)] + [(8, 12), (97, 64)]
)
def test_settings_suit_every_image_size(size):
    shared = pit_settings({"image_size": size, **settle(size, 1e6)})
    assert min(shared.grids[0]) >= 4 and max(shared.grids[0]) <= 48
    assert shared.stride <= shared.patch <= 3 * shared.stride


def test_the_papers_cut_is_what_224_gets():
    assert settle((224, 224), 5e6) == {"patch": 16, "stride": 8}


@torch.no_grad()
def test_384_px_and_one_channel_run():
    space = with_settings(named_space("pit-8px"), image_size=(384, 384), patch=32, stride=16)
    model = ElasticPiT(space).eval()
    assert model(torch.zeros(1, 1, 384, 384), space.smallest()).shape == (1, 10)


@pytest.mark.parametrize("name", sorted(SPACES))
def test_shrunk_spaces_are_small_and_tied(name):
    full, small = named_space(name), family("pit").shrink(named_space(name))
    assert small.keys == full.keys and small.multiples == full.multiples
    assert [d.scope for d in small.dims] == [d.scope for d in full.dims]
    count = Counter("pit", dict(small.settings))
    assert count.params(small.largest()) < 60_000
    rng = generator(0, "shrunk")
    assert len({small.sample(rng) for _ in range(20)}) > 5
    PIT.arch({"family": "pit", **PIT.tiny})
