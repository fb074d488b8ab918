"""The formats torch, safetensors, timm and hf, and the model card (README.md) of the last two."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import torch

from tailorvit import units
from tailorvit.export.base import Exporter, Job, compared, fresh_logits
from tailorvit.export.network import LABELS, PREFIX, Card, document, load, save_network, weights
from tailorvit.texts import read_table


def _write_json(path: Path, data: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=1), encoding="utf-8")


# -- torch ------------------------------------------------------------------------------------------------------------

_LOAD_TORCH = """network = torch.export.load(f"{folder}/network.pt2").module()
logits = network"""


def traced_program(model: torch.nn.Module, shape: tuple[int, int, int]) -> torch.export.ExportedProgram:
    """The network as a program that takes one image or more."""
    # From one image on, said outright: left to torch, the range began at 0 or 2, by version and way of asking, and
    # libraries that lower the program take it at its word.
    batch = torch.export.Dim("batch", min=1)
    return torch.export.export(model, (torch.zeros(2, *shape),), dynamic_shapes=({0: batch},))


def write_torch(job: Job) -> dict[str, Any]:
    """network.pt2, a traced program, with our JSON inside it as the extra file tailorvit.json."""
    model = job.network.model
    program = traced_program(model, job.network.card.shape)
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # it names files of this machine
    extra = json.dumps(document(model, job.network.card))
    torch.export.save(program, job.out / "network.pt2", extra_files={LABELS: extra})
    return compared(job.expected, fresh_logits(_LOAD_TORCH, job.out, job.x, alone=True)) if job.check else {}


# -- safetensors ------------------------------------------------------------------------------------------------------


def write_safetensors(job: Job) -> dict[str, Any]:
    """network.safetensors and network.json, for ``tailorvit.load``."""
    save_network(job.out, job.network.model, job.network.card)
    if not job.check:
        return {}
    with torch.inference_mode():
        return compared(job.expected, load(job.out)(job.x))


# -- timm -------------------------------------------------------------------------------------------------------------

_LOAD_TIMM = """import timm
import tailorvit.for_timm
network = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
logits = network"""
_TIMM_NOTE = (
    "timm's own transform agrees with ours on square images; on others it rounds the long side and the crop to whole "
    "pixels (and resizes bilinearly for a network that is not square), and it ignores the EXIF orientation and "
    "transparency."
)


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
    conv = "trunk.patch_embed.proj" if plain["settings"].get("trunk") else "patch_embed.proj"
    pretrained = {
        "architecture": "tailorvit",
        "input_size": list(card.shape),
        "fixed_input_size": True,
        "interpolation": "bicubic",
        "crop_pct": crop_share(card),
        "crop_mode": "center",
        "mean": list(card.preprocessing["mean"]),
        "std": list(card.preprocessing["std"]),
        "num_classes": len(card.classes),
        "label_names": list(card.classes),
        "classifier": "head",
        # With this key timm converts the weights to other channels; it can do so only from three.
        **({"first_conv": conv} if card.shape[0] == 3 else {}),
    }
    return {
        "architecture": "tailorvit",
        "num_classes": len(card.classes),
        "num_features": job.network.model.num_features,
        "pretrained_cfg": pretrained,
        "model_args": plain,
    }


def write_timm(job: Job) -> dict[str, Any]:
    """model.safetensors, config.json, README.md, and network.json for ``tailorvit.load``."""
    model, card = job.network.model, job.network.card
    (job.out / "model.safetensors").write_bytes(weights(model))
    _write_json(job.out / "config.json", timm_config(job))
    _write_json(job.out / "network.json", document(model, card))
    (job.out / "README.md").write_text(model_card(job, "timm"), encoding="utf-8", errors="backslashreplace")
    found = compared(job.expected, fresh_logits(_LOAD_TIMM, job.out, job.x)) if job.check else {}
    return {**found, "notes": [_TIMM_NOTE]}


# -- Hugging Face -----------------------------------------------------------------------------------------------------

_LOAD_HF = """from transformers import AutoModelForImageClassification
import tailorvit.for_transformers
network = AutoModelForImageClassification.from_pretrained(folder)
logits = lambda x: network(x).logits"""


def hf_config(job: Job) -> dict[str, Any]:
    """config.json with what transformers reads and what timm reads."""
    card = job.network.card
    return {
        **timm_config(job),
        **document(job.network.model, card)["plain"],
        "model_type": "tailorvit",
        "architectures": ["TailorVitForImageClassification"],
        "id2label": {str(i): name for i, name in enumerate(card.classes)},
        "label2id": {name: i for i, name in enumerate(card.classes)},
        "torch_dtype": "float32",
    }


def write_hf(job: Job) -> dict[str, Any]:
    """A folder for transformers, checked where that is installed; timm and ``tailorvit.load`` read it too."""
    network_json = document(job.network.model, job.network.card)
    processor = {**network_json["preprocessing"], "image_processor_type": "TailorVitImageProcessor"}
    (job.out / "model.safetensors").write_bytes(weights(job.network.model, PREFIX))
    _write_json(job.out / "config.json", hf_config(job))
    _write_json(job.out / "preprocessor_config.json", processor)
    _write_json(job.out / "network.json", network_json)
    (job.out / "README.md").write_text(model_card(job, "transformers"), encoding="utf-8", errors="backslashreplace")
    if not job.check:
        return {}
    if find_spec("transformers") is None:
        return {"unchecked": "transformers is not installed (pip install 'tailorvit[hf]')"}
    return compared(job.expected, fresh_logits(_LOAD_HF, job.out, job.x))


# -- model card -------------------------------------------------------------------------------------------------------

_CLASSES_SHOWN = 50  # ImageNet's thousand names would hide the rest
_USE = {
    "transformers": """```python
import tailorvit.for_transformers  # registers the network and its image processor
from transformers import AutoImageProcessor, AutoModelForImageClassification

processor = AutoImageProcessor.from_pretrained("FOLDER")
network = AutoModelForImageClassification.from_pretrained("FOLDER")
logits = network(**processor(image, return_tensors="pt")).logits
```

Needs `pip install 'tailorvit[hf]'`. The image processor does the preprocessing above exactly, with an image as
`Image.open` returns it. timm reads this folder too, after `import tailorvit.for_timm`:
`timm.create_model("local-dir:FOLDER", pretrained=True)`.""",
    "timm": """```python
import tailorvit.for_timm  # registers the model name 'tailorvit' with timm
import timm

network = timm.create_model("local-dir:FOLDER", pretrained=True).eval()
```

Needs `pip install tailorvit`. `tailorvit.load("FOLDER").predict("photo.jpg")` does the preprocessing above exactly;
timm's own transform differs a little on images that are not square.""",
}


def escaped(text: object) -> str:
    """Text that Markdown, HTML and a table cell show unchanged, on one line."""
    flat = " ".join(str(text).split())
    flat = flat.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]#!|~$:@]|(?<!\d)\.|\.(?!\d))", r"\\\1", flat)


def _read(path: Path) -> dict[str, Any]:
    """A JSON object of the run; empty where it cannot be read, since a card holds whatever is known."""
    try:
        return read_table(path)
    except (OSError, ValueError):
        return {}


def run_facts(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What result.json and info.json of a run hold."""
    return _read(folder / "result.json"), _read(folder / "info.json")


def data_name(source: str) -> str:
    """The data's name without the folders above it, which are private."""
    if source.startswith("torchvision:"):
        return source.partition("@")[0]
    return PurePosixPath(PureWindowsPath(source).as_posix()).name or "unnamed"


def _table(rows: list[tuple[str, str]]) -> str:
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {text} |" for name, text in rows)])


def _costs(row: Mapping[str, Any], missing: str) -> list[str]:
    return [units.show(row[k]) if isinstance(row.get(k), int | float) else missing for k in ("params", "macs")]


def _rows(result: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """The rows of a table of result.json that can be read."""
    found = result.get(key)
    return [row for row in found if isinstance(row, Mapping)] if isinstance(found, list) else []


def accuracy_table(result: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    """The network beside the baseline, and what is known of a trunk."""
    rows = ["| network | parameters | MACs | test accuracy |", "|---|---|---|---|"]
    networks: list[tuple[str, Any]] = [("this network", {**facts, **result}), ("baseline", result.get("baseline"))]
    if result.get("chosen") == "baseline":
        found = [row for row in _rows(result, "candidates") if row.get("name") != "baseline"]
        networks = [("this network, designed by hand", {**facts, **result})]
        networks += [("found by the search", row) for row in found]
    networks += [(escaped(row.get("name")), row) for row in _rows(result, "peers")]
    for name, row in networks:
        if row:
            accuracy = row.get("test_accuracy")
            shown = f"{accuracy:.2f} %" if isinstance(accuracy, int | float) else "not measured"
            rows.append(f"| {name} | {' | '.join(_costs(row, ''))} | {shown} |")
    trunk = result.get("trunk")
    if isinstance(trunk, Mapping):
        params, macs = _costs(trunk, "?")
        rows.append(
            f"\nThese counts are of the trained part. The frozen trunk, {escaped(data_name(str(trunk.get('source'))))},"
        )
        rows.append(f"has {params} parameters and {macs} MACs of its own.")
    if not result.get("baseline"):
        known = "baseline" in result  # a missing or damaged result.json says nothing about it
        rows.append("\nNo baseline was trained." if known else "\nA baseline is not recorded.")
    return "\n".join(rows)


def _search_table(result: Mapping[str, Any], facts: Mapping[str, Any], info: Mapping[str, Any]) -> str:
    rows = [("method", escaped(result.get("method", facts.get("method", "unknown"))))]
    rows.append(("seed", escaped(result.get("seed", facts.get("seed", "unknown")))))
    if limits := result.get("limits"):
        bounds = [
            f"{k} {end} {units.show(v)}" for k, ends in limits.items() for end, v in ends.items() if v is not None
        ]
        rows.append(("limits", escaped("; ".join(bounds))))
    if "trials" in result:
        rows.append(("architectures evaluated", escaped(result["trials"])))
    if "final" in result:
        rows.append(("final weights", escaped(result["final"])))
    if versions := info.get("versions"):
        rows.append(("versions", escaped(", ".join(f"{k} {v}" for k, v in versions.items()))))
    return _table(rows)


def model_card(job: Job, library: str) -> str:
    """The card; every fact comes from the run folder, and unknown ones are named as such."""
    card = job.network.card
    result, info = run_facts(job.source)
    data = result.get("data") or info.get("data") or {}
    how, (channels, high, wide) = card.preprocessing, card.shape
    more = f" and {len(card.classes) - _CLASSES_SHOWN} more" if len(card.classes) > _CLASSES_SHOWN else ""
    counts = ", ".join(f"{n} {split}" for split, n in (data.get("counts") or {}).items()) or "not recorded"
    source = escaped(data_name(str(data["source"]))) if "source" in data else "not recorded"
    classes = ", ".join(map(escaped, card.classes[:_CLASSES_SHOWN])) + more
    mean, std = ([round(float(v), 6) for v in how[k]] for k in ("mean", "std"))
    return f"""---
library_name: {library}
pipeline_tag: image-classification
tags:
- image-classification
- tailorvit
---

# A {escaped(card.arch.family)} network for {len(card.classes)} classes, made with TailorViT

{accuracy_table(result, card.facts)}

The test split was not used for training, search or selection. One run gives one number: another seed gives another.

## Data

{_table([("name", source), ("images", escaped(counts)), ("classes", classes)])}

## Search

{_search_table(result, card.facts, info)}

Architecture: {escaped("; ".join(f"{k} {v}" for k, v in card.arch.to_dict().items()))}

## Preprocessing

Rotated by the EXIF orientation; transparent parts on white; {"grey" if channels == 1 else "RGB"}; resized (bicubic) to
cover {round(how["margin"] * high)} x {round(how["margin"] * wide)} px (height x width), cropped to the middle
{high} x {wide} px; divided by 255; mean {mean} subtracted, divided by the standard deviation {std}.

## Use

{_USE[library]}

## Limits

The network knows only the classes above and predicts one of them for every image. Its accuracy holds for images like
the test images and for no others. Fairness, robustness and safety were not examined.

## Licence

None is stated: whoever trained the network, and owns or may use the data, has to choose one.
"""


TORCH = Exporter("torch", "a traced program for torch.export.load, without tailorvit", None, write_torch)
SAFETENSORS = Exporter("safetensors", "weights and a JSON file, for tailorvit.load", None, write_safetensors)
TIMM = Exporter("timm", "a folder for timm.create_model, after import tailorvit.for_timm", None, write_timm)
HF = Exporter("hf", "a Hugging Face folder, after import tailorvit.for_transformers", None, write_hf)
