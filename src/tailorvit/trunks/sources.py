"""Trunk sources: from the text a user gives to a tower. ``SOURCES`` is the table.

A source is asked for as ``NAME:REST``, one with ``suffixes`` by the path of a file; options follow a ``#``, as in
``tower.safetensors#heads=6,act=quick_gelu``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from tailorvit.errors import TailorError, unknown
from tailorvit.registry import Registry
from tailorvit.rng import derive
from tailorvit.trunks.network import PlainTrunk, TowerSettings
from tailorvit.trunks.tower import Stats, Tower, Trunk

# How images were normalised when the tower was trained.
NORMS: Mapping[str, Stats] = {
    "clip": ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "half": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
}
ACTS = ("gelu", "gelu_tanh", "quick_gelu")
OPTIONS = ("act", "heads", "norm", "patch", "seed")
State = dict[str, Tensor]


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


# -- other people's weights by timm's names ---------------------------------------------------------------------------


def _unchanged(state: State) -> State:
    return state


@dataclass(frozen=True)
class Layout:
    """One way of naming weights."""

    name: str
    anchor: str  # the patch convolution's weight, after any prefix; every such file has it
    renames: tuple[tuple[str, str], ...]  # regular expressions for whole names, without the prefix
    clip: bool  # trained by CLIP, with CLIP's normalisation
    eps: float
    act: str = "gelu"  # where neither a library nor the user says otherwise
    reshape: Callable[[State], State] = _unchanged


def _add_batch_axis(state: State) -> State:
    """Tables and tokens with the batch axis that timm gives them."""
    return {k: v.reshape(1, -1, v.shape[-1]) if k in ("cls_token", "pos_embed") else v for k, v in state.items()}


def _join_qkv(state: State) -> State:
    """As :func:`_add_batch_axis`, and queries, keys and values joined."""
    out = _add_batch_axis({k: v for k, v in state.items() if not re.search(r"\.attn\.[qkv]\.", k)})
    for key in state:
        if ".attn.q." in key:
            parts = [state.get(key.replace(".attn.q.", f".attn.{part}.")) for part in "qkv"]
            found = [t for t in parts if t is not None]
            if len(found) == 3:  # otherwise qkv stays absent, and is named as missing
                out[key.replace(".attn.q.", ".attn.qkv.")] = torch.cat(found)
    return out


LAYOUTS = (
    Layout("timm", "patch_embed.proj.weight", ((r"(.*)", r"\1"),), False, 1e-6),
    Layout(
        "open_clip",
        "conv1.weight",
        (
            (r"conv1\.(\w+)", r"patch_embed.proj.\1"),
            (r"class_embedding", "cls_token"),
            (r"positional_embedding", "pos_embed"),
            (r"ln_pre\.(\w+)", r"norm_pre.\1"),
            (r"transformer\.resblocks\.(\d+)\.ln_(\d)\.(\w+)", r"blocks.\1.norm\2.\3"),
            (r"transformer\.resblocks\.(\d+)\.attn\.in_proj_(\w+)", r"blocks.\1.attn.qkv.\2"),
            (r"transformer\.resblocks\.(\d+)\.attn\.out_proj\.(\w+)", r"blocks.\1.attn.proj.\2"),
            (r"transformer\.resblocks\.(\d+)\.mlp\.c_fc\.(\w+)", r"blocks.\1.mlp.fc1.\2"),
            (r"transformer\.resblocks\.(\d+)\.mlp\.c_proj\.(\w+)", r"blocks.\1.mlp.fc2.\2"),
            (r"transformer\.resblocks\.(\d+)\.ls_(\d)\.gamma", r"blocks.\1.ls\2.gamma"),
            (r"transformer\.resblocks\.(.*)", r"blocks.\1"),
        ),
        True,
        1e-5,
        reshape=_add_batch_axis,
    ),
    Layout(
        "transformers",
        "embeddings.patch_embedding.weight",
        (
            (r"embeddings\.patch_embedding\.(\w+)", r"patch_embed.proj.\1"),
            (r"embeddings\.class_embedding", "cls_token"),
            (r"embeddings\.position_embedding\.weight", "pos_embed"),
            (r"pre_layrnorm\.(\w+)", r"norm_pre.\1"),  # spelt so in the library
            (r"encoder\.layers\.(\d+)\.layer_norm(\d)\.(\w+)", r"blocks.\1.norm\2.\3"),
            (r"encoder\.layers\.(\d+)\.self_attn\.([qkv])_proj\.(\w+)", r"blocks.\1.attn.\2.\3"),
            (r"encoder\.layers\.(\d+)\.self_attn\.out_proj\.(\w+)", r"blocks.\1.attn.proj.\2"),
            (r"encoder\.layers\.(\d+)\.mlp\.(\w+)\.(\w+)", r"blocks.\1.mlp.\2.\3"),
            (r"encoder\.layers\.(.*)", r"blocks.\1"),
        ),
        True,
        1e-5,
        "quick_gelu",
        _join_qkv,
    ),
)


def recognise_layout(state: Mapping[str, Any], where: str) -> tuple[Layout, State]:
    """The layout of a state dict, and its tower by timm's names; a prefix such as ``visual.`` is removed."""
    for layout in LAYOUTS:
        prefixes = [
            k.removesuffix(layout.anchor) for k in state if k == layout.anchor or k.endswith(f".{layout.anchor}")
        ]
        # A whole CLIP has one image tower; the shortest prefix is the network's own.
        for prefix in sorted(prefixes, key=len)[:1]:
            inside = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
            return layout, layout.reshape(dict(_renamed(inside, layout)))
    known = ", ".join(f"{x.name} ({x.anchor})" for x in LAYOUTS)
    first = next(iter(state), "nothing")
    raise TailorError(
        f"The weights in {where} are not an image tower by the names of {known}; they begin with '{first}'."
    )


def _renamed(state: Mapping[str, Tensor], layout: Layout) -> Iterator[tuple[str, Tensor]]:
    for key, value in state.items():
        for pattern, name in layout.renames:
            found = re.fullmatch(pattern, key)
            if found:
                yield found.expand(name), value
                break


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
        act=known.get("act", layout.act),
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
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return dict(load_file(path))
        data: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged files raise anything
        first = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise TailorError(f"The trunk file '{path}' cannot be read as plain tensors: {first}.") from None
    for wrapper in ("state_dict", "model", "model_ema", "teacher"):
        if isinstance(data, dict) and isinstance(data.get(wrapper), dict):
            data = data[wrapper]
    if not isinstance(data, dict):
        raise TailorError(f"The trunk file '{path}' holds no tensors by name.")
    return {str(k): v for k, v in data.items() if isinstance(v, Tensor)}


# -- libraries --------------------------------------------------------------------------------------------------------


def _library(name: str, extra: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise TailorError(f"This trunk needs '{name}': pip install 'tailorvit[{extra}]'.") from None


def _load_model(request: TrunkRequest, make: Callable[[], Any]) -> Any:
    """A network from a library, or one sentence; libraries fail in many ways."""
    try:
        return make()
    except Exception as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise TailorError(
            f"The trunk '{request.text}' cannot be loaded ({first}); give a weight file where there is no network."
        ) from error


def _act_name(module: nn.Module, request: TrunkRequest) -> str:
    """The name of an activation module."""
    kind = type(module).__name__.lower()
    if "quick" in kind:
        return "quick_gelu"
    if "gelu" in kind:
        return "gelu_tanh" if "tanh" in kind or getattr(module, "approximate", "none") == "tanh" else "gelu"
    raise TailorError(
        f"The trunk '{request.text}' has the activation {type(module).__name__}; known: {', '.join(ACTS)}."
    )


def _read_timm(request: TrunkRequest, pretrained: bool = True) -> Tower:
    import timm

    model = _load_model(request, lambda: timm.create_model(request.name, pretrained=pretrained, num_classes=0))
    blocks = getattr(model, "blocks", None)
    if type(model).__name__ != "VisionTransformer" or not blocks or not hasattr(blocks[0].attn, "num_heads"):
        raise TailorError(f"timm's '{request.name}' is a {type(model).__name__}, not a plain VisionTransformer.")
    norm = tuple(map(tuple, (model.default_cfg["mean"], model.default_cfg["std"])))
    known = {"heads": blocks[0].attn.num_heads, "act": _act_name(blocks[0].mlp.act, request)}
    return tower_from_state(request, model.state_dict(), cast(Stats, norm), **known, eps=blocks[0].norm1.eps)


def _read_open_clip(request: TrunkRequest) -> Tower:
    library = _library("open_clip", "clip")
    name, _, weights = request.name.partition("@")
    if not weights:
        raise TailorError(f"'{request.text}' names no weights; write open_clip:{name}@PRETRAINED.")
    model = _load_model(request, lambda: library.create_model(name, pretrained=weights, require_pretrained=True))
    return from_open_clip(request, model.visual)


def from_open_clip(request: TrunkRequest, visual: nn.Module) -> Tower:
    """A tower from open_clip's own VisionTransformer, or from the timm network inside one of its wrappers."""
    inside = getattr(visual, "trunk", None)
    blocks: Any = (
        inside.blocks if inside is not None else getattr(getattr(visual, "transformer", None), "resblocks", None)
    )
    if not blocks:
        kind = type(visual).__name__
        raise TailorError(f"The image tower of '{request.text}' is a {kind}, not a vision transformer.")
    first = blocks[0]
    act, norm = (first.mlp.act, first.norm1) if inside is not None else (first.mlp.gelu, first.ln_1)
    known = {"heads": first.attn.num_heads, "act": _act_name(act, request), "eps": norm.eps}
    stats = getattr(visual, "image_mean", None), getattr(visual, "image_std", None)
    own = cast(Stats, tuple(map(tuple, stats))) if all(stats) else NORMS["clip"]  # type: ignore[arg-type]
    return tower_from_state(request, visual.state_dict(), own, **known)


def _read_hf(request: TrunkRequest) -> Tower:
    library = _library("transformers", "hf")
    model = _load_model(request, lambda: library.CLIPVisionModel.from_pretrained(request.name))
    return from_hf(request, model)


def from_hf(request: TrunkRequest, model: Any) -> Tower:
    """A tower from transformers' CLIPVisionModel."""
    config = model.config
    acts = {"quick_gelu": "quick_gelu", "gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh"}
    if config.hidden_act not in acts:
        raise TailorError(
            f"The trunk '{request.text}' has the activation {config.hidden_act}; known: {', '.join(acts)}."
        )
    known = {"heads": config.num_attention_heads, "act": acts[config.hidden_act], "eps": config.layer_norm_eps}
    return tower_from_state(request, model.state_dict(), "clip", **known)


# -- the table --------------------------------------------------------------------------------------------------------

SOURCES: Registry[TrunkSource] = Registry(
    "trunk source",
    "tailorvit.trunks",
    {
        source.name: source
        for source in (
            TrunkSource(
                "file",
                "a weight file by the names of timm's ViT, open_clip's image tower or transformers' CLIP vision model",
                _read_file,
                "FILE.safetensors (or .pt, .pth, .bin)",
                (".safetensors", ".pt", ".pth", ".bin"),
            ),
            TrunkSource("timm", "a plain VisionTransformer of timm, pretrained", _read_timm, "timm:NAME"),
            TrunkSource("open_clip", "an image tower of open_clip", _read_open_clip, "open_clip:MODEL@PRETRAINED"),
            TrunkSource("hf", "a CLIPVisionModel of transformers", _read_hf, "hf:NAME"),
            TrunkSource("random", "a tower with seeded random weights", _read_random, "random:tiny, random:small"),
        )
    },
)
