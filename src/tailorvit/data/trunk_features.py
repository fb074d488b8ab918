"""Trunk features in place of pixels: a frozen trunk's outputs, computed once and cached on disk."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tailorvit import units
from tailorvit.data.augment import Augment
from tailorvit.data.batches import Batch, HostBatches, SplitReader
from tailorvit.data.dataset import Data
from tailorvit.data.disk_cache import cache_root
from tailorvit.data.images import normalise
from tailorvit.data.splits import Ints
from tailorvit.descriptors import lock, open_file, write_at
from tailorvit.errors import TailorError
from tailorvit.rng import generator
from tailorvit.runs.atomic import write_json
from tailorvit.texts import read_json
from tailorvit.trunks import Trunk

PLAIN, MIRROR = "plain", "mirror"  # variants of an image that are cached
BATCH = 64  # images per pass through the trunk

# -- the cache --------------------------------------------------------------------------------------------------------

FORMAT = 1
FACTS = "cache.json"
_MARK = 3  # numbers per row: 1 once it is written, checksum of the image, checksum of the row


class FeatureCache:
    """float16 rows by image, for one trunk on one source at one size; ``facts`` say which, ``shape`` is a row's.

    Each row has a checksum of its image and one of itself and counts only where both match. So a killed, damaged or
    outdated cache repairs itself row by row. Rows are written, not mapped: a full disk is then an ordinary error, where
    a mapped file would end the process.
    """

    def __init__(self, root: Path, facts: Mapping[str, Any], rows: int, shape: tuple[int, int, int]) -> None:
        self.facts = {"format": FORMAT, **facts, "rows": rows, "shape": list(shape)}
        key = hashlib.sha256(json.dumps(self.facts, sort_keys=True).encode()).hexdigest()
        self.folder = root / f"taps-{key[:20]}"  # the prefix of all caches so far; another would lose them
        self.rows, self.shape = rows, shape
        self.row_bytes = 2 * int(np.prod(shape))
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with _locked(self.folder):
                self.warning = self._check()
        except OSError as error:
            raise TailorError(f"The cache of trunk features cannot be stored in '{root}': {error}.") from None

    def _check(self) -> str:
        """Start again where the folder's contents do not match its name; returns a warning if so."""
        path = self.folder / FACTS
        try:
            same = read_json(path) == self.facts
        except FileNotFoundError:
            same = not any(self.folder.glob("*.f16"))
        except ValueError:
            same = False
        for file in self.folder.glob("*.f16"):
            marks = file.with_suffix(".marks")
            complete = marks.is_file() and marks.stat().st_size == 4 * _MARK * self.rows
            same = same and complete and file.stat().st_size == self.row_bytes * self.rows
        if not same:
            for old in [*self.folder.glob("*.f16"), *self.folder.glob("*.marks")]:
                old.unlink()
        if not same or not path.is_file():
            write_json(path, self.facts)
        return "" if same else f"the cache in '{self.folder}' was damaged or of other data and is computed again"

    def _path(self, variant: str, suffix: str) -> Path:
        """A file of a variant, made full of holes when first needed; the marks come last, as rows need them."""
        path = self.folder / f"{variant}.{suffix}"
        if not path.is_file():
            for end, size in (("f16", self.row_bytes), ("marks", 4 * _MARK)):
                with (self.folder / f"{variant}.{end}").open("ab") as file:
                    file.truncate(size * self.rows)
        return path

    def _marks(self, variant: str) -> NDArray[np.uint32]:
        return np.memmap(self._path(variant, "marks"), np.uint32, "r", shape=(self.rows, _MARK))

    def _features(self, variant: str) -> NDArray[np.float16]:
        return np.memmap(self._path(variant, "f16"), np.float16, "r", shape=(self.rows, *self.shape))

    def written(self, variant: str, ids: Ints) -> int:
        """How many of these rows are marked as written."""
        return int((self._marks(variant)[ids, 0] == 1).sum())

    def read(self, variant: str, ids: Ints) -> Tensor:
        """Rows as float16 (n, L, N, F); call :meth:`fill` for them first."""
        return torch.from_numpy(np.array(self._features(variant)[ids]))

    def fill(
        self,
        variant: str,
        ids: Ints,
        images: Callable[[int, int], Tensor],
        compute: Callable[[Tensor], Tensor],
        batch: int,
        progress: Callable[[int, int], None],
    ) -> dict[str, int]:
        """Check all rows of ``ids`` and compute the missing ones; ``images(from, to)`` takes positions in ``ids``.

        Another process may fill at the same time: each batch is checked and computed under a lock.
        """
        counts = {"computed": 0, "found": 0, "repaired": 0}
        for at in range(0, len(ids), batch):
            rows = ids[at : at + batch]
            x = images(at, at + len(rows))
            checksums = np.array([zlib.crc32(p.numpy()) for p in x.contiguous()], np.uint32)
            with _locked(self.folder):
                bad, repaired = self._invalid(variant, rows, checksums)
                if len(bad):
                    features = compute(x[torch.from_numpy(bad)]).numpy()
                    self._write(variant, rows[bad], features, checksums[bad])
            counts["computed"] += len(bad)
            counts["found"] += len(rows) - len(bad)
            counts["repaired"] += repaired
            progress(at + len(rows), len(ids))
        return counts

    def _invalid(self, variant: str, ids: Ints, checksums: NDArray[np.uint32]) -> tuple[Ints, int]:
        """Positions of rows that are not valid, and how many of them were marked as written."""
        marks, features = self._marks(variant)[ids], self._features(variant)
        written = marks[:, 0] == 1
        valid = written & (marks[:, 1] == checksums)
        for k in np.flatnonzero(valid):
            valid[k] = zlib.crc32(features[ids[k]]) == marks[k, 2]
        return np.flatnonzero(~valid).astype(np.int64), int((written & ~valid).sum())

    def _write(self, variant: str, ids: Ints, rows: NDArray[np.float16], checksums: NDArray[np.uint32]) -> None:
        try:
            with (
                self._path(variant, "f16").open("r+b", 0) as features,
                self._path(variant, "marks").open("r+b", 0) as marks,
            ):
                for i, row, checksum in zip(ids.tolist(), rows, checksums.tolist(), strict=True):
                    data = np.ascontiguousarray(row).tobytes()
                    mark = np.array([1, checksum, zlib.crc32(data)], np.uint32).tobytes()
                    write_at(features.fileno(), data, i * self.row_bytes)
                    write_at(marks.fileno(), mark, 4 * _MARK * i)
        except OSError as error:
            raise TailorError(f"The cache of trunk features in '{self.folder}' cannot be written: {error}.") from None

    def require_room(self, rows: int) -> None:
        """Refuse what the disk cannot hold, before anything is computed."""
        need, free = rows * self.row_bytes, shutil.disk_usage(self.folder).free
        if need > free:
            layers, tokens, width = self.shape
            raise TailorError(
                f"The trunk features need {units.show(need, 'memory')} ({rows} images of {layers} layers, {tokens} "
                f"tokens, {width} channels) but '{self.folder.parent}' has {units.show(free, 'memory')} free; "
                "lower trunk.taps or data.image_size, or set the environment variable TAILORVIT_CACHE to a folder "
                "with more room."
            )


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Wait for the folder's lock and hold it; the system releases it when its holder dies."""
    file = open_file(folder / ".lock", os.O_RDWR | os.O_CREAT)
    try:
        lock(file, wait=True, owner="process")  # on a file system without locks rows repair themselves
        yield
    finally:
        os.close(file)


# -- the data ---------------------------------------------------------------------------------------------------------


def _no_log(_: str) -> None:
    pass


class TrunkFeatureData(Data):
    """Data whose inputs are trunk features: ``channels`` is their number of layers, ``image_size`` (tokens, width).

    Examples, names, labels and splits are those of the images; ``preprocessing`` is for image files, too.
    """

    trunk: Trunk

    def __init__(
        self,
        images: Data,
        trunk: Trunk,
        mirror: bool = False,
        device: str = "cpu",
        threads: int = 0,
        batch: int = BATCH,
    ) -> None:
        design = trunk.network.design
        if (design.channels, design.image_size) != (images.channels, tuple(images.image_size)):
            raise TailorError(
                f"The trunk takes {design.channels} channels at {design.image_size}, the data is {images}."
            )
        self.images, self.trunk, self.mirror, self.device = images, trunk, mirror, device
        self.threads, self.batch = threads or torch.get_num_threads(), batch
        self.log: Callable[[str], None] = _no_log
        self.source, self.classes, self.fingerprint = images.source, images.classes, images.fingerprint
        self.channels, self.image_size = design.taps, (design.tokens, design.embed)
        self.mean, self.std = trunk.mean, trunk.std
        self.test_opened = images.test_opened
        # Shared with the images, so that an unreadable image leaves its split here, too.
        self._images, self._splits, self._recorded = images._images, images._splits, images._recorded
        facts = {
            "trunk": trunk.checksum,
            "data": images.fingerprint,
            "preprocessing": self.preprocessing,
        }
        shape = (design.taps, design.tokens, design.embed)
        self.cache = FeatureCache(cache_root(), facts, len(self._images.labels), shape)
        self._filled: set[str] = set()

    @property
    def preprocessing(self) -> dict[str, Any]:
        """How a file becomes the trunk's input."""
        return {**self.images.preprocessing, "mean": list(self.mean), "std": list(self.std)}

    def unseal_test(self, reason: str) -> None:
        """Open the test split; its rows are computed now, not before."""
        self.images.unseal_test(reason)
        self.test_opened = self.images.test_opened
        self._fill("test")

    def examples(self, split: str, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The images themselves, and their class numbers."""
        return self.images.examples(split, indices)

    def with_trunk(self, model: nn.Module) -> nn.Module:
        """A decoder with the trunk before it: a network that takes images."""
        decoder: Any = model
        whole: nn.Module = decoder.attached(self.trunk.network)
        return whole

    # -- features ---------------------------------------------------------------------------------------------------

    def normalise(self, x: Tensor) -> Tensor:
        """uint8 images as the decoder takes them: trunk features, rounded as the cache rounds them."""
        parts = [self._compute(x[at : at + self.batch]) for at in range(0, len(x), self.batch)]
        return torch.cat(parts).float()

    @torch.no_grad()
    def _compute(self, x: Tensor) -> Tensor:
        network = self.trunk.network.to(self.device)
        before = torch.get_num_threads()  # small decoders run with one thread; the trunk is large
        torch.set_num_threads(self.threads)
        try:
            features: Tensor = network(normalise(x, self.mean, self.std).to(self.device)).half().cpu()
        finally:
            torch.set_num_threads(before)
        if not features.isfinite().all():
            raise TailorError(f"The outputs of the trunk '{self.trunk.source}' leave the range of float16.")
        return features

    def prepare(
        self, log: Callable[[str], None] | None = None, progress: Callable[[str, int, int], None] | None = None
    ) -> None:
        """Compute the features of the train and search splits; ``log`` also serves when the test split is opened."""
        self.log = log or self.log
        self.require_room()
        if self.cache.warning:
            self.log(f"trunk: {self.cache.warning}")
        for split in ("train", "search"):
            self._fill(split, progress)

    def require_room(self) -> None:
        """Refuse what the disk cannot hold, before anything is computed."""
        wanted = [(self._splits[s], variant) for s in ("train", "search", "test") for variant in self._variants(s)]
        self.cache.require_room(sum(len(ids) - self.cache.written(variant, ids) for ids, variant in wanted))

    def _variants(self, split: str) -> tuple[str, ...]:
        return (PLAIN, MIRROR) if self.mirror and split == "train" else (PLAIN,)

    def _fill(self, split: str, progress: Callable[[str, int, int], None] | None = None) -> Ints:
        """The ids of a split, with all its rows computed and checked."""
        ids = self._ids(split)
        if split in self._filled:
            return ids
        for variant in self._variants(split):

            def images(start: int, stop: int, variant: str = variant) -> Tensor:
                x = self.images.examples(split, range(start, stop))[0]
                return x.flip(3) if variant == MIRROR else x

            def report(done: int, total: int) -> None:
                if progress is not None:
                    progress(split, done, total)

            counts = self.cache.fill(variant, ids, images, self._compute, self.batch, report)
            name = "mirrored images" if variant == MIRROR else "images"
            text = f"trunk: {split} split, {name}: {counts['computed']} computed, {counts['found']} from the cache"
            repaired = counts["repaired"]
            self.log(text + (f"; {repaired} rows were damaged or of other images" if repaired else ""))
        self._filled.add(split)
        return ids

    # -- batches ----------------------------------------------------------------------------------------------------

    def augment(self, name: str = "auto") -> Augment:
        """What fixed features allow of a preset: mixup and smoothing; a flip where mirrored images are cached."""
        preset = self.images.augment(name)
        return Augment(mixup=preset.mixup, mix_prob=preset.mix_prob, smoothing=preset.smoothing, flip=self.mirror)

    def placement(self, split: str, device: str, on_device: str = "auto") -> str:
        """Always the host: features come from the cache on disk."""
        return "host"

    def train_batches(
        self, batch: int, seed: int, augment: Augment, device: str = "cpu", on_device: str = "auto"
    ) -> FeatureBatches:
        """Training batches by step."""
        ids = self._fill("train")
        reader = SplitReader(
            read=lambda at: self.cache.read(PLAIN, ids[at]),
            labels=self._images.labels[ids],
            classes=len(self.classes),
            size=self.image_size,
            mean=self.mean,
            std=self.std,
            failed=self._images.failed,
        )
        mirrored = (lambda at: self.cache.read(MIRROR, ids[at])) if augment.flip and self.mirror else None
        return FeatureBatches(reader, batch, seed, augment, mirrored)

    def _eval_on_host(self, split: str, total: int, batch: int) -> Iterator[tuple[Tensor, Tensor]]:
        ids = self._fill(split)
        for at in range(0, total, batch):
            rows = ids[at : at + batch]
            yield self.cache.read(PLAIN, rows).float(), torch.from_numpy(self._images.labels[rows])


class FeatureBatches(HostBatches):
    """Batches of trunk features by step; where mirrored images are cached, each image is drawn plain or mirrored."""

    def __init__(
        self, reader: SplitReader, batch: int, seed: int, augment: Augment, mirrored: Callable[[Ints], Tensor] | None
    ) -> None:
        super().__init__(reader, batch, seed, augment)
        self._mirrored = mirrored

    def pixels(self, step: int) -> Tensor:
        """The rows, as float16."""
        at = self._positions(step)
        x = self.reader.read(at)
        if self._mirrored is not None:
            mirrored = np.flatnonzero(generator(self.seed, "view", step).random(len(at)) < 0.5)
            x[torch.from_numpy(mirrored)] = self._mirrored(at[mirrored])
        return x

    def _finish(self, step: int, pixels: Tensor) -> Batch:
        y = torch.from_numpy(self.reader.labels[self._positions(step)])
        x, target = self._batch_stage(pixels.float(), y, self.seed, step)
        return self._kept(Batch(x, y, target))
