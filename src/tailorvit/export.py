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
from tailorvit.errors import TailorError
from tailorvit.families import family

FORMAT = 1


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
            "preprocessing": dict(self.preprocessing),
            "facts": dict(self.facts),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Card:
        """Read :meth:`to_dict`'s form."""
        fixed = {k: tuple(v) if isinstance(v, list) else v for k, v in data["fixed"].items()}
        arch = Arch.from_dict(data["arch"])
        return cls(arch, fixed, tuple(data["classes"]), data["preprocessing"], data.get("facts", {}))


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


def save_network(folder: Path, model: nn.Module, card: Card) -> None:
    """Write ``network.safetensors`` and ``network.json``, each whole or not at all."""
    from safetensors.torch import save

    from tailorvit.runs.atomic import write_bytes

    folder.mkdir(parents=True, exist_ok=True)
    state = {k: v.detach().cpu().contiguous() for k, v in model.state_dict().items()}
    write_bytes(folder / "network.safetensors", save(state))
    write_bytes(folder / "network.json", json.dumps(card.to_dict(), indent=1).encode())


def load(folder: str | Path) -> Network:
    """The network of a run folder, or of a folder that holds ``network.json`` and ``network.safetensors``."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    place = Path(folder)
    place = place if (place / "network.json").is_file() else place / "network"
    if not (place / "network.json").is_file():
        raise TailorError(f"'{folder}' holds no finished network (no network.json); is the run finished?")
    try:
        card = Card.from_dict(json.loads((place / "network.json").read_text(encoding="utf-8")))
        state = load_file(place / "network.safetensors")
    except (OSError, SafetensorError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise TailorError(f"The network in '{folder}' cannot be read: {error}.") from None
    record = family(card.arch.family)
    model = record.build(record.frame(card.fixed), card.arch)
    try:
        model.load_state_dict(state)
    except RuntimeError:
        raise TailorError(f"The weights in '{place}' do not belong to the architecture in network.json.") from None
    return Network(model.eval(), card)
