"""Reading a run folder into checked values. Missing or damaged parts become sentences; the rest is still read.

Each JSON file and each table of the database has one definition here. A field that holds something else than it should
is read as None (or empty), so that one damaged number costs only itself.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass as record
from dataclasses import field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    InstanceOf,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic.dataclasses import dataclass

from tailorvit.errors import TailorError
from tailorvit.report.charts import trim
from tailorvit.report.contest_facts import Contest, Plan
from tailorvit.report.fields import (
    CLASSES,
    LARGEST,
    NAME,
    PART,
    Amount,
    Class,
    Column,
    Finite,
    Flag,
    Name,
    Number,
    Numbers,
    Picture,
    Positive,
    Share,
    Sizes,
    Table,
    Text,
    Whole,
    Words,
    between,
    json_table,
    listed,
    number,
    objects,
    table,
    whole,
    whole_text,
)
from tailorvit.report.latency_facts import LatencyBy
from tailorvit.report.snapshot import DATABASE, snapshot
from tailorvit.report.study_facts import Study, read_study
from tailorvit.report.tailored_facts import FIRST, WHOLE, SizeCut, WholeNetwork, size_cuts
from tailorvit.runs import Run
from tailorvit.runs.database import Database
from tailorvit.texts import parse_toml, read_json

T = TypeVar("T")
CONTEST = "contest"  # kind of the stages contest-ROUND-ENTRY
_DAMAGE = (ValueError, TypeError, KeyError, AttributeError, RecursionError)
_SIDE = 1024  # rows or columns of a patch grid; a damaged file must not ask for gigabytes
_LAYERS = 512
_JUDGED_BY_ACCURACY = ("supernet", "training", "tuned")  # evaluators of a moving space; all others are scores


class _Part(BaseModel):
    """A part of a JSON file."""

    model_config = PART


# -- result.json ------------------------------------------------------------------------------------------------------


class Limit(_Part):
    """Bounds of one cost."""

    min: Number = None
    max: Number = None


class TestFigures(_Part):
    """A network's figures on the test images beside its accuracy, in percent."""

    top5_accuracy: Number = None  # only of more than five classes
    macro_f1: Number = None
    balanced_accuracy: Number = None
    calibration_error: Number = None


class Throughput(_Part):
    """Images a second, and how they were measured."""

    images_per_second: Amount = None
    batch: Positive = None
    device: Text = ""
    threads: Positive = None

    @property
    def conditions(self) -> str:
        """How it was measured, in words."""
        threads = f" with {self.threads} thread{'s' * (self.threads != 1)}" if self.threads else ""
        where = f"{self.device}{threads if self.device.startswith('cpu') else ''}"
        return ", ".join(part for part in (f"batches of {self.batch}" if self.batch else "", where) if part)


class Kept(_Part):
    """The epoch whose weights were kept, where it is the best one on the search images."""

    epoch: Positive = None
    of: Positive = None
    planned: Positive = None


class Network(_Part):
    """A trained network: the one delivered, a candidate, the baseline or a peer."""

    name: Text = ""
    arch: Table = {}
    params: Number = None
    macs: Number = None
    search_accuracy: Number = None  # with inherited weights
    final_search_accuracy: Number = None
    test_accuracy: Number = None
    epochs: Whole = None
    chosen: Flag = False
    metrics: Annotated[TestFigures, BeforeValidator(table)] = TestFigures()
    throughput: Annotated[Throughput, BeforeValidator(table)] = Throughput()
    kept: Annotated[Kept, BeforeValidator(table)] = Kept()

    def cost(self, metric: str) -> float | None:
        """A cost by name, also a measured one."""
        counted = {"params": self.params, "macs": self.macs}
        return counted[metric] if metric in counted else number((self.model_extra or {}).get(metric))


class Gap(_Part):
    """The difference of two networks on the same images, in points, with its 95 % interval."""

    first: Text = ""
    second: Text = ""
    difference: Number = None
    low: Number = None
    high: Number = None
    clear: Flag = False
    images: Positive = None


class Peer(Network):
    """A network trained beside: of timm, the whole network that was cut, or the one tuned in another way."""

    over: Text = ""  # the limit that it breaks
    problem: Text = ""
    gap: Annotated[Gap, BeforeValidator(table)] = Gap()  # less the delivered network, on the test images

    @property
    def short(self) -> str:
        """Its name without where it comes from, or what was done with it."""
        name = self.name.removeprefix("timm:") if self.of_timm else self.name.replace("-", " ")
        return "whole network" if self.whole else trim(name, 60) or "peer"

    @property
    def whole(self) -> bool:
        """Whether it is the whole network that was cut, and no model of timm."""
        return self.name == WHOLE

    @property
    def of_timm(self) -> bool:
        """Whether it is a model of timm."""
        return self.name.startswith("timm:")


class Block(_Part):
    """One block of the network. A family may leave out columns, or bring columns of its own."""

    stage: Positive = None
    block: Whole = None
    tokens: Positive = None
    embed: Amount = None
    heads: Positive = None
    qkv: Amount = None
    mlp: Amount = None
    hidden: Amount = None
    window: Positive = None
    params: Amount = None
    macs: Amount = None

    @property
    def others(self) -> dict[str, Any]:
        """The columns that only this family has: numbers and short words."""
        known = {k: trim(v, 40) if isinstance(v, str) else number(v) for k, v in (self.model_extra or {}).items()}
        return {trim(k, 30): v for k, v in known.items() if v is not None}


class Part(_Part):
    """A part of the network, summed over all blocks."""

    part: Annotated[str, BeforeValidator(str)] = ""
    params: Amount = None
    macs: Amount = None


class DataFacts(_Part):
    """The images of a run."""

    source: Annotated[str, BeforeValidator(lambda value: str(value or ""))] = ""
    counts: Finite = {}
    classes: Whole = None
    skipped: Whole = None


class ProxyFacts(_Part):
    """How untrained networks were scored."""

    names: Words = ()
    name: Text = ""
    scored: Whole = None
    without_score: Whole = None
    tau_params: Number = None


class SeekFacts(_Part):
    """How sub-networks were judged while the space moved, where no supernet judged them."""

    evaluator: Text = ""
    epochs: Whole = None
    reach: Whole = None


class Trunk(_Part):
    """The frozen network before a decoder."""

    source: Text = ""
    params: Number = None
    macs: Number = None


class Start(_Part):
    """The network that fine-tuning began with."""

    image_size: Sizes = ()
    head: Text = ""
    test_accuracy: Number = None


class Result(Network):
    """result.json."""

    method: Text = ""
    final: Text = ""
    seed: Whole = None
    trials: Whole = None
    fixed: Table = {}
    seconds: Finite = {}
    limits: Annotated[dict[str, Annotated[Limit, BeforeValidator(table)]], BeforeValidator(table)] = {}
    latency_by: Annotated[LatencyBy, BeforeValidator(table)] = LatencyBy()
    baseline: Annotated[Network, BeforeValidator(table)] = Network()
    candidates: Annotated[tuple[Network, ...], BeforeValidator(objects)] = ()
    chosen: Text = ""  # type: ignore[assignment]  # "found" or "baseline"; of a candidate it is a flag
    why: Text = ""
    tied: Words = ()
    doubts: Words = ()  # what so few images cannot tell
    comparison: Annotated[tuple[Gap, ...], BeforeValidator(objects)] = ()
    peers: Annotated[tuple[Peer, ...], BeforeValidator(objects)] = ()
    blocks: Annotated[tuple[Block, ...], BeforeValidator(objects)] = ()
    parts: Annotated[tuple[Part, ...], BeforeValidator(objects)] = ()
    spaces: Annotated[tuple[Mapping[str, Any], ...], BeforeValidator(objects)] = ()
    data: Annotated[DataFacts, BeforeValidator(table)] = DataFacts()
    proxy: Annotated[ProxyFacts, BeforeValidator(table)] = ProxyFacts()
    seek: Annotated[SeekFacts, BeforeValidator(table)] = SeekFacts()
    trunk: Annotated[Trunk, BeforeValidator(table)] = Trunk()
    start: Annotated[Start, BeforeValidator(table)] = Start()
    contest: Annotated[Contest, BeforeValidator(table)] = Contest()
    plan: Annotated[Plan, BeforeValidator(table)] = Plan()
    whole: Annotated[WholeNetwork, BeforeValidator(table)] = WholeNetwork()
    sizes: Annotated[tuple[SizeCut, ...], BeforeValidator(size_cuts)] = ()

    @model_validator(mode="before")
    @classmethod
    def _first_blocks(cls, raw: Any) -> Any:
        """Of a network that was cut, the first blocks stand for the baseline."""
        rows = [row for row in listed(table(raw).get("candidates")) if table(row).get("name") == FIRST]
        return {**raw, "baseline": rows[0]} if rows and not table(raw.get("baseline")) else raw

    @property
    def by_hand(self) -> bool:
        """Whether the run delivers the hand-designed baseline, or the first blocks in its place."""
        return self.chosen == "baseline" or self.baseline.chosen

    @property
    def rival(self) -> str:
        """The name of what the network found is compared with."""
        return self.baseline.name if self.baseline.name == FIRST else "baseline"

    @property
    def whole_peer(self) -> Peer | None:
        """The whole network beside the one that was cut from it."""
        return next((peer for peer in self.peers if peer.whole), None)

    @property
    def found(self) -> Network:
        """The best network found, also where it was not delivered."""
        others = [c for c in self.candidates if c.name not in ("baseline", FIRST)]
        return max(others, key=lambda c: c.final_search_accuracy or 0.0) if self.by_hand and others else self

    def limit(self, metric: str) -> Limit:
        """The bounds of a cost; without bounds where there is no limit."""
        return self.limits.get(metric, Limit())


def blocks(result: Result) -> tuple[Block, ...]:
    """The network block by block; old runs recorded no blocks, so theirs come from the architecture."""
    found = [b if b.block is not None else b.model_copy(update={"block": i}) for i, b in enumerate(result.blocks, 1)]
    return tuple(found) or tuple(_blocks_of_arch(result.arch, number(result.fixed.get("head_dim"))))


def _blocks_of_arch(arch: Mapping[str, Any], head_dim: float | None) -> Iterator[Block]:
    """Rows from lists per block ("heads" or "heads.2"); tokens and costs are not known."""
    stages: dict[str, dict[str, Any]] = {}
    for key, value in arch.items():
        name, _, stage = str(key).partition(".")
        stages.setdefault(stage, {})[name] = value
    for stage in sorted(stages, key=lambda s: (len(s), s)):
        values = {**stages.get("", {}), **stages[stage]}
        depth = max((len(v) for v in stages[stage].values() if isinstance(v, list)), default=0)
        for i in range(depth):
            row = {k: (v[i] if i < len(v) else None) if isinstance(v, list) else v for k, v in values.items()}
            columns = {k: row.get(k) for k in ("embed", "heads", "mlp", "window", "qkv")}
            block = Block.model_validate({**columns, "stage": whole_text(stage), "block": i + 1})
            width = block.heads * head_dim if block.heads and head_dim else None
            hidden = block.embed * block.mlp if block.embed and block.mlp else None
            yield block.model_copy(update={"qkv": block.qkv or width, "hidden": hidden})


# -- analysis.json ----------------------------------------------------------------------------------------------------

_Index = Annotated[int, Field(strict=True, ge=0, lt=10**12)]
_Side = Annotated[int, Field(strict=True, gt=0, le=_SIDE)]
_Real = Annotated[float, Field(strict=True, ge=-LARGEST, le=LARGEST, allow_inf_nan=False)]


class Seen(_Part):
    """A test image and the network's prediction."""

    name: Name = "no name"
    truth: Class = None
    predicted: Class = Field(None, alias="said")
    picture: Picture = None
    probability: Share = None
    truth_probability: Share = None


class BoxPlot(_Part):
    """The numbers of a box plot."""

    low: _Real
    q1: _Real
    median: _Real
    q3: _Real
    high: _Real
    mean: Number = None


class LayerShape(_Part):
    """What every layer with attention must have."""

    heads: _Side
    grid: tuple[_Side, _Side]


_PER_CLASS = TypeAdapter(tuple[_Index, _Index])
_CONFUSION = TypeAdapter(tuple[_Index, _Index, _Index])
_SHAPE = TypeAdapter(LayerShape)
_PLACES = TypeAdapter(tuple[tuple[_Index, _Index], ...])
_MATRIX = TypeAdapter(list[list[_Real]])
_BOX = TypeAdapter(BoxPlot)
_SEEN = TypeAdapter(Seen)


def _fit(kind: TypeAdapter[T], value: Any) -> T | None:
    """The value where it has this form, else None."""
    try:
        return kind.validate_python(value)
    except (ValidationError, OverflowError):
        return None


@record(frozen=True)
class Tested:
    """The network's predictions on the test images."""

    count: int
    correct: int
    confusion: tuple[tuple[int, int, int], ...]  # class, predicted class, images
    per_class: tuple[tuple[int, int] | None, ...]  # images, correct
    mistakes: tuple[Seen, ...]
    problems: tuple[str, ...]


@record(frozen=True)
class Layer:
    """The attention of one layer."""

    name: str
    heads: int
    grid: tuple[int, int]
    references: tuple[tuple[int, int], ...]
    maps: NDArray[np.uint8] | None  # images, references, heads, rows, columns
    peaks: NDArray[np.float32] | None  # images, references, heads
    distance: Mapping[int, BoxPlot]
    similarity: NDArray[np.float64] | None
    redundancy: float | None


@record(frozen=True)
class Attention:
    """The attention of the network on a few test images."""

    images: tuple[Seen, ...]
    layers: tuple[Layer, ...]
    problems: tuple[str, ...]


class Analysis(_Part):
    """analysis.json."""

    classes: tuple[str, ...] = ()
    notes: Words = ()
    test: InstanceOf[Tested] | None = None
    attention: InstanceOf[Attention] | None = None

    @model_validator(mode="before")
    @classmethod
    def _read(cls, raw: Any) -> Any:
        if isinstance(raw, cls):
            return raw
        classes = tuple(trim(str(name), NAME) for name in listed(table(raw).get("classes"))[:CLASSES])
        test, attention = table(table(raw).get("test")), table(table(raw).get("attention"))
        return {
            "classes": classes,
            "notes": table(raw).get("notes"),
            "test": _read_test(test, len(classes)) if test else None,
            "attention": _read_attention(attention) if attention else None,
        }

    def label(self, index: int | None) -> str:
        """The name of a class, or its number where it has none."""
        if index is None:
            return "an unknown class"
        return self.classes[index] if 0 <= index < len(self.classes) else f"class {index}"


def _read_test(raw: Mapping[str, Any], classes: int) -> Tested:
    problems = []
    pairs = [_fit(_PER_CLASS, row) for row in listed(raw.get("per_class"))[:CLASSES]]
    per_class = tuple(pair if pair is not None and pair[1] <= pair[0] else None for pair in pairs)
    if None in per_class:
        problems.append(f"Damaged rows of the accuracy per class, left out: {per_class.count(None)}.")
    size = max(classes, len(per_class), 1)
    cells = [_fit(_CONFUSION, row) for row in listed(raw.get("confusion"))]
    inside = [c for c in cells if c is not None and max(c[:2]) < size]
    if len(inside) < len(cells):
        problems.append(f"Damaged entries of the confusion matrix, left out: {len(cells) - len(inside)}.")
    confusion = tuple(c for c in inside if c[2])
    mistakes = _read_images(raw.get("mistakes"), "of mistakes", problems)
    total = sum(c for *_, c in confusion)
    count, correct = (between(0, 10**12, whole)(raw.get(key)) for key in ("count", "correct"))
    if len(inside) == len(cells) and confusion and count is not None and total != count:
        problems.append(f"The confusion matrix holds {total:,} of {count:,} test images.")
    count = total if count is None else count
    correct = sum(c for t, p, c in confusion if t == p) if correct is None else correct
    return Tested(count, min(correct, count), confusion, per_class, mistakes, tuple(problems))


def _read_images(rows: Any, where: str, problems: list[str]) -> tuple[Seen, ...]:
    found = tuple(seen for row in objects(rows) if (seen := _fit(_SEEN, row)) is not None)
    blank = sum(seen.picture is None for seen in found)
    if blank:
        problems.append(f"{blank} of {len(found)} pictures {where} are missing or damaged.")
    return found


def _read_attention(raw: Mapping[str, Any]) -> Attention:
    problems: list[str] = []
    images = _read_images(raw.get("images"), "beside the attention maps", problems)
    rows = enumerate(listed(raw.get("layers"))[:_LAYERS], 1)
    found = [_read_layer(table(row), i, len(images), problems) for i, row in rows]
    return Attention(images, tuple(layer for layer in found if layer is not None), tuple(problems))


def _read_layer(row: Mapping[str, Any], place: int, images: int, problems: list[str]) -> Layer | None:
    name = trim(str(row.get("name") or f"layer {place}"), 40)
    shape = _fit(_SHAPE, row)
    if shape is None:
        problems.append(f"The attention of {name} is damaged (heads or grid).")
        return None
    places = _fit(_PLACES, row.get("references")) or ()
    inside = all(r < shape.grid[0] and c < shape.grid[1] for r, c in places)
    sizes = (images, len(places), shape.heads, *shape.grid)
    maps = _unpack(row.get("maps"), np.dtype(np.uint8), sizes) if inside else None
    peaks = _unpack(row.get("peaks"), np.dtype("<f4"), sizes[:3]) if maps is not None else None
    if maps is None and row.get("maps") is not None:
        problems.append(f"The attention maps of {name} are damaged and left out.")
    rows = _fit(_MATRIX, row.get("similarity"))
    square = rows is not None and [len(r) for r in rows] == [shape.heads] * shape.heads
    if not square and row.get("similarity") is not None:
        problems.append(f"The head similarity of {name} is damaged and left out.")
    distance = {}
    for key, value in table(row.get("distance")).items():
        box, keys = _fit(_BOX, value), whole_text(str(key))
        if box is None or keys is None:
            problems.append(f"An attention distance of {name} is damaged and left out.")
        else:
            distance[keys] = box
    similarity = np.array(rows, dtype=np.float64) if square else None
    redundancy = number(row.get("redundancy"))
    return Layer(name, shape.heads, shape.grid, places, maps, peaks, distance, similarity, redundancy)


def _unpack(text: Any, kind: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any] | None:
    if not isinstance(text, str) or 0 in shape:
        return None
    try:
        raw = base64.b64decode(text, validate=True)
    except ValueError:
        return None
    fits = len(raw) == int(np.prod([*shape, kind.itemsize], dtype=object))  # object: damaged sides may overflow
    return np.frombuffer(raw, kind).reshape(shape) if fits else None


# -- run.db -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SpaceStep:
    """One search space that was visited. ``t`` counts spaces; ``step`` is the method's step, which a repair shares."""

    t: int
    dims: Mapping[str, Numbers]
    params: Number = None  # of the largest sub-network
    macs: Number = None
    count_log10: Number = None
    repair: Flag = False
    step: int = 0

    @property
    def label(self) -> str:
        """Its name on an axis: the step, with an r for a space reached by a repair."""
        return f"{self.step}r" if self.repair else str(self.step)

    @classmethod
    def of(cls, t: Any, dims: Any, facts: Mapping[str, Any]) -> SpaceStep:
        """From a row of the database, or of result.json where the database is lost."""
        largest, step = table(facts.get("largest")), whole(facts.get("step"))
        sizes = (largest.get("params"), largest.get("macs"), facts.get("count_log10"))
        return cls(t, dims, *sizes, facts.get("repair") is True, t if step is None else step)


@dataclass(frozen=True)
class Fit:
    """S3's slope of one dimension: the error in percent per choice, the line through it, and the shift."""

    choices: Numbers
    errors: tuple[Number, ...]
    slope: Number = None
    offset: Number = None
    shift: Whole = None


@dataclass(frozen=True)
class Slope:
    """The gain of one more step along a dimension, in points of accuracy, with its standard error."""

    t: int
    dim: str
    z_step: Number = None
    se_step: Number = None
    pairs: Whole = None
    z: Number = None
    se: Number = None
    fit: Fit | None = None


@dataclass(frozen=True)
class Move:
    """A possible move of the space and how well it agrees with the slopes."""

    gamma: str
    size: Number = None
    cosine: Number = None
    gain: Number = None


@dataclass(frozen=True)
class Decision:
    """Where the space moved, and why."""

    t: int
    gamma: str
    sentence: str
    stop: Flag
    legal: tuple[Move, ...]


@dataclass(frozen=True)
class Trial:
    """One evaluated architecture; without training it has a score instead of an accuracy."""

    stage: str
    accuracy: Number
    params: Number
    macs: Number
    source: Annotated[str, BeforeValidator(lambda value: str(value or ""))]
    generation: Whole
    arch: Column
    costs: Annotated[Finite, BeforeValidator(json_table)] = field(default_factory=dict)
    score: Number = None
    proxy: Annotated[str, BeforeValidator(lambda value: str(value or ""))] = ""

    @property
    def merit(self) -> float | None:
        """What the search maximised."""
        return self.score if self.accuracy is None else self.accuracy

    def cost(self, metric: str) -> float | None:
        """A cost by name."""
        return {"params": self.params, "macs": self.macs}.get(metric, self.costs.get(metric))


@dataclass(frozen=True, config=ConfigDict(extra="ignore"))
class Epoch:
    """The numbers of one epoch."""

    stage: str
    epoch: int
    loss: Number = None
    accuracy: Number = None
    lr: Number = None
    images_per_second: Number = None
    search_accuracy: Number = None  # of a single network in training
    score: Number = None  # of a task's network on the search split, by the task's metric
    largest: Number = None  # accuracy of a supernet's largest and smallest sub-network
    smallest: Number = None


@dataclass(frozen=True)
class Event:
    """Something that happened: a warning, a decision, a resume."""

    time: str
    kind: str
    text: str


@dataclass(frozen=True)
class Facts:
    """Everything the report knows about a run."""

    folder: str
    finished: bool
    missing: tuple[str, ...] = ()
    recipe: str = ""
    info: Mapping[str, Any] = field(default_factory=dict)
    result: Result = Result()
    analysis: Analysis = Analysis()
    seconds: Mapping[str, float] = field(default_factory=dict)
    spaces: tuple[SpaceStep, ...] = ()
    slopes: tuple[Slope, ...] = ()
    decisions: tuple[Decision, ...] = ()
    trials: tuple[Trial, ...] = ()
    epochs: tuple[Epoch, ...] = ()
    events: tuple[Event, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)  # the recipe, parsed
    place: str = ""  # the folder as a command on this machine takes it
    study: Study = Study()  # of the run, in a folder of its own
    task: Mapping[str, Any] = field(default_factory=dict)  # of a task's run: result.json as it is
    pictures: Sequence[Any] = ()  # and its pictures

    @property
    def task_name(self) -> str:
        """The task that the run is of; empty where it is of none."""
        name = self.settings.get("task") or self.info.get("task")
        return name if isinstance(name, str) else ""

    @property
    def method(self) -> str:
        """The method by name, from the result or else from the recipe; empty where neither names it."""
        name = self.result.method or self.settings.get("method")
        return name if isinstance(name, str) else ""

    @property
    def searched(self) -> bool:
        """Whether there was a search, not one network given by the user."""
        return self.method not in ("fixed", "finetune")

    @property
    def tailored(self) -> bool:
        """Whether a pretrained network was cut."""
        return self.method == "tailor"

    @property
    def pretrained(self) -> str:
        """The pretrained network by name, from the result or else from the recipe."""
        name = self.result.whole.network or table(self.settings.get("start")).get("network")
        return name if isinstance(name, str) else ""

    @property
    def contest_only(self) -> bool:
        """Whether the contest alone chose the network: no space was searched after it."""
        return self.method == "contest" and not self.spaces

    @property
    def data(self) -> DataFacts:
        """The images, as far as the result or else info.json names them."""
        return self.result.data if self.result.data != DataFacts() else DataFacts(**table(self.info.get("data")))

    @property
    def spent(self) -> dict[str, float]:
        """Seconds per stage."""
        return {k: s for k, s in (self.seconds or self.result.seconds).items() if s >= 0}

    @property
    def search_seconds(self) -> float | None:
        """Time to find the network: supernets, slopes, samples and search, without final training and baseline.

        Of a network that was cut, its fine-tuning and the order of its parts come before the search.
        """
        after = ("final", "baseline", "peer", "analysis", "whole", "ordered", "refit")
        found = [s for stage, s in self.spent.items() if stage.partition("-")[0] not in after]
        return sum(found) if found else None

    @property
    def test_images(self) -> int | None:
        """The number of test images."""
        test = self.analysis.test
        found = whole(self.data.counts.get("test")) or (test.count if test is not None else None)
        return found if found and found > 0 else None

    @property
    def scale(self) -> str:
        """The unit of slopes: points of accuracy, or standard deviations of a score that needs no training."""
        name = table(self.settings.get("seek")).get("evaluator")
        by_score = isinstance(name, str) and name not in _JUDGED_BY_ACCURACY and self.method in ("s4", "s3")
        return f"standard deviations of {name}" if by_score else "points of accuracy"

    @property
    def status(self) -> Literal["finished", "running", "failed", "interrupted"]:
        """The state of the run as far as a folder shows it; a killed run looks like a running one."""
        if self.finished:
            return "finished"
        last = next((e.kind for e in reversed(self.events) if e.kind in ("failed", "interrupted", "resume")), "")
        return "failed" if last == "failed" else "interrupted" if last == "interrupted" else "running"


def moves(gamma: Any, keys: Sequence[str] = ()) -> str:
    """A direction in words, ``depth -1, embed +1``; a list follows the order of the dimensions."""
    if isinstance(gamma, list | tuple):
        known = keys if len(keys) == len(gamma) else [f"dimension {i}" for i in range(1, len(gamma) + 1)]
        gamma = dict(zip(known, gamma, strict=True))
    named = table(gamma)
    order = [*(k for k in keys if k in named), *(k for k in named if k not in keys)]
    steps = [f"{k} {step:+d}" for k in order if (step := whole(named[k]))]
    return ", ".join(steps) or "no move"


class _Tables:
    """The tables of run.db, row by row, so that one damaged row costs only itself."""

    def __init__(self, folder: Path, missing: list[str]) -> None:
        self._database = Database(folder / DATABASE, readonly=True)
        self._there, self._missing = (folder / DATABASE).is_file(), missing

    def read(self, name: str, columns: str, make: Callable[..., T]) -> tuple[T, ...]:
        """Every row of a table through ``make``, in the order of their ids."""
        names = columns.split(", ")
        if not self._there:  # already named among the missing files
            return ()
        try:
            rows = self._database.read(f"SELECT {columns} FROM {name} ORDER BY id")
        except TailorError as error:
            self._missing.append(str(error))
            return ()
        found: list[T] = []
        for row in rows:
            with contextlib.suppress(*_DAMAGE):
                found.append(make(**dict(zip(names, row, strict=True))))
        lost = len(rows) - len(found)
        if lost:
            count = "One row is" if lost == 1 else f"{lost:,} rows are"
            self._missing.append(f"{count} damaged in the table {name} of run.db and left out.")
        return tuple(found)

    def close(self) -> None:
        self._database.close()


def _space(t: Any, space: Any, facts: Any) -> SpaceStep:
    dims = {k: table(d).get("choices") for k, d in table(json_table(space).get("dims")).items()}
    return SpaceStep.of(t, dims, json_table(facts))


def _slope(t: Any, dim: Any, facts: Any) -> Slope:
    row = json_table(facts)
    if row.get("kind") == "et":
        slope, offset = [*listed(row.get("fit")), None, None][:2]
        fit = Fit(row.get("choices"), tuple(listed(row.get("errors"))), slope, offset, row.get("k"))
        return Slope(t, dim, fit=fit)
    z, se, z_step, se_step = (number(row.get(k)) for k in ("z", "se", "z_step", "se_step"))
    if se_step is None and z and z_step is not None and se is not None:
        se_step = se * abs(z_step / z)  # one factor converts z and its error from a unit to a step
    pairs = row.get("pairs")
    return Slope(t, dim, z_step, se_step, len(pairs) if isinstance(pairs, list) else pairs, z, se)


def _decision(t: Any, facts: Any, keys: Sequence[str]) -> Decision:
    row = json_table(facts)
    legal = tuple(
        Move(moves(m.get("gamma"), keys), m.get("size"), m.get("cosine"), m.get("gain"))
        for m in map(table, listed(row.get("legal")))
    )
    sentence = str(row.get("sentence") or row.get("reason") or "")
    return Decision(t, moves(row.get("gamma"), keys), sentence, row.get("stop") is True, legal)


def _trial(extra: Any, **columns: Any) -> Trial:
    more = json_table(extra)
    return Trial(**columns, score=more.get("score"), proxy=more.get("proxy"))


def _epoch(facts: Any, **row: Any) -> Epoch:
    return Epoch(**row, **json_table(facts))


def _event(**row: Any) -> Event:
    return Event(**{k: str(v) for k, v in row.items()})


# -- the folder -------------------------------------------------------------------------------------------------------


def collect(folder: Path) -> Facts:
    """Read a run folder, finished or not, whole or damaged. A folder without any part of a run is an error."""
    folder = Path(folder)
    if not folder.is_dir():
        raise TailorError(f"'{folder}' is not a run folder: there is no such folder.")
    with snapshot(folder) as copy:
        try:
            facts = _collect(copy)
        except TailorError as error:
            raise TailorError(str(error).replace(str(copy), str(folder))) from error
    missing = tuple(s.replace(str(copy), str(folder)) for s in facts.missing)
    return replace(facts, folder=folder.resolve().name, missing=missing, place=_place(folder), study=read_study(folder))


def _place(folder: Path) -> str:
    """The path as it was given, or from here where it lies under this folder."""
    with contextlib.suppress(OSError, ValueError):  # no current folder, or one elsewhere
        return str(folder.relative_to(Path.cwd()) if folder.is_absolute() else folder)
    return str(folder)


def _collect(folder: Path) -> Facts:
    run, absent = Run.salvage(folder)
    if not any((folder / name).exists() for name in ("info.json", "recipe.toml", DATABASE)):
        raise TailorError(f"'{folder}' is not a run folder: {absent[0]}")
    missing = list(absent)
    with run:
        finished, recipe, info = run.finished, run.recipe, run.info
    raw = table(_json(folder / "result.json"))
    if not finished:
        there = (folder / "result.json").exists()
        missing.append("The file result.json is damaged." if there else "The run has not finished: no result yet.")
    settings: Mapping[str, Any] = {}
    with contextlib.suppress(*_DAMAGE):
        settings = parse_toml(recipe)
    if recipe.strip() and not settings:
        missing.append("The file recipe.toml is damaged.")
    result, analysis = Result.model_validate(raw), _analysis(folder, "blocks" in raw, missing)
    with contextlib.closing(_Tables(folder, missing)) as tables:
        spaces = tables.read("spaces", "t, space, facts", _space)
        if not spaces:
            spaces = tuple(SpaceStep.of(whole(s.get("t")) or 0, table(s.get("dims")), s) for s in result.spaces)
        keys = tuple(spaces[0].dims) if spaces else ()
        seconds = tables.read("seconds", "stage, seconds", lambda stage, seconds: (str(stage), number(seconds)))
        columns = "stage, accuracy, params, macs, source, generation, arch, costs, extra"
        rows: dict[str, Any] = {
            "slopes": tables.read("slopes", "t, dim, facts", _slope),
            "decisions": tables.read("decisions", "t, facts", lambda t, facts: _decision(t, facts, keys)),
            "trials": tables.read("trials", columns, _trial),
            "epochs": tables.read("epochs", "stage, epoch, facts", _epoch),
            "events": tables.read("events", "time, kind, text", _event),
        }
    about: dict[str, Any] = {
        "recipe": recipe,
        "info": info,
        "settings": settings,
        "result": result,
        "analysis": analysis,
    }
    spent = {k: v for k, v in seconds if v is not None}
    if isinstance(settings.get("task"), str):
        about |= {"task": raw, "pictures": listed(_json(folder / "pictures.json"))}
    problems = tuple(dict.fromkeys(missing))
    return Facts(folder.name, finished, problems, seconds=spent, spaces=spaces, **about, **rows)


def _json(path: Path) -> Any:
    """A file's content, or None where it is missing or damaged."""
    try:
        return read_json(path, largest=None)  # odd numbers are shown as such
    except (OSError, *_DAMAGE):
        return None


def _analysis(folder: Path, expected: bool, missing: list[str]) -> Analysis:
    """analysis.json. Runs from before it existed have no blocks in their result: nothing is missing there."""
    path = folder / "analysis.json"
    found = _json(path)
    if isinstance(found, Mapping):
        return Analysis.model_validate(found)
    if path.exists():
        missing.append("The file analysis.json is damaged: attention maps and mistakes are left out.")
    elif expected:
        missing.append("The file analysis.json is missing: attention maps and mistakes are left out.")
    return Analysis()
