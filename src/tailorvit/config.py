"""The record of one run: typed, checked at birth; a TOML recipe plus overrides; the resolved copy goes with the run."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal, TypeVar, get_type_hints

from tailorvit.analysis.settings import AnalysisSettings
from tailorvit.costs.latency_predictor import HatSettings
from tailorvit.costs.limits import Limits
from tailorvit.errors import TailorError, unknown
from tailorvit.proxies.settings import SeekSettings, UntrainedSettings, renamed_keys
from tailorvit.search import PRESETS, searcher
from tailorvit.seek.s3 import S3Settings
from tailorvit.seek.s4 import S4Settings
from tailorvit.train.settings import TrainSettings
from tailorvit.train.transfer import StartSettings
from tailorvit.trunks.settings import TrunkSettings

FORBID = {"extra": "forbid"}
_BRANCHES = ("str", "int", "float")  # pydantic adds the branch of a union it tried; no recipe key is called so
T = TypeVar("T")

# What a method's recipe starts from where it is not the defaults; any key of the recipe comes on top.
STARTS: Mapping[str, Mapping[str, Any]] = {
    "s3": {"train": {"rule": "sandwich"}},
    "bignas": {
        "train": {"rule": "sandwich", "distill": True, "reg_largest_only": True},
        "final": {"how": "inherit"},  # a single-stage model: its point is that nothing is trained again
    },
    # A hand-designed network from scratch would not be a fair rival of one that has seen other images before.
    "finetune": {"baseline": False, "final": {"how": "finetune"}},
}


@dataclass(frozen=True)
class DataSettings:
    """Which images, at which size, split how."""

    __pydantic_config__ = FORBID
    source: str = "digits"
    image_size: int | tuple[int, int] | None = None
    search_share: float = 0.1
    test_share: float = 0.2
    limit: int | None = None  # at most this many images per split, class-balanced
    cache: int = 1 << 30  # bytes of decoded images kept in memory
    on_device: Literal["auto", "always", "never"] = "auto"  # keep images on the training device, augment them there

    def __post_init__(self) -> None:
        if not (
            0 < self.search_share < 0.9 and 0 < self.test_share < 0.9 and self.search_share + self.test_share < 0.95
        ):
            raise TailorError("data.search_share and data.test_share must be above 0 and leave images to train on.")


@dataclass(frozen=True)
class FinalSettings:
    """What becomes of the architecture found: keep its inherited weights, tune them, or train it anew."""

    __pydantic_config__ = FORBID
    how: Literal["inherit", "finetune", "retrain"] = "retrain"
    candidates: int = 1  # finish this many of the best found and keep the one best on the search split
    train: TrainSettings = field(default_factory=TrainSettings)

    def __post_init__(self) -> None:
        if self.candidates < 1:
            raise TailorError(f"final.candidates must be at least 1, not {self.candidates}.")


@dataclass(frozen=True)
class EvaluateSettings:
    """How sub-networks are scored."""

    __pydantic_config__ = FORBID
    batch: int = 512
    together: int = 1  # architectures per masked pass; 1 scores them sliced, one by one

    def __post_init__(self) -> None:
        for name in ("batch", "together"):
            if getattr(self, name) < 1:
                raise TailorError(f"evaluate.{name} must be at least 1, not {getattr(self, name)}.")


@dataclass(frozen=True)
class Config:
    """A whole run."""

    __pydantic_config__ = FORBID
    method: str = "s4"
    seed: int = 0
    family: str = "vit"
    space: str | dict[str, Any] = "auto"
    arch: str | dict[str, Any] | None = None  # for method = "fixed"
    device: str = "auto"
    threads: int = 0  # CPU threads; 0 chooses, and the choice stays with the run, as sums depend on it
    baseline: bool = True
    tensorboard: bool = False
    data: DataSettings = field(default_factory=DataSettings)
    trunk: TrunkSettings = field(default_factory=TrunkSettings)
    limits: dict[str, str | float] = field(default_factory=dict)
    train: TrainSettings = field(default_factory=TrainSettings)
    evaluate: EvaluateSettings = field(default_factory=EvaluateSettings)
    s4: S4Settings = field(default_factory=S4Settings)
    s3: S3Settings = field(default_factory=S3Settings)
    hat: HatSettings = field(default_factory=HatSettings)
    proxy: UntrainedSettings = field(default_factory=UntrainedSettings)
    seek: SeekSettings = field(default_factory=SeekSettings)
    search: dict[str, Any] = field(default_factory=lambda: {"name": "evolution"})
    final: FinalSettings = field(default_factory=FinalSettings)
    start: StartSettings = field(default_factory=StartSettings)
    analysis: AnalysisSettings = field(default_factory=AnalysisSettings)

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**31:
            raise TailorError(f"seed must be a whole number from 0 to 2147483647, not {self.seed}.")
        if self.threads < 0:
            raise TailorError(f"threads must be 0 (choose) or more, not {self.threads}.")
        self.budget()
        name = getattr(self.search_settings(), "prefilter", "")
        last = self.method == "tf-tas" or (
            self.method in ("s4", "s3") and self.seek.free and self.seek.final == "proxy"
        )
        if name and last and self.proxy.evolution:
            raise TailorError(
                f"search.prefilter '{name}' would filter a search whose fitness is a score that costs no more; "
                "leave it out, or let a supernet judge."
            )

    def budget(self) -> Limits:
        """The limits, read."""
        return Limits.of(**self.limits)

    def search_settings(self) -> Any:
        """The searcher's settings: its preset, then the keys given."""
        entry = searcher(str(self.search.get("name", "evolution")))
        given = {k: v for k, v in self.search.items() if k not in ("name", "preset")}
        preset = self.search.get("preset")
        if preset is not None:
            if entry.name != "evolution":
                raise TailorError(f"search.preset '{preset}' belongs to the evolution, not to '{entry.name}'.")
            if str(preset) not in PRESETS:
                raise unknown("search.preset", preset, PRESETS)
            given = {**asdict(PRESETS[str(preset)]), **given}
        return checked(entry.settings, given, "search")


def checked(kind: type[T], data: Mapping[str, Any], where: str = "") -> T:
    """Build a settings dataclass from plain data; the first mistake becomes one sentence."""
    from pydantic import TypeAdapter, ValidationError

    _known_keys(kind, data, where)
    try:
        return TypeAdapter(kind).validate_python(dict(data))
    except ValidationError as error:
        first = error.errors()[0]
        steps = [where, *map(str, first["loc"])]
        path = ".".join(
            p for p in steps if p and p not in _BRANCHES and not p.startswith(("function-", "dict[", "tuple["))
        )
        message = first["msg"].removeprefix("Value error, ")
        message = message[0].lower() + message[1:]
        raise TailorError(f"{path} cannot be {first['input']!r}: {message}.") from None


def _known_keys(kind: Any, data: Mapping[str, Any], where: str) -> None:
    """Refuse unknown keys with the nearest known one; pydantic would say less."""
    if not is_dataclass(kind):
        return
    hints = get_type_hints(kind)
    for key, value in data.items():
        path = f"{where}.{key}" if where else key
        if key not in {f.name for f in fields(kind)}:
            raise unknown("recipe key", path, (f"{where}.{f.name}" if where else f.name for f in fields(kind)))
        if is_dataclass(hints[key]):
            if not isinstance(value, Mapping):
                raise TailorError(f"'{path}' is a table of settings, not {value!r}.")
            _known_keys(hints[key], value, path)


def recipe_names() -> list[str]:
    """The recipes that come with the package."""
    return sorted(
        p.name.removesuffix(".toml") for p in resources.files("tailorvit.recipes").iterdir() if p.name.endswith(".toml")
    )


def read_recipe(name_or_path: str) -> dict[str, Any]:
    """A recipe by name, or a TOML file by path."""
    path = Path(name_or_path)
    if path.suffix == ".toml" or path.is_file():  # a run folder may bear a recipe's name
        if not path.is_file():
            bare = path.name.removesuffix(".toml")
            if path.parent.name == "recipes" and bare in recipe_names():
                return read_recipe(bare)  # recipes/NAME.toml outside a checkout
            raise TailorError(f"There is no recipe file '{name_or_path}'.")
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise TailorError(f"The recipe file '{name_or_path}' cannot be read: {error}.") from None
    elif name_or_path in recipe_names():
        text = (resources.files("tailorvit.recipes") / f"{name_or_path}.toml").read_text(encoding="utf-8")
    else:
        raise unknown("recipe", name_or_path, recipe_names())
    return parse_recipe(text, name_or_path)


def parse_recipe(text: str, name: str) -> dict[str, Any]:
    """TOML text to plain data."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise TailorError(f"The recipe '{name}' is not valid TOML: {error}.") from None


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Plain data with another laid over it, table by table."""
    result = dict(base)
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = merged(result[key], value) if both else value
    return result


def for_searcher(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe without the settings of its searcher where another one is asked for: they would not be its own."""
    asked, own = ((part.get("search") or {}) for part in (over, base))
    name = asked.get("name") if isinstance(asked, Mapping) else None
    other = name is not None and isinstance(own, Mapping) and name != own.get("name", "evolution")
    return {**base, "search": {}} if other else dict(base)


def overrides(pairs: Iterable[str]) -> dict[str, Any]:
    """``["train.epochs=50"]`` as nested plain data; values are read as TOML, or taken as text."""
    data: dict[str, Any] = {}
    for pair in pairs:
        path, equals, text = pair.partition("=")
        if not equals or not path.strip():
            raise TailorError(f"Cannot read --set '{pair}'; write it like train.epochs=50.")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text
        for part in reversed(path.strip().split(".")):
            value = {part: value}
        data = merged(data, value)
    return data


def configure(data: Mapping[str, Any]) -> Config:
    """Check a whole recipe. ``final.train`` starts from ``train``: the last training is the same recipe unless told."""
    data = merged(STARTS.get(str(data.get("method")), {}), renamed_keys(data))
    if isinstance(data.get("train", {}), Mapping) and isinstance(data.get("final", {}), Mapping):
        data["final"] = merged({"train": dict(data.get("train", {}))}, data.get("final", {}))
    return checked(Config, data)


def to_toml(config: Config) -> str:
    """The resolved recipe; absent optional values are left out, as TOML has no null."""
    import tomli_w

    def clean(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {k: clean(v) for k, v in value.items() if v is not None}
        return [clean(v) for v in value] if isinstance(value, list | tuple) else value

    return tomli_w.dumps(clean(asdict(config)))
