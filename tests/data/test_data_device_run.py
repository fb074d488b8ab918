"""A whole run with its images on the device: told in the log, repeated exactly, sealed as ever."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tailorvit
from tailorvit.config import configure
from tailorvit.errors import TailorError
from tailorvit.runs import Run

SETS = ["arch={depth=2, embed=16, heads=2, mlp=2}", "baseline=false", "train.epochs=2", "analysis.images=0",
        "analysis.mistakes=0", "train.augment=standard"]  # fmt: skip


def once(folder: Path, where: str) -> tuple[dict, bytes, list[str]]:
    sets = [*SETS, f"data.on_device={where}"]
    tailorvit.run("s4-digits", method="fixed", out=str(folder), small=True, sets=sets, progress="quiet")
    result = json.loads((folder / "result.json").read_text())
    with Run.open(folder) as run:
        told = [e["text"] for e in run.events("data")]
    return result, (folder / "network" / "network.safetensors").read_bytes(), told


def test_a_run_with_images_on_the_device_repeats_exactly(tmp_path):
    (first, weights, told), (second, again, _) = (once(tmp_path / str(i), "always") for i in range(2))
    assert first["test_accuracy"] == second["test_accuracy"] and weights == again
    assert len(told) == 1 and told[0].startswith("training images are kept on cpu as bytes (")
    _, other, silent = once(tmp_path / "host", "auto")
    assert other != weights and not silent  # on a CPU "auto" leaves everything to the host
    assert once(tmp_path / "never", "never")[1] == other


def test_other_words_are_refused():
    with pytest.raises(TailorError, match=r"data.on_device cannot be 'maybe'.*'auto', 'always' or 'never'"):
        configure({"data": {"on_device": "maybe"}})
