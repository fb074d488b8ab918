"""Plain networks put together from weights that are there already: built blank, nothing drawn, nothing filled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

Network = TypeVar("Network", bound=nn.Module)


class _Blank(TorchFunctionMode):
    """While it is on, empty tensors have no memory and filling them does nothing; computed buffers stay real.

    Filling a network with its first weights is nine tenths of making it, and here they would be replaced at once.
    """

    def __torch_function__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.empty:
            return func(*args, **{**kwargs, "device": "meta"})
        if func is Tensor.to and any(isinstance(a, torch.device) and a.type == "meta" for a in args):
            return args[0].clone()  # a computed buffer that follows a weight: there is no value where that is
        name = getattr(func, "__name__", "")
        # Torch's spelling of a change in place; what is trained is no value, and stays as it is said.
        if name.endswith("_") and not name.endswith("__") and name != "requires_grad_":
            target = args[0] if args else kwargs.get("tensor")
            if isinstance(target, Tensor) and target.is_meta:
                return target
        return func(*args, **kwargs)


def assemble(make: Callable[[], Network], weights: Mapping[str, Tensor], share: bool = False) -> Network:
    """The network ``make`` builds, holding these weights: copies of its own, or the given tensors themselves.

    A tensor takes the shape it has in the network. Every weight must have a place and every place a weight.
    """
    with _Blank():
        plain = make()
    missing, left = [], set(weights)
    for path, module in plain.named_modules():  # load_state_dict would do, in three times the time
        stem = f"{path}." if path else ""
        for kind in (module._parameters, module._buffers):
            for leaf, old in kind.items():
                name = stem + leaf
                if old is None:
                    continue
                if name in weights:
                    left.discard(name)
                    new = weights[name].detach().reshape(old.shape)
                    # A slice has gaps between its rows; a copy need not keep them.
                    new = new if share else new.clone(memory_format=torch.contiguous_format)
                    kind[leaf] = nn.Parameter(new, old.requires_grad) if isinstance(old, nn.Parameter) else new
                elif old.is_meta:
                    missing.append(name)
                else:  # computed on the way, such as the places of tokens
                    kind[leaf] = old.to(_device(weights))
    if missing or left:
        raise KeyError(f"weights without a place: {sorted(left)}; places without a weight: {missing}")
    return plain


def _device(weights: Mapping[str, Tensor]) -> torch.device:
    return next(iter(weights.values())).device
