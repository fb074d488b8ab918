"""Swin: counts to the last digit, timm's weights, per-head slices, and what is refused."""

from __future__ import annotations

import json

import pytest
import torch
from timm_tools import random_timm
from torch.utils.flop_counter import FlopCounterMode
from typer.testing import CliRunner

from tailorvit import cli
from tailorvit.costs import Counter
from tailorvit.errors import TailorError
from tailorvit.families.windows.plain import PlainWindowed
from tailorvit.families.windows.swin import ARCHS, SPACES, settle, stages_of, swin_arch, swin_settings
from tailorvit.families.windows.swin import FAMILY as SWIN
from tailorvit.rng import generator


def arch(third, embed, mlp=4):
    return swin_arch({"depth.3": third, "embed": embed, "mlp": mlp})


def both(found, **fixed):
    return Counter("swin", fixed).both(found)


# -- counts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("embed", "third", "mlp", "params", "macs"),
    [
        (72, 4, 3, 11514890, 1828240128),
        (72, 4, 3.5, 12563426, 1990810368),
        (84, 6, 3.5, 19560050, 3189013632),
        (96, 6, 4, 27669098, 4489952256),
        (96, 8, 4, 31222082, 5198337024),
    ],
)
def test_members_of_the_s4_space(embed, third, mlp, params, macs):
    found = arch(third, embed, mlp)
    assert both(found, **{**dict(SPACES["s4-swin"].settings), "classes": 200}) == (params, macs)
    assert SPACES["s4-swin"].contains(found)


@pytest.mark.parametrize(
    ("name", "params", "giga"),
    [("swin-t", 28288354, 4.491), ("swin-s", 49606258, 8.741), ("swin-b", 87768224, 15.431)],
)
def test_published_networks(name, params, giga):
    done = CliRunner().invoke(cli.app, ["cost", name, "--json"])
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert answer["params"] == params and round(answer["macs"] / 1e9, 3) == giga


def test_swin_t_for_other_classes():
    named = ARCHS["swin-t"]
    for classes, params in ((200, 27673154), (397, 27824647), (1000, 28288354)):
        assert both(named.arch, **{**named.settings, "classes": classes})[0] == params
    assert both(named.arch, **named.settings)[1] == 4490566656


@pytest.mark.parametrize(
    ("name", "count", "low", "high"), [("s4-swin", 27, 11.46, 31.15), ("s4-swin-table", 18, 12.51, 31.15)]
)
def test_spaces(name, count, low, high):
    space = SPACES[name]
    assert space.count() == count
    fixed = {**dict(space.settings), "classes": 100}
    assert [round(both(a, **fixed)[0] / 1e6, 2) for a in (space.smallest(), space.largest())] == [low, high]
    done = CliRunner().invoke(cli.app, ["space", name, "--json"])
    assert done.exit_code == 0 and json.loads(done.stdout)["count"] == count


@pytest.mark.parametrize(
    "fixed",
    [{"image_size": (9, 13), "window": 3}, {"image_size": (10, 14), "window": 4}, {"image_size": (7, 5), "window": 2}],
    ids=str,
)
def test_padding_is_counted(fixed):
    settings = {**dict(SPACES["swin-8px"].settings), **fixed}
    shared, found = swin_settings(settings), arch(3, 8, 2.5)
    with torch.device("meta"):
        model = SWIN.build(shared, found).eval()
        with FlopCounterMode(display=False) as flops:
            model(torch.empty(1, 1, *fixed["image_size"]))
    params = sum(p.numel() for p in model.parameters())
    assert both(found, **settings) == (params, flops.get_total_flops() / 2)


# -- weights ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", ["tiny", "small"])
@torch.no_grad()
def test_timm_weights_load_and_agree(size, monkeypatch):
    theirs = random_timm(f"swin_{size}_patch4_window7_224", monkeypatch)
    named = ARCHS[f"swin-{size[0]}"]
    ours = SWIN.build(swin_settings(named.settings), named.arch).eval()
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(1, 3, 224, 224)
    maps = ours.forward_intermediates(x, intermediates_only=True)
    for mine, other in zip(maps, theirs.forward_intermediates(x, intermediates_only=True), strict=True):
        torch.testing.assert_close(mine, other, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(ours.forward_head(ours.norm(maps[-1].permute(0, 2, 3, 1))), theirs(x), atol=1e-4, rtol=0)


@torch.no_grad()
def test_every_head_is_sliced_by_itself():
    """Narrowing must keep head j's first rows, not give its rows to head j - 1."""
    space = SPACES["swin-8px"]
    model = SWIN.supernet(space)
    narrow = SWIN.extract(model, arch(1, 6, 2)).layers[2].blocks[0].attn
    whole = model.layers[2].blocks[0].attn.qkv_weight  # (3, heads, head width, embed)
    qkv = narrow.qkv.weight.unflatten(0, (3, 4, 6))
    for head in range(4):
        torch.testing.assert_close(qkv[:, head], whole[:, head, :6, :24], atol=0, rtol=0)


@torch.no_grad()
def test_settings_make_the_same_network():
    model = SWIN.build(swin_settings(dict(SPACES["swin-8px"].settings)), arch(2, 8, 2)).eval()
    again = PlainWindowed.from_settings(json.loads(json.dumps(model.settings))).eval()
    again.load_state_dict(model.state_dict())
    x = torch.randn(2, 1, 8, 8)
    torch.testing.assert_close(again(x), model(x), atol=0, rtol=0)
    assert [f["reduction"] for f in model.feature_info] == [1, 2, 4, 8]
    assert [tuple(m.shape) for m in model.forward_intermediates(x, intermediates_only=True)] == [
        (2, 8, 8, 8),
        (2, 16, 4, 4),
        (2, 32, 2, 2),
        (2, 64, 1, 1),
    ]
    model.reset_classifier(3)
    assert model(x).shape == (2, 3) and model.num_classes == 3
    model.reset_classifier(0)
    assert model(x).shape == (2, 64)


# -- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fixed", "words"),
    [
        ({"image_size": (10, 9), "patch": 2}, r"multiples of the patch 2, not \[10, 9\]"),
        ({"image_size": 4}, "4x4 px with patch 1 leave 1x1 patches in stage 3.*at least 5 patches"),
        ({"image_size": (64, 8), "patch": 4}, "at least 5 patches a side"),
        ({"heads": (1, 2, 4)}, "'heads' must be 4 positive whole numbers, not"),
        ({"depths": (1, 0, 1)}, "'depths' must be 3 positive whole numbers"),
        ({"window": 0}, "'window' must be a positive whole number, not 0"),
        ({"patch": 1.5}, "'patch' must be a positive whole number, not 1.5"),
        ({"eps": 0}, "'eps' must be a small positive number"),
        ({"qkv_bias": 1}, "'qkv_bias' must be true or false"),
    ],
)
def test_refused_settings(fixed, words):
    with pytest.raises(TailorError, match=words):
        swin_settings({**dict(SPACES["swin-8px"].settings), **fixed})


@pytest.mark.parametrize(
    ("genes", "words"),
    [
        ({"embed": 8, "mlp": 2}, "needs one number for 'depth.3'"),
        ({"depth.3": 1, "embed": 8, "mlp": [2, 3]}, "needs one number for 'mlp'"),
        ({"depth.3": 1, "embed": 8, "mlp": 2, "heads": 3}, "no gene 'heads'"),
        ({"depth.3": 1.5, "embed": 8, "mlp": 2}, "whole positive"),
    ],
)
def test_refused_architectures(genes, words):
    with pytest.raises(TailorError, match=words):
        swin_arch(genes)


def test_heads_must_share_the_width():
    with pytest.raises(TailorError, match="Stage 1 of a swin is 97 wide, which 3 heads cannot share"):
        stages_of(swin_settings(ARCHS["swin-t"].settings), arch(6, 97))


def test_the_supernet_refuses_what_it_has_no_weights_for():
    model, x = SWIN.supernet(SPACES["swin-8px"]), torch.randn(1, 1, 8, 8)
    for found, gene in ((arch(4, 8, 2), "depth"), (arch(3, 12, 2), "embed"), (arch(3, 10, 4), "mlp")):
        with pytest.raises(TailorError, match=f"too small for the architecture: '{gene}' of stage"):
            model(x, found)


@pytest.mark.parametrize("size", [(8, 8), (28, 28), (32, 32), (64, 64), (224, 224), (384, 384), (48, 80), (9, 7)])
@pytest.mark.parametrize("params", [2e4, 2e6, 3e7])
def test_settings_suit_any_size_and_budget(size, params):
    fixed = {"image_size": size, "channels": 1, "classes": 10, **settle(size, params)}
    swin_settings(fixed)
    first = next(SWIN.auto(fixed))
    assert first.contains(first.sample(generator(0))) and both(first.smallest(), **fixed)[0] < params
    assert both(next(SWIN.baseline(fixed)), **fixed)[0] < params


def test_shrunk_spaces_keep_their_dimensions():
    small = SWIN.shrink(SPACES["s4-swin-table"])
    assert small.keys == SPACES["s4-swin"].keys and [len(d.choices) for d in small.dims] == [3, 2, 3]
    assert both(small.largest(), **dict(small.settings))[0] < 100_000
