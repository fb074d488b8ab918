"""The report: a run folder as one HTML page, alone, beside other runs, or live. It only reads the folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tailorvit.report.compare import Comparison, compare, write_comparison, write_comparison_figures
from tailorvit.report.files import write_figures, write_page
from tailorvit.report.page import figures, render
from tailorvit.report.reading import Facts, collect
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
    """Write RUN/report.html, or another file, in one step; its path."""
    path = Path(out) if out is not None else Path(folder) / "report.html"
    return write_page(path, render(collect(folder)))


def write_report_figures(folder: Path, out: Path, formats: Sequence[str] = ("svg", "csv")) -> list[Path]:
    """Every figure of a run's report as files."""
    return write_figures(figures(collect(folder)), Path(out), formats)
