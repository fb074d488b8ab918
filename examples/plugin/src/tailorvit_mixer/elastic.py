"""The Mixer supernet: the same network with widths that come with the call, and the way to a plain network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tailorvit.arch import Arch
from tailorvit.elastic.layers import LayerNorm, Linear, Mlp, PatchEmbed, drop_path
from tailorvit.elastic.slicing import Width, prefix
from tailorvit.families.assemble import assemble
from tailorvit.families.base import require_room
from tailorvit.families.network import drop_rates, hidden_width
from tailorvit.space import Space
from tailorvit_mixer.plain import MixerSettings, PlainMixer, initialise, mixer_settings


@dataclass(frozen=True)
class BlockWidths:
    """Hidden widths of one block for one call."""

    token: Width
    hidden: Width


class Block(nn.Module):
    """A Mixer block whose widths come with the call."""

    def __init__(self, shared: MixerSettings, embed: int, token: int, hidden: int, rate: float) -> None:
        super().__init__()
        self.rate, self.tokens = rate, Width(shared.tokens)
        self.norm1, self.mlp_tokens = LayerNorm(embed, shared.eps), Mlp(shared.tokens, token)
        self.norm2, self.mlp_channels = LayerNorm(embed, shared.eps), Mlp(embed, hidden)

    def forward(self, x: Tensor, embed: Width, widths: BlockWidths) -> Tensor:
        """(B, tokens, embed) to the same."""
        mixed = self.mlp_tokens(self.norm1(x, embed).transpose(1, 2), self.tokens, widths.token).transpose(1, 2)
        x = x + drop_path(mixed, self.rate, self.training)
        return x + drop_path(self.mlp_channels(self.norm2(x, embed), embed, widths.hidden), self.rate, self.training)

    def slices(self, embed: Width, widths: BlockWidths) -> dict[str, tuple[Width | None, ...]]:
        """Per parameter, the prefix these widths use."""
        used: dict[str, tuple[Width | None, ...]] = {
            f"norm{n}.{leaf}": (embed,) for n in (1, 2) for leaf in ("weight", "bias")
        }
        for name, inputs, hidden in (("mlp_tokens", None, widths.token), ("mlp_channels", embed, widths.hidden)):
            used |= {f"{name}.fc1.weight": (hidden, inputs), f"{name}.fc1.bias": (hidden,)}
            used |= {f"{name}.fc2.weight": (inputs, hidden), f"{name}.fc2.bias": (inputs,)}
        return used


class ElasticMixer(nn.Module):
    """The supernet and every sub-network: ``model(x, arch)``; no arch means the largest."""

    def __init__(self, space: Space, drop_path: float = 0.0) -> None:
        super().__init__()
        self.space, self.shared = space, mixer_settings(dict(space.settings))
        largest = space.largest()
        self.embed, depth = int(largest.one("embed")), int(largest.one("depth"))
        self.token = hidden_width(self.embed, max(largest.many("token")))
        self.hidden = hidden_width(self.embed, max(largest.many("mlp")))
        self.stem = PatchEmbed(self.shared.channels, self.shared.patch, self.embed)
        # Rates belong to the place of a block in the largest network, so a block keeps its rate in every sub-network.
        self.blocks = nn.ModuleList(
            Block(self.shared, self.embed, self.token, self.hidden, rate) for rate in drop_rates(drop_path, depth)
        )
        self.norm = LayerNorm(self.embed, self.shared.eps)
        self.head = Linear(self.embed, self.shared.classes)
        self._start()

    @torch.no_grad()
    def _start(self) -> None:
        """Initialise as the plain network is."""
        initialise(self)
        for name, parameter in self.named_parameters():
            if "norm" in name:
                nn.init.constant_(parameter, 1.0 if name.endswith("weight") else 0.0)
        conv = nn.Conv2d(self.shared.channels, self.embed, self.shared.patch)
        assert conv.bias is not None
        self.stem.weight.copy_(conv.weight)
        self.stem.bias.copy_(conv.bias)

    def widths(self, arch: Arch) -> tuple[Width, list[BlockWidths]]:
        """The widths of one call; refuses what the supernet has no weights for."""
        embed = int(arch.one("embed"))
        token, hidden = ([hidden_width(embed, ratio) for ratio in arch.many(gene)] for gene in ("token", "mlp"))
        needs = [("depth", len(hidden), len(self.blocks)), ("embed", embed, self.embed)]
        require_room([*needs, ("token", max(token), self.token), ("mlp", max(hidden), self.hidden)])
        return Width(embed), [BlockWidths(Width(t), Width(h)) for t, h in zip(token, hidden, strict=True)]

    def forward(self, x: Tensor, arch: Arch | None = None) -> Tensor:
        """Logits (B, classes) of one architecture."""
        embed, blocks = self.widths(arch or self.space.largest())
        x = self.stem(x, embed)
        for block, widths in zip(self.blocks, blocks, strict=False):  # a shallower arch uses the first blocks
            x = block(x, embed, widths)
        logits: Tensor = self.head(self.norm(x, embed).mean(1), embed, None)
        return logits

    def slices(self, arch: Arch) -> dict[str, tuple[Width | None, ...]]:
        """Per parameter, the prefix this architecture uses; parameters of skipped blocks are absent."""
        embed, blocks = self.widths(arch)
        used: dict[str, tuple[Width | None, ...]] = {
            f"{part}.{leaf}": (embed,) for part in ("stem", "norm") for leaf in ("weight", "bias")
        }
        used |= {"head.weight": (None, embed), "head.bias": ()}
        for i, widths in enumerate(blocks):
            block = self.blocks[i]
            assert isinstance(block, Block)
            used |= {f"blocks.{i}.{name}": axes for name, axes in block.slices(embed, widths).items()}
        return used


def build(shared: MixerSettings, arch: Arch, drop_path: Any = 0.0) -> PlainMixer:
    """The plain network of an architecture, freshly initialised."""
    return PlainMixer(shared, int(arch.one("embed")), arch.many("token"), arch.many("mlp"), drop_path)


def extract(model: nn.Module, arch: Arch, share: bool = False) -> PlainMixer:
    """The plain network with this architecture's slice of the supernet's weights: copies, or views to share."""
    assert isinstance(model, ElasticMixer)
    weights, state = dict(model.named_parameters()), {}
    for name, axes in model.slices(arch).items():
        state[name.replace("stem.", "stem.proj.")] = prefix(weights[name].detach(), *axes)
    rates = [block.rate for block in model.blocks if isinstance(block, Block)][: int(arch.one("depth"))]
    return assemble(lambda: build(model.shared, arch, rates), state, share)
