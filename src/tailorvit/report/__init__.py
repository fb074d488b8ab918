"""The report: a run folder told as one HTML page; it only reads the folder."""

from __future__ import annotations

from pathlib import Path

from tailorvit.errors import TailorError
from tailorvit.report.facts import Facts, collect
from tailorvit.report.page import render
from tailorvit.runs.atomic import write_text

__all__ = ["Facts", "collect", "render", "write_report"]


def write_report(folder: Path) -> Path:
    """Write RUN/report.html in one step and say where it is."""
    path = Path(folder) / "report.html"
    text = render(collect(Path(folder)))
    try:
        write_text(path, text)
    except OSError as error:
        raise TailorError(f"Cannot write '{path}': {error.strerror or error}.") from error
    return path
