"""What the tests of the command line share: small picture folders, and how a mistake must look."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image


def pictures(root: Path, counts: dict[str, int], size: int = 16) -> Path:
    for k, (name, count) in enumerate(counts.items()):
        (root / name).mkdir(parents=True)
        for i in range(count):
            noise = np.random.default_rng(100 * k + i).integers(0, 256, (size, size, 3), dtype=np.uint8)
            noise[..., k % 3] //= 4
            Image.fromarray(noise).save(root / name / f"{i:02d}.png")
    return root


def refused(found, *parts) -> str:
    code, _, err = found
    assert code == 2, found
    assert err.startswith("tailorvit: ") and err.count("\n") == 1 and err[-2] in ".?", err
    for part in parts:
        assert part in err
    return err
