"""The network to take away: plain weights as safetensors, everything else as JSON; loaded without elastic code."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tailorvit.arch import Arch
from tailorvit.errors import TailorError, unknown
from tailorvit.families import FAMILIES, plain_class

FORMAT = 1
WEIGHTS = ("network.safetensors", "model.safetensors")  # a run's own name, and the one timm and Hugging Face look for
PREFIX = "network."  # before every name in a Hugging Face folder, whose model holds ours


@dataclass(frozen=True)
class Card:
    """What must travel with the weights: architecture, settings, preprocessing and class names."""

    arch: Arch
    fixed: Mapping[str, Any]
    classes: tuple[str, ...]
    preprocessing: Mapping[str, Any]  # what tailorvit.data.preprocess takes
    facts: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "format": FORMAT,
            "family": self.arch.family,
            "arch": self.arch.to_dict(),
            "fixed": {k: list(v) if isinstance(v, tuple) else v for k, v in self.fixed.items()},
            "classes": list(self.classes),
            "preprocessing": {**self.preprocessing, "interpolation": "bicubic"},  # the only one there is
            "facts": dict(self.facts),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Card:
        """Read :meth:`to_dict`'s form."""
        fixed = {k: tuple(v) if isinstance(v, list) else v for k, v in data["fixed"].items()}
        arch = Arch.from_dict(data["arch"])
        return cls(arch, fixed, tuple(data["classes"]), data["preprocessing"], data.get("facts", {}))

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of one image."""
        high, wide = self.preprocessing["image_size"]
        return int(self.preprocessing["channels"]), int(high), int(wide)


class Network(nn.Module):
    """A plain network with its card: call it on normalised images, or ``predict`` files."""

    def __init__(self, model: nn.Module, card: Card) -> None:
        super().__init__()
        self.model, self.card = model, card

    def forward(self, x: Tensor) -> Tensor:
        """Logits of normalised images (B, C, H, W)."""
        out: Tensor = self.model(x)
        return out

    @torch.inference_mode()
    def predict(self, paths: Sequence[str | Path]) -> list[dict[str, float]]:
        """Class probabilities of image files, most probable first."""
        from tailorvit.data import preprocess

        self.eval()
        card, rows = self.card, []
        for path in paths:
            scores = self(preprocess(path, **card.preprocessing)).softmax(-1)[0]
            order = scores.argsort(descending=True).tolist()
            rows.append({card.classes[i]: float(scores[i]) for i in order})
        return rows


def document(model: nn.Module, card: Card) -> dict[str, Any]:
    """What network.json holds: the card, and the plain network's settings, which alone rebuild it."""
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
    write_bytes(folder / "network.safetensors", weights(model))
    write_bytes(folder / "network.json", json.dumps(document(model, card), indent=1).encode())


def network_folder(folder: str | Path) -> Path:
    """Where network.json lies: the folder itself, or ``network`` inside a run folder."""
    place = Path(folder)
    if not place.exists():
        raise TailorError(f"There is no folder '{folder}'; give a run folder or one that holds network.json.")
    place = place if (place / "network.json").is_file() else place / "network"
    if not (place / "network.json").is_file():
        exported = next((f.name for f in Path(folder).glob("*.onnx")), None) if Path(folder).is_dir() else None
        if exported or any(Path(folder).glob("*.pt2")):
            hint = f"predict reads '{exported}' itself" if exported else "give the run's folder"
            raise TailorError(
                f"'{folder}' is an export without network.json, as only safetensors, timm and hf have; {hint}."
            )
        raise TailorError(f"'{folder}' holds no finished network (no network.json); is the run finished?")
    return place


def load(folder: str | Path) -> Network:
    """The network of a run folder, or of a folder that holds ``network.json`` and its weights."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    place = network_folder(folder)
    try:
        data = json.loads((place / "network.json").read_text(encoding="utf-8"))
        card = Card.from_dict(data)
        state = load_file(next((place / n for n in WEIGHTS if (place / n).is_file()), place / WEIGHTS[0]))
        model = _rebuilt(data.get("plain"), card)
    except (OSError, SafetensorError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise TailorError(f"The network in '{folder}' cannot be read: {error}.") from None
    try:
        model.load_state_dict({k.removeprefix(PREFIX): v for k, v in state.items()})
    except RuntimeError:
        raise TailorError(f"The weights in '{place}' do not belong to the architecture in network.json.") from None
    if len(card.classes) != model.num_classes:
        raise TailorError(
            f"The network in '{folder}' tells {model.num_classes} classes apart but names {len(card.classes)}."
        )
    return Network(model.eval(), card)


def _rebuilt(plain: Mapping[str, Any] | None, card: Card) -> nn.Module:
    if plain is None:  # written before networks stated their settings: the family works them out
        from tailorvit.families import family

        record = family(card.arch.family)
        return record.build(record.frame(card.fixed), card.arch)
    if plain["family"] not in FAMILIES:
        raise unknown("family", plain["family"], FAMILIES)
    return plain_class(plain["family"]).from_settings(plain["settings"])
