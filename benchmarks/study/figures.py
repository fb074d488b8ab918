"""Pictures of the CIFAR-10 study: errors of the spaces S4 passed, and every network trained by its width."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tailorvit.report import charts
from tailorvit.report.charts import Figure
from tailorvit.report.files import svg_file

Table = dict[str, Any]
# Groups of the second picture, by the first letters of a case.
GROUPS = {
    "uniform, by hand": ("a ", "landscape", "truth", "noise"),
    "AutoFormer, members of its space": ("b ", "rank first"),
    "S3": ("c ",),
    "S4": ("d ", "e ", "g ", "rank last", "travel", "slopes", "length"),
    "S4 by scores": ("f ",),
}


def edf(row: Table) -> Figure:
    """The share of each space's members with at most a given error, along one run of S4."""
    series: dict[str, list[tuple[float, float]]] = {}
    for stage in sorted(k for k, seen in row["edf"].items() if seen):
        errors = sorted(100 - v for v in row["edf"][stage] if v is not None)
        curve = [(e, (i + 1) / len(errors)) for i, e in enumerate(errors)]
        series[f"step {stage.partition('-')[2]}"] = [(curve[0][0], 0.0), *curve]
    rows = [(name, *point) for name, points in series.items() for point in points]
    drawing = charts.lines(
        series, f"Errors of the spaces of {row['name']}", "error, %", "share of members", stairs=True
    )
    words = "Share of members drawn at random with at most this error, with inherited weights."
    columns = ("space", "error", "share")
    return Figure(
        "edf", f"Errors of the spaces of {row['name']}", words, columns, rows, drawing, charts.legend([*series])
    )


def by_width(rows: Sequence[Table]) -> Figure:
    """Test accuracy of all networks trained at the study's rate over their width."""
    groups: dict[str, list[tuple[float, float]]] = {name: [] for name in GROUPS}
    for r in rows:
        case = r["case"].removeprefix("again ")  # a found network's other trainings belong to who found it
        for name, starts in GROUPS.items():
            if case.startswith(starts) and case != "noise half rate":
                groups[name].append((float(r["arch"]["embed"]), float(r["test"])))
    listed = [(name, *point) for name, points in groups.items() for point in points]
    title = "Networks trained from scratch, by their width"
    drawing = charts.scatter(groups, title, "channels", "test accuracy, %")
    words = "Every network of the study with at most 1.5M parameters; those far below the limit are true neighbours."
    return Figure("width", title, words, ("group", "channels", "test %"), listed, drawing, charts.legend([*groups]))


def draw(rows: Sequence[Table], folder: Path) -> list[Path]:
    """Write the pictures that there are rows for."""
    figures = [(f"cifar10-edf-{r['seed']}", edf(r)) for r in rows if r["case"] == "d s4" and any(r["edf"].values())]
    figures += [("cifar10-width", by_width(rows))] if rows else []
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for name, figure in figures:
        if figure.svg:
            made.append(folder / f"{name}.svg")
            made[-1].write_text(svg_file(figure), encoding="utf-8")
    return made
