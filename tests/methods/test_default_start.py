"""Photos of one's own begin with a pretrained network where one is at hand; nothing else does, and nobody is asked."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from huggingface_hub import constants
from PIL import Image

import tailorvit
from tailorvit import api
from tailorvit.checkpoints import starts
from tailorvit.checkpoints.starts import Start, open_pretrained
from tailorvit.errors import TailorError
from tailorvit.methods import tailor_plan
from tailorvit.runs import Run
from tailorvit.trunks import libraries

QUICK = ["analysis.images=0", "analysis.mistakes=0", "device=cpu", "train.batch=8", "train.precision=fp32"]
TINY_START = Start("random:tiny", 24, 29_000, 2, "none", "made up")


def pictures(folder: Path, side: int = 70, grey: bool = False) -> str:
    for colour, name in enumerate(("red", "green")):
        (folder / name).mkdir(parents=True)
        for number in range(10):
            pixels = np.random.default_rng(number).integers(0, 120, (side, side, 3), dtype=np.uint8)
            pixels[8:30, 8:30, colour] = 250
            image = Image.fromarray(pixels)
            (image.convert("L") if grey else image).save(folder / name / f"{number}.png")
    return str(folder)


@pytest.fixture
def photos(tmp_path):
    return pictures(tmp_path / "photos")


@pytest.fixture
def asked(monkeypatch):
    """What the list of starts was asked for; a made-up one is found."""
    seen = []

    def fake(size, params):
        seen.append((size, params))
        return open_pretrained("random:tiny"), "Starts from random:tiny (made up)."

    monkeypatch.setattr(api, "first_at_hand", fake)
    return seen


@pytest.fixture
def nobody(monkeypatch):
    """Asking for a pretrained network fails the test."""
    monkeypatch.setattr(api, "first_at_hand", lambda size, params: pytest.fail("looked for a pretrained network"))
    monkeypatch.setattr(libraries, "hub_reachable", lambda: pytest.fail("asked the hub"))


def choices(recipe=None, **given):
    rest = {k: given.pop(k) for k in ("settings", "tiny", "seed") if k in given}
    limits = {k: given.pop(k) for k in list(given) if k.startswith(("max_", "min_"))}
    return api._choices(recipe, {**given, "limits": limits}, rest)


# -- who begins with one ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"recipe": "image-folder"},
        {"max_params": "3M"},
        {"max_macs": "1G"},
        {"max_latency": "10s"},
        {"image_size": 64},
        {"budget": "1h", "seed": 3},
        {"settings": ["train.epochs=9"]},
    ],
    ids=str,
)
def test_photos_begin_with_a_pretrained_network(photos, asked, given):
    first, scratch = choices(data=photos, **given)
    assert first.config.method == "tailor" and first.config.start.network == "random:tiny"
    assert first.note == "Starts from random:tiny (made up), as these are photos; --from none trains from scratch."
    assert scratch.config.method == "contest" and not scratch.config.start.network and not scratch.note
    side = given.get("image_size", 224)
    assert asked == [((side, side), 3e6 if "max_params" in given else None)]
    assert first.config.time == scratch.config.time == given.get("budget", "auto"), "as long as from scratch"
    assert first.config.limits == scratch.config.limits


@pytest.mark.parametrize(
    "given",
    [
        {"max_params": "2.9M"},
        {"settings": ["limits.max_params=60k"]},
        {"image_size": 48},
        {"settings": ["data.image_size=[96,60]"]},
        {"settings": ["family=vit"]},
        {"settings": ["method=s4"]},
        {"settings": ["space=vit-64px"]},
        {"settings": ["start.network=none"]},
        {"method": "contest"},
        {"method": "s4"},
        {"start": "none"},
        {"recipe": "s4-digits"},
        {"tiny": True},
    ],
    ids=str,
)
def test_whoever_says_otherwise_trains_from_scratch_and_nobody_is_asked(photos, nobody, given):
    (only,) = choices(data=photos, **given)
    assert only.config.method != "tailor" and not only.config.start.network and not only.note


def test_no_photos_no_pretrained_network(tmp_path, nobody):
    np.savez(tmp_path / "small.npz", x=np.zeros((20, 32, 32, 3), np.uint8), y=np.arange(20) % 2)
    places = [
        pictures(tmp_path / "grey", grey=True),
        pictures(tmp_path / "small", side=40),
        str(tmp_path / "small.npz"),
    ]
    for data in (*places, "digits", None, str(tmp_path / "nowhere")):
        (only,) = choices(data=data)
        assert only.config.method in ("contest", "s4") and not only.note
    assert choices(data="digits", recipe="image-folder")[0].config.method == "contest"


def test_none_is_said_by_hand_or_in_a_recipe(photos, tmp_path):
    for config in (
        api.recipe_for(data=photos, settings=["start.network=none"]),
        api.recipe_for("image-folder", data=photos, settings={"start.network": "none"}),
    ):
        assert config.method == "contest" and config.start.network == ""
    with pytest.raises(TailorError, match="Method 'tailor' needs a pretrained network"):
        tailorvit.run("tailor", data="digits", start="none", out=tmp_path / "run", progress="quiet")


# -- runs -------------------------------------------------------------------------------------------------------------


def test_a_run_says_what_was_chosen(photos, asked, tmp_path, monkeypatch):
    result = tailorvit.run(
        data=photos, image_size=64, max_params="3M", budget="3epochs", out=tmp_path / "run", progress="quiet",
        settings=[*QUICK, "tailor.epochs=2", "train.epochs=2"],
    )  # fmt: skip
    assert result["method"] == "tailor" and result["whole"]["network"] == "random:tiny"
    note = json.loads((tmp_path / "run" / "info.json").read_text())["note"]
    with Run.open(tmp_path / "run", lock=False) as run:
        assert note in [e["text"] for e in run.events("start")] and "--from none" in note


@pytest.mark.parametrize(
    ("why", "given"),
    [
        ("No architecture of the space has params >= 5M", {"min_params": "5M"}),
        ("the time is enough for fewer than 5 epochs of it", {}),
        ("A budget of 20.0 minutes is too short", {}),
    ],
    ids=str,
)
def test_a_network_that_cannot_be_used_is_no_hindrance(photos, asked, why, given, monkeypatch):
    if "enough" in why:
        plan = {"whole_epochs": 4, "final_epochs": 5, "lines": []}
        monkeypatch.setattr(tailor_plan, "planned", lambda session: plan)
    if "short" in why:
        seconds = {"epoch": 9e3, "setup": 0.0, "memory": 0.0}
        monkeypatch.setattr(tailor_plan, "pace", lambda *given, **more: (given[1](), seconds)[1])
    monkeypatch.setattr(api.schedule, "planned", lambda session: {"lines": [session.config.method]})
    lines = api.plan(data=photos, image_size=64, settings=QUICK, **given)["lines"]
    assert lines[-1] == "contest"
    assert lines[0].startswith(f"random:tiny is at hand but cannot be used here ({why}")
    assert lines[0].endswith("), so the run goes on from scratch.") and lines[0].count(". ") == 0


def test_front_asks_for_a_pretrained_network_so_nothing_else_will_do(photos, asked):
    (only,) = choices(data=photos, front="12k", max_params="3M")
    assert only.config.tailor.front == ["12k"]


# -- at hand ----------------------------------------------------------------------------------------------------------


def test_without_weights_the_run_is_the_one_from_scratch_with_one_sentence(photos, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(libraries, "hub_reachable", lambda: asked.append(1) and False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    begun = time.monotonic()
    (only,) = choices(data=photos)
    assert time.monotonic() - begun < 30, "no retries"
    assert only.config == api.recipe_for(data=photos) and only.config.method == "contest"
    assert only.note.endswith("; so the run goes on from scratch.") and only.note.count(". ") == 0
    with pytest.raises(TailorError, match=r"Several sizes \(2M\) are for a pretrained start"):
        choices(data=photos, front="2M")


def test_weights_in_the_cache_are_at_hand_without_the_hub(photos, monkeypatch):
    monkeypatch.setattr(libraries, "hub_reachable", lambda: False)
    monkeypatch.setattr(starts, "STARTS", (Start("timm:no_such_model", 24, 1, 2, "none", "absent"), TINY_START))
    first, _ = choices(data=photos, image_size=64)
    assert first.by_default == "random:tiny" and "made up" in first.note


@pytest.fixture
def hub(monkeypatch):
    """A hub's client that counts what it is asked, and does what the test says."""
    made = SimpleNamespace(asked=0, answer=lambda: None)

    def head(address, timeout):
        made.asked += 1
        made.answer()

    utils = SimpleNamespace(get_session=lambda: SimpleNamespace(head=head))
    real = libraries.import_module
    monkeypatch.setattr(libraries, "import_module", lambda n: utils if n == "huggingface_hub.utils" else real(n))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    libraries._answers.cache_clear()
    yield made
    libraries._answers.cache_clear()


def test_the_hub_is_asked_once_and_not_waited_for(hub, monkeypatch):
    monkeypatch.setattr(libraries, "HUB_REMEMBERED", 1e9)
    assert libraries.hub_reachable() and libraries.hub_reachable() and hub.asked == 1
    libraries._answers.cache_clear()

    def refused():
        raise ConnectionError

    hub.answer = refused
    assert not libraries.hub_reachable() and not libraries.hub_reachable() and hub.asked == 2
    libraries._answers.cache_clear()
    assert libraries.HUB_SECONDS <= 2
    monkeypatch.setattr(libraries, "HUB_SECONDS", 0.1)
    hub.answer = lambda: time.sleep(1)
    begun = time.monotonic()
    assert not libraries.hub_reachable() and time.monotonic() - begun < 0.9
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert not libraries.hub_reachable() and hub.asked == 3
