"""The bundler: what is reached goes in, in order and once; what it cannot do it refuses. And the model card."""

from __future__ import annotations

import ast
import re

import pytest
from export_tools import NAMES

from tailorvit.export import bundle as bundler
from tailorvit.export.bundle import bundle
from tailorvit.export.model_card import _accuracy, data_name, escaped


@pytest.fixture
def house(tmp_path, monkeypatch):
    """A package of its own, with the bundler told that it is ours."""
    place = tmp_path / "house_to_bundle"
    (place / "plain").mkdir(parents=True)
    for name in ("__init__", "plain/__init__"):
        (place / f"{name}.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(bundler, "HOUSE", place.name)

    def write(**files: str) -> None:
        for name, text in files.items():
            (place / f"{name}.py").write_text(text)

    yield write
    import sys

    for name in [m for m in sys.modules if m.split(".")[0] == place.name]:
        del sys.modules[name]


BASE = '''"""Base."""
import math
import os
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from fractions import Fraction
# why it is three
SIDE = 3
UNUSED = os.sep
def area(x: Fraction | int = 1) -> float:
    return math.sqrt(SIDE * x)
def never() -> None: ...
'''
NET = "from house_to_bundle.base import area\nclass Net:\n    value = area(3)\n"
GLUE = (
    '"""Glue."""\nfrom house_to_bundle.plain import PLAIN\n'
    "def make():\n    return plain_class('n')()\n@property\ndef x(self): ...\n"
)
FAMILIES = [("n", "house_to_bundle.net", "Net")]


def test_a_bundle_runs_by_itself_and_holds_only_what_is_reached(house):
    house(base=BASE, net=NET, glue=GLUE)
    text = bundle("Head.", FAMILIES, "house_to_bundle.glue")
    assert "import os" not in text and "never" not in text and "UNUSED" not in text
    assert "# why it is three\nSIDE = 3" in text and "if TYPE_CHECKING:\n    from fractions import Fraction" in text
    assert not re.search(r"^\s*(from|import) house_to_bundle", text, re.M)
    names: dict[str, object] = {}
    exec(compile(text, "bundle", "exec"), names)
    assert names["make"]().value == 3.0 and isinstance(names["x"], property)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"net": NET + "SIDE = 4\nclass Net:\n    value = SIDE + area(1)\n"}, "both define 'SIDE'"),
        ({"net": "from house_to_bundle.base import area as a\nclass Net:\n    value = a(3)\n"}, "under its own name"),
        ({"net": "import house_to_bundle.base\nclass Net: ...\n"}, "must import names"),
        ({"net": "class Net:\n    def f(self):\n        from house_to_bundle.base import area\n"}, "inside functions"),
    ],
)
def test_what_cannot_be_bundled_is_refused(house, files, words):
    house(**{"base": BASE, "net": NET, "glue": GLUE, **files})
    with pytest.raises(ValueError, match=words):
        bundle("Head.", FAMILIES, "house_to_bundle.glue")


@pytest.mark.parametrize(("to", "name"), [("timm", "tailorvit_network.py"), ("hf", "modeling_tailorvit.py")])
def test_the_sources_beside_a_network_parse_and_import_nothing_of_ours(exported, to, name):
    text = (exported(to).path / name).read_text()
    for node in ast.walk(ast.parse(text)):
        modules = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        modules += [node.module] if isinstance(node, ast.ImportFrom) else []
        assert not [m for m in modules if m.split(".")[0] == "tailorvit"]
    assert text.count("class PlainViT") == 1 and 'PLAIN = {"vit": PlainViT}' in text


# -- the model card ----------------------------------------------------------------------------------------------------


def test_the_card_says_what_is_known_and_no_more(exported):
    text = (exported("hf").path / "README.md").read_text()
    for word in (
        "s4",
        "90.00 %",
        "A baseline is not recorded",
        "## Limits",
        "## Licence",
        "1259 train",
        "| name | digits |",
    ):
        assert word in text, word
    assert "/home" not in text and "<b>" not in text and not re.search(r"(?<!\\)\]\(", text)
    for name in NAMES:
        assert escaped(name) in text


def test_hostile_names_stay_text():
    assert escaped("a|b\n# c") == r"a\|b \# c"
    assert escaped("<script>*x*</script>") == r"&lt;script&gt;\*x\*&lt;/script&gt;"
    assert escaped("[x](http://e.org) `y` 1.5") == r"\[x\](http\://e\.org) \`y\` 1.5"


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("digits", "digits"),
        ("/home/me/photos", "photos"),
        ("C:\\Users\\me\\photos", "photos"),
        ("torchvision:CIFAR10@/data/me", "torchvision:CIFAR10"),
        ("/home/me@work/photos", "photos"),
        ("photos/", "photos"),
    ],
)
def test_data_is_named_without_its_folders(source, name):
    assert data_name(source) == name


def test_no_baseline_is_not_the_same_as_none_known():
    assert "No baseline was trained" in _accuracy({"baseline": None}, {})
    assert "not recorded" in _accuracy({}, {})
    assert "hand-designed" in _accuracy({"baseline": {"params": 5, "macs": 6, "test_accuracy": 50.0}}, {})
