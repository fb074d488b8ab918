"""Randomness as a function of (seed, path): the same place in a run always draws the same numbers."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

Step = int | str


def _entropy(seed: int, path: tuple[Step, ...]) -> list[int]:
    return [seed, *(zlib.crc32(p.encode()) if isinstance(p, str) else p for p in path)]


def generator(seed: int, *path: Step) -> np.random.Generator:
    """A numpy generator for one named place, e.g. ``generator(seed, "slopes", t)``."""
    return np.random.default_rng(_entropy(seed, path))


def derive(seed: int, *path: Step) -> int:
    """A 63-bit seed for one named place, for libraries that take an integer."""
    return int(np.random.SeedSequence(_entropy(seed, path)).generate_state(1, np.uint64)[0] >> np.uint64(1))


def seed_everything(seed: int, *path: Step) -> None:
    """Seed torch, numpy and python, because timm and torchvision draw from the global generators."""
    import torch

    value = derive(seed, *path)
    torch.manual_seed(value)
    np.random.seed(value % 2**32)  # noqa: NPY002 - timm's Mixup reads the legacy generator
    random.seed(value)


@contextmanager
def preserved_state() -> Iterator[None]:
    """Leave the generators of torch, numpy and python, torch's flags and its threads as they were found."""
    import torch

    cuda = torch.cuda.is_initialized()
    generators = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
    on_devices = torch.cuda.get_rng_state_all() if cuda else []
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    flags = [
        (owner, name, getattr(owner, name))
        for owner, names in (
            (matmul, ("allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction")),
            (cudnn, ("benchmark", "deterministic", "enabled")),
        )
        for name in names
    ]
    precision, threads = torch.get_float32_matmul_precision(), torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_rng_state(generators[0])
        np.random.set_state(generators[1])  # noqa: NPY002
        random.setstate(generators[2])
        if cuda:
            torch.cuda.set_rng_state_all(on_devices)
        elif torch.cuda.is_initialized():  # as torch.manual_seed would have seeded it
            torch.cuda.manual_seed_all(torch.initial_seed())
        for owner, name, value in flags:
            setattr(owner, name, value)
        torch.set_float32_matmul_precision(precision)
        torch.set_num_threads(threads)
