"""README.md of a Hugging Face folder: what the network is, how it was found, how well it does, and its limits."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from tailorvit import units
from tailorvit.export.base import Job

_SHOWN = 50  # class names; ImageNet's thousand would bury the rest


def escaped(text: object) -> str:
    """Text that Markdown, HTML and a table cell show as it is, on one line."""
    flat = " ".join(str(text).split())
    flat = flat.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]#!|~$:@]|(?<!\d)\.|\.(?!\d))", r"\\\1", flat)


def _read(path: Path) -> dict[str, Any]:
    """A JSON object of the run, or nothing: a card is written from whatever is known."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def data_name(source: str) -> str:
    """The data's name without the folders it lies in, which are nobody's business."""
    if source.startswith("torchvision:"):
        return source.partition("@")[0]
    return PurePosixPath(PureWindowsPath(source).as_posix()).name or "unnamed"


def _percent(value: Any) -> str:
    return f"{value:.2f} %" if isinstance(value, int | float) else "not measured"


def _table(rows: list[tuple[str, str]]) -> str:
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {text} |" for name, text in rows)])


def _accuracy(result: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    rows = ["| network | parameters | MACs | test accuracy |", "|---|---|---|---|"]
    found = {**facts, **result}
    for name, row in (("this one", found), ("hand-designed baseline of the same budget", result.get("baseline"))):
        if row:
            costs = [units.show(row[k]) if isinstance(row.get(k), int | float) else "" for k in ("params", "macs")]
            rows.append(f"| {name} | {' | '.join(costs)} | {_percent(row.get('test_accuracy'))} |")
    trunk = result.get("trunk")
    if isinstance(trunk, Mapping):
        costs = [units.show(trunk[k]) if isinstance(trunk.get(k), int | float) else "?" for k in ("params", "macs")]
        rows.append(
            f"\nCounted is what was trained. The frozen trunk inside, {escaped(data_name(str(trunk.get('source'))))},"
        )
        rows.append(f"has {costs[0]} parameters and {costs[1]} MACs of its own.")
    if not result.get("baseline"):
        known = "baseline" in result  # a damaged or missing result.json says nothing about it
        rows.append("\nNo baseline was trained beside it." if known else "\nA baseline is not recorded.")
    return "\n".join(rows)


def _finding(result: Mapping[str, Any], facts: Mapping[str, Any], info: Mapping[str, Any]) -> str:
    rows = [("method", escaped(result.get("method", facts.get("method", "unknown"))))]
    rows.append(("seed", escaped(result.get("seed", facts.get("seed", "unknown")))))
    if limits := result.get("limits"):
        told = [f"{k} {way} {units.show(v)}" for k, both in limits.items() for way, v in both.items() if v is not None]
        rows.append(("limits", escaped("; ".join(told))))
    if "trials" in result:
        rows.append(("architectures tried", escaped(result["trials"])))
    if "final" in result:
        rows.append(("weights of the end", escaped(result["final"])))
    if versions := info.get("versions"):
        rows.append(("versions", escaped(", ".join(f"{k} {v}" for k, v in versions.items()))))
    return _table(rows)


def model_card(job: Job) -> str:
    """The card; every fact comes from the run folder, and what is not known is said to be so."""
    card = job.network.card
    result, info = _read(job.source / "result.json"), _read(job.source / "info.json")
    data = result.get("data") or info.get("data") or {}
    counts = data.get("counts") or {}
    how, (channels, high, wide) = card.preprocessing, card.shape
    more = f" and {len(card.classes) - _SHOWN} more" if len(card.classes) > _SHOWN else ""
    numbers = ", ".join(f"{n} {split}" for split, n in counts.items()) or "not recorded"
    genes = "; ".join(f"{k} {v}" for k, v in card.arch.to_dict().items())
    return f"""---
library_name: transformers
pipeline_tag: image-classification
tags:
- image-classification
- tailorvit
---

# A {escaped(card.arch.family)} network for {len(card.classes)} classes, found by TailorViT

{_accuracy(result, card.facts)}

The test split was not used for training, search or choice. One run gives one number: another seed gives another.

## Data

{
        _table(
            [
                ("name", escaped(data_name(str(data["source"]))) if "source" in data else "not recorded"),
                ("images", escaped(numbers)),
                ("classes", ", ".join(map(escaped, card.classes[:_SHOWN])) + more),
            ]
        )
    }

## How it was found

{_finding(result, card.facts, info)}

Architecture: {escaped(genes)}

## Preprocessing

Upright by the EXIF mark; transparent parts laid on white; {"grey" if channels == 1 else "RGB"}; resized (bicubic) to
cover {round(how["margin"] * high)} x {round(how["margin"] * wide)} px (height x width), overhang cut evenly; middle
{high} x {wide} px; divided by 255; mean {[round(m, 6) for m in how["mean"]]} taken out, divided by
{
        [round(s, 6) for s in how["std"]]
    }. The image processor in this folder does exactly this with a picture as `Image.open` gives it.

## Use

```python
from transformers import AutoImageProcessor, AutoModelForImageClassification

processor = AutoImageProcessor.from_pretrained("FOLDER", trust_remote_code=True)
network = AutoModelForImageClassification.from_pretrained("FOLDER", trust_remote_code=True)
logits = network(**processor(picture, return_tensors="pt")).logits
```

Both read the network's source, `modeling_tailorvit.py`, from this folder. timm opens it too, after `import
tailorvit_network` with this folder on the path: `timm.create_model("local-dir:FOLDER", pretrained=True)`.

## Limits

It knows only the classes above and answers with one of them for every picture. Its accuracy holds for pictures like
the test images and for no others; nobody has looked at fairness, robustness or safety.

## Licence

None is stated: it is for whoever trained the network, and owns or may use the data, to choose one.
"""
