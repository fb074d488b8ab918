"""Can the limits be kept at all? Asked before anything is trained or written."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tailorvit.arch import Arch
from tailorvit.costs.limits import COUNTED, Limits
from tailorvit.costs.meter import Meter
from tailorvit.errors import InfeasibleError, TailorError
from tailorvit.methods.first_space import baseline_arch, fixed_arch
from tailorvit.methods.judges import TRAINING
from tailorvit.seek.s4 import movable, move_space
from tailorvit.space import Space

if TYPE_CHECKING:
    from tailorvit.config import Config


def require_feasible(config: Config, space: Space, meter: Meter, arch: Arch | None = None) -> None:
    """Raise when no network can keep the limits, or when S4 could not move. ``arch``: the only one of a fine-tuning."""
    if config.method == "s4" and config.s4.iterations:
        dims = movable(space, config.s4.dims)
        if config.s4.survey:
            _require_survey(config, len(dims))
    arch = fixed_arch(config)[0] if config.method == "fixed" else arch
    if arch is not None:
        broken = meter.problem(arch)
        if broken:
            raise InfeasibleError(f"The given architecture breaks the limits: {broken}.")
    elif config.method != "s4":
        meter.require_feasible(space)
    elif config.s4.repair != "slope" and not meter.limits.measured:
        # Repairs by counted costs need no training, so they can be tried here.
        repaired, _, _ = move_space(
            space,
            meter,
            lambda _space, _t: lambda _archs: [],
            replace(config.s4, iterations=0),
            config.seed,
            keep=baseline_arch(space, meter),
        )
        meter.require_feasible(repaired)
    else:
        meter.require_feasible(_lowered(space))


def _require_survey(config: Config, dims: int) -> None:
    """A survey trains architectures beyond the space, and enough of them for the slopes."""
    if config.seek.evaluator != TRAINING:
        raise TailorError(
            "s4.survey trains architectures from around the space by themselves: seek.evaluator must be "
            f"'{TRAINING}', not '{config.seek.evaluator}'."
        )
    if config.s4.survey < dims + 2:
        raise TailorError(
            f"s4.survey = {config.s4.survey} architectures are too few for the slopes of {dims} dimensions; "
            f"{dims + 2} is the least, and three times as many do well."
        )


def _lowered(space: Space) -> Space:
    """The space with every dimension down to its minimum: what repair moves could reach."""
    return replace(space, dims=tuple(d.only(*sorted({d.minimum, *d.choices})) for d in space.dims))


def limits_to_check(config: Config, limits: Limits) -> Limits:
    """The limits that a first space has yet to be checked by.

    A space made for measured limits was measured a moment ago, and a busier clock must not refuse it now.
    """
    made = config.space == "auto" and config.method not in ("fixed", "finetune", "tailor")
    return limits.counted() if made and not any(low for m, low, _ in limits if m not in COUNTED) else limits
