"""Tiny pictures of coloured squares and discs with boxes and masks, in the layouts of VOC and COCO; a toy backbone."""

from __future__ import annotations

import json

import numpy as np
from PIL import Image
from torch import nn

from tailorvit.tasks.base import Backbone

CLASSES = ("disc", "square")
COLOURS = {"disc": (30, 60, 220), "square": (220, 40, 30)}


def scene(number: int, side: int = 48):
    """An image with two objects: its pixels and, for each object, (class, (left, top, right, bottom), mask)."""
    rng = np.random.default_rng(number)
    pixels = rng.integers(150, 190, (side, side, 3), dtype=np.uint8)
    rows, columns = np.mgrid[:side, :side]
    things = []
    for k, kind in enumerate(CLASSES):
        size = int(rng.integers(side // 4, side // 3))
        left, top = int(rng.integers(0, side // 2 - size)) + k * side // 2, int(rng.integers(0, side - size))
        mask = (rows >= top) & (rows < top + size) & (columns >= left) & (columns < left + size)
        if kind == "disc":
            centre = left + (size - 1) / 2, top + (size - 1) / 2
            mask &= (rows - centre[1]) ** 2 + (columns - centre[0]) ** 2 <= (size / 2) ** 2
        pixels[mask] = COLOURS[kind]
        things.append((kind, (left, top, left + size, top + size), mask))
    return pixels, things


def voc_text(name, size, things, extra=""):
    """An annotation of VOC; pixels count from 1 there and the last one is named."""
    objects = "".join(
        f"<object><name>{kind}</name><difficult>0</difficult><bndbox><xmin>{b[0] + 1}</xmin><ymin>{b[1] + 1}</ymin>"
        f"<xmax>{b[2]}</xmax><ymax>{b[3]}</ymax></bndbox></object>"
        for kind, b, *_ in things
    )
    width, height = size
    return (
        f"<annotation><filename>{name}</filename><size><width>{width}</width><height>{height}</height>"
        f"<depth>3</depth></size>{objects}{extra}</annotation>"
    )


def thing_outside(stem, side=48):
    """An annotation with one object, beyond the image's right edge."""
    return voc_text(f"{stem}.png", (side, side), [("disc", (side + 5, 1, side + 20, 20))])


def make_voc(root, images=8, side=48, lists=True):
    """A VOC folder; with lists of names for train, val and test."""
    for name in ("Annotations", "JPEGImages", "ImageSets/Main"):
        (root / name).mkdir(parents=True, exist_ok=True)
    for i in range(images):
        pixels, things = scene(i, side)
        Image.fromarray(pixels).save(root / "JPEGImages" / f"p{i}.png")
        (root / "Annotations" / f"p{i}.xml").write_text(voc_text(f"p{i}.png", (side, side), things))
    if lists:
        for part, ids in (("val", [0]), ("test", [1]), ("train", range(2, images))):
            (root / "ImageSets" / "Main" / f"{part}.txt").write_text("".join(f"p{i}\n" for i in ids))
    return root


def runs(mask):
    """Run lengths of a mask, column by column; the first counts zeros."""
    flat = mask.T.ravel().astype(int)
    edges = np.flatnonzero(np.diff(flat, prepend=0))
    return np.diff([0, *edges, flat.size]).tolist()


def coco_table(images, side=48, first=0, prefix=""):
    """COCO's table: squares have polygons, discs run lengths; ids begin at 10."""
    table = {"images": [], "annotations": [], "categories": [{"id": 10 + k, "name": n} for k, n in enumerate(CLASSES)]}
    for i in range(first, first + images):
        _, things = scene(i, side)
        table["images"].append({"id": i, "file_name": f"{prefix}p{i}.png", "width": side, "height": side})
        for kind, (x0, y0, x1, y1), mask in things:
            polygon = [[x0, y0, x1, y0, x1, y1, x0, y1]]
            table["annotations"].append(
                {
                    "id": len(table["annotations"]) + 1,
                    "image_id": i,
                    "category_id": 10 + CLASSES.index(kind),
                    "bbox": [x0, y0, x1 - x0, y1 - y0],
                    "segmentation": polygon if kind == "square" else {"size": [side, side], "counts": runs(mask)},
                    "area": int(mask.sum()),
                    "iscrowd": 0,
                }
            )
    return table


def make_coco(root, images=8, side=48):
    """A COCO folder: one file of annotations and images/."""
    (root / "images").mkdir(parents=True)
    for i in range(images):
        Image.fromarray(scene(i, side)[0]).save(root / "images" / f"p{i}.png")
    (root / "annotations.json").write_text(json.dumps(coco_table(images, side)))
    return root


class Toy(Backbone):
    """Three strided convolutions."""

    channels, strides = (8, 16, 32), (4, 8, 16)

    def __init__(self, channels=3):
        super().__init__()
        sides = ((channels, 8, 4), (8, 16, 2), (16, 32, 2))
        self.parts = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(i, o, k, k), nn.GroupNorm(1, o), nn.GELU(), nn.Conv2d(o, o, 3, padding=1), nn.GELU()
            )
            for i, o, k in sides
        )

    def forward(self, x):
        maps = []
        for part in self.parts:
            x = part(x)
            maps.append(x)
        return maps
