"""What is disturbed: a tiny run of every method, and of what trains differently: batch norms, augmentation, files."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tailorvit.runs import Run

OFTEN = 1e-9  # seconds between checkpoints: every step
ARCH = "arch={depth=2, embed=16, heads=2, mlp=2}"
SETS = [
    *(f"{part}.{key}" for part in ("train", "final.train") for key in ("batch=20", "epochs=2")),
    *("data.limit=60", "analysis.images=0", "analysis.mistakes=0", "analysis.samples=2"),
]


@dataclass(frozen=True)
class Case:
    """One run: a verb of the API and its options, without a folder."""

    name: str
    method: str
    recipe: str = "s4-digits"
    sets: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    source: Path | None = None  # of a fine-tuning

    def job(self, folder: Path) -> tuple[str, list[Any], dict[str, Any]]:
        """(verb, arguments, options) of the run in a folder."""
        often = [f"train.checkpoint_seconds={OFTEN}"]
        more = {"out": str(folder), "tiny": True, "seed": 3, **self.options}
        if self.source is not None:
            sets = [s for s in SETS if not s.startswith("final")]
            return "finetune", [str(self.source)], {"data": "digits", **more, "settings": [*sets, *often, *self.sets]}
        sets = [*SETS, *often, f"final.{often[0]}", *self.sets]
        return "run", [self.recipe], {"method": self.method, **more, "settings": sets}


def cases(place: Path) -> list[Case]:
    """All of them; pictures and the network to fine-tune lie in ``place``."""
    pictures(place / "pictures")
    (place / "plain.toml").write_text("")
    fixed = ("baseline=false",)
    batch_norms = (*fixed, 'family="hybrid"')
    return [
        Case("s4", "s4"),
        Case("s4, warm", "s4", sets=("s4.warm_start=true", "final.how=finetune", "s4.iterations=1")),
        Case("s3", "s3", "s3-vit-digits"),
        Case("autoformer", "autoformer", "autoformer-digits"),
        Case("bignas", "bignas", "bignas-digits"),
        Case("hat", "hat", "hat-digits"),
        Case("tf-tas", "tf-tas", "tftas-digits"),
        Case("contest", "contest", "image-folder"),
        Case("tailor", "tailor", "tailor"),
        Case("finetune", "finetune", source=place / "fixed"),
        Case("fixed", "fixed", sets=(ARCH,)),
        Case("fixed, batch norms", "fixed", sets=batch_norms),
        Case("fixed, augmented", "fixed", sets=(ARCH, *fixed, "train.augment=strong", "final.train.augment=medium")),
        Case(
            "fixed, pictures",
            "fixed",
            str(place / "plain.toml"),
            sets=(ARCH, *fixed),
            options={"data": str(place / "pictures"), "image_size": 8},
        ),
    ]


def pictures(place: Path) -> None:
    """Three classes of small pictures."""
    rng = np.random.default_rng(0)
    for colour, name in enumerate(("red", "green", "blue")):
        (place / name).mkdir(parents=True)
        for number in range(24):
            pixels = rng.integers(0, 120, (8, 8, 3), dtype=np.uint8)
            pixels[2:6, 2:6, colour] = 250
            Image.fromarray(pixels).save(place / name / f"{number:02}.png")


# -- how a run ended --------------------------------------------------------------------------------------------------

TIMES = ("seconds", "images_per_second", "per_second")


def without_times(value: Any) -> Any:
    """The same without what a clock decides."""
    if isinstance(value, dict):
        return {k: without_times(v) for k, v in value.items() if k not in TIMES}
    return [without_times(v) for v in value] if isinstance(value, list | tuple) else value


def outcome(folder: Path) -> dict[str, Any]:
    """Everything a run found, without times: tables in an order of their own, weights as they lie on the disk."""
    with Run.open(folder, lock=False) as run:
        tables = {
            "trials": run.trials(),
            "spaces": run.spaces(),
            "slopes": run.slopes(),
            "decisions": run.decisions(),
            "epochs": run.epochs(),
            "stages": {e["stage"]: run.result(e["stage"]) for e in run.epochs()},
        }
    rows = {name: sorted(map(repr, without_times(list(t)))) for name, t in tables.items()}
    network = folder / "network"
    return {
        "result": without_times(json.loads((folder / "result.json").read_text())),
        "weights": (network / "network.safetensors").read_bytes(),
        "card": (network / "network.json").read_text(),
        **rows,
    }


def events(folder: Path, kind: str) -> list[str]:
    """The texts of a kind of event."""
    with Run.open(folder, lock=False) as run:
        return [e["text"] for e in run.events(kind)]
