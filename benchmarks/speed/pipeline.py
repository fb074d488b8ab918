"""Training images a second that the data pipeline makes alone: kept on the device, or read from JPEG files.

    python benchmarks/speed/pipeline.py --device cuda --out FILE
    python benchmarks/speed/pipeline.py --quick            # small sets and short times: that it runs

gpu.py measures the same with `--only input` or `--only files` and compares it with training.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from common import machine, markdown, number, write

from tailorvit import open_data
from tailorvit.data import Augment, Data, augment_preset

CASES = ((32, 512), (32, 1024), (224, 128), (224, 512))  # image side, batch
COUNT = {32: 50_000, 224: 4_000}  # training images on the device
WARM = 40  # steps before the clock starts: workers ask Pillow about each size of image once
MIX = {"mixup": 0.8, "cutmix": 1.0}
Row = dict[str, Any]


def presets(side: int) -> dict[str, Augment]:
    """Augmentations from least to most, by their names in the table."""
    mild = augment_preset("mild", side, "photos")
    return {
        "mild": mild,
        "mild + mixing + erasing": replace(mild, **MIX, erasing=0.25),
        "mild + RandAugment + mixing": replace(mild, **MIX, randaugment="rand-m9-mstd0.5-inc1"),
        "standard": augment_preset("standard", side, "photos"),
    }


def smooth_noise(count: int, side: int) -> np.ndarray:
    """Images (n, H, W, C) that are not flat, which equalising would find too easy."""
    coarse = torch.rand((count, 3, max(side // 8, 2), max(side // 8, 2)), generator=torch.Generator().manual_seed(0))
    out = torch.empty((count, side, side, 3), dtype=torch.uint8)
    for at in range(0, count, 500):
        fine = torch.nn.functional.interpolate(coarse[at : at + 500], size=(side, side), mode="bilinear")
        out[at : at + 500] = (fine * 255).to(torch.uint8).permute(0, 2, 3, 1)
    return out.numpy()


def arrays(root: Path, count: int, side: int) -> str:
    """A data set as .npz: ``count`` training images of ten classes, and few to test on."""
    path = root / f"{side}.npz"
    few = 40
    images, labels = smooth_noise(count + few, side), np.arange(count + few) % 10
    train, test = slice(0, count), slice(count, count + few)
    np.savez(path, train_x=images[train], train_y=labels[train], test_x=images[test], test_y=labels[test])
    return str(path)


def jpegs(root: Path, count: int, side: int) -> str:
    """A folder of JPEG files of two classes, smooth and noisy enough to be of ordinary size."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for i in range(count):
        path = root / f"class{i % 2}" / f"{i:05d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        small = Image.fromarray(rng.integers(0, 256, (24, 24, 3), dtype=np.uint8))
        small.resize((side + i % 40, side), Image.Resampling.BICUBIC).save(path, quality=90)
    return str(root)


def rate(data: Data, batch: int, augment: Augment, device: torch.device, place: str, seconds: float) -> Row:
    """Images a second as a training loop would get them, after a warm-up; every kernel has finished at the end.

    ``place`` is "resident" or "streamed", whatever the data's size. ``host_ms`` is the time a step keeps the calling
    thread before any waiting for the device.
    """

    def settle() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    data.placement = lambda *_: place  # type: ignore[method-assign]
    batches = data.train_batches(batch, 0, augment, str(device))
    coming: Iterator[Any] = batches.iterate(0, 1_000_000)
    for _ in range(WARM if seconds >= 1 else 4):
        next(coming)
    settle()
    start, steps, busy = time.perf_counter(), 0, 0.0
    while time.perf_counter() - start < seconds or steps < 4:
        before = time.perf_counter()
        next(coming)
        busy += time.perf_counter() - before
        steps += 1
        if steps % 16 == 0:
            settle()  # the queue stays short, as in training, and memory bounded
    settle()
    spent = time.perf_counter() - start
    coming.close()  # type: ignore[attr-defined]
    used = min(batch, data.counts["train"])
    return {"batch": used, "per_second": steps * used / spent, "host_ms": 1e3 * busy / steps, "steps": steps}


def kept(
    device: torch.device,
    seconds: float,
    cases: tuple[tuple[int, int], ...] = CASES,
    count: dict[int, int] | None = None,
) -> list[Row]:
    """Images that lie on the device and are augmented there: one row for each case and augmentation."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for side in dict.fromkeys(s for s, _ in cases):
            data = open_data(arrays(Path(folder), (count or COUNT)[side], side), search_share=0.01)
            for batch in (b for s, b in cases if s == side):
                for name, augment in presets(side).items():
                    found = rate(data, batch, augment, device, "resident", seconds)
                    rows.append({"images": "kept", "side": side, "augment": name, **found})
    return rows


def from_files(device: torch.device, seconds: float, count: int, batch: int, side: int) -> list[Row]:
    """JPEG files decoded by workers and augmented on the device.

    In later passes decoded images come from memory. In the first pass, and in every one where memory cannot hold them,
    they are decoded: measured with a cache of no bytes.
    """
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        source = jpegs(Path(folder), count, 256)
        for what, rest in (("files, later passes", {}), ("files, first pass", {"cache_bytes": 0})):
            data = open_data(source, image_size=side, **rest)
            for name in ("mild", "standard"):
                found = rate(data, batch, presets(side)[name], device, "streamed", seconds)
                rows.append({"images": what, "side": side, "augment": name, **found})
    return rows


def table(rows: list[Row]) -> str:
    """Markdown."""
    head = ("images", "px", "batch", "augmentation", "img/s", "host ms a batch")
    keys = ("images", "side", "batch", "augment")
    lines = [(*(r[k] for k in keys), number(r["per_second"]), number(r["host_ms"], 2)) for r in rows]
    return markdown(head, lines)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=3.0, help="measured time for each case")
    parser.add_argument("--quick", action="store_true", help="small sets and short times, to try this script")
    parser.add_argument("--out", type=Path, help="JSON file for the rows")
    options = parser.parse_args()
    device = torch.device(options.device)
    if options.quick:
        rows = kept(device, 0.2, ((32, 128),), {32: 1000}) + from_files(device, 0.2, 120, 32, 64)
    else:
        rows = kept(device, options.seconds) + from_files(device, options.seconds, 2_000, 128, 224)
    print(table(rows))
    if options.out:
        write({**machine(), "device": options.device, "torch": torch.__version__, "rows": rows}, options.out)


if __name__ == "__main__":
    main()
