"""int8 for onnxruntime: two ways of quantising, the more accurate on the search split is kept and measured on test."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tailorvit.errors import TailorError
from tailorvit.export.base import Job, library
from tailorvit.export.onnx_format import Session, finish, latency, quiet, session

CALIBRATION = 256  # training images whose activations set the ranges
_BATCH = 32
_OPS = ("Conv", "Gemm", "MatMul")  # where the time and the weights are; norms and softmax stay in float


@dataclass
class _Reader:
    """Calibration images one batch at a time, as onnxruntime asks for them."""

    batches: Iterator[Tensor]

    def get_next(self) -> dict[str, Any] | None:
        batch = next(self.batches, None)
        return None if batch is None else {"images": np.ascontiguousarray(batch.numpy())}


def _dynamic(job: Job, source: Path, target: Path) -> None:
    tool = library("onnxruntime.quantization", "export")
    tool.quantize_dynamic(str(source), str(target), per_channel=True, weight_type=tool.QuantType.QInt8)


def _static(job: Job, source: Path, target: Path) -> None:
    tool = library("onnxruntime.quantization", "export")
    reader = type("Reader", (_Reader, tool.CalibrationDataReader), {})
    tool.quantize_static(
        str(source),
        str(target),
        reader(iter(job.images.some(CALIBRATION, "train").split(_BATCH))),
        quant_format=tool.QuantFormat.QDQ,
        op_types_to_quantize=list(_OPS),
        per_channel=True,
        activation_type=tool.QuantType.QUInt8,
        weight_type=tool.QuantType.QInt8,
    )


WAYS = {"dynamic": _dynamic, "static": _static}


def _accuracy(run: Session, job: Job, split: str) -> float:
    hits = count = 0
    for x, y in job.images.batches(split):
        hits, count = hits + int((run(x).argmax(1) == y).sum()), count + len(y)
    return 100 * hits / max(count, 1)


def quantise(job: Job, source: Path, target: Path) -> dict[str, Any]:
    """Write the int8 file and say what it costs in accuracy; ``source`` is the float file."""
    has_images = job.images.data is not None
    made: dict[str, Path] = {}
    with quiet():
        tool = library("onnxruntime.quantization.shape_inference", "export")
        ready = target.with_name("ready.onnx")
        tool.quant_pre_process(str(source), str(ready), skip_symbolic_shape=True)
        for way in WAYS if has_images else ("dynamic",):
            made[way] = target.with_name(f"{way}.onnx")
            try:
                WAYS[way](job, ready, made[way])
            except Exception as error:  # onnxruntime's quantiser raises whatever its parts do
                raise TailorError(f"onnxruntime cannot quantise this network ({way}): {error}") from error
            finish(made[way], job.network.card)
        ready.unlink()
    runs = {way: session(path) for way, path in made.items()}
    # Chosen on the search split: a choice made on the test split would flatter itself.
    scores = {way: _accuracy(run, job, "search") for way, run in runs.items()} if has_images else {"dynamic": 0.0}
    chosen = max(scores, key=lambda way: (scores[way], way == "dynamic"))
    shutil.move(made.pop(chosen), target)
    for left in made.values():
        left.unlink()
    return _facts(job, source, target, chosen, scores if has_images else None)


def _facts(job: Job, source: Path, target: Path, chosen: str, scores: dict[str, float] | None) -> dict[str, Any]:
    run, wide = session(target), session(source)
    sizes = {"float": source.stat().st_size, "int8": target.stat().st_size}
    int8: dict[str, Any] = {"way": chosen, "bytes": sizes}
    with torch.inference_mode():
        same = float((run(job.x).argmax(1) == job.expected.argmax(1)).float().mean())
    int8["agreement"] = same
    text = f"int8 ({chosen}): {sizes['int8'] / 1e3:.1f} kB instead of {sizes['float'] / 1e3:.1f} kB"
    if scores is None:
        note = f"{text}; same class on {100 * same:.1f} % of random images, its accuracy is unknown without the data"
    else:
        int8["search_accuracy"] = scores
        int8["test_accuracy"] = {"float": _accuracy(wide, job, "test"), "int8": _accuracy(run, job, "test")}
        now, before = int8["test_accuracy"]["int8"], int8["test_accuracy"]["float"]
        note = f"{text}; test accuracy {now:.2f} % instead of {before:.2f} %"
    return {"int8": int8, "notes": [note], "latency": {"int8": latency(run, job.x[:1])}}
