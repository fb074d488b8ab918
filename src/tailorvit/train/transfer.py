"""Fine-tuning a finished network: where it starts from, and the papers' settings as PRESETS."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tailorvit.errors import unknown


@dataclass(frozen=True)
class StartSettings:
    """The weights a run starts from."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by config.py

    network: str = ""  # method finetune: folder of a finished run, or one that holds network.json
    windows: Literal["scale", "keep"] = "scale"  # at another image size: windows grow with the image, or stay
    supernet: str = ""  # methods autoformer, bignas, hat: a released supernet's file, searched without training


@dataclass(frozen=True)
class Preset:
    """One way to fine-tune: training settings, and the image size where the paper names one."""

    name: str
    summary: str
    source: str
    train: Mapping[str, Any]
    image_size: int | None = None

    def recipe(self) -> dict[str, Any]:
        """The part of a recipe it stands for."""
        size = {} if self.image_size is None else {"data": {"image_size": self.image_size}}
        return {"train": dict(self.train), **size}


# The released code neither clips nor warms up here; what no paper states (augmentation of the transfers, SGD's momentum
# and schedule) is AutoFormer's supernet recipe or our choice, and docs/transfer.md says which.
_PAPERS: Mapping[str, Any] = {"warmup": 0.0, "clip": 0.0, "augment": "standard"}
_SGD = {**_PAPERS, "optimizer": "sgd", "lr": 1e-2, "min_lr": 0.0, "batch": 64, "weight_decay": 1e-8}
_ADAM = {**_PAPERS, "lr": 5e-4, "min_lr": 1e-6, "batch": 64, "weight_decay": 1e-8}
_AUTOFORMER = "AutoFormer (ICCV 2021)"

PRESETS: Mapping[str, Preset] = {
    p.name: p
    for p in (
        Preset(
            "default",
            "AdamW 1e-4, 30 epochs: for your own photos",
            "ours",
            {"epochs": 30, "batch": 64, "lr": 1e-4, "min_lr": 1e-6, "warmup": 1.0, "drop_path": 0.1},
        ),
        Preset(
            "autoformer-384",
            "from 224 to 384 px: AdamW 1e-6, 30 epochs",
            _AUTOFORMER,
            {**_PAPERS, "epochs": 30, "batch": 64, "lr": 1e-6, "min_lr": 1e-7, "weight_decay": 0.05, "drop_path": 0.1},
            384,
        ),
        Preset(
            "s3-384",
            "from 224 to 384 px with windows that grow: AdamW at a constant 1e-5, 10 epochs",
            "S3 (NeurIPS 2021)",
            {**_PAPERS, "epochs": 10, "lr": 1e-5, "schedule": "constant", "weight_decay": 1e-8, "drop_path": 0.2},
            384,
        ),
        Preset(
            "cifar",
            "CIFAR-10 and CIFAR-100 at 224 px: SGD 1e-2, 1000 epochs",
            _AUTOFORMER,
            _SGD | {"epochs": 1000},
            224,
        ),
        Preset("cars", "Stanford Cars at 384 px: SGD 1e-2, 1000 epochs", _AUTOFORMER, _SGD | {"epochs": 1000}, 384),
        Preset("flowers", "Flowers-102 at 384 px: AdamW 5e-4, 1000 epochs", _AUTOFORMER, _ADAM | {"epochs": 1000}, 384),
        Preset("pets", "Oxford Pets at 384 px: AdamW 5e-4, 1000 epochs", _AUTOFORMER, _ADAM | {"epochs": 1000}, 384),
    )
}


def preset(name: str) -> Preset:
    """The preset of that name."""
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return PRESETS[name]
