"""The page: everything known about a run as one self-contained HTML text."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from tailorvit.report import (
    checks,
    contest,
    network,
    reproduce,
    result,
    search,
    space,
    study,
    tailored,
    tasked,
    training,
)
from tailorvit.report.charts import Figure
from tailorvit.report.lead import lead
from tailorvit.report.markup import STYLE, cell, soft, tidy
from tailorvit.report.reading import Facts


class Section(NamedTuple):
    """One section: its anchor, its short and full title, its markup, its figures, and whether a run has it."""

    key: str
    name: str
    title: str
    render: Callable[[Facts], str]
    figures: Callable[[Facts], list[Figure]]
    there: Callable[[Facts], bool] = lambda facts: True


SECTIONS = (
    Section("result", "Result", "Goal and result", result.section, result.figures),
    Section("tailored", "Tailored", "The tailored network", tailored.section, tailored.figures, tailored.there),
    Section("contest", "Contest", "The contest", contest.section, contest.figures, contest.there),
    Section("space", "Space", "The search space", space.section, space.figures, space.there),
    Section("search", "Search", "The search", search.section, search.figures, search.there),
    Section("study", "Study", "The study of this run", study.section, study.figures, study.there),
    Section("network", "Network", "The network", network.section, network.figures),
    Section("training", "Training", "Training and test", training.section, training.figures),
    Section("checks", "Checks", "Checks of this run", checks.section, checks.figures),
    Section("reproduce", "Reproduce", "How to repeat this run", reproduce.section, reproduce.figures),
)
TASK_SECTIONS = (
    Section("result", "Result", "What the network of the task does", tasked.section, tasked.figures),
    Section("pictures", "Pictures", "Test images", tasked.pictures, tasked.no_figures),
    Section("training", "Training", "Training", training.curves_section, training.curves),
    Section("reproduce", "Reproduce", "How to repeat this run", reproduce.section, reproduce.figures),
)
_BADGES = {
    "finished": ("c2", "finished"),
    "running": ("c0", "not finished"),
    "failed": ("c3", "failed"),
    "interrupted": ("c1", "interrupted"),
}
# What damaged data can raise. Such a section is named and the others are shown; anything else is our mistake.
_DAMAGE = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError)


@cache
def script(name: str) -> str:
    """The text of one of the report's scripts."""
    return tidy(resources.files("tailorvit.report").joinpath(f"{name}.js").read_text("utf-8"))


def _scripts(more: Sequence[str]) -> tuple[str, ...]:
    return script("attention"), script("script"), *map(tidy, more)


def shell(title: str, body: str, *, scripts: Sequence[str] = (), head: str = "", connect: bool = False) -> str:
    """An empty page in the report's style. It runs only the report's own scripts and the ones passed here.

    ``connect`` allows scripts to ask the server that the page came from.
    """
    code = "".join(f"<script>{s}</script>\n" for s in _scripts(scripts))
    page = (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy(scripts, connect)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{cell(title)}</title>\n{head}<style>{STYLE}</style>\n</head>\n<body>\n{body}\n"
        f"{code}</body>\n</html>\n"
    )
    return tidy(page)  # names may hold bytes that are not UTF-8, and characters that reverse the text around them


def policy(scripts: Sequence[str] = (), connect: bool = False) -> str:
    """The content security policy of a page with these scripts besides the report's own."""
    hashes = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in _scripts(scripts))
    allowed = " ".join(f"'sha256-{value}'" for value in hashes)
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src {allowed};"
        " base-uri 'none'; form-action 'none'"
    ) + ("; connect-src 'self'" if connect else "")


def render(facts: Facts) -> str:
    """The report. It loads nothing from anywhere and is complete without scripts; they add hints, filters, sorting."""
    return shell(*page_parts(facts))


def page_parts(facts: Facts) -> tuple[str, str]:
    """Title and body of the report."""
    shown = sections_of(facts)
    sections = "".join(
        f'<section id="{s.key}"><h2>{n}. {cell(s.title)}</h2>\n{_rendered(s, facts)}\n</section>\n'
        for n, s in enumerate(shown, 1)
    )
    style, words = _BADGES[facts.status]
    started = _moment(facts.info["started"]) if "started" in facts.info else ""
    since = f'<p class="soft">TailorViT run, started {started}</p>\n' if started else ""
    name = f'<h1>{cell(facts.folder, 120)} <span class="badge {style}">{words}</span></h1>\n'
    top = f"{name}{_rendered_lead(facts)}{since}{_missing(facts)}"
    body = f"{navigation([(s.key, s.name) for s in shown])}<main>\n{top}{sections}</main>"
    return f"{facts.folder[:120]} – TailorViT", body


def sections_of(facts: Facts) -> list[Section]:
    """The sections that a run has."""
    return list(TASK_SECTIONS) if tasked.there(facts) else [s for s in SECTIONS if s.there(facts)]


def navigation(sections: Sequence[tuple[str, str]]) -> str:
    """Links to the sections (anchor, name), numbered as they are, and the button for light and dark."""
    links = "".join(f'<a href="#{key}">{n}&nbsp;{cell(name)}</a>' for n, (key, name) in enumerate(sections, 1))
    button = '<button class="tool" type="button" data-act="theme">Light/dark</button>'
    return f'<nav aria-label="Contents">{links}{button}</nav>\n'


def figures(facts: Facts) -> list[Figure]:
    """All figures of all sections, in the order of the page."""
    found: list[Figure] = []
    for section in sections_of(facts):
        try:
            found += section.figures(facts)
        except _DAMAGE:
            continue  # the page names the section
    return found


def _rendered(section: Section, facts: Facts) -> str:
    try:
        return section.render(facts)
    except _DAMAGE as error:
        return soft(f"The data of this section is damaged and cannot be shown ({type(error).__name__}: {error}).")


def _rendered_lead(facts: Facts) -> str:
    try:
        return tasked.lead(facts) if tasked.there(facts) else lead(facts)
    except _DAMAGE:
        return ""  # the section of the result names the damage


def _moment(value: Any) -> str:
    """A moment without its seconds: ``2026-11-18 02:26 UTC``."""
    try:
        when = datetime.fromisoformat(str(value)).astimezone(UTC)
    except (ValueError, OverflowError):
        return cell(value, 40)
    return f"{when:%Y-%m-%d %H:%M} UTC"


def _missing(facts: Facts) -> str:
    if not facts.missing:
        return ""
    items = "".join(f"<li>{cell(sentence)}</li>" for sentence in facts.missing)
    return f'<div class="note"><p>This report is not complete:</p><ul>{items}</ul></div>\n'
