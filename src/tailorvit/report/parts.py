"""Building blocks of the page: escaping, tables, folds, numbers in words, and the style sheet."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from typing import Any

from tailorvit import units
from tailorvit.report.records import real, table

STYLE = resources.files("tailorvit.report").joinpath("style.css").read_text("utf-8")
# Control characters break XML; bidirectional controls in a file name would turn the words around it.
_STRANGE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufffe\uffff\ud800-\udfff]")
NAME = 160  # characters of a name worth showing
_CELL = 2000  # characters of any text in a table


class Html(str):
    """Text that is markup already; everything else is escaped where it meets the page."""

    __slots__ = ()


def tidy(text: str) -> str:
    """Text without characters that break XML or act on their surroundings."""
    return _STRANGE.sub("\ufffd", text)


def clean(value: Any, most: int = NAME) -> str:
    """Any value as plain text of bounded length, without characters that act on their surroundings."""
    try:
        words = str(value)
    except ValueError:  # an integer with more digits than Python prints
        words = "a number too long to print"
    words = words if len(words) <= most else f"{words[: most - 1]}…"
    return tidy(words)


def cell(value: Any, most: int = _CELL) -> str:
    """A value as safe text; None as a dash."""
    return value if isinstance(value, Html) else "–" if value is None else escape(clean(value, most))


def whole_text(value: str) -> str:
    """A text shown in full, such as a recipe."""
    return escape(tidy(value))


def none(what: str) -> str:
    """A soft sentence in place of something that is not there."""
    return f'<p class="soft">{cell(what)}</p>'


def fold(summary: str, inner: str) -> str:
    """Something to open."""
    return f"<details><summary>{cell(summary)}</summary>{inner}</details>\n"


def cards(items: Sequence[tuple[str | None, str]]) -> str:
    """Headline numbers, each with what it is; those not known are left out."""
    each = (f'<div class="card"><b>{cell(b)}</b><span>{cell(s)}</span></div>' for b, s in items if b is not None)
    return f'<div class="cards">{"".join(each)}</div>'


def data_block(key: str, data: Any) -> str:
    """Data for the page's script: inert JSON that no name in it can close."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    safe = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return f'<script type="application/json" id="{escape(key)}">{safe}</script>'


def grid(
    head: Sequence[str], body: Sequence[Sequence[Any]], numbers: int = 0, keys: Sequence[Sequence[Any]] | None = None
) -> str:
    """A table; the last ``numbers`` columns are set to the right. ``keys`` are what the script sorts the cells by."""
    first = len(head) - numbers

    def row(values: Sequence[Any], tag: str, by: Sequence[Any] | None = None) -> str:
        parts = []
        for i, value in enumerate(values):
            kind = ' class="n"' if i >= first else ""
            order = f' data-v="{cell(by[i], NAME)}"' if by is not None and by[i] is not None else ""
            parts.append(f"<{tag}{kind}{order}>{cell(value)}</{tag}>")
        return "".join(parts)

    lines = "".join(
        f"<tr>{row(values, 'td', keys[i] if keys is not None else None)}</tr>\n" for i, values in enumerate(body)
    )
    style = ' class="sortable"' if keys is not None else ""
    top = row(head, "th")
    return f'<div class="wide"><table{style}><thead><tr>{top}</tr></thead>\n<tbody>{lines}</tbody></table></div>'


def size(value: Any, metric: str = "params") -> str | None:
    """A cost with its unit."""
    number = real(value)
    return None if number is None else units.show(number, metric)


def many(log10: float | None) -> str | None:
    """A count known by its logarithm."""
    return None if log10 is None else f"{10**log10:,.0f}" if log10 < 6 else f"{10 ** (log10 % 1):.2f}e{int(log10)}"


def percent(value: Any) -> str | None:
    """An accuracy."""
    number = real(value)
    return None if number is None else f"{number:.2f} %"


def figure(value: float | None, form: str = ".3g") -> str | None:
    """A plain number."""
    return None if value is None else format(value, form)


def duration(seconds: float) -> str:
    """A time as people say it."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, hours = int(seconds // 60), int(seconds // 3600)
    return f"{minutes} min {int(seconds % 60)} s" if minutes < 60 else f"{hours} h {minutes % 60} min"


def metric_name(metric: str) -> str:
    """A cost by the name people use."""
    return {"macs": "MACs", "params": "parameters"}.get(metric, metric)


def limits_in_words(limits: Any) -> str:
    """``at least 7M and at most 8M parameters, latency at most 12 ms``."""
    words = []
    for metric, bounds in table(limits).items():
        sides = [
            f"{phrase} {bound}"
            for side, phrase in (("min", "at least"), ("max", "at most"))
            if (bound := size(table(bounds).get(side), str(metric)))
        ]
        both, name = " and ".join(sides), metric_name(str(metric))
        words += [f"{both} {name}" if metric in ("params", "macs") else f"{name} {both}"] if sides else []
    return ", ".join(words)


def arch_in_words(arch: Mapping[str, Any]) -> str:
    """One line per architecture: ``depth 2, embed 64, heads 2 3, mlp 3.5 4``."""
    genes = {k: v for k, v in arch.items() if k != "family"}
    return ", ".join(f"{k} {' '.join(map(str, v)) if isinstance(v, list) else v}" for k, v in genes.items())
