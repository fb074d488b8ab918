"""Checkpoints whose names are timm's or nearly so: DeiT and ViT, Swin and S3, PiT."""

from __future__ import annotations

import re
from typing import Any

from tailorvit.arch import Arch
from tailorvit.checkpoints.base import Loader
from tailorvit.checkpoints.files import State
from tailorvit.errors import TailorError

BUFFERS = ("relative_position_index", "attn_mask")  # follow from the window; ours are made, not loaded
TABLE = "layers.0.blocks.0.attn.relative_position_bias_table"


def _one_token(state: State, what: str) -> None:
    """Distilled networks answer with two tokens and two heads, which ours do not have."""
    if any(k.startswith(("dist_token", "head_dist")) for k in state):
        raise TailorError(f"The checkpoint is a distilled {what} with two class tokens and two heads; ours have one.")


def _vit(state: State, arch: Arch, frame: Any) -> State:
    _one_token(state, "ViT")
    return state


def _pit(state: State, arch: Arch, frame: Any) -> State:
    """The first release kept its poolings in a list of their own; timm has each in the stage it leads to."""
    _one_token(state, "PiT")
    return {re.sub(r"^pools\.(\d+)\.", lambda m: f"transformers.{int(m[1]) + 1}.pool.", k): v for k, v in state.items()}


def _new_swin(state: State, arch: Arch, frame: Any) -> State:
    return {k: v for k, v in state.items() if not k.endswith(BUFFERS)}


def _swin(state: State, arch: Arch, frame: Any) -> State:
    """Merging stands at the end of a stage there, at the beginning of the next one here; the head is one layer."""
    found = {}
    for name, tensor in _new_swin(state, arch, frame).items():
        name = re.sub(r"^layers\.(\d+)\.downsample\.", lambda m: f"layers.{int(m[1]) + 1}.downsample.", name)
        found[re.sub(r"^head\.", "head.fc.", name)] = tensor
    return found


TIMM_VIT = Loader(
    name="vit",
    summary="DeiT's and timm's plain vision transformers",
    families=("vit",),
    knows=lambda state: {"patch_embed.proj.weight", "blocks.0.norm1.weight", "cls_token"} <= state.keys(),
    plain=_vit,
)
TIMM_PIT = Loader(
    name="pit",
    summary="PiT, as first released or from timm",
    families=("pit",),
    knows=lambda state: {"patch_embed.conv.weight", "transformers.0.blocks.0.norm1.weight"} <= state.keys(),
    plain=_pit,
)
TIMM_SWIN = Loader(
    name="timm-swin",
    summary="Swin and S3 from timm 0.9 or newer",
    families=("swin", "windowed"),
    knows=lambda state: TABLE in state and "layers.0.downsample.norm.weight" not in state,
    plain=_new_swin,
)
SWIN = Loader(
    name="s3",
    summary="S3 (AutoFormerV2) and Swin, as released or from older timm",
    families=("swin", "windowed"),
    knows=lambda state: TABLE in state and "layers.0.downsample.norm.weight" in state,
    plain=_swin,
)
