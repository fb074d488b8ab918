"""Training batches as a pure function of (seed, step): made by the host, or on the device that trains.

On a device the images are either resident (the whole split lies there as uint8) or streamed to it step by step.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from tailorvit.data.augment import Augment, BatchStage, PixelStage, fill_colour
from tailorvit.data.augment_batches import (
    Plan,
    PlanSettings,
    apply_layer,
    apply_mix,
    crop,
    draw_plan,
    enhance,
    join_plans,
    noise_bank,
    parse_randaugment,
    part_of_plan,
    resized_crop,
    send,
    steps_at_once,
)
from tailorvit.data.images import (
    LARGEST,
    Ahead,
    DecodedImages,
    FileAccess,
    UnresizedImage,
    normalise,
    scale_bias,
    shared_bytes,
)
from tailorvit.data.resize import filter_lengths, make_filter, resize_batch
from tailorvit.data.splits import Ints
from tailorvit.errors import TailorError, unknown
from tailorvit.portable import Pixels, Size, usable_cores
from tailorvit.rng import generator

AHEAD = 2  # batches in preparation while one is used
ON_DEVICE = ("auto", "always", "never")
SMALL_SPLIT = 4 << 30  # bytes of a split that may be resident on any CUDA device
T = TypeVar("T")


class Batch(NamedTuple):
    """One training batch: images, class numbers, soft targets."""

    x: Tensor
    y: Tensor
    target: Tensor


@dataclass(frozen=True)
class SplitReader:
    """The images and labels of a split; ``read`` takes positions within it."""

    read: Callable[[Ints], Tensor]
    labels: Ints
    classes: int
    size: Size
    mean: tuple[float, ...]
    std: tuple[float, ...]
    failed: dict[str, str]
    files: FileAccess | None = None  # where images come from files
    order: Callable[[int, int, int], Ints] | None = None  # positions of an epoch by (seed, epoch, batch); None: any
    ahead: Ahead | None = None  # where files must be fetched before they are read


def resident_limit(device: str) -> int:
    """Bytes of images that may be resident: a quarter of the device's whole memory (what is free would vary)."""
    if torch.device(device).type != "cuda" or not torch.cuda.is_available():
        return SMALL_SPLIT
    return max(SMALL_SPLIT, int(torch.cuda.get_device_properties(device).total_memory) // 4)


def placement(on_device: str, device: str, size: int, resident: int = 0) -> str:
    """Where batches of a split are made: "host", or on the device from "resident" or from "streamed" images.

    ``on_device`` is "auto" (by device and size), "always" (resident) or "never" (host). ``size`` is the split's in
    bytes, ``resident`` what other splits take on the device already.
    """
    if on_device not in ON_DEVICE:
        raise unknown("placement of images", on_device, ON_DEVICE)
    if on_device == "always":
        return "resident"
    if on_device == "never" or torch.device(device).type != "cuda":
        return "host"
    return "resident" if size < SMALL_SPLIT or resident + size < resident_limit(device) else "streamed"


def class_weights(labels: Ints, classes: int) -> Tensor:
    """Weights inverse to the images of each class, with a mean of one over the images; 1 for a class without any."""
    count = np.bincount(labels, minlength=classes)
    weights = np.ones(classes)
    weights[count > 0] = len(labels) / ((count > 0).sum() * count[count > 0])
    return torch.from_numpy(weights).float()


def weighed(target: Tensor, weights: Tensor, smoothing: float) -> Tensor:
    """Soft targets in which a label counts by its weight, with what smoothing took from it; rows no longer sum to 1.

    Smoothing gives all classes the same. Weighing that by class would make common images argue for rare classes.
    """
    if smoothing >= 1:  # nothing of a label is left that could be weighed
        return target
    spread = smoothing / target.shape[-1]
    labels = ((target - spread) / (1 - smoothing)).clamp_min(0) * weights
    return (1 - smoothing) * labels + spread * labels.sum(-1, keepdim=True)


class TrainBatches:
    """The order of images: which ones a step takes depends on seed and step alone."""

    def __init__(self, reader: SplitReader, batch: int, seed: int, augment: Augment) -> None:
        if batch < 1:
            raise TailorError(f"The batch size must be at least 1, not {batch}.")
        self.reader = reader
        self.batch = min(batch, len(reader.labels))
        self.seed = seed
        self.augment = augment
        self.steps_per_epoch = len(reader.labels) // self.batch
        self._orders: dict[int, Ints] = {}  # of the two epochs last asked for, as files are fetched for the next one
        self.rows: Ints | None = None  # of every batch, where only a part is wanted
        self.weights: Tensor | None = None  # of the classes, where their labels do not count alike

    def only(self, rows: Sequence[int]) -> Self:
        """From now on these rows of every batch alone, as they are within the whole.

        The rows of the first half are mirrored in the second, as a batch is mixed with its reverse.
        """
        self.rows = np.asarray(rows, np.int64)
        return self

    def balanced(self) -> Self:
        """From now on ``iterate`` gives targets in which a label counts inversely to the training images of its class.

        What counts is the mass that a target gives a label; the share that smoothing spreads goes with its label.
        """
        self.weights = class_weights(self.reader.labels, self.reader.classes)
        return self

    @property
    def count(self) -> int:
        """Images that are made for a step."""
        return self.batch if self.rows is None else len(self.rows)

    def wanted(self, step: int) -> Ints:
        """Positions of the images that this process reads for a step."""
        return self._own_positions(step)

    def _own_positions(self, step: int) -> Ints:
        whole = self._positions(step)
        return whole if self.rows is None else whole[self.rows]

    def _positions(self, step: int) -> Ints:
        epoch, k = divmod(step, self.steps_per_epoch)
        order = self._orders.get(epoch)
        if order is None:
            order = self._order(epoch)
            self._orders = dict([*self._orders.items(), (epoch, order)][-2:])
        return order[k * self.batch : (k + 1) * self.batch]

    def _order(self, epoch: int) -> Ints:
        if self.reader.order is not None:
            return self.reader.order(self.seed, epoch, self.batch)
        return generator(self.seed, "epoch", epoch).permutation(len(self.reader.labels)).astype(np.int64)

    def at(self, step: int) -> Batch:
        """The batch of one step."""
        raise NotImplementedError

    def iterate(self, start: int, stop: int, workers: int | None = None) -> Iterator[Batch]:
        """The batches ``at(start)`` to ``at(stop - 1)``, made ahead by so many processes (None: by the spare cores)."""
        batches = self._weighed(self._iterate(start, stop, workers))
        return batches if self.reader.ahead is None else self._fetched_ahead(batches, start, stop, self.reader.ahead)

    def _iterate(self, start: int, stop: int, workers: int | None) -> Generator[Batch]:
        raise NotImplementedError

    def _fetched_ahead(self, batches: Generator[Batch], start: int, stop: int, ahead: Ahead) -> Generator[Batch]:
        """The batches, while the files of later ones are fetched."""
        with ahead((step, self.wanted(step)) for step in range(start, stop)) as reached, closing(batches):
            reached(start)
            for step, batch in enumerate(batches, start):
                yield batch
                reached(step + 1)

    def _weighed(self, batches: Generator[Batch]) -> Generator[Batch]:
        """The batches, with weighed targets where labels do not count alike."""
        if self.weights is None:
            yield from batches
            return
        with closing(batches):
            for batch in batches:
                self.weights = self.weights.to(batch.target.device)
                yield batch._replace(target=weighed(batch.target, self.weights, self.augment.smoothing))


def made_ahead(work: Callable[[int], T], start: int, stop: int) -> Generator[T]:
    """work(start) to work(stop - 1), done ahead in one thread."""
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


def _identity(item: T) -> T:
    return item


class _Forked:
    """What worker processes make of the numbers, in order; they fork here, so that images in memory are not copied."""

    def __init__(self, dataset: Dataset[Any], numbers: range, workers: int) -> None:
        self._coming = iter(
            DataLoader(
                dataset,
                batch_size=None,
                sampler=numbers,
                num_workers=workers,
                collate_fn=_identity,
                generator=torch.Generator(),  # or the loader would draw from the global one
                multiprocessing_context="fork",
                prefetch_factor=AHEAD,
            )
        )

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        try:
            return next(self._coming)
        except TailorError as error:  # as the loader raises it again: the worker's whole traceback
            raise TailorError(str(error).strip().splitlines()[-1].partition(": ")[2] or str(error)) from None


def _spare_workers(steps: int, limit: int) -> int:
    """Worker processes worth starting; none where they cannot fork."""
    return min(limit, usable_cores() - 1) if sys.platform == "linux" and steps > 4 else 0


# -- by the host ------------------------------------------------------------------------------------------------------


class _Steps(Dataset[tuple[Pixels, dict[str, str]]]):
    """Augmented pixels by step for worker processes; plain arrays, as shared memory is scarce in containers."""

    def __init__(self, batches: HostBatches) -> None:
        self.batches = batches

    def __getitem__(self, step: int) -> tuple[Pixels, dict[str, str]]:
        return self.batches.pixels(step).numpy(), dict(self.batches.reader.failed)


class HostBatches(TrainBatches):
    """Batches made by the host with Pillow and timm."""

    def __init__(self, reader: SplitReader, batch: int, seed: int, augment: Augment) -> None:
        super().__init__(reader, batch, seed, augment)
        self._pixel_stage = PixelStage(augment, reader.size, reader.mean)
        self._batch_stage = BatchStage(augment, reader.classes)

    def wanted(self, step: int) -> Ints:
        """The whole batch, as timm draws for one image after the other."""
        return self._positions(step)

    def pixels(self, step: int) -> Tensor:
        """The slow part: images read and augmented, still uint8."""
        x = self.reader.read(self._positions(step))
        return self._pixel_stage(x, generator(self.seed, "augment", step), self.seed, step)

    def _finish(self, step: int, pixels: Tensor) -> Batch:
        y = torch.from_numpy(self.reader.labels[self._positions(step)])
        x, target = self._batch_stage(normalise(pixels, self.reader.mean, self.reader.std), y, self.seed, step)
        return self._kept(Batch(x, y, target))

    def _kept(self, batch: Batch) -> Batch:
        """The wanted rows of a batch made whole: timm draws for one image after the other."""
        return batch if self.rows is None else Batch(*(t[torch.from_numpy(self.rows)] for t in batch))

    def at(self, step: int) -> Batch:
        """The batch of one step."""
        return self._finish(step, self.pixels(step))

    def _iterate(self, start: int, stop: int, workers: int | None) -> Generator[Batch]:
        """Batches prepared ahead.

        RandAugment draws from the global generators, which another thread must not touch while the network draws from
        them, so it moves to ``workers`` processes (None: the spare cores; 0: no process, nothing ahead).
        """
        if self._pixel_stage.uses_globals:
            count = _spare_workers(stop - start, 8) if workers is None else workers
            coming = self._forked(start, stop, count) if count else (self.pixels(s) for s in range(start, stop))
        elif self._batch_stage.uses_globals:
            coming = made_ahead(self.pixels, start, stop)
        else:
            yield from made_ahead(self.at, start, stop)
            return
        for step, pixels in zip(range(start, stop), coming):
            yield self._finish(step, pixels)

    def _forked(self, start: int, stop: int, workers: int) -> Iterator[Tensor]:
        for pixels, failed in _Forked(_Steps(self), range(start, stop), workers):
            self.reader.failed.update(failed)
            yield torch.from_numpy(pixels)


# -- on the device ----------------------------------------------------------------------------------------------------


class DeviceStage:
    """Carries plans out on a device, with the constants for it."""

    def __init__(self, augment: Augment, reader: SplitReader, seed: int, device: torch.device) -> None:
        channels = len(reader.mean)
        self.size, self.classes, self.smoothing = reader.size, reader.classes, augment.smoothing
        self.channel = torch.arange(channels, device=device)
        self.scale, self.bias = (t.to(device) for t in scale_bias(reader.mean, reader.std))
        fill = torch.tensor(fill_colour(reader.mean), dtype=torch.uint8)
        self.fill = fill[:, None, None].to(device)
        self.row, self.col = (torch.arange(side, device=device) for side in self.size)
        values = channels * self.size[0] * self.size[1]
        self.noise = noise_bank(seed, values, device) if augment.erasing else None

    def __call__(self, images: Tensor, at: Tensor, y: Tensor, plan: Plan, sent: Mapping[str, Tensor]) -> list[Batch]:
        """The batches of a plan's steps, from the rows ``at`` of a uint8 tensor; they share memory."""
        per_step = len(y) // len(plan.mixes)
        if "crop_lines" in sent:
            x = crop(images, at, self.channel, sent["crop_lines"], self.size)
        else:
            x = resized_crop(images.index_select(0, at), sent["crop_boxes"], self.size, per_step)
        for layer in plan.rand_layers:
            apply_layer(x, layer, sent, self.fill)
        for k in range(plan.jitters):
            x = enhance(x, sent["jitter"][k], smooth=False)
        out = x.to(torch.float32).mul_(self.scale).add_(self.bias)
        if plan.erased:
            self._erase(out, sent)
        off = self.smoothing / self.classes
        target = torch.full((len(y), self.classes), off, device=y.device)
        target.scatter_(1, y[:, None], 1 - self.smoothing + off)
        parts = zip(out.split(per_step), y.split(per_step), target.split(per_step), strict=True)
        batches = [Batch(*part) for part in parts]
        for batch, mix in zip(batches, plan.mixes, strict=True):
            if mix is not None:
                apply_mix(batch.x, batch.target, mix)
        return batches

    def _erase(self, x: Tensor, sent: Mapping[str, Tensor]) -> None:
        """Fill the boxes with noise of mean 0 and deviation 1, in place."""
        assert self.noise is not None
        top, bottom, left, right = sent["erase"][:, :, None, None].unbind(1)
        row, col = self.row[:, None], self.col
        inside = (row >= top) & (row < bottom) & (col >= left) & (col < right)
        at = sent["erase_at"]
        noise = self.noise[sent["noise_start"]].view(len(at), *x.shape[1:])
        x.index_copy_(0, at, torch.where(inside[:, None], noise, x.index_select(0, at)))


class PlannedBatches(TrainBatches):
    """Batches drawn by the host and made on a device: a step has the same batch on any device up to rounding."""

    def __init__(
        self, reader: SplitReader, batch: int, seed: int, augment: Augment, have: Size, device: torch.device
    ) -> None:
        super().__init__(reader, batch, seed, augment)
        self.device = device
        self.labels = torch.from_numpy(reader.labels).to(device)
        notation = augment.randaugment
        rand = None if notation is None else parse_randaugment(notation, reader.size, reader.mean)
        self._settings = PlanSettings(augment, len(reader.mean), have, reader.size, rand)
        self._stage = DeviceStage(augment, reader, seed, device)
        self.at_once = steps_at_once(self.batch, len(reader.mean), have, reader.size, device)

    def _plan(self, step: int) -> Plan:
        plan = draw_plan(self._settings, self._positions(step), self.seed, step)
        return plan if self.rows is None else part_of_plan(plan, self.rows)

    def _plans(self, steps: range) -> Plan:
        return join_plans([self._plan(step) for step in steps])

    def _ahead(self, work: Callable[[range], T], start: int, stop: int) -> Generator[T]:
        """work(steps) for groups of steps, done ahead in a thread."""
        steps, many = range(start, stop), self.at_once
        return made_ahead(lambda k: work(steps[k * many : (k + 1) * many]), 0, -(-len(steps) // many))

    @torch.no_grad()
    def _make(self, plan: Plan, images: Tensor, rows: Tensor | None = None) -> list[Batch]:
        """The batches, from the whole split, or from ``rows`` of the images of these steps."""
        sent = send(plan.arrays, self.device)
        positions = sent["positions"]
        at = positions if rows is None else rows
        return self._stage(images, at, self.labels.index_select(0, positions), plan, sent)


class DeviceBatches(PlannedBatches):
    """Batches from resident images; a thread draws the next steps meanwhile."""

    def __init__(self, reader: SplitReader, batch: int, seed: int, augment: Augment, images: Tensor) -> None:
        super().__init__(reader, batch, seed, augment, (images.shape[2], images.shape[3]), images.device)
        self.images = images

    def at(self, step: int) -> Batch:
        """The batch of one step."""
        return self._make(self._plan(step), self.images)[0]

    def iterate(self, start: int, stop: int, workers: int | None = None) -> Iterator[Batch]:
        """The batches ``at(start)`` to ``at(stop - 1)``; no workers are needed."""
        return self._weighed(self._iterate(start, stop, workers))

    def _iterate(self, start: int, stop: int, workers: int | None) -> Generator[Batch]:
        for plan in self._ahead(self._plans, start, stop):
            yield from self._make(plan, self.images)


# -- streamed to the device -------------------------------------------------------------------------------------------
#
# Only uint8 travels. A step is read in pieces of 32 images. Workers write them into a ring of shared memory of our own,
# since the shared memory of containers is small and a pipe carries about 1 GB a second. A thread gathers a few steps in
# pinned memory, and their copy to the device runs beside training. Files leave a worker before their resize; what the
# device makes of them comes back for the image cache while it has room.

PIECE = 32  # images a worker reads at a time: a batch is ready soon, and little memory is in flight
COPIERS = 4  # threads at most that copy out of the cache: one moves about 8 GB a second, a device takes 50
_NONE: Ints = np.empty(0, np.int64)


@dataclass(frozen=True)
class UnresizedGroup:
    """Images of one piece that Pillow resizes in the same order, padded to one size."""

    at: Ints  # their places in the piece
    shape: tuple[int, int, int, int]
    spans: NDArray[np.float32]
    vertical_first: bool


@dataclass(frozen=True)
class Piece:
    """The contents of a piece, by places in it: images in the cache, resized images, groups of unresized ones."""

    cached: Ints
    resized: Ints
    groups: tuple[UnresizedGroup, ...] = ()

    @property
    def images(self) -> int:
        """How many."""
        return len(self.cached) + len(self.resized) + sum(len(g.at) for g in self.groups)


@dataclass(frozen=True)
class StepImages:
    """The images read for the steps of a plan."""

    pieces: list[Piece]
    images: Tensor  # from the cache and resized, piece by piece
    unresized: list[Tensor]  # the groups, likewise

    def to(self, device: torch.device) -> StepImages:
        """The same on a device, by copies that the host does not wait for."""
        there = [part.to(device, non_blocking=True) for part in (self.images, *self.unresized)]
        return StepImages(self.pieces, there[0], there[1:])


Returns = deque[tuple[Ints, Tensor, Any]]  # positions, pixels on their way back to the host, the event of their arrival


def pack(found: DecodedImages, slot: Pixels) -> Piece:
    """Write the images of a piece into flat memory."""
    end = 0
    for _, pixels in found.resized:
        slot[end : end + pixels.size] = pixels.reshape(-1)
        end += pixels.size
    groups = []
    for first in (False, True):
        same: list[tuple[int, UnresizedImage]] = [(k, im) for k, im in found.unresized if im.vertical_first == first]
        if not same:
            continue
        high, wide, channels = np.max([image.pixels.shape for _, image in same], 0).tolist()
        shape = (len(same), high, wide, channels)
        padded = slot[end : end + prod(shape)].reshape(shape)
        for row, (_, image) in zip(padded, same):
            row[: image.pixels.shape[0], : image.pixels.shape[1]] = image.pixels
        spans = np.asarray([image.spans for _, image in same], np.float32)
        groups.append(UnresizedGroup(np.asarray([k for k, _ in same]), shape, spans, first))
        end += prod(shape)
    return Piece(found.cached, np.asarray([k for k, _ in found.resized], np.int64), tuple(groups))


class _Pieces(Dataset[tuple[Piece, dict[str, str]]]):
    """Pieces written into a ring that parent and workers share; only the list of their contents is sent."""

    def __init__(self, batches: StreamBatches, slots: int) -> None:
        self.batches = batches
        largest = LARGEST**2 if batches.reader.files is not None else 1
        self.ring = shared_bytes((slots, PIECE * largest * prod(batches.stored)))

    def __getitem__(self, number: int) -> tuple[Piece, dict[str, str]]:
        reader, slot = self.batches.reader, self.ring[number % len(self.ring)]
        at = self.batches._piece(number)
        if reader.files is not None:
            piece = pack(reader.files.decode(at), slot)
        else:
            pixels = reader.read(at).numpy()
            slot[: pixels.size] = pixels.reshape(-1)
            piece = Piece(_NONE, np.arange(len(at)))
        return piece, dict(reader.failed)


class StreamBatches(PlannedBatches):
    """Batches from images read again for every epoch; equal to those of :class:`DeviceBatches`."""

    def __init__(
        self,
        reader: SplitReader,
        batch: int,
        seed: int,
        augment: Augment,
        stored: tuple[int, int, int],
        device: torch.device,
    ) -> None:
        super().__init__(reader, batch, seed, augment, stored[1:], device)
        self.stored = stored

    @property
    def pieces(self) -> int:
        """Pieces that the images of a step are read in."""
        return -(-self.count // PIECE)

    def at(self, step: int) -> Batch:
        """The batch of one step."""
        rows = torch.arange(self.count, device=self.device)
        return self._make(self._plan(step), self._read(step).to(self.device), rows)[0]

    def _read(self, step: int) -> Tensor:
        return self.reader.read(self._own_positions(step))

    def _piece(self, number: int) -> Ints:
        step, part = divmod(number, self.pieces)
        return self._own_positions(step)[part * PIECE : (part + 1) * PIECE]

    def _iterate(self, start: int, stop: int, workers: int | None) -> Generator[Batch]:
        count = _spare_workers(stop - start, 16) if workers is None else workers
        returns: Returns = deque()
        with closing(self._from_workers(start, stop, count) if count else self._alone(start, stop)) as loads:

            def ready(steps: range) -> tuple[Plan, StepImages]:
                self._cache_returned(returns, wait=False)
                load = next(loads)
                return self._with_rows(self._plans(steps), load.pieces), load

            try:
                with closing(self._ahead(ready, start, stop)) as coming:
                    yield from self._on_device(coming, returns)
            finally:
                self._cache_returned(returns, wait=True)

    # on the device

    def _with_rows(self, plan: Plan, pieces: Sequence[Piece]) -> Plan:
        """A plan with the rows of its images among what was loaded, and how unresized ones are resized."""
        starts = np.cumsum([0, *(p.images for p in pieces)])
        whole = [low + at for low, p in zip(starts, pieces) for at in (p.cached, p.resized)]
        groups = [(low, g) for low, p in zip(starts, pieces) for g in p.groups]
        order = np.concatenate([*whole, *(low + g.at for low, g in groups)])  # of the images in memory
        more: dict[str, NDArray[Any]] = {"rows": np.argsort(order)}
        if groups:
            more["spans"] = np.concatenate([g.spans for _, g in groups])
            unresized = np.concatenate([low + g.at for low, g in groups])  # places in the batch
            positions = plan.arrays["positions"]
            assert self.reader.files is not None
            more["return"] = more["rows"][unresized[self.reader.files.lacks(positions[unresized])]]
            more["return_positions"] = positions[order[more["return"]]]
        return replace(plan, arrays={**plan.arrays, **more})

    def _on_device(self, coming: Iterator[tuple[Plan, StepImages]], returns: Returns) -> Iterator[Batch]:
        """Batches of pinned images; the next images are copied to the device while these batches are used."""
        if self.device.type != "cuda":
            for plan, load in coming:
                yield from self._assemble(plan, load.to(self.device), returns)
            return
        side = torch.cuda.Stream(self.device)
        sent: deque[tuple[Plan, StepImages, Any]] = deque()
        for plan, load in coming:
            with torch.cuda.stream(side):
                sent.append((plan, load.to(self.device), side.record_event()))
            if len(sent) > 1:
                yield from self._after_arrival(*sent.popleft(), returns)
        while sent:
            yield from self._after_arrival(*sent.popleft(), returns)

    def _after_arrival(self, plan: Plan, load: StepImages, arrived: Any, returns: Returns) -> list[Batch]:
        now = torch.cuda.current_stream(self.device)
        now.wait_event(arrived)
        for part in (load.images, *load.unresized):
            part.record_stream(now)  # its memory belongs to the other stream, which must not reuse it too soon
        return self._assemble(plan, load, returns)

    @torch.no_grad()
    def _assemble(self, plan: Plan, load: StepImages, returns: Returns) -> list[Batch]:
        """The batches: unresized images are resized and appended to the others, then augmented like resident ones."""
        sent = send(plan.arrays, self.device)
        images = load.images
        if load.unresized:
            size = self.stored[1:]
            lengths = filter_lengths(plan.arrays["spans"], size)
            filters = [make_filter(sent["spans"][:, k], size[k], length) for k, length in enumerate(lengths)]
            parts, done = [images], 0
            for group, pixels in zip((g for p in load.pieces for g in p.groups), load.unresized, strict=True):
                these = slice(done, done + len(group.at))
                vertical, horizontal = ((position[these], weight[these]) for position, weight in filters)
                parts.append(resize_batch(pixels, vertical, horizontal, group.vertical_first))
                done = these.stop
            images = torch.cat(parts)
        if "return" in sent:
            self._send_back(images.index_select(0, sent["return"]), plan.arrays["return_positions"], returns)
        return self._stage(images, sent["rows"], self.labels.index_select(0, sent["positions"]), plan, sent)

    def _send_back(self, images: Tensor, positions: Ints, returns: Returns) -> None:
        if self.device.type != "cuda":
            returns.append((positions, images, None))
            return
        host = self._pinned(images.shape).copy_(images, non_blocking=True)
        returns.append((positions, host, torch.cuda.current_stream(self.device).record_event()))

    def _cache_returned(self, returns: Returns, wait: bool) -> None:
        """Put what has come back into the image cache."""
        while returns and (wait or returns[0][2] is None or returns[0][2].query()):
            positions, images, event = returns.popleft()
            if event is not None:
                event.synchronize()
            assert self.reader.files is not None
            self.reader.files.put(positions, images.numpy())

    # reading

    def _pinned(self, shape: Sequence[int]) -> Tensor:
        here = torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()
        with here:
            return torch.empty(tuple(shape), dtype=torch.uint8, pin_memory=self.device.type == "cuda")

    def _alone(self, start: int, stop: int) -> Generator[StepImages]:
        """Steps read by the calling thread."""
        steps = range(start, stop)
        for low in range(0, len(steps), self.at_once):
            group = steps[low : low + self.at_once]
            images = self._pinned((len(group) * self.count, *self.stored))
            for into, step in zip(images.split(self.count), group):
                into.copy_(self._read(step))
            yield StepImages([Piece(_NONE, np.arange(len(images)))], images, [])

    def _from_workers(self, start: int, stop: int, workers: int) -> Generator[StepImages]:
        """Steps read by workers, which start here, in the caller's thread."""
        # At most AHEAD * workers pieces are requested beyond the one last handed over, so no slot is lost unread.
        pieces = _Pieces(self, AHEAD * workers + 2)
        numbers = range(start * self.pieces, stop * self.pieces)
        return self._gathered(_Forked(pieces, numbers, workers), pieces.ring, numbers)

    def _gathered(self, coming: Iterator[Any], ring: Pixels, numbers: range) -> Generator[StepImages]:
        many = self.at_once * self.pieces
        with ThreadPoolExecutor(min(COPIERS, usable_cores()), "tailorvit-copy") as copiers:
            for low in range(0, len(numbers), many):
                yield self._gather(coming, ring, numbers[low : low + many], copiers)

    def _gather(self, coming: Iterator[Any], ring: Pixels, numbers: range, copiers: Executor) -> StepImages:
        """Copy pieces from the cache and from the ring to pinned memory: one buffer, and one per unresized group."""
        images = self._pinned((len(numbers) // self.pieces * self.count, *self.stored))
        pieces, unresized, copies = list[Piece](), list[Tensor](), list[Future[None]]()
        out, image_bytes, end = images.numpy(), prod(self.stored), 0
        for number, (piece, failed) in zip(numbers, coming):
            self.reader.failed.update(failed)
            pieces.append(piece)
            slot, used = ring[number % len(ring)], len(piece.resized) * image_bytes
            low, end = end, end + len(piece.cached)
            if end > low:
                assert self.reader.files is not None
                cached = self._piece(number)[piece.cached]
                copies.append(copiers.submit(self.reader.files.copy_cached, cached, out[low:end]))
            low, end = end, end + len(piece.resized)
            if end > low:
                out[low:end] = slot[:used].reshape(-1, *self.stored)
            for group in piece.groups:
                unresized.append(self._pinned(group.shape))
                unresized[-1].numpy()[:] = slot[used : used + prod(group.shape)].reshape(group.shape)
                used += prod(group.shape)
        for copy in copies:
            copy.result()
        return StepImages(pieces, images[:end], unresized)
