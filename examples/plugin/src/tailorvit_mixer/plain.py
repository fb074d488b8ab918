"""The plain MLP-Mixer: ordinary torch modules, names as in timm, so timm's weights load.

MLP-Mixer: An all-MLP Architecture for Vision (NeurIPS 2021).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tailorvit.errors import TailorError
from tailorvit.families.network import (
    DropPath,
    NetworkSettings,
    PlainNetwork,
    Sides,
    State,
    drop_rates,
    hidden_width,
    picked,
    resized_map,
)


@dataclass(frozen=True)
class MixerSettings(NetworkSettings):
    """What all networks of a Mixer space share."""

    image_size: Sides = (224, 224)
    patch: int = 16
    channels: int = 3
    classes: int = 1000
    eps: float = 1e-6

    @property
    def grid(self) -> Sides:
        """Patches down and across."""
        return self.image_size[0] // self.patch, self.image_size[1] // self.patch

    @property
    def tokens(self) -> int:
        """Patches; there is no class token."""
        return self.grid[0] * self.grid[1]


def mixer_settings(data: Mapping[str, Any]) -> MixerSettings:
    """Type and check the shared settings."""
    shared = MixerSettings.read("mixer", data)
    if any(side < shared.patch or side % shared.patch for side in shared.image_size):
        raise TailorError(
            f"A mixer needs image sides that are multiples of the patch {shared.patch}, not {list(shared.image_size)}."
        )
    return shared


class Stem(nn.Module):
    """Patches to tokens."""

    def __init__(self, shared: MixerSettings, embed: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(shared.channels, embed, shared.patch, shared.patch)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to (B, tokens, embed)."""
        out: Tensor = self.proj(x).flatten(2).transpose(1, 2)
        return out


class Mlp(nn.Module):
    """Two linear layers around a GELU."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """Same shape out as in."""
        out: Tensor = self.fc2(self.act(self.fc1(x)))
        return out


class MixerBlock(nn.Module):
    """Mix the tokens of every channel, then the channels of every token."""

    def __init__(self, shared: MixerSettings, embed: int, token: float, mlp: float, drop: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(embed, shared.eps)
        self.mlp_tokens = Mlp(shared.tokens, hidden_width(embed, token))
        self.norm2 = nn.LayerNorm(embed, shared.eps)
        self.mlp_channels = Mlp(embed, hidden_width(embed, mlp))
        self.drop_path = DropPath(drop)

    def forward(self, x: Tensor) -> Tensor:
        """(B, tokens, embed) to the same."""
        x = x + self.drop_path(self.mlp_tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2))
        out: Tensor = x + self.drop_path(self.mlp_channels(self.norm2(x)))
        return out


class PlainMixer(PlainNetwork):
    """An MLP-Mixer of one fixed architecture."""

    kind: ClassVar[str] = "mixer"
    first_weight: ClassVar[str] = "stem.proj.weight"
    shared: MixerSettings

    def __init__(
        self,
        shared: MixerSettings,
        embed: int,
        token: Sequence[float],
        mlp: Sequence[float],
        drop_path: Sequence[float] | float = 0.0,
    ) -> None:
        super().__init__()
        self.shared, self.shape = shared, {"embed": embed, "token": list(token), "mlp": list(mlp)}
        rates = drop_rates(drop_path, len(mlp))
        self.stem = Stem(shared, embed)
        self.blocks = nn.Sequential(
            *(MixerBlock(shared, embed, t, m, r) for t, m, r in zip(token, mlp, rates, strict=True))
        )
        self.norm = nn.LayerNorm(embed, shared.eps)
        self.head = self.classifier()
        initialise(self)

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], drop_path: float = 0.0) -> PlainMixer:
        """The network of these settings, freshly initialised."""
        shape = {k: settings[k] for k in ("embed", "token", "mlp")}
        return cls(MixerSettings.of(settings, *shape), **shape, drop_path=drop_path)

    @property
    def feature_info(self) -> list[dict[str, Any]]:
        """Per block: its name, channels and pixels a side of one position."""
        row = {"num_chs": self.shape["embed"], "reduction": self.shared.patch}
        return [{"module": f"blocks.{i}", **row} for i in range(len(self.blocks))]

    def forward_features(self, x: Tensor) -> Tensor:
        """Normalised tokens (B, tokens, embed)."""
        out: Tensor = self.norm(self.blocks(self.stem(x)))
        return out

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | Sequence[int] | None = None,
        norm: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> list[Tensor] | tuple[Tensor, list[Tensor]]:
        """What leaves the chosen blocks, as maps (NCHW) or tokens (NLC); arguments as in timm."""
        wanted, found = picked(indices, len(self.blocks)), {}
        x = self.stem(x)
        for i, block in enumerate(self.blocks):
            x = block(x)
            if i in wanted:
                tokens = self.norm(x) if norm else x
                maps = output_fmt == "NCHW"
                found[i] = tokens.transpose(1, 2).unflatten(-1, self.shared.grid) if maps else tokens
        chosen = [found[i] for i in wanted]
        return chosen if intermediates_only else (self.norm(x), chosen)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Logits of the mean token, or the mean token."""
        pooled = x.mean(1)
        out: Tensor = pooled if pre_logits else self.head(pooled)
        return out

    # -- other image sizes --------------------------------------------------------------------------------------------

    def suits(self, side: int) -> bool:
        """Whole patches."""
        return side >= self.shared.patch and side % self.shared.patch == 0

    def size_rule(self) -> str:
        """What the sides must suit, in words."""
        return f"patches of {self.shared.patch} px"

    def carry(self, new: PlainMixer, state: State) -> None:
        """The token-mixing layers have one weight a token: interpolate them over the grid, keeping their sums."""
        old, grid = self.shared.grid, new.shared.grid
        ratio = self.shared.tokens / new.shared.tokens
        for i in range(len(self.blocks)):
            into, out = f"blocks.{i}.mlp_tokens.fc1.weight", f"blocks.{i}.mlp_tokens.fc2"
            state[into] = ratio * resized_map(state[into].unflatten(1, old), grid).flatten(1)
            state[f"{out}.weight"] = resized_map(state[f"{out}.weight"].T.unflatten(1, old), grid).flatten(1).T
            state[f"{out}.bias"] = resized_map(state[f"{out}.bias"].unflatten(0, old)[None], grid).flatten()


@torch.no_grad()
def initialise(model: nn.Module) -> None:
    """Half a unit of gain for linear weights, zero biases; convolutions and norms as torch has them."""
    for name, parameter in model.named_parameters():
        if "norm" in name or "stem" in name:
            continue
        if name.endswith("bias"):
            nn.init.zeros_(parameter)
        else:
            nn.init.trunc_normal_(parameter, std=0.5 * parameter.shape[-1] ** -0.5)
