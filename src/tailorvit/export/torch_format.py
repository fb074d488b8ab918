"""torch: a traced program (.pt2) that torch alone opens, any batch size."""

from __future__ import annotations

import json
from typing import Any

import torch

from tailorvit.export.base import Exporter, Job, compared, fresh_logits
from tailorvit.export.network import document

OPENING = """network = torch.export.load(f"{folder}/network.pt2").module()
logits = network"""


def write(job: Job) -> dict[str, Any]:
    """network.pt2, with our JSON inside it as the extra file tailorvit.json."""
    model = job.network.model
    batch = torch.export.Dim("batch")
    program = torch.export.export(model, (torch.zeros(2, *job.network.card.shape),), dynamic_shapes=({0: batch},))
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # it names files of this machine
    extra = json.dumps(document(model, job.network.card))
    torch.export.save(program, job.out / "network.pt2", extra_files={"tailorvit.json": extra})
    return compared(job.expected, fresh_logits(OPENING, job.out, job.x)) if job.check else {}


TORCH = Exporter("torch", "a traced program for torch.export.load, without tailorvit", None, write)
