"""A finished plain network at another image size, for other classes or channels, with its weights carried over.

What depends on the image is interpolated or filled in: position tables over the patch grid, bias tables over the
offsets within a window, relative tables beyond the offsets the old grid could train. All else is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from tailorvit.errors import TailorError
from tailorvit.plain.network import PlainNetwork
from tailorvit.plain.pit import PlainPiT
from tailorvit.plain.relative import Tables
from tailorvit.plain.shunted import PlainShunted
from tailorvit.plain.vit import PlainViT
from tailorvit.plain.window_cut import Sides
from tailorvit.plain.windowed import STAGES, PlainWindowed, WindowAttention

Windows = Literal["scale", "keep"]
State = dict[str, Tensor]
_FARTHEST = 4096  # pixels; the search for a size that suits ends here


# -- tables -----------------------------------------------------------------------------------------------------------


def resized_map(table: Tensor, sides: Sides, antialias: bool = True) -> Tensor:
    """(channels, rows, columns) to other sides, bicubic; the same sides give the same tensor.

    Positions are smoothed where the map shrinks, as timm does; bias tables are not, as Swin's released code does not.
    """
    if tuple(table.shape[-2:]) == sides:
        return table
    return F.interpolate(table[None].float(), size=sides, mode="bicubic", antialias=antialias)[0].to(table.dtype)


def filled_table(table: Tensor, reach: int, before: int, after: int) -> Tensor:
    """A relative table on a longer axis: offsets the old one never had take the outermost row it could train.

    Row 0 is the class token's; offset d has row d + reach + 1. With 14 patches a side only 13 of a reach of 14 are
    trained, and the 24 of a 384 px image would use the untrained rows.
    """
    trained, middle = min(reach, before - 1), reach + 1
    if after <= before or trained == reach:
        return table
    filled = table.clone()
    filled[1 : middle - trained] = table[middle - trained]
    filled[middle + trained + 1 :] = table[middle + trained]
    return filled


def scaled_windows(model: PlainWindowed, size: Sides) -> dict[int, int]:
    """Every window of the network and what it becomes: 7 to 12 and 14 to 24 from 224 to 384 px.

    A window that covered its map covers the new one, whatever the rounding says. One number stays one number in all
    stages, as a Swin has only one. Sides that change differently count by the root of the area.
    """
    down, across = (new / old for new, old in zip(size, model.frame.image_size, strict=True))
    ratio = down if down == across else (down * across) ** 0.5
    maps = replace(model.frame, image_size=size).maps
    found: dict[int, int] = {}
    for shape, before, after in zip(model.shapes, model.frame.maps, maps, strict=True):
        for window in shape.window:
            least = max(after) if window >= max(before) else 1
            found[window] = max(int(window * ratio + 0.5), least, found.get(window, 1))
    return found


# -- one entry a family -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Kind:
    """How one kind of network is resized."""

    name: str
    first: str  # the weight that meets the image's channels
    suits: Callable[[Any, int], bool]  # (network, side): whether images of that side can be cut
    cut: Callable[[Any], str]  # what the sides must suit, in words
    settings: Callable[[Any, Sides, Windows], dict[str, Any]]  # besides image size, classes and channels
    carry: Callable[[Any, Any, State], None]  # (old, new, state): replaces the tensors that depend on the image


def _no_settings(model: PlainNetwork, size: Sides, windows: Windows) -> dict[str, Any]:
    return {}


def _carry_vit(old: PlainViT, new: PlainViT, state: State) -> None:
    if old.pos_embed is not None:
        token, grid = state["pos_embed"][0].split([1, len(state["pos_embed"][0]) - 1])
        patches = resized_map(grid.T.unflatten(1, old.frame.grid), new.frame.grid)
        state["pos_embed"] = torch.cat([token, patches.flatten(1).T])[None]
    if old.frame.relative:
        sides = dict(zip("vh", zip(old.frame.grid, new.frame.grid, strict=True), strict=True))
        for i in range(len(old.blocks)):
            for field in Tables._fields:
                name = f"blocks.{i}.attn.rel_{field}"
                state[name] = filled_table(state[name], old.frame.reach, *sides[field[-1]])


def _carry_pit(old: PlainPiT, new: PlainPiT, state: State) -> None:
    state["pos_embed"] = resized_map(state["pos_embed"][0], new.frame.grids[0])[None]


def _window_settings(model: PlainWindowed, size: Sides, windows: Windows) -> dict[str, Any]:
    if windows == "keep":
        return {}
    scaled = scaled_windows(model, size)
    shapes = [replace(shape, window=tuple(scaled[w] for w in shape.window)) for shape in model.shapes]
    return {"stages": [shape.to_dict() for shape in shapes]}


def _carry_windows(old: PlainWindowed, new: PlainWindowed, state: State) -> None:
    theirs = dict(old.named_modules())
    for name, layer in new.named_modules():
        if not isinstance(layer, WindowAttention):
            continue
        key, before = f"{name}.relative_position_bias_table", theirs[name]
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


def _window_suits(model: PlainWindowed, side: int) -> bool:
    maps = replace(model.frame, image_size=(side, side)).maps
    return side % model.frame.patch == 0 and all(min(sides) > 1 for sides in maps[: STAGES - 1])


def _shunted_settings(model: PlainShunted, size: Sides, windows: Windows) -> dict[str, Any]:
    # Small maps had their keys reduced less than asked: the kernels are of that size, so it stays on larger ones.
    return {"reduce": list(model.frame.reductions)}


def _shunted_suits(model: PlainShunted, side: int) -> bool:
    frame = replace(model.frame, image_size=(side, side), reduce=model.frame.reductions)
    first, last = frame.stem_grid[0], frame.stem_strides[1]
    return first >= last and first % last == 0 and frame.reductions == model.frame.reductions


def _shunted_cut(model: PlainShunted) -> str:
    step = model.frame.stem_strides[0] * model.frame.stem_strides[1]
    return f"steps of {step} px, maps no smaller than its keys of {'x'.join(map(str, model.frame.reductions))}"


_KINDS: Mapping[type[PlainNetwork], _Kind] = {
    PlainViT: _Kind(
        "vit",
        "patch_embed.proj.weight",
        lambda model, side: side >= model.frame.patch and side % model.frame.patch == 0,
        lambda model: f"patches of {model.frame.patch} px",
        _no_settings,
        _carry_vit,
    ),
    PlainPiT: _Kind(
        "pit",
        "patch_embed.conv.weight",
        lambda model, side: side >= model.frame.patch and (side - model.frame.patch) % model.frame.stride == 0,
        lambda model: f"patches of {model.frame.patch} px every {model.frame.stride}",
        _no_settings,
        _carry_pit,
    ),
    PlainWindowed: _Kind(
        "windowed",
        "patch_embed.proj.weight",
        _window_suits,
        lambda model: f"patches of {model.frame.patch} px, at least 5 a side",
        _window_settings,
        _carry_windows,
    ),
    PlainShunted: _Kind(
        "shunted",
        "patch_embed.convs.0.weight",
        _shunted_suits,
        _shunted_cut,
        _shunted_settings,
        lambda old, new, state: None,
    ),
}


def _kind(model: PlainNetwork) -> _Kind:
    if type(model) not in _KINDS:
        if hasattr(model, "attached"):  # its input is a trunk's outputs
            reason = "its features are tied to the trunk's image size; run it again"
        else:
            known = ", ".join(kind.name for kind in _KINDS.values())
            reason = f"how its weights go over to other images is written for {known} only"
        name = type(model).__name__.removeprefix("Plain").lower()
        raise TailorError(f"A {name} network cannot be resized or fine-tuned: {reason}.")
    return _KINDS[type(model)]


# -- the network ------------------------------------------------------------------------------------------------------


def require_size(model: PlainNetwork, size: Sides) -> None:
    """Refuse an image size the network cannot cut, and name the nearest it can."""
    kind = _kind(model)
    for side in size:
        if kind.suits(model, side):
            continue
        below = next((s for s in range(side - 1, 0, -1) if kind.suits(model, s)), None)
        above = next((s for s in range(max(side, 0) + 1, _FARTHEST) if kind.suits(model, s)), None)
        near = " and ".join(str(s) for s in (below, above) if s is not None)
        raise TailorError(
            f"Images of {side} px do not suit this {kind.name} network ({kind.cut(model)}); "
            f"the nearest that do: {near}."
        )


def resized_settings(
    model: PlainNetwork,
    image_size: Sides | None = None,
    classes: int | None = None,
    channels: int | None = None,
    windows: Windows = "scale",
) -> dict[str, Any]:
    """The settings of :func:`resized`'s network; a mistake is found here, before anything is built."""
    kind, settings = _kind(model), model.settings
    size: Sides = tuple(settings["image_size"]) if image_size is None else image_size
    before, after = int(settings["channels"]), int(settings["channels"]) if channels is None else channels
    require_size(model, size)
    if before != after and {before, after} != {1, 3}:
        raise TailorError(
            f"A network for images of {before} channels cannot take {after}: "
            "only grey (1) and colour (3) are exchanged."
        )
    if size != tuple(settings["image_size"]):
        settings = {**settings, "image_size": list(size), **kind.settings(model, size, windows)}
    return {**settings, "classes": settings["classes"] if classes is None else classes, "channels": after}


@torch.no_grad()
def resized(
    model: PlainNetwork,
    image_size: Sides | None = None,
    classes: int | None = None,
    channels: int | None = None,
    windows: Windows = "scale",
    drop_path: float = 0.0,
) -> PlainNetwork:
    """A new network with this one's weights, at another image size or for other channels.

    ``classes`` asks for a new head, drawn from torch's generator; None keeps the old one. A colour filter becomes a
    grey one by its sum, which answers a grey picture as it was answered; a grey one becomes three of a third.
    """
    kind, settings = _kind(model), resized_settings(model, image_size, classes, channels, windows)
    weight = next(model.parameters())
    new = type(model).from_settings(settings, drop_path).to(weight.device, weight.dtype)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    kind.carry(model, new, state)
    filters = state[kind.first]
    if filters.shape[1] != settings["channels"]:
        state[kind.first] = filters.sum(1, True) if settings["channels"] == 1 else filters.repeat(1, 3, 1, 1) / 3
    if classes is not None:
        kept = {name: tensor for name, tensor in state.items() if not name.startswith("head.")}
        state = kept | {name: tensor for name, tensor in new.state_dict().items() if name.startswith("head.")}
    new.load_state_dict(state)
    return new.train(model.training)
