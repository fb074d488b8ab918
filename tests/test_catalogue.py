"""What ``tailorvit list`` prints: quickly, without torch, and the same as the records say."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from importlib import metadata
from types import SimpleNamespace

import pytest

import tailorvit
from tailorvit import catalogue
from tailorvit.config import recipe_names
from tailorvit.errors import TailorError
from tailorvit.plugins import registries

QUICK = [*catalogue.kinds(), "presets", "recipes", "spaces", "archs"]
LISTED = """
import json, sys
import tailorvit
rows = {{what: tailorvit.listing(what) for what in {names!r}}}
heavy = [name for name in ("torch", "numpy", "timm", "pydantic") if name in sys.modules]
print(json.dumps([rows, heavy]))
"""


def test_the_file_says_what_the_records_say():
    written = json.loads(catalogue.FILE.read_text(encoding="utf-8"))
    assert written == catalogue.from_records(), "a part was changed: run python -m tailorvit.catalogue"


def test_listing_needs_no_torch_and_tells_the_same():
    text = LISTED.format(names=QUICK)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    rows, heavy = json.loads(done.stdout)
    assert heavy == []
    assert rows == {what: tailorvit.listing(what) for what in QUICK}  # here from the records, as torch is loaded
    assert [row["name"] for row in rows["recipes"]] == recipe_names() and all(r["summary"] for r in rows["recipes"])


@pytest.mark.parametrize("words", [["list", "families"], ["list", "--json"], ["cost", "deit-ti"]], ids=" ".join)
def test_the_command_is_quick(words):
    """0.2 s on a quiet core; torch alone would take 1.7."""
    spent = []
    for _ in range(2):  # the better of two, as other tests run beside
        start = time.monotonic()
        done = subprocess.run([sys.executable, "-m", "tailorvit", *words], capture_output=True, text=True, check=True)
        spent.append(time.monotonic() - start)
    assert min(spent) < 1.5 and ("5,717,416 parameters" if "cost" in words else "hybrid") in done.stdout


def test_kinds_are_those_of_the_registries():
    assert catalogue.kinds() == list(registries())


def test_an_unknown_list_is_one_sentence():
    with pytest.raises(TailorError, match=r"Unknown list 'famlies'\. Did you mean 'families'"):
        catalogue.listing("famlies")


def test_a_registered_part_is_listed(monkeypatch):
    from dataclasses import replace

    registry = registries()["searchers"][1]
    monkeypatch.setattr(registry, "added", {})
    tailorvit.register(replace(registry["random"], name="mine"))
    assert catalogue.listing("searchers")[-1]["name"] == "mine"


def test_a_plugin_is_listed_by_its_own_record(monkeypatch):
    """Also without torch; one that fails says so, and a name of ours stays ours."""
    before = catalogue.listing("proxies")
    monkeypatch.setitem(sys.modules, "their_package", SimpleNamespace(MINE=SimpleNamespace(name="mine", summary="new")))
    named = {"mine": "their_package:MINE", "broken": "no_such_module:X", "dss": "no_such_module:X"}
    points = [metadata.EntryPoint(name, value, "tailorvit.proxies") for name, value in named.items()]
    monkeypatch.setattr(metadata, "entry_points", lambda group: points if group == "tailorvit.proxies" else [])
    monkeypatch.delitem(sys.modules, "torch")
    *own, first, second = catalogue.listing("proxies")
    assert own == before and own[0]["name"] == "dss" and own[0]["origin"] == "tailorvit"
    rows = {row["name"]: row for row in (first, second)}
    assert rows["mine"]["summary"] == "new" and rows["mine"]["origin"] == "an unknown package"
    assert rows["broken"]["broken"] and "cannot be loaded (ModuleNotFoundError" in rows["broken"]["summary"]
