"""Every family under every method that suits it, end to end: the network found against the hand-designed one.

python benchmarks/families.py                       digits, one process a core
python benchmarks/families.py --data fashion-mnist  Fashion-MNIST, where Debian's package is installed
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import series

STEADY = ["s3.warm_start=true", "s3.max_shift=1", "s3.updates=2", "s3.samples=40"]
# (family, method) to (recipe, keys on top of it). The ladder's trunk on digits is a random one: a control, no result.
DIGITS: dict[tuple[str, str], tuple[str, list[str]]] = {
    ("vit", "s4"): ("s4-digits", []),
    ("pit", "s4"): ("s4-pit-digits", []),
    ("swin", "s4"): ("s4-swin-digits", []),
    ("shunted", "s4"): ("s4-shunted-digits", []),
    ("windowed", "s4"): ("s4-windowed-digits", []),
    ("ladder", "s4"): ("s4-ladder-digits", []),
    ("vit", "s3"): ("s3-vit-digits", []),
    ("pit", "s3"): ("s4-pit-digits", ["method=s3", *STEADY]),
    ("swin", "s3"): ("s4-swin-digits", ["method=s3", *STEADY]),
    ("shunted", "s3"): ("s4-shunted-digits", ["method=s3", *STEADY]),
    ("windowed", "s3"): ("s3-windowed-digits", []),
    ("vit", "autoformer"): ("autoformer-digits", []),
    ("vit", "bignas"): ("bignas-digits", []),
    ("vit", "hat"): ("hat-digits", []),
}
WINDOWED_DIMS = 's4.dims=["depth.3", "embed.1", "embed.2", "embed.3", "embed.4"]'
FASHION: dict[tuple[str, str], tuple[str, list[str]]] = {
    **{
        (name, "s4"): ("s4-fashion-mnist", [f"family={name}", *([WINDOWED_DIMS] if name == "windowed" else [])])
        for name in ("vit", "pit", "swin", "shunted", "windowed")
    },
    **{
        (name, "s3"): ("s4-fashion-mnist", [f"family={name}", "method=s3", *STEADY])
        for name in ("vit", "pit", "swin", "shunted", "windowed")
    },
}
CASES = {"digits": DIGITS, "fashion-mnist": FASHION}


def one(case: tuple[str, str], seed: int, place: Path, asked: argparse.Namespace) -> dict:
    """The figures of one run."""
    recipe, sets = CASES[asked.data][case]
    sets, folder = [*sets, *asked.sets], place / "-".join((*case, str(seed)))
    head = {"family": case[0], "method": case[1], "seed": seed, "recipe": recipe, "set": sets}
    found = series.one(recipe, seed, sets, folder, asked.quick)
    if isinstance(found, str):
        return {**head, "failed": found}
    facts, seconds = found
    print(f"{folder.name}: {facts['test_accuracy']:.2f} % in {seconds:.0f} s", flush=True)
    rival = facts["baseline"] or {}
    return {
        **head,
        "params": facts["params"],
        "macs": facts["macs"],
        "test": facts["test_accuracy"],
        "baseline_params": rival.get("params"),
        "baseline_test": rival.get("test_accuracy"),
        "spaces": [s["largest"]["params"] for s in facts["spaces"]],
        "trials": facts["trials"],
        "seconds": seconds,
        "stages": facts["seconds"],
        **{k: facts[k] for k in ("latency", "predictor") if k in facts},
    }


def mean(rows: list[dict], key: str, form: str) -> str:
    """The mean over the seeds, or nothing where a figure is missing."""
    values = [r[key] for r in rows if r.get(key) is not None]
    return form.format(statistics.fmean(values)) if values else "-"


def spread(rows: list[dict], key: str) -> str:
    """Mean and, from three seeds on, standard deviation."""
    values = [r[key] for r in rows if r.get(key) is not None]
    if len(values) < 3:
        return mean(rows, key, "{:.2f}")
    return f"{statistics.fmean(values):.2f} ± {statistics.stdev(values):.2f}"


def table(rows: list[dict]) -> str:
    """Markdown, one line a family and method."""
    head = ("family", "method", "seeds", "found params", "test %", "baseline params", "test %", "spaces", "seconds")
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for case in dict.fromkeys((r["family"], r["method"]) for r in rows):
        same = [r for r in rows if (r["family"], r["method"]) == case]
        good = [r for r in same if "failed" not in r]
        if not good:
            lines.append(f"| {case[0]} | {case[1]} | failed: {same[0]['failed']} |" + " |" * (len(head) - 3))
            continue
        moved = statistics.fmean(len(r["spaces"]) for r in good)
        cells = [
            *case,
            str(len(good)),
            mean(good, "params", "{:,.0f}"),
            spread(good, "test"),
            mean(good, "baseline_params", "{:,.0f}"),
            spread(good, "baseline_test"),
            f"{moved:.1f}",
            mean(good, "seconds", "{:.0f}"),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Run everything, write the JSON, print the table."""
    parser = series.options(__doc__, [0])
    parser.add_argument("--data", choices=CASES, default="digits")
    parser.add_argument("--only", nargs="+", default=[], help="cases such as pit-s4; all unless named")
    asked = parser.parse_args()
    cases = [c for c in CASES[asked.data] if not asked.only or "-".join(c) in asked.only]
    series.series(
        asked, f"{asked.data}-families", cases, lambda case, seed, place: one(case, seed, place, asked), table
    )


if __name__ == "__main__":
    main()
