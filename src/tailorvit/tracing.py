"""What everyone shares who writes networks in other formats: the opset of ONNX, and no output of exporters."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator

OPSET = 18  # the exporter's own, so nothing is converted; onnxruntime reads it since 1.14; 20 and 23 are no quicker


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No output: exporters print, warn and log what is of no use to the person at the terminal."""
    before = logging.root.manager.disable
    try:
        logging.disable(logging.CRITICAL)
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            with contextlib.redirect_stderr(io.StringIO()):
                yield
    finally:
        logging.disable(before)
