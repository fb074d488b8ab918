"""Latency as deployed: what it costs to write a network for onnxruntime, and how well a latency table is fitted.

python benchmarks/speed/onnx_latency.py --out FILE     # needs the extra "export"; a quiet machine
python benchmarks/speed/onnx_latency.py --quick

Part 1: the hand-designed network of every family at 32 px and 1.5M parameters, written by torch's tracing exporter
(which the package uses while it searches) and by the one that captures programs (which ``export`` uses); seconds of
writing, and milliseconds of one image in onnxruntime, both files in turns.
Part 2 (``--only fit``): a kit of one space, measured by its own script, and once more by the CPU time of its one
thread, which other processes disturb less (``--only fit_cpu``); the error of the fit on rows it did not see, with the
package's features and with others, in the same folds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

sys.path.append(str(Path(__file__).resolve().parents[1]))
from common import machine, read, write

from tailorvit.costs import latency_predictor, latency_table
from tailorvit.costs import measure_on_host as script
from tailorvit.costs.count import Counter
from tailorvit.costs.latency_table import checked_fit, read_latency_table
from tailorvit.costs.limits import Limits
from tailorvit.costs.traced import INPUT, OUTPUT, onnx_call, traced
from tailorvit.families import family, with_settings
from tailorvit.latency_kit import latency_kit
from tailorvit.lookup import read_space
from tailorvit.methods.contest import largest_of, stem_settings
from tailorvit.tracing import OPSET, quiet

SIZE, LIMIT = 32, 1_500_000
FAMILIES = ("vit", "pit", "swin", "windowed", "shunted", "hybrid")
SHAPE = (3, SIZE, SIZE)
TURNS, PASSES = 5, 40
PARTS = ("fit", "fit_cpu", "writing")


def captured(model: Any) -> bytes:
    """By the exporter that captures programs, as ``export`` writes networks, for any batch."""
    names = {"input_names": [INPUT], "output_names": [OUTPUT], "opset_version": OPSET}
    batch = ({0: torch.export.Dim("batch")},)
    with quiet():
        program = torch.onnx.export(
            model, (torch.zeros(2, *SHAPE),), dynamo=True, dynamic_shapes=batch, verbose=False, **names
        )
    assert program is not None
    return bytes(program.model_proto.SerializeToString())


def timed(call: Any) -> float:
    """The median of some passes, in milliseconds."""
    times = []
    for _ in range(PASSES):
        begin = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times[5:])


def writing(names: tuple[str, ...]) -> list[dict[str, Any]]:
    """Part 1."""
    data: Any = SimpleNamespace(image_size=(SIZE, SIZE), channels=3, classes=["class"] * 10, trunk=None)
    limits, rows = Limits.of(max_params=LIMIT), []
    for name in names:
        settings = stem_settings(name, "usual", data, limits)
        arch = largest_of(family(name).baseline, name, settings, limits)
        assert arch is not None
        model = family(name).build(family(name).settings(dict(settings)), arch, 0.0).eval()
        row: dict[str, Any] = {"family": name, "params": sum(p.numel() for p in model.parameters())}
        files, calls = {}, {}
        for how, make in (("traced", lambda m: traced(m, SHAPE)), ("captured", captured)):
            seconds = []
            for _ in range(2 if how == "traced" else 1):
                begin = time.perf_counter()
                files[how] = make(model)
                seconds.append(time.perf_counter() - begin)
            begin = time.perf_counter()
            calls[how] = onnx_call(files[how], SHAPE, 1, "CPUExecutionProvider", torch.get_num_threads())
            row[how] = {"write_s": min(seconds), "open_s": time.perf_counter() - begin}
        times: dict[str, list[float]] = {how: [] for how in calls}
        for _ in range(TURNS):
            for how, call in calls.items():
                times[how].append(timed(call))
        for how, found in times.items():
            row[how]["ms"] = min(found)  # on a busy machine the quickest turn is the least disturbed
        rows.append(row)
        print(row, flush=True)
    return rows


def by_part(counter: Counter, arch: Any) -> Any:
    """Parameters and MACs of every kind of layer, and the number of segments."""
    parts = [value for row in counter.parts(arch) for value in (row.params, row.macs)]
    return np.array([*parts, len(counter.family.segments(arch))], dtype=np.float64)


def counted(counter: Counter, arch: Any) -> Any:
    """Parameters, MACs and segments only."""
    return np.array([*counter.both(arch), len(counter.family.segments(arch))], dtype=np.float64)


def by_cpu_time(kit: Path, seconds: float) -> None:
    """The kit's table with the thread's own time in place of the clock's: for a machine that cannot be quiet."""
    found = script.read_kit(kit)
    entries, turns = found["networks"], [[] for _ in found["networks"]]

    def opened(entry: dict[str, Any]) -> Any:
        return script.opened(kit / entry["file"], found["shape"], "CPUExecutionProvider", 1)

    for number, times in script.turns(entries, opened, seconds, script.sayer(sys.stderr), time.thread_time):
        turns[number].append(times)
    rows = [script.row_of(entry, own) for entry, own in zip(entries, turns, strict=True)]
    host = {**script.host_facts(""), "load_after": script.load()}
    facts = {"format": script.TABLE, "space": found["space"], "provider": "CPUExecutionProvider", "threads": 1}
    script.write_tables(kit, {**facts, "host": host, "rows": rows})


def fitting(space: str, n: int, seconds: float, cpu_time: bool) -> dict[str, Any]:
    """Part 2."""
    with tempfile.TemporaryDirectory() as place:
        begin = time.perf_counter()
        kit = latency_kit(space, Path(place) / "kit", n=n)
        wrote = time.perf_counter() - begin
        begin = time.perf_counter()
        if cpu_time:
            by_cpu_time(Path(place) / "kit", seconds)
        else:
            command = [sys.executable, str(Path(place) / "kit" / "measure.py"), "--anyway", "--threads", "1"]
            subprocess.run([*command, "--seconds", str(seconds)], check=True)
        took = time.perf_counter() - begin
        table = read_latency_table(Path(place) / "kit" / "table.json")
        rows = table.facts["rows"]
    qualities, own = {}, latency_predictor.features
    counter = table.predictor.counter
    for name, features in (("package", own), ("by part", by_part), ("params, MACs, segments", counted)):
        latency_predictor.features = features
        qualities[name] = checked_fit(counter, table.archs, table.seconds).to_dict()
    latency_predictor.features = own
    turns = np.array([row["turns_ms"] for row in rows])
    assert latency_table.fit is latency_predictor.fit
    return {
        "space": space,
        "networks": len(kit["networks"]),
        "kit_s": wrote,
        "kit_bytes": kit["bytes"],
        "measure_s": took,
        "host": table.facts["host"],
        "steady": sum(row["steady"] for row in rows),
        "between_turns": float(np.median(turns.max(1) / turns.min(1) - 1)),
        "fits": qualities,
        "rows": [{k: row[k] for k in ("arch", "median_ms", "low_ms", "high_ms", "runs", "turns_ms")} for row in rows],
    }


def main() -> None:
    """Both parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--space", default="vit-32px")
    parser.add_argument("--n", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=1.0, help="of measure.py")
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    with_settings(read_space(options.space))
    names, n = (FAMILIES[:1], 10) if options.quick else (FAMILIES, options.n)
    facts: dict[str, Any] = {**machine(), "threads": torch.get_num_threads(), "torch": torch.__version__}
    facts["command"] = "python benchmarks/speed/onnx_latency.py"
    if options.only and options.out and options.out.is_file():
        facts = read(options.out)
    seconds = 0.2 if options.quick else options.seconds
    for part in [options.only] if options.only else PARTS:
        load = os.getloadavg()
        facts[part] = writing(names) if part == "writing" else fitting(options.space, n, seconds, part == "fit_cpu")
        facts.setdefault("load", {})[part] = {"before": load, "after": os.getloadavg()}
        if part != "writing":
            print(part, facts[part]["fits"])
    if options.out:
        write(facts, options.out)


if __name__ == "__main__":
    main()
