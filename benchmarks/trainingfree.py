"""Searching with and without training on digits: seconds of search and test accuracy of the network found.

python benchmarks/trainingfree.py          five seeds of every case, one process a core
python benchmarks/trainingfree.py --quick  tiny forms, to try this script; writes no results

Every case has the same limits (45k to 60k parameters), and every network found is trained from scratch by the same
recipe, so that only the choice of the architecture differs.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import series

AFTER = ("final", "baseline", "analysis")  # stages that are no search
SUPERNET = [
    *("seek.evaluator=supernet", "train.epochs=40", "final.train.epochs=80", "final.how=retrain"),
    *("s4.adaptive=true", "s4.warm_start=true", "search.population=16", "search.parents=6"),
    *("search.generations=6", "search.crossover=6", "search.mutation=6"),
]
# Case to (recipe, keys on top). The two "size" cases are the controls: the largest of the band, nothing else.
CASES: dict[str, tuple[str, list[str]]] = {
    "tf-tas, dss": ("tftas-digits", ["baseline=true"]),
    "tf-tas, naswot": ("tftas-digits", ["proxy.name=naswot"]),
    "tf-tas, predictor": ("tftas-digits", ["proxy.name=predictor"]),
    "tf-tas, size": ("tftas-digits", ["proxy.name=params"]),
    "s4, dss": ("s4-dss-digits", []),
    "s4, predictor": ("s4-dss-digits", ["seek.evaluator=predictor"]),
    "s4, size": ("s4-dss-digits", ["seek.evaluator=params", "seek.per_size=false"]),
    "s4, supernet": ("s4-dss-digits", SUPERNET),
}


def one(case: str, seed: int, place: Path, asked: argparse.Namespace) -> dict:
    """The figures of one run."""
    recipe, sets = CASES[case]
    sets = ["baseline=false", *sets, *asked.sets]
    if asked.quick:
        sets += ["train.epochs=1", "final.train.epochs=1"]
    folder = place / f"{case.replace(', ', '-')}-{seed}"
    head = {"case": case, "seed": seed, "recipe": recipe, "set": sets}
    found = series.one(recipe, seed, sets, folder, asked.quick)
    if isinstance(found, str):
        return {**head, "failed": found}
    facts, seconds = found
    stages = facts["seconds"]
    search = sum(s for stage, s in stages.items() if stage.partition("-")[0] not in AFTER)
    rival, proxy = facts["baseline"] or {}, facts.get("proxy") or {}
    print(f"{folder.name}: {facts['test_accuracy']:.2f} %, search {search:.1f} s, in all {seconds:.0f} s", flush=True)
    return {
        **head,
        "arch": facts["arch"],
        "params": facts["params"],
        "macs": facts["macs"],
        "test": facts["test_accuracy"],
        "search_split": facts["final_search_accuracy"],
        "baseline_params": rival.get("params"),
        "baseline_test": rival.get("test_accuracy"),
        "search_seconds": search,
        "seconds": seconds,
        "stages": stages,
        "trials": facts["trials"],
        "spaces": [s["largest"]["params"] for s in facts["spaces"]],
        "proxy": {k: proxy.get(k) for k in ("names", "scored", "per_second", "tau_params")} if proxy else None,
    }


def spread(rows: list[dict], key: str, form: str = "{:.2f}") -> str:
    """Mean and, from three seeds on, standard deviation."""
    values = [r[key] for r in rows if r.get(key) is not None]
    if not values:
        return "-"
    mean = form.format(statistics.fmean(values))
    return mean if len(values) < 3 else f"{mean} ± {form.format(statistics.stdev(values))}"


def table(rows: list[dict]) -> str:
    """Markdown, one line a case, and one for the hand-designed network."""
    head = ("case", "seeds", "parameters", "test %", "search, s", "whole run, s", "architectures judged")
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for case in dict.fromkeys(r["case"] for r in rows):
        same = [r for r in rows if r["case"] == case]
        good = [r for r in same if "failed" not in r]
        if not good:
            lines.append(f"| {case} | failed: {same[0]['failed']} |" + " |" * (len(head) - 2))
            continue
        cells = [case, str(len(good)), spread(good, "params", "{:,.0f}"), spread(good, "test")]
        cells += [spread(good, k, "{:.1f}") for k in ("search_seconds", "seconds")] + [
            spread(good, "trials", "{:,.0f}")
        ]
        lines.append(f"| {' | '.join(cells)} |")
    hand = [r for r in rows if r.get("baseline_test") is not None]
    if hand:
        cells = ["hand-designed", str(len(hand)), spread(hand, "baseline_params", "{:,.0f}")]
        lines.append(f"| {' | '.join([*cells, spread(hand, 'baseline_test'), '0', '-', '-'])} |")
    return "\n".join(lines)


def main() -> None:
    """Run everything, write the JSON, print the table."""
    parser = series.options(__doc__, range(5))
    parser.add_argument("--only", nargs="+", default=[], choices=CASES, help="cases by name; all unless named")
    asked = parser.parse_args()
    cases = asked.only or list(CASES)
    series.series(asked, "trainingfree", cases, lambda case, seed, place: one(case, seed, place, asked), table)


if __name__ == "__main__":
    main()
