"""Training batches as a pure function of (seed, step), and the same batches prepared ahead."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from tailorvit.data.augment import Augment
from tailorvit.data.images import Pixels, Size, normalise
from tailorvit.data.splits import Ints
from tailorvit.data.store import Decoder
from tailorvit.data.transforms import BatchStage, PixelStage
from tailorvit.errors import TailorError
from tailorvit.portable import usable_cores
from tailorvit.rng import generator

AHEAD = 2  # batches in preparation while one is used
T = TypeVar("T")


class Batch(NamedTuple):
    """One training batch: images, class numbers, soft targets."""

    x: Tensor
    y: Tensor
    target: Tensor


@dataclass(frozen=True)
class Reading:
    """How batches reach their images: ``read`` takes positions within the split."""

    read: Callable[[Ints], Tensor]
    labels: Ints
    classes: int
    size: Size
    mean: tuple[float, ...]
    std: tuple[float, ...]
    failed: dict[str, str]
    decoder: Decoder | None = None  # where images come from files


class _Steps(Dataset[tuple[Pixels, dict[str, str]]]):
    """Raw batches by step for worker processes; plain arrays, as shared memory is scarce in containers."""

    def __init__(self, batches: Batches) -> None:
        self.batches = batches

    def __getitem__(self, step: int) -> tuple[Pixels, dict[str, str]]:
        return self.batches.raw(step).numpy(), dict(self.batches.reading.failed)


def _as_is(item: T) -> T:
    return item


class ByStep:
    """The order in which images come: which ones a step takes depends on seed and step alone."""

    def __init__(self, reading: Reading, batch: int, seed: int, augment: Augment) -> None:
        if batch < 1:
            raise TailorError(f"The batch size must be at least 1, not {batch}.")
        self.reading = reading
        self.batch = min(batch, len(reading.labels))
        self.seed = seed
        self.augment = augment
        self.steps_per_epoch = len(reading.labels) // self.batch
        self._order: tuple[int, Ints] = (-1, np.empty(0, np.int64))

    def _positions(self, step: int) -> Ints:
        epoch, k = divmod(step, self.steps_per_epoch)
        held, order = self._order
        if held != epoch:
            order = generator(self.seed, "epoch", epoch).permutation(len(self.reading.labels)).astype(np.int64)
            self._order = (epoch, order)
        return order[k * self.batch : (k + 1) * self.batch]

    def at(self, step: int) -> Batch:
        """The batch of one step."""
        raise NotImplementedError

    def iterate(self, start: int, stop: int, workers: int | None = None) -> Iterator[Batch]:
        """The batches ``at(start)`` to ``at(stop - 1)``, prepared ahead."""
        raise NotImplementedError

    @staticmethod
    def _threaded(work: Callable[[int], T], start: int, stop: int) -> Generator[T]:
        with ThreadPoolExecutor(1, thread_name_prefix="tailorvit-ahead") as thread:
            coming: deque[Future[T]] = deque()
            try:
                for step in range(start, stop):
                    coming.append(thread.submit(work, step))
                    if len(coming) > AHEAD:
                        yield coming.popleft().result()
                while coming:
                    yield coming.popleft().result()
            finally:
                for future in coming:
                    future.cancel()


class Batches(ByStep):
    """Batches made by the host: ``at(step)`` depends on seed and step alone."""

    def __init__(self, reading: Reading, batch: int, seed: int, augment: Augment) -> None:
        super().__init__(reading, batch, seed, augment)
        self._pixels = PixelStage(augment, reading.size, reading.mean)
        self._final = BatchStage(augment, reading.classes)

    def raw(self, step: int) -> Tensor:
        """The slow part: images read and augmented, still uint8."""
        x = self.reading.read(self._positions(step))
        return self._pixels(x, generator(self.seed, "augment", step), self.seed, step)

    def _finish(self, step: int, raw: Tensor) -> Batch:
        y = torch.from_numpy(self.reading.labels[self._positions(step)])
        x, target = self._final(normalise(raw, self.reading.mean, self.reading.std), y, self.seed, step)
        return Batch(x, y, target)

    def at(self, step: int) -> Batch:
        """The batch of one step."""
        return self._finish(step, self.raw(step))

    # -- ahead of time ----------------------------------------------------------------------------------------------

    def iterate(self, start: int, stop: int, workers: int | None = None) -> Iterator[Batch]:
        """The batches ``at(start)`` to ``at(stop - 1)``, prepared ahead.

        RandAugment draws from the global generators, which another thread must not touch while the network draws
        its own numbers, so it moves to ``workers`` processes (None: the spare cores; 0: no process, nothing ahead).
        """
        if self._pixels.borrows:
            count = self._spare(stop - start) if workers is None else workers
            raws = self._forked(start, stop, count) if count else (self.raw(s) for s in range(start, stop))
        elif self._final.borrows:
            raws = self._threaded(self.raw, start, stop)
        else:
            yield from self._threaded(self.at, start, stop)
            return
        for step, raw in zip(range(start, stop), raws):
            yield self._finish(step, raw)

    @staticmethod
    def _spare(steps: int) -> int:
        """Worker processes worth starting; only where they fork, so that the images are not copied to each."""
        return min(8, usable_cores() - 1) if sys.platform == "linux" and steps > 4 else 0

    def _forked(self, start: int, stop: int, workers: int) -> Iterator[Tensor]:
        loader: Any = DataLoader(
            _Steps(self),
            batch_size=None,
            sampler=range(start, stop),
            num_workers=workers,
            collate_fn=_as_is,
            generator=torch.Generator(),  # or the loader would draw from the global one
            multiprocessing_context="fork",
            prefetch_factor=AHEAD,
        )
        for raw, failed in loader:
            self.reading.failed.update(failed)
            yield torch.from_numpy(raw)
