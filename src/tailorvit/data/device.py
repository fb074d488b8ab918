"""Training batches made on the device that trains: images stay there as uint8 and are changed in whole batches."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from typing import TypeVar

import torch
from torch import Tensor

from tailorvit.data.augment import Augment
from tailorvit.data.batches import Batch, ByStep, Reading
from tailorvit.data.draws import Mix, Plan, Task, draw, noise_bank, send
from tailorvit.data.images import Size, scale_bias
from tailorvit.data.joined import join, steps_at_once
from tailorvit.data.pixels import crop, enhance, resized_crop
from tailorvit.data.randaugment import apply_layer, read_words
from tailorvit.data.transforms import fill_colour
from tailorvit.errors import unknown

ROOM = 4 << 30  # bytes of a split that "auto" keeps on any CUDA device; on large ones a quarter of the memory
PLACES = ("auto", "always", "never")
T = TypeVar("T")


def room(device: str) -> int:
    """Bytes of images that "auto" keeps on a device. Of its whole memory, not of what is free: that would change."""
    if torch.device(device).type != "cuda" or not torch.cuda.is_available():
        return ROOM
    return max(ROOM, int(torch.cuda.get_device_properties(device).total_memory) // 4)


def placed(on_device: str, device: str, size: int, kept: int = 0) -> str:
    """Where batches are made: "host", "kept" (images on the device) or "streamed" (from the host, changed there).

    ``size`` is the split's, ``kept`` what other splits take on the device already.
    """
    if on_device not in PLACES:
        raise unknown("data.on_device", on_device, PLACES)
    if on_device == "always":
        return "kept"
    if on_device == "never" or torch.device(device).type != "cuda":
        return "host"
    return "kept" if size < ROOM or kept + size < room(device) else "streamed"


def mixed(x: Tensor, target: Tensor, mix: Mix) -> None:
    """Mix a batch with its mirror image, in place; an odd last image stays as it is."""
    even = len(x) // 2 * 2
    x, target = x[:even], target[:even]
    if mix.box is None:
        other = x.flip(0).mul_(1 - mix.share)
        x.mul_(mix.share).add_(other)
    else:
        top, bottom, left, right = mix.box
        x[:, :, top:bottom, left:right] = x[:, :, top:bottom, left:right].flip(0)
    swapped = target.flip(0).mul_(1 - mix.share)
    target.mul_(mix.share).add_(swapped)


class DeviceStage:
    """What happens to batches on their device, with the constants for it."""

    def __init__(self, augment: Augment, reading: Reading, seed: int, device: torch.device) -> None:
        channels = len(reading.mean)
        self.size, self.classes, self.smoothing = reading.size, reading.classes, augment.smoothing
        self.channel = torch.arange(channels, device=device)
        self.scale, self.bias = (t.to(device) for t in scale_bias(reading.mean, reading.std))
        fill = torch.tensor(fill_colour(reading.mean), dtype=torch.uint8)
        self.fill = fill[:, None, None].to(device)
        self.line = [torch.arange(side, device=device) for side in self.size]
        values = channels * self.size[0] * self.size[1]
        self.bank = noise_bank(seed, values, device) if augment.erasing else None

    def __call__(self, images: Tensor, at: Tensor, y: Tensor, plan: Plan, sent: Mapping[str, Tensor]) -> list[Batch]:
        """The batches of a plan's steps, of the images ``at`` places of a uint8 tensor; they share memory."""
        each = len(y) // len(plan.mixes)
        if "lines" in sent:
            x = crop(images, at, self.channel, sent["lines"], self.size)
        else:
            x = resized_crop(images.index_select(0, at), sent["boxes"], self.size, each)
        for layer in plan.rand:
            apply_layer(x, layer, sent, self.fill)
        for slot in range(plan.slots):
            x = enhance(x, sent["jitter"][slot], smooth=False)
        out = x.to(torch.float32).mul_(self.scale).add_(self.bias)
        if plan.erased:
            self._erase(out, sent)
        off = self.smoothing / self.classes
        target = torch.full((len(y), self.classes), off, device=y.device)
        target.scatter_(1, y[:, None], 1 - self.smoothing + off)
        batches = [Batch(*parts) for parts in zip(out.split(each), y.split(each), target.split(each), strict=True)]
        for batch, mix in zip(batches, plan.mixes, strict=True):
            if mix is not None:
                mixed(batch.x, batch.target, mix)
        return batches

    def _erase(self, x: Tensor, sent: Mapping[str, Tensor]) -> None:
        """Noise of mean 0 and deviation 1 in the boxes, in place."""
        assert self.bank is not None
        top, bottom, left, right = sent["erase"][:, :, None, None].unbind(1)
        row, col = self.line[0][:, None], self.line[1]
        inside = (row >= top) & (row < bottom) & (col >= left) & (col < right)
        at = sent["erase_at"]
        noise = self.bank[sent["noise_at"]].view(len(at), *x.shape[1:])
        x.index_copy_(0, at, torch.where(inside[:, None], noise, x.index_select(0, at)))


class Planned(ByStep):
    """Batches whose every draw is the host's, so that a step has the same batch on any device up to rounding."""

    def __init__(
        self, reading: Reading, batch: int, seed: int, augment: Augment, have: Size, device: torch.device
    ) -> None:
        super().__init__(reading, batch, seed, augment)
        self.device = device
        self.labels = torch.from_numpy(reading.labels).to(device)
        words = None if augment.randaugment is None else read_words(augment.randaugment, reading.size, reading.mean)
        self._task = Task(augment, len(reading.mean), have, reading.size, words)
        self._stage = DeviceStage(augment, reading, seed, device)
        self.at_once = steps_at_once(self.batch, len(reading.mean), have, reading.size, device)

    def _plan(self, step: int) -> Plan:
        return draw(self._task, self._positions(step), self.seed, step)

    def _plans(self, steps: range) -> Plan:
        return join([self._plan(step) for step in steps])

    def _ahead(self, work: Callable[[range], T], start: int, stop: int) -> Generator[T]:
        """Work for the steps, some at once, done in a thread while its last results are used."""
        steps, many = range(start, stop), self.at_once
        return self._threaded(lambda k: work(steps[k * many : (k + 1) * many]), 0, -(-len(steps) // many))

    @torch.no_grad()
    def _make(self, plan: Plan, images: Tensor, rows: Tensor | None = None) -> list[Batch]:
        """The batches, from the whole split or from the images of the steps in their order (then with ``rows``)."""
        sent = send(plan.arrays, self.device)
        at = sent["at"]
        return self._stage(images, at if rows is None else rows, self.labels.index_select(0, at), plan, sent)


class DeviceBatches(Planned):
    """Batches by step from images that lie on the device; the next steps are drawn in a thread meanwhile."""

    def __init__(self, reading: Reading, batch: int, seed: int, augment: Augment, images: Tensor) -> None:
        super().__init__(reading, batch, seed, augment, (images.shape[2], images.shape[3]), images.device)
        self.images = images

    def at(self, step: int) -> Batch:
        """The batch of one step."""
        return self._make(self._plan(step), self.images)[0]

    def iterate(self, start: int, stop: int, workers: int | None = None) -> Iterator[Batch]:
        """The batches ``at(start)`` to ``at(stop - 1)``; no workers are needed."""
        for plan in self._ahead(self._plans, start, stop):
            yield from self._make(plan, self.images)
