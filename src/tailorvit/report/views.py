"""Views: analysis.json and the rows of the network as checked records; what is damaged becomes a sentence."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tailorvit.report.records import Facts, real, rows, table, whole

_PICTURE = re.compile(r"data:image/(?:png|jpeg);base64,[A-Za-z0-9+/=]+")
_PICTURE_MOST = 200_000  # characters; the analysis keeps pictures of at most 128 pixels, some 10 kB
_SIDE_MOST = 1024  # rows or columns of a patch grid; a damaged file must not ask for gigabytes
_CLASSES_MOST = 100_000
_LAYERS_MOST = 512
_NAME_MOST = 200  # letters of a class; a thousand endless names would make an endless page


@dataclass(frozen=True)
class Block:
    """One block of the network found; a number nobody recorded is None."""

    stage: int | None
    block: int
    tokens: int | None
    embed: float | None
    heads: int | None
    qkv: float | None
    mlp: float | None
    hidden: float | None
    window: int | None
    params: float | None
    macs: float | None


@dataclass(frozen=True)
class Seen:
    """A test image and what the network said about it."""

    name: str
    truth: int | None
    said: int | None
    picture: str | None  # a checked data address
    probability: float | None = None
    truth_probability: float | None = None


@dataclass(frozen=True)
class Tested:
    """What the test images say."""

    classes: tuple[str, ...]
    count: int
    correct: int
    confusion: tuple[tuple[int, int, int], ...]  # truth, said, count
    per_class: tuple[tuple[int, int] | None, ...]  # images, correct
    mistakes: tuple[Seen, ...]


@dataclass(frozen=True)
class Box:
    """Five numbers and a mean."""

    low: float
    q1: float
    median: float
    q3: float
    high: float
    mean: float | None


@dataclass(frozen=True)
class Layer:
    """The attention of one layer."""

    name: str
    heads: int
    grid: tuple[int, int]
    references: tuple[tuple[int, int], ...]
    maps: NDArray[np.uint8] | None  # images, references, heads, rows, columns
    peaks: NDArray[np.float32] | None  # images, references, heads
    distance: Mapping[int, Box]
    similarity: NDArray[np.float64] | None
    redundancy: float | None


@dataclass(frozen=True)
class Attention:
    """The attention of the network found on a few test images."""

    classes: tuple[str, ...]
    images: tuple[Seen, ...]
    layers: tuple[Layer, ...]


def label(classes: Sequence[str], index: int | None) -> str:
    """The name of a class, or its number where it has none."""
    if index is None:
        return "an unknown class"
    return classes[index] if 0 <= index < len(classes) else f"class {index}"


def trim(text: str, most: int) -> str:
    """A long name with its middle left out; ends tell files apart better than beginnings."""
    if len(text) <= most:
        return text
    head = (most - 1) // 2
    return f"{text[:head]}…{text[len(text) - (most - 1 - head) :]}"


def blocks(facts: Facts) -> tuple[Block, ...]:
    """The network block by block; from the architecture alone where the run did not record the rows."""
    told = tuple(_block(table(row), i) for i, row in enumerate(rows(facts.result.get("blocks")), 1) if table(row))
    return told or tuple(_from_arch(table(facts.result.get("arch")), table(facts.result.get("fixed"))))


def _block(row: Mapping[str, Any], number: int) -> Block:
    count = whole(row.get("block"))
    return Block(
        stage=_positive(row.get("stage")),
        block=number if count is None else count,
        tokens=_positive(row.get("tokens")),
        embed=_amount(row.get("embed")),
        heads=_positive(row.get("heads")),
        qkv=_amount(row.get("qkv")),
        mlp=_amount(row.get("mlp")),
        hidden=_amount(row.get("hidden")),
        window=_positive(row.get("window")),
        params=_amount(row.get("params")),
        macs=_amount(row.get("macs")),
    )


def _from_arch(arch: Mapping[str, Any], fixed: Mapping[str, Any]) -> list[Block]:
    """Rows from per-block lists ("heads" or "heads.2"); no tokens and no costs, which only the family knows."""
    stages: dict[str, dict[str, Any]] = {}
    for key, value in arch.items():
        name, _, stage = str(key).partition(".")
        stages.setdefault(stage, {})[name] = value
    everywhere = stages.get("", {})
    found: list[Block] = []
    for stage in sorted(stages, key=lambda s: (len(s), s)):
        genes = {**everywhere, **stages[stage]}
        depth = max((len(v) for v in stages[stage].values() if isinstance(v, list)), default=0)
        for i in range(depth):
            here = {k: (v[i] if i < len(v) else None) if isinstance(v, list) else v for k, v in genes.items()}
            embed, heads, mlp = _amount(here.get("embed")), _positive(here.get("heads")), _amount(here.get("mlp"))
            wide = _amount(fixed.get("head_dim"))
            qkv = _amount(here.get("qkv")) or (heads * wide if heads and wide else None)
            found.append(
                Block(
                    stage=int(stage) if stage.isdecimal() and len(stage) < 4 else None,
                    block=i + 1,
                    tokens=None,
                    embed=embed,
                    heads=heads,
                    qkv=qkv,
                    mlp=mlp,
                    hidden=embed * mlp if embed and mlp else None,
                    window=_positive(here.get("window")),
                    params=None,
                    macs=None,
                )
            )
    return found


def _positive(value: Any) -> int | None:
    number = whole(value)
    return number if number is not None and 0 < number < 10**15 else None


def _amount(value: Any) -> float | None:
    number = real(value)
    return number if number is not None and 0 <= number < 1e18 else None


def _index(value: Any, most: int) -> int | None:
    number = whole(value)
    return number if number is not None and 0 <= number < most else None


def _share(value: Any) -> float | None:
    number = real(value)
    return number if number is not None and 0 <= number <= 1 else None


def picture(value: Any) -> str | None:
    """A picture the page may carry: PNG or JPEG bytes in the address itself, nothing else."""
    fits = isinstance(value, str) and len(value) <= _PICTURE_MOST and _PICTURE.fullmatch(value)
    return value if fits else None


def class_names(analysis: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the classes in their order."""
    return tuple(trim(str(name), _NAME_MOST) for name in rows(analysis.get("classes"))[:_CLASSES_MOST])


def _seen(row: Mapping[str, Any], most: int) -> Seen:
    return Seen(
        name=trim(str(row.get("name") or "no name"), 2 * _NAME_MOST),
        truth=_index(row.get("truth"), most),
        said=_index(row.get("said"), most),
        picture=picture(row.get("picture")),
        probability=_share(row.get("probability")),
        truth_probability=_share(row.get("truth_probability")),
    )


def scored(analysis: Mapping[str, Any]) -> tuple[Tested | None, list[str]]:
    """The part about the test images, and what is wrong with it."""
    raw, classes = table(analysis.get("test")), class_names(analysis)
    if not raw:
        return None, []
    notes = []
    per_class: list[tuple[int, int] | None] = []
    for row in rows(raw.get("per_class"))[:_CLASSES_MOST]:
        count, correct = (_index(v, 10**12) for v in [*rows(row), None, None][:2])
        per_class.append((count, correct) if count is not None and correct is not None and correct <= count else None)
    if None in per_class:
        notes.append(f"Damaged rows of the accuracy per class, left out: {per_class.count(None)}.")
    size = max(len(classes), len(per_class), 1)
    confusion = []
    bad = 0
    for row in rows(raw.get("confusion")):
        cell = [*rows(row), None, None, None][:3]
        truth, said, count = _index(cell[0], size), _index(cell[1], size), _index(cell[2], 10**12)
        if truth is None or said is None or count is None:
            bad += 1
        elif count:
            confusion.append((truth, said, count))
    if bad:
        notes.append(f"Damaged entries of the confusion matrix, left out: {bad}.")
    mistakes = tuple(_seen(table(row), size) for row in rows(raw.get("mistakes")) if table(row))
    blank = sum(m.picture is None for m in mistakes)
    if blank:
        notes.append(f"{blank} of {len(mistakes)} pictures of mistakes are missing or damaged.")
    told, right = _index(raw.get("count"), 10**12), _index(raw.get("correct"), 10**12)
    count = sum(c for _, _, c in confusion) if told is None else told
    correct = sum(c for t, s, c in confusion if t == s) if right is None else right
    if bad == 0 and confusion and told is not None and sum(c for _, _, c in confusion) != told:
        notes.append(f"The confusion matrix holds {sum(c for _, _, c in confusion):,} of {told:,} test images.")
    return Tested(classes, count, min(correct, count), tuple(confusion), tuple(per_class), mistakes), notes


def attended(analysis: Mapping[str, Any]) -> tuple[Attention | None, list[str]]:
    """The part about attention, and what is wrong with it."""
    raw, classes = table(analysis.get("attention")), class_names(analysis)
    if not raw:
        return None, []
    notes: list[str] = []
    images = tuple(_seen(table(row), _CLASSES_MOST) for row in rows(raw.get("images")))
    blank = sum(i.picture is None for i in images)
    if blank:
        notes.append(f"{blank} of {len(images)} pictures beside the attention maps are missing or damaged.")
    layers = []
    for i, row in enumerate(rows(raw.get("layers"))[:_LAYERS_MOST], 1):
        layer, wrong = _layer(table(row), i, len(images))
        notes += wrong
        layers += [layer] if layer else []
    return Attention(classes, images, tuple(layers)), notes


def _layer(row: Mapping[str, Any], number: int, images: int) -> tuple[Layer | None, list[str]]:
    name, notes = trim(str(row.get("name") or f"layer {number}"), 40), []
    heads = _positive(row.get("heads"))
    sides = [_positive(v) for v in rows(row.get("grid"))]
    height, width = sides if len(sides) == 2 else (None, None)
    if heads is None or height is None or width is None or max(height, width, heads) > _SIDE_MOST:
        return None, [f"The attention of {name} is damaged (heads or grid)."]
    places = [[_index(v, side) for v, side in zip(rows(at), (height, width))] for at in rows(row.get("references"))]
    references = tuple((p[0], p[1]) for p in places if len(p) == 2 and p[0] is not None and p[1] is not None)
    shape = (images, len(places), heads, height, width)
    maps = _unpack(row.get("maps"), np.dtype(np.uint8), shape) if len(references) == len(places) else None
    peaks = _unpack(row.get("peaks"), np.dtype("<f4"), shape[:3]) if maps is not None else None
    if maps is None and row.get("maps") is not None:
        notes.append(f"The attention maps of {name} are damaged and left out.")
    similarity = _matrix(row.get("similarity"), heads)
    if similarity is None and row.get("similarity") is not None:
        notes.append(f"The head similarity of {name} is damaged and left out.")
    distance = {}
    for key, value in table(row.get("distance")).items():
        box = _box(table(value))
        if box is None or not str(key).isdecimal() or len(str(key)) > 4:
            notes.append(f"An attention distance of {name} is damaged and left out.")
        else:
            distance[int(key)] = box
    layer = Layer(
        name=name,
        heads=heads,
        grid=(height, width),
        references=references,
        maps=maps,
        peaks=peaks,
        distance=distance,
        similarity=similarity,
        redundancy=real(row.get("redundancy")),
    )
    return layer, notes


def _unpack(text: Any, kind: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any] | None:
    if not isinstance(text, str) or 0 in shape:
        return None
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    fits = len(raw) == int(np.prod([*shape, kind.itemsize], dtype=object))  # object: damaged sides may overflow
    return np.frombuffer(raw, kind).reshape(shape) if fits else None


def _matrix(value: Any, side: int) -> NDArray[np.float64] | None:
    lines = [[real(v) for v in rows(line)] for line in rows(value)]
    if len(lines) != side or any(len(line) != side or None in line for line in lines):
        return None
    return np.array(lines, dtype=np.float64).reshape(side, side)


def _box(row: Mapping[str, Any]) -> Box | None:
    low, q1, median, q3, high = (real(row.get(k)) for k in ("low", "q1", "median", "q3", "high"))
    if low is None or q1 is None or median is None or q3 is None or high is None:
        return None
    return Box(low, q1, median, q3, high, real(row.get("mean")))
