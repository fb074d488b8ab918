"""Backbones: a network of any family, or of timm, as maps whose strides double; for one image size, and at others.

Staged families give the maps of their stages. A family with one stride gives a pyramid built from its last map.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tailorvit.checkpoints.files import read_state
from tailorvit.errors import TailorError
from tailorvit.export.network import CHECKSUM, load
from tailorvit.families import plain_class
from tailorvit.families.network import PlainNetwork, Sides
from tailorvit.families.resize import resized, resized_settings
from tailorvit.methods.peers import PREFIX, require_known, timm_model
from tailorvit.rng import seed_everything
from tailorvit.tasks.base import Backbone
from tailorvit.tensors import read_safetensors, require_finite
from tailorvit.texts import read_table

if TYPE_CHECKING:
    from torch.utils.flop_counter import FlopCounterMode

MAPS = 4  # at most, as detectors and segmenters have them
FINEST = 4  # pixels: a pyramid's finest map is not finer
FARTHEST = 16_384  # pixels; the search for a size that a network can cut ends here
START = "start"  # the folder, and the files in it, of what a run began with

# -- maps -------------------------------------------------------------------------------------------------------------


class MapNorm(nn.LayerNorm):
    """A layer norm over the channels of a map (B, C, rows, columns)."""

    def forward(self, input: Tensor) -> Tensor:
        """The same shape."""
        return super().forward(input.movedim(1, -1)).movedim(-1, 1)


class Pyramid(nn.Module):
    """Maps of doubling strides from one map: transposed convolutions for the finer, pooling for the coarser."""

    def __init__(self, width: int, stride: int, normed: bool) -> None:
        super().__init__()
        ups = 0
        while stride % 2 ** (ups + 1) == 0 and stride // 2 ** (ups + 1) >= FINEST:
            ups += 1
        factors = [2 ** (ups - i) if i <= ups else -(2 ** (i - ups)) for i in range(MAPS)]
        self.channels = tuple(max(width // max(f, 1), 1) for f in factors)
        self.strides = tuple(stride // f if f > 0 else stride * -f for f in factors)
        self.levels = nn.ModuleList(_level(width, f) for f in factors)
        # The map that is taken as it is has been normed by the network itself, where that has a norm.
        self.norms = nn.ModuleList(
            nn.Identity() if normed and f == 1 else MapNorm(c) for f, c in zip(factors, self.channels, strict=True)
        )

    def forward(self, x: Tensor) -> list[Tensor]:
        """Finest first."""
        return [norm(level(x)) for level, norm in zip(self.levels, self.norms, strict=True)]


def _level(width: int, factor: int) -> nn.Module:
    """One map finer by a factor, or coarser by a negative one."""
    if factor < 0:
        return nn.MaxPool2d(-factor, -factor, ceil_mode=True)
    layers: list[nn.Module] = []
    while factor > 1:
        half = max(width // 2, 1)
        layers += [nn.ConvTranspose2d(width, half, 2, 2)]
        layers += [MapNorm(half), nn.GELU()] if factor > 2 else []
        width, factor = half, factor // 2
    return nn.Sequential(*layers)


class _Adapted(Backbone):
    """What both kinds share: padding of the input, a pyramid or norms behind the network, cropped maps."""

    def _adapt(self, rows: Sequence[tuple[int, int]], norms: Sequence[bool], source: str) -> None:
        """Set up for maps of (channels, stride); ``norms`` says which of them the network has not normed."""
        self.pyramid = Pyramid(*rows[-1], normed=not norms[-1]) if len({stride for _, stride in rows}) == 1 else None
        if self.pyramid is not None:
            self.channels, self.strides = self.pyramid.channels, self.pyramid.strides
            return
        self.channels, self.strides = tuple(c for c, _ in rows), tuple(s for _, s in rows)
        if any(b != 2 * a for a, b in zip(self.strides, self.strides[1:], strict=False)):
            shown = ", ".join(map(str, self.strides))
            raise TailorError(f"{source} has maps of strides {shown}; a backbone's must double from map to map.")
        self.norms = nn.ModuleList(
            MapNorm(c) if own else nn.Identity() for c, own in zip(self.channels, norms, strict=True)
        )

    def _maps(self, x: Tensor) -> list[Tensor]:
        raise NotImplementedError

    @property
    def _input(self) -> Sides:
        raise NotImplementedError

    def forward(self, x: Tensor) -> list[Tensor]:
        """Maps (B, channels, ceil(rows / stride), ceil(columns / stride)), finest first."""
        rows, columns = x.shape[-2:]
        high, wide = self._input
        if rows > high or columns > wide:
            raise ValueError(f"This backbone takes images up to {high}x{wide} px, not {rows}x{columns}; see at().")
        maps = self._maps(F.pad(x, (0, wide - columns, 0, high - rows)))
        if self.pyramid is not None:
            maps = self.pyramid(maps[-1])
        else:
            maps = [norm(m) for norm, m in zip(self.norms, maps, strict=True)]
        found = []
        for stride, m in zip(self.strides, maps, strict=True):
            whole = (-(-high // stride), -(-wide // stride))
            if m.shape[-2] < whole[0] or m.shape[-1] < whole[1]:  # PiT: its patches overlap, and leave one fewer
                m = F.interpolate(m, whole, mode="bilinear", align_corners=False)
            found.append(m[..., : -(-rows // stride), : -(-columns // stride)])
        return found

    def _carry(self, old: _Adapted) -> None:
        """Take the pyramid's or the norms' weights of another image size, where they are the same."""
        name = "norms" if self.pyramid is None else "pyramid"
        getattr(self, name).load_state_dict(getattr(old, name).state_dict())
        self.to(next(old.parameters())).train(old.training)


# -- our own networks -------------------------------------------------------------------------------------------------


def suited(network: PlainNetwork, size: Sides) -> Sides:
    """The smallest sides from these on that the network can cut; images are padded to them."""
    found = []
    for side in size:
        fits = next((s for s in range(side, FARTHEST) if network.suits(s)), None)
        if fits is None:
            raise TailorError(f"This {network.kind} network cannot take images of {side} px ({network.size_rule()}).")
        found.append(fits)
    return found[0], found[1]


class NetworkBackbone(_Adapted):
    """A plain network of ours without its head. The last of its maps has the network's own norm."""

    def __init__(self, family: str, network: PlainNetwork, size: Sides) -> None:
        super().__init__()
        self.family, self.network, self.image_size = family, network, size
        info = network.feature_info
        one = len({row["reduction"] for row in info}) == 1
        # One map a stride, the last of it; small networks have stages that keep the stride.
        last = {row["reduction"]: i for i, row in enumerate(info)}
        self.indices = [len(info) - 1] if one else list(last.values())[-MAPS:]
        rows = [(int(info[i]["num_chs"]), int(info[i]["reduction"])) for i in self.indices]
        self._adapt(rows, [i != len(info) - 1 for i in self.indices], f"This {family} network")

    @property
    def settings(self) -> dict[str, Any]:
        """Family, plain settings and image size."""
        return {"family": self.family, "settings": self.network.settings, "image_size": list(self.image_size)}

    @property
    def _input(self) -> Sides:
        high, wide = self.network.settings["image_size"]
        return int(high), int(wide)

    def _maps(self, x: Tensor) -> list[Tensor]:
        return cast(
            list[Tensor],
            self.network.forward_intermediates(x, self.indices, norm=True, intermediates_only=True),  # type: ignore[operator]
        )

    def at(self, size: Sides) -> NetworkBackbone:
        """The same weights for images of another size; windows keep their size, as in the papers' detectors."""
        network = resized(self.network, suited(self.network, size), windows="keep")
        found = NetworkBackbone(self.family, network, size)
        found._carry(self)
        return found


# -- networks of timm -------------------------------------------------------------------------------------------------


class TimmBackbone(_Adapted):
    """A network of timm as ``features_only`` gives it, with fresh weights unless a state is given."""

    def __init__(
        self, name: str, size: Sides, channels: int, drop_path: float = 0.0, state: Mapping[str, Tensor] | None = None
    ) -> None:
        super().__init__()
        self.name, self.image_size, self.taken = name, size, channels
        side = max(row["reduction"] for row in _feature_rows(name, channels))
        self.padded = (-(-size[0] // side) * side, -(-size[1] // side) * side)
        given: dict[str, Any] = (
            {} if state is None else {"pretrained": True, "pretrained_cfg_overlay": {"state_dict": dict(state)}}
        )
        try:
            self.network = _features(name, channels, self.padded, drop_path, **given)
        except TailorError:
            raise
        except Exception as error:  # models refuse sizes, and weights, in many ways
            raise _refusal(name, size, error) from None
        rows = [(int(r["num_chs"]), int(r["reduction"])) for r in self.network.feature_info.get_dicts()]
        self.channels_last = str(getattr(self.network, "output_fmt", "")).endswith("NHWC")
        # As in the published detectors: those with layer norms inside get one for every map that goes out.
        normed = any(isinstance(m, nn.LayerNorm) for m in self.network.modules())
        kept = rows[-MAPS:]
        self._adapt(kept, [normed] * len(kept), name)
        self._probe(channels)

    def _probe(self, channels: int) -> None:
        """Refuse, before anything is trained, a network that cannot take the images."""
        shapes: list[tuple[int, ...]] = []
        try:
            with torch.no_grad():
                probe = copy.deepcopy(self).to("meta").eval()
                shapes = [tuple(m.shape) for m in probe(torch.zeros(1, channels, *self.image_size, device="meta"))]
        except Exception as error:
            raise _refusal(self.name, self.image_size, error) from None
        if tuple(s[1] for s in shapes) != self.channels:
            raise TailorError(f"{self.name} gives maps of the shapes {shapes}, and timm says {self.channels} channels.")

    @property
    def settings(self) -> dict[str, Any]:
        """Name, channels and image size."""
        return {"timm": self.name, "channels": self.taken, "image_size": list(self.image_size)}

    @property
    def _input(self) -> Sides:
        return self.padded

    def _maps(self, x: Tensor) -> list[Tensor]:
        maps = list(self.network(x))[-MAPS:]
        return [m.permute(0, 3, 1, 2) for m in maps] if self.channels_last else maps

    def at(self, size: Sides) -> TimmBackbone:
        """The same weights for images of another size, where timm's network can be changed to it."""
        found = TimmBackbone(self.name, size, self.taken)
        inner = getattr(self.network, "model", None)
        if hasattr(inner, "set_input_size"):
            other = copy.deepcopy(self.network)
            cast(Any, other).model.set_input_size(img_size=found.padded)
            found.network = other
        else:
            try:
                found.network.load_state_dict(self.network.state_dict())
            except RuntimeError:
                raise TailorError(f"{self.name} cannot be taken to images of {size[0]}x{size[1]} px.") from None
        found._carry(self)
        return found


def _features(name: str, channels: int, size: Sides | None = None, drop_path: float = 0.0, **options: Any) -> Any:
    """The network as ``features_only``; one whose image size can be changed stays whole inside, so that it can be."""
    with torch.device("meta"):
        changeable = hasattr(timm_model(name, {}), "set_input_size")
    more: dict[str, Any] = {} if size is None else {"img_size": size, "drop_path_rate": drop_path}
    kind = {"feature_cls": "getter"} if changeable else {}
    return timm_model(name, more, features_only=True, in_chans=channels, **kind, **options)


def _feature_rows(name: str, channels: int) -> list[dict[str, Any]]:
    """Channels and strides of the maps, from the network without any memory for its weights."""
    try:
        with torch.device("meta"):
            found: list[dict[str, Any]] = _features(name, channels).feature_info.get_dicts()
    except TailorError:
        raise
    except Exception as error:
        raise TailorError(f"{name} gives no feature maps ({_first_line(error)}); choose another network.") from None
    return found


def _refusal(name: str, size: Sides, error: Exception) -> TailorError:
    return TailorError(f"{name} cannot be a backbone for images of {size[0]}x{size[1]} px: {_first_line(error)}.")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0].rstrip(".") or type(error).__name__


# -- where a backbone comes from --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Start:
    """What a backbone is made from: a network of ours or of timm, its weights if it has any, how it sees images."""

    name: str  # as the user gave it
    plain: Mapping[str, Any]  # {"family", "settings"} or {"timm"}
    state: Mapping[str, Tensor] | None  # None: fresh weights, from the seed
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    @property
    def image_size(self) -> Sides | None:
        """The image size it was trained at, where it has one."""
        found = self.plain.get("settings", {}).get("image_size")
        return None if found is None else (int(found[0]), int(found[1]))

    def backbone(self, size: Sides, channels: int, seed: int, drop_path: float = 0.0) -> Backbone:
        """The backbone for images of a size; what has no weights yet is a function of the seed."""
        seed_everything(seed, "init", "backbone")
        if "timm" in self.plain:
            return TimmBackbone(self.plain["timm"], size, channels, drop_path, self.state)
        family, settings = self.plain["family"], self.plain["settings"]
        with torch.device("meta"):
            bare = plain_class(family).from_settings(settings)
        place = suited(bare, size)
        if self.state is None:
            new = resized_settings(bare, place, 0, channels, windows="keep")
            return NetworkBackbone(family, plain_class(family).from_settings(new, drop_path), size)
        network = plain_class(family).from_settings(settings)
        network.load_state_dict(dict(self.state))
        return NetworkBackbone(family, resized(network, place, 0, channels, "keep", drop_path), size)

    def save(self, folder: Path) -> None:
        """Write it into a folder of the run, which then needs no other."""
        from safetensors.torch import save

        from tailorvit.runs.atomic import write_bytes, write_json

        folder.mkdir(parents=True, exist_ok=True)
        card: dict[str, Any] = {"name": self.name, **self.plain, "mean": self.mean, "std": self.std}
        if self.state is not None:
            held = save({k: v.detach().cpu().clone().contiguous() for k, v in self.state.items()})
            write_bytes(folder / f"{START}.safetensors", held)
            card[CHECKSUM] = hashlib.sha256(held).hexdigest()
        write_json(folder / f"{START}.json", json.loads(json.dumps(card)))

    @classmethod
    def saved(cls, folder: Path) -> Start:
        """Read :meth:`save`'s files."""
        path = folder / f"{START}.safetensors"
        try:
            card = read_table(folder / f"{START}.json")
            state = None
            if known := card.get(CHECKSUM):
                if hashlib.sha256(path.read_bytes()).hexdigest() != known:
                    raise ValueError(f"{path.name} is not the file that {START}.json names")
                state = read_safetensors(path)
            plain = {k: card[k] for k in ("family", "settings", "timm") if k in card}
            mean, std = (None if card[k] is None else tuple(map(float, card[k])) for k in ("mean", "std"))
            return cls(str(card["name"]), plain, state, mean, std)
        except (OSError, LookupError, TypeError, ValueError) as error:
            raise TailorError(f"What the run began with, in '{folder}', cannot be read: {error}.") from None


def open_start(network: str | Path, weights: str | Path | None = None, scratch: bool = False) -> Start:
    """The network of a run folder or network folder, or ``timm:NAME`` with fresh weights or those of a file."""
    name = str(network)
    if weights is not None and scratch:
        raise TailorError(f"--scratch means fresh weights, and --weights '{weights}' gives others; choose one.")
    if name.startswith(PREFIX):
        bare = require_known(name)
        if weights is None:
            return Start(name, {"timm": name}, None)
        from timm.models import get_pretrained_cfg

        state, config = read_state(weights), get_pretrained_cfg(bare)
        require_finite(state, f"'{weights}'")
        return Start(name, {"timm": name}, state, tuple(config.mean), tuple(config.std))
    if weights is not None:
        raise TailorError(f"--weights '{weights}' goes with timm:NAME; the folder '{name}' has its own.")
    found = load(Path(name).expanduser())
    model, card = found.model, found.card
    if not isinstance(model, PlainNetwork) or model.not_resizable:
        why = getattr(model, "not_resizable", "") or "its family does not say how"
        raise TailorError(f"The {card.arch.family} network in '{name}' cannot be a backbone: {why}.")
    plain = {"family": card.arch.family, "settings": model.settings}
    if scratch:
        return Start(name, plain, None)
    mean, std = (tuple(map(float, card.preprocessing[k])) for k in ("mean", "std"))
    return Start(name, plain, model.state_dict(), mean, std)


def backbone_of(settings: Mapping[str, Any], drop_path: float = 0.0) -> Backbone:
    """The backbone of :attr:`Backbone.settings`, with fresh weights from torch's generator."""
    high, wide = settings["image_size"]
    if "timm" in settings:
        return TimmBackbone(str(settings["timm"]), (high, wide), int(settings["channels"]), drop_path)
    network = plain_class(settings["family"]).from_settings(settings["settings"], drop_path)
    return NetworkBackbone(settings["family"], network, (high, wide))


# -- what it costs ----------------------------------------------------------------------------------------------------


def counted(module: nn.Module, *inputs: Tensor) -> dict[str, int]:
    """Parameters, and multiply-accumulates of a forward pass by torch's counter; nothing is computed where it can.

    Values that decide what is computed (which boxes are left) need the pass itself; then it runs on a CPU.
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    params = sum(p.numel() for p in module.parameters())

    def run(device: str) -> FlopCounterMode:
        probe = copy.deepcopy(module).requires_grad_(False).to(device).eval()  # the counter fails on gradients
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            probe(*(x.to(device) for x in inputs))
        return counter

    try:
        counter = run("meta")
    except (NotImplementedError, RuntimeError, ValueError, TypeError):
        counter = run("cpu")
    return {"params": params, "macs": counter.get_total_flops() // 2}
