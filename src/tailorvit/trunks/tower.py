"""A tower as it was read, and the trunk made of it: cut short, at the wanted image size, for colour or grey images."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tailorvit.errors import TailorError
from tailorvit.trunks.network import PlainTrunk, TrunkFrame

Stats = tuple[tuple[float, ...], tuple[float, ...]]  # mean and deviation per channel
USUAL = 224  # pixels; towers made for more are slow, so that more has to be asked for


@dataclass(frozen=True, eq=False)  # tensors have no single truth to compare
class Trunk:
    """A frozen network from images to taps, with how its images are normalised."""

    source: str
    network: PlainTrunk
    mean: tuple[float, ...]
    std: tuple[float, ...]
    checksum: str
    depth: int  # blocks of the whole tower

    @property
    def facts(self) -> dict[str, Any]:
        """What result.json keeps."""
        frame = self.network.frame
        return {
            "source": self.source,
            "params": sum(p.numel() for p in self.network.parameters()),
            "macs": frame.macs,
            "checksum": self.checksum,
            "tokens": frame.tokens,
            "width": frame.embed,
            "layers": frame.depth,
            "taps": frame.taps,
            "depth": self.depth,
        }


@dataclass(frozen=True, eq=False)
class Tower:
    """Weights by timm's names, whole, at the size they were trained for."""

    source: str
    frame: TrunkFrame
    state: Mapping[str, Tensor]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    made_for: Callable[[tuple[int, int], int], Tower] | None = None  # (size, channels): random ones suit any images

    @property
    def usual_size(self) -> tuple[int, int] | None:
        """The image size when nobody asks for one: the tower's own, at most 224 px a side; None: the data's."""
        if self.made_for is not None:
            return None
        high, wide = (min(side, max(USUAL // self.frame.patch, 1) * self.frame.patch) for side in self.frame.image_size)
        return high, wide

    def trunk(
        self,
        image_size: tuple[int, int] | None = None,
        channels: int = 3,
        layers: int | None = None,
        taps: int | None = None,
    ) -> Trunk:
        """The trunk for these images: its first ``layers`` blocks, of which the last ``taps`` are tapped."""
        size, whole = image_size or self.usual_size or self.frame.image_size, self.frame.depth
        if self.made_for is not None and (size, channels) != (self.frame.image_size, self.frame.channels):
            return self.made_for(size, channels).trunk(size, channels, layers, taps)
        layers = whole if layers is None else layers
        taps = layers if taps is None else taps
        if not 1 <= layers <= whole:
            raise TailorError(
                f"trunk.layers must lie between 1 and {whole}, the blocks of '{self.source}', not {layers}."
            )
        if not 1 <= taps <= layers:
            raise TailorError(f"trunk.taps must lie between 1 and {layers}, the blocks kept, not {taps}.")
        _divisible(size, self.frame.patch, self.source)
        state = {k: v.float() for k, v in self.state.items() if _kept(k, layers)}
        frame = replace(self.frame, image_size=size, depth=layers, taps=taps)
        prefix = frame.prefix if frame.prefix_positions else 0
        state["pos_embed"] = resized(state["pos_embed"], self.frame.grid, frame.grid, prefix)
        mean, std = self.mean, self.std
        if channels != frame.channels:
            frame, state, (mean, std) = _grey(frame, state, channels, (mean, std), self.source)
        with torch.device("meta"):  # drawing weights to replace them would move torch's generator
            network = PlainTrunk(frame).eval()
        network.load_state_dict(state, assign=True)
        return Trunk(self.source, network, mean, std, checksum(network), whole)


def _kept(name: str, layers: int) -> bool:
    return not name.startswith("blocks.") or int(name.split(".")[1]) < layers


def _divisible(size: tuple[int, int], patch: int, source: str) -> None:
    for side in size:
        if side % patch:
            near = sorted({max(side // patch, 1) * patch, (side // patch + 1) * patch})
            raise TailorError(
                f"data.image_size {side} is no multiple of the patch of '{source}', {patch} px; the nearest are "
                f"{' and '.join(map(str, near))}."
            )


def resized(table: Tensor, old: tuple[int, int], new: tuple[int, int], prefix: int) -> Tensor:
    """A position table (1, prefix + patches, width) on another grid, bicubic and smoothed when it shrinks, as timm."""
    if old == new:
        return table
    maps = table[:, prefix:].unflatten(1, old).permute(0, 3, 1, 2)
    maps = F.interpolate(maps, size=new, mode="bicubic", antialias=True)
    return torch.cat([table[:, :prefix], maps.permute(0, 2, 3, 1).flatten(1, 2)], 1)


def _grey(
    frame: TrunkFrame, state: dict[str, Tensor], channels: int, stats: Stats, source: str
) -> tuple[TrunkFrame, dict[str, Tensor], Stats]:
    """The same tower for grey images: what it would say of the grey image as RGB, its normalisation folded in.

    Channel c sees (g - mean_c) / std_c, which is linear in the grey value normalised by any mean and deviation.
    """
    if (frame.channels, channels) != (3, 1):
        raise TailorError(f"'{source}' takes images of {frame.channels} channel(s), the data has {channels}.")
    mean, std = (torch.tensor(s, dtype=torch.float64) for s in stats)
    own_mean, own_std = mean.mean(), std.mean()
    weight = state["patch_embed.proj.weight"].double()
    offset = (weight * ((own_mean - mean) / std)[:, None, None]).sum((1, 2, 3))
    bias = state["patch_embed.proj.bias"].double() if frame.patch_bias else torch.zeros(frame.embed).double()
    state["patch_embed.proj.weight"] = (weight * (own_std / std)[:, None, None]).sum(1, keepdim=True).float()
    state["patch_embed.proj.bias"] = (bias + offset).float()
    return replace(frame, channels=1, patch_bias=True), state, ((float(own_mean),), (float(own_std),))


def checksum(network: PlainTrunk) -> str:
    """sha256 over settings, names, shapes and bytes: equal for networks that give equal taps."""
    digest = hashlib.sha256(json.dumps(network.settings, sort_keys=True).encode())
    for name, tensor in sorted(network.state_dict().items()):
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
