"""What a task is made of: its data, its network and its figures. ``tasks/work.py`` trains any of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn


class TaskBatch(NamedTuple):
    """Images and their answers; the first axis of every tensor counts the images, so a batch can be taken in parts.

    What ``y`` and ``target`` hold is the task's own business: masks, padded boxes with their labels, words.
    """

    x: Tensor  # (B, channels, rows, columns), normalised
    y: Tensor
    target: Tensor


class TaskBatches(Protocol):
    """Training batches as a pure function of the step, so that a resumed training sees the same ones."""

    steps_per_epoch: int

    def iterate(self, start: int, stop: int) -> Iterator[TaskBatch]:
        """Batches of steps start..stop-1."""


class TaskData(Protocol):
    """Pictures with their annotations, checked when they are read, in three splits."""

    source: str
    fingerprint: str  # of names and bytes: other data are refused when a run is resumed
    classes: tuple[str, ...]
    image_size: tuple[int, int]
    channels: int
    mean: tuple[float, ...]  # batches are normalised by what these are when they are made:
    std: tuple[float, ...]  # a pretrained backbone brings its own
    counts: Mapping[str, int]  # images of "train", "search" and "test"
    notes: Sequence[str]  # sentences for the log: what is odd about the data
    skipped: Mapping[str, str]  # path -> why it was left out

    def train_batches(self, batch: int, seed: int) -> TaskBatches:
        """Shuffled and augmented."""

    def eval_batches(self, split: str, batch: int) -> Iterable[TaskBatch]:
        """A split in its order, as it is. "test" raises until it is unsealed."""

    def unseal_test(self, reason: str) -> None:
        """Open the test split, once the network is trained."""

    def split_record(self) -> dict[str, Any]:
        """The names of each split's images, for the run folder; reading the data with it gives the same splits."""


class Backbone(nn.Module):
    """A network that turns images of any size into maps, the finest first (``tasks/backbone.py`` makes them)."""

    channels: tuple[int, ...]  # of each map
    strides: tuple[int, ...]  # pixels of the image that one cell of the map stands for; grows by factors of two
    image_size: tuple[int, int]  # rows and columns; smaller images are padded, larger ones need :meth:`at`

    @property
    def settings(self) -> dict[str, Any]:
        """All of it but its weights, as plain data; ``tasks.backbone.backbone_of`` reads it."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> list[Tensor]:
        """Maps (B, channels, ceil(rows / stride), ceil(columns / stride))."""
        raise NotImplementedError

    def at(self, size: tuple[int, int]) -> Backbone:
        """The same weights for images of another size: positions and tables are interpolated."""
        raise NotImplementedError


class TaskNetwork(nn.Module):
    """A backbone with the task's head. ``loss`` trains it; calling it gives what the task predicts.

    Its weights besides ``backbone`` are the head's; a training may give the two other learning rates.
    """

    backbone: Backbone

    @property
    def settings(self) -> dict[str, Any]:
        """All of the network but its weights, as plain data."""
        raise NotImplementedError

    def loss(self, x: Tensor, y: Tensor, target: Tensor) -> Tensor:
        """The mean loss of a batch."""
        raise NotImplementedError


@dataclass(frozen=True)
class Picture:
    """A picture of the report: the bytes of a PNG or JPEG, and what it shows."""

    name: str
    data: bytes
    caption: str


@dataclass(frozen=True)
class OnnxForm:
    """A module to export: its example inputs by name, the names of its outputs, and which of their axes may vary."""

    module: nn.Module
    inputs: Mapping[str, Tensor]
    outputs: tuple[str, ...]
    dynamic: Mapping[str, Mapping[int, str]]  # name of an input or output -> axis -> its name
    note: str = ""  # what of the network it leaves out, if anything


class Task(Protocol):
    """One task. A module of this folder holds one, as ``TASK``."""

    name: str  # of the command: detect, segment, answer
    summary: str
    settings: type  # dataclass of the task's own keys, all with defaults
    train: Mapping[str, Any]  # defaults of [train] for this task: fields of TrainSettings
    presets: Mapping[str, Mapping[str, Any]]  # name -> {"summary": text, "train": {...}, "<task's name>": {...}}
    metric: str  # the key of ``evaluate`` that judges networks, in percent, higher is better
    needs: tuple[tuple[str, str], ...]  # (module, extra) of libraries that may be missing

    def read(self, source: str, settings: Any, seed: int, splits: Mapping[str, Any] | None = None) -> TaskData:
        """The data of a folder; mistakes in annotations name the file and are skipped, or refused in one sentence."""

    def build(self, backbone: Backbone, data: TaskData, settings: Any) -> TaskNetwork:
        """The network on a backbone (see tasks/backbone.py), its head drawn from torch's generator."""

    def evaluate(self, network: TaskNetwork, data: TaskData, split: str, device: str) -> dict[str, float]:
        """The task's figures on a split."""

    def pictures(self, network: TaskNetwork, data: TaskData, split: str, device: str) -> list[Picture]:
        """Some images with what was predicted and what is true, for the report."""

    def for_onnx(self, network: TaskNetwork, data: TaskData) -> OnnxForm:
        """The network as a plain function of tensors, to be exported and compared with what it was."""

    def predict(self, network: TaskNetwork, data_facts: Mapping[str, Any], image: Path) -> dict[str, Any]:
        """What the network says of one image file, as plain data; boxes and masks in the file's own pixels."""
