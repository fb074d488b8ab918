"""Registries: our parts, parts registered by a call, and parts of installed packages, broken ones included."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib import metadata
from types import SimpleNamespace

import pytest

import tailorvit
from tailorvit import catalogue
from tailorvit import registry as registry_module
from tailorvit.errors import TailorError
from tailorvit.plugins import registries
from tailorvit.proxies import PROXIES
from tailorvit.registry import Registry

GROUP = "tailorvit.things"


@dataclass(frozen=True)
class Thing:
    name: str
    summary: str = "a thing"
    paper: str = ""
    experimental: bool = False


OURS, LATER = Thing("ours"), Thing("later", "loaded when used")
THEIRS = Thing("theirs", paper="P", experimental=True)
NAMELESS = 5


class Point(metadata.EntryPoint):
    """An entry point of a package that is not there."""

    dist = SimpleNamespace(name="their-package", version="1.2")


@pytest.fixture
def installed(monkeypatch):
    """Pretend that packages with these entry points are installed: name to module:attribute."""

    def install(**points):
        found = [Point(name, place, GROUP) for name, place in points.items()]
        monkeypatch.setattr(registry_module.metadata, "entry_points", lambda group: found if group == GROUP else [])

    install()
    return install


def things() -> Registry[Thing]:
    return Registry("thing", GROUP, {"ours": OURS, "later": "test_registry:LATER"})


def test_our_own_parts_are_imported_when_they_are_used(installed):
    found = Registry("thing", GROUP, {"ours": OURS, "absent": "no_such_module:THING"})
    assert list(found) == ["ours", "absent"] and len(found) == 2 and "absent" in found and "other" not in found
    assert found["ours"] is OURS and things()["later"] is LATER
    with pytest.raises(ImportError):
        found["absent"]


def test_an_unknown_name_is_one_sentence(installed):
    with pytest.raises(TailorError, match=r"^Unknown thing 'latr'\. Did you mean 'later'\? Known: later, ours\.$"):
        things()["latr"]
    assert things().get("latr") is None and things().get("latr", LATER) is LATER and things().get("ours") is OURS


def test_packages_add_parts_by_entry_points(installed):
    installed(theirs="test_registry:THEIRS")
    found = things()
    assert list(found) == ["ours", "later", "theirs"] and "theirs" in found
    assert found["theirs"] is THEIRS and found["theirs"] is found["theirs"]
    assert [found.origin(name) for name in found] == ["tailorvit", "tailorvit", "their-package 1.2"]
    facts = {"summary": "a thing", "origin": "their-package 1.2", "paper": "P", "experimental": True}
    assert found.rows()[-1] == {"name": "theirs", **facts}


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("no_such_module:THING", r"cannot be loaded \(ModuleNotFoundError: No module named 'no_such_module'\)"),
        ("test_registry:ABSENT", r"cannot be loaded \(AttributeError: .*ABSENT"),
        ("test_registry:NAMELESS", "is not a record with that name, but 5"),
        ("test_registry:LATER", "is not a record with that name, but Thing"),
    ],
)
def test_a_broken_plugin_breaks_nothing_but_itself(installed, place, reason):
    installed(wrong=place)
    found = things()
    with pytest.raises(TailorError, match=f"^The thing 'wrong' of their-package 1.2 {reason}"):
        found["wrong"]
    assert list(found.working()) == [OURS, LATER]
    *good, bad = found.rows()
    assert [row["name"] for row in good] == ["ours", "later"] and not any(row.get("broken") for row in good)
    assert bad["broken"] and bad["name"] == "wrong" and "their-package 1.2" in bad["summary"]


def test_names_of_ours_cannot_be_replaced(installed):
    installed(ours="test_registry:THEIRS", theirs="test_registry:THEIRS")
    found = things()
    assert found["ours"] is OURS and found.origin("ours") == "tailorvit" and list(found).count("ours") == 1
    for taken, origin in (("ours", "tailorvit"), ("later", "tailorvit"), ("theirs", "their-package 1.2")):
        with pytest.raises(TailorError, match=f"^There is a thing '{taken}' already, from {origin}.$"):
            found.register(Thing(taken))
    assert found["ours"] is OURS and found["theirs"] is THEIRS


def test_a_program_adds_parts_by_a_call(installed):
    found, mine = things(), Thing("mine")
    assert found.register(mine) is mine and found["mine"] is mine and found.origin("mine") == "this program"
    other = replace(mine, summary="another")
    assert found.register(other) is found["mine"] is other, "a cell of a notebook may run twice"


# -- the package's own registries -------------------------------------------------------------------------------------


@pytest.fixture
def program(monkeypatch):
    """What a test registers is gone after it."""
    for _, registry in registries().values():
        monkeypatch.setattr(registry, "added", {})


def test_register_knows_every_kind_of_part_by_its_class(program):
    for kind, registry in registries().values():
        first = next(iter(registry.values()))
        assert isinstance(first, kind)
        mine = replace(first, name="of-this-program")
        assert tailorvit.register(mine) is registry["of-this-program"] is mine
        with pytest.raises(TailorError, match=f"'{first.name}' already, from tailorvit"):
            tailorvit.register(first)


@pytest.mark.parametrize("wrong", [5, "dss", Thing("dss"), dict], ids=str)
def test_registering_what_is_no_part_is_one_sentence(program, wrong):
    words = f"^A {type(wrong).__name__} is no part of TailorViT; register one of Family, Method, SearchMethod, Proxy, "
    with pytest.raises(TailorError, match=words):
        tailorvit.register(wrong)


def test_listing_survives_a_broken_plugin(program, monkeypatch):
    for what, (_, registry) in registries().items():
        monkeypatch.setattr(registry, "_plugins", {"wrong": Point("wrong", "no_such_module:X", registry.group)})
        *good, bad = catalogue.listing(what)
        assert good and all(row["origin"] == "tailorvit" and row["summary"] for row in good)
        assert bad["name"] == "wrong" and bad["broken"] and "cannot be loaded (ModuleNotFoundError" in bad["summary"]
    assert tailorvit.named_space("vit-8px") and catalogue.listing("spaces") and catalogue.listing("archs")
    with pytest.raises(TailorError, match=r"The proxy 'wrong' of their-package 1\.2 cannot be loaded"):
        PROXIES["wrong"]
