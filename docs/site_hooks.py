"""Hooks of mkdocs.yml: pages from outside docs/, links to files of the repository, the notebook, nothing from afar."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
NOTEBOOK = "docs/notebook.ipynb"
# Pages of the site that lie elsewhere in the repository: where each is, and its place in the site.
_MOVED = {
    "README.md": "index.md",
    "CHANGELOG.md": "changes.md",
    "CONTRIBUTING.md": "contributing.md",
    "examples/plugin/README.md": "examples/plugin.md",
    "benchmarks/README.md": "benchmarks/index.md",
}
_COMMENT = re.compile(r"^<!-- .* -->$", re.M)
_LINK = re.compile(
    r"(?P<code>^```.*?^```|`[^`\n]+`)|\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^)#\s]+)(?P<anchor>#[^)]*)?\)",
    re.M | re.S,
)
_ROLE = re.compile(r":(?:attr|class|data|func|meth|mod):(?=<code)")
_AFAR = re.compile(r"<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)=[\"']?(?:https?:)?//[^>]*>")


def places() -> dict[str, str]:
    """The pages and pictures that the site has, by their path in the repository."""
    found = dict(_MOVED)
    for path in (ROOT / "benchmarks").glob("*/*.md"):
        inside = path.relative_to(ROOT).as_posix()
        found[inside] = inside.replace("/README.md", "/index.md")
    for path in (ROOT / "docs").rglob("*.*"):
        if path.suffix in (".md", ".png", ".json", ".ipynb"):
            found[path.relative_to(ROOT).as_posix()] = path.relative_to(ROOT / "docs").as_posix()
    return found


def relinked(text: str, source: str, known: dict[str, str]) -> str:
    """A page's text with links that hold in the site; a file that the site lacks becomes its path in words."""
    here = posixpath.dirname(known[source]) or "."

    def one(match: re.Match[str]) -> str:
        target, anchor = match["target"], match["anchor"] or ""
        if match["code"] or ":" in target:
            return match[0]
        inside = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if inside in known:
            return f"[{match['text']}]({posixpath.relpath(known[inside], here)}{anchor})"
        plain = match["text"].strip("`")
        return f"`{inside}`" if plain in inside else f"{match['text']} (`{inside}`)"

    return _LINK.sub(one, _COMMENT.sub("", text))  # a comment in the line above hides a table from this Markdown


def notebook_text(notebook: dict[str, Any]) -> str:
    """A notebook as Markdown: its words, its code, and what the code printed."""
    return "\n\n".join(_cells(notebook)) + "\n"


def _cells(notebook: dict[str, Any]) -> Iterator[str]:
    for cell in notebook["cells"]:
        words = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            yield words
            continue
        yield f"```python\n{words}\n```"
        printed = "".join("".join(output["text"]) for output in cell["outputs"])
        if printed:
            yield f"```text\n{printed.rstrip()}\n```"


# -- what mkdocs calls -------------------------------------------------------------------------------------------------


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside docs/ and the notebook."""
    from mkdocs.structure.files import File

    for source, place in places().items():
        if not source.startswith("docs/"):
            files.append(File.generated(config, place, content=(ROOT / source).read_text(encoding="utf-8")))
    notebook = json.loads((ROOT / NOTEBOOK).read_text(encoding="utf-8"))
    files.append(File.generated(config, "notebook.md", content=notebook_text(notebook)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Links as they are in the repository, turned into the site's."""
    known = places()
    sources = {place: source for source, place in known.items()} | {"notebook.md": NOTEBOOK}
    source = sources[page.file.src_uri]
    return relinked(markdown, source, known | {NOTEBOOK: "notebook.ipynb"})


def on_page_content(html: str, **_: Any) -> str:
    """Docstrings name things by roles such as :func:, which Markdown does not know; only the name stays."""
    return _ROLE.sub("", html)


def on_post_page(output: str, page: Page, **_: Any) -> str:
    """A page that loads something from another host ends the build."""
    if afar := _AFAR.search(output):
        from mkdocs.exceptions import PluginError

        raise PluginError(f"{page.file.src_uri} loads from another host: {afar[0]:.200}")
    return output
