"""Building blocks of the page: escaping, tables, numbers in words, and the style sheet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from tailorvit import units
from tailorvit.report.facts import real, table

STYLE = """
:root{--paper:#fdfdfb;--ink:#20242a;--soft:#5d6670;--rule:#d9dcdf;--box:#f2f3f0;
--c0:#2a6fb0;--c1:#c2571a;--c2:#23804f;--c3:#a8327e;--c4:#6a4bc0;--c5:#6f7b86}
@media (prefers-color-scheme:dark){:root{--paper:#15181c;--ink:#e4e6e8;--soft:#9aa4ae;--rule:#363c43;--box:#1e2227;
--c0:#6db1ee;--c1:#f09a5c;--c2:#62c992;--c3:#e480c0;--c4:#a994f2;--c5:#a3afba}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1rem;max-width:54rem;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,sans-serif;overflow-wrap:anywhere}
h1{font-size:1.5rem;margin:.5rem 0}
h2{font-size:1.2rem;margin:2.2rem 0 .6rem;border-top:1px solid var(--rule);padding-top:.8rem}
h3{font-size:1rem;margin:1.2rem 0 .4rem}
.soft{color:var(--soft)}.note{background:var(--box);padding:.6rem .9rem;border-left:3px solid var(--c1)}
.note p,.note ul{margin:.2rem 0}.wide{overflow-x:auto}
table{border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums}
th,td{padding:.25rem .7rem .25rem 0;text-align:left;border-bottom:1px solid var(--rule);
vertical-align:top;overflow-wrap:normal}
td.n,th.n{text-align:right}
td i{display:inline-block;height:.6rem;background:var(--c0);margin-right:.4rem;opacity:.7}
pre{background:var(--box);padding:.7rem;overflow-x:auto;font-size:.85rem;white-space:pre-wrap}
summary{cursor:pointer;color:var(--soft)}
svg{width:100%;max-width:40rem;height:auto;display:block;font:11px system-ui,sans-serif}
svg text{fill:var(--soft)}svg .strong{fill:var(--ink);font-weight:600}
.small{display:grid;grid-template-columns:repeat(auto-fill,minmax(11rem,1fr));gap:.6rem}
.grid{stroke:var(--rule);stroke-width:.7}.axis{stroke:var(--soft);fill:none}
.line{fill:none;stroke:var(--c);stroke-width:1.8}.dot{fill:var(--c);fill-opacity:.55}
.ring{fill:none;stroke:var(--c);stroke-width:2}.bar{fill:var(--c);fill-opacity:.75}
.span{stroke:var(--c);stroke-width:9;stroke-linecap:round;stroke-opacity:.35}.whisker{stroke:var(--ink);fill:none}
.c0{--c:var(--c0)}.c1{--c:var(--c1)}.c2{--c:var(--c2)}.c3{--c:var(--c3)}.c4{--c:var(--c4)}.c5{--c:var(--c5)}
.legend{margin:.2rem 0 1rem;font-size:.85rem}
.key{margin-right:1rem;white-space:nowrap}.key::before{content:"";display:inline-block;width:.8rem;height:.3rem;
background:var(--c);margin-right:.35rem;vertical-align:middle}
"""


class Html(str):
    """Text that is markup already; everything else is escaped where it meets the page."""

    __slots__ = ()


def cell(value: Any) -> str:
    """A value as safe text; None as a dash."""
    return value if isinstance(value, Html) else "–" if value is None else escape(str(value))


def grid(head: Sequence[str], body: Sequence[Sequence[Any]], numbers: int = 0) -> str:
    """A table; the last ``numbers`` columns are set to the right."""
    first = len(head) - numbers

    def row(values: Sequence[Any], tag: str) -> str:
        kinds = [' class="n"' if i >= first else "" for i in range(len(values))]
        return "".join(f"<{tag}{k}>{cell(v)}</{tag}>" for k, v in zip(kinds, values, strict=True))

    lines = "".join(f"<tr>{row(values, 'td')}</tr>\n" for values in body)
    return f'<div class="wide"><table><tr>{row(head, "th")}</tr>\n{lines}</table></div>'


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


def limits_in_words(limits: Any) -> str:
    """``params at most 8M, latency at most 12 ms``."""
    words = []
    for metric, bounds in table(limits).items():
        name = "MACs" if metric == "macs" else str(metric)
        for side, phrase in (("min", "at least"), ("max", "at most")):
            bound = size(table(bounds).get(side), str(metric))
            words += [f"{name} {phrase} {bound}"] if bound else []
    return ", ".join(words)


def arch_in_words(arch: Mapping[str, Any]) -> str:
    """One line per architecture: ``depth 2, embed 64, heads 2 3, mlp 3.5 4``."""
    genes = {k: v for k, v in arch.items() if k != "family"}
    return ", ".join(f"{k} {' '.join(map(str, v)) if isinstance(v, list) else v}" for k, v in genes.items())
