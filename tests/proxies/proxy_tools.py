"""What the tests of proxies share: small spaces, plain tasks, everything a network holds."""

from __future__ import annotations

import random
from functools import cache

import numpy as np
import torch

from tailorvit.costs import Counter
from tailorvit.families import FAMILIES
from tailorvit.proxies import PROXIES, ProxySettings, Task
from tailorvit.proxies.score import Scorer
from tailorvit.rng import generator

FAMILY_NAMES = sorted(FAMILIES)
MEASURED = [name for name, p in PROXIES.items() if p.cost != "counted"]
ALONE = [name for name, p in PROXIES.items() if p.together is None]  # whose score does not depend on the others scored


@cache
def small_space(family):
    return min(FAMILIES[family].spaces.values(), key=lambda s: max(dict(s.settings)["image_size"]))


def sample(family, n=1, seed=0):
    rng = generator(seed, "proxies", family)
    return [small_space(family).sample(rng) for _ in range(n)]


def scorer(family, *names, **rest):
    settings = ProxySettings(names or tuple(PROXIES), **{"noise": True, "batch": 6, **rest.pop("settings", {})})
    return Scorer(small_space(family), settings=settings, **rest)


def task(model, arch, space, **rest):
    counter = Counter(space.family, dict(space.settings))
    params, macs = counter.both(arch)
    return Task(arch, space.family, counter.shared, params, macs, lambda: model, **{"seed": 3, "batch": 6, **rest})


def everything(model):
    """Values, grads, flags and modes of a network, and the state of every global generator."""
    return {
        "state": {k: v.clone() for k, v in [*model.named_parameters(), *model.named_buffers()]},
        "identities": [id(p) for p in model.parameters()],
        "grads": {k: None if p.grad is None else p.grad.clone() for k, p in model.named_parameters()},
        "flags": [p.requires_grad for p in model.parameters()],
        "modes": [m.training for m in model.modules()],
        "hooks": [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()],
        "random": (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()),  # noqa: NPY002
        "grad mode": torch.is_grad_enabled(),
    }


def same(a, b):
    """Bit for bit."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return np.array_equal(a, b)
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return a == b
