"""Weight files, read without running anything in them: sizes and types are checked before memory is taken."""

from __future__ import annotations

import math
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailorvit.errors import TailorError
from tailorvit.texts import parse_json

if TYPE_CHECKING:
    from torch import Tensor

# Bytes of an element by safetensors' names; complex numbers and packed four-bit types are no weights of ours.
_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1}
_BYTES |= {"I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1, "U16": 2, "U32": 4, "U64": 8}
_HEADER = 100 << 20  # bytes; safetensors' own bound


def safetensors_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes in a safetensors file, from its header; ValueError where header and file do not agree."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, _HEADER):
            raise ValueError("it is no safetensors file, or was cut short")
        head = parse_json(file.read(length).decode("utf-8"))
    if not isinstance(head, dict):
        raise ValueError("its header is no table")
    shapes: dict[str, tuple[int, ...]] = {}
    end = 0
    for name, row in head.items():
        if name == "__metadata__":
            continue
        try:
            shape, kind, (begin, stop) = tuple(row["shape"]), row["dtype"], row["data_offsets"]
        except (LookupError, TypeError, ValueError):
            raise ValueError(f"its header has no shape, dtype and data_offsets of '{name}'") from None
        if kind not in _BYTES:
            raise ValueError(f"'{name}' is of the type {kind}, which is not read")
        whole = all(type(n) is int and n >= 0 for n in (*shape, begin, stop))
        if not whole or math.prod(shape) * _BYTES[kind] != stop - begin:
            raise ValueError(f"'{name}' of the shape {shape} does not fill its {row['data_offsets']} bytes")
        shapes[name], end = shape, max(end, stop)
    if 8 + length + end != size:
        raise ValueError(f"its header promises {8 + length + end:,} bytes, and it has {size:,}")
    return shapes


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file; ValueError where it is damaged."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    safetensors_shapes(path)
    try:
        found: dict[str, Tensor] = load_file(path)
    except SafetensorError as error:
        raise ValueError(str(error)) from None
    return found


def read_pth(path: Path) -> Any:
    """PyTorch's own format: tensors, numbers, texts, lists and dictionaries, and no other object.

    A file whose parts unpack to more than they take is refused: torch never compresses them.
    """
    import torch

    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as parts:
            if any(p.compress_type != zipfile.ZIP_STORED for p in parts.infolist()):
                raise ValueError("its parts are compressed, which PyTorch never does")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about pickle versions and sparse tensors; both end in a sentence
        return torch.load(path, map_location="cpu", weights_only=True)


def require_dense(state: Mapping[str, Tensor], where: str) -> None:
    """Refuse what takes more memory once it is used than it took in the file, and what is no number of a network."""
    import torch

    for name, tensor in state.items():
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
            raise TailorError(f"{where} holds '{name}' as a sparse or packed tensor; save it dense.")
        if tensor.is_complex():
            raise TailorError(f"{where} holds '{name}' in complex numbers, which no network here has.")
        if tensor.untyped_storage().nbytes() < tensor.numel() * tensor.element_size():
            raise TailorError(f"{where} holds '{name}' of the shape {tuple(tensor.shape)} without all its values.")


def require_finite(state: Mapping[str, Tensor], where: str) -> None:
    """Refuse weights with NaN or infinity: such a network answers nothing."""
    for name, tensor in state.items():
        if tensor.is_floating_point() and not tensor.is_meta and not bool(tensor.isfinite().all()):
            raise TailorError(f"{where} holds NaN or infinite values in '{name}'.")
