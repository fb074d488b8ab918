"""The contract of proxies: finite or refused, a function of seed and architecture, and without a trace."""

from __future__ import annotations

import math
import random
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from tailorvit.arch import Arch
from tailorvit.costs import Counter
from tailorvit.families import FAMILIES
from tailorvit.proxies import PROXIES, Proxy, ProxySettings, Task
from tailorvit.proxies.score import Scorer
from tailorvit.registry import HOME
from tailorvit.rng import generator
from tailorvit.space import Space

BATCH = 6


def smallest_space(family: str) -> Space:
    """The family's named space for the smallest images."""
    return min(FAMILIES[family].spaces.values(), key=lambda s: max(dict(s.settings)["image_size"]))


def sample(family: str, n: int = 1, seed: int = 0) -> list[Arch]:
    """Architectures of the family's smallest space."""
    rng = generator(seed, "proxies", family)
    return [smallest_space(family).sample(rng) for _ in range(n)]


def everything(model: nn.Module) -> dict[str, Any]:
    """Values, gradients, flags, modes and hooks of a network, and the state of every global generator."""
    return {
        "state": {k: v.clone() for k, v in [*model.named_parameters(), *model.named_buffers()]},
        "identities": [id(p) for p in model.parameters()],
        "gradients": {k: None if p.grad is None else p.grad.clone() for k, p in model.named_parameters()},
        "flags": [p.requires_grad for p in model.parameters()],
        "modes": [m.training for m in model.modules()],
        "hooks": [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()],
        "random": (torch.get_rng_state(), random.getstate(), np.random.get_state()[1]),  # type: ignore[index]  # noqa: NPY002
        "gradient mode": torch.is_grad_enabled(),
    }


def same(a: Any, b: Any) -> bool:
    """Equal to the bit, also inside lists and tables."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return np.array_equal(a, b)
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


class ProxyContract:
    """Inherit, name the proxy, and pytest runs the contract on the smallest space of every family of TailorViT.

    A family for which the proxy is not meant must be refused with one sentence (raise ``Refused``); name such families
    in ``refuses``, and families of other packages that it scores in ``others``.
    """

    name: ClassVar[str]
    refuses: ClassVar[tuple[str, ...]] = ()
    others: ClassVar[tuple[str, ...]] = ()

    @property
    def proxy(self) -> Proxy:
        """The record under test."""
        return PROXIES[self.name]

    def families(self) -> list[str]:
        """The families the proxy scores."""
        ours = [name for name in FAMILIES if FAMILIES.origin(name) == HOME]
        return [name for name in (*ours, *self.others) if name not in self.refuses]

    def scorer(self, family: str, seed: int = 0) -> Scorer:
        """A scorer of the family's smallest space."""
        settings = ProxySettings((self.name,), noise=True, batch=max(BATCH, self.proxy.least_batch))
        return Scorer(smallest_space(family), settings=settings, seed=seed)

    def task(self, model: nn.Module, arch: Arch, family: str) -> Task:
        """The task of scoring a built network."""
        counter = Counter(family, dict(smallest_space(family).settings))
        params, macs = counter.both(arch)
        return Task(arch, family, counter.shared, params, macs, lambda: model, seed=3, batch=BATCH)

    def test_record(self) -> None:
        """The record describes itself."""
        proxy = self.proxy
        assert proxy.name == self.name and proxy.summary and isinstance(proxy.higher, bool)
        assert proxy.cost in ("counted", "forward", "backward")
        assert proxy.needs in ("nothing", "ones", "noise", "images")

    def test_scores_are_finite(self) -> None:
        """Every architecture of a family it is meant for has a score."""
        for family in self.families():
            for row in self.scorer(family)(sample(family, 2)):
                assert row.problems == {}, family
                score = row.scores[self.name]
                assert score is not None and math.isfinite(score), family

    def test_other_families_are_refused_with_a_sentence(self) -> None:
        """No traceback, and no score."""
        for family in self.refuses:
            for row in self.scorer(family)(sample(family, 2)):
                assert row.scores[self.name] is None and row.problems[self.name].endswith("."), family

    def test_a_score_depends_on_seed_and_architecture_alone(self) -> None:
        """Not on what else is scored, or in which order."""
        if self.proxy.together is not None:
            pytest.skip("this proxy compares candidates with each other")
        for family in self.families():
            archs = sample(family, 3)
            rows, single = self.scorer(family)(archs), self.scorer(family)
            assert [single([a])[0].scores for a in reversed(archs)] == [r.scores for r in reversed(rows)], family
            if self.proxy.cost == "counted":
                assert self.scorer(family, seed=1)(archs[:1])[0].scores == rows[0].scores, family

    def test_the_network_is_left_as_it_was(self) -> None:
        """Weights, buffers, gradients, flags, modes, hooks and random state; the caller's gradient mode is free."""
        if self.proxy.cost == "counted":
            pytest.skip("this proxy needs no network")
        for family in self.families():
            (arch,) = sample(family)
            torch.manual_seed(5)
            settings = FAMILIES[family].settings(dict(smallest_space(family).settings))
            model = FAMILIES[family].build(settings, arch)
            for i, p in enumerate(model.parameters()):  # an unusual state, so that restoring defaults is not enough
                p.requires_grad_(i % 3 > 0)
                p.grad = torch.full_like(p, i) if i % 2 else None
            model.train()
            next(model.children()).eval()
            before = everything(model)
            found = self.proxy.measure(self.task(model, arch, family))
            assert math.isfinite(found["score"]), family
            assert same(before, everything(model)), family
            with torch.no_grad():
                assert self.proxy.measure(self.task(model, arch, family)) == found, family
