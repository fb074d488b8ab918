"""S3's windowed family: counts to the last digit, timm's weights, windows of any size against a plain formula."""

from __future__ import annotations

import json

import pytest
import torch
from timm_tools import random_timm
from torch.utils.flop_counter import FlopCounterMode
from typer.testing import CliRunner

from tailorvit import cli
from tailorvit.costs import Counter, Limits, Meter
from tailorvit.errors import TailorError
from tailorvit.families.windows.elastic import windows_for
from tailorvit.families.windows.plain import Cut, WindowAttention, WindowSettings
from tailorvit.families.windows.windowed import ARCHS, SPACES, settle, stages_of, windowed_arch, windowed_settings
from tailorvit.families.windows.windowed import FAMILY as WINDOWED
from tailorvit.rng import generator
from tailorvit.seek.s3 import count_within

DIGITS = dict(SPACES["windowed-8px"].settings)


def both(found, **fixed):
    return Counter("windowed", fixed).both(found)


# -- counts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "params", "giga"),
    [("s3-t", 28328674, 4.623), ("s3-s", 49737298, 9.405), ("s3-b", 71125762, 13.655)],
)
def test_published_networks(name, params, giga):
    done = CliRunner().invoke(cli.app, ["cost", name, "--json"])
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert answer["params"] == params and round(answer["macs"] / 1e9, 3) == giga


def test_s3_s_to_the_last_digit_and_at_384():
    named = ARCHS["s3-s"]
    assert both(named.arch, **named.settings)[1] == 9404703744
    for name, giga in (("s3-s", 32.72), ("s3-b", 45.72)):  # windows grow with the image: 7 to 12, 14 to 24
        named = ARCHS[name]
        windows = {k: [12 if w == 7 else 24 for w in v] for k, v in named.arch.items() if k.startswith("window")}
        windows["window.4"] = [12, 12]
        macs = both(named.arch.replace(**windows), **{**named.settings, "image_size": (384, 384)})[1]
        assert round(macs / 1e9, 2) == giga


def test_a_greater_window_may_cost_less_and_the_ends_of_a_space_know_it():
    """A map of 28 positions is padded to 42 by windows of 21 and not at all by windows of 28."""
    space = SPACES["s3"].shift({"window.2": 2})
    assert space["window.2"].choices == (21, 28)
    meter = Meter.for_space(space)

    def with_window(arch, window):
        return arch.replace(**{"window.2": (window,) * len(arch.many("window.2"))})

    for top, end in ((True, space.largest()), (False, space.smallest())):
        each = {w: meter.counter.macs(with_window(end, w)) for w in (21, 28)}
        assert each[21] > each[28]
        found = meter.end("macs", space, top)
        assert found == with_window(end, 21 if top else 28) and space.contains(found)
        assert meter.end("params", space, top) == end, "bias tables grow with the window"
    between = (meter.counter.macs(with_window(space.smallest(), 21)) + meter.least("macs", space)) / 2
    tight = Meter.for_space(space, Limits.of(max_macs=between))
    tight.require_feasible(space)
    assert count_within(space, tight, 1) == 1
    most = Meter.for_space(space, Limits.of(max_macs=meter.most("macs", space) - 1))
    assert meter.counter.macs(space.largest()) < meter.most("macs", space) and not most.holds(space)


def test_the_papers_spaces_start_as_in_the_papers():
    """All networks of one of the papers' spaces start at 0.02; others by the inputs of each layer, without a step."""

    def spread(embed, **settings):
        genes = {"depth": 1, "embed": embed, "qkv": embed, "window": 7, "mlp": 3}
        made = WINDOWED.build(windowed_settings({**dict(SPACES["s3"].settings), **settings}), windowed_arch(genes))
        return float(made.layers[3].blocks[0].mlp.fc1.weight.detach().std())

    assert spread(224) == pytest.approx(0.02, rel=0.05) == spread(32)
    scaled = [spread(width, init="scaled") for width in (96, 128, 160, 192)]
    assert scaled == pytest.approx([0.5 * width**-0.5 for width in (96, 128, 160, 192)], rel=0.05)


def test_qkv_different_from_the_width():
    genes = {
        "depth": [2, 2, 6, 2],
        "embed": [96, 192, 384, 768],
        "qkv": [96, 160, 352, 704],
        "window": [7, 7, 14, 7],
        "mlp": [3, 3.5, 4, 4],
    }
    found, fixed = windowed_arch(genes), ARCHS["s3-t"].settings
    assert both(found, **fixed) == (27473878, 4314034944)
    with torch.device("meta"):
        model = WINDOWED.build(windowed_settings(fixed), found).eval()
        with FlopCounterMode(display=False) as flops:
            model(torch.empty(1, 3, 224, 224))
    assert (sum(p.numel() for p in model.parameters()), flops.get_total_flops() / 2) == (27473878, 4314034944)
    assert [b.attn.heads for layer in model.layers for b in layer.blocks] == [3] * 2 + [5] * 2 + [11] * 6 + [22] * 2


def test_the_initial_space():
    space = SPACES["s3"]
    fixed = {**dict(space.settings), "classes": 1000}
    assert len(space.dims) == 20 and space.count() == 333396**4 and f"{space.count():.3e}" == "1.235e+22"
    assert both(space.smallest(), **fixed) == (4889408, 4602987648)
    assert both(space.largest(), **fixed) == (17376472, 18831453696)
    done = CliRunner().invoke(cli.app, ["space", "s3", "--json"])
    assert done.exit_code == 0 and int(json.loads(done.stdout)["count"]) == space.count()


def test_steps_of_the_space():
    space = SPACES["s3"]
    moved = space.shift(
        {"embed.1": -2, "embed.4": 3, "window.1": -1, "window.3": 1, "mlp.2": -1, "qkv.4": 3, "depth.3": 2}
    )
    assert moved["embed.1"].choices == (96, 128, 160) and moved["embed.4"].choices == (416, 448, 480)
    assert moved["window.1"].choices == (7,) and moved["window.3"].choices == (14, 21)
    assert moved["mlp.2"].choices == (2.5, 3, 3.5) and moved["qkv.4"].choices == (416, 448, 480)
    assert moved["depth.3"].choices == (4, 5, 6)
    fixed = dict(space.settings)
    for found in [moved.largest(), *(moved.sample(generator(0, i)) for i in range(3))]:
        assert both(found, **fixed)[0] == sum(  # a window of 21 does not divide any map
            p.numel() for p in _meta(found, fixed).parameters()
        )


def _meta(found, fixed):
    with torch.device("meta"):
        return WINDOWED.build(windowed_settings(fixed), found)


@pytest.mark.parametrize("size", [(8, 8), (9, 13), (11, 6), (20, 12)], ids=str)
def test_padding_is_counted(size):
    space, fixed = SPACES["windowed-8px"], {**DIGITS, "image_size": size}
    for i, windows in enumerate(([3, 3, 2, 2], [5, 4, 3, 1], [14, 14, 14, 14])):
        found = space.sample(generator(i))
        found = found.replace(
            **{f"window.{s + 1}": [w] * len(found.many(f"mlp.{s + 1}")) for s, w in enumerate(windows)}
        )
        model = _meta(found, fixed).eval()
        with torch.device("meta"), FlopCounterMode(display=False) as flops:
            model(torch.empty(1, 1, *size))
        assert both(found, **fixed) == (sum(p.numel() for p in model.parameters()), flops.get_total_flops() / 2)


# -- windows ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("odd", [False, True], ids=["even", "odd"])
@pytest.mark.parametrize(
    ("sides", "window"), [((8, 8), 4), ((5, 7), 3), ((7, 7), 14), ((6, 2), 3), ((9, 4), 2), ((3, 3), 1)]
)
@torch.no_grad()
def test_attention_equals_the_plain_formula(sides, window, odd):
    """Positions see those of the same piece of the (shifted) lattice, with a bias by offset; no roll, no padding."""
    torch.manual_seed(0)
    cut = Cut.of(sides, window, odd)
    attn = WindowAttention(WindowSettings(), cut, 12, 2, 4)
    for p in attn.parameters():
        p.copy_(torch.randn_like(p))
    x = torch.randn(2, *sides, 12)
    (high, wide), (down, across) = sides, cut.window
    assert (down, across) == (min(window, high), min(window, wide))
    step = tuple(w // 2 if odd and w < s else 0 for w, s in zip(cut.window, sides))
    assert cut.shift == step
    q, k, v = attn.qkv(x.flatten(1, 2)).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
    logits = q @ k.transpose(-1, -2) / 2
    cells = [(r, c) for r in range(high) for c in range(wide)]
    piece = {(r, c): ((r - step[0]) // down, (c - step[1]) // across) for r, c in cells}
    for i, (r, c) in enumerate(cells):
        for j, (other_r, other_c) in enumerate(cells):
            if piece[r, c] != piece[other_r, other_c]:
                logits[:, :, i, j] = float("-inf")
            elif attn.relative_position_bias_table is not None:
                row = (r - other_r + down - 1) * (2 * across - 1) + c - other_c + across - 1
                logits[:, :, i, j] += attn.relative_position_bias_table[row]
    weights = logits.softmax(-1)
    expected = attn.proj((weights @ v).transpose(1, 2).flatten(2)).view(x.shape)
    torch.testing.assert_close(attn(x), expected, atol=1e-5, rtol=1e-5)
    found, places = attn.weights(x), cut.places().tolist()
    for w, group in enumerate(places):
        for a, (r, c) in enumerate(group):
            for b, (other_r, other_c) in enumerate(group):
                if max(r, other_r) < high and max(c, other_c) < wide:
                    i, j = r * wide + c, other_r * wide + other_c
                    torch.testing.assert_close(found[:, w, :, a, b], weights[:, :, i, j], atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_a_smaller_window_uses_the_centre_of_the_table():
    space = SPACES["windowed-8px"]
    model = WINDOWED.supernet(space)
    largest = space.largest()
    small = largest.replace(**{"window.1": [2] * len(largest.many("mlp.1"))})
    tables = [
        WINDOWED.extract(model, a).layers[0].blocks[0].attn.relative_position_bias_table.unflatten(0, (n, n))
        for a, n in ((largest, 7), (small, 3))
    ]
    torch.testing.assert_close(tables[1], tables[0][2:5, 2:5], atol=0, rtol=0)


@torch.no_grad()
def test_a_narrower_stage_merges_the_first_channels_of_each_quarter():
    space = SPACES["windowed-8px"]
    model = WINDOWED.supernet(space)
    largest = space.largest()
    wide, narrow = (
        WINDOWED.extract(model, a).layers[1].downsample for a in (largest, largest.replace(**{"embed.1": 8}))
    )
    quarter = wide.reduction.weight.unflatten(1, (4, 16))
    torch.testing.assert_close(narrow.reduction.weight.unflatten(1, (4, 8)), quarter[:, :, :8], atol=0, rtol=0)


@pytest.mark.parametrize(
    ("side", "windows"),
    [
        (56, (7, 14)),
        (28, (7, 14)),
        (14, (7, 14)),
        (7, (7,)),
        (96, (6, 12)),
        (8, (4, 8)),
        (2, (2,)),
        (1, (1,)),
        (17, (7, 14)),
        (13, (13,)),
    ],
)
def test_windows_that_divide_a_map(side, windows):
    assert windows_for((side, side)) == windows


# -- weights ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", ["tiny", "small", "base"])
@torch.no_grad()
def test_timm_weights_load_and_agree(size, monkeypatch):
    theirs = random_timm(f"swin_s3_{size}_224", monkeypatch)
    named = ARCHS[f"s3-{size[0]}"]
    ours = WINDOWED.build(windowed_settings(named.settings), named.arch).eval()
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(1, 3, 224, 224)
    torch.testing.assert_close(ours(x), theirs(x), atol=1e-4, rtol=0)


# -- settings ---------------------------------------------------------------------------------------------------------


def test_architectures_written_by_hand():
    found = windowed_arch({"depth": 2, "embed": [8, 8, 8, 8], "qkv": 8, "mlp": 2, "window": 4, "mlp.3": [2, 3]})
    assert found["mlp.3"] == (2, 3) and found["window.4"] == (4, 4) and found["depth.1"] == 2
    assert WINDOWED.arch({"family": "windowed", **dict(found.items())}) == found
    tiny = WINDOWED.arch(WINDOWED.tiny)
    assert WINDOWED.build(windowed_settings(DIGITS), tiny)(torch.randn(1, 1, 8, 8)).shape == (1, 10)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"heads": 3}, "no gene 'heads'"),
        ({"embed": None}, "needs 'embed.1', or 'embed' for all stages"),
        ({"mlp.2": [2, 3, 4]}, "Stage 2 has 2 blocks, but 'mlp.2' has 3 values"),
        ({"embed": [8, 8]}, "'embed' of a windowed architecture needs one value per stage, not 2"),
        ({"depth.4": 0}, "Stage 4 .* at least one whole block, not 0"),
        ({"window.1": 2.5}, "'window.1' of a windowed architecture must be positive"),
    ],
)
def test_refused_architectures(change, words):
    with pytest.raises(TailorError, match=words):
        windowed_arch({"depth": 2, "embed": 8, "qkv": 8, "mlp": 2, "window": 4, **change})


def test_refused_settings():
    with pytest.raises(TailorError, match="Q-K-V width of 12 is not a whole number of heads 8 wide"):
        stages_of(windowed_settings(DIGITS), windowed_arch({"depth": 1, "embed": 8, "qkv": 12, "mlp": 2, "window": 4}))
    with pytest.raises(TailorError, match="4x4 px with patch 1 leave 1x1 patches in stage 3"):
        windowed_settings({**DIGITS, "image_size": 4})
    with pytest.raises(TailorError, match="'head_dim' must be a positive whole number, not 0"):
        windowed_settings({**DIGITS, "head_dim": 0})


def test_the_supernet_refuses_what_it_has_no_weights_for():
    space = SPACES["windowed-8px"]
    model, x, largest = WINDOWED.supernet(space), torch.randn(1, 1, 8, 8), space.largest()
    clipped = largest.replace(**{"window.3": [14] * len(largest.many("mlp.3"))})
    torch.testing.assert_close(model(x, clipped), model(x), atol=0, rtol=0)
    with pytest.raises(TailorError, match="'window' of stage 1 needs 8 of 4"):
        model(x, largest.replace(**{"window.1": [8, 8]}))


@pytest.mark.parametrize("size", [(8, 8), (28, 28), (32, 32), (64, 64), (224, 224), (384, 384), (48, 80), (9, 7)])
@pytest.mark.parametrize("params", [2e4, 2e6, 3e7])
def test_settings_suit_any_size_and_budget(size, params):
    fixed = {"image_size": size, "channels": 1, "classes": 10, **settle(size, params)}
    first = next(WINDOWED.auto(fixed))
    assert first.contains(first.sample(generator(0))) and both(first.smallest(), **fixed)[0] < params
    assert both(next(WINDOWED.baseline(fixed)), **fixed)[0] < params
    for space, _ in zip(WINDOWED.auto(fixed), range(60)):
        both(space.sample(generator(1)), **fixed)


def test_shrunk_spaces_keep_their_dimensions():
    small = WINDOWED.shrink(SPACES["s3"])
    assert small.keys == SPACES["s3"].keys and both(small.largest(), **dict(small.settings))[0] < 60_000
    windowed_settings(dict(small.settings))
