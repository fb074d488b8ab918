"""A tower as it was read, and the trunk made from it: cut to some blocks, at an image size, for colour or grey."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tailorvit.errors import TailorError
from tailorvit.trunks.network import PlainTrunk, TowerSettings

Stats = tuple[tuple[float, ...], tuple[float, ...]]  # mean and deviation per channel
LARGEST_DEFAULT = 224  # pixels; towers made for more are slow, so a larger size must be set by the user
_FORBID = {"extra": "forbid"}  # unknown recipe keys are an error


@dataclass(frozen=True)
class TrunkSettings:
    """Which tower and how much of it."""

    __pydantic_config__ = _FORBID
    source: str = ""  # empty: no trunk
    layers: int | None = None  # use the first so many blocks
    taps: int | None = None  # the outputs of the last so many of these are the trunk features
    mirror: bool = False  # also cache the features of mirrored training images

    def __post_init__(self) -> None:
        for name in ("layers", "taps"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise TailorError(f"trunk.{name} must be at least 1, not {value}.")
        if not self.source and any(getattr(self, f.name) != f.default for f in fields(self)):
            raise TailorError("The [trunk] table needs 'source', for example trunk.source = \"random:tiny\".")


@dataclass(frozen=True, eq=False)  # tensors have no single truth value to compare
class Trunk:
    """A frozen network from images to trunk features, and how its images are normalised."""

    source: str
    network: PlainTrunk
    mean: tuple[float, ...]
    std: tuple[float, ...]
    checksum: str
    depth: int  # blocks of the whole tower

    @property
    def facts(self) -> dict[str, Any]:
        """What result.json holds about the trunk."""
        design = self.network.design
        return {
            "source": self.source,
            "params": sum(p.numel() for p in self.network.parameters()),
            "macs": design.macs,
            "checksum": self.checksum,
            "tokens": design.tokens,
            "width": design.embed,
            "layers": design.depth,
            "taps": design.taps,
            "depth": self.depth,
        }


@dataclass(frozen=True, eq=False)
class Tower:
    """All weights by timm's names, at the image size they were trained for."""

    source: str
    design: TowerSettings
    state: Mapping[str, Tensor]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    made_for: Callable[[tuple[int, int], int], Tower] | None = None  # (size, channels): random towers fit any images

    @property
    def default_size(self) -> tuple[int, int] | None:
        """The image size where none is set: the tower's own, at most 224 px a side; None: the data's."""
        if self.made_for is not None:
            return None
        most = max(LARGEST_DEFAULT // self.design.patch, 1) * self.design.patch
        high, wide = (min(side, most) for side in self.design.image_size)
        return high, wide

    def trunk(
        self,
        image_size: tuple[int, int] | None = None,
        channels: int = 3,
        layers: int | None = None,
        feature_layers: int | None = None,
    ) -> Trunk:
        """The trunk for these images: the first ``layers`` blocks; the last ``feature_layers`` give the features."""
        size, depth = image_size or self.default_size or self.design.image_size, self.design.depth
        if self.made_for is not None and (size, channels) != (self.design.image_size, self.design.channels):
            return self.made_for(size, channels).trunk(size, channels, layers, feature_layers)
        layers = depth if layers is None else layers
        feature_layers = layers if feature_layers is None else feature_layers
        if not 1 <= layers <= depth:
            raise TailorError(
                f"trunk.layers must lie between 1 and {depth}, the blocks of '{self.source}', not {layers}."
            )
        if not 1 <= feature_layers <= layers:
            raise TailorError(f"trunk.taps must lie between 1 and {layers}, the layers used, not {feature_layers}.")
        _require_divisible(size, self.design.patch, self.source)
        state = {k: v.float() for k, v in self.state.items() if _is_used(k, layers)}
        design = replace(self.design, image_size=size, depth=layers, taps=feature_layers)
        prefix = design.prefix if design.prefix_positions else 0
        state["pos_embed"] = resize_positions(state["pos_embed"], self.design.grid, design.grid, prefix)
        mean, std = self.mean, self.std
        if channels != design.channels:
            design, state, (mean, std) = _for_grey(design, state, channels, (mean, std), self.source)
        with torch.device("meta"):  # drawing weights only to replace them would move torch's generator
            network = PlainTrunk(design).eval()
        network.load_state_dict(state, assign=True)
        return Trunk(self.source, network, mean, std, checksum(network), depth)


def _is_used(name: str, layers: int) -> bool:
    return not name.startswith("blocks.") or int(name.split(".")[1]) < layers


def _require_divisible(size: tuple[int, int], patch: int, source: str) -> None:
    for side in size:
        if side % patch:
            near = sorted({max(side // patch, 1) * patch, (side // patch + 1) * patch})
            raise TailorError(
                f"data.image_size {side} is not a multiple of the patch of '{source}', {patch} px; the nearest are "
                f"{' and '.join(map(str, near))}."
            )


def resize_positions(table: Tensor, old: tuple[int, int], new: tuple[int, int], prefix: int) -> Tensor:
    """A position table (1, prefix + patches, width) for another grid: bicubic, antialiased when it shrinks, as timm."""
    if old == new:
        return table
    maps = table[:, prefix:].unflatten(1, old).permute(0, 3, 1, 2)
    maps = F.interpolate(maps, size=new, mode="bicubic", antialias=True)
    return torch.cat([table[:, :prefix], maps.permute(0, 2, 3, 1).flatten(1, 2)], 1)


def _for_grey(
    design: TowerSettings, state: dict[str, Tensor], channels: int, stats: Stats, source: str
) -> tuple[TowerSettings, dict[str, Tensor], Stats]:
    """The tower for grey images, with the same outputs as for the grey image in RGB; the normalisation is folded in.

    Channel c sees (g - mean_c) / std_c, which is linear in the grey value normalised by any mean and deviation.
    """
    if (design.channels, channels) != (3, 1):
        raise TailorError(f"'{source}' takes images of {design.channels} channel(s), the data has {channels}.")
    mean, std = (torch.tensor(s, dtype=torch.float64) for s in stats)
    own_mean, own_std = mean.mean(), std.mean()
    weight = state["patch_embed.proj.weight"].double()
    offset = (weight * ((own_mean - mean) / std)[:, None, None]).sum((1, 2, 3))
    bias = state["patch_embed.proj.bias"].double() if design.patch_bias else torch.zeros(design.embed).double()
    state["patch_embed.proj.weight"] = (weight * (own_std / std)[:, None, None]).sum(1, keepdim=True).float()
    state["patch_embed.proj.bias"] = (bias + offset).float()
    return replace(design, channels=1, patch_bias=True), state, ((float(own_mean),), (float(own_std),))


def checksum(network: PlainTrunk) -> str:
    """sha256 over settings, names, shapes and bytes: equal for networks that give equal features."""
    digest = hashlib.sha256(json.dumps(network.settings, sort_keys=True).encode())
    for name, tensor in sorted(network.state_dict().items()):
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
