"""Showing the finished page in the person's browser, where there is a person with a browser."""

from __future__ import annotations

import os
import sys
import webbrowser
from collections.abc import Mapping
from pathlib import Path

_ELSEWHERE = ("CI", "SSH_CONNECTION", "SSH_CLIENT", "SSH_TTY")  # set where nobody sits before this screen


def someone_looks(env: Mapping[str, str] = os.environ) -> bool:
    """Whether output goes to a terminal of a desktop on this machine."""
    if not sys.stdout.isatty() or any(env.get(name) for name in _ELSEWHERE):
        return False
    return sys.platform in ("darwin", "win32") or bool(env.get("DISPLAY") or env.get("WAYLAND_DISPLAY"))


def open_page(path: Path, wanted: bool | None) -> str:
    """Open a page if that is wanted, or, where nothing was said, if someone looks; a sentence where it fails."""
    if not (someone_looks() if wanted is None else wanted) or not path.is_file():
        return ""
    try:
        opened = webbrowser.open(path.resolve().as_uri())
    except (webbrowser.Error, OSError):
        opened = False
    return "" if opened or wanted is None else f"No browser could be opened; the page is {path}."
