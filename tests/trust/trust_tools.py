"""What the tests of trust share: calling the program, how a refusal looks, and small picture folders."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from tailorvit import cli

QUICK = ["--tiny", "--quiet", "--set", "method=autoformer", "--set", "baseline=false", "--set", "analysis.samples=1"]
QUICK += ["--set", "train.epochs=1", "--set", "final.train.epochs=1"]


def called(capsys, *args) -> tuple[object, str, str]:
    """The entry point in this process: (exit code, stdout, stderr)."""
    before, threads = sys.argv, torch.get_num_threads()
    sys.argv = ["tailorvit", *map(str, args)]
    capsys.readouterr()
    code: object = 0
    try:
        cli.main()
    except SystemExit as stop:
        code = stop.code or 0
    finally:
        sys.argv = before
        torch.set_num_threads(threads)
    return code, *capsys.readouterr()


def refused(found, *parts) -> str:
    """Exit code 2, one sentence, no traceback; its text."""
    code, _, err = found
    assert code == 2, found
    assert err.startswith("tailorvit: ") and err.count("\n") == 1 and "Traceback" not in err, err
    for part in parts:
        assert part in err, err
    return err


def picture_folder(root: Path, classes: tuple[str, ...] = ("a", "b"), count: int = 10, name: str = "{}.png") -> Path:
    """Noise, one tint a class; names may hold bytes that are no UTF-8."""
    for k, label in enumerate(classes):
        (root / label).mkdir(parents=True)
        for i in range(count):
            noise = np.random.default_rng(100 * k + i).integers(0, 256, (16, 16, 3), dtype=np.uint8)
            noise[..., k % 3] //= 4
            with (root / label / name.format(i)).open("wb") as file:
                Image.fromarray(noise).save(file, "PNG")
    return root
