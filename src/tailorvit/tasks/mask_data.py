"""Images and masks at one size: splits, batches for training and evaluation, and their augmentation.

An image keeps its shape: it is resized to fit into the size, and what is left beside it is ignored.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tailorvit.data.batches import made_ahead
from tailorvit.data.images import normalise, thread_map
from tailorvit.data.splits import SPLITS, Ints, default_search_share, require_open, require_reason
from tailorvit.errors import TailorError
from tailorvit.portable import Pixels, Size, checked_size, reason
from tailorvit.rng import generator
from tailorvit.tasks.base import TaskBatch
from tailorvit.tasks.mask_files import IGNORE, Classes, MaskedImage, MaskFolder, open_image, read_mask_folder

if TYPE_CHECKING:
    from PIL import Image

_SHARE = 0.15  # of the images for the search split, and as many for the test split, where there are no split folders
_STATISTICS = 500  # training images that mean and std are computed from
_CACHE = 1 << 30  # bytes of fitted images and masks that are kept
_COLOUR = 0.25  # brightness, contrast and saturation change by up to this share
_SMALLEST, _LARGEST = 16, 4096  # sides of the network's images


@dataclass(frozen=True)
class SegmentSettings:
    """The image size, the decoder, how images are augmented and which numbers are ignored."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by config.py

    image_size: int | tuple[int, int] = 128  # a side or (rows, columns)
    decoder: int = 64  # channels of UperNet's decoder; the auxiliary head has half
    jitter: tuple[float, float] = (0.75, 1.5)  # training images are scaled by a factor between these
    flip: bool = True  # mirror half of the training images
    ignore: tuple[int, ...] = (IGNORE,)  # numbers in masks that are no class
    scales: tuple[float, ...] = (0.5, 0.75, 1.0, 1.25, 1.5, 1.75)  # of the last figure; empty: none such

    def __post_init__(self) -> None:
        size = checked_size(self.image_size)
        if not all(_SMALLEST <= side <= _LARGEST for side in size):
            raise TailorError(f"segment.image_size must be from {_SMALLEST} to {_LARGEST}, not {self.image_size}.")
        if not 4 <= self.decoder <= 4096:
            raise TailorError(f"segment.decoder must be from 4 to 4096 channels, not {self.decoder}.")
        if len(self.jitter) != 2 or not 0.1 <= self.jitter[0] <= self.jitter[1] <= 10:
            raise TailorError(
                f"segment.jitter must be two factors from 0.1 to 10, the smaller first, not {list(self.jitter)}."
            )
        if not all(0 <= number < 1 << 16 for number in self.ignore):
            raise TailorError(f"segment.ignore must list numbers from 0 to 65535, not {list(self.ignore)}.")
        if not all(math.isfinite(scale) and 0.1 <= scale <= 4 for scale in self.scales):
            raise TailorError(f"segment.scales must be factors from 0.1 to 4, not {list(self.scales)}.")


# -- one image --------------------------------------------------------------------------------------------------------


class Box(NamedTuple):
    """Where an image lies within its fitted one."""

    top: int
    left: int
    rows: int
    columns: int

    def cut(self, x: Tensor) -> Tensor:
        """What lies in the box, of the last two dimensions."""
        return x[..., self.top : self.top + self.rows, self.left : self.left + self.columns]


class Fitted(NamedTuple):
    """An image at the network's size, its mask alike, and where in them it lies."""

    pixels: Tensor  # uint8 (3, rows, columns), zero beside the box
    mask: Tensor  # uint8 (rows, columns), IGNORE beside the box
    box: Box


def fitted_box(have: Size, size: Size) -> Box:
    """Where an image of one size lies in one of another: as large as fits, in the middle."""
    scale = min(size[0] / have[0], size[1] / have[1])
    rows, columns = (max(1, min(goal, round(scale * side))) for side, goal in zip(have, size))
    return Box((size[0] - rows) // 2, (size[1] - columns) // 2, rows, columns)


def fitted_pixels(image: Image.Image, size: Size) -> tuple[Pixels, Box]:
    """An RGB image within an image of the size, uint8 (3, rows, columns)."""
    from PIL import Image

    box = fitted_box((image.height, image.width), size)
    pixels = np.zeros((3, *size), np.uint8)
    small = image.resize((box.columns, box.rows), Image.Resampling.BICUBIC)
    pixels[:, box.top : box.top + box.rows, box.left : box.left + box.columns] = np.asarray(small).transpose(2, 0, 1)
    return pixels, box


def fitted_mask(mask: Classes, size: Size) -> Classes:
    """A mask within one of the size, each pixel as the nearest one was."""
    box = fitted_box((mask.shape[0], mask.shape[1]), size)
    rows, columns = (
        ((np.arange(new) + 0.5) * (old / new)).astype(np.int64) for old, new in zip(mask.shape, (box.rows, box.columns))
    )
    out = np.full(size, IGNORE, np.uint8)
    out[box.top : box.top + box.rows, box.left : box.left + box.columns] = mask[rows[:, None], columns]
    return out


def network_input(pixels: Tensor, boxes: Sequence[Box], mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """uint8 images (B, 3, rows, columns) normalised, zero beside their boxes."""
    x = normalise(pixels, mean, std)
    inside = torch.zeros(len(x), 1, *x.shape[2:])
    for i, box in enumerate(boxes):
        box.cut(inside[i]).fill_(1)
    return x * inside


# -- augmentation -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Change:
    """How one training image is changed; drawn by :func:`draw_change`."""

    rows: int  # of the image after scaling
    columns: int
    top: int  # of the crop within the scaled image; negative: the image lies so far inside the crop
    left: int
    flip: bool
    colour: tuple[float, float, float]  # factors of brightness, contrast and saturation


def draw_change(box: Box, size: Size, settings: SegmentSettings, seed: int, step: int, place: int) -> Change:
    """The change of the image at a place of the batch of a step."""
    draw = generator(seed, "segment", step, place)
    scale = draw.uniform(*settings.jitter)
    rows, columns = max(1, round(scale * box.rows)), max(1, round(scale * box.columns))
    top, left = (
        int(draw.integers(min(0, side - goal), max(0, side - goal), endpoint=True))
        for side, goal in zip((rows, columns), size)
    )
    flip = settings.flip and bool(draw.random() < 0.5)
    bright, contrast, saturation = draw.uniform(1 - _COLOUR, 1 + _COLOUR, 3)
    return Change(rows, columns, top, left, flip, (bright, contrast, saturation))


def changed(image: Fitted, change: Change, size: Size) -> tuple[Tensor, Tensor, Tensor]:
    """An image as float values in 0..255, its mask, and where they show the image; all of the size.

    A new pixel's centre lies at one place of the old image: its colour comes from the four pixels around that place,
    its class from the pixel under it.
    """
    box, places, indices, inside = image.box, [], [], []
    for new, old, start, goal in (
        (change.rows, box.rows, change.top, size[0]),
        (change.columns, box.columns, change.left, size[1]),
    ):
        at = (torch.arange(goal, dtype=torch.float64) + 0.5 + start) * (old / new)
        inside.append((at > 0) & (at < old))
        places.append(at.clamp(0.5, old - 0.5))
        indices.append(at.long().clamp(0, old - 1))
    if change.flip:  # of the result, so that image and mask cannot differ
        places[1], indices[1], inside[1] = places[1].flip(0), indices[1].flip(0), inside[1].flip(0)
    shown = inside[0][:, None] & inside[1]
    mask = box.cut(image.mask)[indices[0][:, None], indices[1]].masked_fill(~shown, IGNORE)
    y, x = (2 * place / old - 1 for place, old in zip(places, (box.rows, box.columns)))
    grid = torch.stack(torch.meshgrid(y, x, indexing="ij")[::-1], -1).float()
    pixels = F.grid_sample(box.cut(image.pixels)[None].float(), grid[None], align_corners=False)[0]
    return recoloured(pixels, *change.colour), mask, shown


def recoloured(pixels: Tensor, bright: float, contrast: float, saturation: float) -> Tensor:
    """Values in 0..255 with brightness, contrast and saturation multiplied."""
    pixels = pixels * bright
    grey = pixels.mean(0, keepdim=True)
    pixels = grey + (pixels - grey) * saturation
    middle = grey.mean()
    return (middle + (pixels - middle) * contrast).clamp(0, 255)


# -- the data ---------------------------------------------------------------------------------------------------------


class SegmentData:
    """Images with masks in three splits; the test split is sealed until it is opened with a reason."""

    channels = 3

    def __init__(self, source: str, folder: MaskFolder, splits: Mapping[str, Ints], settings: SegmentSettings) -> None:
        self.source = source
        self.folder = folder
        self.settings = settings
        self.fingerprint = folder.fingerprint
        self.classes = folder.classes
        self.image_size: Size = checked_size(settings.image_size)
        self.skipped = dict(folder.skipped)
        self.notes = [*folder.notes]
        self.test_opened: str | None = None
        self._splits = dict(splits)
        self._cache: dict[int, Fitted] = {}
        self._room = _CACHE // (4 * math.prod(self.image_size))
        self.mean, self.std = self._statistics()

    @property
    def counts(self) -> dict[str, int]:
        """Images per split."""
        return {split: len(self._splits[split]) for split in SPLITS}

    def split_record(self) -> dict[str, Any]:
        """The names of each split's images, and the fingerprint of all."""
        names = {split: [self.folder.items[i].name for i in self._splits[split]] for split in SPLITS}
        return {**names, "fingerprint": self.fingerprint}

    def unseal_test(self, reason: str) -> None:
        """Open the test split; the first reason is recorded."""
        self.test_opened = self.test_opened or require_reason(reason)

    def items(self, split: str) -> list[MaskedImage]:
        """The images of a split, in order."""
        return [self.folder.items[i] for i in self._ids(split)]

    def truth(self, split: str, place: int) -> Classes:
        """The mask of an image of a split, at its own size, as class numbers and IGNORE."""
        return self.folder.truth(self.items(split)[place])

    def inputs(self, split: str, places: Sequence[int], size: Size) -> tuple[Tensor, list[Box]]:
        """Images of a split as the network takes them, fitted into a size, and where they lie in it."""
        ids = self._ids(split)[list(places)].tolist()
        if size == self.image_size:
            images = [(f.pixels, f.box) for f in thread_map(self._fitted, ids)]
        else:
            images = thread_map(lambda i: self._pixels(self.folder.items[i], size), ids)
        boxes = [box for _, box in images]
        return network_input(torch.stack([pixels for pixels, _ in images]), boxes, self.mean, self.std), boxes

    def train_batches(self, batch: int, seed: int) -> SegmentBatches:
        """Shuffled and augmented; y holds the images' places in the split, target their masks."""
        return SegmentBatches(self, self._splits["train"], batch, seed)

    def eval_batches(self, split: str, batch: int) -> Iterator[TaskBatch]:
        """A split in its order, as it is; y holds the images' places in the split, target their masks."""
        ids = self._ids(split)
        if batch < 1:
            raise TailorError(f"The batch size must be at least 1, not {batch}.")
        return self._evaluation(split, ids, batch)

    def _evaluation(self, split: str, ids: Ints, batch: int) -> Iterator[TaskBatch]:
        for at in range(0, len(ids), batch):
            places = range(at, min(at + batch, len(ids)))
            x, _ = self.inputs(split, places, self.image_size)
            masks = torch.stack([self._fitted(int(ids[i])).mask for i in places])
            yield TaskBatch(x, torch.tensor(places), masks)

    def _ids(self, split: str) -> Ints:
        require_open(split, self.test_opened)
        return self._splits[split]

    def _pixels(self, item: MaskedImage, size: Size) -> tuple[Tensor, Box]:
        try:
            image = open_image(item.image)
        except Exception as error:  # decoders raise errors of every type on broken files
            raise TailorError(f"The image '{item.image}' cannot be read any more: {reason(error)}.") from None
        if (image.height, image.width) != item.size:
            raise TailorError(f"The image '{item.image}' changed since the data were read.")
        pixels, box = fitted_pixels(image, size)
        return torch.from_numpy(pixels), box

    def _fitted(self, index: int) -> Fitted:
        """An image and its mask at the network's size; kept while there is room."""
        found = self._cache.get(index)
        if found is None:
            item = self.folder.items[index]
            pixels, box = self._pixels(item, self.image_size)
            mask = fitted_mask(self.folder.truth(item), self.image_size)
            found = Fitted(pixels, torch.from_numpy(mask), box)
            if len(self._cache) < self._room:
                self._cache[index] = found
        return found

    def _statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and deviation per channel over evenly spaced training images."""
        ids = self._splits["train"]
        spaced = ids[np.unique(np.linspace(0, len(ids) - 1, min(len(ids), _STATISTICS)).astype(np.int64))]
        sums, count = torch.zeros(2, 3, dtype=torch.float64), 0
        for index in spaced.tolist():
            image = self._fitted(index)
            values = image.box.cut(image.pixels).double().flatten(1) / 255
            sums += torch.stack([values.sum(1), (values**2).sum(1)])
            count += values.shape[1]
        mean = sums[0] / count
        std = (sums[1] / count - mean**2).clamp_min(0).sqrt().clamp_min(1e-3)
        return tuple(mean.tolist()), tuple(std.tolist())


class SegmentBatches:
    """Training batches: which images and which changes a step has follow from seed and step."""

    def __init__(self, data: SegmentData, ids: Ints, batch: int, seed: int) -> None:
        if batch < 1:
            raise TailorError(f"The batch size must be at least 1, not {batch}.")
        self.data, self.ids, self.seed = data, ids, seed
        self.batch = min(batch, len(ids))
        self.steps_per_epoch = len(ids) // self.batch

    def at(self, step: int) -> TaskBatch:
        """The batch of one step."""
        epoch, k = divmod(step, self.steps_per_epoch)
        order = generator(self.seed, "epoch", epoch).permutation(len(self.ids))
        places = order[k * self.batch : (k + 1) * self.batch]
        data, size = self.data, self.data.image_size

        def one(place: int) -> tuple[Tensor, Tensor, Tensor]:
            image = data._fitted(int(self.ids[places[place]]))
            return changed(image, draw_change(image.box, size, data.settings, self.seed, step, place), size)

        pixels, masks, shown = (torch.stack(t) for t in zip(*thread_map(one, range(len(places)))))
        x = normalise(pixels, data.mean, data.std) * shown[:, None]
        return TaskBatch(x, torch.from_numpy(places), masks)

    def iterate(self, start: int, stop: int) -> Iterator[TaskBatch]:
        """The batches of steps start to stop - 1, made ahead in a thread."""
        return made_ahead(self.at, start, stop)


# -- reading ----------------------------------------------------------------------------------------------------------


def read_segment_data(
    source: str, settings: SegmentSettings, seed: int, splits: Mapping[str, Any] | None = None
) -> SegmentData:
    """The images and masks of a folder, split as a record says, as its split folders say, or by the seed."""
    folder = read_mask_folder(source, settings.ignore)
    ids = _split(folder, seed) if splits is None else _recorded(folder, splits)
    data = SegmentData(source, folder, ids, settings)
    data.notes += _missing(folder, ids["train"])
    return data


def _split(folder: MaskFolder, seed: int) -> dict[str, Ints]:
    """Images by split. A missing search or test split is drawn; "val" alone is the test split, as in the data room."""
    train, val, test, whole = (_of_part(folder, part) for part in ("train", "val", "test", "all"))
    if len(train) or len(val) or len(test):
        if len(whole):
            name = folder.items[whole[0]].name
            raise TailorError(f"'{name}' lies outside the split folders, while other images lie in them.")
        if not len(train):
            raise TailorError("The data has split folders but no image with a mask in a 'train' folder.")
        if len(val) and len(test):
            return {"train": train, "search": val, "test": test}
        held, hold_test = val if len(val) else test, not (len(val) or len(test))
    else:
        train, held, hold_test = whole, whole[:0], True
    if len(train) < (3 if hold_test else 2):
        raise TailorError(f"{len(train)} image(s) with masks are too few to split: at least 3 are needed.")
    order = train[generator(seed, "split", "masks").permutation(len(train))]
    share = _SHARE if hold_test else default_search_share(len(train), 0.0)
    count = max(1, round(share * len(train)))
    search, order = order[:count], order[count:]
    if hold_test:
        held, order = order[:count], order[count:]
    return {"train": np.sort(order), "search": np.sort(search), "test": np.sort(held)}


def _of_part(folder: MaskFolder, part: str) -> Ints:
    return np.asarray([i for i, item in enumerate(folder.items) if item.part == part], np.int64)


def _recorded(folder: MaskFolder, record: Mapping[str, Any]) -> dict[str, Ints]:
    """The splits of a record; refused where the data are others now."""
    if set(record) != {*SPLITS, "fingerprint"}:
        raise TailorError(f"A split record holds {', '.join(SPLITS)} and fingerprint, not {', '.join(record)}.")
    number = {item.name: i for i, item in enumerate(folder.items)}
    before = {str(name) for split in SPLITS for name in record[split]}
    changes = [f"'{n}' is gone" for n in before if n not in number] + [
        f"'{n}' is new" for n in number if n not in before
    ]
    if changes or record["fingerprint"] != folder.fingerprint:
        what = min(changes) if changes else "an image or a mask became another"
        raise TailorError(f"The data changed since their splits were made: {what}.")
    return {split: np.asarray([number[name] for name in record[split]], np.int64) for split in SPLITS}


def _missing(folder: MaskFolder, train: Ints) -> list[str]:
    """A sentence where the training images lack a class."""
    seen = {number for index in train.tolist() for number in folder.items[index].numbers}
    names = [name for name, number in zip(folder.classes, folder.numbers) if number not in seen]
    shown = ", ".join(f"'{n}'" for n in names[:5]) + (f" and {len(names) - 5} more" if names[5:] else "")
    return [f"No training mask holds {shown}, so no network can learn it."] if names else []


def data_of_facts(facts: Mapping[str, Any], image: Path) -> tuple[Tensor, Box, Size]:
    """One file as the network takes it, where it lies in the input, and its own size, by the facts of the data."""
    if not image.is_file():
        raise TailorError(f"There is no image file '{image}'.")
    try:
        opened = open_image(image)
    except Exception as error:  # decoders raise errors of every type on broken files
        raise TailorError(f"Cannot read '{image}' as an image: {reason(error)}.") from None
    pixels, box = fitted_pixels(opened, checked_size(facts["image_size"]))
    x = network_input(torch.from_numpy(pixels)[None], [box], facts["mean"], facts["std"])
    return x, box, (opened.height, opened.width)
