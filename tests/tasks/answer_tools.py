"""Tiny images with questions, and a backbone of two convolutions, for the tests of answering."""

from __future__ import annotations

import json

import numpy as np
from PIL import Image
from torch import nn

from tailorvit.rng import generator
from tailorvit.tasks.base import Backbone

COLOURS = {"red": (220, 30, 30), "green": (30, 200, 30), "blue": (30, 30, 220)}
SMALL = {"image_size": 16, "width": 32, "depth": 1, "dropout": 0.0}


class Strided(Backbone):
    """Maps of strides 4 and 8."""

    channels, strides = (8, 16), (4, 8)

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 5, 4, 2), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU())

    def forward(self, x):
        fine = self.first(x)
        return [fine, self.second(fine)]


def picture(path, colour, seed=0, size=(16, 16)):
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = generator(seed, "picture").integers(-20, 20, (*size, 3))
    Image.fromarray(np.clip(np.asarray(COLOURS[colour]) + noise, 0, 255).astype(np.uint8)).save(path)


def rows_of(images=12):
    """For each image its colour, and whether it is red: (image, question, answer)."""
    rows = []
    for i in range(images):
        colour = list(COLOURS)[i % 3]
        rows += [
            {"image": f"{i}.png", "question": "What colour is it?", "answer": colour},
            {"image": f"{i}.png", "question": "Is it red?", "answer": "yes" if colour == "red" else "no"},
        ]
    return rows


def folder(root, images=12, rows=None):
    """The general layout."""
    for i in range(images):
        picture(root / "images" / f"{i}.png", list(COLOURS)[i % 3], i)
    (root / "questions.json").write_text(json.dumps(rows_of(images) if rows is None else rows))
    return root
