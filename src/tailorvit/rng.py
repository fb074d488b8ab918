"""Randomness as a function of (seed, path): the same place in a run always draws the same numbers."""

from __future__ import annotations

import random
import zlib

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
