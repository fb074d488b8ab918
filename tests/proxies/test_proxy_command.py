"""tailorvit score: rows best first, sentences where there is nothing to score."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tailorvit.errors import TailorError
from tailorvit.proxies import PROXIES, Proxy, ProxySettings
from tailorvit.scoring import lines, score


def test_members_of_a_space_come_best_first_within_the_limits():
    facts = score("vit-8px", ProxySettings(("dss", "te", "params")), n=6, limits={"max_params": "90k"})
    rows = facts["rows"]
    assert len(rows) == 6 == len({json.dumps(r["arch"]) for r in rows})
    assert all(r["params"] <= 90_000 for r in rows)
    assert [r["scores"]["dss"] for r in rows] == sorted((r["scores"]["dss"] for r in rows), reverse=True)
    assert sorted(r["scores"]["te"] for r in rows)[0] >= 2, "ranked over all six"
    assert facts == score("vit-8px", ProxySettings(("dss", "te", "params")), n=6, limits={"max_params": "90k"})
    text = lines(facts, top=2)
    assert len(text) == 3 and text[0] == "vit-8px (vit): 6 architectures, best dss first"
    assert f"dss {rows[0]['scores']['dss']:.6g}" in text[1]


def test_a_proxy_from_outside_is_a_record(monkeypatch):
    """All a plug-in brings: a record with a function of a Task."""

    def smallest_head(task):
        return {"score": float(task.network().head.weight.detach().abs().min()), "blocks": 1.0}

    mine = Proxy("mine", "smallest weight of the head", "made up", False, "forward", "nothing", smallest_head)
    monkeypatch.setitem(PROXIES.added, "mine", mine)
    facts = score("vit-8px", ProxySettings(("mine", "params"), inits=2), n=5)
    values = [r["scores"]["mine"] for r in facts["rows"]]
    assert values == sorted(values) and len(set(values)) > 1, "the smallest is best"
    assert facts["rows"][0]["parts"] == {"mine": {"blocks": 1.0}} and not facts["proxies"][0]["higher"]


def test_the_documented_proxy_works(monkeypatch):
    page = (Path(__file__).parents[2] / "docs" / "proxies.md").read_text(encoding="utf-8")
    names: dict = {}
    exec(re.search(r"^```python\n(.*?)^```$", page, re.M | re.S)[1], names)
    mine = names["GRAD_NORM"]
    monkeypatch.setitem(PROXIES.added, mine.name, mine)
    for space in ("vit-8px", "pit-8px", "ladder-8px"):
        rows = score(space, ProxySettings((mine.name,)), n=2)["rows"]
        assert all(r["scores"][mine.name] > 0 and r["problems"] == {} for r in rows)


def test_one_architecture_and_real_images(tmp_path):
    arch = {"family": "vit", "depth": 2, "embed": 32, "heads": [2, 2], "mlp": [2, 3]}
    shared = {"image_size": [8, 8], "patch": 2, "channels": 1, "head_dim": 16, "classes": 4}
    (tmp_path / "a.json").write_text(json.dumps({"arch": arch, "settings": shared}))
    facts = score(str(tmp_path / "a.json"), ProxySettings(("snip", "te"), batch=12), data="digits")
    (row,) = facts["rows"]
    assert facts["settings"]["classes"] == 10, "the data's"
    assert facts["fixed"] == facts["settings"], "the key was 'fixed' until version 0.1"
    assert row["scores"]["snip"] > 0 and row["scores"]["te"] is None
    assert any("1 without a score: te ranks candidates" in line for line in lines(facts))
    noisy = score(str(tmp_path / "a.json"), ProxySettings(("snip",), batch=12, noise=True), classes=10)
    assert noisy["rows"][0]["scores"]["snip"] != row["scores"]["snip"]


@pytest.mark.parametrize(
    ("name", "settings", "options", "words"),
    [
        ("vit-8p", {}, {}, "Unknown architecture or space 'vit-8p'. Did you mean 'vit-8px'"),
        ("vit-8px", {"names": ("snip", "dss", "grasp")}, {}, "snip, grasp needs images and labels: add --data"),
        ("vit-8px", {"names": ("none",)}, {}, "Unknown proxy 'none'.*Known: .*dss.*naswot"),
        ("vit-8px", {}, {"n": 0}, "at least one architecture, not 0"),
        ("vit-8px", {"names": ("dss", "naswot"), "batch": 1}, {}, "naswot needs a batch of at least 2, not 1"),
        ("vit-8px", {}, {"limits": {"max_params": "1k"}}, "keeps the limits"),
        ("ladder-8px", {"names": ("snip",)}, {"data": "digits"}, "leave --data out"),
        ("missing.toml", {}, {}, "Cannot read the space file 'missing.toml'"),
    ],
)
def test_mistakes_are_one_sentence(name, settings, options, words):
    with pytest.raises(TailorError, match=words):
        score(name, ProxySettings(**settings), **options)
