"""What the tests of exports share: a small architecture, awkward class names, and processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tailorvit.arch import Arch

ARCH = Arch("vit", depth=2, embed=24, heads=(2, 3), mlp=(2, 1.5))
FIXED = {"image_size": (8, 8), "patch": 2, "channels": 1, "classes": 10, "head_dim": 8, "reach": 3}
NAMES = ("0", "1|x", "<b>2</b>", "*3*", "[4](http://e.org)", "`5`", "6", "7", "8", "nine & co.")


@dataclass(frozen=True)
class Made:
    """The run, its test images (normalised) and labels, and what ``tailorvit.load`` says of them."""

    run: Path
    x: np.ndarray
    y: np.ndarray
    logits: np.ndarray

    def save(self, folder: Path) -> None:
        np.save(folder / "x.npy", self.x)
        np.save(folder / "logits.npy", self.logits)


def fresh(code: str, *args: object) -> str:
    """Run code in a process of its own, away from the repository, offline."""
    quiet = {"HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, args)],
        capture_output=True,
        text=True,
        env={**os.environ, **quiet},
        cwd=Path(__file__).anchor,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
