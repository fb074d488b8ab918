"""A page's drawing as an SVG that stands alone: style sheet and variables turned into literal attributes."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from xml.etree import ElementTree as ET

from tailorvit.report.figure import Figure

SPACE_NAME = "http://www.w3.org/2000/svg"
SANS = "Liberation Sans, Arial, Helvetica, DejaVu Sans, Noto Sans, sans-serif"
MONO = "Liberation Mono, DejaVu Sans Mono, monospace"
_EDGE, _TITLE, _TEXT = 10, 14, 11  # margin, and the sizes of title and legend, in pixels
_GLYPH = 0.56  # mean width of a letter of these faces, in parts of the font size
# What the page puts around a drawing, outermost first: rules such as ".drawing svg" count here too.
_AROUND = (("html", ""), ("body", ""), ("main", ""), ("section", ""), ("figure", "chart"), ("div", "drawing"))
_KEPT = re.compile(
    r"fill|fill-opacity|fill-rule|stroke|stroke-(width|opacity|linecap|linejoin|dasharray|dashoffset)|opacity|color"
    r"|font-(size|family|weight|style)|text-anchor|dominant-baseline|paint-order|letter-spacing|visibility"
    r"|image-rendering|shape-rendering|vector-effect|stop-color|stop-opacity"
)
_FROM_PAGE = ("color", "font-size", "font-family", "font-weight", "font-style")  # inherited from what is around
_FONT = re.compile(r"(?:(italic)\s+)?(?:(bold|[1-9]00)\s+)?([\d.]+(?:px|rem|em))(?:/[\d.]+\w*)?\s+(.+)")
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")  # XML 1.0 has no way to write these

Pair = tuple[str, str]
Compound = tuple[str, frozenset[str], bool]  # tag, classes, whether it must be the direct parent of the next


@dataclass(frozen=True)
class Rule:
    """One selector with its declarations, and its rank in the cascade."""

    steps: tuple[Compound, ...]
    declarations: Mapping[str, str]
    rank: tuple[int, int, int]


@dataclass(frozen=True)
class Node:
    """An element with those around it, the variables that hold in it and the attributes it gets."""

    path: tuple[tuple[str, frozenset[str]], ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    attributes: Mapping[str, str] = field(default_factory=dict)


def _declarations(text: str) -> dict[str, str]:
    pairs = (part.partition(":") for part in re.split(r";(?![^(]*\))", text))
    return {k.strip(): v.replace("!important", "").strip() for k, colon, v in pairs if colon}


def _blocks(css: str) -> Iterator[Pair]:
    """Rules at the top level; what stands in @media (dark, print) is not for a file."""
    start = depth = 0
    head = ""
    for mark in re.finditer(r"[{};]", css):
        if mark.group() == "{":
            if depth == 0:
                head, start = css[start : mark.start()].strip(), mark.end()
            depth += 1
        elif mark.group() == "}":
            depth -= 1
            if depth == 0:
                if not head.startswith("@"):
                    yield head, css[start : mark.start()]
                start = mark.end()
        elif depth == 0:  # @charset and the like
            start = mark.end()


def parse_css(css: str) -> tuple[Rule, ...]:
    """The rules a drawing can meet: tags, classes, descendants and children; states and attributes are left out."""
    found = []
    for order, (head, body) in enumerate(_blocks(re.sub(r"/\*.*?\*/", "", css, flags=re.S))):
        declarations = _declarations(body)
        for selector in head.split(","):
            words = re.sub(r"\s*>\s*", " > ", selector.strip().replace(":root", "html")).split()
            if not words or re.search(r"[\[:#+~]", selector.replace(":root", "")):
                continue
            steps = tuple(
                (re.split(r"\.", w)[0].replace("*", ""), frozenset(w.split(".")[1:]), words[i + 1 : i + 2] == [">"])
                for i, w in enumerate(words)
                if w != ">"
            )
            rank = (sum(len(s[1]) for s in steps), sum(bool(s[0]) for s in steps), order)
            found.append(Rule(steps, declarations, rank))
    return tuple(sorted(found, key=lambda r: r.rank))


def _fits(step: Compound, element: tuple[str, frozenset[str]]) -> bool:
    return step[0] in ("", element[0]) and step[1] <= element[1]


def _matches(steps: Sequence[Compound], path: Sequence[tuple[str, frozenset[str]]]) -> bool:
    if not _fits(steps[-1], path[-1]):
        return False
    if len(steps) == 1:
        return True
    around = path[:-1]
    if steps[-2][2]:
        return bool(around) and _matches(steps[:-1], around)
    return any(_matches(steps[:-1], around[: i + 1]) for i in range(len(around)))


def _literal(value: str, variables: Mapping[str, str], depth: int = 0) -> str | None:
    """A value without var(); None where a variable is not known and has no fallback."""
    while (call := re.search(r"var\(\s*(--[\w-]+)\s*(?:,((?:[^()]|\([^()]*\))*))?\)", value)) and depth < 20:
        known: str | None = variables.get(call.group(1), call.group(2))
        if known is None:
            return None
        value, depth = value[: call.start()] + known.strip() + value[call.end() :], depth + 1
    return None if "var(" in value else re.sub(r"([\d.]+)rem\b", lambda m: f"{16 * float(m.group(1)):g}px", value)


def _expanded(declarations: Mapping[str, str]) -> dict[str, str]:
    """Declarations with the font shorthand spelled out and families that every machine resolves."""
    plain = dict(declarations)
    if (short := plain.pop("font", None)) and (found := _FONT.fullmatch(short)):
        names = ("font-style", "font-weight", "font-size", "font-family")
        plain = {k: v for k, v in zip(names, found.groups(), strict=True) if v} | plain
    if "font-family" in plain:
        plain["font-family"] = MONO if "mono" in plain["font-family"] else SANS
    return plain


def _step(around: Node, tag: str, classes: str, own: str, rules: Sequence[Rule]) -> Node:
    """The cascade for one element."""
    path = (*around.path, (tag, frozenset(classes.split())))
    told: dict[str, str] = {}
    for rule in rules:
        if _matches(rule.steps, path):
            told |= rule.declarations
    told |= _declarations(own)
    variables = dict(around.variables)
    for key in [k for k in told if k.startswith("--")]:
        if (value := _literal(told[key], {**around.variables, **told})) is not None:
            variables[key] = value
    plain = {k: _literal(v, variables) for k, v in told.items() if not k.startswith("--")}
    sure = _expanded({k: v for k, v in plain.items() if v is not None})
    kept = {k: v for k, v in sure.items() if _KEPT.fullmatch(k) or (k == "display" and v == "none")}
    return Node(path, variables, kept)


def _dress(
    element: ET.Element, around: Node, rules: Sequence[Rule], memo: dict[tuple[int, str, str, str], Node]
) -> None:
    """Write what the style sheet says into an element and all below it."""
    element.tag = str(element.tag).rpartition("}")[2]
    given = {k.rpartition("}")[2] if k.endswith("}href") else k: v for k, v in element.attrib.items()}
    classes, own, words = given.pop("class", ""), given.pop("style", ""), given.pop("data-tip", "")
    key = (id(around), element.tag, classes, own)
    node = memo.get(key)
    if node is None:
        node = memo[key] = _step(around, element.tag, classes, own, rules)
    for name, value in given.items():
        if "var(" in value:
            given[name] = _literal(value, node.variables) or "none"
    element.attrib.clear()
    keep = {k: v for k, v in given.items() if not k.startswith(("data-", "on", "tabindex", "aria-", "{"))}
    element.attrib.update(keep | dict(node.attributes))
    if (rendering := element.attrib.pop("image-rendering", None)) is not None:
        element.attrib["style"] = f"image-rendering:{rendering}"  # resvg knows "pixelated" in a style only
    for child in list(element):
        if not isinstance(child.tag, str) or str(child.tag).rpartition("}")[2] in ("script", "style", "foreignObject"):
            element.remove(child)
        else:
            _dress(child, node, rules, memo)
    if words and element.find("title") is None:
        hint = ET.Element("title")  # what the page shows on hover, a viewer of the file shows too
        hint.text = words
        element.insert(0, hint)


def _drawings(svg: str) -> list[ET.Element]:
    text = _FORBIDDEN.sub("\ufffd", svg.encode("utf-8", "replace").decode()).replace("xlink:href=", "href=")
    root = ET.fromstring(f"<all>{text}</all>")
    inside = {id(below) for e in root.iter() if _is_svg(e) for below in e.iter() if below is not e}
    return [e for e in root.iter() if _is_svg(e) and id(e) not in inside]


def _is_svg(element: ET.Element) -> bool:
    return str(element.tag).rpartition("}")[2] == "svg"


def _extent(element: ET.Element) -> tuple[float, float]:
    try:
        _, _, width, height = map(float, element.attrib["viewBox"].replace(",", " ").split())
    except (KeyError, ValueError):
        return 440.0, 260.0
    return max(width, 1.0), max(height, 1.0)


def _legend(figure: Figure, width: float) -> list[list[tuple[str, str, float]]]:
    """The legend's entries in lines, each with its place from the left."""
    lines: list[list[tuple[str, str, float]]] = []
    x = 0.0
    for style, words in figure.legend:
        need = 18 + len(words) * _TEXT * _GLYPH + 14
        if not lines or x + need > width:
            lines.append([])
            x = 0.0
        lines[-1].append((style, words, x))
        x += need
    return lines


def standalone(figure: Figure, css: str) -> str:
    """The figure with title and legend on white, in the page's light colours; ValueError when it has no drawing."""
    try:
        drawings = _drawings(figure.svg)
    except ET.ParseError as error:
        raise ValueError(f"the drawing is not well-formed ({error})") from error
    if not drawings:
        raise ValueError("it has no drawing")
    rules = parse_css(css)
    around = Node()
    page: dict[str, str] = {"fill": "#000000", "font-size": "16px", "font-family": SANS}
    for tag, classes in _AROUND:
        around = _step(around, tag, classes, "", rules)
        page |= {k: v for k, v in around.attributes.items() if k in _FROM_PAGE}
    ink = page.get("color", "#20242a")
    extents = [_extent(d) for d in drawings]
    inner = max(max(w for w, _ in extents), 220.0)
    title = textwrap.wrap(_FORBIDDEN.sub(" ", figure.title), max(10, int(inner / (_TITLE * _GLYPH)))) or [""]
    top = _EDGE + len(title) * (_TITLE + 4) + 4.0
    lines = _legend(figure, inner)
    width = inner + 2 * _EDGE
    height = top + sum(h + 6 for _, h in extents) + len(lines) * 17 + _EDGE
    root = ET.Element("svg", {"xmlns": SPACE_NAME, "width": f"{width:g}", "height": f"{height:g}"})
    root.attrib |= {"viewBox": f"0 0 {width:g} {height:g}", **{k: v for k, v in page.items() if k != "fill"}}
    ET.SubElement(root, "title").text = _clean(figure.title)
    ET.SubElement(root, "desc").text = _clean(figure.caption)
    ET.SubElement(root, "rect", {"width": "100%", "height": "100%", "fill": "#ffffff"})
    for i, line in enumerate(title):
        place = {"x": str(_EDGE), "y": f"{_EDGE + (i + 1) * (_TITLE + 4) - 4:g}", "font-size": f"{_TITLE}px"}
        ET.SubElement(root, "text", place | {"font-weight": "600", "fill": ink}).text = _clean(line)
    memo: dict[tuple[int, str, str, str], Node] = {}
    for drawing, (w, h) in zip(drawings, extents, strict=True):
        _dress(drawing, around, rules, memo)
        drawing.attrib |= {"x": str(_EDGE), "y": f"{top:g}", "width": f"{w:g}", "height": f"{h:g}"}
        root.append(drawing)
        top += h + 6
    for entries in lines:
        for style, words, x in entries:
            colour = _step(around, "span", f"key {style}", "", rules).variables.get("--c", ink)
            mark = {"x": f"{_EDGE + x:g}", "y": f"{top + 5:g}", "width": "13", "height": "5", "fill": colour}
            ET.SubElement(root, "rect", mark)
            place = {"x": f"{_EDGE + x + 18:g}", "y": f"{top + 11:g}", "font-size": f"{_TEXT}px", "fill": ink}
            ET.SubElement(root, "text", place).text = _clean(words)
        top += 17
    return ET.tostring(root, encoding="unicode") + "\n"


def _clean(words: str) -> str:
    return _FORBIDDEN.sub("\ufffd", words.encode("utf-8", "replace").decode())
