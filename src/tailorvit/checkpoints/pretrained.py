"""A pretrained network, ready to be cut, and plain vision transformers as networks of the family ``tailored``.

What differs between libraries is folded in or becomes a setting: layer scale goes into the weights behind it, positions
of registers into the registers, packed gates are taken apart. A part that has no place is named.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tailorvit.arch import Arch
from tailorvit.errors import TailorError
from tailorvit.families import Family, family
from tailorvit.families.network import PlainNetwork, Sides, State
from tailorvit.families.resize import resized
from tailorvit.families.tailored.plain import TailoredSettings
from tailorvit.families.tailored.spaces import tailored_arch
from tailorvit.families.tailoring import Tailoring
from tailorvit.rng import seed_everything
from tailorvit.runs import atomic
from tailorvit.tensors import read_safetensors, require_finite
from tailorvit.texts import read_table

# After the blocks a new head comes; timm has the last norm behind the pooling in some networks.
_UNUSED = re.compile(r"(head|fc_norm|attn_pool|head_drop|mask_token|proj$|ln_post|post_layernorm).*")
CARD, TENSORS = "pretrained.json", "pretrained.safetensors"  # in the folder that keeps one
_BLOCK = re.compile(r"blocks\.(\d+)\.(.+)")


@dataclass(frozen=True, eq=False)  # tensors have no single truth to compare
class Pretrained:
    """A pretrained network without its head, at the image size it was trained for."""

    source: str
    arch: Arch
    settings: Any  # of its family, with no classes
    state: Mapping[str, Tensor]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def family(self) -> Family:
        """The record of its family."""
        return family(self.arch.family)

    @property
    def tailoring(self) -> Tailoring:
        """What its family offers to cut it."""
        found = self.family.tailoring
        if found is None:
            raise TailorError(f"'{self.source}' is of the family {self.arch.family}, which is not cut.")
        return found

    def blank(self) -> PlainNetwork:
        """The network as it was trained, with neither a head nor weights."""
        with torch.device("meta"):
            made = self.family.build(self.settings, self.arch)
        assert isinstance(made, PlainNetwork)
        return made

    def features(self) -> PlainNetwork:
        """The network as it was trained, without a head."""
        model = self.family.build(self.settings, self.arch)
        assert isinstance(model, PlainNetwork)
        model.load_state_dict(dict(self.state))
        return model.eval()

    def network(self, size: Sides, classes: int, channels: int, seed: int, drop_path: float = 0.0) -> PlainNetwork:
        """The network for other images and classes: positions interpolated, windows scaled, a new head by the seed."""
        seed_everything(seed, "init", "head")
        return resized(self.features(), size, classes, channels, "scale", drop_path)

    def checked(self) -> Pretrained:
        """Itself, where its weights are those that its architecture and its settings need."""
        wanted = self.blank().state_dict()
        for name, tensor in wanted.items():
            if name not in self.state or self.state[name].shape != tensor.shape:
                raise TailorError(f"'{self.source}' lacks '{name}' of the shape {tuple(tensor.shape)}.")
        if left := next((k for k in self.state if k not in wanted), None):
            raise TailorError(f"'{self.source}' has '{left}', a part that cannot be tailored.")
        require_finite(self.state, f"'{self.source}'")
        return self

    # -- kept in a folder ---------------------------------------------------------------------------------------------

    @staticmethod
    def kept_in(folder: Path) -> bool:
        """Whether :meth:`save` has written there."""
        return (folder / CARD).is_file()

    def save(self, folder: Path) -> None:
        """Weights and a card; the card last, as it makes the copy whole."""
        from safetensors.torch import save

        folder.mkdir(parents=True, exist_ok=True)
        card = {"source": self.source, "arch": self.arch.to_dict(), "settings": self.settings.to_dict()}
        atomic.write_bytes(folder / TENSORS, save(dict(self.state), {"format": "pt"}))
        atomic.write_bytes(folder / CARD, atomic.dumps({**card, "mean": self.mean, "std": self.std}, indent=1).encode())

    @classmethod
    def load(cls, folder: Path) -> Pretrained:
        """What :meth:`save` wrote, to the bit."""
        try:
            card, state = read_table(folder / CARD), read_safetensors(folder / TENSORS)
            arch = Arch.from_dict(card["arch"])
            found = cls(card["source"], arch, None, state, tuple(card["mean"]), tuple(card["std"]))
            return replace(found, settings=found.tailoring.settings.of(card["settings"])).checked()
        except (OSError, LookupError, TypeError, ValueError, AttributeError) as error:
            raise TailorError(f"The pretrained network in '{folder}' cannot be read: {error}.") from None


def from_named(
    source: str,
    named: Mapping[str, Tensor],
    norm: tuple[tuple[float, ...], tuple[float, ...]],
    *,
    heads: int,
    act: str = "gelu",
    eps: float = 1e-6,
    pool: str = "cls",
) -> Pretrained:
    """From weights by timm's names and what names and shapes cannot say."""
    where = f"'{source}'"
    for name, tensor in named.items():
        if not tensor.is_floating_point():
            kind = str(tensor.dtype).removeprefix("torch.")
            raise TailorError(f"{where} holds '{name}' as {kind}, not as decimal numbers.")
    state = {k: v.float() for k, v in named.items()}
    patches = _need(state, "patch_embed.proj.weight", where)
    embed, channels, patch, across = patches.shape
    if patch != across:
        raise TailorError(f"{where} has patches of {patch}x{across} px; only square ones can be tailored.")
    if embed % heads:
        raise TailorError(f"{heads} heads do not divide the width {embed} of {where}.")
    depth = 1 + max((int(m[1]) for m in map(_BLOCK.fullmatch, state) if m), default=-1)
    out, grid = _tokens(state, embed, where)
    blocks = [_block(state, f"blocks.{i}.", where) for i in range(depth)]
    for i, block in enumerate(blocks):
        out |= {f"blocks.{i}.{name}": tensor for name, tensor in block.items()}
    for name in ("norm_pre", "norm"):
        for leaf in ("weight", "bias"):
            value = state.pop(f"{name}.{leaf}", None)
            value = state.get(f"fc_norm.{leaf}") if value is None and name == "norm" else value
            if value is not None:
                out[f"{name}.{leaf}"] = value
    if left := next((k for k in state if not _UNUSED.fullmatch(k)), None):
        raise TailorError(f"{where} has '{left}', a part that cannot be tailored.")
    first = blocks[0] if blocks else {}
    settings = TailoredSettings(
        image_size=(grid * patch, grid * patch),
        patch=patch,
        channels=channels,
        classes=0,
        head_dim=embed // heads,
        class_token="cls_token" in out,
        registers=out["reg_token"].shape[1] if "reg_token" in out else 0,
        positions="pos_embed" in out,
        pool="cls" if pool == "cls" and "cls_token" in out else "gap",
        pre_norm="norm_pre.weight" in out,
        qkv_bias="attn.qkv.bias" in first,
        qk_norm="attn.q_norm.weight" in first,
        gated="mlp.gate.weight" in first,
        act=act,  # type: ignore[arg-type]
        eps=eps,
        init="paper",
    )
    arch = tailored_arch(
        {"embed": embed, "heads": [heads] * depth, "hidden": [b["mlp.fc1.bias"].numel() for b in blocks]}
    )
    return Pretrained(source, arch, settings, {k: v.contiguous() for k, v in out.items()}, *norm).checked()


def _need(state: State, name: str, where: str) -> Tensor:
    if name not in state:
        raise TailorError(f"{where} lacks '{name}': it is no vision transformer by timm's names.")
    return state[name]


def _tokens(state: State, embed: int, where: str) -> tuple[State, int]:
    """Patch embedding, class token, registers and positions; and the patches a side."""
    out = {"patch_embed.proj.weight": state.pop("patch_embed.proj.weight")}
    out["patch_embed.proj.bias"] = state.pop("patch_embed.proj.bias", torch.zeros(embed))
    for name in ("cls_token", "reg_token"):
        if name in state:
            out[name] = state.pop(name).reshape(1, -1, embed)
    first, registers = int("cls_token" in out), out["reg_token"].shape[1] if "reg_token" in out else 0
    if "pos_embed" not in state:
        return out, 1
    table = state.pop("pos_embed").reshape(-1, embed)
    # Positions may be of the patches alone, of class token and patches, or of registers too.
    for token, register in ((0, 0), (first, 0), (first, registers)):
        side = math.isqrt(max(len(table) - token - register, 0))
        if side and side * side == len(table) - token - register:
            break
    else:
        raise TailorError(f"{where} has {len(table)} positions, which are no square grid.")
    rows, marks, patches = table.split([token, register, len(table) - token - register])
    if register:
        out["reg_token"] = out["reg_token"] + marks
    blank = torch.zeros(first - token, embed)
    out["pos_embed"] = torch.cat([rows, blank, patches])[None]
    return out, side


def _block(state: State, at: str, where: str) -> State:
    """The weights of one block by our names; what is used is taken out of the state."""
    own = {k.removeprefix(at): state.pop(k) for k in list(state) if k.startswith(at)}
    scales = {name: own.pop(f"{name}.gamma", None) for name in ("ls1", "ls2")}
    out: State = {}
    if "mlp.fc1_g.weight" in own:  # timm's SwiGLU: the gate carries the activation
        for leaf in ("weight", "bias"):
            own[f"mlp.fc1.{leaf}"] = torch.cat([own.pop(f"mlp.fc1_g.{leaf}"), own.pop(f"mlp.fc1_x.{leaf}")])
    hidden = _need(own, "mlp.fc2.weight", f"{where}, {at[:-1]},").shape[1]
    if _need(own, "mlp.fc1.weight", f"{where}, {at[:-1]},").shape[0] == 2 * hidden:
        for leaf in ("weight", "bias"):
            own[f"mlp.fc1.{leaf}"], out[f"mlp.gate.{leaf}"] = own[f"mlp.fc1.{leaf}"].chunk(2)
    for layer, scale in (("attn.proj", scales["ls1"]), ("mlp.fc2", scales["ls2"])):
        weight = own.pop(f"{layer}.weight")
        bias = own.pop(f"{layer}.bias", torch.zeros(len(weight)))
        out[f"{layer}.weight"] = weight if scale is None else weight * scale[:, None]
        out[f"{layer}.bias"] = bias if scale is None else bias * scale
    for layer in ("norm1", "norm2", "attn.qkv", "attn.q_norm", "attn.k_norm", "mlp.fc1"):
        for leaf in ("weight", "bias"):
            if f"{layer}.{leaf}" in own:
                out[f"{layer}.{leaf}"] = own.pop(f"{layer}.{leaf}")
    for layer in ("attn.q_norm", "attn.k_norm"):
        if f"{layer}.weight" in out and f"{layer}.bias" not in out:
            raise TailorError(f"{where} has '{at}{layer}' without a bias (an RMS norm), which cannot be tailored.")
    if own:
        raise TailorError(f"{where} has '{at}{next(iter(own))}', a part that cannot be tailored.")
    return out
