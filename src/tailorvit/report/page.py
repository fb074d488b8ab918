"""The page: facts in, one self-contained HTML text out."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from functools import cache
from importlib import resources
from typing import NamedTuple

from tailorvit.report.again import again
from tailorvit.report.again import figures as again_figures
from tailorvit.report.answer import answer
from tailorvit.report.answer import figures as answer_figures
from tailorvit.report.checks import checks
from tailorvit.report.checks import figures as checks_figures
from tailorvit.report.facts import Facts
from tailorvit.report.figure import Figure
from tailorvit.report.network import figures as network_figures
from tailorvit.report.network import network
from tailorvit.report.parts import STYLE, cell, none, tidy
from tailorvit.report.search import figures as search_figures
from tailorvit.report.search import search
from tailorvit.report.training import figures as training_figures
from tailorvit.report.training import training
from tailorvit.report.why import figures as why_figures
from tailorvit.report.why import why


class Section(NamedTuple):
    """One section: its anchor, its short and full title, what it tells and what it draws."""

    key: str
    name: str
    title: str
    tell: Callable[[Facts], str]
    figures: Callable[[Facts], list[Figure]]


SECTIONS = (
    Section("answer", "Answer", "What was asked, and what came out", answer, answer_figures),
    Section("why", "Why", "Why: the path of the space", why, why_figures),
    Section("search", "Search", "The search", search, search_figures),
    Section("network", "Network", "The network, block by block", network, network_figures),
    Section("training", "Training", "Training and test", training, training_figures),
    Section("checks", "Checks", "The papers' checks on this run", checks, checks_figures),
    Section("again", "Again", "How to get it again", again, again_figures),
)
_BADGES = {
    "finished": ("c2", "finished"),
    "running": ("c0", "not finished"),
    "failed": ("c3", "failed"),
    "interrupted": ("c1", "interrupted"),
}
# What damaged data can raise. A section that trips over it is named and the rest is told; anything else is our mistake.
_DAMAGE = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError)


@cache
def page_scripts() -> tuple[str, ...]:
    """Every script of the report, in the order of the file names."""
    folder = resources.files("tailorvit.report")
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".js"))
    return tuple(folder.joinpath(name).read_text("utf-8") for name in names)


def shell(title: str, body: str, *, scripts: Sequence[str] = (), head: str = "") -> str:
    """A bare page in the report's style. It runs only the scripts given here, whatever a name in the body tries."""
    every = tuple(map(tidy, (*page_scripts(), *scripts)))
    prints = (base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in every)
    allowed = " ".join(f"'sha256-{p}'" for p in prints) or "'none'"
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src {allowed};"
        " base-uri 'none'; form-action 'none'"
    )
    code = "".join(f"<script>{s}</script>\n" for s in every)
    page = (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{cell(title)}</title>\n{head}<style>{STYLE}</style>\n</head>\n<body>\n{body}\n{code}</body>\n</html>\n"
    )
    return tidy(page)  # names may hold bytes that are no UTF-8, and marks that turn the text around them


def render(facts: Facts) -> str:
    """The report. It asks nothing of the network and is whole without scripts; they add hovers, filters and sorting."""
    links = "".join(f'<a href="#{s.key}">{n}&nbsp;{s.name}</a>' for n, s in enumerate(SECTIONS, 1))
    button = '<button class="tool" type="button" data-act="theme">Light/dark</button>'
    nav = f'<nav aria-label="Contents">{links}{button}</nav>'
    sections = "".join(
        f'<section id="{s.key}"><h2>{n}. {cell(s.title)}</h2>\n{_told(s, facts)}\n</section>\n'
        for n, s in enumerate(SECTIONS, 1)
    )
    style, words = _BADGES[facts.status]
    badge = f'<span class="badge {style}">{words}</span>'
    started = cell(facts.info["started"], 40) if "started" in facts.info else ""
    since = f'<p class="soft">TailorViT run, started {started}</p>\n' if started else ""
    top = f"<h1>{cell(facts.folder, 120)} {badge}</h1>\n{since}{_missing(facts)}"
    return shell(f"{facts.folder[:120]} – TailorViT", f"{nav}\n<main>\n{top}{sections}</main>")


def figures(facts: Facts) -> list[Figure]:
    """All figures of all sections, in the order of the page."""
    found: list[Figure] = []
    for section in SECTIONS:
        try:
            found += section.figures(facts)
        except _DAMAGE:
            continue  # the page names the section that cannot be told
    return found


def _told(section: Section, facts: Facts) -> str:
    try:
        return section.tell(facts)
    except _DAMAGE as error:
        return none(f"The data of this section is damaged and cannot be told ({type(error).__name__}: {error}).")


def _missing(facts: Facts) -> str:
    if not facts.missing:
        return ""
    items = "".join(f"<li>{cell(sentence)}</li>" for sentence in facts.missing)
    return f'<div class="note"><p>This report is not complete:</p><ul>{items}</ul></div>\n'
