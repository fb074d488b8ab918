"""safetensors: the weights and one JSON file, opened by ``tailorvit.load`` without any search code."""

from __future__ import annotations

from typing import Any

import torch

from tailorvit.export.base import Exporter, Job, compared
from tailorvit.export.network import load, save_network


def write(job: Job) -> dict[str, Any]:
    """network.safetensors and network.json."""
    save_network(job.out, job.network.model, job.network.card)
    if not job.check:
        return {}
    with torch.inference_mode():
        return compared(job.expected, load(job.out)(job.x))


SAFETENSORS = Exporter("safetensors", "weights and a JSON description, for tailorvit.load", None, write)
