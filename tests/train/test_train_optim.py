"""Decay groups, AdamW on the slices in use, and SGD."""

from __future__ import annotations

import pytest
import torch
from train_toys import SPACE, Toys, plain, same, settings, supernet, weights

from tailorvit.elastic.slicing import Width
from tailorvit.errors import TailorError
from tailorvit.rng import generator
from tailorvit.train import Fixed, Sandwich, SinglePath, TrainSettings, train
from tailorvit.train.optim import SliceAdamW, decays, depths, make_optimizer, optimizer_tensors, restore_optimizer

SMALL = SPACE.smallest()


@pytest.mark.parametrize("model", [supernet(), plain()], ids=["supernet", "plain"])
def test_decay_groups(model):
    decayed, free = set(), set()
    for name, p in model.named_parameters():
        (decayed if decays(name, p) else free).add(name)
    assert any("norm" in n for n in free) and not any("norm" in n for n in decayed)
    assert not any(n.endswith("bias") for n in decayed)
    assert {"cls_token", "pos_embed"} <= free
    assert not decays("query", torch.zeros(1, 1, 8)), "a ladder's token"
    relative = {n for n in decayed | free if ".rel_" in n}
    assert len(relative) == 8 and relative <= free
    matrices = ("qkv", "proj.weight", "fc1.weight", "fc2.weight", "head.weight", "patch_embed")
    assert all(any(m in n for m in matrices) for n in decayed)
    assert {"head.weight", "blocks.0.mlp.fc1.weight", "blocks.1.attn.proj.weight"} <= decayed

    optimizer = make_optimizer(model, settings(weight_decay=0.3))
    names = {p: n for n, p in model.named_parameters()}
    groups = {g["weight_decay"]: {names[p] for p in g["params"]} for g in optimizer.param_groups}
    assert groups == {0.3: decayed, 0.0: free}


def inside(model, arch) -> dict[str, torch.Tensor]:
    """Per parameter, which entries an arch uses."""
    marks = {n: torch.zeros_like(p, dtype=torch.bool) for n, p in model.named_parameters()}
    for name, widths in model.slices(arch).items():
        marks[name][tuple(slice(None) if w is None else slice(w.size) for w in widths)] = True
    return marks


def train_small(**options):
    model = supernet()
    before = weights(model)
    train(model, Toys(), Fixed(SMALL), settings(**options), seed=0)
    return before, weights(model), inside(model, SMALL)


@pytest.mark.parametrize("clip", [0.0, 1.0])
def test_freeze_slice_leaves_the_rest_bit_identical(clip):
    before, after, used = train_small(freeze="slice", weight_decay=0.5, clip=clip)
    unused = 0
    for name in before:
        out = ~used[name]
        unused += int(out.sum())
        assert torch.equal(before[name][out], after[name][out]), name
        if used[name].any() and "rel_" not in name and not name.endswith("qkv_bias"):
            assert not torch.equal(before[name][used[name]], after[name][used[name]]), name
    assert unused > 1000


def test_freeze_tensor_skips_only_tensors_no_architecture_used():
    before, after, used = train_small(freeze="tensor", weight_decay=0.5)
    for name in before:
        if not used[name].any():
            assert torch.equal(before[name], after[name]), name
    weight = "blocks.0.mlp.fc1.weight"
    assert not torch.equal(before[weight][~used[weight]], after[weight][~used[weight]]), "partly used tensors decay"


def test_freeze_none_lets_unused_weights_decay():
    before, after, used = train_small(freeze="none", weight_decay=0.5)
    weight = "blocks.1.mlp.fc1.weight"
    assert not used[weight].any()
    assert (after[weight].abs() < before[weight].abs()).all(), "decays without a gradient, as the released code does"
    norm = "blocks.1.norm1.weight"
    assert torch.equal(before[norm], after[norm]), "an undecayed tensor without gradient or momentum stays"


def test_freeze_none_keeps_moving_by_momentum():
    model = supernet()
    toys = Toys(steps_per_epoch=4)

    class ThenSmall:
        def archs_at(self, seed, step):
            return (SPACE.largest() if step < 2 else SMALL,)

    train(model, toys, ThenSmall(), settings(epochs=1, weight_decay=0.0, freeze="none"), 0)
    drifted = weights(model)
    model = supernet()
    train(model, toys, ThenSmall(), settings(epochs=1, weight_decay=0.0, freeze="tensor"), 0)
    still = weights(model)
    name = "blocks.1.mlp.fc1.weight"
    assert not torch.equal(drifted[name], still[name])


def test_freeze_slice_keeps_momentum_of_unused_entries():
    """An entry used at step 0 and not after stays where step 0 left it."""
    model, toys = supernet(), Toys(steps_per_epoch=1)

    class OnceLarge:
        def archs_at(self, seed, step):
            return (SPACE.largest() if step == 0 else SMALL,)

    options = {"freeze": "slice", "weight_decay": 0.5, "min_lr": 1e-3, "warmup": 0}
    train(model, toys, OnceLarge(), settings(epochs=1, **options), 0)
    first, used = weights(model), inside(model, SMALL)
    model = supernet()
    train(model, toys, OnceLarge(), settings(epochs=1, **options), 0)
    assert same(first, weights(model))
    optimizer = make_optimizer(model, settings(**options))
    assert isinstance(optimizer, SliceAdamW)
    for step, arch in enumerate((SPACE.largest(), SMALL, SMALL)):
        optimizer.zero_grad(set_to_none=True)
        model(toys.at(step).x, arch).square().sum().backward()
        optimizer.use(model, model.slices(arch))
        if step == 1:
            first = weights(model)
        optimizer.step()
    after = weights(model)
    for name in first:
        assert torch.equal(first[name][~used[name]], after[name][~used[name]]), name
    state = optimizer.state[dict(model.named_parameters())["head.weight"]]
    assert state["steps"][:, :8].eq(3).all() and state["steps"][:, 8:].eq(1).all()


def test_slice_adamw_equals_adamw_when_everything_is_used():
    """The same gradients go to both, as float noise in a gradient near zero would become a whole Adam step."""
    ours, theirs = supernet(), supernet()
    start = weights(ours)
    pair = [make_optimizer(m, settings(freeze=f, weight_decay=0.1)) for m, f in ((ours, "slice"), (theirs, "none"))]
    for step in range(20):
        gradients = {n: torch.from_numpy(generator(step, n).normal(size=p.shape)).float() for n, p in start.items()}
        for model, optimizer in zip((ours, theirs), pair):
            for name, p in model.named_parameters():
                p.grad = gradients[name].clone()
            for group in optimizer.param_groups:
                group["lr"] = 0.01 / (step + 1)
        pair[0].use(ours, ours.slices(SPACE.largest()))
        for optimizer in pair:
            optimizer.step()
    for name, value in weights(ours).items():
        assert torch.allclose(value, weights(theirs)[name], atol=1e-6, rtol=1e-5), name
        assert not torch.allclose(value, start[name], atol=1e-3)


def test_slice_adamw_takes_the_union_of_prefixes():
    """Two prefixes that do not contain each other: the corner outside both stays."""
    p = torch.nn.Parameter(torch.ones(4, 4))
    model = torch.nn.Module()
    model.weight = p
    optimizer = SliceAdamW([p], lr=0.1, betas=(0.9, 0.999))
    p.grad = torch.ones(4, 4)
    optimizer.use(model, {"weight": (Width(2), None)})
    optimizer.use(model, {"weight": (None, Width(3))})
    optimizer.step()
    changed = p.detach() != 1
    expected = torch.ones(4, 4, dtype=torch.bool)
    expected[2:, 3:] = False
    assert torch.equal(changed, expected)
    assert not optimizer.used, "prefixes are cleared after the step"
    optimizer.step()
    assert torch.equal(p.detach() != 1, expected)


def test_optimizer_state_round_trip():
    for freeze in ("slice", "none"):
        model = supernet()
        optimizer = make_optimizer(model, settings(freeze=freeze))
        for step in range(3):
            optimizer.zero_grad()
            arch = SPACE.sample(generator(step))
            model(Toys().at(step).x, arch).square().sum().backward()
            if isinstance(optimizer, SliceAdamW):
                optimizer.use(model, model.slices(arch))
            optimizer.step()
        saved = {k: v.clone() for k, v in optimizer_tensors(model, optimizer).items()}
        other = make_optimizer(model, settings(freeze=freeze))
        restore_optimizer(model, other, saved.items())
        assert same(saved, optimizer_tensors(model, other)) and saved


def test_with_the_sandwich_freezing_changes_nothing():
    """The largest net uses everything each step, so all three ways of freezing agree."""
    ends = []
    for freeze in ("none", "tensor", "slice"):
        model = supernet()
        train(model, Toys(), Sandwich(SPACE), settings(epochs=2, freeze=freeze), 0)
        ends.append(weights(model))
    for name in ends[0]:
        assert torch.equal(ends[0][name], ends[1][name])
        assert torch.allclose(ends[0][name], ends[2][name], atol=1e-4, rtol=1e-3), name


def test_single_path_freezing_matters():
    ends = []
    for freeze in ("none", "slice"):
        model = supernet()
        train(model, Toys(), SinglePath(SPACE), settings(epochs=2, freeze=freeze), 0)
        ends.append(weights(model))
    assert not same(*ends)


def test_sgd_steps_as_the_formula_says():
    model = plain()
    optimizer = make_optimizer(model, settings(optimizer="sgd", weight_decay=0.1, lr=0.2))
    name, weight = "head.weight", model.head.weight
    before, velocity = weight.detach().clone(), torch.zeros_like(weight)
    for _ in range(3):
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        optimizer.step()
        velocity = 0.9 * velocity + 1 + 0.1 * before
        before = before - 0.2 * velocity
        torch.testing.assert_close(weight.detach(), before)
    assert sum(g["weight_decay"] == 0 for g in optimizer.param_groups) == 1, "norms and biases do not decay"
    saved = optimizer_tensors(model, optimizer)
    assert f"{name}/momentum_buffer" in saved
    other = make_optimizer(model, settings(optimizer="sgd"))
    restore_optimizer(model, other, saved.items())
    assert torch.equal(other.state[weight]["momentum_buffer"], optimizer.state[weight]["momentum_buffer"])


def test_sgd_trains():
    model = plain()
    before = weights(model)
    trained = train(model, Toys(), Fixed(), settings(optimizer="sgd", lr=0.05, epochs=2), seed=0)
    after = weights(model)
    assert trained.loss == trained.loss and not torch.equal(before["head.weight"], after["head.weight"])


def test_freezing_slices_needs_adamw():
    with pytest.raises(TailorError, match="'slice' needs AdamW"):
        TrainSettings(optimizer="sgd", freeze="slice")


# -- layer decay ------------------------------------------------------------------------------------------------------


def test_depth_counts_blocks_and_what_comes_after_them():
    names = ["cls_token", "patch_embed.proj.weight", "blocks.0.norm1.weight", "blocks.0.mlp.fc1.weight"]
    names += ["blocks.1.norm1.weight", "norm.weight", "head.weight"]
    assert list(depths(names).values()) == [0, 0, 1, 1, 2, 3, 3]
    staged = ["stem.weight", "layers.0.blocks.0.a", "layers.1.downsample.b", "layers.1.blocks.0.a", "head.weight"]
    assert list(depths(staged).values()) == [0, 1, 1, 2, 3], "what lies between two stages goes with the block before"
    assert set(depths(["a.weight", "b.weight"]).values()) == {0}, "no blocks, one rate"


def test_layer_decay_gives_early_blocks_less_of_the_rate():
    model = plain()
    optimizer = make_optimizer(model, settings(layer_decay=0.5))
    names, share = {p: n for n, p in model.named_parameters()}, {}
    for group in optimizer.param_groups:
        share |= {names[p]: group["share"] for p in group["params"]}
    blocks = len(model.blocks)
    assert len(share) == len(names)
    assert share["head.weight"] == 1 and share["patch_embed.proj.weight"] == 0.5 ** (blocks + 1)
    assert share[f"blocks.{blocks - 1}.mlp.fc1.weight"] == 0.5 and share["blocks.0.mlp.fc1.weight"] == 0.5**blocks
    assert len(make_optimizer(model, settings()).param_groups) == 2


def test_the_rate_of_every_step_is_shared_out():
    def moved(**options):
        before = weights(model := plain())
        train(model, Toys(), Fixed(), settings(weight_decay=0.0, optimizer="sgd", **options), seed=0)
        return {n: (weights(model)[n] - before[n]).norm() for n in before}

    whole, less = moved(), moved(layer_decay=0.1)
    assert less["patch_embed.proj.weight"] < 0.05 * whole["patch_embed.proj.weight"]
    assert less["head.weight"] > 0.3 * whole["head.weight"]


@pytest.mark.parametrize("value", [0.0, -1.0, 1.1, float("nan")])
def test_layer_decay_out_of_range_is_refused(value):
    with pytest.raises(TailorError, match=r"train\.layer_decay must be above 0 and at most 1"):
        settings(layer_decay=value)
