"""The Shunted family: the specification's counts, a slow second implementation, and batch statistics that travel."""

from __future__ import annotations

import json
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode
from typer.testing import CliRunner

from tailorvit.cli import app
from tailorvit.costs import Counter
from tailorvit.errors import TailorError
from tailorvit.families import FAMILIES, named_arch, named_space, with_settings
from tailorvit.families.shunted.plain import PlainShunted
from tailorvit.families.shunted.spaces import settle, shunted_arch
from tailorvit.rng import generator

SHUNTED = FAMILIES["shunted"]
SMALL = named_space("shunted-8px")


def told(*words):
    """What the program prints as JSON."""
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


# -- counts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "params", "macs", "blocks"),
    [
        ("shunted-t", 11_553_576, 2_146_691_616, [1, 2, 4, 1]),
        ("shunted-s", 22_401_256, 4_993_077_312, [2, 4, 12, 1]),
        ("shunted-b", 39_614_376, 8_149_770_208, [3, 4, 24, 2]),
    ],
)
def test_published_networks(name, params, macs, blocks):
    facts = told("cost", name)
    assert (facts["params"], facts["macs"]) == (params, macs)
    named = named_arch(name)
    rows = SHUNTED.outline(SHUNTED.settings(named.settings), named.arch)
    assert [sum(r["stage"] == s for r in rows) for s in (1, 2, 3, 4)] == blocks
    assert [r["mlp"] for r in rows if r["block"] == 1] == [8, 8, 4, 4]
    with torch.device("meta"), FlopCounterMode(display=False) as flops:
        plain = SHUNTED.build(SHUNTED.settings(named.settings), named.arch).eval()
        plain(torch.empty(1, 3, 224, 224))
    assert sum(p.numel() for p in plain.parameters()) == params and flops.get_total_flops() == 2 * macs


@pytest.mark.parametrize(("classes", "params"), [(200, 21_990_856), (397, 22_091_917)])
def test_shunted_s_with_other_heads(classes, params):
    assert told("cost", "shunted-s", "--classes", str(classes))["params"] == params


@pytest.mark.parametrize(
    ("shape", "params", "macs"),
    [
        ((36, 3, 6), 5_159_988, 1_636_872_024),
        ((48, 3, 7), 9_613_944, 2_511_697_632),
        ((60, 4, 8), 19_359_348, 4_486_665_948),
        ((60, 5, 7), 21_653_028, 4_885_562_208),
        ((72, 3, 7), 21_375_216, 4_701_177_552),
    ],
)
def test_members_of_s4s_space(shape, params, macs):
    space = named_space("s4-shunted", classes=200)
    assert Counter("shunted", dict(space.settings)).both(shunted_arch(*shape)) == (params, macs)


@pytest.mark.parametrize(
    ("name", "low", "high", "legal"),
    [
        ("s4-shunted", 5.13, 19.31, 16),
        ("s4-shunted-four", 5.69, 19.31, 14),
        ("s4-shunted-same", 6.80, 26.83, None),
    ],
)
def test_ranges_and_legal_neighbours(name, low, high, legal):
    space = named_space(name, classes=100)
    count = Counter("shunted", dict(space.settings))
    assert space.keys == ("depth", "mlp", "embed")
    assert space.count() == 18 and told("space", name)["count"] == 18
    assert round(count.params(space.smallest()) / 1e6, 2) == low
    assert round(count.params(space.largest()) / 1e6, 2) == high
    for classes in (10, 200, 397) if legal else ():
        count = Counter("shunted", {**dict(space.settings), "classes": classes})
        moves = [dict(zip(space.keys, m, strict=True)) for m in product((-1, 0, 1), repeat=3) if any(m)]
        assert sum(count.params(space.shift(m).largest()) <= 22e6 for m in moves) == legal


# -- shapes -----------------------------------------------------------------------------------------------------------

VARIANTS = {
    "non-square": {"image_size": (8, 12)},
    "odd sides": {"image_size": (7, 9)},
    "padded keys": {"image_size": (10, 11), "strides": (2, 1, 1)},
    "one row": {"image_size": (1, 8)},
    "smaller than a key": {"image_size": (6, 6), "reduce": (8, 8, 8, 8)},
    "the paper's stem": {"image_size": (32, 32), "stem_convs": 2, "stem_strides": (2, 2), "stem_kernel": 7},
    "ratios four": {"ratios": "four"},
    "ratios same": {"ratios": "same"},
    "heads": {"heads": (2, 4, 1, 8)},
    "the paper's stages": {"depth_base": (2, 0, 0, 1), "depth_growth": (0, 1, 3, 0)},
}


def noisy(space, drop_path=0.0):
    """A supernet at whose weights and statistics every part matters."""
    torch.manual_seed(0)
    model = SHUNTED.supernet(space, drop_path)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
        for norm in (m for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d)):
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)
    return model.eval()


def pictures(space, n=2):
    shared = SHUNTED.settings(dict(space.settings))
    return torch.randn(n, shared.channels, *shared.image_size, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("settings", VARIANTS.values(), ids=list(VARIANTS))
@torch.no_grad()
def test_variants_agree_and_are_counted(settings):
    space = with_settings(SMALL, **settings)
    model, x, rng = noisy(space), pictures(space), generator(0, "variants")
    count = Counter("shunted", dict(space.settings))
    for arch in [space.smallest(), space.largest(), space.sample(rng)]:
        plain = SHUNTED.extract(model, arch).eval()
        torch.testing.assert_close(plain(x), model(x, arch), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(slow(plain, x), plain(x), atol=1e-4, rtol=1e-4)
        assert sum(p.numel() for p in plain.parameters()) == count.params(arch)
        with torch.device("meta"), FlopCounterMode(display=False) as flops:
            SHUNTED.build(count.shared, arch).eval()(torch.empty(1, *x.shape[1:]))
        assert flops.get_total_flops() / 2 == count.macs(arch)


def slow(net, x):
    """The formulas once more, convolutions as sums over shifted pictures and attention query by query."""
    state, shared, depth = net.state_dict(), net.shared, net.shape["depth"]

    def conv(x, name, stride=1, pad=0, depthwise=False):
        weight, side = state[f"{name}.weight"], state[f"{name}.weight"].shape[-1]
        x = F.pad(x, (pad, pad, pad, pad))
        rows, columns = (x.shape[-2] - side) // stride + 1, (x.shape[-1] - side) // stride + 1
        out = 0
        for i, j in product(range(side), range(side)):
            part = x[:, :, i : i + stride * rows : stride, j : j + stride * columns : stride]
            part = part[:, :, :rows, :columns]
            tap = weight[:, :, i, j]
            out = out + (part * tap[:, 0, None, None] if depthwise else torch.einsum("bchw,oc->bohw", part, tap))
        return out + state[f"{name}.bias"][:, None, None] if f"{name}.bias" in state else out

    def linear(x, name):
        return x @ state[f"{name}.weight"].T + state[f"{name}.bias"]

    def norm(x, name):
        x = x - x.mean(-1, keepdim=True)
        x = x / (x.square().mean(-1, keepdim=True) + shared.eps).sqrt()
        return x * state[f"{name}.weight"] + state[f"{name}.bias"]

    def tokens(x):
        return x.permute(0, 2, 3, 1).flatten(1, 2)

    def picture(x, rows, columns):
        return x.view(x.shape[0], rows, columns, -1).permute(0, 3, 1, 2)

    def attend(x, at, rows, columns, heads, k):
        b, n, d = x.shape
        q, dim, outs = linear(x, f"{at}.q"), d // heads, []
        for number, cell in enumerate((None,) if k == 1 else (k, k // 2)):
            name, share = f"{at}.sets.{number}", heads if cell is None else heads // 2
            seen, high, wide = x, rows, columns
            if cell is not None:
                whole = F.pad(picture(x, rows, columns), (0, -columns % cell, 0, -rows % cell))
                small = conv(whole, f"{name}.sr", cell)
                high, wide = small.shape[-2:]
                seen = F.gelu(norm(tokens(small), f"{name}.norm"))
            kv = linear(seen, f"{name}.kv")
            key, value = kv[..., : share * dim], kv[..., share * dim :]
            near = tokens(conv(picture(value, high, wide), f"{name}.local", 1, 1, True))
            value = value if cell is None else value + near
            for h in range(share):
                mine = slice(h * dim, (h + 1) * dim)
                start = (h + number * share) * dim
                out = x.new_empty(b, n, dim)
                for i in range(n):
                    logits = (key[..., mine] * q[:, i, None, start : start + dim]).sum(-1) / dim**0.5
                    weights = logits.exp() / logits.exp().sum(-1, keepdim=True)
                    out[:, i] = (weights[..., None] * value[..., mine]).sum(1)
                outs.append(out + near[..., mine] if cell is None else out)
        return linear(torch.cat(outs, -1), f"{at}.proj")

    for i in range(1 + shared.stem_convs):
        kernel = shared.stem_kernel if i == 0 else 3
        x = conv(x, f"patch_embed.convs.{i}", 1 if i else shared.stem_strides[0], kernel // 2)
        at = f"patch_embed.norms.{i}"
        mean, var, weight, bias = (
            state[f"{at}.{n}"][:, None, None] for n in ("running_mean", "running_var", "weight", "bias")
        )
        x = ((x - mean) / (var + 1e-5).sqrt() * weight + bias).clamp_min(0)
    x = conv(x, "patch_embed.proj", shared.stem_strides[1])
    rows, columns = x.shape[-2:]
    x = norm(tokens(x), "patch_embed.norm")
    for s in range(4):
        if s:
            x = conv(picture(x, rows, columns), f"stages.{s}.downsample.proj", shared.strides[s - 1], 1)
            rows, columns = x.shape[-2:]
            x = norm(tokens(x), f"stages.{s}.downsample.norm")
        k = shared.reduce[s]
        while k > min(rows, columns):
            k //= 2
        for i in range(shared.depth_base[s] + shared.depth_growth[s] * depth):
            at = f"stages.{s}.blocks.{i}"
            x = x + attend(norm(x, f"{at}.norm1"), f"{at}.attn", rows, columns, shared.heads[s], k)
            h = linear(norm(x, f"{at}.norm2"), f"{at}.mlp.fc1")
            h = F.gelu(h + tokens(conv(picture(h, rows, columns), f"{at}.mlp.dwconv", 1, 1, True)))
            x = x + linear(h, f"{at}.mlp.fc2")
        x = norm(x, f"stages.{s}.norm")
    return linear(x.mean(1), "head")


@torch.no_grad()
def test_heads_stay_aligned():
    """Head j of a narrow member uses rows of head j: changing the last head's leaves the others' queries alone."""
    model = noisy(SMALL)
    arch = SMALL.smallest()
    before = SHUNTED.extract(model, arch).state_dict()["stages.2.blocks.0.attn.q.weight"].clone()
    model.stages[2].blocks[0].attn.q.weight[-1].add_(1.0)
    after = SHUNTED.extract(model, arch).state_dict()["stages.2.blocks.0.attn.q.weight"]
    changed = (after != before).any(1).view(model.shared.heads[2], -1)
    assert changed[-1].all() and not changed[:-1].any()


@torch.no_grad()
def test_attention_reproduces_the_output():
    model, x = noisy(SMALL), pictures(SMALL)
    plain, caught = SHUNTED.extract(model, SMALL.largest()).eval(), []
    blocks = [b for stage in plain.stages for b in stage.blocks]
    hooks = [b.attn.register_forward_hook(lambda _, args, out: caught.append((*args, out))) for b in blocks]
    plain(x)
    for hook in hooks:
        hook.remove()
    found = iter(list(SHUNTED.attention(plain, x)))
    for block, (inputs, grid, output) in zip(blocks, caught, strict=True):
        mixed = []
        for keys in block.attn.sets:
            maps, (_, value, near) = next(found), keys(inputs, grid)
            weights = maps.weights()[:, 0]
            mixed.append(weights @ value + near if keys.cell is None else weights @ (value + near))
            cell = keys.cell or 1
            assert maps.cover == (cell, cell) and maps.heads == keys.heads
            assert maps.keys[0, 0].tolist() == [(cell - 1) / 2] * 2
        torch.testing.assert_close(block.attn.proj(torch.cat(mixed, 1).transpose(1, 2).flatten(2)), output)
    assert next(found, None) is None


@torch.no_grad()
def test_plain_network_as_timm_uses_it():
    plain = SHUNTED.build(SHUNTED.settings(dict(SMALL.settings)), SMALL.largest()).eval()
    x = pictures(SMALL)
    again = PlainShunted.from_settings(json.loads(json.dumps(plain.settings)))
    again.load_state_dict(plain.state_dict())
    torch.testing.assert_close(again.eval()(x), plain(x), atol=0, rtol=0)
    last, maps = plain.forward_intermediates(x)
    assert [tuple(m.shape[1:]) for m in maps] == [(8, 8, 8), (16, 4, 4), (32, 2, 2), (64, 2, 2)]
    assert [r["num_chs"] for r in plain.feature_info] == [8, 16, 32, 64]
    assert [r["reduction"] for r in plain.feature_info] == [1, 2, 4, 4]
    torch.testing.assert_close(plain.forward_head(last), plain(x))
    (only,) = plain.forward_intermediates(x, 1, output_fmt="NLC", intermediates_only=True)
    torch.testing.assert_close(only, last)
    plain.reset_classifier(3)
    assert plain(x).shape == (2, 3) and plain.num_classes == 3
    with pytest.raises(ValueError, match="'avg', not 'token'"):
        plain.reset_classifier(3, "token")


# -- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "size", [(8, 8), (9, 7), (12, 8), (28, 28), (32, 32), (64, 48), (130, 129), (224, 224), (384, 256)]
)
@pytest.mark.parametrize("params", [2e4, 1e6, 3e7])
def test_settled_settings_are_accepted(size, params):
    settings = {"image_size": size, "channels": 3, "classes": 10, **settle(size, params)}
    shared = SHUNTED.settings(settings)
    assert min(min(g) for g in shared.grids) >= 2 and shared.reductions == shared.reduce
    first = next(SHUNTED.auto(settings))
    assert Counter("shunted", settings).params(first.smallest()) < params
    if min(size) >= 224 and params > 3e6:
        ours = with_settings(named_space("s4-shunted"), image_size=size)
        assert shared == SHUNTED.settings({**dict(ours.settings), "classes": 10, "init": "scaled"})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"image_size": (226, 224)}, "multiples of 4, not \\[226, 224\\]"),
        ({"reduce": (6, 4, 2, 1)}, "powers of two, not \\[6, 4, 2, 1\\]"),
        ({"heads": (2, 4, 8)}, "'heads' must be 4 whole numbers"),
        ({"heads": (3, 4, 8, 16)}, "must be even where keys are reduced, not 3 at a reduction of 8"),
        ({"stem_kernel": 4}, "must be odd, not 4"),
        ({"depth_growth": (0, 0, 3, 0)}, "Every shunted stage needs a block"),
        ({"ratios": "third"}, "half or four or same, not 'third'"),
        ({"stem": 0}, "'stem' must be a positive whole number, not 0"),
        ({"eps": 0.0}, "'eps' must be a small positive number"),
    ],
)
def test_refused_settings(settings, words):
    with pytest.raises(TailorError, match=words):
        with_settings(named_space("s4-shunted"), **settings)


def test_refused_architectures():
    with pytest.raises(TailorError, match="no gene 'heads'"):
        SHUNTED.arch({"embed": 8, "depth": 1, "mlp": 2, "heads": 3})
    with pytest.raises(TailorError, match="one number for 'mlp'"):
        SHUNTED.arch({"embed": 8, "depth": 1, "mlp": [2, 3]})
    with pytest.raises(TailorError, match="whole positive depth"):
        SHUNTED.arch({"embed": 8, "depth": 1.5, "mlp": 2})
    with pytest.raises(TailorError, match="embed of 37 gives stage 1 37 channels: not whole 2 heads"):
        SHUNTED.build(SHUNTED.settings({}), shunted_arch(37, 3, 6))
    model = SHUNTED.supernet(SMALL)
    with pytest.raises(TailorError, match="too small for the architecture: 'mlp'"):
        model(pictures(SMALL), shunted_arch(8, 1, 5))
