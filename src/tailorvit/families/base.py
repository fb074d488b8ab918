"""What a family offers to the rest of the house: one record, filled at the end of the family's file."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn

from tailorvit.arch import Arch
from tailorvit.elastic.slicing import Width
from tailorvit.errors import TailorError
from tailorvit.families.network import PlainNetwork
from tailorvit.families.tailoring import Tailoring
from tailorvit.space import Dim, Scope, Space


class Layer(NamedTuple):
    """One row of the layer inventory."""

    part: str
    params: int
    macs: int


class Named(NamedTuple):
    """A published architecture with the settings it was published with."""

    arch: Arch
    settings: Mapping[str, Any]
    source: str


class Elastic(Protocol):
    """A supernet: one network in which every architecture of a space lives."""

    def __call__(self, x: Tensor, arch: Arch | None = None) -> Tensor: ...

    def slices(self, arch: Arch) -> dict[str, tuple[Width | None, ...]]:
        """Per parameter name, the prefix an architecture uses; parameters of skipped blocks are absent."""


@dataclass(frozen=True, eq=False)  # tensors have no single truth to compare
class Maps:
    """The attention of one layer: groups of queries, each with its own keys (one group unless windows cut the grid).

    Places are (row, column) in patches of this layer's grid, fractions where keys are pooled; what lies outside the
    grid is padding. Class tokens are left out and the remaining keys rescaled, so that a query's weights sum to 1, or
    to 0 where it looked at nothing else. Masked keys have weight 0. A block whose heads see different keys gives
    several records.
    """

    name: str  # as a reader should see it: "block 3", "stage 2, block 1"
    stage: int | None
    block: int
    grid: tuple[int, int]  # patches down and across
    heads: int
    queries: Tensor  # (groups, Q, 2)
    keys: Tensor  # (groups, K, 2)
    # (B, groups, heads, Q, K), made when asked: passing by a layer that is too large costs nothing.
    weights: Callable[[], Tensor]
    cover: tuple[float, float] = (1.0, 1.0)  # patches one key stands for, down and across


@dataclass(frozen=True)
class Family:
    """The entry record of a family."""

    name: str
    summary: str
    paper: str
    genes: tuple[str, ...]  # the dimensions every space of the family has
    settings: Callable[[Mapping[str, Any]], Any]  # checks the settings all networks of a space share, and types them
    arch: Callable[[Mapping[str, Any]], Arch]  # checks an architecture written by hand
    segments: Callable[[Arch], Sequence[Hashable]]  # an arch as a list of parts that repeat between archs
    layers: Callable[[Any, Hashable], Sequence[Layer]]  # the inventory of one such part
    supernet: Callable[..., nn.Module]  # (space, drop_path, execution) -> elastic network
    plain: type[PlainNetwork]  # the class of its plain networks
    build: Callable[..., nn.Module]  # (shared, arch, drop_path, execution) -> plain network
    extract: Callable[..., nn.Module]  # (elastic network, arch, share=False) -> plain network; own weights, or views
    spaces: Mapping[str, Space]
    archs: Mapping[str, Named]
    auto: Callable[[Mapping[str, Any]], Iterator[Space]]  # spaces of the usual shape, from small to large
    baseline: Callable[[Mapping[str, Any]], Iterator[Arch]]  # hand-designed networks, from small to large
    settle: Callable[[tuple[int, int], float], dict[str, Any]]  # (image size, parameters wanted) -> settings that suit
    shrink: Callable[[Space], Space]  # the same dimensions and scopes with small numbers, for 8 px digits
    tiny: Mapping[str, Any]  # an architecture for 8 px digits, as a recipe would write it
    outline: Callable[[Any, Arch], list[dict[str, Any]]]  # (shared, arch) -> one row per block, as result.json keeps it
    # What a contest tries besides: other rows of hand-designed networks, and other settings, each by its name.
    shapes: Mapping[str, Callable[[Mapping[str, Any]], Iterator[Arch]]] = field(default_factory=dict)
    stems: Mapping[str, Callable[[tuple[int, int], float], dict[str, Any]]] = field(default_factory=dict)
    readings: Mapping[str, Callable[[Any, Arch], int]] = field(default_factory=dict)  # other counts, by name
    attention: Callable[[nn.Module, Tensor], Iterator[Maps]] | None = None  # (plain network, normalised images)
    fit: Callable[[Space], Space] = field(default=lambda space: space)  # dimensions brought in line with the settings
    uneven: tuple[str, ...] = ()  # genes whose greater value may cost less: windows that pad a map by less
    fractional: tuple[str, ...] = ("mlp",)  # genes that may be fractions; all others are whole numbers
    # (arch, shared settings, settings of the resized plain network) -> arch and shared settings that follow from it
    resettle: Callable[[Arch, dict[str, Any], Mapping[str, Any]], tuple[Arch, dict[str, Any]]] = field(
        default=lambda arch, shared, settings: (arch, shared)
    )
    # For scores: a word in a layer's path -> the part it belongs to ("mixing" is attention or what takes its place),
    # and the name of the output projection inside a mixing layer.
    layer_words: Mapping[str, str] = field(
        default_factory=lambda: {"patch_embed": "patch", "attn": "mixing", "mlp": "mlp", "head": "head"}
    )
    output_layer: str = "proj"
    tailoring: Tailoring | None = None  # where its networks are cut from pretrained ones
    from_scratch: bool = True  # whether it takes part in contests, which train from scratch
    experimental: bool = False


def require_room(needs: Iterable[tuple[str, int, int]], where: str = "") -> None:
    """Refuse an architecture for which a supernet has no weights; ``needs`` are (gene, needed, there).

    Prefixes would silently run a smaller network.
    """
    for gene, needed, there in needs:
        if needed > there:
            raise TailorError(
                f"The supernet is too small for the architecture: '{gene}'{where} needs {needed} of {there}."
            )


def around(arch: Arch) -> tuple[Dim, ...]:
    """The smallest dimensions that hold one architecture."""
    dims = []
    for key, value in arch.items():
        choices = tuple(sorted(set(value))) if isinstance(value, tuple) else (value,)
        name, _, stage = key.partition(".")
        scope: Scope = "block" if isinstance(value, tuple) else "stage" if stage else "global"
        dims.append(Dim(name, choices, scope, int(stage) if stage else None))
    return tuple(dims)
