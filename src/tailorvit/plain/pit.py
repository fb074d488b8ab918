"""Plain pooling-based vision transformer (PiT): three stages, pooled in between; names as in timm, so weights load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tailorvit.plain.network import DropPath, PlainNetwork, drop_rates, hidden_width, picked
from tailorvit.plain.vit import NARROW, Mlp


@dataclass(frozen=True)
class PitFrame:
    """What every member of a PiT space shares."""

    image_size: tuple[int, int] = (224, 224)
    patch: int = 16
    stride: int = 8  # half a patch: neighbouring patches overlap
    channels: int = 3
    classes: int = 1000
    eps: float = 1e-6
    init: Literal["small", "official"] = "small"  # official: convolutions start at N(0, 1), as released

    @property
    def grids(self) -> tuple[tuple[int, int], ...]:
        """Patches down and across in each of the three stages."""
        first = tuple((side - self.patch) // self.stride + 1 for side in self.image_size)
        second = tuple((side - 1) // 2 + 1 for side in first)
        third = tuple((side - 1) // 2 + 1 for side in second)
        return (first[0], first[1]), (second[0], second[1]), (third[0], third[1])

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}


class PitPatches(nn.Module):
    """Overlapping patches to a map of features."""

    def __init__(self, frame: PitFrame, embed: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(frame.channels, embed, frame.patch, frame.stride)

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

    POOLS: ClassVar[Mapping[str, str | None]] = {"token": None}
    frame: PitFrame

    def __init__(
        self,
        frame: PitFrame,
        base: int,
        depth: Sequence[int],
        heads: Sequence[int],
        mlp: float,
        drop_path: Sequence[float] | float = 0.0,
    ) -> None:
        super().__init__()
        self.frame = frame
        self.widths = {"base": base, "depth": list(depth), "heads": list(heads), "mlp": mlp}
        rates, embeds = iter(drop_rates(drop_path, sum(depth))), [base * h for h in heads]
        self.patch_embed = PitPatches(frame, embeds[0])
        self.pos_embed = nn.Parameter(torch.empty(1, embeds[0], *frame.grids[0]))
        self.cls_token = nn.Parameter(torch.empty(1, 1, embeds[0]))
        self.transformers = nn.ModuleList(
            PitStage(
                PitPool(embeds[s - 1], embeds[s]) if s else None,
                [PitBlock(embeds[s], heads[s], mlp, next(rates), frame.eps) for _ in range(depth[s])],
            )
            for s in range(len(heads))
        )
        self.norm = nn.LayerNorm(embeds[-1], frame.eps)
        self.head = self.classifier()
        pit_initialise(self, min(embeds), frame.init)

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], drop_path: float = 0.0) -> PlainPiT:
        """The network of these settings, freshly initialised."""
        widths = {k: settings[k] for k in ("base", "depth", "heads", "mlp")}
        fixed = {k: v for k, v in settings.items() if k not in widths}
        return cls(PitFrame(**{**fixed, "image_size": tuple(fixed["image_size"])}), **widths, drop_path=drop_path)

    @property
    def feature_info(self) -> list[dict[str, Any]]:
        """Per stage: its name, channels and pixels a side of one position."""
        base, stride = self.widths["base"], self.frame.stride
        return [
            {"module": f"transformers.{s}", "num_chs": base * heads, "reduction": stride * 2**s}
            for s, heads in enumerate(self.widths["heads"])
        ]

    def _stages(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """The map after each stage, and the class token after the last."""
        x = self.patch_embed(x) + self.pos_embed
        token, maps = self.cls_token.expand(x.shape[0], -1, -1), []
        for stage, grid in zip(self.transformers, self.frame.grids, strict=True):
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


def pit_initialise(model: nn.Module, embed: int, init: str = "small", inputs: Mapping[str, int] | None = None) -> None:
    """Truncated normal 0.02 for weights, token and positions; zero biases; convolutions N(0, 1) when ``official``.

    Narrow networks start at half a unit of gain, as the ViT does (plain/vit.py). ``inputs`` says how many numbers an
    output of a parameter is summed from, where its shape does not.
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
            scaled = 0.5 * fan**-0.5 if leaf.endswith("weight") and "head" not in name and embed < NARROW else 0.0
            nn.init.trunc_normal_(parameter, std=max(0.02, scaled))
