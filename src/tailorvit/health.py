"""``tailorvit doctor RUN``: whether a run folder is whole, part by part, and what to do where it is not. Reads only."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from tailorvit.checkpoints.pretrained import Pretrained
from tailorvit.config import configure, modernised, parse_recipe
from tailorvit.data.splits import SPLITS, restore
from tailorvit.downstream import task_of
from tailorvit.errors import TailorError
from tailorvit.export import load
from tailorvit.report import snapshot
from tailorvit.report.reading import collect
from tailorvit.runs import atomic, checkpoint
from tailorvit.runs.database import Database
from tailorvit.runs.folder import DATABASE, INFO, RECIPE, RECIPE_SEAL, RESULT, recipe_seal
from tailorvit.tasks.backbone import START, Start
from tailorvit.tasks.saved import CARD, load_task
from tailorvit.tasks.work import read_recipe
from tailorvit.texts import read_table

Row = dict[str, str]
OK, NOTE, PROBLEM = "ok", "note", "problem"
_ANEW = "nothing replaces it: begin the run anew, or bring the file back from a copy"


def check_run(folder: str | Path) -> list[Row]:
    """One row a part: what it is, its state (ok, note, problem), and what to do."""
    place = Path(folder)
    if not place.is_dir():
        raise TailorError(f"'{place}' is not a run folder: there is no such folder.")
    if not any((place / name).exists() for name in (RECIPE, INFO, DATABASE)):
        raise TailorError(f"'{place}' is not a run folder: it has no {RECIPE}, {INFO} or {DATABASE}.")
    resume = shlex.join(["tailorvit", "resume", str(place)])
    checks = (
        _files(place),
        _database(place),
        _splits(place),
        _checkpoints(place),
        _networks(place),
        _end(place, resume),
    )
    return [row for rows in checks for row in rows]


def sound(rows: list[Row]) -> bool:
    """Whether nothing is damaged; notes do not count."""
    return all(row["state"] != PROBLEM for row in rows)


def _row(what: str, state: str, text: str) -> Row:
    return {"what": what, "state": state, "text": text}


def _files(place: Path) -> Iterator[Row]:
    written_by, seal = "an older version", None
    try:
        info = read_table(place / INFO)
        versions, seal = info.get("versions"), info.get(RECIPE_SEAL)
        if isinstance(versions, dict):
            written_by = str(versions.get("tailorvit", written_by))
        yield _row(INFO, OK, f"written by TailorViT {written_by}")
    except (OSError, ValueError) as error:
        yield _row(INFO, PROBLEM, f"cannot be read ({_why(error)}); {_ANEW}")
    try:
        recipe = (place / RECIPE).read_text("utf-8", "surrogateescape")
        found = parse_recipe(recipe, RECIPE)
        if task_of(place):
            read_recipe(found)
        else:
            configure(modernised(found, written_by))
        if seal is not None and seal != recipe_seal(recipe):
            yield _row(RECIPE, PROBLEM, f"was changed after the run began; put it back, or {_ANEW}")
        else:
            yield _row(RECIPE, OK, "a valid recipe")
    except (OSError, TailorError) as error:
        yield _row(RECIPE, PROBLEM, f"cannot be used ({_why(error)}); {_ANEW}")
    for path in sorted(place.rglob("*")):
        if path.is_symlink() and not path.resolve().is_relative_to(place.resolve()):
            text = "a link that leads out of the run folder, which no run makes; remove it"
            yield _row(str(path.relative_to(place)), PROBLEM, text)
    if left := sorted(place.rglob(f".*{atomic.SUFFIX}")):
        yield _row("temporary files", NOTE, f"{len(left)} left by a kill; resume removes them")


def _database(place: Path) -> Iterator[Row]:
    if not (place / DATABASE).is_file():
        yield _row(DATABASE, PROBLEM, f"is missing; {_ANEW}")
        return
    with snapshot.snapshot(place) as copy:
        database = Database(copy / DATABASE, readonly=True)
        try:
            found = [str(row[0]) for row in database.read("PRAGMA integrity_check(3)")]
        except TailorError as error:
            found = [_why(error).replace(str(copy), str(place))]
        finally:
            database.close()
    if found != [OK]:
        yield _row(DATABASE, PROBLEM, f"is damaged ({'; '.join(found)}); {_ANEW}")
        return
    lost = [s for s in collect(place).missing if DATABASE in s]
    for sentence in lost:
        yield _row(DATABASE, PROBLEM, f"{_why(sentence)}; {_ANEW}")
    if not lost:
        yield _row(DATABASE, OK, "whole, and every row can be read")


def _splits(place: Path) -> Iterator[Row]:
    path = place / "splits.json"
    if not path.exists():
        yield _row("splits.json", NOTE, "is not there; resume makes the same splits again from the seed")
        return
    try:
        saved = read_table(path)
        if task_of(place):  # a task's splits are its own business; its data say when they are read whether they fit
            yield _row("splits.json", OK, "can be read")
            return
        splits = restore(saved, str(saved.get("fingerprint")), 2**62)
        yield _row("splits.json", OK, ", ".join(f"{len(splits[s])} {s}" for s in SPLITS))
    except (OSError, ValueError, TailorError) as error:
        yield _row("splits.json", PROBLEM, f"cannot be used ({_why(error)}); remove it, and resume makes it again")


def _checkpoints(place: Path) -> Iterator[Row]:
    folder = place / "checkpoints"
    for path in sorted(folder.glob("*.safetensors")):
        name = f"checkpoints/{path.name}"
        try:
            checkpoint.read(path)
            yield _row(name, OK, "its checksum fits")
        except (OSError, checkpoint.DamagedError) as error:
            spare = path.name.endswith(".prev.safetensors")
            reserve = path.with_name(f"{path.stem}.prev.safetensors")
            go_on = "resume does not need it" if spare else "resume trains this stage again"
            go_on = "resume goes on from the previous one" if not spare and reserve.exists() else go_on
            yield _row(name, PROBLEM, f"is damaged ({_why(error)}); {go_on}: remove it")


def _networks(place: Path) -> Iterator[Row]:
    for path in sorted(place.rglob("network.json")):
        folder = path.parent
        name = str(folder.relative_to(place))
        try:
            known = "its checksum fits" if "sha256" in read_table(path) else "it has no checksum to compare"
            load(folder)
            yield _row(name, OK, f"a network that loads; {known}")
        except (OSError, ValueError, TailorError) as error:
            go_on = "export it again" if name.startswith("export") else f"remove {RESULT}, and resume writes it again"
            yield _row(name, PROBLEM, f"{_why(error)}; {go_on}")
    for path in sorted(place.rglob(CARD)):
        name = str(path.parent.relative_to(place))
        if name.startswith("export"):
            continue
        try:
            load_task(path.parent)
            yield _row(name, OK, "a task's network that loads; its checksum fits")
        except TailorError as error:
            yield _row(name, PROBLEM, f"{_why(error)}; remove {RESULT}, and resume writes it again")
    for path in sorted(place.glob(f"{START}/*/{START}.json")):
        name = str(path.parent.relative_to(place))
        try:
            Start.saved(path.parent)
            yield _row(name, OK, "a network that the run began with")
        except TailorError as error:
            yield _row(name, PROBLEM, f"{_why(error)}; {_ANEW}")
    if Pretrained.kept_in(place / "start"):
        try:
            Pretrained.load(place / "start")
            yield _row("start", OK, "the pretrained network that the run began with")
        except TailorError as error:
            yield _row("start", PROBLEM, f"{_why(error)}; remove the folder, and resume takes the network anew")


def _end(place: Path, resume: str) -> Iterator[Row]:
    path = place / RESULT
    if not path.exists():
        yield _row(RESULT, NOTE, f"the run has not finished; go on with: {resume}")
        return
    try:
        found = read_table(path)
        what = "test" if task_of(place) else "arch"
        if not isinstance(found.get(what), dict):
            raise ValueError("it holds no figures" if what == "test" else "it holds no architecture")
        yield _row(RESULT, OK, "the run has finished")
    except (OSError, ValueError) as error:
        yield _row(RESULT, PROBLEM, f"is damaged ({_why(error)}); remove it and write it again with: {resume}")


def _why(error: object) -> str:
    return " ".join(str(error).split()).rstrip(".")
