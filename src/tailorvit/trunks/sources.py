"""Where towers come from: a seeded random one, a weight file, or timm, open_clip and transformers by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from tailorvit.errors import TailorError, unknown
from tailorvit.rng import derive
from tailorvit.trunks.layouts import recognised, tower_frame, tower_state
from tailorvit.trunks.network import PlainTrunk, TrunkFrame
from tailorvit.trunks.tower import Stats, Tower, Trunk

# How images were normalised when the tower was trained.
NORMS: Mapping[str, Stats] = {
    "clip": ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "half": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
}
ACTS = ("gelu", "gelu_tanh", "quick_gelu")
OPTIONS = ("act", "heads", "norm", "patch", "seed")
_FILES = (".safetensors", ".pt", ".pth", ".bin")
# Widths, blocks and heads of the random towers: one for tests, one the size of ViT-S with half its blocks.
_RANDOM = {"tiny": (32, 4, 2), "small": (384, 6, 6)}
_OPENAI = "input_resolution"  # a number only OpenAI's own CLIP files carry, whose activation is QuickGELU


@dataclass(frozen=True)
class Asked:
    """A source taken apart: ``KIND:NAME#heads=6,act=quick_gelu``."""

    text: str
    name: str
    options: Mapping[str, str]

    def whole(self, option: str, default: int) -> int:
        """An option that is a whole number of at least 0."""
        value = self.options.get(option, str(default))
        if not value.isdecimal():
            raise TailorError(f"'{option}' of the trunk '{self.text}' must be a whole number, not '{value}'.")
        return int(value)

    def told(self, **known: Any) -> dict[str, Any]:
        """What names and shapes cannot say, by hand over what a library knows."""
        if "act" in self.options:
            known["act"] = self.options["act"]
        if "heads" in self.options:
            known["heads"] = max(self.whole("heads", 1), 1)
        return known


def open_trunk(
    source: str,
    image_size: tuple[int, int] | None = None,
    *,
    channels: int = 3,
    layers: int | None = None,
    taps: int | None = None,
) -> Trunk:
    """A frozen trunk for images of this size: the first ``layers`` blocks, of which the last ``taps`` are tapped."""
    return read_tower(source).trunk(image_size, channels, layers, taps)


def read_tower(source: str) -> Tower:
    """The whole tower of a source."""
    text, _, behind = source.partition("#")
    options = dict(_option(pair, source) for pair in behind.split(",") if pair)
    kind, colon, name = text.partition(":")
    if Path(text).suffix in _FILES:
        kind, name = "file", text
    elif not colon or kind not in SOURCES:
        choices = ", ".join(f"{k}:NAME" for k in SOURCES if k != "file")
        raise TailorError(
            f"There is no trunk '{source}'; give a weight file ({', '.join(_FILES)}) or one of {choices}."
        )
    return SOURCES[kind](Asked(source, name, options))


def _option(pair: str, source: str) -> tuple[str, str]:
    key, equals, value = pair.partition("=")
    if key not in OPTIONS or not equals:
        raise unknown(f"option of the trunk '{source}'", pair, (f"{o}=VALUE" for o in OPTIONS))
    for option, choices in (("act", ACTS), ("norm", tuple(NORMS))):
        if key == option and value not in choices:
            raise unknown(f"'{option}' of the trunk '{source}'", value, choices)
    return key, value


def _made(asked: Asked, state: Mapping[str, Any], norm: str | Stats | None = None, **known: Any) -> Tower:
    """A tower of somebody's state dict."""
    where = f"'{asked.text}'"
    layout, named = recognised(state, where)
    frame = tower_frame(named, layout, where, asked.told(**known))
    clip = layout.clip or frame.pre_norm  # only CLIP's towers have a norm before the blocks
    chosen = asked.options.get("norm") or norm or ("clip" if clip else "imagenet")
    mean, std = NORMS[chosen] if isinstance(chosen, str) else chosen
    return Tower(asked.text, frame, tower_state(named, frame, where), mean, std)


# -- random -----------------------------------------------------------------------------------------------------------


def _random(asked: Asked, size: tuple[int, int] = (224, 224), channels: int = 3) -> Tower:
    """A tower that has learnt nothing: for tests, and the honest control beside a trained one."""
    if asked.name not in _RANDOM:
        raise unknown("random trunk", asked.text, (f"random:{n}" for n in _RANDOM))
    embed, depth, heads = _RANDOM[asked.name]
    # At least four patches a side where the size allows it.
    fitting = (p for p in (16, 8, 4, 2) if not any(side % p or side < 4 * p for side in size))
    patch = asked.whole("patch", next(fitting, 1))
    if patch < 1 or any(s % patch for s in size):
        raise TailorError(f"The patch of '{asked.text}' must divide the image size {size[0]}x{size[1]}, not {patch}.")
    frame = TrunkFrame(size, channels, patch, embed, depth, depth, heads, 4 * embed)
    with torch.device("meta"):
        shapes = {k: v.shape for k, v in PlainTrunk(frame).state_dict().items()}
    draw = torch.Generator().manual_seed(derive(asked.whole("seed", 0), "trunk", asked.name))
    state: dict[str, Tensor] = {}
    for name, shape in shapes.items():
        if name.endswith("bias"):
            state[name] = torch.zeros(shape)
        elif "norm" in name:
            state[name] = torch.ones(shape)
        else:  # unit gain keeps what differs between images alive through all blocks
            gain = shape[1:].numel() ** -0.5 if name.endswith("weight") else 0.5
            state[name] = gain * torch.randn(shape, generator=draw)
    mean, std = ((0.5,) * channels,) * 2
    return Tower(asked.text, frame, state, mean, std, lambda s, c: _random(asked, s, c))


# -- files ------------------------------------------------------------------------------------------------------------


def _file(asked: Asked) -> Tower:
    state = read_weights(Path(asked.name))
    return _made(asked, state, **({"act": "quick_gelu"} if _OPENAI in state else {}))


def read_weights(path: Path) -> dict[str, Tensor]:
    """Tensors by name; pickled objects are never loaded. Wrappers such as ``state_dict`` are opened."""
    if not path.is_file():
        raise TailorError(f"There is no trunk file '{path}'.")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return dict(load_file(path))
        data: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged files raise whatever their reader likes
        first = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise TailorError(f"The trunk file '{path}' cannot be read as plain tensors: {first}.") from None
    for wrapper in ("state_dict", "model", "model_ema", "teacher"):
        if isinstance(data, dict) and isinstance(data.get(wrapper), dict):
            data = data[wrapper]
    if not isinstance(data, dict):
        raise TailorError(f"The trunk file '{path}' holds no tensors by name.")
    return {str(k): v for k, v in data.items() if isinstance(v, Tensor)}


# -- by name ----------------------------------------------------------------------------------------------------------


def _library(name: str, extra: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise TailorError(f"This trunk needs '{name}': pip install 'tailorvit[{extra}]'.") from None


def _fetched(asked: Asked, make: Callable[[], Any]) -> Any:
    """A network from a library, or one sentence; libraries and their networks fail in many ways."""
    try:
        return make()
    except Exception as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise TailorError(
            f"The trunk '{asked.text}' cannot be loaded ({first}); give a weight file where there is no network."
        ) from error


def _act(module: nn.Module, asked: Asked) -> str:
    """The name of an activation module."""
    kind = type(module).__name__.lower()
    if "quick" in kind:
        return "quick_gelu"
    if "gelu" in kind:
        return "gelu_tanh" if "tanh" in kind or getattr(module, "approximate", "none") == "tanh" else "gelu"
    raise TailorError(f"The trunk '{asked.text}' has the activation {type(module).__name__}; known: {', '.join(ACTS)}.")


def _timm(asked: Asked, pretrained: bool = True) -> Tower:
    import timm

    model = _fetched(asked, lambda: timm.create_model(asked.name, pretrained=pretrained, num_classes=0))
    blocks = getattr(model, "blocks", None)
    if type(model).__name__ != "VisionTransformer" or not blocks or not hasattr(blocks[0].attn, "num_heads"):
        raise TailorError(f"timm's '{asked.name}' is a {type(model).__name__}, not a plain VisionTransformer.")
    norm = tuple(map(tuple, (model.default_cfg["mean"], model.default_cfg["std"])))
    known = {"heads": blocks[0].attn.num_heads, "act": _act(blocks[0].mlp.act, asked), "eps": blocks[0].norm1.eps}
    return _made(asked, model.state_dict(), cast(Stats, norm), **known)


def _open_clip(asked: Asked) -> Tower:
    library = _library("open_clip", "clip")
    name, _, weights = asked.name.partition("@")
    if not weights:
        raise TailorError(f"'{asked.text}' names no weights; write open_clip:{name}@PRETRAINED.")
    model = _fetched(asked, lambda: library.create_model(name, pretrained=weights, require_pretrained=True))
    return from_open_clip(asked, model.visual)


def from_open_clip(asked: Asked, visual: nn.Module) -> Tower:
    """A tower of open_clip's own VisionTransformer, or of the timm network inside one of its wrappers."""
    inside = getattr(visual, "trunk", None)
    blocks: Any = (
        inside.blocks if inside is not None else getattr(getattr(visual, "transformer", None), "resblocks", None)
    )
    if not blocks:
        raise TailorError(f"The image tower of '{asked.text}' is a {type(visual).__name__}, not a vision transformer.")
    first = blocks[0]
    if inside is not None:
        known = {"heads": first.attn.num_heads, "act": _act(first.mlp.act, asked), "eps": first.norm1.eps}
    else:
        known = {"heads": first.attn.num_heads, "act": _act(first.mlp.gelu, asked), "eps": first.ln_1.eps}
    norm = getattr(visual, "image_mean", None), getattr(visual, "image_std", None)
    own = cast(Stats, tuple(map(tuple, norm))) if all(norm) else NORMS["clip"]  # type: ignore[arg-type]
    return _made(asked, visual.state_dict(), own, **known)


def _hf(asked: Asked) -> Tower:
    library = _library("transformers", "hf")
    model = _fetched(asked, lambda: library.CLIPVisionModel.from_pretrained(asked.name))
    return from_hf(asked, model)


def from_hf(asked: Asked, model: Any) -> Tower:
    """A tower of transformers' CLIPVisionModel."""
    config = model.config
    acts = {"quick_gelu": "quick_gelu", "gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh"}
    if config.hidden_act not in acts:
        raise TailorError(f"The trunk '{asked.text}' has the activation {config.hidden_act}; known: {', '.join(acts)}.")
    known = {"heads": config.num_attention_heads, "act": acts[config.hidden_act], "eps": config.layer_norm_eps}
    return _made(asked, model.state_dict(), "clip", **known)


SOURCES: Mapping[str, Callable[[Asked], Tower]] = {
    "random": _random,
    "file": _file,
    "timm": _timm,
    "open_clip": _open_clip,
    "hf": _hf,
}
