"""What is fast on a GPU, and against what: supernet training and evaluation, windowed networks, growth, precision.

    python benchmarks/gpu.py --out benchmarks/results/gpu-DATE.jsonl    # about five minutes on an H200
    python benchmarks/gpu.py --device cpu --quick                       # that it runs, not how fast
    python benchmarks/gpu.py table benchmarks/results/gpu-DATE.jsonl    # the tables, from the rows of a run

Every row is written when it is there, and a measurement that fails or takes too long leaves a row that says so.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # torch's profiler chats
# Some virtual machines promise AMX tiles and then refuse the instruction; only --device cpu meets it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import torch
from speed.bench import CURVES, VARIANTS, Bench
from speed.growth import growth
from speed.precision import precision
from speed.profile import profile
from speed.show import everything, put_into, short
from speed.table import from_files, loop, pipeline, table
from speed.windowed import windowed

# In order of what matters, as the last ones may find no time left.
SECTIONS: dict[str, Callable[[Bench], None]] = {
    "table": table,
    "loop": loop,
    "profile": profile,
    "precision": precision,
    "input": pipeline,
    "growth": growth,
    "windowed": windowed,
}
PARTS: dict[str, Callable[[Bench], None]] = {"files": from_files}  # what a section holds, by itself


def facts(options: argparse.Namespace, device: torch.device) -> dict[str, object]:
    """The machine and the command."""
    cuda = device.type == "cuda"
    return {
        "section": "facts",
        "date": date.today().isoformat(),
        # Without the file: where it lay on that machine is nobody's business, and the tables name it.
        "command": re.sub(r" --out[ =]\S+", "", " ".join(["python benchmarks/gpu.py", *sys.argv[1:]])),
        "device": torch.cuda.get_device_name(device) if cuda else platform.processor() or "CPU",
        "device_memory_gib": torch.cuda.get_device_properties(device).total_memory / 2**30 if cuda else None,
        "cuda": torch.version.cuda if cuda else None,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "quick": options.quick,
    }


def run(options: argparse.Namespace) -> None:
    """Measure what was asked for, section by section."""
    device = torch.device(options.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    wanted = options.only.split(",") if options.only else list(SECTIONS)
    known = SECTIONS | PARTS
    for name in wanted:
        if name not in known:
            raise SystemExit(f"There is no section '{name}'; there are {', '.join(known)}.")
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text("")
    if options.compile:
        import torch._dynamo.config as dynamo

        # One process meets a dozen sizes here, a training one: past torch's limit of 8 it would quietly run uncompiled.
        dynamo.recompile_limit = max(dynamo.recompile_limit, 128)
        dynamo.accumulated_recompile_limit = max(dynamo.accumulated_recompile_limit, 2048)
    variants = tuple(options.variants.split("; ")) if options.variants else tuple(VARIANTS)
    for name in variants:
        if name not in VARIANTS:
            raise SystemExit(f"There is no variant '{name}'; there are {'; '.join(VARIANTS)}.")
    curves = tuple(options.curves.split(","))
    for name in curves:
        if name not in CURVES:
            raise SystemExit(f"There is no curve '{name}'; there are {', '.join(CURVES)}.")
    seconds = 0.01 if options.quick else options.seconds
    bench = Bench(
        device, options.quick, seconds, options.minutes, options.limit, options.compile, options.out, variants, curves
    )
    bench.add(facts(options, device))
    for name in wanted:
        try:
            known[name](bench)
        except Exception as error:  # outside a measurement: still no reason to lose the other sections
            bench.add({"section": name, "what": "", "variant": "", "error": f"{type(error).__name__}: {error}"})
    bench.add({"section": "end", "seconds": time.perf_counter() - bench.started})
    print("\n" + everything(bench.rows, options.out.name if options.out else "-"))
    print("\n" + short(bench.rows))


def main() -> None:
    """``gpu.py`` measures, ``gpu.py table FILE`` tells."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    if sys.argv[1:2] == ["table"]:
        parser.add_argument("table")
        parser.add_argument("files", type=Path, nargs="+", help="of one run, or of several with different sections")
        parser.add_argument("--into", type=Path, help="a page with the marks of this table, to be filled in")
        options = parser.parse_args()
        rows = [json.loads(line) for file in options.files for line in file.read_text().splitlines()]
        text = everything(rows, *(file.name for file in options.files))
        print(text)
        if options.into:
            put_into(options.into, text)
        return
    parser.add_argument("--device", help="cuda or cpu (default: cuda where there is one)")
    parser.add_argument("--out", type=Path, help="where the rows go, one JSON object a line")
    parser.add_argument("--only", help=f"some of {','.join(SECTIONS | PARTS)}")
    parser.add_argument("--variants", help=f"of table, loop and windowed networks, some of '{'; '.join(VARIANTS)}'")
    parser.add_argument("--curves", default=",".join(CURVES), help="of growth, some of %(default)s")
    parser.add_argument("--quick", action="store_true", help="tiny shapes, to try this script")
    parser.add_argument("--seconds", type=float, default=4.0, help="time budget of one measurement (default 4)")
    parser.add_argument("--minutes", type=float, default=5.0, help="start no measurement later than this (default 5)")
    parser.add_argument("--limit", type=float, default=90.0, help="break a measurement off after so many seconds")
    parser.add_argument("--no-compile", dest="compile", action="store_false", help="leave the compiled variants out")
    run(parser.parse_args())


if __name__ == "__main__":
    main()
