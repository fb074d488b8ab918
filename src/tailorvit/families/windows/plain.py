"""Plain four-stage network with attention in shifted windows (Swin, S3); names as in timm, so Swin weights load.

Padding is masked: a map that windows do not divide gives no attention to what is not there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache, partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tailorvit.families.base import Maps
from tailorvit.families.network import (
    DropPath,
    Init,
    NetworkSettings,
    PlainNetwork,
    Sides,
    State,
    Windows,
    drop_rates,
    hidden_width,
    picked,
    resized_map,
    start_scale,
)
from tailorvit.families.vit.plain import Mlp

# -- windows of a map -------------------------------------------------------------------------------------------------


def clipped(sides: Sides, window: int) -> Sides:
    """A window is never larger than the map."""
    return min(window, sides[0]), min(window, sides[1])


@dataclass(frozen=True)
class Cut:
    """How a map is cut: window and shift per axis, and the map padded (right and below) to whole windows."""

    sides: Sides
    window: Sides
    shift: Sides

    @classmethod
    def of(cls, sides: Sides, window: int, odd: bool) -> Cut:
        """Odd blocks are shifted by half a window, unless one window covers the axis."""
        high, wide = clipped(sides, window)
        shift = (high // 2 if odd and high < sides[0] else 0, wide // 2 if odd and wide < sides[1] else 0)
        return cls(sides, (high, wide), shift)

    @property
    def padded(self) -> Sides:
        """Sides that are whole windows."""
        (high, wide), (down, across) = self.sides, self.window
        return -(-high // down) * down, -(-wide // across) * across

    def split(self, x: Tensor) -> Tensor:
        """(B, H, W, C) to (B, windows, positions, C)."""
        (high, wide), (down, across) = self.padded, self.window
        if self.padded != self.sides:
            x = F.pad(x, (0, 0, 0, wide - self.sides[1], 0, high - self.sides[0]))
        if any(self.shift):
            x = torch.roll(x, (-self.shift[0], -self.shift[1]), (1, 2))
        x = x.reshape(x.shape[0], high // down, down, wide // across, across, x.shape[-1])
        return x.transpose(2, 3).flatten(3, 4).flatten(1, 2)

    def join(self, x: Tensor) -> Tensor:
        """Back to (B, H, W, C)."""
        (high, wide), (down, across) = self.padded, self.window
        x = x.reshape(x.shape[0], high // down, wide // across, down, across, x.shape[-1])
        x = x.transpose(2, 3).flatten(3, 4).flatten(1, 2)
        if any(self.shift):
            x = torch.roll(x, self.shift, (1, 2))
        return x[:, : self.sides[0], : self.sides[1]] if self.padded != self.sides else x

    def places(self) -> Tensor:
        """(windows, positions, 2): row and column of every position; beyond the sides it is padding."""
        rows, columns = torch.meshgrid(*(torch.arange(n, device="cpu") for n in self.padded), indexing="ij")
        return replace(self, sides=self.padded).split(torch.stack([rows, columns], -1)[None])[0]


@cache
def pair_mask(cut: Cut) -> Tensor | None:
    """(windows, positions, positions): minus infinity between regions that do not touch; None where all do."""
    with torch.inference_mode(False):  # remembered, so it must serve training too
        places = cut.places()
        sides, first = torch.tensor(cut.sides, device="cpu"), torch.tensor(cut.shift, device="cpu")
        # What the roll brought in from the other edge, and padding, are regions of their own.
        region = torch.cat([places < first, (places >= sides).any(-1, keepdim=True)], -1)
        apart = (region[:, :, None] != region[:, None]).any(-1)
        return torch.zeros(apart.shape, device="cpu").masked_fill(apart, float("-inf")) if apart.any() else None


@cache
def pair_offsets(window: Sides) -> Tensor:
    """(positions, positions, 2): row and column offset of query and key, counted from 0."""
    with torch.inference_mode(False):
        rows, columns = torch.meshgrid(*(torch.arange(n, device="cpu") for n in window), indexing="ij")
        places = torch.stack([rows, columns], -1).view(-1, 2)
        return places[:, None] - places[None] + torch.tensor(window, device="cpu") - 1


def window_bias(bias: Tensor | None, mask: Tensor | None, windows: int) -> Tensor | None:
    """What is added to the logits, (1, windows * heads, N, N), from a bias (heads, N, N) and the mask of the cut."""
    if bias is None:
        return None
    both = bias[None].expand(windows, -1, -1, -1) if mask is None else bias[None] + mask[:, None].to(bias.dtype)
    return both.flatten(0, 1)[None]


def window_heads(qkv: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """(B, windows, N, 3 * inner) to three times (B, windows * heads, N, head_dim)."""
    q, k, v = qkv.unflatten(-1, (3, heads, -1)).permute(3, 0, 1, 4, 2, 5).flatten(2, 3).unbind(0)
    return q, k, v


def window_attend(qkv: Tensor, heads: int, bias: Tensor | None) -> Tensor:
    """(B, windows, N, 3 * inner) to (B, windows, N, inner)."""
    windows = qkv.shape[1]
    q, k, v = window_heads(qkv, heads)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=None if bias is None else bias.to(q.dtype))
    out = out.unflatten(1, (windows, heads)).transpose(2, 3)
    # An explicit copy: whether one is needed depends on the kernel, and an exporter would freeze this machine's answer.
    mixed: Tensor = out.clone(memory_format=torch.contiguous_format).flatten(3)
    return mixed


# -- settings ---------------------------------------------------------------------------------------------------------


STAGES = 4


@dataclass(frozen=True)
class WindowSettings(NetworkSettings):
    """What every windowed network has, whoever its family is."""

    image_size: Sides = (224, 224)
    patch: int = 4
    channels: int = 3
    classes: int = 1000
    qkv_bias: bool = True
    eps: float = 1e-5
    init: Init = "scaled"

    @property
    def maps(self) -> tuple[Sides, ...]:
        """Tokens down and across in each stage; merging pads odd maps."""
        high, wide = self.image_size[0] // self.patch, self.image_size[1] // self.patch
        found = [(high, wide)]
        for _ in range(STAGES - 1):
            high, wide = -(-high // 2), -(-wide // 2)
            found.append((high, wide))
        return tuple(found)


@dataclass(frozen=True)
class WindowStage:
    """The shape of one stage: its width, and one entry per block of the rest."""

    embed: int
    window: tuple[int, ...]
    heads: tuple[int, ...]
    head_dim: tuple[int, ...]
    mlp: tuple[float, ...]
    # Where blocks stood in the stage they were taken from; none where they are its first ones. Odd places are shifted.
    places: tuple[int, ...] = ()

    def place(self, block: int) -> int:
        """Of a block, in the stage it was taken from."""
        return self.places[block] if self.places else block

    def to_dict(self) -> dict[str, Any]:
        """Plain data; places only where they say something."""
        found = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}
        return found if self.places else {k: v for k, v in found.items() if k != "places"}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> WindowStage:
        """Read :meth:`to_dict`'s form."""
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list | tuple) else v for k, v in data.items()}
        return cls(**values)


# -- modules ----------------------------------------------------------------------------------------------------------


class WindowPatches(nn.Module):
    """Patches to a normalised map."""

    def __init__(self, shared: WindowSettings, embed: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(shared.channels, embed, shared.patch, shared.patch)
        self.norm = nn.LayerNorm(embed, shared.eps)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to (B, rows, columns, embed)."""
        out: Tensor = self.norm(self.proj(x).permute(0, 2, 3, 1))
        return out


class WindowAttention(nn.Module):
    """Multi-head attention in windows with a table of biases by offset; heads * head_dim is free of the width."""

    mask: Tensor | None
    index: Tensor
    relative_position_bias_table: nn.Parameter | None

    def __init__(self, shared: WindowSettings, cut: Cut, embed: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.cut, self.heads = cut, heads
        self.qkv = nn.Linear(embed, 3 * heads * head_dim, bias=shared.qkv_bias)
        self.proj = nn.Linear(heads * head_dim, embed)
        down, across = cut.window
        self.register_buffer("mask", None, persistent=False)
        # A window of one position has one key: no bias could change its softmax.
        self.relative_position_bias_table = None
        if down * across > 1:
            self.relative_position_bias_table = nn.Parameter(torch.empty((2 * down - 1) * (2 * across - 1), heads))
            device, mask = self.proj.weight.device, pair_mask(cut)
            index = pair_offsets(cut.window) @ torch.tensor([2 * across - 1, 1], device="cpu")
            self.register_buffer("index", index.to(device), persistent=False)
            self.register_buffer("mask", None if mask is None else mask.to(device, copy=True), persistent=False)

    def bias(self, windows: int) -> Tensor | None:
        """What is added to the logits."""
        table = self.relative_position_bias_table
        return None if table is None else window_bias(table[self.index].permute(2, 0, 1), self.mask, windows)

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, embed) to (B, H, W, embed)."""
        x = self.cut.split(x)
        return self.cut.join(self.proj(window_attend(self.qkv(x), self.heads, self.bias(x.shape[1]))))

    def mixed(self, x: Tensor) -> Tensor:
        """Values as the heads mix them (B, H, W, heads * head_dim), before they are written to the stream."""
        x = self.cut.split(x)
        return self.cut.join(window_attend(self.qkv(x), self.heads, self.bias(x.shape[1])))

    def weights(self, x: Tensor) -> Tensor:
        """The attention maps (B, windows, heads, N, N) for an input of the block."""
        x = self.cut.split(x)
        q, k, _ = window_heads(self.qkv(x), self.heads)
        logits, bias = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5, self.bias(x.shape[1])
        weights: Tensor = (logits if bias is None else logits + bias).softmax(-1).unflatten(1, (-1, self.heads))
        return weights


class WindowBlock(nn.Module):
    """Pre-norm block on a map."""

    def __init__(self, shared: WindowSettings, stage: int, block: int, shape: WindowStage, drop: float) -> None:
        super().__init__()
        embed, odd = shape.embed, shape.place(block) % 2 == 1
        cut = Cut.of(shared.maps[stage], shape.window[block], odd)
        self.norm1 = nn.LayerNorm(embed, shared.eps)
        self.attn = WindowAttention(shared, cut, embed, shape.heads[block], shape.head_dim[block])
        self.norm2 = nn.LayerNorm(embed, shared.eps)
        self.mlp = Mlp(embed, hidden_width(embed, shape.mlp[block]))
        self.drop_path = DropPath(drop)

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, embed) to (B, H, W, embed)."""
        x = x + self.drop_path(self.attn(self.norm1(x)))
        out: Tensor = x + self.drop_path(self.mlp(self.norm2(x)))
        return out


def quarters(x: Tensor) -> Tensor:
    """(B, H, W, C) to (B, H/2, W/2, 4, C): the four neighbours, columns first; odd sides are padded."""
    x = F.pad(x, (0, 0, 0, x.shape[2] % 2, 0, x.shape[1] % 2))
    four: Tensor = x.unflatten(2, (-1, 2)).unflatten(1, (-1, 2)).permute(0, 1, 3, 4, 2, 5).flatten(3, 4)
    return four


class WindowMerge(nn.Module):
    """Four neighbours become one position of the next stage's width."""

    def __init__(self, shared: WindowSettings, before: int, embed: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * before, shared.eps)
        self.reduction = nn.Linear(4 * before, embed, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, before) to (B, H/2, W/2, embed)."""
        out: Tensor = self.reduction(self.norm(quarters(x).flatten(3)))
        return out


class WindowLayer(nn.Module):
    """One stage: merging (but for the first), then blocks."""

    def __init__(
        self, shared: WindowSettings, stage: int, before: int, shape: WindowStage, rates: Sequence[float]
    ) -> None:
        super().__init__()
        self.downsample: nn.Module = WindowMerge(shared, before, shape.embed) if stage else nn.Identity()
        self.blocks = nn.Sequential(*(WindowBlock(shared, stage, i, shape, rate) for i, rate in enumerate(rates)))

    def forward(self, x: Tensor) -> Tensor:
        """A map to the next."""
        out: Tensor = self.blocks(self.downsample(x))
        return out


class WindowHead(nn.Module):
    """Mean over the map, then the classifier."""

    def __init__(self, embed: int, classes: int) -> None:
        super().__init__()
        self.fc: nn.Module = nn.Linear(embed, classes) if classes else nn.Identity()

    def forward(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """(B, H, W, embed) to (B, classes), or to what the classifier would see."""
        pooled = x.mean((1, 2))
        out: Tensor = pooled if pre_logits else self.fc(pooled)
        return out


class PlainWindowed(PlainNetwork):
    """A windowed network of one fixed architecture."""

    kind: ClassVar[str] = "windowed"
    shared: WindowSettings
    head: WindowHead

    def __init__(
        self, shared: WindowSettings, stages: Sequence[WindowStage], drop_path: Sequence[float] | float = 0.0
    ) -> None:
        super().__init__()
        self.shared = WindowSettings(**{f.name: getattr(shared, f.name) for f in fields(WindowSettings)})
        self.shapes, self.shape = tuple(stages), {"stages": [s.to_dict() for s in stages]}
        rates = drop_rates(drop_path, sum(len(s.heads) for s in stages))
        self.patch_embed = WindowPatches(shared, stages[0].embed)
        self.layers = nn.Sequential()
        before, start = stages[0].embed, 0
        for i, shape in enumerate(stages):
            own = rates[start : start + len(shape.heads)]
            self.layers.append(WindowLayer(shared, i, before, shape, own))
            before, start = shape.embed, start + len(own)
        self.norm = nn.LayerNorm(before, shared.eps)
        self.head = self.classifier()
        start_windows(self, shared.init)

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], drop_path: float = 0.0) -> PlainWindowed:
        """The network of these settings, freshly initialised."""
        return cls(
            WindowSettings.of(settings, "stages"), [WindowStage.from_dict(s) for s in settings["stages"]], drop_path
        )

    @property
    def feature_info(self) -> list[dict[str, Any]]:
        """Per stage: its name, channels and pixels a side of one position."""
        return [
            {"module": f"layers.{i}", "num_chs": s.embed, "reduction": self.shared.patch * 2**i}
            for i, s in enumerate(self.shapes)
        ]

    def forward_features(self, x: Tensor) -> Tensor:
        """The normalised last map (B, H, W, embed)."""
        out: Tensor = self.norm(self.layers(self.patch_embed(x)))
        return out

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | Sequence[int] | None = None,
        norm: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> list[Tensor] | tuple[Tensor, list[Tensor]]:
        """What leaves the chosen stages (all; the last n; by number), as maps: channels first, or NHWC.

        Unless only these are wanted, :meth:`forward_features` comes first; arguments and order as in timm.
        """
        wanted = picked(indices, STAGES)
        x, found = self.patch_embed(x), {}
        for i, layer in enumerate(self.layers):
            x = layer(x)
            if i in wanted:
                kept = self.norm(x) if norm and i == STAGES - 1 else x
                found[i] = kept.permute(0, 3, 1, 2) if output_fmt == "NCHW" else kept
        maps = [found[i] for i in wanted]
        return maps if intermediates_only else (self.norm(x), maps)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Logits of :meth:`forward_features`' map, or what the classifier would see."""
        out: Tensor = self.head(x, pre_logits)
        return out

    def classifier(self) -> WindowHead:
        """Pooling and classifier together, under timm's name."""
        return WindowHead(self.num_features, self.num_classes)

    def get_classifier(self) -> nn.Module:
        """The classifier."""
        return self.head.fc

    def suits(self, side: int) -> bool:
        """Whole patches, and maps that can be merged three times."""
        maps = replace(self.shared, image_size=(side, side)).maps
        return side % self.shared.patch == 0 and all(min(sides) > 1 for sides in maps[: STAGES - 1])

    def size_rule(self) -> str:
        """What the sides must suit, in words."""
        return f"patches of {self.shared.patch} px, at least 5 a side"

    def settings_at(self, size: Sides, windows: Windows) -> dict[str, Any]:
        """Windows that grow with the image, unless they are to stay."""
        if windows == "keep":
            return {}
        scaled = scaled_windows(self, size)
        shapes = [replace(shape, window=tuple(scaled[w] for w in shape.window)) for shape in self.shapes]
        return {"stages": [shape.to_dict() for shape in shapes]}

    def carry(self, new: PlainWindowed, state: State) -> None:
        """Interpolate the bias tables over the offsets within a window."""
        old = dict(self.named_modules())
        for name, layer in new.named_modules():
            if not isinstance(layer, WindowAttention):
                continue
            key, before = f"{name}.relative_position_bias_table", old[name]
            assert isinstance(before, WindowAttention)
            if layer.relative_position_bias_table is None:
                state.pop(key, None)  # a window of one position has no bias
                continue
            sides = [tuple(2 * n - 1 for n in cut.window) for cut in (before.cut, layer.cut)]
            table = state.get(key)
            if table is None:  # there was one position and no bias: all offsets begin alike
                state[key] = torch.zeros_like(layer.relative_position_bias_table)
            else:
                grown = resized_map(table.T.unflatten(1, sides[0]), (sides[1][0], sides[1][1]), antialias=False)
                state[key] = grown.flatten(1).T.contiguous()


def scaled_windows(model: PlainWindowed, size: Sides) -> dict[int, int]:
    """Every window of the network and what it becomes: 7 to 12 and 14 to 24 from 224 to 384 px.

    A window that covered its map covers the new one, whatever the rounding says. One number stays one number in all
    stages, as a Swin has only one. Sides that change differently count by the root of the area.
    """
    down, across = (new / old for new, old in zip(size, model.shared.image_size, strict=True))
    ratio = down if down == across else (down * across) ** 0.5
    maps = replace(model.shared, image_size=size).maps
    found: dict[int, int] = {}
    for shape, before, after in zip(model.shapes, model.shared.maps, maps, strict=True):
        for window in shape.window:
            least = max(after) if window >= max(before) else 1
            found[window] = max(int(window * ratio + 0.5), least, found.get(window, 1))
    return found


def start_windows(model: nn.Module, init: str = "scaled") -> None:
    """Truncated normal for linear weights and tables, zero biases; convolutions as torch does."""
    for name, parameter in model.named_parameters():
        leaf = name.rsplit(".", 1)[-1]
        if name.startswith("patch_embed.") and "norm" not in name:
            continue
        if leaf.endswith("bias"):
            nn.init.zeros_(parameter)
        elif "norm" in name:
            nn.init.ones_(parameter)
        else:
            linear = leaf.endswith("weight") and "head" not in name
            inputs = parameter.shape[-1] if leaf == "qkv_weight" else parameter[0].numel()
            nn.init.trunc_normal_(parameter, std=start_scale(inputs, init) if linear else 0.02)


# -- attention maps ---------------------------------------------------------------------------------------------------


def attention(model: nn.Module, images: Tensor) -> Iterator[Maps]:
    """Block by block; each window is a group, and its positions say where on the unshifted map they lie."""
    assert isinstance(model, PlainWindowed)
    x = model.patch_embed(images)
    for s, layer in enumerate(model.layers, 1):
        assert isinstance(layer, WindowLayer)
        x = layer.downsample(x)
        for i, block in enumerate(layer.blocks, 1):
            assert isinstance(block, WindowBlock)
            attn = block.attn
            places = attn.cut.places().to(images.device, torch.float32)
            weights = partial(attn.weights, block.norm1(x))
            yield Maps(f"stage {s}, block {i}", s, i, attn.cut.sides, attn.heads, places, places, weights)
            x = block(x)
