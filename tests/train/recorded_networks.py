"""Plain networks of every kind, to be recorded: our families, the example plug-in, timm's, and some with a catch."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tailorvit.families import family
from tailorvit.rng import seed_everything

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "plugin" / "src"))

OURS = ("vit", "pit", "swin", "windowed", "shunted", "hybrid", "ladder")
PEERS = ("mobilevit_xxs", "edgenext_xx_small")  # of timm: batch norms, and tensors made on the host in the forward
NAMES = (*OURS, "mixer", *PEERS)


class Batch(NamedTuple):
    x: Tensor
    y: Tensor
    target: Tensor


class Network(NamedTuple):
    """A network and batches for it."""

    model: nn.Module
    size: tuple[int, ...]  # of one image

    def batch(self, step: int, count: int = 6, device: str = "cpu") -> Batch:
        """A function of the step; the classes can be learnt."""
        rng = torch.Generator().manual_seed(step)
        y = torch.randint(0, 10, (count,), generator=rng)
        x = torch.randn(count, *self.size, generator=rng) + y.view(-1, *[1] * len(self.size)) / 5
        return Batch(x.to(device), y.to(device), F.one_hot(y, 10).float().to(device))


def network(name: str, drop_path: float = 0.0) -> Network:
    """The same weights at every call."""
    seed_everything(0, "init")
    if name in PEERS:
        timm = pytest.importorskip("timm")
        side = 64 if name == "edgenext_xx_small" else 32
        return Network(timm.create_model(name, num_classes=10, drop_path_rate=drop_path), (3, side, side))
    if name == "mixer":
        from tailorvit_mixer.family import FAMILY as entry
    else:
        entry = family(name)
    space = entry.shrink(next(iter(entry.spaces.values())))
    shared = entry.settings(dict(space.settings))
    return Network(entry.build(shared, space.largest(), drop_path), (shared.channels, *shared.image_size))


class Small(nn.Module):
    """A convolution, a batch norm and a linear layer; subclasses add what a recording cannot hold."""

    def __init__(self) -> None:
        super().__init__()
        seed_everything(0, "small")
        self.conv, self.norm = nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.fc = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc(self.catch(F.relu(self.norm(self.conv(x)))).mean((2, 3)))
        return out

    def catch(self, x: Tensor) -> Tensor:
        return x


class Reads(Small):
    def catch(self, x: Tensor) -> Tensor:
        return x * 2 if x.max().item() > 0 else x


class Masks(Small):
    def catch(self, x: Tensor) -> Tensor:
        return x + x[x > 0.5].mean()


class DrawsOnTheHost(Small):
    def catch(self, x: Tensor) -> Tensor:
        return x * (1.5 if random.random() < 0.5 else 0.5)


class ReadsItsGradient(Small):
    def catch(self, x: Tensor) -> Tensor:
        if x.requires_grad:
            x.register_hook(lambda g: g if g.abs().max().item() < 1e9 else g * 0)
        return x


class RemembersOnce(Small):
    """Not a catch: what is made in the first call is there in the second."""

    cache: Tensor | None = None

    def catch(self, x: Tensor) -> Tensor:
        if self.cache is None:
            self.cache = torch.full((1,), float(x.new_ones(()).item()), device=x.device)
        return x * self.cache


CATCHES: dict[type[Any], str] = {
    Reads: "_local_scalar_dense",
    Masks: "index",
    DrawsOnTheHost: "drawn on the host",
    ReadsItsGradient: "_local_scalar_dense",
}
