"""What every kind of run has around its work: its facts, and one sentence for signals, full disks, missing memory."""

from __future__ import annotations

import contextlib
import copy
import shlex
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tailorvit.callbacks import Callback, Hooks, RunInfo
from tailorvit.data.sources import absolute_path
from tailorvit.errors import TailorError, out_of_memory
from tailorvit.lookup import versions
from tailorvit.methods.stages import Stages
from tailorvit.runs import Run
from tailorvit.runs.atomic import disk_full
from tailorvit.texts import parse_toml
from tailorvit.train.memory import MemoryNotice, reason
from tailorvit.train.stopping import Stopped


class Result(Mapping[str, Any]):
    """A finished run: what result.json holds, as a mapping and as attributes, and the run's folder."""

    def __init__(self, folder: Path, facts: Mapping[str, Any]) -> None:
        self.folder, self._facts = folder, dict(facts)

    def __getitem__(self, key: str) -> Any:
        return self._facts[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._facts)

    def __len__(self) -> int:
        return len(self._facts)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._facts:
            raise AttributeError(f"the result has no '{name}'; it has {', '.join(self.__dict__.get('_facts', ()))}")
        return self._facts[name]

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._facts]

    def __repr__(self) -> str:
        return "\n".join(self.summary())

    def summary(self) -> list[str]:
        """The run in a few lines."""
        raise NotImplementedError

    @classmethod
    def finished(cls, record: Run) -> Any:
        """The result of a finished run."""
        facts = record.read_json("result")
        result = cls(record.folder, facts if isinstance(facts, dict) else {})
        try:
            result.summary()
        except (LookupError, TypeError, ValueError, AttributeError):
            raise TailorError(
                f"'{record.folder / 'result.json'}' is damaged; remove it, and resume writes it again from what is "
                "stored."
            ) from None
        return result


def run_command() -> str:
    """What was typed, without the place of the program."""
    program = Path(sys.argv[0])
    name = program.parent.name if program.name == "__main__.py" else program.name  # python -m tailorvit
    return shlex.join([name, *sys.argv[1:]])


def free_folder(kind: str, source: str) -> Path:
    """A folder under runs/ that is not there yet."""
    name, number = Path(source).name.replace(":", "-") or "data", 1
    while (folder := Path("runs") / f"{kind}-{name}-{number}").exists():
        number += 1
    return folder


def run_info(data: Any, seed: int) -> dict[str, Any]:
    """What info.json holds of every run."""
    return {
        "command": run_command(),
        "versions": versions(),
        "seed": seed,
        "data": {
            "source": data.source,
            "path": absolute_path(data.source),
            "fingerprint": data.fingerprint,
            "counts": dict(data.counts),
        },
    }


def note_moved(data: Any, record: Run) -> None:
    """Note where the data lies now; data other than the run's is refused."""
    known = record.info.get("data")
    known = known if isinstance(known, dict) else {}
    if known.get("fingerprint", data.fingerprint) != data.fingerprint:
        raise TailorError(f"'{data.source}' does not hold the images that '{record.folder}' began with.")
    record.info["data"] = {**known, "path": absolute_path(data.source)}
    record.write_json("info", record.info)


def go_on(folder: Path) -> str:
    """The command that goes on with a run."""
    return shlex.join(["tailorvit", "resume", str(folder)])


@contextlib.contextmanager
def to_go_on_with(record: Run) -> Iterator[None]:
    """Signals inside, and what the system refuses, say how to go on with the run."""
    try:
        yield
    except KeyboardInterrupt as signal:
        stop = signal if isinstance(signal, Stopped) else Stopped()
        with contextlib.suppress(TailorError):  # on a full disk
            record.event("interrupted", f"stopped {stop.who}")
        raise Stopped(stop.number, go_on(record.folder)) from None
    except OSError as error:  # a full disk, a folder that cannot be written to any more
        place = f" '{error.filename}'" if error.filename else ""
        raise TailorError(
            f"Cannot read or write{place}: {error.strerror or error}. Go on with: {go_on(record.folder)}"
        ) from error


@contextlib.contextmanager
def callbacks_told(stages: Stages, callbacks: Sequence[Callback]) -> Iterator[None]:
    """Callbacks are told of the work inside, of its beginning, and where it fails."""
    run = stages.run
    run.hooks = hooks = Hooks(callbacks, lambda text: stages.log("warning", text))
    if hooks:
        method = str(run.info.get("method") or run.info.get("task"))
        recipe, resumed = parse_toml(run.recipe), bool(run.events("resume"))
        hooks.tell("run_begins", RunInfo(run.folder, method, recipe, copy.deepcopy(run.info), resumed))
    try:
        yield
    except BaseException as error:  # a signal too
        hooks.tell("failed", error)
        raise


@contextlib.contextmanager
def failures_told(
    record: Run, smaller: str = "smaller networks (--max-params) or images (--image-size)"
) -> Iterator[None]:
    """What fails inside is noted in the run, with a report; a full disk and missing memory become one sentence."""
    from tailorvit.report import write_report

    try:
        yield
    except Exception as error:
        with contextlib.suppress(Exception):  # the first error is the one to show; a full disk would raise here too
            record.event("failed", str(error) if isinstance(error, TailorError) else f"{type(error).__name__}: {error}")
            write_report(record.folder)
        if disk_full(error):
            raise TailorError(f"The disk is full; make room and go on with: {go_on(record.folder)}") from error
        if out_of_memory(error):
            raise TailorError(
                f"Out of memory ({reason(error)}): free some, or take {smaller}. Go on with: {go_on(record.folder)}"
            ) from error
        raise


@contextlib.contextmanager
def memory_notices(stages: Stages) -> Iterator[None]:
    """What memory did not suffice for goes to the log; other warnings stay warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", MemoryNotice)
        show = warnings.showwarning

        def log(message: Warning | str, category: type[Warning], *place: Any) -> None:
            if issubclass(category, MemoryNotice):
                stages.log_once("memory", str(message))
            else:
                show(message, category, *place)

        warnings.showwarning = log  # type: ignore[assignment]
        yield


def report_on(stages: Stages) -> None:
    """Write the page; the result is safe by now, so a page that fails is logged and does not fail the run."""
    from tailorvit.report import write_report

    try:
        write_report(stages.run.folder)
    except Exception as error:
        stages.log("warning", f"report.html could not be written ({type(error).__name__}: {error})")
