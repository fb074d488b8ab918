"""The formats torchscript, openvino, executorch and coreml, for the runtimes of devices; the last three by timmx.

timmx makes networks by timm's name, so it is given a folder as the format timm writes it. Its own check passes
outputs that merely point the same way; ours holds the logits to rounding.
"""

from __future__ import annotations

import json
import platform
import tempfile
import zipfile
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from tailorvit.errors import TailorError
from tailorvit.export.base import Exporter, Job, compared, fresh_logits
from tailorvit.export.formats import timm_config
from tailorvit.export.network import LABELS, weights
from tailorvit.tracing import quiet

_UNEVEN = [1, 2, 5]  # the first batches of a check, where any size must do; the rest follows as one batch


def _write_labels(job: Job) -> None:
    """What the file itself does not hold: class names and preprocessing."""
    described = job.network.card.to_dict()
    text = json.dumps({k: described[k] for k in ("classes", "preprocessing", "arch", "facts")}, indent=1)
    (job.out / LABELS).write_text(text, encoding="utf-8")


# -- TorchScript ------------------------------------------------------------------------------------------------------

_LOAD_TORCHSCRIPT = f"""network = torch.jit.load(f"{{folder}}/network.pt").eval()
def logits(x):
    first = [n for n in {_UNEVEN} if n <= len(x)]
    parts = x.split([*first, len(x) - sum(first)]) if sum(first) < len(x) else x.split(1)
    return torch.cat([network(part) for part in parts])"""


def write_torchscript(job: Job) -> dict[str, Any]:
    """network.pt, by torch's own tracing: timmx would need a library more for the same call."""
    made = job.out / "traced.pt"
    try:
        with quiet(), torch.no_grad():
            torch.jit.save(torch.jit.trace(job.network.model, torch.zeros(2, *job.network.card.shape)), str(made))
    except Exception as error:  # the tracer raises errors of many types
        raise TailorError(f"PyTorch cannot trace this network: {_first_line(error)}.") from error
    # The records of where the code came from name files of this machine; nothing reads them but error messages.
    with zipfile.ZipFile(made) as old, zipfile.ZipFile(job.out / "network.pt", "w") as new:
        for entry in old.infolist():
            if not entry.filename.endswith(".debug_pkl"):
                new.writestr(entry, old.read(entry))
    made.unlink()
    _write_labels(job)
    return compared(job.expected, fresh_logits(_LOAD_TORCHSCRIPT, job.out, job.x, alone=True)) if job.check else {}


# -- timmx ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Target:
    """One of timmx's formats: what it needs, what to ask for, and how to read the file again in a new process."""

    name: str
    file: str
    needs: tuple[str, ...]
    options: dict[str, Any]
    code: str
    system: str | None = None  # the only one whose machines can run the file
    notes: tuple[str, ...] = ()


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


def write_with_timmx(job: Job, target: Target) -> dict[str, Any]:
    """Hand timmx a timm folder of the network, and check what it wrote."""
    for name in target.needs:
        import_module(name)  # a missing one is reported before the work
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "model.safetensors").write_bytes(weights(job.network.model))
        (folder / "config.json").write_text(json.dumps(timm_config(job)), encoding="utf-8")
        _convert(folder, job.out / target.file, target)
    _write_labels(job)
    found: dict[str, Any] = {"notes": list(target.notes)} if target.notes else {}
    if not job.check:
        return found
    if target.system is not None and platform.system() != target.system:
        return {**found, "unchecked": f"this machine has no runtime for {target.name} files"}
    return {**found, **compared(job.expected, fresh_logits(target.code, job.out, job.x, alone=True))}


def _convert(folder: Path, out: Path, target: Target) -> None:
    with quiet():
        import_module("tailorvit.for_timm")  # registers our name with timm; a door above this room, so by its name
        try:
            options = {**target.options, "pretrained": True, "verify": False, "output": out}
            import_module("timmx").export_model(target.name, f"local-dir:{folder}", **options)
        except ModuleNotFoundError:
            raise
        except Exception as error:  # timmx's own errors, and what converters raise on the way
            why = _first_line(error).replace(f"local-dir:{folder}", "the network")
            raise TailorError(f"timmx cannot write this network for {target.name}: {why}.") from error


_OPENVINO = Target(
    "openvino",
    "network.xml",
    ("timmx", "openvino"),
    {"dynamic_batch": True, "fp16": False},
    f"""import openvino
network = openvino.Core().compile_model(f"{{folder}}/network.xml", "CPU", {{"INFERENCE_PRECISION_HINT": "f32"}})
def logits(x):
    first = [n for n in {_UNEVEN} if n <= len(x)]
    parts = x.split([*first, len(x) - sum(first)]) if sum(first) < len(x) else x.split(1)
    return torch.cat([torch.from_numpy(network(part.numpy())[0].copy()) for part in parts])""",
)
_EXECUTORCH = Target(
    "executorch",
    "network.pte",
    ("timmx", "executorch"),
    {},
    """from executorch.runtime import Runtime
network = Runtime.get().load_program(f"{folder}/network.pte").load_method("forward")
logits = lambda x: torch.cat([network.execute([one.contiguous()])[0].clone() for one in x.split(1)])""",
    notes=("One image at a time: ExecuTorch plans its memory beforehand.",),
)
_COREML = Target(
    "coreml",
    "network.mlpackage",
    ("timmx", "coremltools"),
    {"compute_precision": "float32"},
    """import coremltools
network = coremltools.models.MLModel(
    f"{folder}/network.mlpackage", compute_units=coremltools.ComputeUnit.CPU_ONLY
)
one = lambda x: torch.from_numpy(network.predict({"input": x.numpy()})["output"])
logits = lambda x: torch.cat([one(part) for part in x.split(1)])""",
    system="Darwin",
    notes=("One image at a time.",),
)

DEVICES = {target.name: target for target in (_OPENVINO, _EXECUTORCH, _COREML)}


def write_openvino(job: Job) -> dict[str, Any]:
    """network.xml and network.bin in float32, any batch size."""
    return write_with_timmx(job, _OPENVINO)


def write_executorch(job: Job) -> dict[str, Any]:
    """network.pte for the CPU of phones (XNNPACK)."""
    return write_with_timmx(job, _EXECUTORCH)


def write_coreml(job: Job) -> dict[str, Any]:
    """network.mlpackage in float32."""
    return write_with_timmx(job, _COREML)


TORCHSCRIPT = Exporter(
    "torchscript", "one file for torch.jit.load and libtorch, any batch size", None, write_torchscript
)
OPENVINO = Exporter("openvino", "two files for Intel's OpenVINO, any batch size", "tailorvit[openvino]", write_openvino)
EXECUTORCH = Exporter("executorch", "one file for phones, one image a call", "tailorvit[executorch]", write_executorch)
COREML = Exporter("coreml", "a package for Apple's Core ML, one image a call", "tailorvit[coreml]", write_coreml)
