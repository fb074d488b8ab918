"""The same network with its parts in another order, or its stream in another basis: what cutting to prefixes needs.

Every function here returns a network that computes what the given one does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from tailorvit.arch import Arch
from tailorvit.errors import TailorError
from tailorvit.families.network import State
from tailorvit.families.refit import enough, refit_blocks
from tailorvit.families.tailored.plain import Block, PlainTailored, TailoredSettings
from tailorvit.families.tailored.spaces import tailored_arch
from tailorvit.families.tailoring import Orders, Parts

# -- what there is to order -------------------------------------------------------------------------------------------


def parts(model: PlainTailored) -> Parts:
    """One stream, read by two norms a block."""
    blocks = [b for b in model.blocks if isinstance(b, Block)]
    norms = [m for b in blocks for m in (b.norm1, b.norm2)]
    return Parts(blocks, [0] * len(blocks), [int(model.shape["embed"])], [norms], model.shared.head_dim)


def logits(model: PlainTailored, x: Tensor, blocks: Sequence[int]) -> Tensor:
    """Of the network with these blocks alone."""
    tokens = model.tokens(x)
    for b in blocks:
        tokens = model.blocks[b](tokens)
    return model.forward_head(model.norm(tokens))


def whole_arch(model: PlainTailored) -> Arch:
    """The architecture of a network."""
    return first_arch(model, len(model.blocks))


def first_arch(model: PlainTailored, depth: int) -> Arch:
    """The architecture of so many of its blocks."""
    shape = model.shape
    return tailored_arch(
        {"embed": shape["embed"], "heads": shape["heads"][:depth], "hidden": shape["hidden"][:depth], "depth": depth}
    )


@torch.no_grad()
def fill(supernet: nn.Module, model: PlainTailored) -> None:
    """Put the ordered network into a supernet as its largest member."""
    state = model.state_dict()
    for name, parameter in supernet.named_parameters():
        parameter.copy_(state[name].view(parameter.shape))


# -- another order ----------------------------------------------------------------------------------------------------


@torch.no_grad()
def reordered(model: PlainTailored, orders: Orders) -> PlainTailored:
    """The network with its heads, hidden units and channels in this order."""
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    dim = model.shared.head_dim
    for i, (heads, hidden) in enumerate(zip(orders.heads, orders.hidden, strict=True)):
        at = f"blocks.{i}."
        for leaf in ("weight", "bias"):
            if f"{at}attn.qkv.{leaf}" in state:
                parts = state[f"{at}attn.qkv.{leaf}"].unflatten(0, (3, -1, dim))
                state[f"{at}attn.qkv.{leaf}"] = parts[:, list(heads)].flatten(0, 2)
            for layer in ("fc1", "gate"):
                if f"{at}mlp.{layer}.{leaf}" in state:
                    state[f"{at}mlp.{layer}.{leaf}"] = state[f"{at}mlp.{layer}.{leaf}"][list(hidden)]
        state[f"{at}attn.proj.weight"] = (
            state[f"{at}attn.proj.weight"].unflatten(1, (-1, dim))[:, list(heads)].flatten(1)
        )
        state[f"{at}mlp.fc2.weight"] = state[f"{at}mlp.fc2.weight"][:, list(hidden)]
    if orders.streams is not None:
        state = _permuted(state, list(orders.streams[0]))
    return _rebuilt(model, state)


def _permuted(state: State, order: list[int]) -> State:
    """All that writes to the stream, normalises it or reads it, with the channels in this order."""
    found = {}
    for name, tensor in state.items():
        if name in _TABLES:
            found[name] = tensor[..., order]
        elif name.endswith(_READERS):
            found[name] = tensor[:, order]
        elif name.endswith(_WRITERS) or _is_stream_norm(name):
            found[name] = tensor[order]
        else:
            found[name] = tensor
    return found


_READERS = ("attn.qkv.weight", "mlp.fc1.weight", "mlp.gate.weight", "head.weight")
_WRITERS = tuple(f"{n}.{leaf}" for n in ("attn.proj", "mlp.fc2", "patch_embed.proj") for leaf in ("weight", "bias"))
_TABLES = ("cls_token", "reg_token", "pos_embed")


def _is_stream_norm(name: str) -> bool:
    return name.split(".")[-2].startswith("norm")  # norm_pre, norm1, norm2, norm; not q_norm and k_norm


def _rebuilt(model: PlainTailored, state: State, **settings: object) -> PlainTailored:
    """A network of the same shape with these weights."""
    shared = replace(model.shared, **settings)  # type: ignore[arg-type]
    rates = [b.drop_path.rate for b in model.blocks if isinstance(b, Block)]
    new = PlainTailored(shared, **model.shape, drop_path=rates).to(next(model.parameters()).device)
    new.load_state_dict(state)
    return new.train(model.training)


# -- another basis ----------------------------------------------------------------------------------------------------


@torch.no_grad()
def rotated(model: PlainTailored, basis: Tensor) -> PlainTailored:
    """The network whose stream is written in another orthonormal basis, one vector a column, the most important first.

    A layer norm subtracts the mean, scales to unit variance and applies weights. The mean is taken out of all that
    writes to the stream, the weights go into what reads it, and what is left, the scaling, is an RMS norm, which is the
    same in every basis.
    """
    shared, width = model.shared, int(model.shape["embed"])
    if shared.pre_norm:
        raise TailorError("The stream of a network with a norm before its blocks (CLIP) has no other basis.")
    if basis.shape != (width, width):
        raise TailorError(f"A basis of {tuple(basis.shape)} does not fit a stream of {width} channels.")
    kept = {name: tensor.double() for name, tensor in model.state_dict().items()}
    turn = basis.double().to(next(iter(kept.values())).device)
    if shared.norm == "layer":
        turn = turn - turn.mean(0, keepdim=True)  # of every column: as if the mean were taken out before the turn
    found = dict(kept)
    for name, tensor in kept.items():
        if name.endswith(_WRITERS):
            found[name] = torch.tensordot(turn.T, tensor, dims=([1], [0]))
        elif name in _TABLES:
            found[name] = tensor @ turn
    back = basis.double().to(turn.device)
    for norm, readers in _readers(model).items():
        weight, bias = kept[f"{norm}.weight"], kept.get(f"{norm}.bias")
        for reader in readers:
            whole = kept[f"{reader}.weight"]
            found[f"{reader}.weight"] = (whole * weight) @ back
            if bias is not None:
                before = kept.get(f"{reader}.bias", torch.zeros(len(whole), dtype=whole.dtype, device=whole.device))
                found[f"{reader}.bias"] = before + whole @ bias
        found[f"{norm}.weight"] = torch.ones_like(weight)
        found.pop(f"{norm}.bias", None)
    state = {name: tensor.to(model.state_dict().get(name, basis).dtype) for name, tensor in found.items()}
    biased = shared.qkv_bias or shared.norm == "layer"
    return _rebuilt(model, state, norm="rms", width=shared.width or width, qkv_bias=biased)


def turned(model: PlainTailored, images: Sequence[Tensor]) -> PlainTailored | None:
    """The network whose stream is written in its principal components; None with a norm before the blocks (CLIP)."""
    return None if model.shared.pre_norm else rotated(model, principal_basis(model, images)[0])


def turned_settings(arch: Arch, shared: TailoredSettings) -> dict[str, Any]:
    """What :func:`turned` changes in the settings."""
    if shared.pre_norm:
        return {}
    biased = shared.qkv_bias or shared.norm == "layer"
    return {"norm": "rms", "width": shared.width or int(arch.one("embed")), "qkv_bias": biased}


def _readers(model: PlainTailored) -> dict[str, list[str]]:
    """Every norm of the stream, and the linear layers that read behind it."""
    gates = ["mlp.gate"] if model.shared.gated else []
    found = {}
    for i in range(len(model.blocks)):
        found[f"blocks.{i}.norm1"] = [f"blocks.{i}.attn.qkv"]
        found[f"blocks.{i}.norm2"] = [f"blocks.{i}.{layer}" for layer in ("mlp.fc1", *gates)]
    return {**found, "norm": ["head"] if isinstance(model.head, nn.Linear) else []}


@torch.no_grad()
def principal_basis(model: PlainTailored, images: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """The directions in which the normalised stream varies, the strongest first, and their shares of the whole.

    Every norm of the network counts alike, whatever the size of the stream there.
    """
    norms = [m for name, m in model.named_modules() if name.split(".")[-1] in ("norm", "norm1", "norm2")]
    width, total, seen = int(model.shape["embed"]), None, 0

    def look(module: nn.Module, given: tuple[Tensor, ...]) -> None:
        nonlocal total, seen
        x = given[0].flatten(0, -2).double()
        x = x - x.mean(-1, keepdim=True) if model.shared.norm == "layer" else x
        x = x / x.norm(dim=-1, keepdim=True).clamp_min(1e-12)
        total = x.T @ x if total is None else total + x.T @ x
        seen += len(x)

    hooks = [m.register_forward_pre_hook(look) for m in norms]
    training = model.training
    try:
        model.eval()
        for x in images:
            model(x)
    finally:
        for hook in hooks:
            hook.remove()
        model.train(training)
    assert total is not None
    values, vectors = torch.linalg.eigh(total / seen)
    assert len(values) == width
    return vectors.flip(1).float(), values.flip(0).float() / values.sum()


# -- a cut network ----------------------------------------------------------------------------------------------------


@torch.no_grad()
def refit(cut: PlainTailored, whole: PlainTailored, order: Sequence[int], images: Sequence[Tensor]) -> None:
    """Make a network cut from an ordered one follow it, in place; it has the first blocks of an order by importance.

    Batches of images: no more are taken than are needed.
    """
    theirs = list(enough(whole.tokens(x) for x in images))
    ours = [cut.tokens(x) for x, _ in zip(images, theirs, strict=False)]
    refit_blocks(list(cut.blocks), list(whole.blocks), sorted(order[: len(cut.blocks)]), ours, theirs)
