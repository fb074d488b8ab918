"""Networks to take away: saved, loaded, and written in formats that run without this package.

EXPORTERS is the table of formats: one file, one entry.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch

from tailorvit.errors import TailorError, unknown
from tailorvit.export.base import Exported, Exporter, Job
from tailorvit.export.hf_format import HF
from tailorvit.export.images import images_of
from tailorvit.export.network import FORMAT, Card, Network, load, save_network
from tailorvit.export.onnx_format import ONNX
from tailorvit.export.place import MARK, require_free, whole_folder
from tailorvit.export.safetensors_format import SAFETENSORS
from tailorvit.export.timm_format import TIMM
from tailorvit.export.torch_format import TORCH

EXPORTERS: Mapping[str, Exporter] = {e.name: e for e in (ONNX, TORCH, SAFETENSORS, TIMM, HF)}

__all__ = ["EXPORTERS", "FORMAT", "Card", "Exported", "Exporter", "Network", "export", "load", "save_network"]


def export(
    folder: str | Path,
    to: str,
    out: str | Path | None = None,
    *,
    data: str | None = None,
    int8: bool = False,
    opset: int | None = None,
    check: bool = True,
    images: int = 256,
) -> Exported:
    """Write the network of a run or network folder in another format, checked on ``images`` of the run's test images.

    The result is ``folder/export/FORMAT`` unless ``out`` says otherwise; it appears whole or not at all.
    ``data`` says where the run's images lie now, for a run made elsewhere.
    """
    if to not in EXPORTERS:
        raise unknown("export format", to, EXPORTERS)
    if to != "onnx" and (int8 or opset is not None):
        raise TailorError(f"int8 and opset belong to the format onnx, not to {to}.")
    if images < 1:
        raise TailorError(f"An export is checked on at least 1 image, not {images}.")
    source = Path(folder)
    network = load(source)
    place = source / "export" / to if out is None else Path(out)
    require_free(place)  # before the work, not after it
    found = images_of(source, network.card, data)
    x = found.some(images)
    with torch.inference_mode():
        expected = network(x)
    with whole_folder(place) as beside:
        facts = EXPORTERS[to].function(Job(network, source, beside, found, x, expected, check, int8, opset))
        files = sorted(p.name for p in beside.iterdir())
        facts = {
            **({"checked_on": found.origin, "images": len(x)} if "max_difference" in facts else {}),
            **({} if "max_difference" in facts or "unchecked" in facts else {"unchecked": "not asked for"}),
            **facts,
            "bytes": {name: (beside / name).stat().st_size for name in files},
        }
        record = {"format": to, "files": files, "facts": {**facts, "checked_on": found.origin.partition(" (")[0]}}
        (beside / MARK).write_text(json.dumps(record, indent=1), encoding="utf-8")
    return Exported(to, place, tuple(files), facts)
