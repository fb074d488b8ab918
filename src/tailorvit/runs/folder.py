"""The folder of one run, safe against kills, full disks and damaged checkpoints."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from tailorvit.errors import TailorError
from tailorvit.runs import atomic, checkpoint
from tailorvit.runs.database import Database
from tailorvit.runs.lock import NAME as LOCK
from tailorvit.runs.lock import Lock
from tailorvit.runs.tables import Tables, now
from tailorvit.texts import read_json, read_table

if TYPE_CHECKING:
    from torch import Tensor

RECIPE_SEAL = "recipe_sha256"  # in info.json
RECIPE, INFO, DATABASE, LOG, RESULT = "recipe.toml", "info.json", "run.db", "log.txt", "result.json"
SPLITS = "splits.json"
# What create() writes before info.json, which comes last and completes the run folder.
_BEGUN = (LOCK, RECIPE, SPLITS, DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm", f"{DATABASE}-journal")


def _finished(folder: Path) -> bool:
    try:
        found = read_json(folder / RESULT, largest=None)
        return isinstance(found, dict) and bool(found)
    except (OSError, ValueError):
        return False


def _check_free(folder: Path) -> None:
    """Refuse a folder that holds a run or other files; what a killed create() left does not count."""
    names = {p.name for p in folder.iterdir()}
    if INFO in names and _finished(folder):
        raise TailorError(f"'{folder}' holds a finished run; choose another folder.")
    if INFO in names:
        command = f"tailorvit resume {shlex.quote(str(folder))}"
        raise TailorError(f"'{folder}' holds an unfinished run; continue it with `{command}` or choose another folder.")
    strange = sorted(n for n in names if n not in _BEGUN and not n.endswith(atomic.SUFFIX))
    if strange or (names and LOCK not in names):  # without our lock file a single recipe.toml belongs to the user
        found = (strange or sorted(names))[0]
        raise TailorError(f"'{folder}' holds something else ('{found}'); choose a new or empty folder.")


def recipe_seal(recipe: str) -> str:
    """The checksum of a run's recipe."""
    return hashlib.sha256(recipe.encode("utf-8", "surrogateescape")).hexdigest()


class Run(Tables):
    """One run. At every moment its files and rows are complete."""

    def __init__(
        self, folder: Path, recipe: str, info: Mapping[str, Any], database: Database, lock: Lock | None
    ) -> None:
        super().__init__(database)
        self.folder, self.recipe, self.info = folder, recipe, dict(info)
        self._lock = lock

    @classmethod
    def create(cls, folder: Path, recipe: str, info: Mapping[str, Any], splits: Mapping[str, Any] | None = None) -> Run:
        """Start a run in a new or empty folder; its splits are there before the folder counts as a run."""
        folder = Path(folder)
        try:
            with contextlib.ExitStack() as undo:
                folder.mkdir(parents=True, exist_ok=True)
                _check_free(folder)
                lock = Lock(folder)
                undo.callback(lock.release)
                _check_free(folder)  # again: another process may have been faster
                atomic.sweep(folder)
                database = Database(folder / DATABASE)
                undo.callback(database.close)
                atomic.write_text(folder / RECIPE, recipe)
                if splits is not None:
                    atomic.write_json(folder / SPLITS, splits)
                seal = {"started": now(), RECIPE_SEAL: recipe_seal(recipe)}
                info = json.loads(atomic.dumps({**seal, **info}))
                atomic.write_json(folder / INFO, info)
                undo.pop_all()
        except OSError as error:
            raise TailorError(f"Cannot write to '{folder}': {error.strerror or error}.") from error
        return cls(folder, recipe, info, database, lock)

    @staticmethod
    def require_free(folder: Path) -> None:
        """Refuse a folder that holds a run or other files."""
        if Path(folder).is_dir():
            _check_free(Path(folder))

    @classmethod
    def open(cls, folder: Path, lock: bool = True) -> Run:
        """Open a run to continue it, or with ``lock=False`` only to read it."""
        folder = Path(folder)
        run, missing = cls.salvage(folder)
        if missing:
            raise TailorError(f"'{folder}' is not a run folder: {missing[0]}")
        if not lock:
            return run
        try:
            held = Lock(folder)
        except OSError as error:
            raise TailorError(f"Cannot write to '{folder}': {error.strerror or error}.") from error
        try:
            for place in (folder, folder / "checkpoints"):
                atomic.sweep(place)
            return cls(folder, run.recipe, run.info, Database(folder / DATABASE), held)
        except BaseException:
            held.release()
            raise

    @classmethod
    def salvage(cls, folder: Path) -> tuple[Run, tuple[str, ...]]:
        """Open a damaged run for reading, with a sentence for each part that is missing or damaged."""
        folder = Path(folder)
        missing: list[str] = []
        recipe, info = "", {}
        if not folder.is_dir():
            missing.append("there is no such folder.")
        else:
            try:
                recipe = (folder / RECIPE).read_text("utf-8", "surrogateescape")
            except OSError as error:
                missing.append(_absent(RECIPE, error))
            try:
                info = read_table(folder / INFO)
            except (OSError, ValueError) as error:
                info = {}
                missing.append(_absent(INFO, error))
            if not (folder / DATABASE).is_file():
                missing.append(f"{DATABASE} is missing.")
        return cls(folder, recipe, info, Database(folder / DATABASE, readonly=True), None), tuple(missing)

    def close(self) -> None:
        """Close the database and release the folder."""
        self._database.close()
        if self._lock:
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def finished(self) -> bool:
        """Whether result.json exists and is complete."""
        return _finished(self.folder)

    # -- events and files ---------------------------------------------------------------------------------------------

    def event(self, kind: str, text: str, **data: Any) -> None:
        """Store an event, and write it to log.txt."""
        time = now()
        text = text.encode("utf-8", "backslashreplace").decode()  # a file name may hold bytes that are not UTF-8
        statement = "INSERT INTO events (time, kind, text, data) VALUES (?, ?, ?, ?)"
        self._database.write(statement, [(time, kind, text, atomic.dumps(data))])
        line = f"{time} {kind}: {' '.join(text.splitlines())}\n"
        with contextlib.suppress(OSError), (self.folder / LOG).open("a", encoding="utf-8") as log:
            log.write(line)  # for people; programs read the row above
        self.hooks.tell("message", kind, text)

    def _note(self, kind: str, text: str, **data: Any) -> None:
        """Store an event where possible; on a full disk, or in a run open for reading, it is dropped."""
        if not self._database.readonly:
            with contextlib.suppress(TailorError):
                self.event(kind, text, **data)

    def _named(self, name: str) -> Path:
        return self.folder / (name if name.endswith(".json") else f"{name}.json")

    def write_json(self, name: str, data: Any) -> None:
        """Replace RUN/name(.json) in one step."""
        path = self._named(name)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            atomic.write_json(path, data)
        except OSError as error:
            raise TailorError(f"Cannot write '{path}': {error.strerror or error}.") from error

    def read_json(self, name: str) -> Any | None:
        """RUN/name(.json); None when it is missing or damaged."""
        path = self._named(name)
        try:
            return read_json(path)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            self._note("damaged", f"{path.name} is damaged ({error}) and treated as missing.")
            return None

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def save_checkpoint(self, name: str, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> bool:
        """Save a checkpoint; False when the disk refused, with the old checkpoint still in place.

        Store the rows of a piece of work before the checkpoint that comes after it: a kill in between then repeats the
        work into the same rows. In the other order a row would be missing for good.
        """
        folder = self.folder / "checkpoints"
        try:
            folder.mkdir(exist_ok=True)
            checkpoint.save(folder, name, tensors, meta)
        except OSError as error:
            why = "the disk is full" if atomic.disk_full(error) else error.strerror or str(error)
            self._note("checkpoint", f"Checkpoint {name} was not saved ({why}); the previous one is kept.", name=name)
            return False
        return True

    def load_checkpoint(self, name: str) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The newest undamaged checkpoint of that name; an event says when it is not the last one written."""
        path, previous, _ = checkpoint.files(self.folder / "checkpoints", name)
        problem = ""
        try:
            return checkpoint.read(path)
        except FileNotFoundError:
            if not previous.exists():
                return None
            problem = f"Checkpoint {name} is missing"
        except checkpoint.DamagedError as error:
            problem = f"Checkpoint {name} is damaged ({error})"
        except OSError as error:
            problem = f"Checkpoint {name} cannot be read ({error.strerror or error})"
        try:
            found = checkpoint.read(previous)
        except (OSError, checkpoint.DamagedError):
            self._note("checkpoint", f"{problem}, and there is no undamaged previous one; starting over.", name=name)
            return None
        self._note("checkpoint", f"{problem}; continuing from the previous one.", name=name)
        if self._lock and "cannot be read" not in problem:
            previous.replace(path)  # else the next save would keep the damaged file as the previous one
        return found

    # -- work that another process did --------------------------------------------------------------------------------

    def drained(self) -> dict[str, Any]:
        """Everything a piece of work wrote into this folder, for :meth:`absorb`; it is gone from here afterwards."""
        checkpoints = {}
        for path in sorted((self.folder / "checkpoints").glob("*.safetensors")):
            name = path.name.removesuffix(".safetensors")
            if not name.endswith(".prev"):
                checkpoints[name] = self.load_checkpoint(name)
                self.drop_checkpoint(name)
        return {"rows": self.take_rows(), "checkpoints": checkpoints}

    def absorb(self, work: Mapping[str, Any]) -> None:
        """Write what another folder's :meth:`drained` gave; of events those that are not known."""
        rows = work["rows"]
        known = {(e["kind"], e["text"]) for e in self.events()} if rows["events"] else set()
        for kind, text, data in rows["events"]:
            if (kind, text) not in known:
                self.event(kind, text, **json.loads(data))
        for stage, epoch, facts in rows["epochs"]:
            self.record_epoch(stage, epoch, **json.loads(facts))
        for stage, seconds in rows["seconds"]:
            self.spend(stage, seconds)
        for name, (tensors, meta) in work["checkpoints"].items():
            self.save_checkpoint(name, tensors, meta)
        for stage, result in rows["stages"]:
            self.finish(stage, json.loads(result))

    def drop_checkpoint(self, name: str) -> None:
        """Remove a checkpoint, if it exists."""
        checkpoint.drop(self.folder / "checkpoints", name)


def _absent(name: str, error: Exception) -> str:
    return f"{name} is missing." if isinstance(error, FileNotFoundError) else f"{name} is damaged ({error})."
