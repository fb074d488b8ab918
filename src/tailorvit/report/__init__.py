"""The report: a run folder told as one HTML page, alone, beside others, or live; it only reads the folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tailorvit.report.compare import Comparison, compare
from tailorvit.report.compare_page import write_comparison, write_comparison_figures
from tailorvit.report.facts import Facts, collect
from tailorvit.report.files import write_figures, write_page
from tailorvit.report.page import figures, render
from tailorvit.report.snapshot import read
from tailorvit.report.watch import watch

__all__ = [
    "Comparison",
    "Facts",
    "collect",
    "compare",
    "figures",
    "render",
    "watch",
    "write_comparison",
    "write_comparison_figures",
    "write_report",
    "write_report_figures",
]


def write_report(folder: Path, out: Path | None = None) -> Path:
    """Write RUN/report.html, or another file, in one step and say where it is."""
    path = Path(out) if out is not None else Path(folder) / "report.html"
    return write_page(path, render(read(Path(folder))))


def write_report_figures(folder: Path, out: Path, formats: Sequence[str] = ("svg", "csv")) -> list[Path]:
    """Every figure of a run's report as files of its own."""
    return write_figures(figures(read(Path(folder))), Path(out), formats)
