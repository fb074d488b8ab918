"""A checkpoint file as a dictionary of tensors: safetensors, or PyTorch's format without unpickling any object."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from tailorvit.errors import TailorError
from tailorvit.tensors import read_pth, read_safetensors, require_dense

State = dict[str, Tensor]
WRAPPERS = ("model", "state_dict", "model_state_dict", "module")  # tried in this order; one may be inside another
AVERAGES = ("model_ema", "state_dict_ema")  # only where nothing else is there: the papers report the weights themselves
PREFIXES = ("module.", "_orig_mod.", "model.")  # of data parallel, compiled and Lightning modules


class _Ignored(dict[str, Any]):
    """Takes the place of the options that a training script saved with its weights; holds nothing."""

    def __setstate__(self, state: Any) -> None:
        """Keep nothing."""


def read_state(path: str | Path) -> State:
    """The tensors of a checkpoint by name, without any wrapper; floats as float32, on the CPU.

    A PyTorch file may hold tensors, numbers, texts, lists and dictionaries. Any other object is refused, because
    unpickling it could run code; only the ``argparse.Namespace`` of the released training scripts is skipped.
    """
    file = Path(path)
    if not file.is_file():
        raise TailorError(f"There is no checkpoint file '{path}'.")
    try:
        with file.open("rb") as stream:
            head = stream.read(9)
    except OSError as error:
        raise TailorError(f"Cannot read '{path}': {error.strerror}.") from None
    # A safetensors file begins with the length of its header and the header's brace, whatever its name is.
    named = file.suffix == ".safetensors"  # which torch.load would open itself
    found = _safetensors(file) if named or head[8:9] == b"{" else _torch(file)
    return _tensors(_unwrapped(found), path)


def checksum(path: str | Path) -> str:
    """SHA-256 of a file, to identify it later."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _safetensors(file: Path) -> Any:
    try:
        return read_safetensors(file)
    except (OSError, ValueError) as error:
        raise TailorError(f"'{file}' is not a readable safetensors file: {error}.") from None


def _torch(file: Path) -> Any:
    import pickle

    from torch.serialization import safe_globals

    try:
        with safe_globals([(_Ignored, "argparse.Namespace")]):
            return read_pth(file)
    except pickle.UnpicklingError as error:
        named = re.search(r"GLOBAL ([\w.]+)", str(error))
        if named is None:
            raise TailorError(f"'{file}' is neither a safetensors file nor a PyTorch checkpoint.") from None
        raise TailorError(
            f"'{file}' holds an object of {named[1]} besides tensors, which is not loaded because it could run code; "
            "if you trust the file, save its state dict alone."
        ) from None
    except (RuntimeError, OSError, EOFError, ValueError, LookupError, AttributeError, TypeError):
        raise TailorError(f"'{file}' is neither a safetensors file nor a PyTorch checkpoint.") from None


def _unwrapped(found: Any) -> Any:
    while isinstance(found, Mapping):
        inner = next((k for k in (*WRAPPERS, *AVERAGES) if isinstance(found.get(k), Mapping)), None)
        if inner is None:
            break
        found = found[inner]
    return found


def _tensors(found: Any, path: str | Path) -> State:
    if not isinstance(found, Mapping) or not any(isinstance(v, Tensor) for v in found.values()):
        raise TailorError(f"'{path}' holds no weights: no dictionary of tensors, alone or under 'model'.")
    state = {str(k): v for k, v in found.items() if isinstance(v, Tensor)}
    require_dense(state, f"'{path}'")
    while prefix := next((p for p in PREFIXES if all(k.startswith(p) for k in state)), None):
        state = {k.removeprefix(prefix): v for k, v in state.items()}
    return {k: v.float() if v.is_floating_point() else v for k, v in state.items()}
