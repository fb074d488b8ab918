"""onnx: one file for onnxruntime with class names and preprocessing inside; checked, timed, and in int8 on request."""

from __future__ import annotations

import json
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tailorvit.errors import TailorError
from tailorvit.export.base import Exporter, Job, compared
from tailorvit.export.network import Card
from tailorvit.portable import FORMAT, METADATA
from tailorvit.tracing import OPSET, quiet

_RUNS, _WARMUP = 30, 5
_CALIBRATION, _CALIBRATION_BATCH = 256, 32  # training images whose activations set the ranges of static int8
_INT8_OPS = ("Conv", "Gemm", "MatMul")  # where the time and the weights are; norms and softmax stay in float

Session = Callable[[Tensor], Tensor]


def _finish(path: Path, card: Card) -> None:
    """Put our metadata into a file and remove what names this machine: every node carries its Python stack."""
    import onnx

    model = onnx.load(str(path))
    for owner in (model, model.graph, *model.graph.node, *model.graph.input, *model.graph.output):
        owner.ClearField("metadata_props")
        owner.ClearField("doc_string")
    # Readers infer the inner shapes themselves. onnxruntime's quantiser transposes weights and then fails on the
    # stored shapes.
    del model.graph.value_info[:]
    for owner in (*model.graph.initializer, *model.functions):
        owner.ClearField("doc_string")
        if "metadata_props" in owner.DESCRIPTOR.fields_by_name:
            owner.ClearField("metadata_props")
    described = card.to_dict()
    text = json.dumps({"format": FORMAT, **{k: described[k] for k in ("classes", "preprocessing", "arch", "facts")}})
    onnx.helper.set_model_props(model, {METADATA: text})
    onnx.checker.check_model(model)
    onnx.save(model, str(path))


def session(path: Path) -> Session:
    """The network in a file as a function, on as many threads as torch uses."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 4
    network = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda x: torch.from_numpy(network.run(["logits"], {"images": np.ascontiguousarray(x.numpy())})[0])


def latency(call: Session, x: Tensor) -> float:
    """Median seconds for one image."""
    times = []
    with torch.inference_mode():
        for i in range(_WARMUP + _RUNS):
            start = time.perf_counter()
            call(x)
            times.append(time.perf_counter() - start if i >= _WARMUP else 0.0)
    return statistics.median(times[_WARMUP:])


def trace(job: Job, path: Path, opset: int = OPSET) -> None:
    """Write the job's network as it is."""
    import onnx

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
    except Exception as error:  # the exporter raises errors of many types
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise TailorError(f"PyTorch's exporter cannot write opset {opset}: {reason}") from error
    made = {o.domain: o.version for o in onnx.load(str(path)).opset_import}.get("")
    if made != opset:
        raise TailorError(f"PyTorch's exporter wrote opset {made} instead of {opset}.")


def write(job: Job) -> dict[str, Any]:
    """network.onnx, and network.int8.onnx on request."""
    for name in ("onnx", "onnxscript", "onnxruntime"):
        import_module(name)  # a missing one is reported before the work
    path, opset = job.out / "network.onnx", OPSET if job.opset is None else job.opset
    trace(job, path, opset)
    _finish(path, job.network.card)
    facts: dict[str, Any] = {"opset": opset, "threads": torch.get_num_threads()}
    times: dict[str, float] = {}
    if job.check:
        run = session(path)
        facts.update(compared(job.expected, run(job.x)))
        for count in (1, min(3, len(job.x))):  # any batch size works, not only those of the trace
            compared(job.expected[:count], run(job.x[:count]))
        model, one = job.network.model.eval(), job.x[:1]
        times = {"PyTorch": latency(model, one), "onnxruntime": latency(run, one)}
    if job.int8:
        target = job.out / "network.int8.onnx"
        facts.update(quantise(job, path, target))
        times["int8"] = latency(session(target), job.x[:1])
    return {**facts, **({"latency": times} if times else {})}


# -- int8 -------------------------------------------------------------------------------------------------------------


@dataclass
class _Calibration:
    """Calibration images one batch at a time, through the method that onnxruntime calls."""

    batches: Iterator[Tensor]

    def get_next(self) -> dict[str, Any] | None:
        batch = next(self.batches, None)
        return None if batch is None else {"images": np.ascontiguousarray(batch.numpy())}


def _dynamic(job: Job, source: Path, target: Path) -> None:
    from onnxruntime import quantization

    quantization.quantize_dynamic(str(source), str(target), per_channel=True, weight_type=quantization.QuantType.QInt8)


def _static(job: Job, source: Path, target: Path) -> None:
    from onnxruntime import quantization

    reader = type("Reader", (_Calibration, quantization.CalibrationDataReader), {})
    quantization.quantize_static(
        str(source),
        str(target),
        reader(iter(job.images.sample(_CALIBRATION, "train").split(_CALIBRATION_BATCH))),
        quant_format=quantization.QuantFormat.QDQ,
        op_types_to_quantize=list(_INT8_OPS),
        per_channel=True,
        activation_type=quantization.QuantType.QUInt8,
        weight_type=quantization.QuantType.QInt8,
    )


_QUANTISERS = {"dynamic": _dynamic, "static": _static}


def _accuracy(run: Session, job: Job, split: str) -> float:
    hits = count = 0
    for x, y in job.images.batches(split):
        hits, count = hits + int((run(x).argmax(1) == y).sum()), count + len(y)
    return 100 * hits / max(count, 1)


def quantise(job: Job, source: Path, target: Path) -> dict[str, Any]:
    """Write the int8 file and return its accuracy; ``source`` is the float file. Static needs the run's images."""
    from onnxruntime.quantization import shape_inference

    has_images = job.images.data is not None
    made: dict[str, Path] = {}
    with quiet():
        ready = target.with_name("ready.onnx")
        shape_inference.quant_pre_process(str(source), str(ready), skip_symbolic_shape=True)
        for way in _QUANTISERS if has_images else ("dynamic",):
            made[way] = target.with_name(f"{way}.onnx")
            try:
                _QUANTISERS[way](job, ready, made[way])
            except Exception as error:  # onnxruntime's quantiser raises errors of many types
                raise TailorError(f"onnxruntime cannot quantise this network ({way}): {error}") from error
            _finish(made[way], job.network.card)
        ready.unlink()
    # Chosen on the search split: the test accuracy of a choice made on the test split would be too high.
    scores = {way: _accuracy(session(p), job, "search") if has_images else 0.0 for way, p in made.items()}
    chosen = max(scores, key=lambda way: (scores[way], way == "dynamic"))
    shutil.move(made.pop(chosen), target)
    for path in made.values():
        path.unlink()
    return _int8_facts(job, source, target, chosen, scores if has_images else None)


def _int8_facts(job: Job, source: Path, target: Path, chosen: str, scores: dict[str, float] | None) -> dict[str, Any]:
    run = session(target)
    sizes = {"float": source.stat().st_size, "int8": target.stat().st_size}
    agreement = float((run(job.x).argmax(1) == job.expected.argmax(1)).float().mean())
    int8: dict[str, Any] = {"way": chosen, "bytes": sizes, "agreement": agreement}
    text = f"int8 ({chosen}): {sizes['int8'] / 1e3:.1f} kB instead of {sizes['float'] / 1e3:.1f} kB"
    if scores is None:
        share = f"same class on {100 * agreement:.1f} % of random images"
        return {"int8": int8, "notes": [f"{text}; {share}, its accuracy is unknown without the data"]}
    int8["search_accuracy"] = scores
    accuracy = {"float": _accuracy(session(source), job, "test"), "int8": _accuracy(run, job, "test")}
    int8["test_accuracy"] = accuracy
    return {
        "int8": int8,
        "notes": [f"{text}; test accuracy {accuracy['int8']:.2f} % instead of {accuracy['float']:.2f} %"],
    }


ONNX = Exporter("onnx", "one file for onnxruntime, any batch size; int8 on request", "tailorvit[export]", write)
