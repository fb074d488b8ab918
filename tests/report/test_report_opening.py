"""The page is shown to who sits before the screen, to who asks for it, and to nobody else."""

from __future__ import annotations

import sys
import webbrowser

import pytest
from typer.testing import CliRunner

from tailorvit import api, cli
from tailorvit.report import opening

DESK = {"DISPLAY": ":0"}


@pytest.fixture
def opened(monkeypatch):
    """The addresses that a browser was asked to open; on a Linux desktop unless a test says otherwise."""
    asked = []
    monkeypatch.setattr(webbrowser, "open", lambda url: asked.append(url) or True)
    monkeypatch.setattr(sys, "platform", "linux")
    return asked


def terminal(monkeypatch, is_one=True):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_one, raising=False)


@pytest.mark.parametrize(
    "platform, env, looks",
    [
        ("linux", DESK, True),
        ("linux", {"WAYLAND_DISPLAY": "wayland-0"}, True),
        ("linux", {}, False),
        ("linux", {"DISPLAY": ""}, False),
        ("darwin", {}, True),
        ("win32", {}, True),
        ("linux", {**DESK, "CI": "true"}, False),
        ("linux", {**DESK, "SSH_CONNECTION": "10.0.0.1 1 10.0.0.2 22"}, False),
        ("darwin", {"SSH_TTY": "/dev/ttys001"}, False),
    ],
)
def test_who_looks(monkeypatch, platform, env, looks):
    monkeypatch.setattr(sys, "platform", platform)
    terminal(monkeypatch)
    assert opening.someone_looks(env) is looks
    terminal(monkeypatch, False)
    assert opening.someone_looks(env) is False


@pytest.mark.parametrize(
    "wanted, looks, opens", [(None, True, 1), (None, False, 0), (True, False, 1), (False, True, 0), (True, True, 1)]
)
def test_the_option_beats_the_guess(tmp_path, monkeypatch, opened, wanted, looks, opens):
    page = tmp_path / "a page.html"
    page.touch()
    monkeypatch.setattr(opening, "someone_looks", lambda: looks)
    assert opening.open_page(page, wanted) == ""
    assert opened == [page.as_uri()] * opens


def test_without_a_page_nothing_is_opened(tmp_path, opened):
    assert opening.open_page(tmp_path / "none.html", True) == "" and opened == []


@pytest.mark.parametrize("fails", [lambda url: False, None], ids=["False", "error"])
def test_without_a_browser_who_asked_is_told(tmp_path, monkeypatch, fails):
    def error(url):
        raise webbrowser.Error("could not locate runnable browser")

    page = tmp_path / "page.html"
    page.touch()
    monkeypatch.setattr(webbrowser, "open", fails or error)
    monkeypatch.setattr(opening, "someone_looks", lambda: True)
    assert opening.open_page(page, True) == f"No browser could be opened; the page is {page}."
    assert opening.open_page(page, None) == ""


class Finished:
    def __init__(self, folder):
        self.folder = folder

    def summary(self):
        return ["Found it"]


@pytest.mark.parametrize("verb", ["run", "resume", "finetune", "detect", "report"])
def test_the_commands_open_the_runs_page(make, monkeypatch, opened, verb):
    from tailorvit import downstream

    folder = make()
    page = folder / "report.html"
    page.touch()
    for module, name in ((api, "run"), (api, "resume"), (api, "finetune"), (downstream, "work")):
        monkeypatch.setattr(module, name, lambda *a, **k: Finished(folder))
    words = {"run": [], "finetune": [str(folder), "--data", "digits"], "detect": [str(folder), "--data", "x"]}
    command = [verb, *words.get(verb, [str(folder)])]
    for option, count in (([], 0), (["--open"], 1), (["--no-open"], 1)):  # a pipe is no terminal
        done = CliRunner().invoke(cli.app, [*command, *option])
        assert done.exit_code == 0, done.output
        assert len(opened) == count
    assert opened == [page.resolve().as_uri()]
