"""What every export format shares: the job it is given, the check it must pass, the record it ends with."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tailorvit.errors import TailorError
from tailorvit.export.images import Images
from tailorvit.export.network import Network

TOLERANCE = 1e-4  # of the largest logit, or of 1 where all are smaller


@dataclass(frozen=True)
class Job:
    """One export: the network, the empty folder to fill, the images to check on and what PyTorch says of them."""

    network: Network
    source: Path  # the run or network folder
    out: Path
    images: Images
    x: Tensor
    expected: Tensor
    check: bool
    int8: bool
    opset: int | None


@dataclass(frozen=True)
class Exporter:
    """One format: fills ``job.out`` and returns facts; ``needs`` is the extra to install, if any."""

    name: str
    summary: str
    needs: str | None
    function: Callable[[Job], dict[str, Any]]


@dataclass(frozen=True)
class Exported:
    """A finished export: its folder, the files in it and what was measured."""

    format: str
    path: Path
    files: tuple[str, ...]
    facts: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {**asdict(self), "path": str(self.path), "files": list(self.files), "facts": dict(self.facts)}

    def lines(self) -> list[str]:
        """What the command line prints."""
        facts, sizes = self.facts, self.facts["bytes"]
        lines = [f"Wrote {self.path}: " + ", ".join(f"{n} ({_size(sizes[n])})" for n in self.files)]
        if "opset" in facts:
            lines.append(f"ONNX opset {facts['opset']}, any batch size")
        if "max_difference" in facts:
            lines.append(
                f"Checked on {facts['images']} {facts['checked_on']}; largest difference of a logit to PyTorch "
                f"{facts['max_difference']:.1e}, same class on {100 * facts['agreement']:.1f} %"
            )
        else:
            lines.append(f"Not checked: {facts['unchecked']}")
        for name, seconds in facts.get("latency", {}).items():
            threads = f"{facts['threads']} thread{'s' if facts['threads'] > 1 else ''}"
            lines.append(f"Latency of {name}: {1000 * seconds:.2f} ms an image (median, {threads}, CPU)")
        return [*lines, *facts.get("notes", [])]


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.1f} kB"


def library(name: str, extra: str) -> Any:
    """A module of an extra, or one sentence on how to get it."""
    try:
        return import_module(name)
    except ImportError:
        raise TailorError(f"This needs '{name}': pip install 'tailorvit[{extra}]'.") from None


def compared(expected: Tensor, got: Tensor) -> dict[str, float]:
    """Largest difference of a logit and share of equal answers; an error where the difference is not rounding."""
    if expected.shape != got.shape or not torch.isfinite(got).all():
        raise TailorError(f"The exported network answers with shape {tuple(got.shape)} or with numbers that are none.")
    difference = float((expected - got).abs().max())
    limit = TOLERANCE * max(1.0, float(expected.abs().max()))
    if difference > limit:
        raise TailorError(
            f"The exported network's logits are off by {difference:.1e}; at most {limit:.1e} is rounding."
        )
    return {"max_difference": difference, "agreement": float((expected.argmax(1) == got.argmax(1)).float().mean())}


_FRESH = """import sys
import numpy, torch
folder, source, target = sys.argv[1:]
{opening}
with torch.inference_mode():
    numpy.save(target, logits(torch.from_numpy(numpy.load(source))).numpy())
ours = [m for m in sys.modules if m.split(".")[0] == "tailorvit"]
sys.exit(f"needs {{ours[0]}}" if ours else 0)
"""


def fresh_logits(opening: str, folder: Path, x: Tensor) -> Tensor:
    """The logits another process gets from ``folder`` without tailorvit; ``opening`` defines ``logits(x)``."""
    with tempfile.TemporaryDirectory() as scratch:
        source, target = Path(scratch, "x.npy"), Path(scratch, "y.npy")
        np.save(source, x.numpy())
        # Offline, and leaving nothing behind: neither byte code in the export nor copies in the user's cache.
        quiet = {"HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": scratch, "PYTHONDONTWRITEBYTECODE": "1"}
        # -P: a timm.py of the user's in the working folder is not the library.
        command = [sys.executable, "-P", "-c", _FRESH.format(opening=opening), *map(str, (folder, source, target))]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **quiet}, check=False)
        if done.returncode:
            last = (done.stderr.strip() or f"code {done.returncode}").splitlines()[-1]
            raise TailorError(f"The export cannot be opened in a fresh process: {last}")
        return torch.from_numpy(np.load(target))
