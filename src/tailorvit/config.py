"""Config: the typed record of one run, from a TOML recipe and overrides; its resolved copy is stored with the run."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from importlib import resources
from pathlib import Path
from tomllib import TOMLDecodeError
from typing import Any, TypeVar, get_args, get_type_hints

from tailorvit import units
from tailorvit.analysis.settings import AnalysisSettings
from tailorvit.costs.limits import Limits
from tailorvit.costs.runtime import LatencySettings, bounds_of, latency_settings
from tailorvit.data import DataSettings
from tailorvit.errors import TailorError, unknown
from tailorvit.methods import METHODS
from tailorvit.methods.choice import Prefer
from tailorvit.methods.finetune import StartSettings
from tailorvit.methods.finish import FinalSettings
from tailorvit.methods.hat import HatSettings
from tailorvit.methods.judges import SeekSettings
from tailorvit.methods.tailor_settings import TailorSettings
from tailorvit.methods.untrained import UntrainedSettings
from tailorvit.search import SEARCHERS
from tailorvit.seek.s3 import S3Settings
from tailorvit.seek.s4 import S4Settings
from tailorvit.texts import DEEPEST, parse_toml
from tailorvit.train.settings import TrainSettings
from tailorvit.trunks import TrunkSettings

FORBID = {"extra": "forbid"}
MOST_THREADS = max(256, os.cpu_count() or 1)  # a run may be resumed on a machine with fewer cores
_BRANCHES = ("str", "int", "float", "bool")  # pydantic adds the branch of a union it tried; no recipe key is called so
T = TypeVar("T")

# Where a method's defaults differ from the general ones; any key of the recipe comes on top.
METHOD_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "s3": {"train": {"rule": "sandwich"}},
    "bignas": {
        "train": {"rule": "sandwich", "distill": True, "reg_largest_only": True},
        "final": {"how": "inherit"},  # a single-stage model: its point is that nothing is trained again
    },
    # A baseline from scratch would be no fair comparison with a network that has seen other images before.
    "finetune": {"baseline": False, "final": {"how": "finetune"}},
    "tailor": {"family": "tailored", "train": {"freeze": "tensor"}, "final": {"how": "finetune"}},
}


@dataclass(frozen=True)
class EvaluateSettings:
    """How networks are evaluated."""

    __pydantic_config__ = FORBID
    batch: int = 512
    throughput: bool = True  # at the end measure how many images a second the networks take

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise TailorError(f"evaluate.batch must be at least 1, not {self.batch}.")


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
    baseline: bool | str | list[bool | str] = True  # the hand-designed network, timm:NAME beside it, or several
    prefer: Prefer = (
        "accuracy"  # among networks that the search images cannot tell apart: who uses the budget, or "small"
    )
    tensorboard: bool = False
    time: str | float | None = None  # for the whole run, such as "10m"; "auto" chooses; without it epochs count
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
    tailor: TailorSettings = field(default_factory=TailorSettings)
    analysis: AnalysisSettings = field(default_factory=AnalysisSettings)
    plugin: dict[str, Any] = field(default_factory=dict)  # settings of a method from outside the package

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**31:
            raise TailorError(f"seed must be a whole number from 0 to 2147483647, not {self.seed}.")
        if not 0 <= self.threads <= MOST_THREADS:
            raise TailorError(f"threads must be 0 (choose) to {MOST_THREADS}, not {self.threads}.")
        for entry in self._beside():
            if isinstance(entry, str) and not (entry.startswith("timm:") and len(entry) > len("timm:")):
                raise TailorError(f"baseline cannot be '{entry}': write true, false, timm:NAME or a list of them.")
        self.budget()
        self.latency()
        self.seconds()
        self.search_settings()
        self.plugin_settings()

    def seconds(self) -> float | None:
        """The time the run may take; None where its epochs decide. ``auto`` is replaced before a run starts."""
        return None if self.time in (None, "auto") else units.parse(self.time, "time")

    def budget(self) -> Limits:
        """The limits, read."""
        return Limits.of(**bounds_of(self.limits))

    def latency(self) -> LatencySettings:
        """How latency is known: the keys of [limits] that are no bounds, read."""
        settings, bounded = latency_settings(self.limits), "latency" in self.budget().metrics
        if settings.table and not bounded:
            raise TailorError("A latency table needs a limit on latency: set max_latency, such as 20ms.")
        return settings

    def _beside(self) -> list[bool | str]:
        return self.baseline if isinstance(self.baseline, list) else [self.baseline]

    @property
    def hand_designed(self) -> bool:
        """Whether the family's hand-designed network is trained as well."""
        return True in self._beside()

    @property
    def peers(self) -> tuple[str, ...]:
        """The models of timm that are trained beside."""
        return tuple(dict.fromkeys(entry for entry in self._beside() if isinstance(entry, str)))

    @property
    def searcher(self) -> str:
        """The name of the searcher."""
        return str(self.search.get("name", "evolution"))

    def search_settings(self) -> Any:
        """The searcher's settings."""
        settings = {k: v for k, v in self.search.items() if k != "name"}
        return checked(SEARCHERS[self.searcher].settings, settings, "search")

    def plugin_settings(self) -> Any:
        """The settings of a method from a plug-in; None where it has none."""
        kind = METHODS[self.method].settings
        if kind is None and self.plugin:
            raise TailorError(f"Method '{self.method}' reads no [plugin] table; it holds '{next(iter(self.plugin))}'.")
        return None if kind is None else checked(kind, self.plugin, "plugin")


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
            p for p in steps if p and p not in _BRANCHES and not p.startswith(("function-", "dict[", "tuple[", "list["))
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
        else:
            _plain_numbers(value, path, _takes_bool(hints[key]))


def _plain_numbers(value: Any, path: str, true_or_false: bool) -> None:
    """Refuse NaN, infinity, and true where a number belongs: pydantic would read it as 1."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _plain_numbers(inner, f"{path}.{key}", true_or_false)
    elif isinstance(value, list | tuple):
        for inner in value:
            _plain_numbers(inner, path, true_or_false)
    elif isinstance(value, bool) and not true_or_false:
        raise TailorError(f"{path} cannot be {str(value).lower()}.")
    elif isinstance(value, float) and not math.isfinite(value):
        raise TailorError(f"{path} must be a finite number, not {value}.")


def _takes_bool(kind: Any) -> bool:
    return kind in (bool, Any) or any(map(_takes_bool, get_args(kind)))


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
        return parse_toml(text)
    except ValueError as error:
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


def overrides(changes: Iterable[str] | Mapping[str, Any]) -> dict[str, Any]:
    """Changes of recipe keys as nested plain data: ``{"train.epochs": 50}``, or ``["train.epochs=50"]``.

    Values of text are read as TOML, or taken as text where that fails.
    """
    data: dict[str, Any] = {}
    for key, value in changes.items() if isinstance(changes, Mapping) else map(_read_change, changes):
        parts = str(key).strip().split(".")
        if len(parts) > DEEPEST:
            raise TailorError(f"There is no recipe key '{key[:40]}...' of {len(parts)} parts.")
        for part in reversed(parts):
            value = {part: value}
        data = merged(data, value)
    return data


def _read_change(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise TailorError(f"Cannot read --set '{text}'; write it like train.epochs=50.")
    try:
        return key, parse_toml(f"value = {value}")["value"]
    except TOMLDecodeError:
        return key, value
    except ValueError as error:
        raise TailorError(f"Cannot read the value of --set {key.strip()}: {error}.") from None


def configure(data: Mapping[str, Any]) -> Config:
    """Check a whole recipe. ``final.train`` starts from ``train``: the last training is the same recipe unless told."""
    data = merged(METHOD_DEFAULTS.get(str(data.get("method")), {}), data)
    if isinstance(data.get("train", {}), Mapping) and isinstance(data.get("final", {}), Mapping):
        data["final"] = merged({"train": dict(data.get("train", {}))}, data.get("final", {}))
    return checked(Config, data)


def schema() -> dict[str, Any]:
    """The JSON schema of recipes, by which editors complete and check them; names of plug-ins are allowed, too."""
    from pydantic import TypeAdapter

    from tailorvit.families import FAMILIES

    found = TypeAdapter(Config).json_schema()
    for key, registry in (("method", METHODS), ("family", FAMILIES)):
        row = found["properties"][key]
        row["anyOf"] = [{"enum": [name for name in registry if registry.origin(name) == "tailorvit"]}]
        row["anyOf"].append({"type": row.pop("type")})
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **_untitled(found), "title": "TailorViT recipe"}


def _untitled(schema: Any) -> Any:
    """Without the titles that only repeat the keys."""
    if isinstance(schema, list):
        return [_untitled(row) for row in schema]
    if not isinstance(schema, dict):
        return schema
    return {k: _untitled(v) for k, v in schema.items() if k != "title" or not isinstance(v, str)}


def to_toml(config: Config) -> str:
    """The resolved recipe."""
    return toml_text(asdict(config))


def toml_text(recipe: Mapping[str, Any]) -> str:
    """A recipe as text; absent optional values are left out, as TOML has no null."""
    import tomli_w

    def clean(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {k: clean(v) for k, v in value.items() if v is not None}
        return [clean(v) for v in value] if isinstance(value, list | tuple) else value

    return tomli_w.dumps(clean(recipe))


# -- recipes stored by older versions ---------------------------------------------------------------------------------

# Keys that are gone, with the default they had: every stored recipe of version 0.1 holds them.
RETIRED: Mapping[str, Any] = {
    "data.on_device": "auto",
    "trunk.batch": 64,
    "trunk.cache": "",
    "train.warmup_lr": 1e-6,
    "train.momentum": 0.9,
    "train.decay_tables": False,
    "train.betas": [0.9, 0.999],
    "train.ema": 0.0,
    "train.alike": 0.0,
    "train.masked": False,
    "train.max_rollbacks": 4,
    "evaluate.together": 1,
    "s4.confidence": 0.9,
    "s4.blocks": "all",
    "s4.on_violation": "repair",
    "s4.nonpositive": "drop",
    "s4.stop_at": 0.0,
    "s4.revisit": "next",
    "s4.warm_share": 0.5,
    "s4.stride": "single",
    "s4.significance": 0.0,
    "s4.per_size": False,
    "s4.momentum": 0.0,
    "s4.anchors": 0,
    "s4.anchor_share": 0.5,
    "s3.scale_top": False,
    "s3.estimator": "pin",
    "s3.slope_units": "index",
    "s3.significance": 0.0,
    "s3.limited": False,
    "s3.backtrack": True,
    "s3.max_log10": None,
    "s3.warm_share": 0.5,
    "hat.quantile": 0.5,
    "proxy.inits": 1,
    "proxy.batch": None,
    "proxy.image_size": None,
    "proxy.noise": False,
    "proxy.combine": "single",
    "seek.tune_epochs": 1,
    "seek.inits": 1,
    "seek.image_size": None,
    "seek.samples": 200,
    "seek.per_size": None,
    "seek.final": "proxy",
}

# Stored only where a user wrote them.
RETIRED_OF_SEARCH = frozenset(
    ("p_depth", "p_global", "p_block", "p_cross", "redraw_same", "per_gene", "elitist", "prefilter", "ask")
)


def modernised(recipe: Mapping[str, Any], version: str) -> dict[str, Any]:
    """A stored recipe in today's keys. A run that used what is gone needs the version that wrote it."""
    found = deepcopy(dict(recipe))
    final = found.get("final", {})
    tables = {
        name: found.get(name) for name in ("data", "trunk", "train", "evaluate", "s4", "s3", "hat", "proxy", "seek")
    }
    tables["final.train"] = final.get("train") if isinstance(final, Mapping) else None
    unused = _unused_tables(found)
    for where, table in tables.items():
        for key, default in RETIRED.items():
            owner, _, name = key.rpartition(".")
            owners = (where, where.removeprefix("final."))
            changed = isinstance(table, dict) and owner in owners and table.pop(name, default) != default
            if changed and where not in unused:
                raise _gone(f"{where}.{name}", version)
    for key in RETIRED_OF_SEARCH & set(found.get("search", {})):
        raise _gone(f"search.{key}", version)
    for name in ("train", "final.train"):
        # Of 0.1: steps in a row that are not finite. Today's key of that name stands beside train.keep.
        table = tables[name]
        if isinstance(table, dict) and "keep" not in table and table.pop("patience", 5) != 5:
            raise _gone(f"{name}.patience", version)
        if isinstance(table, dict) and table.pop("lr_scaling", "none") == "batch512":
            table["lr"] = table["lr"] * table["batch"] / 512
    if isinstance(s4 := tables["s4"], dict) and (design := s4.pop("design", None)) is not None:
        if design == "plane" and "s4" not in unused:
            raise _gone("s4.design", version)
        s4["survey"] = s4.get("survey", 24) if design == "survey" else 0  # a survey is asked for by its size
    if isinstance(space := found.get("space"), dict) and "fixed" in space:
        space["settings"] = space.pop("fixed")
    if isinstance(proxy := tables["proxy"], dict) and {"names", "reading"} & set(proxy):  # the first name decided
        proxy["name"] = _dss_variant(proxy.pop("names", ["dss"])[0], proxy.pop("reading", "fixed"))
    if isinstance(seek := tables["seek"], dict) and "reading" in seek:
        seek["evaluator"] = _dss_variant(seek.get("evaluator", "supernet"), seek.pop("reading"))
    if isinstance(seek, dict) and seek.get("evaluator") == "tuned":
        if found.get("method", "s4") in ("s4", "s3"):
            raise _gone("seek.evaluator = 'tuned'", version)
        del seek["evaluator"]
    return found


def _unused_tables(recipe: Mapping[str, Any]) -> set[str]:
    """The tables that a stored recipe holds and its run never read: their values cannot have changed anything."""
    method, seek = recipe.get("method", "s4"), recipe.get("seek", {})
    evaluator = seek.get("evaluator", "supernet") if isinstance(seek, Mapping) else "supernet"
    by_score = method in ("s4", "s3") and evaluator not in ("supernet", "training", "tuned")
    scored = {"proxy"} if by_score or method == "tf-tas" else set()
    return {"s4", "s3", "hat", "proxy", "seek"} - {method, *scored, *(("seek",) if by_score else ())}


def _dss_variant(name: str, reading: str) -> str:
    """The readings of dss are proxies of their own now."""
    return f"dss_{reading}" if name == "dss" and reading != "fixed" else name


def _gone(key: str, version: str) -> TailorError:
    return TailorError(
        f"This run was written by TailorViT {version} and uses '{key}', which later versions no longer have: "
        f"resume it with that version."
    )
