"""How a run knows latency: the runtime it measures in, or the table of another host, settled before it begins."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tailorvit.costs.clock import Clock
from tailorvit.costs.latency_table import read_latency_table
from tailorvit.costs.runtime import TORCH, bounds_of, chosen_runtime, settled
from tailorvit.errors import TailorError
from tailorvit.runs import Run

if TYPE_CHECKING:
    from pathlib import Path

    from tailorvit.config import Config
    from tailorvit.methods.session import Session

KEPT = "latency-table"  # the run's copy of the table: a resumed run predicts as it began
OWN_SPACE = ("tailor", "fixed", "finetune")  # methods whose networks follow from a start or an architecture


def with_clock(config: Config, device: str) -> tuple[Config, Clock]:
    """The clock of a run, and the recipe that says what was chosen; a table brings its space where the recipe has none.

    A recipe without a limit on latency stays as it is, but that of HAT, which sets one.
    """
    settings = config.latency()
    if settings.table:
        return _with_table(config, settings.table)
    if "latency" not in config.budget().metrics and config.method != "hat":
        return config, Clock()
    runtime = chosen_runtime(settings, device, config.threads)
    return replace(config, limits={**bounds_of(config.limits), **settled(settings, runtime)}), Clock(runtime)


def _with_table(config: Config, path: str) -> tuple[Config, Clock]:
    if config.method == "contest":
        raise TailorError(
            f"A latency table is of one space, and a contest compares several families: give '{path}' to a method that "
            "searches one space, such as --method s4."
        )
    if config.method == "hat":
        raise TailorError("Method 'hat' makes a predictor of its own on this device: with a latency table use s4.")
    table = read_latency_table(path)
    if config.method not in OWN_SPACE:
        family = table.space.family if config.family == "auto" or config.space == "auto" else config.family
        space = table.space.to_dict() if config.space == "auto" else config.space
        config = replace(config, family=family, space=space)
    return config, Clock(table=table)


def as_begun(config: Config, folder: Path) -> Config:
    """The stored recipe of a run that goes on: with the run's own copy of its table, and its runtime.

    Runs from before there was a choice store no runtime and measured in torch; newer ones store what they chose.
    """
    kept = folder / f"{KEPT}.json"
    if config.limits.get("table"):
        own = {"table": str(kept)} if kept.is_file() else {}
        return replace(config, limits={**config.limits, **own})
    return replace(config, limits={"runtime": TORCH, **config.limits})


def keep_table(clock: Clock, run: Run) -> None:
    """Copy the table into the run, once."""
    if clock.table is not None and run.read_json(KEPT) is None:
        run.write_json(KEPT, dict(clock.table.facts))


def say_clock(session: Session) -> None:
    """Log how latency is known, where it is limited."""
    clock = session.clock
    if "latency" not in session.limits.metrics and session.config.method != "hat":
        return
    for sentence in clock.sentences(session.space, session.device):
        session.log_once("latency", sentence)
    if clock.table is not None and clock.table.quality.poor:
        session.log_once(
            "warning",
            f"Latencies predicted from '{clock.table.name}' are off by {100 * clock.table.quality.median_error:.0f} % "
            "at the median: measure more networks, or on a quieter host.",
        )
