"""How images were prepared for a published checkpoint: from what lies beside the file, its name, or its kind."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tailorvit.checkpoints.loaders import IMAGENET, Loader, Normalisation
from tailorvit.errors import TailorError
from tailorvit.texts import read_table

_HASH = re.compile(r"-[0-9a-f]{8}$")  # at the end of the names of released files
_REPOSITORY = re.compile(r"models--[^/]+--(.+)")  # a folder of the hub's cache
_SIZE = 224  # at which timm's crops are counted where a configuration has no size


def preparation(path: Path, loader: Loader, origin: str | None = None) -> tuple[Normalisation, str]:
    """Mean, deviation and crop of a checkpoint, and a sentence that says where they come from."""
    if origin is not None:
        return _of_timm(*_asked(origin))
    if (beside := path.with_name("config.json")).is_file() and (found := _beside(beside)) is not None:
        return _read(found, f"those of '{beside.name}' beside the file")
    for name in (_HASH.sub("", path.stem), *(m[1] for m in map(_REPOSITORY.fullmatch, path.absolute().parts) if m)):
        if re.fullmatch(r"\w+(\.\w+)?", name) and "_" in name and (known := _timm(name)) is not None:
            return _of_timm(known, name)
    if loader.prepared:
        return IMAGENET, "images are prepared as all networks of this kind were: ImageNet's mean and deviation"
    return IMAGENET, (
        "where the file comes from is not known, so ImageNet's mean and deviation are written, which may be wrong "
        "(timm's augreg weights use 0.5): --origin timm:NAME says it"
    )


def _asked(origin: str) -> tuple[Any, str]:
    library, _, name = origin.partition(":")
    if library != "timm" or not name:
        raise TailorError(f"The origin of a checkpoint is written timm:NAME, not '{origin}'.")
    if (found := _timm(name)) is None:
        raise TailorError(f"timm knows no pretrained network '{name}'.")
    return found, name


def _timm(name: str) -> Any:
    """timm's configuration of a pretrained network; None where it knows none. Nothing is downloaded."""
    import timm

    try:
        return timm.get_pretrained_cfg(name)
    except RuntimeError:  # an architecture without this tag
        return None


def _of_timm(known: Any, asked: str) -> tuple[Normalisation, str]:
    import timm

    full = f"{known.architecture}.{known.tag}" if known.tag else str(known.architecture)
    how, why = _read(known.to_dict(), f"timm's of {full}")
    if full == asked:
        return how, why
    rows = [timm.get_pretrained_cfg(name) for name in timm.list_pretrained(f"{known.architecture}.*")]
    others = sorted(str(row.tag) for row in rows if row is not None and tuple(row.mean) != how.mean)
    if others:
        why += f" (other weights of {known.architecture} use others: {', '.join(others)})"
    return how, why


def _beside(path: Path) -> Mapping[str, Any] | None:
    """What a config.json of the hub says of images; None where it says nothing."""
    try:
        table = read_table(path)
    except (OSError, ValueError):
        return None
    found = table.get("pretrained_cfg", table)
    return found if isinstance(found, dict) and {"mean", "std"} <= found.keys() else None


def _read(known: Mapping[str, Any], whose: str) -> tuple[Normalisation, str]:
    try:
        mean, std = (tuple(float(v) for v in known[key]) for key in ("mean", "std"))
        share = float(known.get("crop_pct") or 1.0)
        side = int((known.get("input_size") or (3, _SIZE, _SIZE))[-1])
        whole = len(mean) == len(std) == 3 and all(map(math.isfinite, (*mean, *std))) and min(std) > 0
        if not (whole and 0 < share <= 1 and side > 0):
            raise ValueError
    except (LookupError, TypeError, ValueError):
        raise TailorError(f"The preprocessing cannot be used, {whose}: it needs mean, std and crop_pct.") from None
    why = f"images are prepared by mean {_few(mean)} and deviation {_few(std)}, {whose}"
    for key, ours in (("interpolation", "bicubic"), ("crop_mode", "center")):
        if (theirs := known.get(key) or ours) != ours:
            why += f"; its {key} '{theirs}' becomes '{ours}', the only one here"
    return Normalisation(mean, std, math.floor(side / share) / side), why


def _few(values: tuple[float, ...]) -> str:
    return f"{values[0]:g}" if len(set(values)) == 1 else ", ".join(f"{v:g}" for v in values)
