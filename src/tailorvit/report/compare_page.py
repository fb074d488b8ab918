"""The page of a comparison: tables, differences and figures in one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tailorvit.errors import TailorError
from tailorvit.report.compare import GROUP_HEADS, HEADS, METRICS, Comparison, compare, group_cells, run_cells
from tailorvit.report.compare_charts import comparison_figures
from tailorvit.report.files import write_figures, write_page
from tailorvit.report.page import shell
from tailorvit.report.parts import cell, fold, grid, none

_KEYS = 200  # differing recipe keys shown; the JSON has them all


def render_comparison(comparison: Comparison) -> str:
    """The comparison as one page."""
    count = len(comparison.runs)
    title = f"{count} run{'s' if count != 1 else ''} compared"
    parts = [
        ("groups", "The groups", _groups(comparison)),
        ("figures", "Figures", _figures(comparison)),
        ("runs", "The runs", _runs(comparison)),
        ("recipes", "Where the recipes differ", _recipes(comparison)),
    ]
    body = "".join(
        f'<section id="{key}"><h2>{number}. {cell(name)}</h2>\n{inner}\n</section>\n'
        for number, (key, name, inner) in enumerate(parts, 1)
    )
    return shell(f"{title} – TailorViT", f"<main>\n<h1>{cell(title)}</h1>\n{_notes(comparison)}{body}</main>\n")


def _notes(comparison: Comparison) -> str:
    if not comparison.notes:
        return ""
    items = "".join(f"<li>{cell(sentence)}</li>" for sentence in comparison.notes)
    return f'<div class="note"><ul>{items}</ul></div>\n'


def _groups(comparison: Comparison) -> str:
    text = "<p>Runs that differ in nothing but their seed and the machine are one group.</p>"
    text += f"<ol>{''.join(f'<li>{cell(g.name)}</li>' for g in comparison.groups)}</ol>"
    body = [(*group_cells(g)[:1], g.label, *group_cells(g)[1:]) for g in comparison.groups]
    head = (GROUP_HEADS[0], "what", *GROUP_HEADS[1:])
    text += grid(head, body, len(GROUP_HEADS) - 1)
    text += none("Mean ± standard deviation over finished runs (lowest to highest). Gain: found less its own baseline.")
    told = comparison.sentences()
    items = "".join(f"<li>{cell(sentence)}</li>" for sentence in told)
    return text + (f"<h3>Differences in test accuracy</h3><ul>{items}</ul>" if told else "")


def _figures(comparison: Comparison) -> str:
    return "".join(f.html() for f in comparison_figures(comparison)) or none("No run has anything to draw yet.")


def _runs(comparison: Comparison) -> str:
    body = [run_cells(r) for r in comparison.runs]
    keys = [(r.name, r.group, r.seed, r.status, *(getattr(r, m) for m in METRICS)) for r in comparison.runs]
    paths = grid(("run", "folder"), [(r.name, r.path) for r in comparison.runs])
    return grid(HEADS, body, 6, keys) + fold("Folders", paths)


def _recipes(comparison: Comparison) -> str:
    if not comparison.keys:
        return none("All recipes are the same." if len(comparison.runs) > 1 else "There is one run only.")
    head = ("key", *(r.name for r in comparison.runs))
    rest = len(comparison.keys) - _KEYS
    more = none(f"{rest} more keys differ.") if rest > 0 else ""
    return grid(head, [(key, *values) for key, values in comparison.keys[:_KEYS]]) + more


def write_comparison(comparison: Comparison | Sequence[Path], out: Path) -> Path:
    """Write the page of a comparison, or of some folders, in one step."""
    ready = comparison if isinstance(comparison, Comparison) else compare(comparison)
    out = Path(out)
    if out.is_dir():
        raise TailorError(f"'{out}' is a folder; name the file to write, such as {out / 'compare.html'}.")
    return write_page(out, render_comparison(ready))


def write_comparison_figures(
    comparison: Comparison, folder: Path, formats: Sequence[str] = ("svg", "csv")
) -> list[Path]:
    """Every figure of a comparison as files."""
    return write_figures(comparison_figures(comparison), Path(folder), formats)
