"""Every recipe has a tiny form that runs, and a folder of pictures is all one needs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tailorvit
from tailorvit.api import recipe_for
from tailorvit.arch import Arch
from tailorvit.config import recipe_names, to_toml
from tailorvit.costs import Counter
from tailorvit.methods.stages import StageSink
from tailorvit.report import write_report
from tailorvit.runs import Run

KEYS = {
    "method",
    "arch",
    "params",
    "macs",
    "limits",
    "search_accuracy",
    "test_accuracy",
    "baseline",
    "spaces",
    "seconds",
    "seed",
}


def check(folder: Path) -> dict:
    """What holds for every finished run."""
    facts = json.loads((folder / "result.json").read_text())
    assert set(facts) >= KEYS
    arch = Arch.from_dict(facts["arch"])
    assert Counter(arch.family, facts["settings"]).both(arch) == (facts["params"], facts["macs"])
    for metric, bounds in facts["limits"].items():
        assert (bounds["min"] or 0) <= facts[metric] <= (bounds["max"] or float("inf"))
        if facts["baseline"] and metric in facts["baseline"]:
            assert facts["baseline"][metric] <= (bounds["max"] or float("inf"))
    # Chosen by a score, or the baseline: nothing had an accuracy before the last training.
    free = "proxy" in facts or facts["chosen"] == "baseline"
    assert facts["search_accuracy"] is None if free else 0 <= facts["search_accuracy"] <= 100
    assert 0 <= facts["final_search_accuracy"] <= 100 and 0 <= facts["test_accuracy"] <= 100
    assert facts["baseline"] is None or 0 <= facts["baseline"]["test_accuracy"] <= 100
    assert all(s > 0 for s in facts["seconds"].values())
    weights = tailorvit.load(folder).parameters()
    assert sum(p.numel() for p in weights if p.requires_grad) == facts["params"], "a trunk is frozen and not counted"
    assert (folder / "report.html").stat().st_size > 1000
    return facts


# The four-stage spaces of S3 have twenty dimensions, each asked for every choice at every move.
FEWER = {name: ["s3.samples=2", "s3.top=1", "s3.updates=1"] for name in ("s3-imagenet", "s3-windowed-digits")}


def different_when_tiny() -> list[str]:
    """The recipes, of those with the same tiny form one: S4's on ViT differ in their data alone."""
    forms: dict[str, str] = {}
    for name in recipe_names():
        forms.setdefault(to_toml(recipe_for(name, tiny=True)), name)
    return list(forms.values())


@pytest.mark.parametrize("name", different_when_tiny())
def test_the_tiny_form_of_every_recipe_runs(name, tmp_path):
    fewer = FEWER.get(name, ["s4.pairs=4", "analysis.samples=2"] if name.startswith("s4-") else [])
    result = tailorvit.run(name, out=tmp_path / "run", tiny=True, settings=fewer, progress="quiet")
    facts = check(tmp_path / "run")
    assert facts == json.loads(json.dumps(dict(result)))
    if facts["method"] == "s4":
        assert facts["spaces"][0]["t"] == 0 and {"t", "repair", "dims", "largest"} <= set(facts["spaces"][0])
        with Run.open(tmp_path / "run", lock=False) as run:
            assert run.decisions() and all(d["sentence"] for d in run.decisions())


@pytest.mark.parametrize(
    "sets",
    [
        ["method=fixed"],
        ["search.name=random", "final.how=inherit"],
        ["search.name=nsga2", "final.how=finetune"],
        ["s4.repair=slope", "s4.iterations=0"],
        ["limits.max_macs=300k", "train.rule=sandwich", "train.freeze=slice"],
        ["limits.min_params=5k", "baseline=false", "final.candidates=2", "train.freeze=tensor"],
    ],
    ids=lambda s: " ".join(s),
)
def test_other_ways_to_go(sets, tmp_path):
    quick = ["train.epochs=1", "final.train.epochs=1", "s4.iterations=1"]
    # Everything at its default; for a repair a space whose largest member has 174k parameters.
    text = 'space = "vit-8px"\n[limits]\nmax_params = "90k"\n' if "s4.repair=slope" in sets else ""
    (tmp_path / "mine.toml").write_text(text)
    tailorvit.run(
        str(tmp_path / "mine.toml"), out=tmp_path / "run", tiny=True, settings=[*quick, *sets], progress="quiet"
    )
    facts = check(tmp_path / "run")
    assert ("baseline=false" in sets) == (facts["baseline"] is None)
    with Run.open(tmp_path / "run", lock=False) as run:
        kinds = {d["kind"] for d in run.decisions()}
    assert ("s4.repair=slope" in sets) == ("repair" in kinds)


# -- your own pictures ------------------------------------------------------------------------------------------------


def picture(colour: int, number: int) -> Image.Image:
    """A square of the class's colour somewhere on noise."""
    rng = np.random.default_rng(100 * colour + number)
    pixels = rng.integers(0, 120, (40, 48, 3), dtype=np.uint8)
    top, left = rng.integers(0, 20, 2)
    pixels[top : top + 20, left : left + 24, colour] = 250
    return Image.fromarray(pixels)


@pytest.fixture
def squares(tmp_path) -> Path:
    """Three classes of pictures without split folders."""
    for colour, name in enumerate(("red", "green", "blue")):
        (tmp_path / "squares" / name).mkdir(parents=True)
        for number in range(20):
            picture(colour, number).save(tmp_path / "squares" / name / f"{number}.png")
    return tmp_path / "squares"


def test_a_folder_of_pictures_from_start_to_prediction(squares, tmp_path, monkeypatch):
    folder = tmp_path / "run"

    def stop(self, step, total, facts):
        if self.stage.startswith("final") and step == 2:
            raise KeyboardInterrupt

    def go(out):
        return tailorvit.run(
            data=str(squares), out=out, tiny=True, settings=["train.batch=16", "final.train.epochs=4"], progress="quiet"
        )

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(StageSink, "progress", stop)
        go(folder)
    write_report(folder)
    tailorvit.resume(folder, progress="quiet")
    facts = check(folder)
    assert facts["data"]["classes"] == 3 and sum(facts["data"]["counts"].values()) == 60
    assert facts["settings"]["image_size"] == [32, 32] and facts["settings"]["channels"] == 3

    go(tmp_path / "whole")
    other = check(tmp_path / "whole")
    for found in (facts, other):
        for leg in (leg for entry in found["contest"]["entries"] for leg in entry["rungs"]):
            leg.pop("seconds")
    assert {**facts, "seconds": 0} == {**other, "seconds": 0}
    weights = [(f / "network" / "network.safetensors").read_bytes() for f in (folder, tmp_path / "whole")]
    assert weights[0] == weights[1]

    network = tailorvit.load(folder)
    (scores,) = network.predict([squares / "red" / "0.png"])
    assert set(scores) == {"red", "green", "blue"} and sum(scores.values()) == pytest.approx(1, abs=1e-5)
    assert "red" in write_report(folder).read_text(encoding="utf-8")


def test_split_folders_are_kept(tmp_path):
    for part, count in (("train", 12), ("val", 4), ("test", 5)):
        for colour, name in enumerate(("red", "green")):
            (tmp_path / "data" / part / name).mkdir(parents=True)
            for number in range(count):
                picture(colour, 1000 * count + number).save(tmp_path / "data" / part / name / f"{number}.png")
    cut = tmp_path / "data" / "test" / "red" / "0.png"
    cut.write_bytes(cut.read_bytes()[:400])  # a header, no picture: seen only when the test split is opened
    tailorvit.run(
        data=str(tmp_path / "data"),
        out=tmp_path / "run",
        tiny=True,
        settings=["method=autoformer", "train.epochs=1", "final.train.epochs=1", "train.batch=12", "baseline=false"],
        progress="quiet",
    )
    assert check(tmp_path / "run")["data"]["counts"] == {"train": 24, "search": 8, "test": 9}
    with Run.open(tmp_path / "run", lock=False) as run:
        (event,) = run.events("skipped")
    assert event["text"].startswith("1 unreadable image(s)") and event["data"]["files"][0]["path"] == str(cut)
