"""BigNAS's training: the others learn from the labels and from the largest network, which alone has drop path."""

from __future__ import annotations

import pytest
import torch
from train_toys import SPACE, Store, Toys, gradients, plain, same, settings, supernet, weights

from tailorvit.errors import TailorError
from tailorvit.families import FAMILIES
from tailorvit.train import Fixed, Sandwich, train
from tailorvit.train.optim import soft_cross_entropy, taught, without_drop_path

ARCHS = Sandwich(SPACE).archs_at(0, 3)
BIGNAS = {"rule": "sandwich", "distill": True, "reg_largest_only": True}


def step(model, options, archs=ARCHS, call=None) -> dict[str, torch.Tensor]:
    """The gradients of one step, and its loss."""
    torch.manual_seed(5)
    return gradients(model, archs, options, Toys().at(0), call)


def by_hand(model, distill: bool) -> dict[str, torch.Tensor]:
    """The same from the definition: labels for the largest, their mean with its outputs for the others."""
    batch = Toys().at(0)
    model.train()
    largest = model(batch.x, SPACE.largest())
    target = (largest.softmax(-1).detach() + batch.target) / 2 if distill else batch.target
    losses = [soft_cross_entropy(largest, batch.target)]
    losses += [soft_cross_entropy(model(batch.x, arch), target) for arch in ARCHS[1:]]
    torch.stack(losses).sum().backward()
    found = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return {**found, "loss": torch.stack(losses).mean().detach()}


@pytest.mark.parametrize("distill", [False, True])
def test_the_others_learn_from_the_largest(distill):
    options = settings(rule="sandwich", distill=distill, clip=0.0)
    found, expected = step(supernet(), options), by_hand(supernet(), distill)
    assert found.keys() == expected.keys()
    for name in expected:
        assert torch.allclose(found[name], expected[name], atol=1e-5, rtol=1e-3), name


def test_the_labels_outweigh_a_teacher_who_is_sure_of_the_wrong_class():
    """Outputs alone would only repeat its mistake (docs/log.md)."""
    label = torch.eye(3)[:1]
    wrong = torch.tensor([[-9.0, 9.0, -9.0]], requires_grad=True)
    target = taught(label, wrong)
    assert not target.requires_grad and torch.allclose(target.sum(), torch.tensor(1.0))
    assert torch.allclose(target, torch.tensor([[0.5, 0.5, 0.0]]), atol=1e-6)
    assert torch.allclose(taught(label, 50 * label), label, atol=1e-6), "a teacher who is right changes nothing"


def test_distillation_changes_only_what_the_others_learn():
    labels = step(supernet(), settings(rule="sandwich"))
    distilled = step(supernet(), settings(rule="sandwich", distill=True))
    assert not same(labels, distilled)
    for archs in ((SPACE.largest(),), (None,)):
        model = plain if archs == (None,) else supernet
        alone = [step(model(), settings(rule="sandwich", distill=d), archs) for d in (False, True)]
        assert same(*alone), "one network alone has no others to teach"


@pytest.mark.parametrize("largest_only", [False, True])
def test_only_the_largest_has_drop_path(largest_only):
    model, seen = supernet(0.5), []

    def call(x, arch):
        seen.append([block.rate for block in model.blocks])
        return model(x, arch)

    step(model, settings(rule="sandwich", reg_largest_only=largest_only), call=call)
    usual = [0.0, 0.5]
    assert seen == [usual, *[[0.0, 0.0] if largest_only else usual] * 3]
    assert [block.rate for block in model.blocks] == usual and model.training


def test_drop_path_comes_back_after_an_error():
    model = supernet(0.5)
    with pytest.raises(KeyboardInterrupt), without_drop_path(model):
        assert [block.rate for block in model.blocks] == [0.0, 0.0] and model.training
        raise KeyboardInterrupt
    assert [block.rate for block in model.blocks] == [0.0, 0.5]


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_drop_path_can_be_switched_off_in_every_family(name):
    """In training mode two passes differ by drop path alone; without it they are the same."""
    space = min(FAMILIES[name].spaces.values(), key=lambda s: max(dict(s.settings).get("image_size", (224, 224))))
    torch.manual_seed(0)
    model = FAMILIES[name].supernet(space, 0.5).train()
    shared = FAMILIES[name].settings(dict(space.settings))
    x = torch.randn(8, shared.channels, *shared.image_size)
    with torch.no_grad():
        dropped = [model(x, space.largest()) for _ in range(2)]
        with without_drop_path(model):
            whole = [model(x, space.largest()) for _ in range(2)]
    assert not torch.equal(*dropped) and torch.equal(*whole)


def test_a_plain_network_keeps_its_drop_path():
    """final.train starts from train: the last training of a BigNAS run is an ordinary one."""
    ends = []
    for rate, options in ((0.5, {}), (0.5, BIGNAS), (0.0, BIGNAS)):
        model = plain()
        for module in model.modules():
            if hasattr(module, "rate"):
                module.rate = rate
        train(model, Toys(), Fixed(), settings(epochs=1, **options), 0)
        ends.append(weights(model))
    assert same(*ends[:2]) and not same(*ends[1:])


@pytest.mark.parametrize("options", [{}, {"freeze": "slice"}], ids=str)
def test_resume_is_bit_identical(options):
    options, rule, toys = settings(**BIGNAS, **options), Sandwich(SPACE), Toys(steps_per_epoch=3)
    whole, sink = supernet(0.3), Store()
    train(whole, toys, rule, options, 5, sink)
    for stop in (2, 4, 8):
        store = Store(stop_at=stop)
        with pytest.raises(KeyboardInterrupt):
            train(supernet(0.3), toys, rule, options, 5, store)
        resumed, later = supernet(0.3), Store(store.checkpoint)
        train(resumed, toys, rule, options, 5, later)
        assert same(weights(resumed), weights(whole)), stop
        assert same(later.checkpoint[0], sink.checkpoint[0])


def test_it_learns():
    model, sink = supernet(), Store()
    train(model, Toys(), Sandwich(SPACE), settings(epochs=12, **BIGNAS), 0, sink)
    losses = [facts["loss"] for _, facts in sink.epochs]
    assert losses[-1] < 0.5 < losses[0]
    batch = Toys().at(1000)
    hits = [float((model(batch.x, arch).argmax(-1) == batch.y).float().mean()) for arch in ARCHS]
    assert min(hits) > 0.8


def test_a_largest_that_is_not_finite_skips_the_step():
    model = supernet()
    trained = train(model, Toys(bad={1}), Sandwich(SPACE), settings(epochs=1, **BIGNAS), 0)
    assert trained.skipped == 1 and all(p.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("key", ["distill", "reg_largest_only"])
def test_they_need_the_sandwich(key):
    with pytest.raises(TailorError, match=rf"train\.{key} needs train\.rule = 'sandwich'.*not 'single_path'\.$"):
        settings(**{key: True})
    assert getattr(settings(rule="sandwich", **{key: True}), key)
    assert not getattr(settings(rule="sandwich"), key), "off by default"
