"""Pictures with boxes as batches: fitted onto one canvas, and for training scaled, cut, mirrored and coloured.

An image keeps its proportions and lies at the top left of the canvas; the rest of the canvas is the mean colour.
Where a pixel of the file lands is a :class:`Placement`, which boxes and masks follow exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tailorvit.data.images import normalise, thread_map
from tailorvit.data.splits import SPLITS, require_open, require_reason
from tailorvit.errors import TailorError
from tailorvit.memory import device_memory
from tailorvit.portable import Pixels, Size, flat, reason
from tailorvit.rng import generator
from tailorvit.tasks.annotations import Annotations, Box, Photo, Thing, upright_size
from tailorvit.tasks.base import TaskBatch

if TYPE_CHECKING:
    from PIL import Image

FRAME = 56  # masks of a batch are this many pixels a side, inside their boxes: twice what the network predicts
CACHE = 2 << 30  # bytes of fitted images that are kept in memory
SHARES = (0.15, 0.15)  # of the images for test and search, where the data has no splits of its own
SAMPLE = 256  # training images that mean and deviation come from
VISIBLE = 0.1  # share of a box that must be left after a random cut
COLOUR = 0.2  # brightness, contrast and saturation change by up to this share


@dataclass(frozen=True)
class Placement:
    """Where the pixels of a file lie on the canvas: x * across + left, of the mirrored file where it is mirrored."""

    size: Size  # of the file, upright
    across: float
    down: float
    left: float = 0.0
    top: float = 0.0
    mirrored: bool = False

    def to_canvas(self, box: Box) -> Box:
        """A box of the file, on the canvas; it may reach over the canvas."""
        x0, y0, x1, y1 = box
        if self.mirrored:
            x0, x1 = self.size[1] - x1, self.size[1] - x0
        return (
            x0 * self.across + self.left,
            y0 * self.down + self.top,
            x1 * self.across + self.left,
            y1 * self.down + self.top,
        )

    def to_file(self, boxes: Tensor) -> Tensor:
        """Boxes (n, 4) of the canvas in the file's pixels, cut to the file."""
        shift = boxes.new_tensor([self.left, self.top] * 2)
        out = (boxes - shift) / boxes.new_tensor([self.across, self.down] * 2)
        if self.mirrored:
            out = torch.stack([self.size[1] - out[:, 2], out[:, 1], self.size[1] - out[:, 0], out[:, 3]], 1)
        rows, columns = self.size
        return torch.minimum(out.clamp(min=0), out.new_tensor([columns, rows, columns, rows]))


def fitted_size(size: Size, canvas: Size) -> Size:
    """Rows and columns of an image of this size on the canvas, at its own proportions."""
    share = min(canvas[0] / size[0], canvas[1] / size[1])
    return max(1, round(size[0] * share)), max(1, round(size[1] * share))


def placement(size: Size, canvas: Size) -> Placement:
    """Where evaluation puts an image of this size."""
    rows, columns = fitted_size(size, canvas)
    return Placement(size, columns / size[1], rows / size[0])


def fitted(image: Image.Image, channels: int, canvas: Size) -> Pixels:
    """An opened image as uint8 (C, rows, columns), upright, as large as the canvas allows."""
    from PIL import Image, ImageOps

    rows, columns = fitted_size(upright_size(image), canvas)
    image.draft(None, (2 * max(canvas), 2 * max(canvas)))  # decoding at a smaller scale is quick, and large enough
    image = flat(ImageOps.exif_transpose(image), channels)
    array = np.array(image.resize((columns, rows), Image.Resampling.BICUBIC), dtype=np.uint8)
    return array[None] if array.ndim == 2 else np.ascontiguousarray(array.transpose(2, 0, 1))


def on_canvas(pixels: Pixels, canvas: Size, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Fitted pixels as the network takes them, (C, rows, columns) of the canvas; zeros are the mean colour."""
    x = torch.zeros(len(mean), *canvas)
    x[:, : pixels.shape[1], : pixels.shape[2]] = normalise(torch.from_numpy(pixels)[None], mean, std)[0]
    return x


# -- masks ------------------------------------------------------------------------------------------------------------


def run_lengths(mask: Any, size: Size) -> Any:
    """A mask of the annotations as the library's compressed run lengths."""
    from pycocotools import mask as library

    if isinstance(mask, dict):
        return mask if isinstance(mask["counts"], str | bytes) else library.frPyObjects(mask, *size)
    return library.merge(library.frPyObjects(mask, *size))


def mask_pixels(mask: Any, size: Size) -> NDArray[np.uint8]:
    """A mask as 0 and 1 for every pixel of the file."""
    from pycocotools import mask as library

    out: NDArray[np.uint8] = library.decode(run_lengths(mask, size))
    return out


def framed(mask: Any, place: Placement, box: Box) -> NDArray[np.uint8]:
    """The part of a mask in a box of the canvas, as FRAME x FRAME pixels of 0 and 1."""
    from PIL import Image

    x0, y0, x1, y1 = (
        (box[0] - place.left) / place.across,
        (box[1] - place.top) / place.down,
        (box[2] - place.left) / place.across,
        (box[3] - place.top) / place.down,
    )
    if place.mirrored:
        x0, x1 = place.size[1] - x1, place.size[1] - x0
    if isinstance(mask, dict):
        whole = Image.fromarray(mask_pixels(mask, place.size) * 255)
        cut = whole.resize((FRAME, FRAME), Image.Resampling.BILINEAR, box=_inside((x0, y0, x1, y1), place.size))
        out: NDArray[np.uint8] = (np.asarray(cut) >= 128).astype(np.uint8)
    else:
        scale = FRAME / np.array([x1 - x0, y1 - y0])
        moved = [((np.reshape(p, (-1, 2)) - (x0, y0)) * scale).ravel().tolist() for p in mask]
        out = mask_pixels(moved, (FRAME, FRAME))
    return np.ascontiguousarray(out[:, ::-1]) if place.mirrored else out


def _inside(box: Box, size: Size) -> Box:
    rows, columns = size
    return max(box[0], 0.0), max(box[1], 0.0), min(box[2], float(columns)), min(box[3], float(rows))


# -- one training image -----------------------------------------------------------------------------------------------


def _coloured(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    from PIL import ImageEnhance

    brightness, contrast, saturation = rng.uniform(1 - COLOUR, 1 + COLOUR, 3).tolist()
    image = ImageEnhance.Brightness(image).enhance(brightness)
    image = ImageEnhance.Contrast(image).enhance(contrast)
    return image if image.mode == "L" else ImageEnhance.Color(image).enhance(saturation)


def augmented(
    pixels: Pixels, size: Size, canvas: Size, scale: tuple[float, float], rng: np.random.Generator
) -> tuple[Pixels, Placement]:
    """A fitted image scaled, mirrored, coloured and put somewhere on a canvas; what the image leaves free is not drawn.

    Returned are the pixels from the canvas's top left corner on and where the file's pixels lie. Smaller images lie at
    the top left, as in evaluation; of larger ones a window is taken.
    """
    from PIL import Image

    from tailorvit.portable import to_image

    share = float(np.exp(rng.uniform(*np.log(scale))))
    mirrored = bool(rng.random() < 0.5)
    at_rows, at_columns = rng.random(2).tolist()
    have = pixels.shape[1:]
    rows, columns = max(1, round(have[0] * share)), max(1, round(have[1] * share))
    image = _coloured(to_image(pixels), rng)
    if mirrored:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    top, left = round(at_rows * max(0, rows - canvas[0])), round(at_columns * max(0, columns - canvas[1]))
    want = min(rows, canvas[0]), min(columns, canvas[1])
    box = (
        left * have[1] / columns,
        top * have[0] / rows,
        min((left + want[1]) * have[1] / columns, float(have[1])),
        min((top + want[0]) * have[0] / rows, float(have[0])),
    )
    image = image.resize((want[1], want[0]), Image.Resampling.BICUBIC, box=box)
    array = np.array(image, dtype=np.uint8)
    out = array[None] if array.ndim == 2 else np.ascontiguousarray(array.transpose(2, 0, 1))
    return out, Placement(size, columns / size[1], rows / size[0], -float(left), -float(top), mirrored)


def visible_things(things: Sequence[Thing], place: Placement, window: Size) -> list[tuple[Thing, Box]]:
    """Objects to train on with their boxes on the canvas, cut to the image's window; slivers are left out."""
    found = []
    for thing in things:
        if not thing.trained:
            continue
        whole = place.to_canvas(thing.box)
        box = _inside(whole, window)
        width, height = box[2] - box[0], box[3] - box[1]
        area = (whole[2] - whole[0]) * (whole[3] - whole[1])
        if width >= 1 and height >= 1 and width * height >= VISIBLE * area:
            found.append((thing, box))
    return found


# -- batches ----------------------------------------------------------------------------------------------------------


def joined(rows: Sequence[tuple[Tensor, list[tuple[Thing, Box]], Placement]], masks: bool) -> TaskBatch:
    """Images of one canvas as a batch.

    ``y`` (B, most objects, 5) is the class number from 1 on and the box; rows of zeros fill up. ``target`` holds the
    masks inside their boxes, (B, most objects, FRAME, FRAME); without masks its last two sides are 0.
    """
    most = max(1, *(len(things) for _, things, _ in rows))
    y = torch.zeros(len(rows), most, 5)
    frame = (FRAME, FRAME) if masks else (0, 0)
    target = torch.zeros(len(rows), most, *frame, dtype=torch.uint8)
    for i, (_, things, place) in enumerate(rows):
        for k, (thing, box) in enumerate(things):
            y[i, k] = torch.tensor([thing.label + 1, *box])
            if masks:
                target[i, k] = torch.from_numpy(framed(thing.mask, place, box))
    return TaskBatch(torch.stack([x for x, _, _ in rows]), y, target)


class DetectionData:
    """Pictures with boxes and perhaps masks, in three splits."""

    def __init__(
        self,
        source: str,
        found: Annotations,
        canvas: Size,
        scale: tuple[float, float],
        masks: bool,
        seed: int,
        splits: Mapping[str, Any] | None = None,
    ) -> None:
        self.source, self.classes, self.image_size = source, found.classes, canvas
        self.scale, self.masks = scale, masks
        self.notes: list[str] = list(found.notes)
        self.skipped: dict[str, str] = dict(found.skipped)
        self.fingerprint = found.fingerprint
        self.channels = 1 if all(p.grey for p in found.photos) else 3
        self._room = min(CACHE, (device_memory() or CACHE) // 8)
        self._kept: dict[str, Pixels] = {}
        photos = self._readable(found.photos)
        self._splits = split_photos(photos, source, seed) if splits is None else self._restored(photos, splits)
        self.opened: str | None = None
        self._check_classes()
        self.mean, self.std = self._statistics()

    @property
    def counts(self) -> dict[str, int]:
        """Images of each split."""
        return {split: len(self._splits[split]) for split in SPLITS}

    def photos(self, split: str) -> list[Photo]:
        """The pictures of a split in its order; those of the test split once it is unsealed."""
        require_open(split, self.opened)
        return self._splits[split]

    def unseal_test(self, reason: str) -> None:
        """Open the test split, once the network is trained; the first reason is recorded."""
        self.opened = self.opened or require_reason(reason)

    def split_record(self) -> dict[str, Any]:
        """The names of each split's images."""
        return {**{s: [p.name for p in self._splits[s]] for s in SPLITS}, "fingerprint": self.fingerprint}

    def train_batches(self, batch: int, seed: int) -> DetectionBatches:
        """Shuffled and augmented."""
        return DetectionBatches(self, batch, seed)

    def eval_batches(self, split: str, batch: int) -> Iterator[TaskBatch]:
        """A split in its order, as it is."""
        return self.batches_of(self.photos(split), batch)

    def batches_of(self, photos: Sequence[Photo], batch: int) -> Iterator[TaskBatch]:
        """Pictures as evaluation takes them."""
        for at in range(0, len(photos), batch):
            yield joined(thread_map(self._plain, photos[at : at + batch]), self.masks)

    def augmented(self, photo: Photo, rng: np.random.Generator) -> tuple[Tensor, list[tuple[Thing, Box]], Placement]:
        """One training image with its objects, as the generator draws it."""
        pixels, place = augmented(self.pixels(photo), photo.size, self.image_size, self.scale, rng)
        things = visible_things(photo.things, place, (pixels.shape[1], pixels.shape[2]))
        return on_canvas(pixels, self.image_size, self.mean, self.std), things, place

    def pixels(self, photo: Photo) -> Pixels:
        """A picture as large as the canvas allows, from memory or decoded now."""
        found = self._kept.get(photo.name)
        if found is None:
            decoded = self._decoded(photo)
            if isinstance(decoded, str):
                raise TailorError(f"The image '{photo.path}' cannot be read any more: {decoded}.")
            found = decoded
        return found

    def _plain(self, photo: Photo) -> tuple[Tensor, list[tuple[Thing, Box]], Placement]:
        pixels, place = self.pixels(photo), placement(photo.size, self.image_size)
        things = visible_things(photo.things, place, (pixels.shape[1], pixels.shape[2]))
        return on_canvas(pixels, self.image_size, self.mean, self.std), things, place

    def _decoded(self, photo: Photo) -> Pixels | str:
        """Pixels, or why there are none."""
        from PIL import Image

        try:
            with Image.open(photo.path) as image:
                return fitted(image, self.channels, self.image_size)
        except Exception as error:  # decoders raise errors of every type on broken files
            return reason(error)

    def _readable(self, photos: Sequence[Photo]) -> list[Photo]:
        """Decode as many as memory is set aside for; broken files among them leave the data."""
        good: list[Photo] = []
        at = broken = 0
        while at < len(photos) and self._room > 0:
            for photo, pixels in zip(photos[at : at + 64], thread_map(self._decoded, photos[at : at + 64])):
                if isinstance(pixels, str):
                    self.skipped[photo.name] = f"the image cannot be read: {pixels}"
                    broken += 1
                    continue
                self._room -= pixels.nbytes
                self._kept[photo.name] = pixels
                good.append(photo)
            at += 64
        if broken:
            self.notes.append(f"Images that cannot be decoded are left out: {broken}.")
        return [*good, *photos[at:]]

    def _restored(self, photos: Sequence[Photo], saved: Mapping[str, Any]) -> dict[str, list[Photo]]:
        if saved.get("fingerprint") != self.fingerprint:
            raise TailorError(
                f"The data in '{self.source}' changed since its splits were made: fingerprint "
                f"{self.fingerprint[:12]}, recorded {str(saved.get('fingerprint'))[:12]}."
            )
        by_name = {p.name: p for p in photos}
        gone = next((n for n in chain.from_iterable(saved[s] for s in SPLITS) if n not in by_name), None)
        if gone is not None:
            raise TailorError(f"'{gone}' was among the images when the splits were made and cannot be read now.")
        return {s: [by_name[n] for n in saved[s]] for s in SPLITS}

    def _check_classes(self) -> None:
        has = {s: {t.label for p in self._splits[s] for t in p.things if t.trained} for s in SPLITS}
        if not has["train"]:
            raise TailorError(f"No training image of '{self.source}' has an object.")
        for split, so in (("train", "no network can learn it"), ("search", "the choice"), ("test", "the test figure")):
            lost = [f"'{name}'" for i, name in enumerate(self.classes) if i not in has[split]]
            if lost:
                names = ", ".join(lost[:5]) + (f" and {len(lost) - 5} more" if lost[5:] else "")
                so = so if split == "train" else f"{so} does not take it into account"
                self.notes.append(f"The {split} split has no object of {names}, so {so}.")

    def _statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        photos = self._splits["train"]
        some = [photos[i] for i in np.unique(np.linspace(0, len(photos) - 1, min(len(photos), SAMPLE)).astype(int))]
        sums = np.zeros((2, self.channels))
        pixels = 0
        for photo in some:
            values = self.pixels(photo).reshape(self.channels, -1).astype(np.float64) / 255
            sums += values.sum(1), (values**2).sum(1)
            pixels += values.shape[1]
        mean = sums[0] / pixels
        std = np.sqrt(np.maximum(sums[1] / pixels - mean**2, 1e-4))
        return tuple(round(float(m), 6) for m in mean), tuple(round(float(s), 6) for s in std)


def split_photos(photos: Sequence[Photo], source: str, seed: int) -> dict[str, list[Photo]]:
    """The data's own splits; what they lack is drawn, 15 % of the images for test and 15 % for search."""
    of: dict[str, list[Photo]] = {
        part: [p for p in photos if p.origin == part] for part in ("all", "train", "val", "test")
    }
    rest = of["all"] or of["train"]
    if not rest:
        raise TailorError(f"'{source}' has no images to train on that can be used.")
    found = {"test": of["test"] or of["val"], "search": of["val"] if of["test"] else []}
    order = generator(seed, "detect", "splits").permutation(len(rest)).tolist()
    for split, share in zip(("test", "search"), SHARES):
        if not found[split]:
            count = max(1, round(share * len(rest)))
            found[split] = [rest[i] for i in order[:count]]
            order = order[count:]
    if not order:
        raise TailorError(
            f"'{source}' has {len(photos)} images that can be used; train, search and test need one each."
        )
    found["train"] = [rest[i] for i in order]
    return {split: sorted(found[split], key=lambda p: p.name) for split in SPLITS}


@dataclass(frozen=True)
class DetectionBatches:
    """Training batches: every epoch in an order of its own; what is left over of an epoch is not used in it."""

    data: DetectionData
    batch: int
    seed: int

    @property
    def steps_per_epoch(self) -> int:
        """At least one, of all images where they are fewer than a batch."""
        return max(1, self.data.counts["train"] // self.batch)

    def at(self, step: int) -> TaskBatch:
        """The batch of a step."""
        photos = self.data.photos("train")
        epoch, place = divmod(step, self.steps_per_epoch)
        order = generator(self.seed, "detect", "order", epoch).permutation(len(photos)).tolist()
        chosen = order[place * self.batch : (place + 1) * self.batch]

        def made(k: int) -> tuple[Tensor, list[tuple[Thing, Box]], Placement]:
            return self.data.augmented(photos[chosen[k]], generator(self.seed, "detect", "augment", step, k))

        return joined(thread_map(made, range(len(chosen))), self.data.masks)

    def iterate(self, start: int, stop: int) -> Iterator[TaskBatch]:
        """Batches of steps start..stop-1."""
        for step in range(start, stop):
            yield self.at(step)
