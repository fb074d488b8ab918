"""Elastic four-stage network with attention in windows, shared by the swin and windowed families.

A family turns an architecture into stages (``WindowStage``); everything else is shared. Parameters have shapes in which
every slice is a prefix: heads and head width on two axes, bias tables with the smallest offsets first (0, -1, 1, -2,
...), the four quarters of a merge side by side per channel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tailorvit.arch import Arch
from tailorvit.elastic.layers import LayerNorm, Linear, Mlp, PatchEmbed, drop_path
from tailorvit.elastic.slicing import Width, prefix
from tailorvit.errors import TailorError
from tailorvit.families.assemble import assemble
from tailorvit.families.base import Layer, require_room
from tailorvit.families.network import Sides, hidden_width
from tailorvit.families.windows.plain import (
    STAGES,
    Cut,
    PlainWindowed,
    WindowSettings,
    WindowStage,
    clipped,
    pair_mask,
    pair_offsets,
    quarters,
    start_windows,
    window_attend,
    window_bias,
)
from tailorvit.space import Space

Stages = tuple[WindowStage, ...]
Slices = dict[str, tuple[Width | None, ...]]

# -- cached tensors: functions of shapes alone ------------------------------------------------------------------------


def centre_first(offset: Tensor) -> Tensor:
    """The place of an offset in a table ordered 0, -1, 1, -2, 2, ...: window w uses the first 2w - 1 entries."""
    return 2 * offset.abs() - (offset < 0).long()


@cache
def _ranks(window: Sides, device: torch.device) -> tuple[Tensor, Tensor]:
    """Row and column of the table for every pair of positions."""
    with torch.inference_mode(False):
        offsets = pair_offsets(window) - torch.tensor(window, device="cpu") + 1
        down, across = centre_first(offsets).to(device).unbind(-1)
        return down.contiguous(), across.contiguous()


@cache
def _mask(cut: Cut, device: torch.device) -> Tensor | None:
    mask = pair_mask(cut)
    with torch.inference_mode(False):
        return None if mask is None else mask.to(device)


# -- modules ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BlockPlan:
    """The widths and the window of one block for one call."""

    heads: Width
    dim: Width
    hidden: Width
    cut: Cut


class Attention(nn.Module):
    """Window attention whose heads, head width and window come with the call."""

    def __init__(self, embed: int, heads: int, dim: int, window: Sides, bias: bool) -> None:
        super().__init__()
        self.window = window
        self.qkv_weight = nn.Parameter(torch.empty(3, heads, dim, embed))
        self.qkv_bias = nn.Parameter(torch.empty(3, heads, dim)) if bias else None
        self.proj_weight = nn.Parameter(torch.empty(embed, heads, dim))
        self.proj_bias = nn.Parameter(torch.empty(embed))
        self.rel_table: nn.Parameter | None = None
        if window != (1, 1):
            self.rel_table = nn.Parameter(torch.empty(2 * window[0] - 1, 2 * window[1] - 1, heads))

    def forward(self, x: Tensor, embed: Width, plan: BlockPlan) -> Tensor:
        """(B, H, W, embed) to (B, H, W, embed)."""
        weight = prefix(self.qkv_weight, None, plan.heads, plan.dim, embed).flatten(0, 2)
        bias = None if self.qkv_bias is None else prefix(self.qkv_bias, None, plan.heads, plan.dim).flatten()
        x, added = plan.cut.split(x), None
        if self.rel_table is not None and plan.cut.window != (1, 1):
            table = prefix(self.rel_table, *offsets(plan.cut.window), plan.heads)
            added = table[_ranks(plan.cut.window, x.device)].permute(2, 0, 1)
        added = window_bias(added, _mask(plan.cut, x.device), x.shape[1])
        out = window_attend(F.linear(x, weight, bias), plan.heads.size, added)
        projection = prefix(self.proj_weight, embed, plan.heads, plan.dim).flatten(1)
        return plan.cut.join(F.linear(out, projection, prefix(self.proj_bias, embed)))


def offsets(window: Sides) -> tuple[Width, Width]:
    """The rows and columns of a bias table that a window uses."""
    return Width(2 * window[0] - 1), Width(2 * window[1] - 1)


class Block(nn.Module):
    """Pre-norm block whose widths come with the call."""

    def __init__(self, shared: WindowSettings, sides: Sides, shape: WindowStage, block: int, rate: float) -> None:
        super().__init__()
        embed, window = shape.embed, clipped(sides, shape.window[block])
        self.rate = rate
        self.norm1 = LayerNorm(embed, shared.eps)
        self.attn = Attention(embed, shape.heads[block], shape.head_dim[block], window, shared.qkv_bias)
        self.norm2 = LayerNorm(embed, shared.eps)
        self.mlp = Mlp(embed, hidden_width(embed, shape.mlp[block]))

    def _branch(self, x: Tensor) -> Tensor:
        return drop_path(x.flatten(1, 2), self.rate, self.training).view(x.shape)

    def forward(self, x: Tensor, embed: Width, plan: BlockPlan) -> Tensor:
        """(B, H, W, embed) to (B, H, W, embed)."""
        x = x + self._branch(self.attn(self.norm1(x, embed), embed, plan))
        return x + self._branch(self.mlp(self.norm2(x, embed), embed, plan.hidden))


class Merge(nn.Module):
    """Four neighbours to one; entry 4c + k of the input is channel c of quarter k, so fewer channels are a prefix."""

    def __init__(self, before: int, embed: int, eps: float) -> None:
        super().__init__()
        self.norm = LayerNorm(4 * before, eps)
        self.reduction_weight = nn.Parameter(torch.empty(embed, 4 * before))

    def forward(self, x: Tensor, before: Width, embed: Width) -> Tensor:
        """(B, H, W, before) to (B, H/2, W/2, embed)."""
        four = Width(4 * before.size)
        x = self.norm(quarters(x).transpose(-1, -2).flatten(3), four)
        return F.linear(x, prefix(self.reduction_weight, embed, four))


class Stage(nn.Module):
    """Merging (in all stages but the first), then blocks, of which an architecture uses those in its places."""

    def __init__(
        self, shared: WindowSettings, stage: int, before: int, shape: WindowStage, rates: Sequence[float]
    ) -> None:
        super().__init__()
        self.downsample = Merge(before, shape.embed, shared.eps) if stage else None
        self.blocks = nn.ModuleList(Block(shared, shared.maps[stage], shape, i, rate) for i, rate in enumerate(rates))


# -- model ------------------------------------------------------------------------------------------------------------


class ElasticWindows(nn.Module):
    """The supernet and every sub-network: ``model(x, arch)``; no arch means the largest."""

    def __init__(
        self, space: Space, shared: WindowSettings, stages_of: Callable[[Any, Arch], Stages], drop_path: float = 0.0
    ) -> None:
        super().__init__()
        self.space, self.shared, self.stages_of = space, shared, stages_of
        self.shapes = stages_of(shared, space.hull())
        depth = sum(len(s.heads) for s in self.shapes)
        # Rates belong to the absolute block index, so a block keeps its rate in every sub-network.
        rates = [drop_path * i / max(depth - 1, 1) for i in range(depth)]
        embed = self.shapes[0].embed
        self.patch_embed = PatchEmbed(shared.channels, shared.patch, embed)
        self.patch_norm = LayerNorm(embed, shared.eps)
        self.layers = nn.ModuleList()
        for i, shape in enumerate(self.shapes):
            own, rates = rates[: len(shape.heads)], rates[len(shape.heads) :]
            self.layers.append(Stage(shared, i, embed, shape, own))
            embed = shape.embed
        self.norm = LayerNorm(embed, shared.eps)
        self.head = Linear(embed, shared.classes)
        start_windows(self, shared.init)
        conv = nn.Conv2d(shared.channels, self.shapes[0].embed, shared.patch)  # for torch's initialisation
        assert conv.bias is not None
        self.patch_embed.weight.data.copy_(conv.weight.data)
        self.patch_embed.bias.data.copy_(conv.bias.data)

    def _require(self, stages: Stages) -> None:
        """Refuse what the supernet has no weights for."""
        for s, (stage, there) in enumerate(zip(stages, self.shapes, strict=True)):
            sides = self.shared.maps[s]
            needs = [("depth", len(stage.heads), len(there.heads)), ("embed", stage.embed, there.embed)]
            for i in range(min(len(stage.heads), len(there.heads))):
                at = stage.place(i)
                needs += [
                    ("heads", stage.heads[i], there.heads[at]),
                    ("head width", stage.head_dim[i], there.head_dim[at]),
                    ("mlp", hidden_width(stage.embed, stage.mlp[i]), hidden_width(there.embed, there.mlp[at])),
                    ("window", max(clipped(sides, stage.window[i])), max(clipped(sides, there.window[at]))),
                ]
            require_room(needs, f" of stage {s + 1}")

    def plan(self, arch: Arch) -> list[tuple[Width, dict[int, BlockPlan]]]:
        """Per stage its width and, by their places, the widths and cuts of its blocks."""
        stages = self.stages_of(self.shared, arch)
        self._require(stages)
        return [
            (
                Width(shape.embed),
                {
                    at: BlockPlan(
                        Width(h), Width(d), Width(hidden_width(shape.embed, m)), Cut.of(sides, w, at % 2 == 1)
                    )
                    for at, h, d, m, w in zip(
                        map(shape.place, range(len(shape.heads))),
                        shape.heads,
                        shape.head_dim,
                        shape.mlp,
                        shape.window,
                        strict=True,
                    )
                },
            )
            for shape, sides in zip(stages, self.shared.maps, strict=True)
        ]

    def forward(self, x: Tensor, arch: Arch | None = None) -> Tensor:
        """Logits (B, classes) of one architecture."""
        return self.forward_head(self.forward_features(x, arch), arch)

    def forward_features(self, x: Tensor, arch: Arch | None = None) -> Tensor:
        """The normalised last map (B, H, W, embed) of one architecture."""
        plan = self.plan(self.space.largest() if arch is None else arch)
        before = plan[0][0]
        x = self.patch_norm(self.patch_embed(x, before), before).unflatten(1, self.shared.maps[0])
        for layer, (embed, blocks) in zip(self.layers, plan, strict=True):
            assert isinstance(layer, Stage)
            if layer.downsample is not None:
                x = layer.downsample(x, before, embed)
            for at, widths in blocks.items():
                x = layer.blocks[at](x, embed, widths)
            before = embed
        out: Tensor = self.norm(x, before)
        return out

    def forward_head(self, x: Tensor, arch: Arch | None = None) -> Tensor:
        """Logits of :meth:`forward_features`' map."""
        last = self.stages_of(self.shared, self.space.largest() if arch is None else arch)[-1]
        logits: Tensor = self.head(x.mean((1, 2)), Width(last.embed), None)
        return logits

    def slices(self, arch: Arch) -> Slices:
        """Per parameter, the prefix this arch uses."""
        plan = self.plan(arch)
        d, last = plan[0][0], plan[-1][0]
        used: Slices = {
            **{f"patch_{part}.{leaf}": (d,) for part in ("embed", "norm") for leaf in ("weight", "bias")},
            "norm.weight": (last,),
            "norm.bias": (last,),
            "head.weight": (None, last),
            "head.bias": (),
        }
        for s, (embed, blocks) in enumerate(plan):
            if s:
                four = Width(4 * plan[s - 1][0].size)
                used |= {f"layers.{s}.downsample.norm.{leaf}": (four,) for leaf in ("weight", "bias")}
                used[f"layers.{s}.downsample.reduction_weight"] = (embed, four)
            for at, block in blocks.items():
                used |= {f"layers.{s}.blocks.{at}.{k}": v for k, v in _block_slices(embed, block).items()}
        names = dict(self.named_parameters())
        return {k: v for k, v in used.items() if k in names}


def _block_slices(embed: Width, plan: BlockPlan) -> Slices:
    used: Slices = {
        **{f"norm{n}.{leaf}": (embed,) for n in (1, 2) for leaf in ("weight", "bias")},
        "attn.qkv_weight": (None, plan.heads, plan.dim, embed),
        "attn.qkv_bias": (None, plan.heads, plan.dim),
        "attn.proj_weight": (embed, plan.heads, plan.dim),
        "attn.proj_bias": (embed,),
        "mlp.fc1.weight": (plan.hidden, embed),
        "mlp.fc1.bias": (plan.hidden,),
        "mlp.fc2.weight": (embed, plan.hidden),
        "mlp.fc2.bias": (embed,),
    }
    if plan.cut.window != (1, 1):
        used["attn.rel_table"] = (*offsets(plan.cut.window), plan.heads)
    return used


def extract(model: nn.Module, arch: Arch, share: bool = False) -> PlainWindowed:
    """The plain network that holds this architecture's slice of the weights, in timm's order; blocks numbered anew."""
    assert isinstance(model, ElasticWindows)
    stages = model.stages_of(model.shared, arch)
    rates: list[float] = []
    for layer, shape in zip(model.layers, stages, strict=True):
        assert isinstance(layer, Stage)
        every = [b.rate for b in layer.blocks if isinstance(b, Block)]
        rates += [every[shape.place(i)] for i in range(len(shape.heads))]
    weights, state = dict(model.named_parameters()), {}
    for name, widths in model.slices(arch).items():
        at = name.split(".")
        if at[0] == "layers" and at[2] == "blocks":
            places = stages[int(at[1])].places
            at[3] = str(places.index(int(at[3]))) if places else at[3]
        state[_plain_name(".".join(at))] = _plain_weight(name, prefix(weights[name].detach(), *widths))
    return assemble(lambda: PlainWindowed(model.shared, stages, rates), state, share)


@torch.no_grad()
def fill(model: nn.Module, network: nn.Module) -> None:
    """Put a plain network into a supernet as its largest member: :func:`extract` the other way round."""
    assert isinstance(model, ElasticWindows)
    state = network.state_dict()
    for name, parameter in model.named_parameters():
        parameter.copy_(_elastic_weight(name, state[_plain_name(name)], parameter.shape))


def _plain_name(name: str) -> str:
    for ours, theirs in RENAMED:
        name = name.replace(ours, theirs)
    return name


def _plain_weight(name: str, weight: Tensor) -> Tensor:
    """A slice of a supernet's weight in the shape and order of the plain network."""
    if name.endswith(("qkv_weight", "qkv_bias")):
        return weight.flatten(0, 2)
    if name.endswith("proj_weight"):
        return weight.flatten(1)
    if ".downsample." in name:
        channels: Tensor = weight.unflatten(-1, (-1, 4))
        return channels.transpose(-1, -2).flatten(-2)
    if name.endswith("rel_table"):
        down, across = (_rows(n, weight.device) for n in weight.shape[:2])
        return weight[down][:, across].flatten(0, 1)
    return weight


def _elastic_weight(name: str, weight: Tensor, shape: torch.Size) -> Tensor:
    """The plain network's weight in the shape and order of a supernet's."""
    if ".downsample." in name:
        neighbours: Tensor = weight.unflatten(-1, (4, -1))
        return neighbours.transpose(-1, -2).flatten(-2)
    if name.endswith("rel_table"):
        down, across = (_rows(n, weight.device).argsort() for n in shape[:2])
        table: Tensor = weight.unflatten(0, shape[:2])
        return table[down][:, across]
    return weight.view(shape)


def _rows(count: int, device: torch.device) -> Tensor:
    """Where the rows of a plain table, from the most negative offset on, lie in a supernet's."""
    return centre_first(torch.arange(count, device=device) - count // 2)


RENAMED = (
    ("patch_embed.", "patch_embed.proj."),
    ("patch_norm.", "patch_embed.norm."),
    ("qkv_", "qkv."),
    ("proj_", "proj."),
    ("reduction_", "reduction."),
    ("rel_table", "relative_position_bias_table"),
    ("head.", "head.fc."),
)


# -- layer inventory and settings -------------------------------------------------------------------------------------


AnySettings = TypeVar("AnySettings", bound=WindowSettings)

# -- layer inventory --------------------------------------------------------------------------------------------------


def stem_rows(shared: WindowSettings, embed: int) -> list[Layer]:
    """Patches and their norm."""
    pixels, (high, wide) = shared.channels * shared.patch**2, shared.maps[0]
    return [Layer("patch_embed", (pixels + 1) * embed + 2 * embed, pixels * high * wide * embed)]


def merge_rows(shared: WindowSettings, stage: int, before: int, embed: int) -> list[Layer]:
    """Merging into a stage (counted from 0)."""
    high, wide = shared.maps[stage]
    return [Layer("merge", 8 * before + 4 * before * embed, high * wide * 4 * before * embed)]


def head_rows(shared: WindowSettings, embed: int) -> list[Layer]:
    """The last norm and the classifier."""
    return [Layer("norm", 2 * embed, 0), Layer("head", shared.classes * (embed + 1), shared.classes * embed)]


def block_rows(
    shared: WindowSettings, stage: int, embed: int, window: int, heads: int, dim: int, ratio: float
) -> list[Layer]:
    """One block of a stage (counted from 0); Q-K-V and projection see whole windows, so padding is counted too."""
    cut, q, hidden = Cut.of(shared.maps[stage], window, False), heads * dim, hidden_width(embed, ratio)
    (high, wide), (down, across) = cut.padded, cut.window
    tokens, seen, keys = shared.maps[stage][0] * shared.maps[stage][1], high * wide, down * across
    table = (2 * down - 1) * (2 * across - 1) * heads if keys > 1 else 0
    return [
        Layer("blocks.norm", 4 * embed, 0),
        Layer("blocks.attn.qkv", 3 * q * embed + (3 * q if shared.qkv_bias else 0), 3 * seen * embed * q),
        Layer("blocks.attn", 0, 2 * seen * keys * q),
        Layer("blocks.attn.relative", table, 0),
        Layer("blocks.attn.proj", q * embed + embed, seen * embed * q),
        Layer("blocks.mlp.fc1", hidden * embed + hidden, tokens * embed * hidden),
        Layer("blocks.mlp.fc2", hidden * embed + embed, tokens * embed * hidden),
    ]


def outline_of(shared: WindowSettings, stages: Sequence[WindowStage]) -> list[dict[str, Any]]:
    """Shape and cost of every block; blocks are counted within their stage, windows as they are after clipping."""
    rows = []
    for s, shape in enumerate(stages):
        high, wide = shared.maps[s]
        for i, (window, heads, dim, ratio) in enumerate(
            zip(shape.window, shape.heads, shape.head_dim, shape.mlp, strict=True)
        ):
            parts = block_rows(shared, s, shape.embed, window, heads, dim, ratio)
            rows.append(
                {
                    "stage": s + 1,
                    "block": i + 1,
                    "tokens": high * wide,
                    "embed": shape.embed,
                    "heads": heads,
                    "qkv": heads * dim,
                    "mlp": ratio,
                    "hidden": hidden_width(shape.embed, ratio),
                    "window": min(window, max(high, wide)),
                    "params": sum(p.params for p in parts),
                    "macs": sum(p.macs for p in parts),
                }
            )
    return rows


# -- settings ---------------------------------------------------------------------------------------------------------


def window_settings(family: str, kind: type[AnySettings], data: Mapping[str, Any]) -> AnySettings:
    """The shared settings, typed; what no network of the family could have is refused."""
    shared = kind.read(family, data)
    size = shared.image_size
    if any(side < shared.patch or side % shared.patch for side in size):
        raise TailorError(
            f"A {family} network needs image sides that are multiples of the patch {shared.patch}, not {list(size)}."
        )
    for stage, sides in enumerate(shared.maps[: STAGES - 1], 1):
        if min(sides) < 2:
            raise TailorError(
                f"Images of {size[0]}x{size[1]} px with patch {shared.patch} leave {sides[0]}x{sides[1]} patches in"
                f" stage {stage}, which cannot be merged: a {family} network needs at least 5 patches a side."
            )
    return shared


def whole_numbers(family: str, name: str, value: Any, count: int) -> None:
    """Refuse a setting that is not a list of so many positive whole numbers."""
    if not isinstance(value, tuple) or len(value) != count or any(type(v) is not int or v < 1 for v in value):
        shown = list(value) if isinstance(value, tuple) else value
        raise TailorError(f"The {family} setting '{name}' must be {count} positive whole numbers, not {shown}.")


# -- sizes ------------------------------------------------------------------------------------------------------------


def patch_for(size: Sides) -> int:
    """The largest patch up to the papers' 4 that leaves 16 patches a side, or else the smallest: 1 for 8 px digits."""
    options = [p for p in (4, 2, 1) if all(side % p == 0 for side in size)]
    return next((p for p in options if min(size) // p >= 16), options[-1])


def windows_for(sides: Sides) -> tuple[int, ...]:
    """Windows that divide a map without padding: the largest up to 14, and half of it or less; 7 and 14 on 56."""
    side = min(sides)
    whole = [w for w in range(1, 15) if side % w == 0]
    if whole[-1] == 1 < side:
        return (7, 14) if side > 14 else (side,)
    smaller = [w for w in whole if 2 <= w <= whole[-1] // 2]
    return (*smaller[-1:], whole[-1])
