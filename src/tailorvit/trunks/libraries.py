"""Pretrained image towers of timm, open_clip and transformers: their weights, and what weights cannot say."""

from __future__ import annotations

import difflib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib import import_module
from pathlib import Path
from textwrap import shorten
from threading import Thread
from typing import Any, cast

import torch
from torch import Tensor, nn

from tailorvit.errors import TailorError
from tailorvit.trunks.layouts import NORMS, State, recognise_layout
from tailorvit.trunks.tower import Stats

HUB_SECONDS = 2.0  # a hub that has not answered by then counts as out of reach
HUB_REMEMBERED = 60.0  # seconds


@dataclass(frozen=True, eq=False)  # tensors have no single truth to compare
class NamedWeights:
    """A tower's weights by timm's names, with what names and shapes cannot say."""

    state: State
    norm: Stats
    heads: int
    act: str
    eps: float
    pool: str = "cls"  # what its own head read: the class token, or the mean of the patches (gap)


# -- loading ----------------------------------------------------------------------------------------------------------


def _library(text: str, name: str, extra: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise TailorError(f"'{text}' needs the library '{name}': pip install 'tailorvit[{extra}]'.") from None


def hub_reachable() -> bool:
    """Whether the hub of pretrained weights answers at once; a single quick question a minute."""
    from huggingface_hub import constants

    return not constants.HF_HUB_OFFLINE and _answers(int(time.monotonic() // HUB_REMEMBERED))


@lru_cache(maxsize=1)
def _answers(minute: int) -> bool:
    """Asked by a thread, as looking up a name takes longer than a connection may; nobody waits for it to end."""
    from huggingface_hub import constants

    session, heard = import_module("huggingface_hub.utils").get_session(), list[bool]()

    def ask() -> None:
        with suppress(Exception):  # every version of the hub's client has its own errors
            session.head(constants.ENDPOINT, timeout=HUB_SECONDS)
            heard.append(True)

    thread = Thread(target=ask, daemon=True)
    thread.start()
    thread.join(HUB_SECONDS)
    return bool(heard)


@contextmanager
def cache_only() -> Iterator[None]:
    """The hub's client reads its cache and asks nobody: out of reach it would retry for most of a minute."""
    from huggingface_hub import constants

    before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def load_model(text: str, otherwise: str, make: Callable[[], Any], local: bool = False) -> Any:
    """A network from a library, or one sentence that ends with what to do otherwise; libraries fail in many ways."""
    online, silent = local or hub_reachable(), logging.root.manager.disable
    try:
        logging.disable(logging.CRITICAL)  # what they log is in the sentence
        with nullcontext() if online else cache_only():
            return make()
    except Exception as error:
        first = shorten((str(error).strip().splitlines() or [type(error).__name__])[0], 200).rstrip(".")
        if not online and any(isinstance(e, OSError) for e in (error, error.__cause__, error.__context__)):
            first = "no copy in the hub's cache, and the hub is out of reach"
        raise TailorError(f"'{text}' cannot be loaded ({first}); {otherwise}.") from error
    finally:
        logging.disable(silent)


def _require_name(text: str, library: str, name: str, names: Iterable[str]) -> None:
    """Refuse an unknown name with the nearest known one; the libraries list hundreds."""
    known = list(names)
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean '{near[0]}'?" if near else "."
        raise TailorError(f"'{text}' cannot be loaded: {library} has no model '{name}'{hint}")


def _act_name(module: nn.Module, text: str) -> str:
    """The name of an activation module."""
    kind = type(module).__name__.lower()
    if "quick" in kind:
        return "quick_gelu"
    if "gelu" in kind:
        return "gelu_tanh" if "tanh" in kind or getattr(module, "approximate", "none") == "tanh" else "gelu"
    if "silu" in kind:
        return "silu"
    raise TailorError(f"'{text}' has the activation {type(module).__name__}; known: GELU, QuickGELU, SiLU.")


# -- timm -------------------------------------------------------------------------------------------------------------

# Why a vision transformer of timm is none of ours, where its class tells.
_WHY = {
    "Eva": ", which has rotary positions or norms of its own",
    "Beit": ", which has relative positions",
    "VisionTransformerRelPos": ", which has relative positions",
    "VisionTransformerDistilled": ", which has a distillation token",
}


def read_timm(
    text: str, name: str, otherwise: str, pretrained: bool = True, weights: State | None = None
) -> NamedWeights:
    """A model of timm: its published weights, random ones, or these, whose position grid may be another."""
    if weights is None and not pretrained:
        return from_timm(text, _maker(text, name, False)())
    return from_timm(text, fetch_timm(text, name, otherwise, require_plain, weights is not None), weights)


def fetch_timm(text: str, name: str, otherwise: str, require: Callable[[str, Any], None], local: bool) -> Any:
    """A model of timm with its published weights; where the weights are here already, its design alone.

    What ``require`` refuses is not fetched.
    """
    with torch.device("meta"):
        design = load_model(text, otherwise, _maker(text, name, False), local=True)
    require(text, design)
    if local:
        return design
    if not any(design.pretrained_cfg.get(k) for k in ("hf_hub_id", "url", "file", "state_dict")):
        raise TailorError(f"'{text}' cannot be loaded: timm has no pretrained weights for it; {otherwise}.")
    return load_model(text, otherwise, _maker(text, name, True))


def _maker(text: str, name: str, published: bool) -> Callable[[], Any]:
    """What makes a model of timm; an unknown name is refused at once."""
    import timm

    _require_name(text, "timm", name.partition(".")[0], timm.list_models())
    return partial(timm.create_model, name, pretrained=published, num_classes=0)


def require_plain(text: str, model: Any) -> None:
    """Refuse what is not timm's plain VisionTransformer of pre-norm blocks; the part is named."""
    kind = type(model).__name__
    if kind != "VisionTransformer" or not getattr(model, "blocks", None):
        raise TailorError(f"'{text}' is a {kind}{_WHY.get(kind, '')}, not a plain VisionTransformer.")
    block = model.blocks[0]
    parts = [(model.patch_embed, "PatchEmbed"), (block, "Block")]
    parts += [(block.attn, "Attention")] if hasattr(block, "attn") else []
    for part, wanted in parts:
        if type(part).__name__ != wanted:
            found = type(part).__name__
            raise TailorError(f"'{text}' has a {found} where a plain VisionTransformer has a {wanted}.")
    for norm in (block.norm1, getattr(block.attn, "q_norm", None)):
        if norm is not None and not isinstance(norm, nn.LayerNorm | nn.Identity):
            raise TailorError(f"'{text}' has norms of the kind {type(norm).__name__}, not layer norms.")
    if getattr(block.mlp, "gate_last", False):
        raise TailorError(f"'{text}' has MLPs whose second half is the gate; only the first half can be.")


def from_timm(text: str, model: Any, state: State | None = None, norm: Stats | None = None) -> NamedWeights:
    """A VisionTransformer of timm, with its own weights or with these."""
    require_plain(text, model)
    if state is not None:
        _require_shapes(text, model.state_dict(), state)
    block, config = model.blocks[0], getattr(model, "pretrained_cfg", None) or {}
    own = cast(Stats, tuple(tuple(map(float, config[k])) for k in ("mean", "std"))) if "mean" in config else None
    return NamedWeights(
        dict(model.state_dict()) if state is None else state,
        norm or own or NORMS["imagenet"],
        block.attn.num_heads,
        _act_name(block.mlp.act, text),
        block.norm1.eps,
        "cls" if model.global_pool in ("token", "") else "gap",
    )


_FREE = ("pos_embed", "head", "fc_norm", "norm.", "attn_pool")  # of another grid, or behind the blocks


def _require_shapes(text: str, own: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    for name, tensor in own.items():
        if name.startswith(_FREE):
            continue
        if name not in weights:
            raise TailorError(f"The weights for '{text}' lack '{name}'.")
        if weights[name].shape != tensor.shape:
            shapes = f"{tuple(weights[name].shape)}, not {tuple(tensor.shape)}"
            raise TailorError(f"The weights are not those of '{text}': '{name}' has the shape {shapes}.")


# -- open_clip --------------------------------------------------------------------------------------------------------


def read_open_clip(text: str, name: str, otherwise: str, weights: State | None = None) -> NamedWeights:
    """The image tower of ``MODEL@PRETRAINED`` or ``MODEL/PRETRAINED``; given weights need only ``MODEL``."""
    library = _library(text, "open_clip", "clip")
    model, _, tag = name.partition("@" if "@" in name else "/")
    _require_name(text, "open_clip", model, library.list_models())
    if weights is not None:
        made = load_model(text, otherwise, lambda: library.create_model(model, pretrained=None), local=True)
        return from_open_clip(text, made.visual, weights)
    if not tag:
        raise TailorError(f"'{text}' names no weights; write open_clip:{model}@PRETRAINED.")
    make = partial(library.create_model, model, pretrained=tag, require_pretrained=True)
    return from_open_clip(text, load_model(text, otherwise, make).visual)


def from_open_clip(text: str, visual: Any, state: State | None = None) -> NamedWeights:
    """open_clip's own VisionTransformer, or the timm network inside one of its wrappers."""
    stats = getattr(visual, "image_mean", None), getattr(visual, "image_std", None)
    norm = cast(Stats, tuple(map(tuple, stats))) if all(stats) else NORMS["clip"]  # type: ignore[arg-type]
    inside = getattr(visual, "trunk", None)
    if inside is not None:
        return from_timm(text, inside, state, norm)
    blocks = getattr(getattr(visual, "transformer", None), "resblocks", None)
    if not blocks:
        raise TailorError(f"The image tower of '{text}' is a {type(visual).__name__}, not a vision transformer.")
    first = blocks[0]
    _, named = recognise_layout(visual.state_dict(), f"'{text}'")
    if state is not None:
        _require_shapes(text, named, state)
    return NamedWeights(
        named if state is None else state,
        norm,
        first.attn.num_heads,
        _act_name(first.mlp.gelu, text),
        first.ln_1.eps,
        "gap" if getattr(visual, "pool_type", "tok") == "avg" else "cls",
    )


# -- transformers -----------------------------------------------------------------------------------------------------

_HF = {  # by model_type: the class, and the normalisation where no file says another
    "vit": ("ViTModel", "half"),
    "dinov2": ("Dinov2Model", "imagenet"),
    "dinov2_with_registers": ("Dinov2WithRegistersModel", "imagenet"),
    "clip": ("CLIPVisionModel", "clip"),
    "clip_vision_model": ("CLIPVisionModel", "clip"),
}
_HF_ACTS = {"quick_gelu": "quick_gelu", "gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh"}


def read_hf(text: str, name: str, otherwise: str) -> NamedWeights:
    """A ViT, DINOv2 or CLIP vision model of transformers, by its name on the hub or by a folder."""
    library, local = _library(text, "transformers", "hf"), Path(name).is_dir()
    config, _ = load_model(text, otherwise, lambda: library.PretrainedConfig.get_config_dict(name), local)
    kind = config.get("model_type")
    if kind not in _HF:
        raise TailorError(f"'{text}' is of the type '{kind}'; known: {', '.join(_HF)}.")
    make = partial(getattr(library, _HF[kind][0]).from_pretrained, name, output_loading_info=True)
    model, facts = load_model(text, otherwise, make, local)
    for key in sorted(facts["missing_keys"]):  # transformers would leave them random
        if "pooler" not in key and "mask_token" not in key:
            raise TailorError(f"The weights of '{text}' lack '{key}'.")
    return from_hf(text, model, _hf_norm(name, local))


def _hf_norm(name: str, local: bool) -> Stats | None:
    """The normalisation in a preprocessor's file beside the weights, if there is one."""
    mixin = import_module("transformers.image_processing_base").ImageProcessingMixin
    try:
        found, _ = load_model(name, "", lambda: mixin.get_image_processor_dict(name), local)
        return tuple(map(float, found["image_mean"])), tuple(map(float, found["image_std"]))
    except (TailorError, LookupError, TypeError, ValueError):
        return None


def from_hf(text: str, model: Any, norm: Stats | None = None) -> NamedWeights:
    """A ViTModel, Dinov2Model or CLIPVisionModel of transformers."""
    config = model.config
    gated = getattr(config, "use_swiglu_ffn", False)  # its activation is SiLU, whatever the configuration says
    if not gated and config.hidden_act not in _HF_ACTS:
        raise TailorError(f"'{text}' has the activation {config.hidden_act}; known: {', '.join(_HF_ACTS)}.")
    _, named = recognise_layout(model.state_dict(), f"'{text}'")
    return NamedWeights(
        named,
        norm or NORMS[_HF[config.model_type][1]],
        config.num_attention_heads,
        "silu" if gated else _HF_ACTS[config.hidden_act],
        config.layer_norm_eps,
    )
