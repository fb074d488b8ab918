"""Candidates for a task: the best networks of a finished search, with the weights they have in its supernet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tailorvit.errors import TailorError
from tailorvit.export import load
from tailorvit.families import family
from tailorvit.families.network import PlainNetwork
from tailorvit.methods.stages import load_weights
from tailorvit.rng import preserved_state
from tailorvit.runs import Run
from tailorvit.search import Trial, merit
from tailorvit.tasks.backbone import Start
from tailorvit.texts import parse_toml

if TYPE_CHECKING:
    from tailorvit.space import Space
    from tailorvit.tasks.work import TaskConfig

METHODS = ("autoformer", "bignas", "s4", "s3")  # one supernet is searched at the end


def candidates_of(config: TaskConfig) -> list[Start]:
    """The best stored trials of the run's search, best first, besides the delivered network."""
    folder = Path(config.network).expanduser()
    run, absent = Run.salvage(folder)
    with run:
        if absent or not run.finished:
            raise TailorError(f"Candidates come from a finished run, and '{folder}' is none; leave out --candidates.")
        method = parse_toml(run.recipe).get("method", "s4")
        if method not in METHODS:
            raise TailorError(f"'{folder}' is a run of method '{method}'; candidates come from {', '.join(METHODS)}.")
        reached, rows = run.spaces(), run.trials("search")
        stage = f"supernet-{reached[-1]['step']}" if reached else ""
        checkpoint = run.load_checkpoint(stage) if stage else None
    if checkpoint is None or not checkpoint[1].get("done") or not rows:
        raise TailorError(
            f"The supernet of '{folder}' is no longer in its checkpoints (or it searched without one), so its search "
            "has no weights for candidates; leave out --candidates."
        )
    space: Space = reached[-1]["space"]
    record = family(space.family)
    with preserved_state():
        supernet = record.supernet(space, 0.0)
    load_weights(supernet, checkpoint[0])
    delivered = load(folder)
    how = delivered.card.preprocessing
    mean, std = (tuple(map(float, how[key])) for key in ("mean", "std"))
    known: list[Any] = [cast(PlainNetwork, delivered.model).settings]
    found: list[Start] = []
    for trial in sorted((_trial(row) for row in rows), key=merit):
        if len(found) == config.candidates:
            break
        plain = record.extract(supernet, trial.arch)
        if plain.settings in known:
            continue
        known.append(plain.settings)
        name = f"number {len(found) + 1} of the search ({trial.accuracy:.2f} %)"
        about = {"family": space.family, "settings": plain.settings}
        found.append(Start(name, about, dict(plain.state_dict()), mean, std))
    return found


def _trial(row: Any) -> Trial:
    return Trial(row["arch"], row["accuracy"], row["params"], row["macs"], row["source"], row["generation"])
