"""Where a pretrained network comes from: the text a user gives, a short list to choose from, a folder to keep it in."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tailorvit.checkpoints.files import read_state
from tailorvit.checkpoints.pretrained import Pretrained, from_named
from tailorvit.checkpoints.pretrained_swin import from_swin, is_swin, is_swin_name, read_timm_swin, tiny_swin
from tailorvit.errors import TailorError, unknown
from tailorvit.families.network import Sides, State
from tailorvit.families.tailored.plain import tailored_settings
from tailorvit.families.tailored.spaces import tailored_arch
from tailorvit.rng import derive
from tailorvit.texts import read_table
from tailorvit.trunks import libraries
from tailorvit.trunks.layouts import NORMS, recognise_layout
from tailorvit.trunks.libraries import NamedWeights

SUFFIXES = (".safetensors", ".pt", ".pth", ".bin")
FORMS = (
    "timm:NAME, hf:NAME or hf:FOLDER, open_clip:MODEL/PRETRAINED, a weight file (.safetensors, .pt, .pth, .bin), "
    "the folder of a tailored network, auto, or random:tiny and random:tiny-swin for tests"
)
_ACTS = ("gelu", "gelu_tanh", "quick_gelu", "silu")
_HEAD_WIDTH = 64  # of nearly every published vision transformer
_OPENAI = "input_resolution"  # only OpenAI's own CLIP files hold this number; their activation is QuickGELU
_WEIGHTS, _PREFIX = ("network.safetensors", "model.safetensors"), "network."  # of a finished network's folder


def open_pretrained(text: str, weights: str | None = None) -> Pretrained:
    """The pretrained network that a user's text stands for; ``weights`` is a local copy of its weight file.

    A weight file alone does not say all. Heads are taken to be 64 channels wide, images to be normalised as CLIP's
    where there is a norm before the blocks and as ImageNet's otherwise. ``FILE#heads=6,act=gelu,norm=half`` says it.
    The eps of the norms is taken to be 1e-5 in CLIP's networks and 1e-6 in others.
    """
    kind, _, name = text.partition(":")
    readers = {"timm": _from_timm, "open_clip": _from_open_clip, "hf": _from_hf, "random": _from_random}
    if name and kind in readers:
        return readers[kind](text, name, weights)
    if weights is not None:
        raise TailorError(f"--weights '{weights}' goes with timm:NAME or open_clip:MODEL, not with '{text}'.")
    path = Path(text).expanduser()
    if path.is_dir():
        return _from_folder(path)
    if Path(text.partition("#")[0]).suffix in SUFFIXES:
        return _from_file(text)
    raise TailorError(f"There is no pretrained network '{text}'; it can be: {FORMS}.")


def _pretrained(text: str, found: NamedWeights) -> Pretrained:
    known: dict[str, Any] = {"heads": found.heads, "act": found.act, "eps": found.eps, "pool": found.pool}
    return from_named(text, found.state, found.norm, **known)


# -- libraries --------------------------------------------------------------------------------------------------------

_LOCAL = "--weights FILE takes a local copy"


def _from_timm(text: str, name: str, weights: str | None) -> Pretrained:
    if is_swin_name(name):
        return read_timm_swin(text, name, _LOCAL, weights)
    given = None if weights is None else _named(weights)
    return _pretrained(text, libraries.read_timm(text, name, _LOCAL, weights=given))


def _from_open_clip(text: str, name: str, weights: str | None) -> Pretrained:
    given = None if weights is None else _named(weights)
    return _pretrained(text, libraries.read_open_clip(text, name, _LOCAL, given))


def _from_hf(text: str, name: str, weights: str | None) -> Pretrained:
    if weights is not None:
        raise TailorError(f"--weights '{weights}' does not go with '{text}'; hf:FOLDER takes a local copy.")
    return _pretrained(text, libraries.read_hf(text, name, "hf:FOLDER takes a local copy"))


_TINY: dict[str, Any] = {"img_size": 8, "patch_size": 2, "embed_dim": 24, "depth": 4, "num_heads": 3, "num_classes": 0}


def _from_random(text: str, name: str, weights: str | None) -> Pretrained:
    """An untrained network, always the same: for tests and tiny forms."""
    if name not in ("tiny", "tiny-swin"):
        raise unknown("random network", text, ("random:tiny", "random:tiny-swin"))
    if weights is not None:
        raise TailorError(f"--weights '{weights}' does not go with '{text}', whose weights are random.")
    rng = torch.Generator().manual_seed(derive(0, "start", name))
    if name == "tiny-swin":
        return tiny_swin(text, partial(_draw, rng))
    from timm.models.vision_transformer import VisionTransformer

    with torch.random.fork_rng(devices=[]):
        made = VisionTransformer(**_TINY)
    _draw(rng, made)
    return _pretrained(text, libraries.from_timm(text, made, norm=NORMS["half"]))


@torch.no_grad()
def _draw(rng: torch.Generator, model: nn.Module) -> None:
    """Weights of unit gain, which keeps the differences between images through all blocks."""
    for key, tensor in model.state_dict().items():
        if key.endswith("bias"):
            tensor.zero_()
        elif "norm" not in key:
            gain = tensor.shape[1:].numel() ** -0.5 if key.endswith("weight") else 0.5
            tensor.copy_(gain * torch.randn(tensor.shape, generator=rng))


def _named(weights: str) -> State:
    path = Path(weights).expanduser()
    return recognise_layout(read_state(path), f"'{weights}'")[1]


# -- files and folders ------------------------------------------------------------------------------------------------


def _from_file(text: str) -> Pretrained:
    target, _, after = text.partition("#")
    options = dict(_option(pair, text) for pair in after.split(",") if pair)
    state = read_state(Path(target).expanduser())
    if is_swin(state):
        if wrong := next((k for k in options if k != "norm"), None):
            raise TailorError(f"'{target}' is a Swin, whose weights say its '{wrong}'; only norm=NAME can be given.")
        return from_swin(text, state, NORMS[options.get("norm", "imagenet")])
    layout, named = recognise_layout(state, f"'{target}'")
    if "patch_embed.proj.weight" not in named:
        raise TailorError(f"'{target}' lacks 'patch_embed.proj.weight'.")
    width, clip = named["patch_embed.proj.weight"].shape[0], layout.clip or "norm_pre.weight" in named
    if "heads" not in options and width % _HEAD_WIDTH:
        raise TailorError(
            f"'{target}' does not say its number of heads, and {_HEAD_WIDTH} channels a head do not divide its width "
            f"{width}; write {target}#heads=N, or give timm:NAME with --weights {target}."
        )
    gated = any(k.endswith(".mlp.fc1_g.weight") for k in named) or _packed(named)
    act = "silu" if gated else "quick_gelu" if _OPENAI in state else layout.act
    found = NamedWeights(
        named,
        NORMS[options.get("norm", "clip" if clip else "imagenet")],
        int(options.get("heads", width // _HEAD_WIDTH)),
        options.get("act", act),
        1e-5 if clip else layout.eps,
    )
    return _pretrained(text, found)


def _packed(named: Mapping[str, Tensor]) -> bool:
    first, second = (named.get(f"blocks.0.mlp.{layer}.weight") for layer in ("fc1", "fc2"))
    return first is not None and second is not None and first.shape[0] == 2 * second.shape[1]


def _option(pair: str, text: str) -> tuple[str, str]:
    key, _, value = pair.partition("=")
    choices = {"act": _ACTS, "norm": tuple(NORMS)}
    if key not in ("heads", *choices):
        raise unknown(f"option of '{text}'", pair, ("heads=N", *(f"{k}=NAME" for k in choices)))
    if key in choices and value not in choices[key]:
        raise unknown(f"'{key}' of '{text}'", value, choices[key])
    if key == "heads" and (not value.isdecimal() or int(value) < 1):
        raise TailorError(f"'heads' of '{text}' must be a positive whole number, not '{value}'.")
    return key, value


def _from_folder(folder: Path) -> Pretrained:
    """One that :meth:`Pretrained.save` wrote, a finished network of the family ``tailored``, or the run it ended."""
    if Pretrained.kept_in(folder):
        return Pretrained.load(folder)
    place = next((p for p in (folder, folder / "network") if (p / "network.json").is_file()), None)
    if place is None:
        raise TailorError(
            f"'{folder}' holds no network (no network.json); for a model of transformers write hf:{folder}."
        )
    try:
        card = read_table(place / "network.json")
        family, made = card["arch"]["family"], card.get("plain", {}).get("settings")
        how = card["preprocessing"]
        mean, std = (tuple(map(float, how[k])) for k in ("mean", "std"))
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise TailorError(f"The network in '{folder}' cannot be read: {error}.") from None
    if family != "tailored" or made is None:
        raise TailorError(
            f"'{folder}' holds a network of the family {family}, which is not tailored further; "
            f"`tailorvit finetune {folder}` trains it on."
        )
    shape = {k: made[k] for k in ("embed", "heads", "hidden")}
    settings = replace(tailored_settings({k: v for k, v in made.items() if k not in shape}), classes=0)
    state = read_state(next((place / n for n in _WEIGHTS if (place / n).is_file()), place / _WEIGHTS[0]))
    kept = {k.removeprefix(_PREFIX): v for k, v in state.items()}
    kept = {k: v for k, v in kept.items() if not k.startswith("head.")}
    return Pretrained(str(folder), tailored_arch(shape), settings, kept, mean, std).checked()


# -- auto -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Start:
    """A pretrained network to choose from."""

    source: str
    width: int  # channels of the stream: its size class
    params: int  # without a head
    patch: int
    licence: str  # of the weights
    about: str


# Within a size the first is tried first: the more images it has seen, the earlier.
STARTS = (
    Start("timm:vit_tiny_patch16_224.augreg_in21k", 192, 5_524_416, 16, "Apache-2.0", "ViT-Ti/16, ImageNet-21k"),
    Start("timm:vit_small_patch14_dinov2.lvd142m", 384, 22_056_192, 14, "Apache-2.0", "DINOv2 ViT-S/14, LVD-142M"),
    Start("timm:vit_small_patch16_224.augreg_in21k", 384, 21_665_664, 16, "Apache-2.0", "ViT-S/16, ImageNet-21k"),
    Start("timm:deit_small_patch16_224.fb_in1k", 384, 21_665_664, 16, "Apache-2.0", "DeiT-S/16, ImageNet-1k"),
    Start(
        "timm:vit_base_patch16_clip_quickgelu_224.openai",
        768,
        85_799_424,
        16,
        "MIT by OpenAI, Apache-2.0 as timm's copy",
        "CLIP ViT-B/16, OpenAI",
    ),
)


def choose_start(image_size: Sides, budget_params: float | None = None) -> list[Start]:
    """The list in order of fit: whole patches first, then large enough for the budget, then the smallest."""

    def fit(start: Start) -> tuple[bool, bool, int]:
        small = budget_params is not None and start.params < budget_params
        return any(side % start.patch for side in image_size), small, -start.width if small else start.width

    return sorted(STARTS, key=fit)


def first_at_hand(image_size: Sides, budget_params: float | None = None) -> tuple[Pretrained | None, str]:
    """The best fitting network of the list that can be loaded, and one sentence: which it is, or why there is none."""
    with nullcontext() if libraries.hub_reachable() else libraries.cache_only():  # asked once, not for each
        return _first(choose_start(image_size, budget_params))


def _first(starts: list[Start]) -> tuple[Pretrained | None, str]:
    refused = ""
    for start in starts:
        try:
            found = open_pretrained(start.source)
        except TailorError as error:
            refused = refused or str(error)
            continue
        return found, f"Starts from {start.source} ({start.about}; licence {start.licence})."
    return None, f"No pretrained network could be loaded: {refused}"
