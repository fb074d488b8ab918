"""Finished networks: saved, loaded, and written in formats of other libraries.

EXPORTERS names the formats; plug-ins add to it.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch

from tailorvit.errors import TailorError
from tailorvit.export.base import MARK, Exported, Exporter, Job, compared, images_of, require_free, whole_folder
from tailorvit.export.devices import COREML, EXECUTORCH, OPENVINO, TORCHSCRIPT
from tailorvit.export.formats import HF, SAFETENSORS, TIMM, TORCH
from tailorvit.export.hub import Pushed, fetched, is_hub, push
from tailorvit.export.network import FORMAT, Card, Network, load, save_network
from tailorvit.export.onnx_format import ONNX
from tailorvit.registry import Registry

EXPORTERS: Registry[Exporter] = Registry(
    "export format",
    "tailorvit.exporters",
    {e.name: e for e in (ONNX, TORCH, SAFETENSORS, TIMM, HF, TORCHSCRIPT, OPENVINO, EXECUTORCH, COREML)},
)

__all__ = [
    "EXPORTERS",
    "FORMAT",
    "Card",
    "Exported",
    "Exporter",
    "Job",
    "Network",
    "Pushed",
    "compared",
    "export",
    "load",
    "push",
    "save_network",
]


def _bytes(path: Path) -> int:
    """Of a file, or of all files in a folder, which some formats are."""
    return sum(p.stat().st_size for p in ([path] if path.is_file() else path.rglob("*")) if p.is_file())


def export(
    folder: str | Path,
    to: str,
    out: str | Path | None = None,
    *,
    data: str | Path | None = None,
    int8: bool = False,
    opset: int | None = None,
    check: bool = True,
    images: int = 256,
) -> Exported:
    """Write the network of a run or network folder in another format, checked on ``images`` of the run's test images.

    The result is ``folder/export/FORMAT`` unless ``out`` is given; it is written whole or not at all.
    ``data`` says where the run's images are now, if they were moved.
    """
    exporter = EXPORTERS[to]
    if to != "onnx" and (int8 or opset is not None):
        raise TailorError(f"int8 and opset belong to the format onnx, not to {to}.")
    if images < 1:
        raise TailorError(f"An export is checked on at least 1 image, not {images}.")
    source = Path(folder)
    if is_hub(source):
        if out is None:
            raise TailorError(f"'{folder}' is on the hub; say where to write its export (--out).")
        source = fetched(source)
    network = load(source)
    place = source / "export" / to if out is None else Path(out)
    require_free(place)  # before the work, not after it
    found = images_of(source, network.card, None if data is None else str(data))
    x = found.sample(images)
    with torch.inference_mode():
        expected = network(x)
    with whole_folder(place) as beside:
        try:
            facts = exporter.function(Job(network, source, beside, found, x, expected, check, int8, opset))
        except ModuleNotFoundError as error:
            hint = f": pip install '{exporter.needs}'" if exporter.needs else ", which is not installed"
            raise TailorError(f"The format {to} needs '{error.name}'{hint}.") from None
        files = sorted(p.name for p in beside.iterdir())
        checked = "max_difference" in facts
        facts = {
            **({"checked_on": found.origin, "images": len(x)} if checked else {}),
            **(
                {}
                if checked or "unchecked" in facts
                else {"unchecked": "the format has no check" if check else "switched off"}
            ),
            **facts,
            "bytes": {name: _bytes(beside / name) for name in files},
        }
        record = {"format": to, "files": files, "facts": {**facts, "checked_on": found.origin.partition(" (")[0]}}
        (beside / MARK).write_text(json.dumps(record, indent=1), encoding="utf-8")
    return Exported(to, place, tuple(files), facts)
