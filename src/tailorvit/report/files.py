"""Figure files: every chart of a report as SVG, PNG and CSV, with an index."""

from __future__ import annotations

import csv
import io
import re
import tempfile
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tailorvit.errors import TailorError, unknown
from tailorvit.report.figure import Figure
from tailorvit.report.standalone import SANS, SPACE_NAME, standalone
from tailorvit.runs.atomic import dumps, write_bytes, write_json, write_text

FORMATS = ("svg", "png", "csv")
ZOOM = 2  # two pixels of PNG for one of the drawing, for sharp print
_KEY = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_PROBE = f'<svg xmlns="{SPACE_NAME}" width="40" height="20"><text y="15" font-family="{SANS}">H</text></svg>'


def write_page(path: Path, text: str) -> Path:
    """Write a page whole or not at all, and say where it is."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    except OSError as error:
        raise TailorError(f"Cannot write '{path}': {error.strerror or error}.") from error
    return path


def write_figures(figures: Iterable[Figure], folder: Path, formats: Sequence[str] = ("svg", "csv")) -> list[Path]:
    """Write every figure as KEY.svg, KEY.png, KEY.csv as asked, and index.json; the files written, index last."""
    wanted = tuple(dict.fromkeys(formats))
    if not wanted:
        raise TailorError(f"No format was named; choose from {', '.join(FORMATS)}.")
    for name in wanted:
        if name not in FORMATS:
            raise unknown("figure format", name, FORMATS)
    every = _checked(figures)
    style = _style()
    if "png" in wanted:
        _check_fonts()  # before anything is written
    written, index = [], []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for figure in every:
            entry: dict[str, Any] = {"key": figure.key, "title": figure.title, "caption": figure.caption}
            entry |= {"columns": list(figure.columns), "rows": len(figure.rows), "files": [], "notes": []}
            for name, data in _contents(figure, wanted, style, entry["notes"]).items():
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


def _style() -> str:
    from tailorvit.report.parts import STYLE

    return STYLE


def _contents(figure: Figure, wanted: Sequence[str], style: str, notes: list[str]) -> dict[str, bytes]:
    """The bytes of a figure in every format asked for; a figure without a drawing still has its numbers."""
    files: dict[str, bytes] = {}
    if "csv" in wanted:
        files["csv"] = csv_text(figure.columns, figure.rows).encode("utf-8", "replace")
    if "svg" in wanted or "png" in wanted:
        try:
            drawing = standalone(figure, style)
        except ValueError as error:
            notes.append(f"There is no picture: {error}.")
            return files
        if "svg" in wanted:
            files["svg"] = drawing.encode()
        if "png" in wanted:
            files["png"] = png(drawing)
    return files


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Numbers as Python writes them, to the last digit; nothing for None; lists as JSON."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerow([_field(c) for c in columns])
    writer.writerows([_field(v) for v in row] for row in rows)
    return text.getvalue()


def _field(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    text = value if isinstance(value, str) else dumps(value)
    # A spreadsheet runs text that begins so as a formula; a class or file may be named like one.
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def png(drawing: str) -> bytes:
    """A standalone SVG as PNG on white, twice its size."""
    try:
        from resvg_py import svg_to_bytes
    except ImportError:
        raise TailorError(
            "PNG figures need resvg: pip install 'tailorvit[figures]' (or pip install resvg-py)."
        ) from None
    # With a font of its own as the last resort: a bare container has none, and text would vanish without a word.
    with tempfile.TemporaryDirectory() as folder:
        own = _own_font()
        path = Path(folder) / "font.ttf"
        path.write_bytes(own)
        known: dict[str, Any] = {"font_files": [str(path)], "sans_serif_family": "Aileron"} if own else {}
        try:
            return bytes(svg_to_bytes(svg_string=drawing, background="#ffffff", zoom=ZOOM, **known))
        except ValueError as error:
            raise TailorError(f"A figure could not be drawn as PNG ({error}).") from error


@cache
def _own_font() -> bytes:
    """The font inside Pillow (Aileron, CC0); nothing where Pillow was built without FreeType."""
    from PIL import ImageFont

    try:
        font = ImageFont.load_default(16)
    except (OSError, ImportError, TypeError):  # TypeError: Pillow 10.0 knew no size and had no outline font
        return b""
    return bytes(getattr(font, "font_bytes", b"") or b"")


@cache
def _check_fonts() -> None:
    """Refuse to draw pictures whose words would be missing."""
    from PIL import Image

    with Image.open(io.BytesIO(png(_PROBE))) as picture:
        if min(picture.convert("L").tobytes()) > 128:
            raise TailorError("This machine has no font for PNG figures; install one (DejaVu Sans) or ask for svg.")
