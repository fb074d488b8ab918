"""Markup: escaping, tables, folded parts, numbers in words, and the style sheet of the page."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from typing import Any

from tailorvit import units
from tailorvit.report.fields import number
from tailorvit.report.reading import Limit

_FILES = resources.files("tailorvit.report")
CHART_STYLE = _FILES.joinpath("charts.css").read_text("utf-8")
STYLE = _FILES.joinpath("style.css").read_text("utf-8") + CHART_STYLE
# Control characters break XML; bidirectional controls in a file name would turn the words around it.
_STRANGE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufffe\uffff\ud800-\udfff]")
NAME = 160  # characters of a name worth showing
_CELL = 2000  # characters of any text in a table
_KINDS = {
    "supernet": "supernet",
    "slopes": "slopes of space",
    "et": "errors per choice of space",
    "edf": "random sample of space",
    "sample": "random sample of space",
    "final": "network",
    "search": "search",
    "score": "scoring without training",
    "baseline": "baseline",
    "peer": "peer",
    "analysis": "analysis of the network",
    "contest": "contest",
    "shape": "short training of shape",
    "whole": "fine-tuning the whole network",
    "ordered": "ordering its parts",
    "refit": "refitting what was cut",
}


class Html(str):
    """Text that is already markup; everything else is escaped before it reaches the page."""

    __slots__ = ()


def tidy(text: str) -> str:
    """Text without characters that break XML or change the text around them."""
    return _STRANGE.sub("\ufffd", text)


def clean(value: Any, most: int = NAME) -> str:
    """Any value as plain text of limited length, without control characters."""
    try:
        words = str(value)
    except ValueError:  # an integer with more digits than Python prints
        words = "a number too long to print"
    words = words if len(words) <= most else f"{words[: most - 1]}…"
    return tidy(words)


def cell(value: Any, most: int = _CELL) -> str:
    """A value as safe text; None as a dash."""
    return value if isinstance(value, Html) else "–" if value is None else escape(clean(value, most))


def full_text(value: str) -> str:
    """A text shown in full, such as a recipe."""
    return escape(tidy(value))


def paragraph(words: str) -> str:
    """A paragraph; nothing where there are no words."""
    return f"<p>{cell(words)}</p>" if words else ""


def soft(words: str) -> str:
    """A remark in a soft colour."""
    return f'<p class="soft">{cell(words)}</p>'


def fold(summary: str, inner: str) -> str:
    """A part that the reader can open."""
    return f"<details><summary>{cell(summary)}</summary>{inner}</details>\n"


def pair(*parts: str) -> str:
    """Figures side by side; nothing where there are none."""
    inner = "".join(parts)
    return f'<div class="pair">{inner}</div>' if inner else ""


def cards(items: Sequence[tuple[str | None, str]]) -> str:
    """Headline numbers with what they are; unknown ones are left out."""
    found = (f'<div class="card"><b>{cell(b)}</b><span>{cell(s)}</span></div>' for b, s in items if b is not None)
    return f'<div class="cards">{"".join(found)}</div>'


def data_block(key: str, data: Any) -> str:
    """Data for the page's script: JSON that no name in it can close."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    safe = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return f'<script type="application/json" id="{escape(key)}">{safe}</script>\n'


def grid(
    head: Sequence[str],
    body: Sequence[Sequence[Any]],
    numbers: int = 0,
    keys: Sequence[Sequence[Any]] | None = None,
    stack: bool = False,
) -> str:
    """A table; its last ``numbers`` columns (negative: its first) are aligned right. The script sorts by ``keys``.

    On a phone a table scrolls sideways; with ``stack`` each of its rows becomes a short list instead.
    """
    right = range(len(head))[-numbers:] if numbers > 0 else range(-numbers)

    def row(values: Sequence[Any], tag: str, by: Sequence[Any] | None = None) -> str:
        parts = []
        for i, value in enumerate(values):
            kinds = ["n"] * (i in right)
            kinds += ["w"] * (i in right and isinstance(value, str) and " (" in value)
            kinds += ["none"] * (stack and value is None)
            kind = f' class="{" ".join(kinds)}"' if kinds else ""
            order = f' data-v="{cell(by[i], NAME)}"' if by is not None and by[i] is not None else ""
            name = f' data-name="{cell(head[i], NAME)}"' if stack and tag == "td" else ""
            parts.append(f"<{tag}{kind}{order}{name}>{cell(value)}</{tag}>")
        return "".join(parts)

    lines = "".join(
        f"<tr>{row(values, 'td', keys[i] if keys is not None else None)}</tr>\n" for i, values in enumerate(body)
    )
    both = " ".join(["sortable"] * (keys is not None) + ["stack"] * stack)
    style = f' class="{both}"' if both else ""
    return (
        f'<div class="wide"><table{style}><thead><tr>{row(head, "th")}</tr></thead>\n'
        f"<tbody>{lines}</tbody></table></div>"
    )


# -- numbers and names in words ---------------------------------------------------------------------------------------


def size(value: Any, metric: str = "params") -> str | None:
    """A cost with its unit."""
    found = number(value)
    return None if found is None else units.show(found, metric)


def percent(value: Any) -> str | None:
    """An accuracy."""
    found = number(value)
    return None if found is None else f"{found:.2f} %"


def points(value: float | None, form: str = "+.2f") -> str | None:
    """A plain number; None stays None."""
    return None if value is None else format(value, form)


def count_of(log10: float | None) -> str | None:
    """A count from its logarithm."""
    return None if log10 is None else f"{10**log10:,.0f}" if log10 < 6 else f"{10 ** (log10 % 1):.2f}e{int(log10)}"


def counted(count: int, one: str, many: str = "") -> str:
    """A number with its noun: ``1 space``, ``4 spaces``."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def duration(seconds: float) -> str:
    """A time in words."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, hours = int(seconds // 60), int(seconds // 3600)
    return f"{minutes} min {int(seconds % 60)} s" if minutes < 60 else f"{hours} h {minutes % 60} min"


def metric_name(metric: str) -> str:
    """A cost by its usual name."""
    return {"macs": "MACs", "params": "parameters"}.get(metric, metric)


def stage_name(stage: str) -> str:
    """A stage of a run in words: ``random sample of space 1`` for ``edf-1``."""
    kind, _, rest = stage.partition("-")
    if kind == "contest" and (found := re.fullmatch(r"(\d{1,6})-(\d{1,6})", rest)):
        return f"contest, round {int(found[1]) + 1}, network {int(found[2]) + 1}"
    return f"{_KINDS[kind]} {rest}".rstrip() if kind in _KINDS else stage


def limits_in_words(limits: Mapping[str, Limit]) -> str:
    """``at least 7M and at most 8M parameters, latency at most 12 ms``."""
    words = []
    for metric, bounds in limits.items():
        sides = [
            f"{phrase} {bound}"
            for value, phrase in ((bounds.min, "at least"), (bounds.max, "at most"))
            if (bound := size(value, metric))
        ]
        both, name = " and ".join(sides), metric_name(metric)
        words += [f"{both} {name}" if metric in ("params", "macs") else f"{name} {both}"] if sides else []
    return ", ".join(words)


def arch_in_words(arch: Mapping[str, Any]) -> str:
    """One line per architecture: ``depth 2, embed 64, heads 2 3, mlp 3.5 4``."""
    genes = {k: v for k, v in arch.items() if k != "family"}
    return ", ".join(f"{k} {' '.join(map(str, v)) if isinstance(v, list) else v}" for k, v in genes.items())
