"""The documentation's site: its pages, links and reference, and the notebook. CI builds the whole of it."""

from __future__ import annotations

import importlib.util
import re
from importlib import import_module
from pathlib import Path

import pytest

import tailorvit

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def script(name: str):
    """A Python file of docs/, which is no package."""
    spec = importlib.util.spec_from_file_location(f"docs_{name}", DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


hooks, notebook = script("site_hooks"), script("notebook")


def test_every_page_has_its_place_in_the_menu():
    menu = set(re.findall(r": ([\w/.-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.M))
    pages = {place for place in hooks.places().values() if place.endswith(".md")}
    assert menu == {p for p in pages if not re.match(r"benchmarks/.+/", p)} | {"notebook.md"}


@pytest.mark.parametrize("file", ["mkdocs.yml", "docs/site_hooks.py"])
def test_the_site_asks_no_other_host(file):
    text = (ROOT / file).read_text(encoding="utf-8")
    assert "http" not in text.replace("http.server", "").replace("https?:", "")
    assert "font: false" in text or file != "mkdocs.yml"


@pytest.mark.parametrize(
    "text",
    [
        '<script src="https://host/a.js"></script>',
        '<link rel="stylesheet" href="//host/a.css">',
        "<img alt='x' src='http://host/a.png'>",
    ],
)
def test_a_page_that_loads_from_afar_is_found(text):
    assert hooks._AFAR.search(text)
    assert not hooks._AFAR.search('<a href="https://host/">x</a><script src="../assets/a.js"></script>')


@pytest.mark.parametrize(
    "source, text, shown",
    [
        ("README.md", "[t](docs/tutorial.md)", "[t](tutorial.md)"),
        ("README.md", "[one](docs/methods.md#s4)", "[one](methods.md#s4)"),
        ("README.md", "![p](docs/images/digits-answer.png)", "![p](images/digits-answer.png)"),
        ("docs/install.md", "[README](../README.md)", "[README](index.md)"),
        ("docs/contest.md", "[b](../benchmarks/win/README.md)", "[b](benchmarks/win/index.md)"),
        ("docs/families/pit.md", "[`r`](../recipes.md)", "[`r`](../recipes.md)"),
        ("benchmarks/win/README.md", "[log](../../docs/log.md)", "[log](../../log.md)"),
        ("docs/trust.md", "[`tests/conftest.py`](../tests/conftest.py)", "`tests/conftest.py`"),
        ("docs/trust.md", "[the test](../tests/conftest.py)", "the test (`tests/conftest.py`)"),
        ("docs/trust.md", "`row[0](x)` and [w](https://host/)", "`row[0](x)` and [w](https://host/)"),
        ("docs/trust.md", "```\nrow[0](x)\n```", "```\nrow[0](x)\n```"),
    ],
)
def test_links_of_the_repository_become_those_of_the_site(source, text, shown):
    assert hooks.relinked(text, source, hooks.places()) == shown


def test_the_reference_has_every_public_name():
    shown = re.findall(r"^::: ([\w.]+)$", (DOCS / "reference.md").read_text(encoding="utf-8"), re.M)
    assert {f"tailorvit.{name}" for name in tailorvit.__all__} <= set(shown) and len(shown) == len(set(shown))
    for path in shown:
        module, _, name = path.rpartition(".")
        assert getattr(import_module(module), name).__doc__, path


def test_the_parts_in_the_reference_are_those_that_can_be_registered():
    from tailorvit.plugins import registries

    text = (DOCS / "reference.md").read_text(encoding="utf-8")
    assert all(re.search(rf"^::: [\w.]+\.{kind.__name__}$", text, re.M) for kind, _ in registries().values())


def figures_aside(book: dict) -> list[str]:
    """What the cells printed, without numbers: a training differs in the last digits from machine to machine."""
    printed = ["".join("".join(o["text"]) for o in c["outputs"]) for c in book["cells"] if c["cell_type"] == "code"]
    return [re.sub(r" *[\d,.]+", " #", text) for text in printed]


def test_the_notebook_holds_what_its_cells_print(tmp_path):
    book = notebook.read()
    again = notebook.executed(book, tmp_path)
    assert figures_aside(again) == figures_aside(book) and all(figures_aside(book))
    assert [c["source"] for c in again["cells"]] == [c["source"] for c in book["cells"]]
    assert "47,466 parameters" in hooks.notebook_text(again)


def test_a_cell_that_prints_otherwise_is_found(tmp_path):
    cell = {"cell_type": "code", "source": ["print('new', 5)"], "outputs": [{"text": ["old 4\n"]}]}
    again = notebook.executed({"cells": [cell]}, tmp_path)
    assert figures_aside(again) == ["new #\n"] != figures_aside({"cells": [cell]})
