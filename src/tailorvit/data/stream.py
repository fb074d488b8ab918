"""Training batches from images that the device cannot hold: workers decode, the device does the rest.

Only uint8 travels. Workers write into shared memory of our own, since the shared memory of containers is small and a
pipe carries some 1 GB a second; a thread gathers a step in pinned memory; its copy to the device runs beside training.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Generator, Iterator
from contextlib import closing, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from tailorvit.data.augment import Augment
from tailorvit.data.batches import AHEAD, Batch, Reading
from tailorvit.data.device import Planned
from tailorvit.data.draws import Plan
from tailorvit.data.images import Pixels
from tailorvit.portable import usable_cores

PIECE = 32  # images a worker reads at a time: a batch is ready soon, and little memory is in flight


def _as_is(item: Any) -> Any:
    return item


class _Pieces(Dataset[tuple[int, dict[str, str]]]):
    """Pieces of steps, written into a ring that parent and workers share; what travels is their length."""

    def __init__(self, batches: StreamBatches, slots: int) -> None:
        self.batches = batches
        shape = (slots, PIECE, *batches.stored)
        self.ring: Pixels = np.frombuffer(mmap.mmap(-1, int(np.prod(shape))), np.uint8).reshape(shape)

    def __getitem__(self, piece: int) -> tuple[int, dict[str, str]]:
        step, part = divmod(piece, self.batches.pieces)
        at = self.batches._positions(step)[part * PIECE : (part + 1) * PIECE]
        self.ring[piece % len(self.ring), : len(at)] = self.batches.reading.read(at).numpy()
        return len(at), dict(self.batches.reading.failed)


class StreamBatches(Planned):
    """Batches by step, read anew for every epoch; the same as those of :class:`DeviceBatches`."""

    def __init__(
        self,
        reading: Reading,
        batch: int,
        seed: int,
        augment: Augment,
        stored: tuple[int, int, int],
        device: torch.device,
    ) -> None:
        super().__init__(reading, batch, seed, augment, stored[1:], device)
        self.stored = stored
        self.pieces = -(-self.batch // PIECE)
        self._rows = torch.arange(self.batch, device=device)

    def at(self, step: int) -> Batch:
        """The batch of one step."""
        return self._make(self._plan(step), self._read(step).to(self.device), self._rows)

    def _read(self, step: int) -> Tensor:
        return self.reading.read(self._positions(step))

    def iterate(self, start: int, stop: int, workers: int | None = None) -> Iterator[Batch]:
        """The batches ``at(start)`` to ``at(stop - 1)``, read by ``workers`` processes (None: by the spare cores)."""
        spare = min(16, usable_cores() - 1) if sys.platform == "linux" and stop - start > 4 else 0
        count = spare if workers is None else workers
        with closing(self._gathered(start, stop, count) if count else self._alone(start, stop)) as raws:

            def ready(step: int) -> tuple[Plan, Tensor]:
                return self._plan(step), next(raws)

            with closing(self._threaded(ready, start, stop)) as coming:
                yield from self._beside(coming)

    def _beside(self, coming: Iterator[tuple[Plan, Tensor]]) -> Iterator[Batch]:
        """Batches of pinned images; the next ones are on their way to the device while one is used."""
        if self.device.type != "cuda":
            for plan, raw in coming:
                yield self._make(plan, raw.to(self.device), self._rows)
            return
        side = torch.cuda.Stream(self.device)
        held: tuple[Plan, Tensor, Any] | None = None
        for plan, raw in coming:
            with torch.cuda.stream(side):
                there = raw.to(self.device, non_blocking=True)
                arrived = side.record_event()
            if held is not None:
                yield self._landed(*held)
            held = plan, there, arrived
        if held is not None:
            yield self._landed(*held)

    def _landed(self, plan: Plan, images: Tensor, arrived: Any) -> Batch:
        now = torch.cuda.current_stream(self.device)
        now.wait_event(arrived)
        images.record_stream(now)  # its memory belongs to the other stream, which must not reuse it too soon
        return self._make(plan, images, self._rows)

    # -- reading ----------------------------------------------------------------------------------------------------

    def _pinned(self) -> Tensor:
        here = torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()
        with here:
            return torch.empty((self.batch, *self.stored), dtype=torch.uint8, pin_memory=self.device.type == "cuda")

    def _alone(self, start: int, stop: int) -> Generator[Tensor]:
        for step in range(start, stop):
            yield self._pinned().copy_(self._read(step))

    def _gathered(self, start: int, stop: int, workers: int) -> Generator[Tensor]:
        """Steps from workers; they start here, in the caller's thread."""
        # At most AHEAD * workers pieces are asked for beyond the one last handed over, so no slot is lost unread.
        pieces = _Pieces(self, AHEAD * workers + 2)
        loader: Any = DataLoader(
            pieces,
            batch_size=None,
            sampler=range(start * self.pieces, stop * self.pieces),
            num_workers=workers,
            collate_fn=_as_is,
            generator=torch.Generator(),  # or the loader would draw from the global one
            multiprocessing_context="fork",
            prefetch_factor=AHEAD,
        )
        return self._filled(iter(loader), pieces.ring, range(start * self.pieces, stop * self.pieces))

    def _filled(self, tasks: Iterator[Any], ring: Pixels, numbers: range) -> Generator[Tensor]:
        out, filled = self._pinned(), 0
        for piece, (count, failed) in zip(numbers, tasks):
            self.reading.failed.update(failed)
            out[filled : filled + count] = torch.from_numpy(ring[piece % len(ring), :count])
            filled += count
            if filled == self.batch:
                yield out
                out, filled = self._pinned(), 0
