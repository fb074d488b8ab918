"""A made-up task: the mean colour of a picture. Its folder holds PNG files; a file that is no picture is skipped."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from tailorvit.errors import TailorError
from tailorvit.export import Card, save_network
from tailorvit.families import family
from tailorvit.rng import generator
from tailorvit.tasks.base import OnnxForm, Picture, TaskBatch, TaskNetwork

SPLITS = ("train", "search", "test")


def write_pictures(folder: Path, count: int = 12, side: int = 12) -> Path:
    """Flat pictures with a little noise."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    for i in range(count):
        colour = rng.integers(20, 230, 3)
        pixels = np.clip(colour + rng.integers(-20, 20, (side, side, 3)), 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{i:02}.png")
    (folder / "broken.png").write_bytes(b"nothing")
    return folder


def save_tiny(folder: Path, name: str = "windowed") -> Path:
    """The family's tiny network with random weights, for grey images of 8 px."""
    record = family(name)
    fixed = dict(record.shrink(next(iter(record.spaces.values()))).settings)
    arch = record.arch({"family": name, **record.tiny})
    torch.manual_seed(0)
    model = record.build(record.settings(fixed), arch)
    how = {"image_size": [8, 8], "channels": 1, "mean": [0.4], "std": [0.2], "margin": 1.0}
    save_network(folder, model, Card(arch, fixed, tuple(map(str, range(model.num_classes))), how, {}))
    return folder


@dataclass(frozen=True)
class ToySettings:
    __pydantic_config__ = {"extra": "forbid"}

    image_size: int = 8
    grey: bool = False


class ToyBatches:
    def __init__(self, x: Tensor, batch: int, seed: int) -> None:
        self.x, self.batch, self.seed = x, batch, seed
        self.steps_per_epoch = max(len(x) // batch, 1)

    def iterate(self, start: int, stop: int) -> Iterator[TaskBatch]:
        for step in range(start, stop):
            order = generator(self.seed, "order", step).permutation(len(self.x))[: self.batch]
            x = self.x[torch.from_numpy(order)]
            yield TaskBatch(x, torch.zeros(len(x)), x.mean((2, 3)))


@dataclass
class ToyData:
    source: str
    image_size: tuple[int, int]
    splits: Mapping[str, Any]
    names: list[str]
    pixels: Tensor
    fingerprint: str
    skipped: dict[str, str]
    classes: tuple[str, ...] = ("red", "green", "blue")
    channels: int = 3
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.25, 0.25, 0.25)
    notes: list[str] = field(default_factory=lambda: ["The pictures are flat."])
    sealed: bool = True

    @property
    def counts(self) -> dict[str, int]:
        return {split: len(self.splits[split]) for split in SPLITS}

    def of(self, split: str) -> Tensor:
        if split == "test" and self.sealed:
            raise TailorError("The test split is sealed.")
        chosen = self.pixels[[self.names.index(name) for name in self.splits[split]]]
        mean, std = (torch.tensor(v).view(1, -1, 1, 1) for v in (self.mean, self.std))
        return (chosen - mean) / std

    def train_batches(self, batch: int, seed: int) -> ToyBatches:
        return ToyBatches(self.of("train"), batch, seed)

    def eval_batches(self, split: str, batch: int) -> Iterator[TaskBatch]:
        for x in self.of(split).split(batch):
            yield TaskBatch(x, torch.zeros(len(x)), x.mean((2, 3)))

    def unseal_test(self, reason: str) -> None:
        self.sealed = False

    def split_record(self) -> dict[str, Any]:
        return dict(self.splits)


class ToyNetwork(TaskNetwork):
    def __init__(self, backbone: nn.Module, outputs: int) -> None:
        super().__init__()
        self.head = nn.Linear(sum(backbone.channels), outputs)  # before the backbone, as some tasks may have it
        self.backbone = backbone

    @property
    def settings(self) -> dict[str, Any]:
        return {"outputs": self.head.out_features}

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.cat([m.mean((2, 3)) for m in self.backbone(x)], 1))

    def loss(self, x: Tensor, y: Tensor, target: Tensor) -> Tensor:
        return (self(x) - target).square().mean()


class Toy:
    name = "mean-colour"
    summary = "the mean colour of a picture"
    settings = ToySettings
    metric = "close"
    needs = ()
    train: Mapping[str, Any] = {"epochs": 3, "batch": 4, "lr": 1e-3, "warmup": 0.5, "drop_path": 0.1}
    presets: Mapping[str, Any] = {"slow": {"train": {"lr": 1e-4}, "backbone_lr": 0.1}}
    beside: Mapping[str, Any] = {"all grey": {"grey": True}}

    def read(self, source: str, settings: Any, seed: int, splits: Mapping[str, Any] | None = None) -> ToyData:
        if not Path(source).is_dir():
            raise TailorError(f"There is no folder '{source}'.")
        names, pixels, skipped, digest = [], [], {}, hashlib.sha256()
        for path in sorted(Path(source).glob("*.png")):
            digest.update(path.name.encode() + path.read_bytes())
            try:
                image = Image.open(path).convert("RGB").resize((settings.image_size, settings.image_size))
            except OSError:
                skipped[path.name] = "it is no picture"
                continue
            names.append(path.name)
            pixels.append(torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1).float() / 255)
        if not names:
            raise TailorError(f"'{source}' holds no pictures.")
        if splits is None:
            order = [names[i] for i in generator(seed, "splits").permutation(len(names))]
            splits = {"train": order[4:], "search": order[:2], "test": order[2:4]}
        size = (settings.image_size, settings.image_size)
        return ToyData(source, size, splits, names, torch.stack(pixels), digest.hexdigest(), skipped)

    def build(self, backbone: Any, data: Any, settings: ToySettings) -> ToyNetwork:
        return ToyNetwork(backbone, 1 if settings.grey else len(data.classes))

    def evaluate(self, network: Any, data: Any, split: str, device: str) -> dict[str, float]:
        was = network.training
        network.eval()
        with torch.inference_mode():
            off = [(network(b.x.to(device)) - b.target.to(device)).abs().mean() for b in data.eval_batches(split, 8)]
        network.train(was)
        error = float(torch.stack(off).mean())
        return {"close": 100 / (1 + error), "error": error}

    def pictures(self, network: Any, data: Any, split: str, device: str) -> list[Picture]:
        out = io.BytesIO()
        Image.new("RGB", (4, 4), (200, 10, 10)).save(out, "PNG")
        return [Picture("<b>first</b>", out.getvalue(), "one of <script>alert(1)</script>")]

    def for_onnx(self, network: Any, data: Any) -> OnnxForm:
        x = torch.zeros(2, data.channels, *data.image_size)
        return OnnxForm(network, {"images": x}, ("colours",), {"images": {0: "batch"}, "colours": {0: "batch"}})

    def predict(self, network: Any, data_facts: Mapping[str, Any], image: Path) -> dict[str, Any]:
        rows, columns = data_facts["image_size"]
        try:
            pixels = Image.open(image).convert("RGB").resize((columns, rows))
        except OSError:
            raise TailorError(f"'{image}' is no picture.") from None
        x = torch.from_numpy(np.asarray(pixels).copy()).permute(2, 0, 1)[None].float() / 255
        mean, std = (torch.tensor(data_facts[k]).view(1, -1, 1, 1) for k in ("mean", "std"))
        found = network((x - mean) / std)[0] * std.flatten() + mean.flatten()
        return dict(zip(data_facts["classes"], found.tolist(), strict=True))


TASK = Toy()
