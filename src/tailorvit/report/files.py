"""Figure files: every chart as SVG, PNG and CSV, with an index."""

from __future__ import annotations

import csv
import io
import re
import tempfile
import textwrap
from collections.abc import Iterable, Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from tailorvit.errors import TailorError, unknown
from tailorvit.report.charts import WIDTH, Figure
from tailorvit.report.markup import CHART_STYLE, STYLE, tidy
from tailorvit.runs.atomic import dumps, write_bytes, write_json, write_text

FORMATS = ("svg", "png", "csv")
ZOOM = 2  # pixels of a PNG per pixel of the drawing, for sharp print
NAMESPACE = "http://www.w3.org/2000/svg"
_FONT = "Liberation Sans,Arial,Helvetica,DejaVu Sans,Noto Sans,sans-serif"
_EDGE, _LINE = 10, 17  # margin, and height of a line of the legend
_KEY = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_PROBE = f'<svg xmlns="{NAMESPACE}" width="40" height="20"><text y="15" font-family="{_FONT}">H</text></svg>'


def write_page(path: Path, text: str) -> Path:
    """Write a page in one step."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    except OSError as error:
        raise TailorError(f"Cannot write '{path}': {error.strerror or error}.") from error
    return path


def write_figures(figures: Iterable[Figure], folder: Path, formats: Sequence[str] = ("svg", "csv")) -> list[Path]:
    """Write every figure as KEY.svg, KEY.png and KEY.csv, and index.json last; the paths of the files."""
    wanted = tuple(dict.fromkeys(formats))
    if not wanted:
        raise TailorError(f"No format was named; choose from {', '.join(FORMATS)}.")
    for name in wanted:
        if name not in FORMATS:
            raise unknown("figure format", name, FORMATS)
    every = _checked(figures)
    if "png" in wanted:
        _check_fonts()  # before anything is written
    written, index = [], []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for figure in every:
            entry: dict[str, Any] = {"key": figure.key, "title": figure.title, "caption": figure.caption}
            entry |= {"columns": list(figure.columns), "rows": len(figure.rows), "files": [], "notes": []}
            for name, data in _contents(figure, wanted, entry["notes"]).items():
                path = folder / f"{figure.key}.{name}"
                write_bytes(path, data)
                entry["files"].append(path.name)
                written.append(path)
            index.append(entry)
        write_json(folder / "index.json", {"format": 1, "figures": index})
    except OSError as error:
        raise TailorError(f"Cannot write figures to '{folder}': {error.strerror or error}.") from error
    return [*written, folder / "index.json"]


def _checked(figures: Iterable[Figure]) -> list[Figure]:
    every = list(figures)
    seen: set[str] = set()
    for figure in every:
        if not _KEY.fullmatch(figure.key) or figure.key == "index":
            raise TailorError(f"'{figure.key}' cannot name a figure file: lower case letters, digits and hyphens only.")
        if figure.key in seen:
            raise TailorError(f"Two figures are called '{figure.key}'; their files would replace each other.")
        seen.add(figure.key)
    return every


def _contents(figure: Figure, wanted: Sequence[str], notes: list[str]) -> dict[str, bytes]:
    """The bytes of a figure in every wanted format; a figure without a drawing still has its numbers."""
    files: dict[str, bytes] = {}
    if "csv" in wanted:
        files["csv"] = csv_text(figure.columns, figure.rows).encode("utf-8", "replace")
    if "svg" in wanted or "png" in wanted:
        try:
            drawing = svg_file(figure)
        except ValueError as error:
            notes.append(f"There is no picture: {error}.")
            return files
        if "svg" in wanted:
            files["svg"] = drawing.encode()
        if "png" in wanted:
            files["png"] = png(drawing)
    return files


# -- CSV --------------------------------------------------------------------------------------------------------------


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Numbers unrounded, None empty, lists as JSON."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerow([_field(c) for c in columns])
    writer.writerows([_field(v) for v in row] for row in rows)
    return text.getvalue()


def _field(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    text = value if isinstance(value, str) else dumps(value)
    # A spreadsheet runs text that begins like this as a formula; a class or a file may have such a name.
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


# -- SVG --------------------------------------------------------------------------------------------------------------


@cache
def figure_style() -> str:
    """The style sheet of a figure file: the rules of charts in the page's light colours.

    The PNG library knows no CSS variables, so they are replaced. A mark's own colour, ``var(--c)``, comes from its
    class c0 to c7 or front: such a rule is written once per colour.
    """
    light = dict(re.findall(r"--(\w+):(#\w+)", STYLE[: STYLE.index("}")])) | {"paper": "#ffffff"}
    colours = {**{k: v for k, v in light.items() if re.fullmatch(r"c\d", k)}, "front": light["ink"]}
    found = [f"svg{{font:11px {_FONT};color:{light['ink']}}}"]
    for selector, body in re.findall(r"([^{}/*]+)\{([^}]*)\}", CHART_STYLE.rpartition("*/")[2]):
        literal = re.sub(r"var\(--(\w\w+)\)", lambda name: light[name[1]], body)
        if "var(--c)" in literal:
            rules = (f"{selector.strip()}.{c}{{{literal.replace('var(--c)', v)}}}" for c, v in colours.items())
            found += rules
        else:
            found.append(f"{selector.strip()}{{{literal}}}")
    return "\n".join(found)


def svg_file(figure: Figure) -> str:
    """A figure as an SVG that stands alone: title, drawing and legend on white; ValueError without a drawing."""
    if not figure.svg:
        raise ValueError("it has no drawing")
    try:
        drawing = ET.fromstring(tidy(figure.svg))
    except ET.ParseError as error:
        raise ValueError(f"the drawing is not well-formed ({error})") from error
    _hints_to_titles(drawing)
    width, height = map(float, drawing.attrib.get("viewBox", "0 0 440 260").split()[2:])
    inner = max(width, WIDTH / 2)
    title = textwrap.wrap(figure.title, int(inner / 8)) or [""]
    top = _EDGE + 18 * len(title) + 4
    drawing.attrib |= {"x": str(_EDGE), "y": str(top), "width": f"{width:g}", "height": f"{height:g}"}
    keys, bottom = _legend(figure, inner, top + height + 6)
    total = f"{inner + 2 * _EDGE:g}", f"{bottom + _EDGE:g}"
    lines = "".join(f'<tspan x="{_EDGE}" dy="18">{escape(line)}</tspan>' for line in title)
    return tidy(
        f'<svg xmlns="{NAMESPACE}" width="{total[0]}" height="{total[1]}" viewBox="0 0 {total[0]} {total[1]}">\n'
        f"<style>{figure_style()}</style><title>{escape(figure.title)}</title><desc>{escape(figure.caption)}</desc>"
        f'<rect width="100%" height="100%" fill="#ffffff"/><text class="strong" y="{_EDGE - 4}"'
        f' style="font-size:14px">{lines}</text>\n{ET.tostring(drawing, encoding="unicode")}\n{keys}</svg>\n'
    )


def _hints_to_titles(drawing: ET.Element) -> None:
    """Turn the page's hints into titles, which every viewer shows; remove scripts and what only they use."""
    for element in list(drawing.iter()):
        hint = element.attrib.get("data-tip", "")
        for name in [a for a in element.attrib if a == "tabindex" or a.startswith("data-")]:
            del element.attrib[name]
        if hint and element.find("title") is None:
            title = ET.Element("title")
            title.text = hint
            element.insert(0, title)
        for child in [c for c in element if str(c.tag).rpartition("}")[2] in ("script", "foreignObject")]:
            element.remove(child)


def _legend(figure: Figure, width: float, y: float) -> tuple[str, float]:
    """The entries of the legend in lines, and where they end."""
    parts, x = [], 0.0
    for style, words in figure.legend:
        need = 32 + 6.2 * len(words)
        if x and x + need > width:
            x, y = 0.0, y + _LINE
        parts.append(f'<rect class="bar {style}" x="{_EDGE + x:g}" y="{y + 5:g}" width="13" height="5"/>')
        parts.append(f'<text x="{_EDGE + x + 18:g}" y="{y + 11:g}" style="fill:currentColor">{escape(words)}</text>')
        x += need
    return "".join(parts), y + (_LINE if parts else 0)


# -- PNG --------------------------------------------------------------------------------------------------------------


def png(drawing: str) -> bytes:
    """An SVG file as PNG, at twice its size."""
    try:
        from resvg_py import svg_to_bytes
    except ImportError:
        raise TailorError(
            "PNG figures need resvg: pip install 'tailorvit[figures]' (or pip install resvg-py)."
        ) from None
    # With a font of its own as the last resort: a bare container has none, and text would vanish without a message.
    with tempfile.TemporaryDirectory() as folder:
        own = _own_font()
        path = Path(folder) / "font.ttf"
        path.write_bytes(own)
        fonts: dict[str, Any] = {"font_files": [str(path)], "sans_serif_family": "Aileron"} if own else {}
        try:
            return bytes(svg_to_bytes(svg_string=drawing, background="#ffffff", zoom=ZOOM, **fonts))
        except ValueError as error:
            raise TailorError(f"A figure could not be drawn as PNG ({error}).") from error


@cache
def _own_font() -> bytes:
    """The font inside Pillow (Aileron, CC0); empty where Pillow was built without FreeType."""
    from PIL import ImageFont

    try:
        font = ImageFont.load_default(16)
    except (OSError, ImportError, TypeError):  # TypeError: Pillow 10.0 takes no size and has no outline font
        return b""
    return bytes(getattr(font, "font_bytes", b"") or b"")


@cache
def _check_fonts() -> None:
    """Refuse to draw pictures without their words."""
    from PIL import Image

    with Image.open(io.BytesIO(png(_PROBE))) as picture:
        if min(picture.convert("L").tobytes()) > 128:
            raise TailorError("This machine has no font for PNG figures; install one (DejaVu Sans) or ask for svg.")
