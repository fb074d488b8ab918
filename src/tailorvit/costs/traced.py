"""A network as the bytes of an ONNX file for one batch, to be timed; and onnxruntime as a function.

Networks to be delivered are written by ``export``, for any batch and checked. Here a search asks for hundreds of them,
so the quickest exact route is taken: torch's tracing exporter needs a tenth of the time of the one that captures
programs (benchmarks/speed/onnx_latency.py).
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from tailorvit.errors import TailorError
from tailorvit.tracing import OPSET, quiet

INPUT, OUTPUT = "images", "logits"


def traced(model: nn.Module, shape: tuple[int, int, int], batch: int = 1) -> bytes:
    """The network in evaluation mode, for batches of that size; the model is left on the CPU."""
    model = model.to("cpu").eval()
    x = torch.zeros(batch, *shape)
    names: dict[str, Any] = {"input_names": [INPUT], "output_names": [OUTPUT], "opset_version": OPSET}
    try:
        with quiet(), torch.no_grad():
            try:
                held: Any = io.BytesIO()  # torch takes it, its annotation does not say so
                torch.onnx.export(model, (x,), held, dynamo=False, **names)
                return bytes(held.getvalue())
            except Exception:  # what tracing cannot write, or a torch without it: errors of many types
                program = torch.onnx.export(model, (x,), dynamo=True, verbose=False, **names)
                assert program is not None
                return bytes(program.model_proto.SerializeToString())
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise TailorError(f"PyTorch's exporter cannot write this network for onnxruntime: {reason}") from error


def onnx_call(
    network: bytes, shape: tuple[int, int, int], batch: int, provider: str, threads: int
) -> Callable[[], Any]:
    """One pass of the network on one random batch, through a provider of onnxruntime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(network, options, providers=[provider])
    except Exception as error:  # providers fail in many ways
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise TailorError(
            f"onnxruntime cannot open this network with {provider}: {reason}; limits.runtime = 'torch' needs no file."
        ) from error
    if provider not in session.get_providers():  # it falls back to the CPU without an error
        raise TailorError(f"onnxruntime has {provider} but cannot use it on this machine.")
    x = {INPUT: np.random.default_rng(0).random((batch, *shape), dtype=np.float32)}
    return lambda: session.run([OUTPUT], x)
