"""Plain ladder: a small decoder beside a frozen trunk; it takes the trunk's taps, or images with the trunk inside."""

from __future__ import annotations

import copy
import math
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
    Share,
    Sides,
    drop_rates,
    hidden_width,
    picked,
)
from tailorvit.families.vit.plain import initialise
from tailorvit.trunks.network import PlainTrunk

TEMPERATURE = 0.1  # of the gates of design lst, as in Ladder Side-Tuning


@dataclass(frozen=True)
class LadderSettings(NetworkSettings):
    """What all networks of a ladder space share; an input is the stack of a trunk's taps (taps, tokens, width)."""

    image_size: Sides = (197, 768)  # tokens of a tap and their width
    channels: int = 12  # taps
    classes: int = 1000
    design: Literal["a", "evl", "lst"] = "a"
    head_dim: int = 64
    act: Literal["gelu", "quick_gelu"] = "gelu"
    mlp_dropout: Share = 0.0
    head_dropout: Share = 0.0
    eps: float = 1e-5

    @property
    def tokens(self) -> int:
        """Tokens of a tap."""
        return self.image_size[0]

    @property
    def features(self) -> int:
        """Width of the trunk."""
        return self.image_size[1]

    @property
    def one_query(self) -> bool:
        """Whether one learnt query looks at the taps; else all tokens go through the decoder."""
        return self.design != "lst"

    @property
    def places(self) -> tuple[int, int] | None:
        """Patches down and across, if all tokens but a class token form a square, or all of them; else unknown."""
        sides = [math.isqrt(n) for n in (self.tokens - 1, self.tokens) if n > 0 and math.isqrt(n) ** 2 == n]
        return (sides[0], sides[0]) if sides else None

    def width(self, embed: int) -> int:
        """Width of the decoder: EVL's is the trunk's."""
        return self.features if self.design == "evl" else embed

    def hidden(self, embed: int, ratio: float) -> int:
        """Width inside an MLP; EVL rounds, we cut."""
        return round(self.features * ratio) if self.design == "evl" else hidden_width(embed, ratio)


def ladder_act(x: Tensor, act: str) -> Tensor:
    """GELU, or CLIP's quick form of it."""
    return x * torch.sigmoid(1.702 * x) if act == "quick_gelu" else F.gelu(x)


class LadderAttention(nn.Module):
    """Attention of x on y, whose inner width is heads * head_dim."""

    def __init__(self, width: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.heads, self.scale = heads, head_dim**-0.5
        self.q, self.kv = nn.Linear(width, heads * head_dim), nn.Linear(width, 2 * heads * head_dim)
        self.proj = nn.Linear(heads * head_dim, width)

    def _split(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q = self.q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = self.kv(y).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        return q, k, v

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """(B, Q, width) and (B, N, width) to (B, Q, width)."""
        mixed = F.scaled_dot_product_attention(*self._split(x, y), scale=self.scale)
        out: Tensor = self.proj(mixed.transpose(1, 2).flatten(2))
        return out

    def weights(self, x: Tensor, y: Tensor) -> Tensor:
        """The attention maps (B, heads, Q, N)."""
        q, k, _ = self._split(x, y)
        weights: Tensor = (q @ k.transpose(-2, -1) * self.scale).float().softmax(-1)
        return weights


class LadderMlp(nn.Module):
    """Two linear layers around an activation and, in EVL, dropout."""

    def __init__(self, shared: LadderSettings, width: int, hidden: int) -> None:
        super().__init__()
        self.act, self.drop = shared.act, nn.Dropout(shared.mlp_dropout)
        self.fc1, self.fc2 = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """Same shape out as in."""
        out: Tensor = self.fc2(self.drop(ladder_act(self.fc1(x), self.act)))
        return out


class LadderTap(nn.Module):
    """A rung: what a trunk layer gives, at the decoder's width."""

    def __init__(self, shared: LadderSettings, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(shared.features, shared.eps) if shared.one_query else nn.Identity()
        self.proj = nn.Linear(shared.features, width)
        self.alpha = None if shared.one_query else nn.Parameter(torch.zeros(1))

    def forward(self, y: Tensor) -> Tensor:
        """(B, N, features) to (B, N, width)."""
        out: Tensor = self.proj(self.norm(y))
        return out

    def mixed(self, x: Tensor, y: Tensor) -> Tensor:
        """What the decoder has so far and the tap, by the gate."""
        assert self.alpha is not None
        gate = torch.sigmoid(self.alpha / TEMPERATURE)
        out: Tensor = gate * x + (1 - gate) * self(y)
        return out


class LadderBlock(nn.Module):
    """Pre-norm block: the query looks at a tap (norm3 is the tap's), or all tokens at each other."""

    def __init__(self, shared: LadderSettings, embed: int, heads: int, ratio: float, drop: float) -> None:
        super().__init__()
        width = shared.width(embed)
        self.norm1 = nn.LayerNorm(width, shared.eps)
        self.norm3 = nn.LayerNorm(width, shared.eps) if shared.one_query else None
        self.attn = LadderAttention(width, heads, shared.head_dim)
        self.norm2 = nn.LayerNorm(width, shared.eps)
        self.mlp = LadderMlp(shared, width, shared.hidden(embed, ratio))
        self.drop_path = DropPath(drop)

    def looking(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The two inputs of the attention."""
        mine = self.norm1(x)
        return mine, mine if self.norm3 is None else self.norm3(y)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """(B, Q, width) to (B, Q, width)."""
        x = x + self.drop_path(self.attn(*self.looking(x, y)))
        out: Tensor = x + self.drop_path(self.mlp(self.norm2(x)))
        return out


class PlainLadder(PlainNetwork):
    """A ladder of one fixed architecture: block j of a looks at the j-th of the last a taps."""

    kind: ClassVar[str] = "ladder"
    POOLS: ClassVar[Mapping[str, str | None]] = {"avg": None, "token": None}  # the design pools in one way only
    takes_features: ClassVar[bool] = True
    shared: LadderSettings
    trunk: PlainTrunk | None

    def __init__(
        self,
        shared: LadderSettings,
        embed: int,
        heads: Sequence[int],
        mlp: Sequence[float],
        drop_path: Sequence[float] | float = 0.0,
        trunk: PlainTrunk | None = None,
    ) -> None:
        super().__init__()
        self.shared, self.trunk, depth, width = shared, None, len(heads), shared.width(embed)
        self.shape = {"embed": embed, "heads": list(heads), "mlp": list(mlp)}
        self.query = nn.Parameter(torch.empty(1, 1, width)) if shared.one_query else None
        self.entry = None if shared.one_query else nn.Linear(shared.features, width)
        self.taps = nn.ModuleList(LadderTap(shared, width) for _ in range(0 if shared.design == "evl" else depth))
        self.blocks = nn.ModuleList(
            LadderBlock(shared, embed, h, m, r)
            for h, m, r in zip(heads, mlp, drop_rates(drop_path, depth), strict=True)
        )
        self.norm = nn.LayerNorm(width, shared.eps)
        self.head_drop = nn.Dropout(shared.head_dropout)
        self.head = self.classifier()
        start_ladder(self)
        self.trunk = trunk

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], drop_path: float = 0.0) -> PlainLadder:
        """The network of these settings, freshly initialised; a trunk's weights are to be loaded."""
        shared = LadderSettings.of(settings, "embed", "heads", "mlp", "trunk")
        trunk = PlainTrunk.from_settings(settings["trunk"]) if settings.get("trunk") else None
        return cls(shared, settings["embed"], settings["heads"], settings["mlp"], drop_path, trunk)

    @property
    def settings(self) -> dict[str, Any]:
        """All of the network but its weights, as plain data, with the trunk's where there is one."""
        return {**super().settings, "trunk": None if self.trunk is None else self.trunk.settings}

    @property
    def not_resizable(self) -> str:
        """Always: it decodes one trunk at one size."""
        return "its features are tied to the trunk's image size; run it again"

    def attached(self, trunk: PlainTrunk) -> PlainLadder:
        """A copy that takes images: the trunk comes first, frozen."""
        told = (trunk.design.taps, trunk.design.tokens, trunk.design.embed)
        if told != (self.shared.channels, *self.shared.image_size):
            raise ValueError(
                f"A trunk with taps {told} does not fit {(self.shared.channels, *self.shared.image_size)}."
            )
        found = copy.deepcopy(self)
        found.trunk = trunk.requires_grad_(False)
        return found.train(self.training)

    def train(self, mode: bool = True) -> PlainLadder:
        """As usual; a trunk stays in evaluation, as it never learns."""
        super().train(mode)
        if self.trunk is not None:
            self.trunk.eval()
        return self

    @property
    def feature_info(self) -> list[dict[str, Any]]:
        """Per block: its name, channels and pixels a side of one position (tokens, without a trunk).

        A query sees the whole picture, so its map is a single position.
        """
        whole, one = self.shared.tokens, 1
        if self.trunk is not None:
            whole, one = max(self.trunk.design.image_size), self.trunk.design.patch
        row = {"num_chs": self.norm.normalized_shape[0], "reduction": whole if self.shared.one_query else one}
        return [{"module": f"blocks.{i}", **row} for i in range(len(self.blocks))]

    @property
    def places(self) -> tuple[int, int] | None:
        """Patches down and across: the trunk's, or what the number of tokens says."""
        return self.shared.places if self.trunk is None else self.trunk.design.grid

    def steps(self, x: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Per block its two inputs and its output; from images where there is a trunk, else from taps."""
        taps = x if self.trunk is None else self.trunk(x)
        first = self.shared.channels - len(self.blocks)
        if self.query is not None:
            x = self.query.expand(taps.shape[0], -1, -1)
        else:
            assert self.entry is not None
            x = self.entry(taps[:, max(first - 1, 0)])  # the tap before; where there is none, the first
        for i, block in enumerate(self.blocks):
            y = taps[:, first + i]
            if self.taps:
                rung = self.taps[i]
                assert isinstance(rung, LadderTap)
                x, y = (x, rung(y)) if self.shared.one_query else (rung.mixed(x, y), y)
            before, x = x, block(x, y)
            yield before, y, x

    def _features(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        return x[:, 0] if self.shared.one_query else x

    def forward_features(self, x: Tensor) -> Tensor:
        """The normalised query (B, width), or in design lst the normalised tokens (B, N, width)."""
        return self._features([out for _, _, out in self.steps(x)][-1])

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | Sequence[int] | None = None,
        norm: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> list[Tensor] | tuple[Tensor, list[Tensor]]:
        """What leaves the chosen blocks (all; the last n; by number), as maps (NCHW) or tokens (NLC).

        A query is a map of one position; tokens whose places are unknown are one column. Unless only these are
        wanted, :meth:`forward_features` comes first; arguments and order as in timm.
        """
        left = [out for _, _, out in self.steps(x)]
        high, wide = (1, 1) if self.shared.one_query else self.places or (self.shared.tokens, 1)
        found = []
        for i in picked(indices, len(left)):
            patches = (self.norm(left[i]) if norm else left[i])[:, -high * wide :]
            found.append(patches.transpose(1, 2).unflatten(-1, (high, wide)) if output_fmt == "NCHW" else patches)
        return found if intermediates_only else (self._features(left[-1]), found)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Logits of :meth:`forward_features`, or what the head would see: the query, or the mean of all tokens."""
        x = x if self.shared.one_query else x.mean(1)
        out: Tensor = x if pre_logits else self.head(self.head_drop(x))
        return out


def start_ladder(model: nn.Module) -> None:
    """As a ViT starts; gates half open."""
    initialise(model)
    for name, parameter in model.named_parameters():
        if name.endswith("alpha"):
            nn.init.zeros_(parameter)


# -- attention maps ---------------------------------------------------------------------------------------------------


def attention(model: nn.Module, images: Tensor) -> Iterator[Maps]:
    """Block by block; nothing where the places of the tokens are not known (see :attr:`LadderSettings.places`).

    A lone query has no place of its own and is put at the centre of the grid.
    """
    assert isinstance(model, PlainLadder)
    if model.places is None:
        return
    high, wide = model.places
    rows, columns = torch.meshgrid(torch.arange(high), torch.arange(wide), indexing="ij")
    keys = torch.stack([rows, columns], -1).view(1, -1, 2).to(images.device, torch.float32)
    queries = keys.mean(1, keepdim=True) if model.shared.one_query else keys
    for i, (block, (x, y, _)) in enumerate(zip(model.blocks, model.steps(images), strict=True), 1):
        assert isinstance(block, LadderBlock)
        weights = partial(_on_patches, block, x, y, high * wide)
        yield Maps(f"block {i}", None, i, (high, wide), block.attn.heads, queries, keys, weights)


def _on_patches(block: LadderBlock, x: Tensor, y: Tensor, patches: int) -> Tensor:
    """(B, 1, heads, Q, n): tokens before the patches left out, the rest of each row brought back to 1."""
    weights = block.attn.weights(*block.looking(x, y))[..., -patches:]
    weights = weights[:, :, -patches:] if weights.shape[2] > 1 else weights
    total = weights.sum(-1, keepdim=True)
    return (weights / total.clamp_min(torch.finfo(total.dtype).tiny)).unsqueeze(1)


# -- checked settings -------------------------------------------------------------------------------------------------


def ladder_settings(data: Mapping[str, Any]) -> LadderSettings:
    """Type and check the shared settings."""
    size = data.get("image_size", LadderSettings.image_size)
    if not isinstance(size, list | tuple) or len(size) != 2:
        raise TailorError(f"A ladder's image_size is [tokens, width] of its trunk features, not {size}.")
    return LadderSettings.read("ladder", data)


def check_size(shared: LadderSettings, embed: int, depth: int) -> None:
    """Refuse more blocks than the trunk gives features for, or another width than design evl has."""
    if depth > shared.channels:
        raise TailorError(f"A ladder has one block a tap: depth {depth} is more than the {shared.channels} taps.")
    if shared.design == "evl" and embed != shared.features:
        raise TailorError(f"The evl ladder is as wide as its trunk: embed must be {shared.features}, not {embed}.")
