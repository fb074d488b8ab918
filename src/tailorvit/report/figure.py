"""Figure: one chart as numbers (for CSV) and as a drawing (for the page, SVG and PNG)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any


@dataclass(frozen=True)
class Figure:
    """Numbers first, drawing second; ``key`` names its files and its place on the page."""

    key: str  # lower case, digits and hyphens: "search-trials"
    title: str
    caption: str  # one or two plain sentences: what is drawn, how to read it
    columns: tuple[str, ...]
    rows: Sequence[Sequence[Any]]
    svg: str  # one <svg> element; colours by class, so that the page's light and dark both fit
    legend: tuple[tuple[str, str], ...] = ()  # (class, words): ("c0", "best")
    controls: str = ""  # markup of filters the page's script understands; empty for most

    def html(self) -> str:
        """The figure as the page shows it."""
        keys = "".join(f'<span class="key {style}">{escape(words)}</span>' for style, words in self.legend)
        legend = f'<p class="legend">{keys}</p>' if keys else ""
        return (
            f'<figure id="{escape(self.key)}" class="chart"><h4>{escape(self.title)}</h4>{self.controls}'
            f'<div class="drawing">{self.svg}</div>{legend}<figcaption>{escape(self.caption)}</figcaption></figure>\n'
        )


def tip(words: str) -> str:
    """The attribute behind a hover: the page's script shows it, readers without scripts lose nothing else."""
    return f' data-tip="{escape(words)}"'
