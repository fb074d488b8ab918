"""A finished network: plain weights as safetensors, everything else as JSON; loaded without the search code."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from tailorvit.arch import Arch, require_blocks
from tailorvit.errors import TailorError
from tailorvit.families import plain_class
from tailorvit.families.assemble import assemble
from tailorvit.portable import Preprocessing, image_list, prepare
from tailorvit.tensors import read_safetensors, require_finite
from tailorvit.texts import read_table

if TYPE_CHECKING:
    from tailorvit.portable import Source

FORMAT = 1
WEIGHTS = ("network.safetensors", "model.safetensors")  # a run's own name, and the one timm and Hugging Face look for
LABELS = "tailorvit.json"  # class names and preprocessing beside, or inside, a file of another library
CHECKSUM = "sha256"  # of network.safetensors, in network.json
PREFIX = "network."  # before every name in a Hugging Face folder, whose model contains ours
BATCH = 64


@dataclass(frozen=True)
class Card:
    """What must be stored with the weights: architecture, settings, preprocessing and class names."""

    arch: Arch
    settings: Mapping[str, Any]
    classes: tuple[str, ...]
    preprocessing: Mapping[str, Any]  # the arguments of tailorvit.data.preprocess
    facts: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "format": FORMAT,
            "family": self.arch.family,
            "arch": self.arch.to_dict(),
            "fixed": {k: list(v) if isinstance(v, tuple) else v for k, v in self.settings.items()},
            "classes": list(self.classes),
            "preprocessing": {**self.preprocessing, "interpolation": "bicubic"},  # the only one there is
            "facts": dict(self.facts),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Card:
        """Read :meth:`to_dict`'s form."""
        settings = {k: tuple(v) if isinstance(v, list) else v for k, v in data["fixed"].items()}
        arch = Arch.from_dict(data["arch"])
        return cls(arch, settings, tuple(data["classes"]), data["preprocessing"], data.get("facts", {}))

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of one image."""
        high, wide = self.preprocessing["image_size"]
        return int(self.preprocessing["channels"]), int(high), int(wide)


class Network(nn.Module):
    """A plain network with its card: call it on normalised images, or ``predict`` images of any kind."""

    def __init__(self, model: nn.Module, card: Card) -> None:
        super().__init__()
        self.model, self.card = model, card

    @property
    def classes(self) -> tuple[str, ...]:
        """The class names, in the order of the logits."""
        return self.card.classes

    def forward(self, x: Tensor) -> Tensor:
        """Logits of normalised images (B, C, H, W)."""
        out: Tensor = self.model(x)
        return out

    @torch.inference_mode()
    def predict(self, images: Source | Iterable[Source]) -> dict[str, float] | list[dict[str, float]]:
        """Class probabilities, most probable first: a dictionary for one image, a list of them for several.

        One image is a file's path, a Pillow image or an array (H, W) or (H, W, C). Several are a list of those, an
        array (N, H, W, C) or a folder, whose images come in sorted order. Arrays are uint8, or float from 0 to 1.
        """
        sources, several = image_list(images)
        how, device = Preprocessing.from_dict(self.card.preprocessing), next(self.parameters()).device
        training, rows = self.training, []
        self.eval()
        try:
            for at in range(0, len(sources), BATCH):
                x = torch.from_numpy(np.stack([prepare(source, how) for source in sources[at : at + BATCH]]))
                for scores in self(x.to(device)).softmax(-1).cpu():
                    order = scores.argsort(descending=True).tolist()
                    rows.append({self.classes[i]: float(scores[i]) for i in order})
        finally:
            self.train(training)
        return rows if several else rows[0]


def document(model: nn.Module, card: Card) -> dict[str, Any]:
    """The content of network.json: the card, and the plain network's settings, from which it is built again."""
    return {**card.to_dict(), "plain": {"family": card.arch.family, "settings": model.settings}}


def weights(model: nn.Module, prefix: str = "") -> bytes:
    """The weights as the bytes of a safetensors file."""
    from safetensors.torch import save

    state = {prefix + k: v.detach().cpu().contiguous() for k, v in model.state_dict().items()}
    return save(state, {"format": "pt"})


def save_network(folder: Path, model: nn.Module, card: Card) -> None:
    """Write ``network.safetensors`` and ``network.json``, each whole or not at all."""
    from tailorvit.runs.atomic import write_bytes

    folder.mkdir(parents=True, exist_ok=True)
    held = weights(model)
    card_text = json.dumps({**document(model, card), CHECKSUM: hashlib.sha256(held).hexdigest()}, indent=1)
    write_bytes(folder / WEIGHTS[0], held)
    write_bytes(folder / "network.json", card_text.encode())


def network_folder(folder: str | Path) -> Path:
    """Where network.json is: the folder itself, ``network`` inside a run folder, or a copy of one on the hub."""
    from tailorvit.export.hub import fetched, is_hub

    if is_hub(folder):
        return fetched(folder)
    place = Path(folder)
    if not place.exists():
        raise TailorError(f"There is no folder '{folder}'; give a run folder or one that holds network.json.")
    if (place / "network.json").is_file():
        return place
    if (place / "network" / "network.json").is_file():
        return place / "network"
    onnx = next((f.name for f in place.glob("*.onnx")), None) if place.is_dir() else None
    if onnx or any(place.glob("*.pt2")) or (place / LABELS).is_file():
        hint = f"predict reads '{onnx}' itself" if onnx else "give the run's folder"
        raise TailorError(
            f"'{folder}' is an export without network.json, which only safetensors, timm and hf write; {hint}."
        )
    if any((p / "task.json").is_file() for p in (place, place / "network")):
        raise TailorError(
            f"'{folder}' holds a network of a task, which predict, export and tailorvit.load_task take; this takes "
            "networks that tell classes apart."
        )
    raise TailorError(f"'{folder}' holds no finished network (no network.json); is the run finished?")


def load(folder: str | Path) -> Network:
    """The network of a run folder, of a folder that holds ``network.json`` and its weights, or hf:USER/NAME."""
    place = network_folder(folder)
    try:
        data = read_table(place / "network.json")
        if data.get("format") != FORMAT:
            raise ValueError(f"its format is {data.get('format')!r}, and this version reads {FORMAT}")
        card = Card.from_dict(data)
        file = next((place / n for n in WEIGHTS if (place / n).is_file()), place / WEIGHTS[0])
        _require_same(file, data)
        state = {k.removeprefix(PREFIX): v for k, v in read_safetensors(file).items()}
        require_blocks(data["plain"]["settings"] if data.get("plain") else card.arch)
    except (OSError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise TailorError(f"The network in '{folder}' cannot be read: {error}.") from None
    require_finite(state, f"The network in '{folder}'")

    def make() -> nn.Module:
        try:
            return _build(data.get("plain"), card)
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise TailorError(f"The network in '{folder}' cannot be read: {error}.") from None

    try:
        model = assemble(make, state)
        if any(state[k].shape != v.shape for k, v in model.state_dict().items()):
            raise ValueError("another shape")
    except TailorError:
        raise
    except (LookupError, ValueError, RuntimeError, MemoryError):
        raise TailorError(f"The weights in '{place}' do not belong to the architecture in network.json.") from None
    if len(card.classes) != model.num_classes:
        raise TailorError(
            f"The network in '{folder}' has {model.num_classes} classes but names {len(card.classes)} of them."
        )
    return Network(model, card).eval()


def _require_same(file: Path, card: Mapping[str, Any]) -> None:
    """Refuse weights other than those the card was written with; older cards hold no checksum."""
    if (known := card.get(CHECKSUM)) is None or file.name != WEIGHTS[0]:
        return
    with file.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != known:
        raise ValueError(f"{file.name} has the checksum {found[:12]}, and network.json says {str(known)[:12]}")


def _build(plain: Mapping[str, Any] | None, card: Card) -> nn.Module:
    if plain is None:  # an old file without the plain settings: the family derives them
        from tailorvit.families import family

        record = family(card.arch.family)
        return record.build(record.settings(card.settings), card.arch)
    return plain_class(plain["family"]).from_settings(plain["settings"])
