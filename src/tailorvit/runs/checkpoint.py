"""Checkpoints: one safetensors file with metadata and a checksum, and the previous one as a reserve."""

from __future__ import annotations

import contextlib
import os
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailorvit.runs import atomic
from tailorvit.tensors import safetensors_shapes
from tailorvit.texts import parse_json

if TYPE_CHECKING:
    from torch import Tensor

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


class DamagedError(Exception):
    """A damaged checkpoint file; the text says what is wrong."""


def files(folder: Path, name: str) -> tuple[Path, Path, Path]:
    """The paths of a checkpoint: the file, the previous one, and a copy of its metadata for people."""
    if not _NAME.fullmatch(name) or name.endswith(".prev"):
        raise ValueError(f"'{name}' is not a checkpoint name: letters, digits, '_', '-' and '.' only")
    return folder / f"{name}.safetensors", folder / f"{name}.prev.safetensors", folder / f"{name}.json"


def _checksum(tensors: Mapping[str, Tensor], meta: str) -> str:
    """CRC-32 over metadata, names, types, shapes and bytes: it detects any change of the content."""
    import torch

    crc = zlib.crc32(meta.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        crc = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), crc)
        crc = zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, crc)
    return f"{crc:08x}"


def save(folder: Path, name: str, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
    """Write a checkpoint; the current one becomes the previous one. An OSError leaves both unchanged."""
    from safetensors.torch import save as serialise

    path, previous, copy = files(folder, name)
    # Cloned: safetensors refuses tensors that share storage, as tied weights do.
    own = {k: v.detach().to("cpu", copy=True).contiguous() for k, v in tensors.items()}
    text = atomic.dumps(dict(meta))
    data = serialise(own, metadata={"meta": text, "crc32": _checksum(own, text)})
    atomic.write_bytes(path, data, before=lambda: _keep_previous(path, previous))
    with contextlib.suppress(OSError):  # it is never read; the checkpoint itself is already safe
        atomic.write_json(copy, dict(meta))


def _keep_previous(path: Path, previous: Path) -> None:
    """Make ``path`` also the previous checkpoint, by a second link, so that ``path`` exists at every moment."""
    if not path.exists():
        return
    link = previous.with_name(f".{previous.name}.{os.getpid()}{atomic.SUFFIX}")
    link.unlink(missing_ok=True)
    try:
        os.link(path, link)
    except OSError:  # no hard links here; reading accepts a moment in which only the previous one exists
        atomic.rename(path, previous)
        return
    atomic.rename(link, previous)


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The verified tensors and metadata of one file. DamagedError: it is damaged; FileNotFoundError: it is missing."""
    from safetensors import SafetensorError, safe_open

    if not path.exists():
        raise FileNotFoundError(path)
    try:
        safetensors_shapes(path)  # sizes before anything is allocated
        with safe_open(path, framework="pt") as file:
            head = file.metadata() or {}
            # Cloned out of the memory map, so that nothing depends on the file any more.
            tensors = {k: file.get_tensor(k).clone() for k in file.keys()}  # noqa: SIM118 - not a mapping
        meta = parse_json(head["meta"])
        if _checksum(tensors, head["meta"]) != head["crc32"]:
            raise DamagedError("its checksum does not match")
    except KeyError as error:
        raise DamagedError(f"it has no {error.args[0]} entry") from error
    except (SafetensorError, ValueError) as error:
        raise DamagedError(str(error).splitlines()[0] if str(error) else type(error).__name__) from error
    return tensors, meta


def drop(folder: Path, name: str) -> None:
    """Remove all files of a checkpoint."""
    path, previous, copy = files(folder, name)
    for file in (previous, path, copy):  # the previous one first, or a kill in between would restore it
        file.unlink(missing_ok=True)
