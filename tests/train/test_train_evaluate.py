"""Accuracy of networks and of sub-networks."""

from __future__ import annotations

import pytest
import torch
from train_toys import SPACE, Toys, no_onednn, plain, settings, supernet

from tailorvit.families import family
from tailorvit.rng import generator
from tailorvit.train import Evaluator, SinglePath, accuracy, class_scores, train


@pytest.fixture(scope="module")
def net():
    model = supernet()
    train(model, Toys(), SinglePath(SPACE), settings(epochs=2), 0)
    return model


BATCHES = [(b.x, b.y) for b in (Toys(batch=37).at(s) for s in (1000, 1001, 1002))] + [
    (b.x, b.y) for b in [Toys(batch=5).at(1003)]
]
ARCHS = list(dict.fromkeys(SPACE.sample(generator(0, "archs", i)) for i in range(16)))


def test_accuracies_are_those_of_the_extracted_networks(net):
    figures = Evaluator(net, BATCHES)(ARCHS)
    assert len(set(figures)) > 1
    for arch, figure in zip(ARCHS, figures):
        extracted = family("vit").extract(net, arch)
        assert accuracy(extracted, BATCHES) == pytest.approx(figure)


def test_each_architecture_runs_once_and_the_order_is_kept(net, monkeypatch):
    evaluator, ran = Evaluator(net, BATCHES), []
    inner = evaluator._accuracy
    monkeypatch.setattr(evaluator, "_accuracy", lambda arch: ran.append(arch) or inner(arch))
    wanted = [ARCHS[2], ARCHS[0], ARCHS[2], *ARCHS, ARCHS[1]]
    figures = evaluator(wanted)
    assert figures == [evaluator.known[a] for a in wanted]
    assert ran == list(dict.fromkeys(wanted))
    assert evaluator(wanted[::-1]) == figures[::-1]
    assert len(ran) == len(set(wanted)), "nothing runs again"


def test_no_architectures_give_no_accuracies(net):
    assert Evaluator(net, BATCHES)([]) == []


def test_evaluation_ignores_drop_path_and_leaves_randomness_alone():
    model = supernet(0.9)
    model.train()
    evaluator = Evaluator(model, BATCHES)
    before = torch.get_rng_state()
    first = evaluator(ARCHS)
    evaluator.known.clear()
    model.train()
    assert evaluator(ARCHS) == first
    assert torch.equal(before, torch.get_rng_state())


def test_bf16_figures_are_close(net):
    full = Evaluator(net, BATCHES)(ARCHS)
    with no_onednn():
        half = Evaluator(net, BATCHES, bf16=True)(ARCHS)
    assert half == pytest.approx(full, abs=6)


def test_accuracy_counts_a_ragged_last_batch():
    model = plain()
    hits = sum(int((model.eval()(x).argmax(-1) == y).sum()) for x, y in BATCHES)
    assert accuracy(model, BATCHES) == pytest.approx(100 * hits / 116)
    assert accuracy(model, []) == 0
    assert accuracy(lambda x: torch.eye(3)[torch.zeros(len(x), dtype=torch.long)], BATCHES) == pytest.approx(
        100 * sum(int((y == 0).sum()) for _, y in BATCHES) / 116
    )


def test_class_scores_are_probabilities_with_their_labels():
    scores, labels = class_scores(plain(), BATCHES)
    assert scores.shape == (116, 3) and torch.allclose(scores.sum(1), torch.ones(116))
    assert torch.equal(labels, torch.cat([y for _, y in BATCHES]))
