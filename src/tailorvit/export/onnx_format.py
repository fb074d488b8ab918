"""onnx: one file for onnxruntime with class names and preprocessing inside; checked and timed against PyTorch."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tailorvit.errors import TailorError
from tailorvit.export.base import Exporter, Job, compared, library
from tailorvit.export.network import Card

OPSET = 18  # the exporter's own, so nothing is converted; onnxruntime reads it since 1.14; 20 and 23 are no quicker
METADATA = "tailorvit"
FORMAT = 1
_RUNS, _WARMUP = 30, 5

Session = Callable[[Tensor], Tensor]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No chatter: exporters print, warn and log things that are of no use to the person at the terminal."""
    before = logging.root.manager.disable
    try:
        logging.disable(logging.CRITICAL)
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            with contextlib.redirect_stderr(io.StringIO()):
                yield
    finally:
        logging.disable(before)


def metadata(card: Card) -> str:
    """What predicting needs, as one JSON text."""
    known = card.to_dict()
    return json.dumps({"format": FORMAT, **{k: known[k] for k in ("classes", "preprocessing", "arch", "facts")}})


def finish(path: Path, card: Card) -> None:
    """Put our metadata into a file and take out what names this machine: every node carries its Python stack."""
    onnx = library("onnx", "export")
    model = onnx.load(str(path))
    for owner in (model, model.graph, *model.graph.node, *model.graph.input, *model.graph.output):
        owner.ClearField("metadata_props")
        owner.ClearField("doc_string")
    # Shapes along the way are worked out anew by whoever needs them; onnxruntime's quantiser turns weights round and
    # then trips over the shapes they had.
    del model.graph.value_info[:]
    for owner in (*model.graph.initializer, *model.functions):
        owner.ClearField("doc_string")
        if "metadata_props" in owner.DESCRIPTOR.fields_by_name:
            owner.ClearField("metadata_props")
    onnx.helper.set_model_props(model, {METADATA: metadata(card)})
    onnx.checker.check_model(model)
    onnx.save(model, str(path))


def session(path: Path) -> Session:
    """The network behind a file, on as many threads as torch uses."""
    runtime = library("onnxruntime", "export")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 4
    opened = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda x: torch.from_numpy(opened.run(["logits"], {"images": np.ascontiguousarray(x.numpy())})[0])


def latency(call: Session, x: Tensor) -> float:
    """Median seconds for one image."""
    times = []
    with torch.inference_mode():
        for i in range(_WARMUP + _RUNS):
            start = time.perf_counter()
            call(x)
            times.append(time.perf_counter() - start if i >= _WARMUP else 0.0)
    return statistics.median(times[_WARMUP:])


def _trace(job: Job, path: Path, opset: int) -> None:
    onnx = library("onnx", "export")
    newest = onnx.defs.onnx_opset_version()
    if isinstance(opset, bool) or not isinstance(opset, int) or not OPSET <= opset <= newest:
        raise TailorError(f"The ONNX opset must be a whole number from {OPSET} to {newest}, not {opset}.")
    try:
        with quiet():
            program = torch.onnx.export(
                job.network.model,
                (torch.zeros(2, *job.network.card.shape),),
                dynamo=True,
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                input_names=["images"],
                output_names=["logits"],
                opset_version=opset,
                verbose=False,
            )
            assert program is not None
            program.save(str(path), external_data=False)
    except Exception as error:  # the exporter has many kinds of failure
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise TailorError(f"PyTorch's exporter cannot write opset {opset}: {reason}") from error
    made = {o.domain: o.version for o in onnx.load(str(path)).opset_import}.get("")
    if made != opset:
        raise TailorError(f"PyTorch's exporter wrote opset {made} instead of {opset}.")


def write(job: Job) -> dict[str, Any]:
    """network.onnx, and network.int8.onnx where asked for."""
    for name in ("onnx", "onnxscript", "onnxruntime"):
        library(name, "export")
    path, opset = job.out / "network.onnx", OPSET if job.opset is None else job.opset
    _trace(job, path, opset)
    finish(path, job.network.card)
    facts: dict[str, Any] = {"opset": opset, "threads": torch.get_num_threads()}
    if job.check:
        run = session(path)
        facts.update(compared(job.expected, run(job.x)))
        for count in (1, min(3, len(job.x))):  # the batch is free, not one of those it was traced with
            compared(job.expected[:count], run(job.x[:count]))
        model, one = job.network.model.eval(), job.x[:1]
        facts["latency"] = {"PyTorch": latency(model, one), "onnxruntime": latency(run, one)}
    if job.int8:
        from tailorvit.export.onnx_int8 import quantise

        facts = merged(facts, quantise(job, path, job.out / "network.int8.onnx"))
    return facts


def merged(facts: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Facts of both; latencies side by side."""
    times = {**facts.get("latency", {}), **more.pop("latency", {})}
    return {**facts, **more, **({"latency": times} if times else {})}


ONNX = Exporter("onnx", "one file for onnxruntime, any batch size; int8 on request", "export", write)
