"""timm: a folder for ``timm.create_model("local-dir:FOLDER", pretrained=True)`` with the network's source beside it."""

from __future__ import annotations

import json
import math
from typing import Any

from tailorvit.export.base import Exporter, Job, compared, fresh_logits
from tailorvit.export.bundle import bundle
from tailorvit.export.network import Card, document, weights
from tailorvit.families import plain_class

SOURCE = "tailorvit_network.py"
OPENING = """import timm
sys.path.insert(0, folder)
import tailorvit_network
network = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
logits = network"""
NOTE = (
    "timm's own transform agrees with ours on square pictures; on others it rounds the long side and the crop to whole "
    "pixels (and resizes bilinearly for a network that is not square), and it neither turns pictures upright nor lays "
    "transparent ones on white."
)
HEADING = "A network found by TailorViT, whole: importing this file registers 'tailorvit' with timm."


def plain_bundle(heading: str, family: str, glue: str) -> str:
    """The standalone source of one family's plain network and a glue module."""
    kind = plain_class(family)
    return bundle(heading, [(family, kind.__module__, kind.__name__)], glue)


def crop_share(card: Card) -> float:
    """timm's crop_pct: the share for which its floor(size / share) is our size times the margin."""
    size = card.shape[1]
    stored = round(card.preprocessing["margin"] * size)
    share: float = size / stored
    while math.floor(size / share) < stored:
        share = math.nextafter(share, 0)
    return share


def timm_config(job: Job) -> dict[str, Any]:
    """config.json as timm reads it from a local folder."""
    card, plain = job.network.card, document(job.network.model, job.network.card)["plain"]
    how = card.preprocessing
    conv = "trunk.patch_embed.proj" if plain["settings"].get("trunk") else "patch_embed.proj"
    cfg = {
        "architecture": "tailorvit",
        "input_size": list(card.shape),
        "fixed_input_size": True,
        "interpolation": "bicubic",
        "crop_pct": crop_share(card),
        "crop_mode": "center",
        "mean": list(how["mean"]),
        "std": list(how["std"]),
        "num_classes": len(card.classes),
        "label_names": list(card.classes),
        "classifier": "head",
        # timm turns three-channel weights into others; it takes any weights for three-channel ones.
        **({"first_conv": conv} if card.shape[0] == 3 else {}),
    }
    return {
        "architecture": "tailorvit",
        "num_classes": len(card.classes),
        "num_features": job.network.model.num_features,
        "pretrained_cfg": cfg,
        "model_args": plain,
    }


def write(job: Job) -> dict[str, Any]:
    """model.safetensors, config.json, the standalone source, and network.json for ``tailorvit.load``."""
    model, card, out = job.network.model, job.network.card, job.out
    (out / "model.safetensors").write_bytes(weights(model))
    (out / "config.json").write_text(json.dumps(timm_config(job), indent=1), encoding="utf-8")
    (out / "network.json").write_text(json.dumps(document(model, card), indent=1), encoding="utf-8")
    (out / SOURCE).write_text(plain_bundle(HEADING, card.arch.family, "tailorvit.export.timm_models"), encoding="utf-8")
    found = compared(job.expected, fresh_logits(OPENING, out, job.x)) if job.check else {}
    return {**found, "notes": [NOTE]}


TIMM = Exporter("timm", "a folder for timm.create_model, with the network's source in one file", None, write)
