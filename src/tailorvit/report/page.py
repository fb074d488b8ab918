"""The page: facts in, one self-contained HTML text out."""

from __future__ import annotations

from collections.abc import Mapping

from tailorvit.report.facts import Facts
from tailorvit.report.parts import STYLE, cell
from tailorvit.report.sections import again, answer, events, network, path, training, trials

SECTIONS = (
    ("What was asked, and what came out", answer),
    ("The path of the space", path),
    ("Trials", trials),
    ("The network, block by block", network),
    ("Training", training),
    ("Events", events),
    ("How to get it again", again),
)
# Nothing may be fetched and nothing may run, whatever a file or class name tries.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def render(facts: Facts) -> str:
    """The report. It needs no script, asks nothing of the network, and follows the reader's light or dark setting."""
    body = "".join(
        f"<section><h2>{number}. {cell(title)}</h2>\n{section(facts)}\n</section>\n"
        for number, (title, section) in enumerate(SECTIONS, 1)
    )
    page = (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{cell(facts.folder)} – TailorViT</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{cell(facts.folder)}</h1>\n{_head(facts.info)}{_missing(facts)}{body}</body>\n</html>\n"
    )
    return page.encode("utf-8", "replace").decode()  # file names may hold bytes that are no UTF-8


def _head(info: Mapping[str, object]) -> str:
    return f'<p class="soft">TailorViT run, started {cell(info["started"])}</p>\n' if "started" in info else ""


def _missing(facts: Facts) -> str:
    if not facts.missing:
        return ""
    items = "".join(f"<li>{cell(sentence)}</li>" for sentence in facts.missing)
    return f'<div class="note"><p>This report is not complete:</p><ul>{items}</ul></div>\n'
