"""Space: the choices per dimension, and every way to draw, vary and move architectures inside it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from tailorvit.arch import Arch, Gene, Value, number
from tailorvit.dims import Dim, Scope
from tailorvit.errors import TailorError
from tailorvit.ties import Ties, pairs_of, tie, weight

__all__ = ["Dim", "Scope", "Space"]


@dataclass(frozen=True)
class Space:
    """A set of architectures: ordered dimensions, and the ``settings`` its networks share (image size, classes).

    ``multiples``: pairs (a, b); b's value is a multiple of a's everywhere. Choices that fit none are nominal only.
    """

    family: str
    dims: tuple[Dim, ...]
    settings: tuple[tuple[str, Any], ...] = ()
    multiples: tuple[tuple[str, str], ...] = ()
    _by_key: dict[str, Dim] = field(init=False, repr=False, compare=False, hash=False, default_factory=dict)
    _tied: dict[str, Ties] = field(init=False, repr=False, compare=False, hash=False, default_factory=dict)

    def __post_init__(self) -> None:
        settings = dict(self.settings)
        frozen = tuple((k, tuple(v) if isinstance(v, list) else v) for k, v in sorted(settings.items()))
        object.__setattr__(self, "settings", frozen)
        object.__setattr__(self, "_by_key", {d.key: d for d in self.dims})
        if len(self._by_key) != len(self.dims):
            raise TailorError("A space may name each dimension once only.")
        for dim in self.dims:
            if dim.scope == "block" and self._depth_key(dim) not in self._by_key:
                raise TailorError(f"Block dimension '{dim.key}' needs the dimension '{self._depth_key(dim)}'.")
        names = set(itertools.chain(*self.multiples))
        for key in sorted(names):
            if self[key].scope == "block" or self[key].name == "depth":
                raise TailorError(f"Dimension '{key}' cannot be tied: it has a value per block, or counts the blocks.")
        groups = tie(tuple((d.key, d.choices) for d in self.dims if d.key in names), self.multiples)
        object.__setattr__(self, "_tied", {key: ties for ties in groups for key in ties.keys})
        for key, ties in self._tied.items():
            if (left := ties.choices(key)) != self[key].choices:
                self._by_key[key] = replace(self[key], choices=left, nominal=self[key].interval)
        object.__setattr__(self, "dims", tuple(self._by_key.values()))

    # -- looking ----------------------------------------------------------------------------------------------------

    def __getitem__(self, key: str) -> Dim:
        if key not in self._by_key:
            raise TailorError(f"The space has no dimension '{key}'; it has {', '.join(self._by_key)}.")
        return self._by_key[key]

    @property
    def keys(self) -> tuple[str, ...]:
        """Dimension keys in order; this order is the order of directions and slopes."""
        return tuple(self._by_key)

    @staticmethod
    def _depth_key(dim: Dim) -> str:
        return "depth" if dim.stage is None else f"depth.{dim.stage}"

    def _blocks(self, stage: int | None) -> list[Dim]:
        return [d for d in self.dims if d.scope == "block" and d.stage == stage]

    def count(self, tied: bool = True) -> int:
        """The exact number of different architectures; also of those that break the ties, if these are set aside."""
        total = math.prod(len(ties.rows) for ties in set(self._tied.values())) if tied else 1
        for dim in self.dims:
            if dim.scope == "block" or (tied and dim.key in self._tied):
                continue
            blocks = self._blocks(dim.stage) if dim.name == "depth" else []
            each = math.prod(len(b.choices) for b in blocks)
            total *= sum(each ** int(c) for c in dim.choices) if blocks else len(dim.choices)
        return total

    def problem(self, arch: Arch) -> str | None:
        """Why the arch is not in the space, naming the dimension and its choices; None where it is."""
        if arch.family != self.family:
            return f"the architecture is of family '{arch.family}', the space of '{self.family}'"
        for key in set(arch) ^ set(self._by_key):
            return f"dimension '{key}' is {'not in the space' if key in arch else 'missing'}"
        for dim in self.dims:
            value = arch[dim.key]
            values = value if isinstance(value, tuple) else (value,)
            if isinstance(value, tuple) != (dim.scope == "block"):
                return f"dimension '{dim.key}' needs {'one value per block' if dim.scope == 'block' else 'one value'}"
            if dim.scope == "block" and len(values) != arch[self._depth_key(dim)]:
                return f"dimension '{dim.key}' has {len(values)} values for {arch[self._depth_key(dim)]} blocks"
            for v in values:
                if v not in dim.choices:
                    return f"dimension '{dim.key}' has {v}; the choices are {', '.join(map(str, dim.choices))}"
        for a, b in self.multiples:
            if arch.one(b) % arch.one(a):
                return f"dimension '{b}' has {arch.one(b)}, which is no multiple of the {arch.one(a)} of '{a}'"
        return None

    def contains(self, arch: Arch) -> bool:
        """Whether the arch is in the space."""
        return self.problem(arch) is None

    def check(self, arch: Arch) -> Arch:
        """The arch itself, or an error that names the dimension at fault."""
        problem = self.problem(arch)
        if problem:
            raise TailorError(f"Not in the space: {problem}.")
        return arch

    # -- drawing ----------------------------------------------------------------------------------------------------

    def _fill(self, pick: Any) -> Arch:
        """Build an architecture by asking ``pick(choices)`` for each value; depths first, as block genes need them.

        Tied dimensions are asked for together, with their legal rows, where the first of them stands.
        """
        genes: dict[str, Gene] = {}
        for dim in self.dims:
            if dim.key in self._tied and dim.key not in genes:
                genes.update(zip(self._tied[dim.key].keys, pick(self._tied[dim.key].rows), strict=True))
            elif dim.key not in self._tied and dim.scope != "block":
                genes[dim.key] = pick(dim.choices)
        for dim in self.dims:
            if dim.scope == "block":
                depth = genes[self._depth_key(dim)]
                assert isinstance(depth, int)
                genes[dim.key] = tuple(pick(dim.choices) for _ in range(depth))
        return Arch(self.family, **genes)

    def sample(self, rng: np.random.Generator) -> Arch:
        """Depth uniform, then every other value uniform and independent (not uniform over architectures)."""
        return self._fill(lambda choices: _choose(choices, rng))

    def sample_distinct(self, count: int, rng: np.random.Generator) -> list[Arch]:
        """Different architectures drawn evenly; fewer where the space is nearly exhausted."""
        drawn: dict[Arch, None] = {}
        for _ in range(4 * count):
            if len(drawn) == count:
                break
            drawn[self.sample(rng)] = None
        return list(drawn)

    def smallest(self) -> Arch:
        """The architecture with the lowest choice everywhere; of tied values the legal row with the least squares."""
        return self._fill(lambda choices: min(choices, key=weight))

    def largest(self) -> Arch:
        """The architecture with the highest choice everywhere; of tied values the legal row with the most squares."""
        return self._fill(lambda choices: max(choices, key=weight))

    def middle(self) -> Arch:
        """The architecture with the middle choice of every dimension."""
        arch = self.largest()
        rng = np.random.default_rng(0)  # for blocks that a greater depth adds; from the largest no depth is greater
        for dim in self.dims:
            arch = self.with_value(arch, dim.key, dim.choices[(len(dim.choices) - 1) // 2], rng)
        return arch

    def ends(self, top: bool = True) -> list[Arch]:
        """The architectures of which one costs most, or least: without ties the largest or the smallest alone."""
        arch, groups = self.largest() if top else self.smallest(), list(dict.fromkeys(self._tied.values()))
        rows = itertools.product(*(ties.ends(top) for ties in groups))
        return [arch.replace(**{k: v for t, r in zip(groups, row) for k, v in zip(t.keys, r)}) for row in rows]

    def hull(self) -> Arch:
        """The highest choice everywhere, ties set aside; maybe not in the space, but this supernet holds all of it."""
        return self.largest().replace(**{key: self[key].high for key in self._tied})

    def with_value(self, arch: Arch, key: str, value: Value, rng: np.random.Generator) -> Arch:
        """``arch`` with one dimension set (all blocks alike); blocks a greater depth adds are drawn from ``rng``.

        Dimensions tied to this one move to the nearest legal values, of two as near to the one on its way.
        """
        dim = self[key]
        if key in self._tied:
            return arch.replace(**self._tied[key].nearest(arch, key, value))
        if dim.scope == "block":
            return arch.replace(**{key: (value,) * len(arch.many(key))})
        genes: dict[str, Gene] = {key: value}
        if dim.name == "depth":
            for block in self._blocks(dim.stage):
                old = arch.many(block.key)[: int(value)]
                genes[block.key] = old + tuple(_choose(block.choices, rng) for _ in range(int(value) - len(old)))
        return arch.replace(**genes)

    def mutate(
        self,
        arch: Arch,
        rng: np.random.Generator,
        p_depth: float = 0.2,
        p_global: float = 0.2,
        p_block: float = 0.4,
        per_gene: bool = False,
        same: bool = False,
    ) -> Arch:
        """Redraw depths, then global and stage values, then blocks; a redraw takes another value where there is one.

        A block redraws all its values together (the papers' text) or each by itself (``per_gene``, the released code);
        with ``same`` a redraw may return the old value (the released code again).
        """

        def redrawn(options: tuple[Any, ...], old: Any) -> Any:
            return _choose(options, rng) if same else _other(options, old, rng)

        child = arch
        for dim in self.dims:
            if dim.scope != "block" and rng.random() < (p_depth if dim.name == "depth" else p_global):
                child = self.with_value(child, dim.key, redrawn(dim.choices, child.one(dim.key)), rng)
        for stage in sorted({d.stage for d in self.dims if d.scope == "block"}, key=lambda s: -1 if s is None else s):
            dims = self._blocks(stage)
            rows = list(zip(*(child.many(d.key) for d in dims), strict=True))
            for i, row in enumerate(rows):
                if per_gene:
                    rows[i] = tuple(
                        redrawn(d.choices, v) if rng.random() < p_block else v for d, v in zip(dims, row, strict=True)
                    )
                elif rng.random() < p_block:
                    rows[i] = redrawn(tuple(itertools.product(*(d.choices for d in dims))), row)
            child = child.replace(**{d.key: tuple(r[j] for r in rows) for j, d in enumerate(dims)})
        return child

    def cross(self, a: Arch, b: Arch, rng: np.random.Generator, per_gene: bool = False) -> Arch:
        """A child with each value from either parent; a block's values come together unless ``per_gene``.

        The child takes one parent's depth; layers only the deeper parent has come from it.
        """
        genes: dict[str, Gene] = {}
        for dim in self.dims:
            if dim.scope != "block":
                genes[dim.key] = (a, b)[int(rng.integers(2))].one(dim.key)
        for ties in dict.fromkeys(self._tied.values()):
            genes.update(ties.mended(genes, a, b, rng))
        for dim in self.dims:
            if dim.name != "depth":
                continue
            blocks, depth = self._blocks(dim.stage), int(genes[dim.key])  # type: ignore[arg-type]
            columns: dict[str, list[Value]] = {d.key: [] for d in blocks}
            for i in range(depth):
                joint = int(rng.integers(2))
                for d in blocks:
                    options = [p for p in (a, b) if i < len(p.many(d.key))]
                    pick = int(rng.integers(2)) if per_gene else joint
                    columns[d.key].append(options[pick % len(options)].many(d.key)[i])
            genes.update({k: tuple(v) for k, v in columns.items()})
        return Arch(self.family, **genes)

    # -- moving -----------------------------------------------------------------------------------------------------

    def _with(self, dims: Mapping[str, Dim]) -> Space:
        return replace(self, dims=tuple(dims.get(d.key, d) for d in self.dims))

    def pin(self, key: str, value: Value) -> Space:
        """The subspace in which one dimension has one value."""
        dim = self[key]
        if number(value) not in dim.choices:
            raise TailorError(f"Cannot pin '{key}' to {value}; the choices are {', '.join(map(str, dim.choices))}.")
        return self._with({key: dim.only(number(value))})

    def shift(self, steps: Mapping[str, int], nonpositive: Literal["drop", "strict"] = "drop") -> Space:
        """The neighbouring space with whole intervals moved. Choices out of bounds or without a tied partner are not
        realised until a later move brings them back; strict forbids to lose any."""
        dims = {k: self[k].moved(s, nonpositive) for k, s in steps.items() if s}
        waiting = {d.key: d.moved(0) for d in self.dims if d.nominal and d.key not in dims}  # a partner may come back
        moved = self._with({**waiting, **dims})
        for key in self._tied if nonpositive == "strict" else ():
            if len(moved[key].choices) < len(self[key].choices):
                raise TailorError(f"Dimension '{key}' would lose choices by this move: they would divide no partner.")
        return moved

    def with_settings(self, **settings: Any) -> Space:
        """The same choices around other shared settings (classes, image size, ...)."""
        return replace(self, settings=tuple({**dict(self.settings), **settings}.items()))

    def difference(self, other: Space) -> str:
        """What moved between two spaces, in words: ``depth 12-14 -> 11-13, embed 336-384 -> 312-360``."""
        moves = [
            f"{d.key} {d.low}-{d.high} -> {other[d.key].low}-{other[d.key].high}"
            for d in self.dims
            if d.choices != other[d.key].choices
        ]
        return ", ".join(moves) or "nothing"

    # -- saving -----------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Plain data that reads back to an equal space."""
        settings = {k: list(v) if isinstance(v, tuple) else v for k, v in self.settings}
        ties = {"multiples": [list(pair) for pair in self.multiples]} if self.multiples else {}
        return {"family": self.family, "settings": settings, "dims": {d.key: d.to_dict() for d in self.dims}, **ties}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Space:
        """Read :meth:`to_dict`'s form (also what a recipe's inline ``[space]`` table holds)."""
        data = {"settings" if key == "fixed" else key: value for key, value in data.items()}  # its name until 0.1
        for key in sorted(set(data) - {"family", "settings", "dims", "multiples"}):
            raise TailorError(f"A space has no key '{key}'; it has family, settings and dims, or multiples besides.")
        if "family" not in data or not data.get("dims"):
            raise TailorError("A space needs a 'family' and at least one dimension in 'dims'.")
        for what in ("dims", "settings"):
            if not isinstance(data.get(what, {}), Mapping):
                raise TailorError(f"'{what}' of a space is a table, not {data[what]!r}.")
        for key, value in data["dims"].items():
            if not isinstance(value, Mapping):
                raise TailorError(f"Dimension '{key}' is a table with 'choices', not {value!r}.")
        dims = tuple(Dim.from_dict(k, v) for k, v in data["dims"].items())
        settings = tuple(dict(data.get("settings", {})).items())
        return cls(str(data["family"]), dims, settings, pairs_of(data.get("multiples", ())))


def _choose(options: tuple[Any, ...], rng: np.random.Generator) -> Any:
    return options[int(rng.integers(len(options)))]


def _other(options: tuple[Any, ...], old: Any, rng: np.random.Generator) -> Any:
    """Uniform over the options that differ from ``old``; ``old`` itself only when there is no other."""
    others = tuple(o for o in options if o != old)
    return _choose(others, rng) if others else old
