"""The hybrid family: a slow second implementation, counts by hand, settings that suit a size, batch statistics."""

from __future__ import annotations

import json
import math
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import tailorvit
from tailorvit.costs import Counter
from tailorvit.data import Batch
from tailorvit.elastic.weights import BatchNorm
from tailorvit.errors import TailorError
from tailorvit.families import FAMILIES, named_space, with_settings
from tailorvit.families.hybrid.plain import PlainHybrid
from tailorvit.families.hybrid.spaces import STEMS, hybrid_arch, settle
from tailorvit.methods import finish
from tailorvit.methods.stages import StageSink
from tailorvit.rng import generator, seed_everything
from tailorvit.train import RULES, Evaluator, Sink, TrainSettings, accuracy, train
from tailorvit.train.loop import inherit
from tailorvit.train.statistics import measured, shared_statistics

HYBRID = FAMILIES["hybrid"]
SMALL = named_space("hybrid-8px")


def pictures(space, n=2):
    shared = HYBRID.settings(dict(space.settings))
    return torch.randn(n, shared.channels, *shared.image_size, generator=torch.Generator().manual_seed(1))


def noisy(space):
    """A supernet at whose weights and statistics every part matters."""
    torch.manual_seed(0)
    model = HYBRID.supernet(space)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
        for norm in (m for m in model.modules() if isinstance(m, BatchNorm | nn.BatchNorm2d)):
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)
    return model.eval()


# -- the same network, slowly -----------------------------------------------------------------------------------------


def slow(net, x):
    """The formulas once more: convolutions as sums over shifted pictures, attention query by query."""
    state, shared, shape = net.state_dict(), net.shared, net.shape

    def conv(x, name, stride=1):
        weight = state[f"{name}.weight"]
        side, alone = weight.shape[-1], weight.shape[1] == 1 and x.shape[1] == weight.shape[0]
        x = F.pad(x, (side // 2,) * 4)
        rows, columns = (x.shape[-2] - side) // stride + 1, (x.shape[-1] - side) // stride + 1
        out = 0
        for i, j in product(range(side), range(side)):
            part = x[:, :, i : i + stride * (rows - 1) + 1 : stride, j : j + stride * (columns - 1) + 1 : stride]
            tap = weight[:, :, i, j]
            out = out + (part * tap[:, 0, None, None] if alone else torch.einsum("bchw,oc->bohw", part, tap))
        return out

    def norm(x, name):
        names = ("running_mean", "running_var", "weight", "bias")
        mean, var, weight, bias = (state[f"{name}.{n}"][:, None, None] for n in names)
        return (x - mean) / (var + shared.eps).sqrt() * weight + bias

    def gelu(x):
        return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))

    def attend(x, at, embed):
        b, _, rows, columns = x.shape
        dim = shared.head_dim
        heads = max(1, embed // dim)
        tokens = norm(x, f"{at}.norm").permute(0, 2, 3, 1).reshape(b, rows * columns, embed)
        qkv = tokens @ state[f"{at}.qkv.weight"].T + state[f"{at}.qkv.bias"]
        mixed = torch.zeros(b, rows * columns, heads * dim)
        for h, i in product(range(heads), range(rows * columns)):
            q, k, v = (slice((part * heads + h) * dim, (part * heads + h + 1) * dim) for part in range(3))
            logits = (qkv[:, :, k] * qkv[:, i, None, q]).sum(-1) / dim**0.5
            share = (logits - logits.amax(-1, keepdim=True)).exp()
            share = share / share.sum(-1, keepdim=True)
            mixed[:, i, h * dim : (h + 1) * dim] = (share[..., None] * qkv[:, :, v]).sum(1)
        out = mixed @ state[f"{at}.proj.weight"].T + state[f"{at}.proj.bias"]
        return out.reshape(b, rows, columns, embed).permute(0, 3, 1, 2)

    for i, stride in enumerate((shared.stem_stride, 1)):
        x = gelu(norm(conv(x, f"patch_embed.convs.{i}", stride), f"patch_embed.norms.{i}"))
    for s in range(4):
        x = conv(x, f"stages.{s}.downsample.proj", shared.strides[s])
        x = norm(x, f"stages.{s}.downsample.norm")
        for i in range(shape["depth"][s]):
            at = f"stages.{s}.blocks.{i}"
            if s >= 4 - shared.attention:
                x = x + attend(x, f"{at}.attn", shape["embed"][s])
            h = gelu(norm(conv(x, f"{at}.mlp.fc1"), f"{at}.mlp.norm1"))
            h = gelu(norm(conv(h, f"{at}.mlp.dwconv"), f"{at}.mlp.norm2"))
            x = x + norm(conv(h, f"{at}.mlp.fc2"), f"{at}.mlp.norm3")
    return norm(x, "norm").mean((2, 3)) @ state["head.weight"].T + state["head.bias"]


VARIANTS = {
    "as it is": {},
    "non-square": {"image_size": (8, 12)},
    "odd sides": {"image_size": (7, 9)},
    "one row": {"image_size": (1, 8)},
    "one stage attends": {"attention": 1},
    "all stages attend": {"attention": 4},
    "strided stem": {"image_size": (16, 16), "stem_stride": 2, "channels": 3},
    "maps of one pixel": {"strides": (2, 2, 2, 2)},
    "a head wider than its stage": {"head_dim": 40},
    "heads that leave channels over": {"head_dim": 5, "eps": 0.1},
}


@pytest.mark.parametrize("settings", VARIANTS.values(), ids=list(VARIANTS))
@torch.no_grad()
def test_variants_agree_and_are_counted(settings):
    space = with_settings(SMALL, **settings)
    model, x, rng = noisy(space), pictures(space), generator(0, "variants")
    count = Counter("hybrid", dict(space.settings))
    for arch in [space.smallest(), space.largest(), space.sample(rng)]:
        plain = HYBRID.extract(model, arch).eval()
        torch.testing.assert_close(plain(x), model(x, arch), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(slow(plain, x), plain(x), atol=1e-4, rtol=1e-4)
        assert sum(p.numel() for p in plain.parameters()) == count.params(arch)


# -- counts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "arch", "params", "macs", "heads"),
    [
        (  # the hand-designed network of at most 1.5M parameters for CIFAR-10
            {"image_size": (32, 32), "classes": 10, "stem_stride": 1},
            {"depth": [2, 2, 3, 1], "embed": [48, 72, 120, 192], "mlp": 4},
            1_450_762,
            38_947_200,
            [None, None, 7, 12],
        ),
        (
            {"stem": 48, "head_dim": 32, "attention": 1},
            {"depth": [2, 3, 5, 2], "embed": [64, 96, 160, 256], "mlp": 3.5},
            3_544_536,
            1_057_611_712,
            [None, None, None, 8],
        ),
    ],
    ids=["32 px", "224 px"],
)
def test_counts_of_two_networks(settings, arch, params, macs, heads):
    """Summed by hand, layer by layer, and by torch on the meta device: on a CPU fused attention counts as nothing."""
    shared, found = HYBRID.settings(settings), HYBRID.arch(arch)
    assert Counter("hybrid", settings).both(found) == (params, macs)
    rows = HYBRID.outline(shared, found)
    assert [r.get("heads") for r in rows if r["block"] == 1] == heads and len(rows) == sum(arch["depth"])
    with torch.device("meta"), FlopCounterMode(display=False) as flops:
        plain = HYBRID.build(shared, found).eval()
        plain(torch.empty(1, 3, *shared.image_size))
    assert sum(p.numel() for p in plain.parameters()) == params and flops.get_total_flops() == 2 * macs


def test_the_named_space():
    count = Counter("hybrid", dict(SMALL.settings))
    assert SMALL.count() == 1152
    assert (count.params(SMALL.smallest()), count.params(SMALL.largest())) == (17_130, 65_450)


# -- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("side", "stem_stride", "strides", "maps"),
    [
        (8, 1, (2, 2, 1, 1), (4, 2, 2, 2)),
        (28, 1, (2, 2, 2, 2), (14, 7, 4, 2)),
        (32, 1, (2, 2, 2, 2), (16, 8, 4, 2)),
        (64, 2, (2, 2, 2, 2), (16, 8, 4, 2)),
        (96, 2, (2, 2, 2, 2), (24, 12, 6, 3)),
        (224, 2, (2, 2, 2, 2), (56, 28, 14, 7)),
    ],
)
def test_what_suits_a_size(side, stem_stride, strides, maps):
    found = settle((side, side), 1.5e6)
    shape = {"stem_stride": stem_stride, "strides": strides}
    assert found == {"stem": 24, "head_dim": 16, "attention": 2, **shape}
    shared = HYBRID.settings({"image_size": (side, side), **found})
    assert shared.grids == tuple((m, m) for m in maps)
    assert settle((2 * side, side), 1.5e6) == found, "the shorter side decides"
    for name, other in STEMS.items():
        also = HYBRID.settings({"image_size": (side, side), **other((side, side), 1.5e6)})
        first = {"late": maps[0], "fine": 2 * maps[0], "coarse": -(-maps[0] // 2) if side < 48 else maps[0]}[name]
        assert also.grids[0] == (first, first) and min(min(g) for g in also.grids) >= 2
        assert also.attention == (1 if name == "late" else 2)


@pytest.mark.parametrize(
    ("params", "stem", "head_dim"), [(5e4, 8, 8), (2e5, 16, 8), (1e6, 24, 16), (5e6, 32, 16), (2e7, 48, 32)]
)
def test_what_suits_a_budget(params, stem, head_dim):
    found = settle((64, 64), params)
    assert (found["stem"], found["head_dim"]) == (stem, head_dim)
    settings = {"image_size": (64, 64), "channels": 3, "classes": 10, **found}
    first, count = next(HYBRID.auto(settings)), Counter("hybrid", settings)
    assert count.params(first.smallest()) < params and count.params(next(HYBRID.baseline(settings))) < params


def refused(words, do):
    """What is wrong, in one sentence."""
    with pytest.raises(TailorError, match=words) as told:
        do()
    text = str(told.value)
    assert text.endswith(".") and ". " not in text and "\n" not in text


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"strides": (2, 2, 2)}, r"'strides' must be four times 1 or 2, not \[2, 2, 2\]"),
        ({"strides": (2, 2, 3, 2)}, r"four times 1 or 2, not \[2, 2, 3, 2\]"),
        ({"strides": (2, True, 2, 2)}, "must be a list of whole numbers"),
        ({"stem_stride": 4}, "'stem_stride' must be 1 or 2, not 4"),
        ({"stem_stride": 0}, "'stem_stride' must be a positive whole number, not 0"),
        ({"attention": 5}, "four stages, so 'attention' must be 1 to 4, not 5"),
        ({"attention": 0}, "'attention' must be a positive whole number, not 0"),
        ({"head_dim": 7.5}, "'head_dim' must be a positive whole number, not 7.5"),
        ({"stem": 0}, "'stem' must be a positive whole number, not 0"),
        ({"image_size": (8, 0)}, r"'image_size' must be two positive whole numbers, not \[8, 0\]"),
        ({"eps": 0.0}, "'eps' must be a small positive number"),
        ({"init": "none"}, "not 'none'"),
        ({"patch": 4}, "no setting 'patch'; known: attention, .*strides"),
    ],
)
def test_refused_settings(settings, words):
    refused(words, lambda: with_settings(SMALL, **settings))


@pytest.mark.parametrize(
    ("genes", "words"),
    [
        ({"heads": 2}, "no gene 'heads'; it has depth and embed of stages 1-4, and mlp"),
        ({"depth.5": 1}, r"no gene 'depth\.5'"),
        ({"depth": 1.5}, r"needs a positive whole 'depth\.1' \(or 'depth'\), not 1.5"),
        ({"depth": [1, 2, 3]}, r"'depth\.1' .*not \[1, 2, 3\]"),
        ({"depth": [1, 1, 0, 1]}, r"'depth\.3' .*not 0"),
        ({"embed": None}, r"'embed\.1' .*not None"),
        ({"embed.2": "8"}, r"'embed\.2' .*not 8"),
        ({"mlp": 0}, "positive MLP ratio that leaves a hidden channel, not 0"),
        ({"mlp": [2, 2]}, r"MLP ratio .*not \[2, 2\]"),
        ({"mlp": True}, "MLP ratio .*not True"),
        ({"mlp": 0.1}, "leaves a hidden channel, not 0.1"),
    ],
)
def test_refused_architectures(genes, words):
    refused(words, lambda: HYBRID.arch({"depth": 1, "embed": 8, "mlp": 2, **genes}))


@pytest.mark.parametrize(("gene", "value", "stage"), [("depth.4", 3, 4), ("embed.1", 16, 1), ("mlp", 3.5, 1)])
def test_what_a_supernet_has_no_room_for(gene, value, stage):
    model, arch = HYBRID.supernet(SMALL), SMALL.largest().replace(**{gene: value})
    refused(f"too small for the architecture: '{gene.split('.')[0]}' of stage {stage}", lambda: model.plans(arch))


def test_genes_by_stage_or_by_list():
    whole = hybrid_arch({"depth": [1, 2, 1, 1], "embed": 8, "mlp": 2.5})
    apart = hybrid_arch({"depth": 1, "depth.2": 2, **{f"embed.{s}": 8 for s in (1, 2, 3, 4)}, "mlp": 2.5})
    assert whole == apart == HYBRID.arch(whole.to_dict())


# -- the plain network ------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_plain_network_as_timm_uses_it():
    plain = HYBRID.extract(noisy(SMALL), SMALL.largest()).eval()
    x = pictures(SMALL)
    again = PlainHybrid.from_settings(json.loads(json.dumps(plain.settings)))
    again.load_state_dict(plain.state_dict())
    torch.testing.assert_close(again.eval()(x), plain(x), atol=0, rtol=0)
    last, maps = plain.forward_intermediates(x)
    assert [tuple(m.shape[1:]) for m in maps] == [(12, 8, 8), (16, 4, 4), (24, 2, 2), (32, 2, 2)]
    assert [(r["num_chs"], r["reduction"]) for r in plain.feature_info] == [(12, 1), (16, 2), (24, 4), (32, 4)]
    torch.testing.assert_close(plain.forward_head(last), plain(x))
    (only,) = plain.forward_intermediates(x, 1, norm=True, output_fmt="NLC", intermediates_only=True)
    torch.testing.assert_close(only, last.flatten(2).transpose(1, 2))
    plain.reset_classifier(3)
    assert plain(x).shape == (2, 3) and plain.num_classes == 3


@torch.no_grad()
def test_attention_maps_reproduce_the_output():
    x = pictures(SMALL)
    plain, caught = HYBRID.extract(noisy(SMALL), SMALL.largest()).eval(), []
    layers = [m.attn for m in plain.modules() if getattr(m, "attn", None) is not None]
    for layer in layers:
        layer.register_forward_hook(lambda _, args, out: caught.append((*args, out)))
    plain(x)
    calls = list(caught)  # before the maps call the layers again
    found = list(HYBRID.attention(plain, x))
    assert [m.name for m in found] == [f"stage {s}, block {b}" for s, b in ((3, 1), (3, 2), (3, 3), (4, 1), (4, 2))]
    for layer, maps, (inputs, output) in zip(layers, found, calls, strict=True):
        mixed = maps.weights()[:, 0] @ layer.split(inputs)[2]
        again = layer.proj(mixed.transpose(1, 2).flatten(2)).transpose(1, 2).reshape(output.shape)
        torch.testing.assert_close(again, output)


# -- batch statistics -------------------------------------------------------------------------------------------------


class Toys:
    """Learnable batches as a function of the step; steps in ``bad`` hold a NaN."""

    steps_per_epoch = 4

    def __init__(self, bad=()):
        self.bad = bad

    def iterate(self, start, stop):
        for step in range(start, stop):
            rng = torch.Generator().manual_seed(step)
            y = torch.randint(10, (16,), generator=rng)
            x = torch.randn(16, 1, 8, 8, generator=rng) + y.view(-1, 1, 1, 1) / 3
            x[0, 0, 0, 0] = float("nan") if step in self.bad else x[0, 0, 0, 0]
            yield Batch(x, y, torch.eye(10)[y])


class Kept(Sink):
    """Remembers the states, or begins with one."""

    def __init__(self, start=None):
        self.start, self.states = start, []

    def save(self, tensors, meta):
        self.states.append(({k: v.clone() for k, v in tensors.items()}, dict(meta)))

    def load(self):
        return self.start


def trained(toys, sink=None, rule="single_path", **given):
    settings = TrainSettings(**{"epochs": 3, "batch": 16, "checkpoint_seconds": 0.0, "warmup": 0, "lr": 3e-3, **given})
    seed_everything(7, "toy")
    model = HYBRID.supernet(SMALL, 0.1)
    train(model, toys, RULES[rule](SMALL), settings, 5, sink)
    return model.eval()


@pytest.fixture(scope="module")
def supernet():
    return trained(Toys(), epochs=8)


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def seen(n=5):
    """Batches to judge by; the last one is smaller."""
    batches = [(b.x, b.y) for b in Toys().iterate(100, 100 + n)]
    return [*batches[:-1], tuple(t[:3] for t in batches[-1])]


def test_a_sub_network_is_judged_with_statistics_of_its_own(supernet):
    before = {k: v.clone() for k, v in supernet.state_dict().items()}
    rng, batches = generator(0, "judged"), seen()
    archs = [SMALL.smallest(), SMALL.largest(), *(SMALL.sample(rng) for _ in range(6))]
    ours = Evaluator(supernet, batches)(archs)
    own = [accuracy(measured(HYBRID.extract(supernet, a), (x for x, _ in batches)), batches) for a in archs]
    shared = [accuracy(HYBRID.extract(supernet, a), batches) for a in archs]
    assert ours == own and min(own) > 20 and len(set(own)) > 3
    assert all(a != b for a, b in zip(own, shared, strict=True)), "those of all sub-networks together fit none"
    assert same(supernet.state_dict(), before), "the supernet keeps its own"
    assert shared_statistics(supernet) and not shared_statistics(HYBRID.extract(supernet, archs[0]))


def test_measuring_changes_the_statistics_and_nothing_else(supernet):
    plain, images = HYBRID.extract(supernet, SMALL.smallest()), [x for x, _ in seen()]
    norms = [m for m in plain.modules() if isinstance(m, nn.BatchNorm2d)]
    momenta = [0.01 * i for i, _ in enumerate(norms)]
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    before = {k: v.clone() for k, v in plain.state_dict().items()}
    found = measured(plain.train(), iter(images))
    assert found is plain and not any(m.training for m in plain.modules())
    assert [norm.momentum for norm in norms] == momenta
    after = plain.state_dict()
    changed = {k for k in before if not torch.equal(before[k], after[k])}
    assert changed == {k for k in before if "running" in k or "tracked" in k}
    assert all(p.requires_grad and p.grad is None for p in plain.parameters())
    once = {k: v.clone() for k, v in after.items()}
    assert same(measured(plain, iter(images)).state_dict(), once), "what was there before does not matter"


@torch.no_grad()
def test_every_image_counts_the_same(supernet):
    plain, images = HYBRID.extract(supernet, SMALL.smallest()), [x for x, _ in seen(3)]
    stem = plain.patch_embed
    measured(plain, images)
    inside = [stem.convs[0](x) for x in images]
    sizes = torch.tensor([len(x) for x in images]) / sum(map(len, images))
    assert len(set(sizes.tolist())) > 1
    means, variances = (torch.stack([f(x) for x in inside]) for f in (lambda x: x.mean((0, 2, 3)), unbiased))
    torch.testing.assert_close(stem.norms[0].running_mean, sizes @ means)
    torch.testing.assert_close(stem.norms[0].running_var, sizes @ variances)


def unbiased(x):
    return x.transpose(0, 1).flatten(1).var(1)


def test_a_last_batch_of_one_image_is_left_out():
    """In a map of one pixel it has no variance, and torch refuses it."""
    space = with_settings(SMALL, strides=(2, 2, 2, 2))
    plain, x = HYBRID.extract(noisy(space), space.smallest()), pictures(space, 9)
    whole = {k: v.clone() for k, v in measured(plain, [x[:8]]).state_dict().items()}
    assert same(measured(plain, [x[:8], x[8:]]).state_dict(), whole)


def test_a_narrow_network_updates_the_statistics_it_uses():
    model, arch = HYBRID.supernet(SMALL).train(), SMALL.smallest()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    model(pictures(SMALL, 8), arch)
    used = model.tensors(arch)
    for name, module in ((n, m) for n, m in model.named_modules() if isinstance(m, BatchNorm)):
        width = used[f"{name}.running_mean"][0].size if f"{name}.running_mean" in used else 0
        for statistic in ("running_mean", "running_var"):
            now, then = getattr(module, statistic), before[f"{name}.{statistic}"]
            assert (now[:width] != then[:width]).all() and torch.equal(now[width:], then[width:])


def test_a_resumed_training_keeps_the_statistics():
    sink = Kept()
    whole = trained(Toys(), sink, epochs=2, rule="sandwich").state_dict()
    assert len(sink.states) == 2
    for state in sink.states:
        assert same(trained(Toys(), Kept(state), epochs=2, rule="sandwich").state_dict(), whole)


def test_a_skipped_step_leaves_the_statistics_alone():
    model = trained(Toys(bad=(3,)), epochs=1)
    assert all(t.isfinite().all() for t in model.state_dict().values())
    assert model(pictures(SMALL)).isfinite().all()


def test_statistics_are_extracted_and_inherited(supernet):
    state = supernet.state_dict()
    plain = HYBRID.extract(supernet, SMALL.smallest()).state_dict()
    statistics = [k for k in plain if "running" in k]
    assert len(statistics) > 30 and all(torch.equal(plain[k], state[k][: len(plain[k])]) for k in statistics)
    wider = HYBRID.supernet(SMALL.shift({"embed.3": 1}))
    inherit(wider, supernet)
    theirs = wider.state_dict()
    assert all(torch.equal(theirs[k][: len(v)], v) for k, v in state.items() if "running" in k)


# -- runs -------------------------------------------------------------------------------------------------------------


def go(folder):
    """AutoFormer on digits, tiny; the network found keeps its inherited weights."""
    (folder.parent / "mine.toml").write_text("")
    sets = ["method=autoformer", "family=hybrid", "train.epochs=2", "final.how=inherit", "baseline=false"]
    recipe = str(folder.parent / "mine.toml")
    return tailorvit.run(recipe, out=folder, tiny=True, settings=sets, progress="quiet")


def test_an_inherited_network_has_measured_statistics(tmp_path, monkeypatch):
    """Those of its training images; killed and resumed, the run ends with the same."""
    calls = []

    def watched(model, images):
        batches = list(images)
        before = {k: v.clone() for k, v in model.state_dict().items()}
        calls.append((before, batches))
        return measured(model, batches)

    with monkeypatch.context() as patch:
        patch.setattr(finish, "measured", watched)
        result = go(tmp_path / "whole")
    network = tailorvit.load(tmp_path / "whole").model
    before, batches = calls[0]
    assert len(calls) == len(result["candidates"]) == 1 and len(batches) == finish.STATISTICS
    after = network.state_dict()
    assert {k for k in after if not torch.equal(after[k], before[k])} == {k for k in after if "norm" in k} - {
        k for k in after if k.endswith(("weight", "bias"))
    }
    again = PlainHybrid.from_settings(network.settings)
    again.load_state_dict(before)
    assert same(measured(again, batches).state_dict(), after)

    def stop(self, step, total, facts):
        if self.stage.startswith("supernet") and step == total - 1:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(StageSink, "progress", stop)
        go(tmp_path / "killed")
    tailorvit.resume(tmp_path / "killed", progress="quiet")
    assert same(tailorvit.load(tmp_path / "killed").model.state_dict(), after)
