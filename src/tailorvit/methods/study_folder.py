"""The folder of a study: what it began with, whether it is the same run's, and what is left to do in it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tailorvit.errors import TailorError
from tailorvit.methods.session import Plan
from tailorvit.methods.study import COUNT, STUDY, StudySettings, What
from tailorvit.runs import Run
from tailorvit.runs.folder import RECIPE_SEAL


def study_in(folder: Path) -> dict[str, Any] | None:
    """What a folder says of the study it holds; None where it holds none."""
    record, _ = Run.salvage(folder)
    with record:
        about = record.info.get(STUDY)
        return about if record.info.get("method") == STUDY and isinstance(about, dict) else None


def run_studied(folder: Path, begun: Mapping[str, Any]) -> Path:
    """The run of a study: the folder around it, which may have been moved with it, or the one it began with."""
    return folder.resolve().parent if begun["inside"] else Path(begun["run"])


def study_settings(folder: Path, parent: Run, what: What, count: int | None, epochs: int | None) -> StudySettings:
    """The settings asked for, as far as a study that has begun allows it; its parts may become more."""
    asked = StudySettings(what, COUNT if count is None else count, epochs)
    begun = study_in(folder)
    if begun is None:
        return asked
    if begun["of"] != _identity(parent):
        raise TailorError(
            f"'{folder}' holds the study of another run, '{begun['run']}'; choose another folder (--out)."
        )
    for name, now in (("count", count), ("epochs", epochs)):
        if now is not None and now != begun[name]:
            before = "the recipe's" if begun[name] is None else begun[name]
            raise TailorError(
                f"The study in '{folder}' began with {name} {before}, not {now}; choose another folder (--out)."
            )
    both = what if what == begun["what"] else "all"
    return StudySettings(both, int(begun["count"]), begun["epochs"])


def _identity(parent: Run) -> list[Any]:
    """What tells one run from another, wherever it lies."""
    return [parent.info.get("started"), parent.info.get(RECIPE_SEAL)]


@contextlib.contextmanager
def open_study(
    folder: Path,
    parent: Run,
    settings: StudySettings,
    plan_it: Callable[[], Plan],
    tell: Callable[[Plan], dict[str, Any]],
) -> Iterator[tuple[Run, Plan | None]]:
    """The folder of a study, new or begun; with the plan of its work, or None where nothing is left to do.

    ``plan_it`` makes the plan where one is needed, ``tell`` what info.json says of it.
    """
    begun = study_in(folder)
    about = {
        "run": str(parent.folder.resolve()),
        "inside": folder.resolve().parent == parent.folder.resolve(),
        "of": _identity(parent),
        **vars(settings),
    }
    if begun is not None:
        with Run.open(folder) as record:
            facts = record.read_json(STUDY)
            if isinstance(facts, dict) and settings.parts <= set(facts):
                yield record, None
                return
            plan = plan_it()
            record.info[STUDY] = about
            record.write_json("info", record.info)
            record.event("resume", "the study goes on")
            yield record, plan
        return
    Run.require_free(folder)
    plan = plan_it()
    info = {**tell(plan), "method": STUDY, STUDY: about}
    with Run.create(folder, parent.recipe, info) as record:
        yield record, plan
