"""What every plain network offers besides its layers: settings, a classifier to replace, stochastic depth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Annotated, Any, ClassVar, Literal, Self, get_args, get_origin, get_type_hints

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tailorvit.errors import TailorError

Sides = tuple[int, int]  # height and width
Count = Annotated[int, "or zero"]  # a setting that may be zero; other whole numbers are positive
Share = Annotated[float, "of one"]  # a setting from 0 to under 1; other decimals are positive
Windows = Literal["scale", "keep"]  # at another image size attention windows grow with the image, or stay
State = dict[str, Tensor]
Init = Literal["scaled", "paper"]  # how linear weights start: by their inputs, or at 0.02 as in the papers
ROUNDING = 1e-9


def start_scale(inputs: int, init: str = "scaled") -> float:
    """The deviation a layer's weights start with: half a unit of gain, and never under the papers' 0.02.

    The papers' 0.02 at every width nearly mutes narrow layers (docs/log.md).
    """
    return 0.02 if init == "paper" else max(0.02, 0.5 * inputs**-0.5)


def handy(width: int) -> bool:
    """Whether hand-designed networks use a width: from 16 channels on, multiples of four.

    For others torch's layer norm on a GPU is many times slower: 28 % of a Shunted network's step (benchmarks/speed).
    """
    return width < 16 or width % 4 == 0


def hidden_width(embed: int, ratio: float) -> int:
    """Channels inside an MLP, rounded down; 4.1 times 30 are 123, though the product of floats lies below that."""
    return int(embed * ratio + ROUNDING)


@dataclass(frozen=True)
class NetworkSettings:
    """What all networks of a space share; a family's own class adds the fields.

    Every family has ``image_size``, ``channels`` and ``classes``.
    """

    @classmethod
    def of(cls, data: Mapping[str, Any], *own: str) -> Self:
        """From the settings of a built network, less the keys that are its own; nothing is checked."""
        return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in data.items() if k not in own})

    @classmethod
    def read(cls, family: str, data: Mapping[str, Any]) -> Self:
        """Typed settings from plain data; an unknown key or a value of the wrong type is one sentence."""
        known = {f.name for f in fields(cls)}
        for key in sorted(set(data) - known):
            raise TailorError(f"The {family} family has no setting '{key}'; known: {', '.join(sorted(known))}.")
        values = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}
        size = values.get("image_size")
        if isinstance(size, int):
            values["image_size"] = (size, size)
        shared = cls(**values)
        for name, kind in get_type_hints(cls, include_extras=True).items():
            if name in known and (rule := _broken_rule(getattr(shared, name), kind)):
                value = getattr(shared, name)
                shown = list(value) if isinstance(value, tuple) else f"'{value}'" if isinstance(value, str) else value
                raise TailorError(f"The {family} setting '{name}' must be {rule}, not {shown}.")
        return shared

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}


def _broken_rule(value: Any, kind: Any) -> str:
    """What a setting of this type must be, if the value is not; else nothing."""
    if get_origin(kind) is Literal:
        return "" if value in get_args(kind) else " or ".join(map(str, get_args(kind)))
    if kind is bool:
        return "" if isinstance(value, bool) else "true or false"
    if kind == Count:
        return "" if type(value) is int and value >= 0 else "a whole number of at least 0"
    if kind is int:
        return "" if type(value) is int and value >= 1 else "a positive whole number"
    if kind == Share:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return "" if number and 0 <= value < 1 else "at least 0 and under 1"
    if kind is float:
        return "" if isinstance(value, float) and value > 0 else "a small positive number"
    if kind == Sides:
        whole = isinstance(value, tuple) and len(value) == 2 and all(type(v) is int and v >= 1 for v in value)
        return "" if whole else "two positive whole numbers"
    if kind == tuple[int, ...]:
        return "" if isinstance(value, tuple) and all(type(v) is int for v in value) else "a list of whole numbers"
    return ""


class PlainNetwork(nn.Module):
    """One fixed architecture, with the duties timm and our exports expect of it.

    A family's network sets ``shared`` (shared settings), ``shape`` (its own) and ``head``, and writes
    ``from_settings``, ``feature_info``, ``forward_features``, ``forward_intermediates`` and ``forward_head``. To be
    fine-tuned at another image size it also writes the methods under "other image sizes".
    """

    kind: ClassVar[str] = "plain"  # in messages
    POOLS: ClassVar[Mapping[str, str | None]] = {"avg": None}  # poolings by timm's name; what the shared calls them
    takes_features: ClassVar[bool] = False  # its input is the features of a frozen trunk, not images
    first_weight: ClassVar[str] = "patch_embed.proj.weight"  # the weight that meets the image's channels
    shared: Any  # a NetworkSettings of the family
    shape: dict[str, Any]
    head: nn.Module

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], drop_path: float = 0.0) -> PlainNetwork:
        """The network of these settings, freshly initialised."""
        raise NotImplementedError

    @property
    def settings(self) -> dict[str, Any]:
        """All of the network but its weights, as plain data; :meth:`from_settings` reads it."""
        return {**self.shared.to_dict(), **self.shape}

    @property
    def num_classes(self) -> int:
        """Classes told apart; 0 without a head."""
        return int(self.shared.classes)

    @property
    def num_features(self) -> int:
        """Channels that reach the head."""
        return int(self.feature_info[-1]["num_chs"])

    @property
    def feature_info(self) -> list[dict[str, Any]]:
        """Per map of :meth:`forward_intermediates`: module, channels (num_chs), pixels a side (reduction)."""
        raise NotImplementedError

    def forward_features(self, x: Tensor) -> Tensor:
        """What the head pools."""
        raise NotImplementedError

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Logits of :meth:`forward_features`, or what the classifier would see."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, classes)."""
        return self.forward_head(self.forward_features(x))

    # -- other image sizes --------------------------------------------------------------------------------------------

    @property
    def not_resizable(self) -> str:
        """Why it cannot be resized; empty where it can."""
        return "" if type(self).suits is not PlainNetwork.suits else "its family does not say how"

    def suits(self, side: int) -> bool:
        """Whether images of that side can be cut."""
        raise NotImplementedError

    def size_rule(self) -> str:
        """What the sides must suit, in words."""
        raise NotImplementedError

    def settings_at(self, size: Sides, windows: Windows) -> dict[str, Any]:
        """Settings that change with the image size, besides the size itself."""
        return {}

    def carry(self, new: Any, state: State) -> None:
        """Replace the tensors of ``state`` that depend on the image size by those of the new network."""

    # -- head ---------------------------------------------------------------------------------------------------------

    def classifier(self) -> nn.Module:
        """A head for the shared's classes; none of them, no head."""
        return nn.Linear(self.num_features, self.num_classes) if self.num_classes else nn.Identity()

    def get_classifier(self) -> nn.Module:
        """The head."""
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """A new head for other classes, 0 for none; the pooling by timm's name, or as it was."""
        if global_pool is not None and global_pool not in self.POOLS:
            known = " or ".join(f"'{name}'" for name in self.POOLS)
            raise ValueError(f"{type(self).__name__} pools by {known}, not '{global_pool}'.")
        pool = self.POOLS[global_pool] if global_pool is not None else None
        self.shared = replace(self.shared, classes=num_classes, **({} if pool is None else {"pool": pool}))
        self.head = self.classifier().to(next(self.parameters()))
        for layer in self.head.modules():
            if isinstance(layer, nn.Linear):
                nn.init.trunc_normal_(layer.weight, std=0.02)
                nn.init.zeros_(layer.bias)


class DropPath(nn.Module):
    """Drop a residual branch per sample and rescale the rest."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """Identity in evaluation."""
        if not self.training or self.rate == 0:
            return x
        keep = 1 - self.rate
        mask = torch.empty(x.shape[0], *[1] * (x.dim() - 1), device=x.device, dtype=x.dtype).bernoulli_(keep)
        return x * mask / keep


def drop_rates(drop_path: Sequence[float] | float, depth: int) -> list[float]:
    """Rates per block: as given, or growing evenly from 0 to the one given."""
    if isinstance(drop_path, int | float):
        return [drop_path * i / max(depth - 1, 1) for i in range(depth)]
    return list(drop_path)


def picked(indices: int | Sequence[int] | None, count: int) -> list[int]:
    """Which of ``count`` maps are wanted, as timm says it: all, the last n, or by number (negative from the end)."""
    every = range(count)
    return list(
        every if indices is None else every[-indices:] if isinstance(indices, int) else map(every.__getitem__, indices)
    )


def as_map(x: Tensor, grid: tuple[int, int]) -> Tensor:
    """Tokens (B, n, C) as a map (B, C, rows, columns)."""
    out: Tensor = x.transpose(1, 2).unflatten(-1, grid)
    return out


def as_tokens(x: Tensor) -> Tensor:
    """A map (B, C, rows, columns) as tokens (B, n, C)."""
    return x.flatten(2).transpose(1, 2)


def resized_map(table: Tensor, sides: Sides, antialias: bool = True) -> Tensor:
    """(channels, rows, columns) to other sides, bicubic; the same sides give the same tensor.

    Positions are smoothed where the map shrinks, as timm does; bias tables are not, as Swin's released code does not.
    """
    if tuple(table.shape[-2:]) == sides:
        return table
    return F.interpolate(table[None].float(), size=sides, mode="bicubic", antialias=antialias)[0].to(table.dtype)
