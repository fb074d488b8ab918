"""Which way of choosing wins on CIFAR-10 at the same size and the same training?

    python benchmarks/cifar10/cifar10.py run "s4 survey" --seed 0 --data data/cifar10 --out FILE    # minutes on a GPU
    python benchmarks/cifar10/cifar10.py run "baseline" --size 6M --seed 0 --data data/cifar10 --out FILE
    python benchmarks/cifar10/cifar10.py table                          # the page's tables, from the stored results

`run` adds one row to FILE; `table --rows FILE` prints the table of its rows. Every case is the recipe s4-vit-cifar10
with other settings, so all share data, limits, training and search.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from common import fill, markdown, number, read, spread

HERE = Path(__file__).parent
RESULTS = HERE / "results"
Row = dict[str, Any]
KEYS = ("depth", "mlp", "heads", "embed")

# -- running ----------------------------------------------------------------------------------------------------------

S4 = {"s4": {"iterations": 3, "pairs": 20}}
WARM = {"s4": {**S4["s4"], "warm_start": True}}
# What a case changes in the recipe; "s4 survey" is the recipe itself. All supernets train by one random sub-network a
# step, S3's too, so that methods differ only in how the space moves.
CASES: dict[str, Row] = {
    "baseline": {"method": "fixed"},
    "autoformer": {"method": "autoformer"},
    "s3": {"method": "s3", "s3": {"updates": 3, "samples": 20, "top": 5, "max_shift": 1}},
    "s4": S4,
    "s4 warm": WARM,
    "s4 dss": {**S4, "seek": {"evaluator": "dss"}},
    "s4 sized by middle": {"s4": {**WARM["s4"], "sized_by": "middle"}},
    "s4 survey": {},
}
# DeiT's shape at each limit: 12 equal blocks with MLP ratio 4.
BASELINES = {"1.5M": {"embed": 100, "heads": 3}, "6M": {"embed": 204, "heads": 3}}


def recipe(case: str, size: str, seed: int, data: Path) -> Row:
    """The recipe s4-vit-cifar10 with a case's changes."""
    import tailorvit

    path = Path(tailorvit.__file__).parent / "recipes" / "s4-vit-cifar10.toml"
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    change = deepcopy(CASES[case])
    if case != "s4 survey":  # slopes of pairs, from supernets
        table["s4"], table["seek"] = change.pop("s4", {}), change.pop("seek", {})
    table |= change
    table |= {"seed": seed, "baseline": False, "proxy": {"candidates": 200}}
    table["data"]["source"] = str(data)
    table["train"] |= {"rule": "single_path", "compile": True}
    table["analysis"] = {"samples": 0, "images": 0, "mistakes": 0}
    if size == "6M":
        table["limits"] = {"max_params": "6M", "min_params": "5.4M"}
        table["space"]["settings"]["head_dim"] = 64
        table["space"]["dims"]["embed"] = {"low": 144, "high": 176, "step": 16, "minimum": 16}
    if case == "baseline":
        table["arch"] = {"family": "vit", "depth": 12, "mlp": 4, **BASELINES[size]}
        table["limits"]["min_params"] = 1
    return table


def run(options: argparse.Namespace) -> Row:
    """One run, as a row."""
    import tomli_w

    import tailorvit

    start = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        written = Path(place) / "recipe.toml"
        table = recipe(options.case, options.size, options.seed, options.data.resolve())
        written.write_text(tomli_w.dumps(table), encoding="utf-8")
        result = tailorvit.run(str(written), out=Path(place) / "run", settings=options.sets, progress="plain").facts
    search = sum(
        s for k, s in result["seconds"].items() if k.partition("-")[0] not in ("final", "baseline", "analysis")
    )
    return {
        "name": f"{options.case.replace(' ', '-')}-{options.size}-{options.seed}",
        "case": options.case,
        "size": options.size,
        "seed": options.seed,
        "arch": result["arch"],
        "params": result["params"],
        "macs": result["macs"],
        "test": result["test_accuracy"],
        "search": result["final_search_accuracy"],
        "inherited": result["search_accuracy"],
        "moves": sum(not s["repair"] for s in result["spaces"][1:]),
        "search_seconds": search,
        "seconds": time.monotonic() - start,
    }


# -- the stored rows --------------------------------------------------------------------------------------------------

# Cases of the study by their names in the rows. The last two need settings that are no longer in the package.
NAMES = {
    "a hand-designed": "baseline",
    "b autoformer": "autoformer",
    "c s3": "s3",
    "d s4": "s4",
    "e s4 warm": "s4 warm",
    "f s4 dss": "s4 dss",
    "f s4 predictor": "s4 predictor",
    "g s4 sized by middle": "s4 sized by middle",
    "g s4 survey": "s4 survey",
    "g s4 far": "s4 far",
    "g s4 held": "s4 held",
}


def read_rows(path: Path) -> list[Row]:
    """Rows of a file, one JSON object a line."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def stored() -> list[Row]:
    """The rows of the study."""
    return read_rows(RESULTS / "rows.jsonl")


def methods(rows: Sequence[Row], size: str) -> dict[str, list[Row]]:
    """Rows of every case of a size, by its name; a network trained again counts with its mean accuracy."""
    found: dict[str, list[Row]] = {name: [] for name in NAMES.values()}
    for row in rows:
        case = row["case"].removesuffix(f" {size}")
        name = NAMES.get(case, case)
        if row["size"] == size and name in found:
            again = [r["test"] for r in rows if r["name"].startswith(f"again-{row['name']}-")]
            tests = [row["test"], *again]
            found[name].append({**row, "test": statistics.fmean(tests), "trainings": len(tests)})
    return {name: some for name, some in found.items() if some}


# -- tables -----------------------------------------------------------------------------------------------------------


def pooled(groups: Iterable[Sequence[Row]]) -> tuple[float, int]:
    """Standard deviation of test accuracy between seeds of one case, pooled over cases; its degrees of freedom."""
    squares, freedom = 0.0, 0
    for rows in groups:
        mean = statistics.fmean(r["test"] for r in rows)
        squares, freedom = squares + sum((r["test"] - mean) ** 2 for r in rows), freedom + len(rows) - 1
    return (math.sqrt(squares / freedom) if freedom else math.nan), freedom


def student(freedom: int) -> float:
    """The 97.5 % quantile of Student's t; over ten degrees of freedom to two decimals by its usual expansion."""
    few = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
    return few[freedom - 1] if freedom <= len(few) else 1.96 + 2.372 / freedom + 2.82 / freedom**2


def difference(one: Sequence[Row], other: Sequence[Row], groups: Iterable[Sequence[Row]]) -> str:
    """Difference of two means with a 95 % interval, from the deviation between seeds pooled over ``groups``."""
    deviation, freedom = pooled(groups)
    gap = statistics.fmean(r["test"] for r in one) - statistics.fmean(r["test"] for r in other)
    if not freedom:
        return f"{gap:+.2f}"
    return f"{gap:+.2f} ± {student(freedom) * deviation * math.sqrt(1 / len(one) + 1 / len(other)):.2f}"


def moves(row: Row) -> int:
    """How often the space moved."""
    return row["moves"] if "moves" in row else sum(d["kind"] == "move" for d in row["decisions"])


def methods_table(rows: Sequence[Row], size: str) -> str:
    """One line a case: accuracy, its difference from the baseline, what it cost."""
    groups, lines = methods(rows, size), []
    for case, some in groups.items():
        # The rest of a run whose members were trained by an earlier process does not tell what the whole costs.
        whole = [r for r in some if not r.get("asked_before")] or some
        against = "-"
        if case != "baseline" and "baseline" in groups:
            against = difference(some, groups["baseline"], groups.values())
        lines.append(
            (
                case,
                len(some),
                sum(r["trainings"] for r in some),
                number(statistics.fmean(r["params"] for r in some)),
                number(statistics.fmean(r["macs"] for r in some) / 1e6, 1),
                spread(r["test"] for r in some),
                against,
                *(number(statistics.fmean(r[k] for r in whole)) for k in ("search_seconds", "seconds")),
                f"{statistics.fmean(moves(r) for r in some):.1f}",
            )
        )
    head = ("case", "seeds", "trainings", "parameters", "MMACs", "test %", "against the baseline")
    return markdown((*head, "search, s", "whole run, s", "moves"), lines)


def pairs_table(rows: Sequence[Row]) -> str:
    """The survey against three others by the deviation of the two alone."""
    groups = methods(rows, "1.5M")
    survey = groups["s4 survey"]
    lines = [(f"s4 survey less {o}", difference(survey, groups[o], (survey, groups[o]))) for o in PAIRS]
    return markdown(("by the deviation of the two alone", "points"), lines)


PAIRS = ("baseline", "autoformer", "s4")


def judges_table(derived: Row) -> str:
    """Slopes of S4's first space by every judge, and their cosine with the true ones."""
    lines = []
    for judge, facts in derived["judges"].items():
        slopes = facts["slopes"]
        count = max(v[2] for v in slopes.values())
        cells = [f"{slopes[k][0]:+.2f} ± {slopes[k][1]:.2f}" for k in KEYS]
        lines.append((judge, count, facts["unit"], *cells, f"{facts['cosine']:+.2f}"))
    return markdown(("judge", "seeds or networks", "per step, in", *KEYS, "cosine with the true slopes"), lines)


def surveys_table(derived: Row) -> str:
    """Slopes of the surveys in the first space beside those of a surface through all networks of the study."""
    surface = derived["surface_slopes_of_the_first_space"]
    lines = [("surface", surface["networks"], *(f"{surface['slopes'][k]:+.2f}" for k in KEYS), "", "", "")]
    for s in derived["surveys"]:
        cells = [f"{s['slopes'][k]:+.2f} ± {s['errors'][k]:.2f}" for k in KEYS]
        went = ", then ".join(" ".join(f"{k} {v:+d}" for k, v in move.items()) for move in s["moves"])
        agree = [f"{s[k]:+.2f}" for k in ("cosine", "along_limit")]
        lines.append((f"survey, seed {s['seed']}", s["members"], *cells, *agree, went))
    means = [f"{statistics.fmean(s[k] for s in derived['supernets']):+.2f}" for k in ("cosine", "along_limit")]
    low, high = (f(s["along_limit"] for s in derived["supernets"]) for f in (min, max))
    count = f"mean of {len(derived['supernets'])} supernets"
    lines.append((count, "-", *["-"] * 4, means[0], f"{means[1]} ({low:+.2f} to {high:+.2f})", ""))
    head = ("points a step", "networks", *KEYS, "cosine with the surface", "along the limit", "moves")
    return markdown(head, lines)


def surface_tables(found: Row) -> dict[str, str]:
    """The surface, what supernets say of it, and what S4 finds on it with right and with wrong slopes."""
    whole, short = found["surface"], found["short"]

    def slope(of: Row, key: str) -> str:
        bend = of["bends"][key]
        text = f"{of['slopes'][key]:+.2f} ± {of['errors'][key]:.2f}"
        return text + (f", bend {bend:+.2f}" if abs(bend) >= 0.005 else "")

    lines = [
        (k, slope(whole, k), f"{found['bias'][k]:+.2f}", f"{found['spread'][k]:.2f}", slope(short, k)) for k in KEYS
    ]
    count = f"bias of {found['supernets']} supernets", "their spread"
    head = ("points a doubling", f"surface, {whole['networks']} networks", *count)
    ways = [
        (name, *(spread(by[j], 1) for j in ("right", "spread", "bias", "both"))) for name, by in found["ways"].items()
    ]
    surveys = [(name, *(spread(values, 1) for values in by.values())) for name, by in found["surveys"].items()]
    counts = list(next(iter(found["surveys"].values())))
    return {
        "surface": markdown((*head, f"surface, {short['networks']} networks of surveys"), lines),
        "surface-s4": markdown(("S4", "right slopes", "with spread", "with bias", "with both"), ways),
        "surface-surveys": markdown(("S4 by a survey", *(f"{n} moves" for n in counts)), surveys),
    }


def shape(arch: Row) -> tuple[Any, ...]:
    """Depth, width, mean heads and mean ratio of a network."""
    means = (statistics.fmean(arch[k]) if isinstance(arch[k], list) else arch[k] for k in ("heads", "mlp"))
    return arch["depth"], arch["embed"], *(f"{m:.2g}" for m in means)


def uniform_table(rows: Sequence[Row]) -> str:
    """Networks of equal blocks at the limit, from shallow to deep."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for r in rows:
        if r["size"] == "1.5M" and r["case"] in ("landscape", "a hand-designed"):
            groups.setdefault(shape(r["arch"]), []).append(r)
    lines = [(*s, number(g[0]["params"]), len(g), spread(r["test"] for r in g)) for s, g in sorted(groups.items())]
    return markdown(("blocks", "channels", "heads", "ratio", "parameters", "trainings", "test %"), lines)


def repeated_table(rows: Sequence[Row]) -> str:
    """Networks trained several times with different seeds."""
    cases = {"study": ("a hand-designed", "truth", "landscape", "noise"), "half": ("noise half rate",)}
    lines = []
    for rate, names in cases.items():
        groups: dict[str, list[Row]] = {}
        for r in (r for r in rows if r["size"] == "1.5M" and r["case"] in names):
            groups.setdefault(str(r["arch"]), []).append(r)
        for some in (g for g in groups.values() if len(g) > 1):
            tests = [r["test"] for r in some]
            each = ", ".join(f"{t:.2f}" for t in tests)
            lines.append((rate, *shape(some[0]["arch"]), each, f"{statistics.stdev(tests):.2f}"))
    return markdown(("learning rate", "blocks", "channels", "heads", "ratio", "test %", "deviation"), lines)


def groups_table(rows: Sequence[Row]) -> str:
    """Other networks trained, by the question they answer."""
    lines = []
    for case, what in GROUPS.items():
        some = [r for r in rows if r["case"] == case]
        params = number(statistics.fmean(r["params"] for r in some))
        lines.append((what, len(some), params, spread(r["test"] for r in some)))
    return markdown(("networks", "trainings", "parameters", "test %"), lines)


GROUPS = {
    "rank first": "drawn from the first space",
    "rank last": "drawn from the last space of S4 warm, seed 0",
    "slopes step": "of the space that slopes per step choose",
    "slopes raw": "of the space that raw slopes choose",
    "summit": "that a surface through 43 networks called best",
}


def lengths_table(rows: Sequence[Row]) -> str:
    """What supernets trained longer find in the same space, without a move."""
    some = [r for r in rows if r["case"].startswith("length x")]
    lines = [
        (r["case"].removeprefix("length "), number(r["params"]), f"{r['inherited']:.2f}", f"{r['test']:.2f}")
        for r in some
    ]
    return markdown(("supernet epochs", "parameters", "inherited, search %", "retrained, test %"), lines)


def starts_table(rows: Sequence[Row], derived: Row) -> str:
    """Where S4 ended from three starts, and what the surface says of the best network at both ends."""
    lines = []
    for r in (r for r in rows if r["case"].startswith("travel")):
        _, start, steps = r["case"].split()
        best = " to ".join(f"{v:.1f}" for v in derived["travel_best_by_the_surface"][r["name"]])
        cells = (f"{r['inherited']:.2f}", f"{r['search']:.2f}", f"{r['test']:.2f}", best, number(r["search_seconds"]))
        lines.append((start, steps, moves(r), *cells))
    head = ("start", "steps a move", "moves", "inherited, search %", "retrained, search %", "test %")
    return markdown((*head, "best within, by the surface", "search, s"), lines)


def ranks_table(derived: Row) -> str:
    """Kendall's tau of what could have ranked networks against their retrained accuracy."""
    by: dict[str, dict[str, Row]] = {}
    for row in derived["ranks"]:
        by.setdefault(row["by"], {})[row["space"]] = row

    def cell(row: Row) -> str:
        if row["tau"] is None:
            return "-"
        low, high = row["interval"]
        return f"{row['tau']:+.2f} ({low:+.2f} to {high:+.2f})"

    spaces = ("first", "last", "both")
    lines = [(name, *(cell(found[s]) for s in spaces)) for name, found in by.items()]
    return markdown(("ranked by", "6 of the first space", "6 of the last space", "both"), lines)


def tables() -> dict[str, str]:
    """The page's tables by name."""
    rows, derived = stored(), read(RESULTS / "derived.json")
    return {
        "methods": methods_table(rows, "1.5M"),
        "pairs": pairs_table(rows),
        "methods-6M": methods_table(rows, "6M"),
        "judges": judges_table(derived),
        "surveys": surveys_table(derived),
        **surface_tables(read(RESULTS / "surface.json")),
        "uniform": uniform_table(rows),
        "repeated": repeated_table(rows),
        "groups": groups_table(rows),
        "lengths": lengths_table(rows),
        "starts": starts_table(rows, derived),
        "ranks": ranks_table(derived),
    }


def main() -> None:
    """Run a case, or make tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("run")
    one.add_argument("case", choices=CASES)
    one.add_argument("--size", choices=BASELINES, default="1.5M")
    one.add_argument("--seed", type=int, default=0)
    one.add_argument("--data", type=Path, default=Path("data/cifar10"))
    one.add_argument("--set", dest="sets", action="append", default=[], help="passed on to the run")
    one.add_argument("--out", type=Path, required=True, help="a file of rows; this one is added")
    table = commands.add_parser("table")
    table.add_argument("--rows", type=Path, help="print the table of these rows instead")
    options = parser.parse_args()
    if options.command == "run":
        row = run(options)
        with options.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(f"{row['name']}: {row['test']:.2f} %, {row['params']:,} parameters")
    elif options.rows:
        rows = read_rows(options.rows)
        print("\n\n".join(methods_table(rows, size) for size in dict.fromkeys(r["size"] for r in rows)))
    else:
        fill(HERE / "README.md", tables())


if __name__ == "__main__":
    main()
