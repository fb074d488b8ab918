"""Checkpoints: one safetensors file that carries its meta data and a checksum, and the one before it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailorvit.runs import atomic

if TYPE_CHECKING:
    from torch import Tensor

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


class DamagedError(Exception):
    """A checkpoint file that cannot be trusted; the text says why."""


def files(folder: Path, name: str) -> tuple[Path, Path, Path]:
    """Where a checkpoint lives: the file, the one before it, and a copy of its meta data for people."""
    if not _NAME.fullmatch(name) or name.endswith(".prev"):
        raise ValueError(f"'{name}' is no checkpoint name: letters, digits, '_', '-' and '.' only")
    return folder / f"{name}.safetensors", folder / f"{name}.prev.safetensors", folder / f"{name}.json"


def _checksum(tensors: Mapping[str, Tensor], meta: str) -> str:
    """CRC-32 over meta data, names, types, shapes and bytes: any change to the file's content shows."""
    import torch

    crc = zlib.crc32(meta.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        crc = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), crc)
        crc = zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, crc)
    return f"{crc:08x}"


def save(folder: Path, name: str, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
    """Write a checkpoint; the present one becomes the one before. OSError leaves both as they were."""
    from safetensors.torch import save as serialise

    path, previous, copy = files(folder, name)
    # A clone each: safetensors refuses tensors that share storage, and tied weights do.
    own = {k: v.detach().to("cpu", copy=True).contiguous() for k, v in tensors.items()}
    text = atomic.dumps(dict(meta))
    data = serialise(own, metadata={"meta": text, "crc32": _checksum(own, text)})
    atomic.write_bytes(path, data, before=lambda: _keep(path, previous))
    with contextlib.suppress(OSError):  # never read back; the checkpoint itself is safe by now
        atomic.write_json(copy, dict(meta))


def _keep(path: Path, previous: Path) -> None:
    """Make ``path`` also the one before. A second link, so that ``path`` is there at every moment."""
    if not path.exists():
        return
    link = previous.with_name(f".{previous.name}.{os.getpid()}{atomic.SUFFIX}")
    link.unlink(missing_ok=True)
    try:
        os.link(path, link)
    except OSError:  # no hard links here; load() knows the moment in which only the one before exists
        path.replace(previous)
        return
    link.replace(previous)


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """One file's tensors and meta data, verified; DamagedError otherwise, FileNotFoundError when there is none."""
    from safetensors import SafetensorError, safe_open

    if not path.exists():
        raise FileNotFoundError(path)
    try:
        with safe_open(path, framework="pt") as file:
            head = file.metadata() or {}
            # Cloned out of the memory map, so that nothing depends on the file afterwards.
            tensors = {k: file.get_tensor(k).clone() for k in file.keys()}  # noqa: SIM118 - not a mapping
        meta = json.loads(head["meta"])
        if _checksum(tensors, head["meta"]) != head["crc32"]:
            raise DamagedError("its checksum does not match")
    except KeyError as error:
        raise DamagedError(f"it has no {error.args[0]} entry") from error
    except (SafetensorError, ValueError) as error:
        raise DamagedError(str(error).splitlines()[0] if str(error) else type(error).__name__) from error
    return tensors, meta


def drop(folder: Path, name: str) -> None:
    """Remove a checkpoint with everything that belongs to it."""
    path, previous, copy = files(folder, name)
    for file in (previous, path, copy):  # the one before goes first, or a kill in between would bring it back
        file.unlink(missing_ok=True)
