"""Measure the networks of a latency kit on this machine; writes table.json and table.csv.

    python measure.py

needs Python 3.9 or newer, numpy and onnxruntime, and nothing else. A kit holds this file as measure.py.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

KIT, TABLE = "tailorvit-latency-kit 1", "tailorvit-latency-table 1"
COLUMNS = ("file", "median_ms", "low_ms", "high_ms", "runs", "steady", "threads", "provider")
ROUNDS = 3  # through all networks, so that a busy minute spoils one turn of some and not all turns of one
WARMUP = 5  # passes before the clock counts
LEAST, MOST = 15, 2000  # passes of a turn
STEADY = 0.02  # a turn ends once the median is known to this share, or when its time is over
BUSY = 0.3  # load per core from which a machine is not idle
Call = Callable[[], Any]
Clock = Callable[[], float]


class Refused(Exception):
    """What ends the measurement, in one sentence."""


# -- one network ------------------------------------------------------------------------------------------------------


def quartiles(times: Sequence[float]) -> tuple[float, float, float]:
    """The lower quartile, the median and the upper quartile, between neighbouring values where they must be."""
    ordered = sorted(times)

    def at(share: float) -> float:
        place = share * (len(ordered) - 1)
        below = int(place)
        above = min(below + 1, len(ordered) - 1)
        return ordered[below] + (place - below) * (ordered[above] - ordered[below])

    return at(0.25), at(0.5), at(0.75)


def doubt(times: Sequence[float]) -> float:
    """Half the 95 % interval of the median, as a share of it; by the ranks, as times are not normal."""
    ordered, count = sorted(times), len(times)
    reach = 0.98 * math.sqrt(count)
    low = ordered[max(0, int(count / 2 - reach))]
    high = ordered[min(count - 1, math.ceil(count / 2 + reach))]
    return (high - low) / 2 / max(quartiles(ordered)[1], 1e-12)


def timed(call: Call, seconds: float, clock: Clock = time.perf_counter) -> list[float]:
    """Seconds of every pass after the warm-up, until the median is steady or the time is over."""
    for _ in range(WARMUP):
        call()
    times: list[float] = []
    begun = clock()
    while len(times) < MOST:
        start = clock()
        call()
        times.append(clock() - start)
        enough = len(times) >= LEAST
        if enough and ((len(times) % 5 == 0 and doubt(times) < STEADY) or clock() - begun > seconds):
            break
        if clock() - begun > 10 * seconds and len(times) >= 3:  # a very slow network
            break
    return times


def row_of(entry: dict[str, Any], turns: Sequence[Sequence[float]]) -> dict[str, Any]:
    """A row of the table: over all turns, with the median of each."""
    every = [seconds for turn in turns for seconds in turn]
    low, median, high = (1000 * value for value in quartiles(every))
    medians = [1000 * quartiles(turn)[1] for turn in turns]
    return {
        "file": entry["file"],
        "arch": entry["arch"],
        "median_ms": median,
        "low_ms": low,
        "high_ms": high,
        "runs": len(every),
        "turns_ms": medians,
        "steady": doubt(every) < STEADY and max(medians) <= 1.1 * min(medians),
    }


# -- the machine ------------------------------------------------------------------------------------------------------


def load() -> float | None:
    """Processes that wait or work, per core, over the last minute; None where the system does not say."""
    try:
        return os.getloadavg()[0] / (os.cpu_count() or 1)
    except (AttributeError, OSError):
        return None


def require_idle(share: float | None, anyway: bool) -> None:
    """Refuse a machine that works on something else; with --anyway only warn."""
    if share is None or share <= BUSY:
        return
    words = f"This machine is busy (load {share:.2f} a core), and its latencies would be too long"
    if not anyway:
        raise Refused(words + ": wait a minute or two, end what runs, or measure all the same with --anyway.")
    print("Warning: " + words + ".", file=sys.stderr)


def processor() -> str:
    """The processor or the board, as the system names it."""
    for path, names in (("/proc/device-tree/model", ()), ("/proc/cpuinfo", ("model name", "Hardware", "Model"))):
        try:
            text = Path(path).read_text(encoding="utf-8", errors="replace").replace("\0", "")
        except OSError:
            continue
        if not names and text.strip():
            return text.strip()
        for line in text.splitlines():
            key, _, value = line.partition(":")
            if key.strip() in names and value.strip():
                return value.strip()
    return platform.processor()


def governor() -> str | None:
    """How the system sets the clock of its first core; None where it does not say."""
    try:
        return Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").read_text(encoding="utf-8").strip()
    except OSError:
        return None


def host_facts(name: str) -> dict[str, Any]:
    """What the table says of this machine."""
    import numpy
    import onnxruntime

    return {
        "name": name,
        "machine": platform.machine(),
        "system": platform.platform(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "governor": governor(),
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "onnxruntime": onnxruntime.__version__,
        "date": time.strftime("%Y-%m-%d %H:%M:%S"),
    }


# -- the kit ----------------------------------------------------------------------------------------------------------


def read_kit(folder: Path) -> dict[str, Any]:
    """The manifest; refused where it or a network is missing."""
    try:
        kit: dict[str, Any] = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        files = [folder / entry["file"] for entry in kit["networks"]]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise Refused(f"'{folder}' holds no latency kit ({error}).") from None
    if kit.get("format") != KIT:
        raise Refused("'{}' is a kit of another version: {}.".format(folder, kit.get("format")))
    for path in files:
        if not path.is_file():
            raise Refused(f"The kit is not whole: '{path}' is missing.")
    return kit


def opened(path: Path, shape: Sequence[int], provider: str, threads: int) -> Call:
    """One pass of a network on one random image."""
    import numpy
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(path), options, providers=[provider])
    if provider not in session.get_providers():  # it falls back to the CPU without an error
        raise Refused(f"onnxruntime has {provider} but cannot use it on this machine.")
    x = {session.get_inputs()[0].name: numpy.random.default_rng(0).random(shape, dtype=numpy.float32)}
    return lambda: session.run(None, x)


def turns(
    entries: Sequence[dict[str, Any]],
    open_network: Callable[[dict[str, Any]], Call],
    seconds: float,
    say: Callable[[str], None],
    clock: Clock = time.perf_counter,
) -> Iterator[tuple[int, list[float]]]:
    """Every network in every round: its number and its times."""
    begun, total = clock(), ROUNDS * len(entries)
    for step in range(total):
        number = step % len(entries)
        times = timed(open_network(entries[number]), seconds, clock)
        left = (clock() - begun) / (step + 1) * (total - step - 1)
        name, median = entries[number]["file"], 1000 * quartiles(times)[1]
        say(f"{step + 1}/{total}  {name}  {median:.2f} ms  about {left:.0f} s left")
        yield number, times


def sayer(stream: TextIO) -> Callable[[str], None]:
    """One line that is written anew in a terminal, a line every tenth step elsewhere."""
    state = {"count": 0}

    def say(text: str) -> None:
        state["count"] += 1
        if stream.isatty():
            stream.write("\r\033[K" + text)
        elif state["count"] % 10 == 1:
            stream.write(text + "\n")
        stream.flush()

    return say


def write_tables(out: Path, table: dict[str, Any]) -> None:
    """table.json, which tailorvit reads, and table.csv for people; each whole or not at all."""
    rows = [{**row, "threads": table["threads"], "provider": table["provider"]} for row in table["rows"]]
    with (out / "table.csv.part").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    (out / "table.json.part").write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    for name in ("table.csv", "table.json"):
        (out / f"{name}.part").replace(out / name)


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The table."""
    kit = read_kit(folder)
    try:
        import numpy  # noqa: F401
        import onnxruntime
    except ImportError as error:
        raise Refused(f"This script needs numpy and onnxruntime ({error}): pip install numpy onnxruntime.") from None
    there = onnxruntime.get_available_providers()
    if options.provider not in there:
        raise Refused("onnxruntime has no provider '{}' here; it has {}.".format(options.provider, ", ".join(there)))
    before = load()
    require_idle(before, options.anyway)

    def open_network(entry: dict[str, Any]) -> Call:
        try:
            return opened(folder / entry["file"], kit["shape"], options.provider, options.threads)
        except Refused:
            raise
        except Exception as error:  # onnxruntime's errors are of many types
            why = (str(error).splitlines() or [type(error).__name__])[0]
            raise Refused(f"onnxruntime cannot open '{entry['file']}': {why}") from None

    found: list[list[list[float]]] = [[] for _ in kit["networks"]]
    say = sayer(sys.stderr)
    for number, times in turns(kit["networks"], open_network, options.seconds, say):
        found[number].append(times)
    if sys.stderr.isatty():
        sys.stderr.write("\n")
    rows = [row_of(entry, own) for entry, own in zip(kit["networks"], found)]
    return {
        "format": TABLE,
        "space": kit["space"],
        "provider": options.provider,
        "threads": options.threads,
        "host": {**host_facts(options.name), "load_before": before, "load_after": load()},
        "rows": rows,
    }


def read_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What was typed, checked."""
    parser = argparse.ArgumentParser(description="Measure the networks of a latency kit on this machine.")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="CPU threads (default: all cores)")
    parser.add_argument("--provider", default="CPUExecutionProvider", help="of onnxruntime")
    parser.add_argument("--seconds", type=float, default=1.0, help="a turn of one network, at most (default 1)")
    parser.add_argument("--name", default="", help="what to call this machine in the table")
    parser.add_argument("--out", default="", help="folder to write to (default: the kit's)")
    parser.add_argument("--anyway", action="store_true", help="measure although the machine is busy")
    options = parser.parse_args(arguments)
    if not 1 <= options.threads <= 1024:
        raise Refused(f"--threads must be 1 to 1024, not {options.threads}.")
    if not 0 < options.seconds <= 3600:
        raise Refused(f"--seconds must be above 0 and at most 3600, not {options.seconds:g}.")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write, and say what was found."""
    folder = Path(__file__).resolve().parent
    try:
        options = read_options(arguments)
        out = Path(options.out) if options.out else folder
        if not out.is_dir():
            raise Refused(f"There is no folder '{out}' to write to.")
        table = measure(options, folder)
        write_tables(out, table)
    except Refused as refusal:
        print(f"measure.py: {refusal}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"measure.py: Cannot write ({error}).", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nmeasure.py: Stopped; nothing was written.", file=sys.stderr)
        return 130
    unsteady = sum(not row["steady"] for row in table["rows"])
    print(f"Wrote {out / 'table.json'} and table.csv: {len(table['rows'])} networks.")
    if unsteady:
        print(f"{unsteady} of them were not steady; a quieter machine or a longer --seconds gives a better table.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
