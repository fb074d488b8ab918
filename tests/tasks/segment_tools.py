"""A small backbone for the tests of segmentation."""

from __future__ import annotations

from torch import Tensor, nn

from tailorvit.tasks.base import Backbone


class Toy(Backbone):
    """Two strided convolutions with norms; any size of image."""

    def __init__(self) -> None:
        super().__init__()
        self.channels, self.strides = (8, 12), (2, 4)
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(8, 12, 3, 2, 1), nn.BatchNorm2d(12), nn.ReLU())
        self.asked: list[tuple[int, int]] = []

    def forward(self, x: Tensor) -> list[Tensor]:
        x = self.first(x)
        return [x, self.second(x)]

    def at(self, size: tuple[int, int]) -> Toy:
        self.asked.append(size)
        return self
