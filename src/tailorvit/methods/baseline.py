"""The baseline: a hand-designed network of the same family under the same limits."""

from __future__ import annotations

from tailorvit.arch import Arch
from tailorvit.costs.meter import Meter, growing, largest_fitting, largest_measured
from tailorvit.families import family
from tailorvit.methods.first_space import size
from tailorvit.space import Space


def baseline_arch(space: Space, meter: Meter) -> Arch | None:
    """The family's largest hand-designed network that keeps the limits; None where even the smallest does not.

    Without an upper limit it may be as large as the space's largest network.
    """
    counted = meter.limits.counted()

    def too_small(arch: Arch) -> bool:
        return any(low is not None and meter.cost(metric, arch) < low for metric, low, _ in counted)

    highest = float("inf") if any(high for _, _, high in meter.limits) else size(meter, space.largest())
    # What is under a lower limit is left out, or the growing row would seem to have ended before it began.
    candidates = (arch for arch in family(space.family).baseline(dict(space.settings)) if not too_small(arch))
    if not meter.limits.measured:
        return largest_fitting(
            candidates, lambda arch: meter.fits(arch) and size(meter, arch) <= highest, lambda arch: size(meter, arch)
        )
    options = list(growing(candidates, Meter.for_space(space, counted).fits))
    found = largest_measured(options, meter.under, meter.counter.macs)
    return found if found is not None and meter.fits(found) else None
