"""Trunk sources: from the text a user gives to a tower. ``SOURCES`` is the table.

A source is asked for as ``NAME:REST``, one with ``suffixes`` by the path of a file; options follow a ``#``, as in
``tower.safetensors#heads=6,act=quick_gelu``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tailorvit.errors import TailorError, unknown
from tailorvit.registry import Registry
from tailorvit.rng import derive
from tailorvit.tensors import read_pth, read_safetensors, require_dense
from tailorvit.trunks import libraries
from tailorvit.trunks.layouts import NORMS, Layout, State, recognise_layout
from tailorvit.trunks.libraries import NamedWeights
from tailorvit.trunks.network import PlainTrunk, TowerSettings
from tailorvit.trunks.tower import Stats, Tower, Trunk

ACTS = ("gelu", "gelu_tanh", "quick_gelu")
OPTIONS = ("act", "heads", "norm", "patch", "seed")


@dataclass(frozen=True)
class TrunkRequest:
    """A user's text for a trunk, taken apart: ``text`` is all of it, ``name`` what follows "NAME:", or the path."""

    text: str
    name: str
    options: Mapping[str, str]

    def whole_number(self, option: str, default: int) -> int:
        """An option that is a whole number of at least 0."""
        value = self.options.get(option, str(default))
        if not value.isdecimal():
            raise TailorError(f"'{option}' of the trunk '{self.text}' must be a whole number, not '{value}'.")
        return int(value)

    def over(self, **known: Any) -> dict[str, Any]:
        """What names and shapes cannot say: the user's options over what a library knows."""
        if "act" in self.options:
            known["act"] = self.options["act"]
        if "heads" in self.options:
            known["heads"] = max(self.whole_number("heads", 1), 1)
        return known


@dataclass(frozen=True)
class TrunkSource:
    """One kind of trunk. ``read`` returns the tower; :func:`tower_from_state` makes one from a state dict."""

    name: str
    summary: str  # one line, for lists of sources
    read: Callable[[TrunkRequest], Tower]
    usage: str = ""  # how a user asks for it; empty: NAME:REST
    suffixes: tuple[str, ...] = ()  # asked for by the path of a file with one of these
    options: tuple[str, ...] = OPTIONS


def open_trunk(
    source: str,
    image_size: tuple[int, int] | None = None,
    *,
    channels: int = 3,
    layers: int | None = None,
    feature_layers: int | None = None,
) -> Trunk:
    """A trunk for images of this size: the first ``layers`` blocks; the last ``feature_layers`` give the features."""
    return read_tower(source).trunk(image_size, channels, layers, feature_layers)


def read_tower(text: str) -> Tower:
    """The whole tower that a user's text stands for."""
    target, _, after = text.partition("#")
    name, colon, rest = target.partition(":")
    source = next((s for s in SOURCES.working() if s.suffixes and Path(target).suffix in s.suffixes), None)
    if source is not None:
        rest = target
    elif colon and name in SOURCES and not SOURCES[name].suffixes:
        source = SOURCES[name]
    else:
        choices = ", ".join(s.usage or f"{s.name}:REST" for s in SOURCES.working())
        raise TailorError(f"There is no trunk '{text}'; a trunk can be: {choices}.")
    options = dict(_parse_option(pair, text, source) for pair in after.split(",") if pair)
    tower = source.read(TrunkRequest(text, rest, options))
    if not isinstance(tower, Tower):
        raise TailorError(f"The trunk source '{source.name}' returned a {type(tower).__name__}, not a Tower.")
    return tower


def _parse_option(pair: str, text: str, source: TrunkSource) -> tuple[str, str]:
    key, equals, value = pair.partition("=")
    if key not in source.options or not equals:
        raise unknown(f"option of the trunk '{text}'", pair, (f"{o}=VALUE" for o in source.options))
    for option, choices in (("act", ACTS), ("norm", tuple(NORMS))):
        if key == option and value not in choices:
            raise unknown(f"'{option}' of the trunk '{text}'", value, choices)
    return key, value


def tower_from_state(
    request: TrunkRequest, state: Mapping[str, Any], norm: str | Stats | None = None, **known: Any
) -> Tower:
    """A tower from a state dict by the names of timm, open_clip or transformers.

    ``norm`` is a name of ``NORMS`` or mean and deviation; ``known`` may hold heads, act and eps. The user's options
    come first, then these, then what the layout implies.
    """
    where = f"'{request.text}'"
    layout, named = recognise_layout(state, where)
    design = _tower_settings(named, layout, where, request.over(**known))
    clip = layout.clip or design.pre_norm  # only CLIP's towers have a norm before the blocks
    chosen = request.options.get("norm") or norm or ("clip" if clip else "imagenet")
    mean, std = NORMS[chosen] if isinstance(chosen, str) else chosen
    return Tower(request.text, design, _tower_state(named, design, where), mean, std)


# -- towers from weights ----------------------------------------------------------------------------------------------


def _tower_settings(state: State, layout: Layout, where: str, known: Mapping[str, Any]) -> TowerSettings:
    """The shape of a tower, from the shapes of its weights; ``known`` holds what they cannot say (heads, act, eps)."""

    def shape(name: str) -> tuple[int, ...]:
        if name not in state:
            raise TailorError(f"The tower in {where} lacks '{name}'.")
        return tuple(state[name].shape)

    embed, channels, patch, across = shape("patch_embed.proj.weight")
    if patch != across:
        raise TailorError(f"The tower in {where} has patches of {patch}x{across} px; only square ones are supported.")
    depth = 1 + max((int(k.split(".")[1]) for k in state if re.match(r"blocks\.\d+\.", k)), default=-1)
    hidden, inner = shape("blocks.0.mlp.fc1.weight")[0], shape("blocks.0.mlp.fc2.weight")[1]
    if hidden != inner:
        raise TailorError(f"The tower in {where} has gated MLPs ({hidden} and {inner} wide), which are not supported.")
    act = known.get("act", layout.act)
    if act not in ACTS:
        raise TailorError(f"The tower in {where} has the activation {act}; known: {', '.join(ACTS)}.")
    class_token, registers = "cls_token" in state, shape("reg_token")[1] if "reg_token" in state else 0
    rows, prefix = shape("pos_embed")[1], int(class_token) + registers
    with_prefix = math.isqrt(max(rows - prefix, 0)) ** 2 == rows - prefix and rows > prefix
    alone = math.isqrt(rows) ** 2 == rows
    if not (with_prefix or alone):
        raise TailorError(
            f"The tower in {where} has {rows} positions, which with {prefix} token(s) are not a square grid."
        )
    own = with_prefix and not (alone and registers)  # towers with registers have positions for patches only
    side = math.isqrt(rows - prefix if own else rows)
    heads = int(known.get("heads", max(embed // 64, 1)))
    if embed % heads:
        raise TailorError(f"{heads} heads do not divide the width {embed} of the tower in {where}.")
    return TowerSettings(
        image_size=(side * patch, side * patch),
        channels=channels,
        patch=patch,
        embed=embed,
        depth=depth,
        taps=depth,
        heads=heads,
        hidden=hidden,
        act=act,
        pre_norm="norm_pre.weight" in state,
        class_token=class_token,
        registers=registers,
        prefix_positions=own,
        layer_scale="blocks.0.ls1.gamma" in state,
        qkv_bias="blocks.0.attn.qkv.bias" in state,
        patch_bias="patch_embed.proj.bias" in state,
        eps=float(known.get("eps", 1e-5 if "norm_pre.weight" in state else layout.eps)),
    )


_AFTER_BLOCKS = ("norm.", "head", "fc_norm.", "attn_pool.", "mask_token", "ln_post.", "proj")  # not used


def _tower_state(state: State, design: TowerSettings, where: str) -> State:
    """The weights the design needs; a missing, misshapen or unsupported one is named in the error."""
    with torch.device("meta"):
        wanted = {k: tuple(v.shape) for k, v in PlainTrunk(design).state_dict().items()}
    for name, shape in wanted.items():
        if name not in state:
            raise TailorError(f"The tower in {where} lacks '{name}'.")
        if tuple(state[name].shape) != shape:
            have = tuple(state[name].shape)
            raise TailorError(f"'{name}' in {where} has the shape {have} where the tower needs {shape}.")
    for name in state:
        if name not in wanted and not name.startswith(_AFTER_BLOCKS):
            raise TailorError(f"The tower in {where} has '{name}', a part that is not supported.")
    return {k: state[k] for k in wanted}


# -- random -----------------------------------------------------------------------------------------------------------

# Width, blocks and heads of the random towers: one for tests, one the size of ViT-S with half its blocks.
_RANDOM = {"tiny": (32, 4, 2), "small": (384, 6, 6)}


def _read_random(request: TrunkRequest, size: tuple[int, int] = (224, 224), channels: int = 3) -> Tower:
    """An untrained tower: for tests, and as a control beside a trained one."""
    if request.name not in _RANDOM:
        raise unknown("random trunk", request.text, (f"random:{n}" for n in _RANDOM))
    embed, depth, heads = _RANDOM[request.name]
    # At least four patches a side where the size allows it.
    fitting = (p for p in (16, 8, 4, 2) if not any(side % p or side < 4 * p for side in size))
    patch = request.whole_number("patch", next(fitting, 1))
    if patch < 1 or any(s % patch for s in size):
        raise TailorError(f"The patch of '{request.text}' must divide the image size {size[0]}x{size[1]}, not {patch}.")
    design = TowerSettings(size, channels, patch, embed, depth, depth, heads, 4 * embed)
    with torch.device("meta"):
        shapes = {k: v.shape for k, v in PlainTrunk(design).state_dict().items()}
    rng = torch.Generator().manual_seed(derive(request.whole_number("seed", 0), "trunk", request.name))
    state: State = {}
    for name, shape in shapes.items():
        if name.endswith("bias"):
            state[name] = torch.zeros(shape)
        elif "norm" in name:
            state[name] = torch.ones(shape)
        else:  # unit gain keeps the differences between images through all blocks
            gain = shape[1:].numel() ** -0.5 if name.endswith("weight") else 0.5
            state[name] = gain * torch.randn(shape, generator=rng)
    mean, std = ((0.5,) * channels,) * 2
    return Tower(request.text, design, state, mean, std, lambda s, c: _read_random(request, s, c))


# -- files ------------------------------------------------------------------------------------------------------------

_OPENAI = "input_resolution"  # only OpenAI's own CLIP files hold this number; their activation is QuickGELU


def _read_file(request: TrunkRequest) -> Tower:
    state = read_weights(Path(request.name))
    return tower_from_state(request, state, **({"act": "quick_gelu"} if _OPENAI in state else {}))


def read_weights(path: Path) -> State:
    """Tensors by name; pickled objects are never loaded. Wrappers such as ``state_dict`` are unwrapped."""
    if not path.is_file():
        raise TailorError(f"There is no trunk file '{path}'.")
    try:
        data: Any = read_safetensors(path) if path.suffix == ".safetensors" else read_pth(path)
    except Exception as error:  # damaged files raise anything
        first = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise TailorError(f"The trunk file '{path}' cannot be read as plain tensors: {first}.") from None
    for wrapper in ("state_dict", "model", "model_ema", "teacher"):
        if isinstance(data, dict) and isinstance(data.get(wrapper), dict):
            data = data[wrapper]
    if not isinstance(data, dict):
        raise TailorError(f"The trunk file '{path}' holds no tensors by name.")
    found = {str(k): v for k, v in data.items() if isinstance(v, Tensor)}
    require_dense(found, f"The trunk file '{path}'")
    return found


# -- libraries --------------------------------------------------------------------------------------------------------

_OTHERWISE = "give a weight file where there is no network"


def _read_timm(request: TrunkRequest, pretrained: bool = True) -> Tower:
    return _tower(request, libraries.read_timm(request.text, request.name, _OTHERWISE, pretrained))


def _read_open_clip(request: TrunkRequest) -> Tower:
    return _tower(request, libraries.read_open_clip(request.text, request.name, _OTHERWISE))


def from_open_clip(request: TrunkRequest, visual: nn.Module) -> Tower:
    """A tower from open_clip's own VisionTransformer, or from the timm network inside one of its wrappers."""
    return _tower(request, libraries.from_open_clip(request.text, visual))


def _read_hf(request: TrunkRequest) -> Tower:
    return _tower(request, libraries.read_hf(request.text, request.name, _OTHERWISE))


def from_hf(request: TrunkRequest, model: Any) -> Tower:
    """A tower from a ViTModel, Dinov2Model or CLIPVisionModel of transformers."""
    return _tower(request, libraries.from_hf(request.text, model))


def _tower(request: TrunkRequest, found: NamedWeights) -> Tower:
    return tower_from_state(request, found.state, found.norm, heads=found.heads, act=found.act, eps=found.eps)


# -- the table --------------------------------------------------------------------------------------------------------

SOURCES: Registry[TrunkSource] = Registry(
    "trunk source",
    "tailorvit.trunks",
    {
        source.name: source
        for source in (
            TrunkSource(
                "file",
                "a weight file by the names of timm's ViT, open_clip's image tower or transformers' CLIP, ViT, DINOv2",
                _read_file,
                "FILE.safetensors (or .pt, .pth, .bin)",
                (".safetensors", ".pt", ".pth", ".bin"),
            ),
            TrunkSource("timm", "a plain VisionTransformer of timm, pretrained", _read_timm, "timm:NAME"),
            TrunkSource("open_clip", "an image tower of open_clip", _read_open_clip, "open_clip:MODEL@PRETRAINED"),
            TrunkSource("hf", "a ViT, DINOv2 or CLIP vision model of transformers", _read_hf, "hf:NAME"),
            TrunkSource("random", "a tower with seeded random weights", _read_random, "random:tiny, random:small"),
        )
    },
)
