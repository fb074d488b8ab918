"""hf: a Hugging Face folder with model card and standalone source; timm and ``tailorvit.load`` open it too."""

from __future__ import annotations

import json
from importlib.util import find_spec
from typing import Any

from tailorvit.export.base import Exporter, Job, compared, fresh_logits
from tailorvit.export.model_card import model_card
from tailorvit.export.network import PREFIX, document, weights
from tailorvit.export.timm_format import HEADING, SOURCE, plain_bundle, timm_config

MODELING = "modeling_tailorvit"
OPENING = """from transformers import AutoModelForImageClassification
network = AutoModelForImageClassification.from_pretrained(folder, trust_remote_code=True)
logits = lambda x: network(x).logits"""
_HEADING = "A network found by TailorViT, whole, as a Hugging Face model with its image processor."


def hf_config(job: Job) -> dict[str, Any]:
    """config.json for both: what transformers reads, and what timm reads."""
    card = job.network.card
    plain = document(job.network.model, card)["plain"]
    return {
        **timm_config(job),
        **plain,
        "model_type": "tailorvit",
        "architectures": ["TailorVitForImageClassification"],
        "auto_map": {
            "AutoConfig": f"{MODELING}.TailorVitConfig",
            "AutoModelForImageClassification": f"{MODELING}.TailorVitForImageClassification",
            # transformers 5 takes a config.json that timm reads too for timm's, and looks for the processor here.
            "AutoImageProcessor": f"{MODELING}.TailorVitImageProcessor",
        },
        "id2label": {str(i): name for i, name in enumerate(card.classes)},
        "label2id": {name: i for i, name in enumerate(card.classes)},
        "torch_dtype": "float32",
    }


def write(job: Job) -> dict[str, Any]:
    """All files of the folder; opened again with transformers where that is installed."""
    model, card, out = job.network.model, job.network.card, job.out
    described = document(model, card)
    processor = {
        **described["preprocessing"],
        "image_processor_type": "TailorVitImageProcessor",
        "auto_map": {"AutoImageProcessor": f"{MODELING}.TailorVitImageProcessor"},
    }
    (out / "model.safetensors").write_bytes(weights(model, PREFIX))
    for name, data in (
        ("config.json", hf_config(job)),
        ("preprocessor_config.json", processor),
        ("network.json", described),
    ):
        (out / name).write_text(json.dumps(data, indent=1), encoding="utf-8")
    for name, heading, glue in ((f"{MODELING}.py", _HEADING, "hf_models"), (SOURCE, HEADING, "timm_models")):
        text = plain_bundle(heading, card.arch.family, f"tailorvit.export.{glue}")
        (out / name).write_text(text, encoding="utf-8")
    (out / "README.md").write_text(model_card(job), encoding="utf-8")
    if not job.check:
        return {}
    if find_spec("transformers") is None:
        return {"unchecked": "transformers is not installed (pip install 'tailorvit[hf]')"}
    return compared(job.expected, fresh_logits(OPENING, out, job.x))


HF = Exporter("hf", "a Hugging Face folder with model card; timm and tailorvit.load open it too", None, write)
