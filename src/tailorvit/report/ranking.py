"""The figure of a ranking: tau-b among networks of similar size, with its interval, for every score."""

from __future__ import annotations

from pathlib import Path

from tailorvit.errors import TailorError
from tailorvit.proxies.ranking import Ranking
from tailorvit.report.charts import Figure, Mark, dot_rows
from tailorvit.report.files import svg_file, write_page


def ranking_figure(ranking: Ranking, target: str | None = None) -> Figure:
    """The taus of one accuracy within the band; colours show which scores are better than #params."""
    key = target or ranking.targets[0]
    colours = {"better than #params": "c2", "worse than #params": "c3", "": "c0"}
    columns = ("score", "tau", "tau_low", "tau_high", "band_tau", "band_low", "band_high", "verdict")
    rows, drawn = [], []
    for entry in ranking.of(key):
        whole, band = entry.agreement.tau, entry.agreement.band_tau
        ends = (whole.value, whole.low, whole.high, band.value, band.low, band.high)
        rows.append((entry.score, *ends, entry.verdict))
        if band.value is not None:
            low = band.value if band.low is None else band.low
            high = band.value if band.high is None else band.high
            words = f"{entry.score}: {band.value:.2f}, between {low:.2f} and {high:.2f}"
            mark = Mark(band.value, colours.get(entry.verdict, "c1"), words, (low, high))
            drawn.append((entry.score, [mark]))
    pairs = ranking.of(key)[0].agreement.pairs
    caption = (
        f"Kendall's tau-b against {key} among {pairs:,} pairs of {ranking.rows:,} architectures whose parameters "
        f"differ by at most {100 * ranking.band:g} %, with 95 % bootstrap intervals over architectures."
    )
    label = f"tau-b among pairs within {100 * ranking.band:g} % of size"
    legend = (("c0", "#params"), ("c2", "better than #params"), ("c1", "no clear difference"), ("c3", "worse"))
    drawing = dot_rows(drawn, f"Ranking of {ranking.table}", label)
    return Figure("ranking", f"{ranking.table}: {key}", caption, columns, rows, drawing, legend)


def check_figure(path: Path | None) -> None:
    """Refuse a file that cannot be drawn before anything is scored."""
    if path is not None and path.suffix != ".svg":
        raise TailorError(f"The figure of a ranking is an .svg file, not '{path.name}'.")


def write_ranking(ranking: Ranking, path: Path, target: str | None = None) -> Path:
    """Write the figure as an SVG file."""
    check_figure(path)
    figure = ranking_figure(ranking, target)
    if not figure.svg:
        raise TailorError("There is nothing to draw: no two architectures have a similar size.")
    return write_page(path, svg_file(figure))
