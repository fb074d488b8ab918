"""Plain pooling-based vision transformer (PiT): three stages, pooled in between; names as in timm, so weights load."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tailorvit.errors import TailorError
from tailorvit.families.base import Maps
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
    start_scale,
)
from tailorvit.families.vit.plain import Mlp


@dataclass(frozen=True)
class PitSettings(NetworkSettings):
    """What all networks of a PiT space share."""

    image_size: Sides = (224, 224)
    patch: int = 16
    stride: int = 8  # half a patch: neighbouring patches overlap
    channels: int = 3
    classes: int = 1000
    eps: float = 1e-6
    init: Literal["scaled", "paper", "official"] = "scaled"  # official: convolutions start at N(0, 1), as released

    @property
    def grids(self) -> tuple[tuple[int, int], ...]:
        """Patches down and across in each of the three stages."""
        first = tuple((side - self.patch) // self.stride + 1 for side in self.image_size)
        second = tuple((side - 1) // 2 + 1 for side in first)
        third = tuple((side - 1) // 2 + 1 for side in second)
        return (first[0], first[1]), (second[0], second[1]), (third[0], third[1])


class PitPatches(nn.Module):
    """Overlapping patches to a map of features."""

    def __init__(self, shared: PitSettings, embed: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(shared.channels, embed, shared.patch, shared.stride)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to (B, embed, rows, columns)."""
        out: Tensor = self.conv(x)
        return out


class PitPool(nn.Module):
    """Half as many rows and columns, more channels: each channel of the map alone, the class token through a matrix."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, 2, 1, groups=inputs)
        self.fc = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        """The map and the class token of the next stage."""
        return self.conv(x), self.fc(token)


class PitAttention(nn.Module):
    """Multi-head attention of the usual kind: heads share the embedding width."""

    def __init__(self, embed: int, heads: int) -> None:
        super().__init__()
        self.heads, self.scale = heads, (embed // heads) ** -0.5
        self.qkv = nn.Linear(embed, 3 * embed)
        self.proj = nn.Linear(embed, embed)

    def _split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        return q, k, v

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, embed) to (B, N, embed)."""
        q, k, v = self._split(x)
        out: Tensor = self.proj(F.scaled_dot_product_attention(q, k, v, scale=self.scale).transpose(1, 2).flatten(2))
        return out

    def weights(self, x: Tensor) -> Tensor:
        """The attention maps (B, heads, N, N) for an input of the block."""
        q, k, _ = self._split(x)
        weights: Tensor = (q @ k.transpose(-2, -1) * self.scale).float().softmax(-1)
        return weights


class PitBlock(nn.Module):
    """Pre-norm transformer block."""

    def __init__(self, embed: int, heads: int, ratio: float, drop: float, eps: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(embed, eps)
        self.attn = PitAttention(embed, heads)
        self.norm2 = nn.LayerNorm(embed, eps)
        self.mlp = Mlp(embed, hidden_width(embed, ratio))
        self.drop_path = DropPath(drop)

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, embed) to (B, N, embed)."""
        x = x + self.drop_path(self.attn(self.norm1(x)))
        out: Tensor = x + self.drop_path(self.mlp(self.norm2(x)))
        return out


class PitStage(nn.Module):
    """Pooling (but in the first stage), then blocks over the map's patches and the class token."""

    def __init__(self, pool: PitPool | None, blocks: Sequence[PitBlock]) -> None:
        super().__init__()
        self.pool = pool
        self.blocks = nn.Sequential(*blocks)

    def tokens(self, x: Tensor, token: Tensor) -> Tensor:
        """What enters the blocks: (B, 1 + n, embed), class token first."""
        if self.pool is not None:
            x, token = self.pool(x, token)
        return torch.cat([token, x.flatten(2).transpose(1, 2)], 1)

    def forward(self, x: Tensor, token: Tensor, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """The map (B, embed, *grid) and class token (B, 1, embed) after this stage."""
        x = self.blocks(self.tokens(x, token))
        return x[:, 1:].transpose(1, 2).unflatten(-1, grid), x[:, :1]


class PlainPiT(PlainNetwork):
    """A PiT of one fixed architecture; the width of a stage is ``base`` times its heads."""

    kind: ClassVar[str] = "pit"
    POOLS: ClassVar[Mapping[str, str | None]] = {"token": None}
    first_weight: ClassVar[str] = "patch_embed.conv.weight"
    shared: PitSettings

    def __init__(
        self,
        shared: PitSettings,
        base: int,
        depth: Sequence[int],
        heads: Sequence[int],
        mlp: float,
        drop_path: Sequence[float] | float = 0.0,
    ) -> None:
        super().__init__()
        self.shared = shared
        self.shape = {"base": base, "depth": list(depth), "heads": list(heads), "mlp": mlp}
        rates, embeds = iter(drop_rates(drop_path, sum(depth))), [base * h for h in heads]
        self.patch_embed = PitPatches(shared, embeds[0])
        self.pos_embed = nn.Parameter(torch.empty(1, embeds[0], *shared.grids[0]))
        self.cls_token = nn.Parameter(torch.empty(1, 1, embeds[0]))
        self.transformers = nn.ModuleList(
            PitStage(
                PitPool(embeds[s - 1], embeds[s]) if s else None,
                [PitBlock(embeds[s], heads[s], mlp, next(rates), shared.eps) for _ in range(depth[s])],
            )
            for s in range(len(heads))
        )
        self.norm = nn.LayerNorm(embeds[-1], shared.eps)
        self.head = self.classifier()
        pit_initialise(self, shared.init)

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], drop_path: float = 0.0) -> PlainPiT:
        """The network of these settings, freshly initialised."""
        shape = {k: settings[k] for k in ("base", "depth", "heads", "mlp")}
        return cls(PitSettings.of(settings, *shape), **shape, drop_path=drop_path)

    @property
    def feature_info(self) -> list[dict[str, Any]]:
        """Per stage: its name, channels and pixels a side of one position."""
        base, stride = self.shape["base"], self.shared.stride
        return [
            {"module": f"transformers.{s}", "num_chs": base * heads, "reduction": stride * 2**s}
            for s, heads in enumerate(self.shape["heads"])
        ]

    def _stages(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """The map after each stage, and the class token after the last."""
        x = self.patch_embed(x) + self.pos_embed
        token, maps = self.cls_token.expand(x.shape[0], -1, -1), []
        for stage, grid in zip(self.transformers, self.shared.grids, strict=True):
            x, token = stage(x, token, grid)
            maps.append(x)
        return maps, token

    def forward_features(self, x: Tensor) -> Tensor:
        """The normalised class token (B, 1, embed)."""
        out: Tensor = self.norm(self._stages(x)[1])
        return out

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | Sequence[int] | None = None,
        norm: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> list[Tensor] | tuple[Tensor, list[Tensor]]:
        """What leaves the chosen stages (all; the last n; by number), as maps (NCHW) or patch tokens (NLC).

        Unless only these are wanted, :meth:`forward_features` comes first; ``norm`` touches the last stage, the only
        one whose width the final norm has.
        """
        maps, token = self._stages(x)
        if norm:
            maps[-1] = self.norm(maps[-1].movedim(1, -1)).movedim(-1, 1)
        wanted = picked(indices, len(maps))
        kept = [maps[i] if output_fmt == "NCHW" else maps[i].flatten(2).transpose(1, 2) for i in wanted]
        return kept if intermediates_only else (self.norm(token), kept)

    def forward_head(self, tokens: Tensor, pre_logits: bool = False) -> Tensor:
        """Logits of :meth:`forward_features`' token, or what the head would see."""
        out: Tensor = tokens[:, 0] if pre_logits else self.head(tokens[:, 0])
        return out

    def suits(self, side: int) -> bool:
        """One patch and whole strides more."""
        return side >= self.shared.patch and (side - self.shared.patch) % self.shared.stride == 0

    def size_rule(self) -> str:
        """What the sides must suit, in words."""
        return f"patches of {self.shared.patch} px every {self.shared.stride}"

    def carry(self, new: PlainPiT, state: State) -> None:
        """Interpolate positions."""
        state["pos_embed"] = resized_map(state["pos_embed"][0], new.shared.grids[0])[None]


def pit_initialise(model: nn.Module, init: str = "scaled", inputs: Mapping[str, int] | None = None) -> None:
    """Truncated normal for weights, token and positions; zero biases; convolutions N(0, 1) when ``official``.

    ``inputs`` says how many numbers an output of a parameter is summed from, where its shape does not.
    """
    for name, parameter in model.named_parameters():
        leaf = name.rsplit(".", 1)[-1]
        convolution = "conv" in name or "patch_embed" in name
        if leaf.endswith("bias"):
            nn.init.zeros_(parameter)
        elif "norm" in name:
            nn.init.ones_(parameter)
        elif convolution and init == "official":
            nn.init.normal_(parameter)
        else:
            fan = (inputs or {}).get(name) or parameter[0].numel()
            scaled = init == "scaled" and leaf.endswith("weight") and "head" not in name
            nn.init.trunc_normal_(parameter, std=start_scale(fan) if scaled else 0.02)


# -- attention maps ---------------------------------------------------------------------------------------------------


def attention(model: nn.Module, images: Tensor) -> Iterator[Maps]:
    """Stage by stage, block by block."""
    assert isinstance(model, PlainPiT)
    x = model.patch_embed(images) + model.pos_embed
    token = model.cls_token.expand(x.shape[0], -1, -1)
    for s, (stage, grid) in enumerate(zip(model.transformers, model.shared.grids, strict=True), 1):
        assert isinstance(stage, PitStage)
        rows, columns = torch.meshgrid(torch.arange(grid[0]), torch.arange(grid[1]), indexing="ij")
        places = torch.stack([rows, columns], -1).view(1, -1, 2).to(images.device, torch.float32)
        tokens = stage.tokens(x, token)
        for i, block in enumerate(stage.blocks, 1):
            assert isinstance(block, PitBlock)
            weights = partial(_between_patches, block.attn, block.norm1(tokens))
            yield Maps(f"stage {s}, block {i}", s, i, grid, block.attn.heads, places, places, weights)
            tokens = block(tokens)
        x, token = tokens[:, 1:].transpose(1, 2).unflatten(-1, grid), tokens[:, :1]


def _between_patches(attn: PitAttention, x: Tensor) -> Tensor:
    """(B, 1, heads, n, n): the class token's row and column left out, the rest of each row brought back to 1."""
    weights = attn.weights(x)[:, :, 1:, 1:]
    total = weights.sum(-1, keepdim=True)
    return (weights / total.clamp_min(torch.finfo(total.dtype).tiny)).unsqueeze(1)


# -- checked settings -------------------------------------------------------------------------------------------------


def pit_settings(data: Mapping[str, Any]) -> PitSettings:
    """Type and check the shared settings."""
    shared = PitSettings.read("pit", data)
    patch, stride = shared.patch, shared.stride
    if stride > patch:
        raise TailorError(f"A pit whose stride {stride} exceeds its patch {patch} would skip pixels.")
    if any(side < patch or (side - patch) % stride for side in shared.image_size):
        raise TailorError(
            f"A pit needs image sides of one patch ({patch}) and whole strides ({stride}) more, "
            f"not {list(shared.image_size)}."
        )
    return shared


def check_pool(before: int, after: int) -> None:
    """Refuse heads that the pooling between two stages cannot double evenly."""
    if after % before:
        raise TailorError(f"A pit needs heads that divide those of the next stage: {after} is no multiple of {before}.")
