"""Images as a frozen trunk sees them: its outputs, computed once, in place of pixels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tailorvit.data.augment import Augment
from tailorvit.data.batches import Batch, Batches, Reading
from tailorvit.data.dataset import Data
from tailorvit.data.images import normalise
from tailorvit.data.splits import Ints
from tailorvit.data.tap_cache import TapCache, cache_root
from tailorvit.errors import TailorError
from tailorvit.rng import generator
from tailorvit.trunks.settings import TrunkSettings
from tailorvit.trunks.tower import Trunk

PLAIN, MIRROR = "plain", "mirror"  # the views kept


def _silent(_: str) -> None:
    pass


class TapData(Data):
    """Data whose images are a trunk's taps: ``channels`` is L, ``image_size`` is (tokens, width).

    Pictures to look at, names, labels and splits are those of the images; ``preprocessing`` is for files, too.
    """

    trunk: Trunk

    def __init__(
        self,
        pictures: Data,
        trunk: Trunk,
        settings: TrunkSettings | None = None,
        device: str = "cpu",
        threads: int = 0,
    ) -> None:
        frame = trunk.network.frame
        if (frame.channels, frame.image_size) != (pictures.channels, tuple(pictures.image_size)):
            raise TailorError(
                f"The trunk takes {frame.channels} channels at {frame.image_size}, the data is {pictures}."
            )
        settings = settings or TrunkSettings(trunk.source)
        self.pictures, self.trunk, self.device = pictures, trunk, device
        self.threads = threads or torch.get_num_threads()
        self.say: Callable[[str], None] = _silent
        self.mirror, self.batch = settings.mirror, settings.batch
        self.source, self.classes, self.fingerprint = pictures.source, pictures.classes, pictures.fingerprint
        self.channels, self.image_size = frame.taps, (frame.tokens, frame.embed)
        self.mean, self.std = trunk.mean, trunk.std
        self.test_opened = pictures.test_opened
        # The images' own: what leaves a split when it is read leaves it here.
        self._pool, self._splits, self._recorded = pictures._pool, pictures._splits, pictures._recorded
        facts = {
            "trunk": trunk.checksum,
            "data": pictures.fingerprint,
            "preprocessing": self.preprocessing,
        }
        shape = (frame.taps, frame.tokens, frame.embed)
        self.cache = TapCache(cache_root(settings.cache), facts, len(self._pool.labels), shape)
        self._ready: set[str] = set()

    @property
    def preprocessing(self) -> dict[str, Any]:
        """What turns a file into what the trunk takes."""
        return {**self.pictures.preprocessing, "mean": list(self.mean), "std": list(self.std)}

    def unseal_test(self, reason: str) -> None:
        """Open the test split; its rows are computed now, not before."""
        self.pictures.unseal_test(reason)
        self.test_opened = self.pictures.test_opened
        self._settle("test")

    def examples(self, split: str, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Pictures to look at."""
        return self.pictures.examples(split, indices)

    def attached(self, model: nn.Module) -> nn.Module:
        """A decoder of taps with the trunk before it: a network that takes images."""
        decoder: Any = model
        whole: nn.Module = decoder.attached(self.trunk.network)
        return whole

    # -- taps -------------------------------------------------------------------------------------------------------

    def normalise(self, x: Tensor) -> Tensor:
        """uint8 pictures as the decoder takes them: taps, rounded as the cache rounds them."""
        parts = [self._compute(x[at : at + self.batch]) for at in range(0, len(x), self.batch)]
        return torch.cat(parts).float()

    @torch.no_grad()
    def _compute(self, x: Tensor) -> Tensor:
        network = self.trunk.network.to(self.device)
        before = torch.get_num_threads()  # a run of small decoders keeps one; the trunk is large
        torch.set_num_threads(self.threads)
        try:
            taps: Tensor = network(normalise(x, self.mean, self.std).to(self.device)).half().cpu()
        finally:
            torch.set_num_threads(before)
        if not taps.isfinite().all():
            raise TailorError(f"The outputs of the trunk '{self.trunk.source}' leave the range of float16.")
        return taps

    def ready(
        self, say: Callable[[str], None] | None = None, look: Callable[[str, int, int], None] | None = None
    ) -> None:
        """Compute what training and search need, if it is not there; ``say`` is told now and when the seal opens."""
        self.say = say or self.say
        self.require_room()
        if self.cache.word:
            self.say(f"trunk: {self.cache.word}")
        for split in ("train", "search"):
            self._settle(split, look)

    def require_room(self) -> None:
        """Refuse what the disk cannot hold, before anything is computed."""
        wanted = [(split, view) for split in ("train", "search", "test") for view in self._views(split)]
        self.cache.require_room(
            sum(len(self._splits[split]) - self.cache.there(view, self._splits[split]) for split, view in wanted)
        )

    def _views(self, split: str) -> tuple[str, ...]:
        return (PLAIN, MIRROR) if self.mirror and split == "train" else (PLAIN,)

    def _settle(self, split: str, look: Callable[[str, int, int], None] | None = None) -> Ints:
        """The ids of a split, with all its rows computed and checked."""
        ids = self._ids(split)
        if split in self._ready:
            return ids
        for view in self._views(split):

            def pictures(start: int, stop: int, view: str = view) -> Tensor:
                x = self.pictures.examples(split, range(start, stop))[0]
                return x.flip(3) if view == MIRROR else x

            told = self.cache.fill(
                view, ids, pictures, self._compute, self.batch, lambda at, of: look(split, at, of) if look else None
            )
            text = f"trunk: {split} split, {view} view: {told['computed']} computed, {told['found']} from the cache"
            mended = f"; {told['mended']} of the cache were damaged or of other pictures" if told["mended"] else ""
            self.say(text + mended)
        self._ready.add(split)
        return ids

    # -- batches ----------------------------------------------------------------------------------------------------

    def augment(self, name: str = "auto") -> Augment:
        """Of a preset, what fixed features allow: mixup and smoothing; a flip where mirrored views are kept."""
        asked = self.pictures.augment(name)
        return Augment(mixup=asked.mixup, mix_prob=asked.mix_prob, smoothing=asked.smoothing, flip=self.mirror)

    def place(self, split: str, device: str, on_device: str) -> str:
        """Taps come from the cache on disk, whatever the recipe says of images."""
        return "host"

    def train_batches(
        self, batch: int, seed: int, augment: Augment, device: str = "cpu", on_device: str = "never"
    ) -> TapBatches:
        """Training batches by step."""
        ids = self._settle("train")
        reading = Reading(
            read=lambda at: self.cache.read(PLAIN, ids[at]),
            labels=self._pool.labels[ids],
            classes=len(self.classes),
            size=self.image_size,
            mean=self.mean,
            std=self.std,
            failed=self._pool.failed,
        )
        mirrored = (lambda at: self.cache.read(MIRROR, ids[at])) if augment.flip and self.mirror else None
        return TapBatches(reading, batch, seed, augment, mirrored)

    def _evaluation(self, split: str, total: int, batch: int) -> Iterator[tuple[Tensor, Tensor]]:
        ids = self._settle(split)
        for at in range(0, total, batch):
            some = ids[at : at + batch]
            yield self.cache.read(PLAIN, some).float(), torch.from_numpy(self._pool.labels[some])


class TapBatches(Batches):
    """Batches of taps by step; of an image's two views one is drawn, where both are kept."""

    def __init__(
        self, reading: Reading, batch: int, seed: int, augment: Augment, mirrored: Callable[[Ints], Tensor] | None
    ) -> None:
        super().__init__(reading, batch, seed, augment)
        self._mirrored = mirrored

    def raw(self, step: int) -> Tensor:
        """The rows, as float16."""
        at = self._positions(step)
        x = self.reading.read(at)
        if self._mirrored is not None:
            turned = np.flatnonzero(generator(self.seed, "view", step).random(len(at)) < 0.5)
            x[torch.from_numpy(turned)] = self._mirrored(at[turned])
        return x

    def _finish(self, step: int, raw: Tensor) -> Batch:
        y = torch.from_numpy(self.reading.labels[self._positions(step)])
        x, target = self._final(raw.float(), y, self.seed, step)
        return Batch(x, y, target)
