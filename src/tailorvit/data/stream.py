"""Training batches from images that the device cannot hold: workers decode, the device does the rest.

Only uint8 travels. Workers write into shared memory of our own, since the shared memory of containers is small and a
pipe carries some 1 GB a second; a thread gathers a few steps in pinned memory; the copy of them to the device runs
beside training.
Files leave a worker before their resize; what the device makes of them comes back for the store, while it has room.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from tailorvit.data.augment import Augment
from tailorvit.data.batches import AHEAD, Batch, Reading
from tailorvit.data.device import Planned
from tailorvit.data.draws import Plan, send
from tailorvit.data.fitting import fitted, taps, taps_needed
from tailorvit.data.images import Pixels
from tailorvit.data.splits import Ints
from tailorvit.data.store import LARGEST, Decoded, Raw, shared
from tailorvit.portable import usable_cores

PIECE = 32  # images a worker reads at a time: a batch is ready soon, and little memory is in flight
COPIERS = 4  # threads at most that copy out of the store: one moves some 8 GB a second, a device takes 50
_NONE: Ints = np.empty(0, np.int64)


@dataclass(frozen=True)
class Grid:
    """Raw images of one piece that Pillow resizes in one order, padded to one size."""

    at: Ints  # their places in the piece
    shape: tuple[int, int, int, int]
    spans: NDArray[np.float32]
    down_first: bool


@dataclass(frozen=True)
class Parcel:
    """What is in a piece, by places in it: images of the store, fitted ones, grids of raw ones."""

    held: Ints
    fitted: Ints
    grids: tuple[Grid, ...] = ()

    @property
    def images(self) -> int:
        """How many."""
        return len(self.held) + len(self.fitted) + sum(len(g.at) for g in self.grids)


@dataclass(frozen=True)
class Load:
    """What was read for the steps of a plan."""

    parcels: list[Parcel]
    images: Tensor  # those of the store and fitted ones, parcel by parcel
    raw: list[Tensor]  # the grids, likewise

    def to(self, device: torch.device) -> Load:
        """The same on a device, by copies that the host does not wait for."""
        there = [some.to(device, non_blocking=True) for some in (self.images, *self.raw)]
        return Load(self.parcels, there[0], there[1:])


Returns = deque[tuple[Ints, Tensor, Any]]  # positions, pixels on their way to the host, and the event of their arrival


def _as_is(item: Any) -> Any:
    return item


def pack(found: Decoded, slot: Pixels) -> Parcel:
    """Write the images of a piece into flat memory."""
    end = 0
    for _, pixels in found.fitted:
        slot[end : end + pixels.size] = pixels.reshape(-1)
        end += pixels.size
    grids = []
    for first in (False, True):
        some: list[tuple[int, Raw]] = [(k, raw) for k, raw in found.raw if raw.down_first == first]
        if not some:
            continue
        high, wide, channels = np.max([raw.pixels.shape for _, raw in some], 0).tolist()
        shape = (len(some), high, wide, channels)
        grid = slot[end : end + prod(shape)].reshape(shape)
        for row, (_, raw) in zip(grid, some):
            row[: raw.pixels.shape[0], : raw.pixels.shape[1]] = raw.pixels
        spans = np.asarray([raw.spans for _, raw in some], np.float32)
        grids.append(Grid(np.asarray([k for k, _ in some]), shape, spans, first))
        end += prod(shape)
    return Parcel(found.held, np.asarray([k for k, _ in found.fitted], np.int64), tuple(grids))


class _Pieces(Dataset[tuple[Parcel, dict[str, str]]]):
    """Pieces of steps, written into a ring that parent and workers share; what travels is a list of their contents."""

    def __init__(self, batches: StreamBatches, slots: int) -> None:
        self.batches = batches
        largest = LARGEST**2 if batches.reading.decoder is not None else 1
        self.ring = shared((slots, PIECE * largest * prod(batches.stored)))

    def __getitem__(self, piece: int) -> tuple[Parcel, dict[str, str]]:
        reading, slot = self.batches.reading, self.ring[piece % len(self.ring)]
        at = self.batches._piece(piece)
        if reading.decoder is not None:
            parcel = pack(reading.decoder.decode(at), slot)
        else:
            pixels = reading.read(at).numpy()
            slot[: pixels.size] = pixels.reshape(-1)
            parcel = Parcel(_NONE, np.arange(len(at)))
        return parcel, dict(reading.failed)


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
        return self._make(self._plan(step), self._read(step).to(self.device), self._rows)[0]

    def _read(self, step: int) -> Tensor:
        return self.reading.read(self._positions(step))

    def _piece(self, piece: int) -> Ints:
        step, part = divmod(piece, self.pieces)
        return self._positions(step)[part * PIECE : (part + 1) * PIECE]

    def iterate(self, start: int, stop: int, workers: int | None = None) -> Iterator[Batch]:
        """The batches ``at(start)`` to ``at(stop - 1)``, read by ``workers`` processes (None: by the spare cores)."""
        spare = min(16, usable_cores() - 1) if sys.platform == "linux" and stop - start > 4 else 0
        count = spare if workers is None else workers
        returns: Returns = deque()
        with closing(self._gathered(start, stop, count) if count else self._alone(start, stop)) as loads:

            def ready(steps: range) -> tuple[Plan, Load]:
                self._store(returns, wait=False)
                load = next(loads)
                return self._listed(self._plans(steps), load.parcels), load

            try:
                with closing(self._ahead(ready, start, stop)) as coming:
                    yield from self._beside(coming, returns)
            finally:
                self._store(returns, wait=True)

    # -- on the device ----------------------------------------------------------------------------------------------

    def _listed(self, plan: Plan, parcels: Sequence[Parcel]) -> Plan:
        """A plan with the places of its images among what was loaded, and how raw ones are resized."""
        starts = np.cumsum([0, *(p.images for p in parcels)])
        whole = [low + some for low, p in zip(starts, parcels) for some in (p.held, p.fitted)]
        grids = [(low, g) for low, p in zip(starts, parcels) for g in p.grids]
        lie = np.concatenate([*whole, *(low + g.at for low, g in grids)])
        more: dict[str, NDArray[Any]] = {"rows": np.argsort(lie)}
        if grids:
            more["spans"] = np.concatenate([g.spans for _, g in grids])
            raw = np.concatenate([low + g.at for low, g in grids])  # places in the batch
            assert self.reading.decoder is not None
            more["keep"] = more["rows"][raw[self.reading.decoder.wants(plan.arrays["at"][raw])]]
            more["keep_at"] = plan.arrays["at"][lie[more["keep"]]]
        return replace(plan, arrays={**plan.arrays, **more})

    def _beside(self, coming: Iterator[tuple[Plan, Load]], returns: Returns) -> Iterator[Batch]:
        """Batches of pinned images; the next ones are on their way to the device while these are used."""
        if self.device.type != "cuda":
            for plan, load in coming:
                yield from self._assembled(plan, load.to(self.device), returns)
            return
        side = torch.cuda.Stream(self.device)
        sent: deque[tuple[Plan, Load, Any]] = deque()
        for plan, load in coming:
            with torch.cuda.stream(side):
                sent.append((plan, load.to(self.device), side.record_event()))
            if len(sent) > 1:
                yield from self._landed(*sent.popleft(), returns)
        while sent:
            yield from self._landed(*sent.popleft(), returns)

    def _landed(self, plan: Plan, load: Load, arrived: Any, returns: Returns) -> list[Batch]:
        now = torch.cuda.current_stream(self.device)
        now.wait_event(arrived)
        for some in (load.images, *load.raw):
            some.record_stream(now)  # its memory belongs to the other stream, which must not reuse it too soon
        return self._assembled(plan, load, returns)

    @torch.no_grad()
    def _assembled(self, plan: Plan, load: Load, returns: Returns) -> list[Batch]:
        """The batches: raw images resized and put behind the others, then what happens to kept ones too."""
        sent = send(plan.arrays, self.device)
        images = load.images
        if load.raw:
            size = self.stored[1:]
            counts = taps_needed(plan.arrays["spans"], size)
            lines = [taps(sent["spans"][:, k], size[k], count) for k, count in enumerate(counts)]
            parts, done = [images], 0
            for grid, raw in zip((g for p in load.parcels for g in p.grids), load.raw, strict=True):
                these = slice(done, done + len(grid.at))
                down, across = ((at[these], weight[these]) for at, weight in lines)
                parts.append(fitted(raw, down, across, grid.down_first))
                done = these.stop
            images = torch.cat(parts)
        if "keep" in sent:
            self._send_back(images.index_select(0, sent["keep"]), plan.arrays["keep_at"], returns)
        return self._stage(images, sent["rows"], self.labels.index_select(0, sent["at"]), plan, sent)

    def _send_back(self, images: Tensor, at: Ints, returns: Returns) -> None:
        if self.device.type != "cuda":
            returns.append((at, images, None))
            return
        home = self._pinned(images.shape).copy_(images, non_blocking=True)
        returns.append((at, home, torch.cuda.current_stream(self.device).record_event()))

    def _store(self, returns: Returns, wait: bool) -> None:
        """Keep what has come back."""
        while returns and (wait or returns[0][2] is None or returns[0][2].query()):
            at, images, event = returns.popleft()
            if event is not None:
                event.synchronize()
            assert self.reading.decoder is not None
            self.reading.decoder.put(at, images.numpy())

    # -- reading ----------------------------------------------------------------------------------------------------

    def _pinned(self, shape: Sequence[int]) -> Tensor:
        here = torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()
        with here:
            return torch.empty(tuple(shape), dtype=torch.uint8, pin_memory=self.device.type == "cuda")

    def _alone(self, start: int, stop: int) -> Generator[Load]:
        steps = range(start, stop)
        for low in range(0, len(steps), self.at_once):
            some = steps[low : low + self.at_once]
            images = self._pinned((len(some) * self.batch, *self.stored))
            for into, step in zip(images.split(self.batch), some):
                into.copy_(self._read(step))
            yield Load([Parcel(_NONE, np.arange(len(images)))], images, [])

    def _gathered(self, start: int, stop: int, workers: int) -> Generator[Load]:
        """Steps from workers; they start here, in the caller's thread."""
        # At most AHEAD * workers pieces are asked for beyond the one last handed over, so no slot is lost unread.
        pieces = _Pieces(self, AHEAD * workers + 2)
        numbers = range(start * self.pieces, stop * self.pieces)
        loader: Any = DataLoader(
            pieces,
            batch_size=None,
            sampler=numbers,
            num_workers=workers,
            collate_fn=_as_is,
            generator=torch.Generator(),  # or the loader would draw from the global one
            multiprocessing_context="fork",
            prefetch_factor=AHEAD,
        )
        return self._filled(iter(loader), pieces.ring, numbers)

    def _filled(self, tasks: Iterator[Any], ring: Pixels, numbers: range) -> Generator[Load]:
        many = self.at_once * self.pieces
        with ThreadPoolExecutor(min(COPIERS, usable_cores()), "tailorvit-copy") as copiers:
            for low in range(0, len(numbers), many):
                yield self._load(tasks, ring, numbers[low : low + many], copiers)

    def _load(self, tasks: Iterator[Any], ring: Pixels, numbers: range, copiers: Executor) -> Load:
        """Pieces out of the store and out of the ring, in pinned memory: one buffer but for raw images."""
        images = self._pinned((len(numbers) // self.pieces * self.batch, *self.stored))
        parcels, raw, copies = list[Parcel](), list[Tensor](), list[Future[None]]()
        room, each, end = images.numpy(), prod(self.stored), 0
        for piece, (parcel, failed) in zip(numbers, tasks):
            self.reading.failed.update(failed)
            parcels.append(parcel)
            slot, used = ring[piece % len(ring)], len(parcel.fitted) * each
            low, end = end, end + len(parcel.held)
            if end > low:
                assert self.reading.decoder is not None
                held = self._piece(piece)[parcel.held]
                copies.append(copiers.submit(self.reading.decoder.take, held, room[low:end]))
            low, end = end, end + len(parcel.fitted)
            if end > low:
                room[low:end] = slot[:used].reshape(-1, *self.stored)
            for grid in parcel.grids:
                raw.append(self._pinned(grid.shape))
                raw[-1].numpy()[:] = slot[used : used + prod(grid.shape)].reshape(grid.shape)
                used += prod(grid.shape)
        for copy in copies:
            copy.result()
        return Load(parcels, images[:end], raw)
