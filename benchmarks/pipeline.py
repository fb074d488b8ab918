"""Training images a second that the data pipeline makes alone: kept on the device, streamed to it, or by the host."""

from __future__ import annotations

import argparse
import json
import platform
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tailorvit.data import Augment, augment_preset, open_data
from tailorvit.data.batches import DeviceBatches, HostBatches, SplitReader, StreamBatches, TrainBatches
from tailorvit.data.images import ImageCache, LazyImageSet
from tailorvit.portable import usable_cores

CASES = ((32, 512), (32, 1024), (224, 128), (224, 512))  # image side, batch
COUNT = {32: 50_000, 224: 4_000}  # made-up images on the device
WARM = 8  # steps before the clock starts
MIX = {"mixup": 0.8, "cutmix": 1.0}


def presets(side: int) -> dict[str, Augment]:
    """From least to most: the names are those of the table."""
    mild = augment_preset("mild", side, "photos")
    return {
        "mild": mild,
        "mild + mixing + erasing": replace(mild, **MIX, erasing=0.25),
        "mild + RandAugment + mixing": replace(mild, **MIX, randaugment="rand-m9-mstd0.5-inc1"),
        "standard": augment_preset("standard", side, "photos"),
    }


def reading(images: torch.Tensor, side: int) -> SplitReader:
    """Made-up images of ten classes."""
    labels = (np.arange(len(images)) % 10).astype(np.int64)
    mean, std = (0.5, 0.48, 0.45), (0.25, 0.24, 0.26)
    return SplitReader(lambda at: images[torch.from_numpy(at)], labels, 10, (side, side), mean, std, {})


def made_up(count: int, side: int) -> torch.Tensor:
    """Smooth noise, as equalising flat noise would be too easy."""
    coarse = torch.rand((count, 3, max(side // 8, 2), max(side // 8, 2)), generator=torch.Generator().manual_seed(0))
    out = torch.empty((count, 3, side, side), dtype=torch.uint8)
    for at in range(0, count, 500):
        grown = torch.nn.functional.interpolate(coarse[at : at + 500], size=(side, side), mode="bilinear")
        out[at : at + 500] = (grown * 255).to(torch.uint8)
    return out


def core_seconds() -> tuple[float, float]:
    """Processor time of this process, and of its workers that have ended."""
    own, workers = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime, workers.ru_utime + workers.ru_stime


def rate(
    batches: TrainBatches,
    device: torch.device,
    seconds: float,
    workers: int | None = None,
    each: Callable[[], None] | None = None,
) -> dict[str, float]:
    """Images a second as a training loop would get them, after a warm-up; every kernel has finished at the end.

    ``host_ms`` is the time a step keeps the calling thread before any waiting for the device; ``worker_ms`` and
    ``core_ms`` are what an image costs one core, in workers and in all, warm-up and look-ahead included (on a CPU the
    device's part too). ``each`` is called before every step.
    """

    def settle() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    used = core_seconds()
    coming: Iterator[Any] = batches.iterate(0, 1_000_000, workers)
    warm = WARM + 2 * usable_cores()  # workers ask Pillow about each size of image once
    for _ in range(warm):
        if each is not None:
            each()
        next(coming)
    settle()
    start, steps, busy = time.perf_counter(), 0, 0.0
    while time.perf_counter() - start < seconds or steps < 4:
        if each is not None:
            each()
        before = time.perf_counter()
        next(coming)
        busy += time.perf_counter() - before
        steps += 1
        if steps % 16 == 0:
            settle()  # the queue stays short, as in training, and memory bounded
    settle()
    spent = time.perf_counter() - start
    coming.close()  # type: ignore[attr-defined]
    own, workers_too = (1e3 * (b - a) / ((warm + steps) * batches.batch) for a, b in zip(used, core_seconds()))
    return {
        "per_second": steps * batches.batch / spent,
        "host_ms": 1e3 * busy / steps,
        "worker_ms": workers_too,
        "core_ms": own + workers_too,
        "steps": steps,
    }


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


def from_files(
    device: torch.device, seconds: float, count: int, batch: int, side: int, host: bool = True
) -> list[dict[str, Any]]:
    """JPEG files, by workers with the device's augmentation and by the host's own pipeline.

    In the first pass every image is decoded and kept; in later ones it comes from the store of decoded images.
    """
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        data = open_data(jpegs(Path(folder), count, 256), image_size=side, cache_bytes=0)
        pool, ids = data._images, data._splits["train"]
        assert isinstance(pool, LazyImageSet)
        plain = data.train_batches(batch, 0, Augment()).reader
        store = pool.cache = ImageCache(len(pool.labels), pool.stored_shape, len(ids))
        store.reserve(ids)

        def forget() -> None:
            store.filled[:] = 0

        def fill() -> None:
            for at in range(0, len(ids), 256):
                plain.read(np.arange(at, min(at + 256, len(ids))))

        tried = {k: v for k, v in presets(side).items() if k in ("mild", "standard")}
        readings = {name: data.train_batches(batch, 0, augment).reader for name, augment in tried.items()}
        streams = {n: StreamBatches(readings[n], batch, 0, a, pool.stored_shape, device) for n, a in tried.items()}
        ways: list[tuple[str, str, TrainBatches, Callable[[], None] | None]] = []
        ways += [("files, later passes", name, stream, None) for name, stream in streams.items()]  # before one forgets
        ways += [("files, first pass", name, stream, forget) for name, stream in streams.items()]
        if host:
            hosts = {n: HostBatches(readings[n], batch, 0, augment) for n, augment in tried.items()}
            ways += [("files, host, first pass", name, batches, forget) for name, batches in hosts.items()]
        fill()
        for how, name, batches, each in ways:
            facts = rate(batches, device, seconds, each=each)
            rows.append({"images": how, "side": side, "batch": batches.batch, "augment": name, **facts})
    return rows


def measure(
    device: str = "cuda",
    seconds: float = 3.0,
    cases: tuple[tuple[int, int], ...] = CASES,
    count: dict[int, int] | None = None,
    host: bool = True,
    files: int = 2_000,
) -> list[dict[str, Any]]:
    """One row a case; ``host`` adds the pipeline of the CPU for the same images, ``files`` 0 leaves JPEGs out."""
    there, rows = torch.device(device), list[dict[str, Any]]()
    for side in dict.fromkeys(s for s, _ in cases):
        images = made_up((count or COUNT)[side], side)
        source, kept = reading(images, side), images.to(there)
        for batch in (b for s, b in cases if s == side):
            for name, augment in presets(side).items():
                ways: list[tuple[str, TrainBatches]] = [("kept", DeviceBatches(source, batch, 0, augment, kept))]
                if host and batch == min(b for s, b in cases if s == side):
                    ways.append(("host", HostBatches(source, batch, 0, augment)))
                for how, batches in ways:
                    facts = rate(batches, there, seconds)
                    rows.append({"images": how, "side": side, "batch": batches.batch, "augment": name, **facts})
    if files:
        batch = max(b for _, b in cases)
        rows += from_files(there, seconds, files, min(batch, 256), max(s for s, _ in cases))
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown."""
    head = ("images", "px", "batch", "augmentation", "images/s", "host ms a batch", "worker ms an image", "core ms")
    lines = [
        [
            *(r[k] for k in ("images", "side", "batch", "augment")),
            f"{r['per_second']:,.0f}",
            *(f"{r[k]:.{digits}f}" for k, digits in (("host_ms", 2), ("worker_ms", 3), ("core_ms", 3))),
        ]
        for r in rows
    ]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in (head, ("---",) * len(head), *lines))


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=3.0, help="measured time a case")
    parser.add_argument("--quick", action="store_true", help="small sets and short times: a try")
    parser.add_argument("--files-only", action="store_true", help="only JPEG files, 224 px, batches of 128")
    parser.add_argument("--out", type=Path, help="JSON file for the rows")
    given = parser.parse_args()
    if given.files_only:
        count, seconds = (300, 0.5) if given.quick else (2_000, given.seconds)
        rows = from_files(torch.device(given.device), seconds, count, 128, 224)
    elif given.quick:
        rows = measure(given.device, 0.3, ((32, 128), (64, 32)), {32: 1000, 64: 200}, files=120)
    else:
        rows = measure(given.device, given.seconds)
    print(table(rows))
    if given.out:
        name = (
            torch.cuda.get_device_name(given.device)
            if torch.device(given.device).type == "cuda"
            else platform.machine()
        )
        facts = {"date": str(date.today()), "device": name, "cores": usable_cores(), "torch": torch.__version__}
        given.out.write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
