"""A found network as the backbone of a detector, a segmenter or an answerer, beside a network of timm.

python benchmarks/downstream/downstream.py run detect --data BCCD --network "S4's"=RUN --network timm:resnet10t \
    --scratch --seeds 1 2 3 --image-size 128 --set train.epochs=20 --out rows.jsonl
python benchmarks/downstream/downstream.py transfer --data PETS --network "S4's"=RUN --peer timm:mobilenetv3_small_075 \
    --seeds 1 2 3 --image-size 64 --set train.epochs=20 --out rows.jsonl
python benchmarks/downstream/downstream.py lease --bccd A --pets B --easy-vqa C --found RUN --tailored RUN
python benchmarks/downstream/downstream.py table      # fills the page

``run`` and ``transfer`` (fine-tuning on other images, with what stands beside) add a row for every network and seed
that is not in the file yet. ``lease`` does all that the page needs on one GPU, several trainings side by side, the most
important first, until the time is up.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))
from common import Call, fill, machine, markdown, number, side_by_side, spread  # noqa: E402 - after the path is set

PAGE, RESULTS = HERE / "README.md", HERE / "results"
METRICS = {"detect": "map", "segment": "miou", "answer": "accuracy"}
MORE = {"detect": ("map50",), "segment": ("pixel_accuracy", "miou_ms_flip"), "answer": ()}
SAME = ("task", "data", "network", "began", "seed", "image_size", "settings")  # what makes two rows the same


def rows_of(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """Stored rows."""
    return [json.loads(line) for path in paths for line in path.read_text(encoding="utf-8").splitlines()]


def done_before(path: Path) -> set[tuple[str, ...]]:
    """What the file has rows of."""
    return {tuple(map(str, (row[k] for k in SAME))) for row in (rows_of([path]) if path.exists() else [])}


def facts_of(options: argparse.Namespace, task: str, network: str, began: str, seed: int) -> dict[str, Any]:
    """What a row says of its run before there is a result."""
    return {
        "task": task,
        "data": options.name or Path(options.data).name,
        "network": network,
        "began": began,
        "seed": seed,
        "image_size": options.image_size,
        "settings": list(options.set),
    }


def store(row: Mapping[str, Any], path: Path) -> None:
    """Add a row."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    print(f"{row['network']}, seed {row['seed']}: {row['test']} in {row['seconds']} s", flush=True)


def transfer(options: argparse.Namespace) -> None:
    """A network tuned on other images, for every seed; beside it a linear probe, a fresh start and models of timm."""
    import tailorvit

    done = done_before(options.out)
    for seed in options.seeds:
        for network in options.network:
            label, _, source = network.rpartition("=")
            facts = facts_of(options, "transfer", label or source, "with its weights", seed)
            if tuple(map(str, (facts[k] for k in SAME))) in done:
                continue
            began = time.monotonic()
            with TemporaryDirectory() as place:
                found = tailorvit.finetune(
                    source,
                    data=options.data,
                    image_size=options.image_size,
                    seed=seed,
                    settings=[*options.set, f"baseline={json.dumps(options.peer)}"],
                    beside=True,
                    out=Path(place) / "run",
                    progress="quiet",
                )
            row = {
                **facts,
                "params": found["params"],
                "macs": found["macs"],
                "test": found["test_accuracy"],
                "beside": {p["name"]: p.get("test_accuracy") for p in found["peers"]},
                "sizes": {p["name"]: p.get("params") for p in found["peers"]},
                "seconds": round(time.monotonic() - began),
                **machine(),
            }
            store(row, options.out)


def run(options: argparse.Namespace) -> None:
    """A task's run for every network and seed."""
    import tailorvit

    done = done_before(options.out)
    for seed in options.seeds:
        for network in options.network:
            label, _, source = network.rpartition("=")
            scratch = options.scratch and not source.startswith("timm:")
            fresh = scratch or source.startswith("timm:")
            began_with = "from scratch" if fresh else "with its weights"
            facts = facts_of(options, options.task, label or source, began_with, seed)
            if tuple(map(str, (facts[k] for k in SAME))) in done:
                continue
            began = time.monotonic()
            with TemporaryDirectory() as place:
                found = tailorvit.work(
                    options.task,
                    source,
                    data=options.data,
                    image_size=options.image_size,
                    scratch=scratch,
                    seed=seed,
                    settings=options.set,
                    out=Path(place) / "run",
                    progress="quiet",
                )
            row = {
                **facts,
                **{k: found[k] for k in ("params", "macs", "search", "test", "epochs")},
                "backbone": found["backbone"]["params"],
                "beside": {b["name"]: b["test"] for b in found.get("beside", ())},
                "seconds": round(time.monotonic() - began),
                **machine(),
            }
            store(row, options.out)


def lease(options: argparse.Namespace) -> None:
    """The calls of the whole page."""
    found, tailored = f"found by S4={options.found}", f"tailored={options.tailored}"
    plans = (
        ("detect", options.bccd, "bccd", 320, ["train.epochs=50"]),
        ("segment", options.pets, "pets", 96, ["train.epochs=30"]),
        ("answer", options.easy_vqa, "easy-vqa", 64, ["train.epochs=8"]),
    )
    calls = []
    for seed in options.seeds:
        for task, data, name, side, sets in plans:
            for extra in (["--network", found, "--scratch"], ["--network", tailored], ["--network", options.peer]):
                stem = f"{task}-{len(calls)}"
                command = [str(Path(__file__).resolve()), "run", task, "--data", str(data), "--name", name, *extra]
                command += ["--image-size", str(side), "--seeds", str(seed), "--set", *sets, "device=cuda"]
                out = options.out / f"{stem}.jsonl"
                calls.append(Call(stem, [*command, "--out", str(out)], out.with_suffix(".log")))
    options.out.mkdir(parents=True, exist_ok=True)
    side_by_side(calls, options.processes, options.seconds)


def table_of(rows: Sequence[Mapping[str, Any]], task: str) -> str:
    """Networks in the rows' order, the mean over seeds with its deviation."""
    mine = [row for row in rows if row["task"] == task]
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in mine:
        groups.setdefault((row["data"], row["image_size"], row["epochs"], row["network"], row["began"]), []).append(row)
    metrics = [METRICS[task], *MORE[task]]
    besides = list(dict.fromkeys(name for row in mine for name in row["beside"]))
    head = ["images", "px", "epochs", "backbone", "began", "its parameters", "of the whole", "M MACs", "seeds"]
    cells = []
    for (data, side, epochs, network, began), same in groups.items():
        facts = [number(same[0]["backbone"]), number(same[0]["params"]), number(same[0]["macs"] / 1e6), len(same)]
        figures = [spread((r["test"].get(m) for r in same), 1) for m in metrics]
        figures += [spread((r["beside"].get(b, {}).get(METRICS[task]) for r in same), 1) for b in besides]
        cells.append([data, side, epochs, network, began, *facts, *figures])
    return markdown([*head, *(f"test {m}" for m in metrics), *besides], cells)


def transfer_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Every network tuned, and what stood beside it."""
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["data"], row["image_size"], row["network"]), []).append(row)
    cells = []
    for (data, side, network), same in groups.items():
        first = same[0]
        cells.append(
            [data, side, f"{network}, tuned", number(first["params"]), len(same), spread((r["test"] for r in same), 1)]
        )
        for name in first["beside"]:
            figures = spread((r["beside"].get(name) for r in same), 1)
            cells.append([data, side, name.replace("-", " "), number(first["sizes"][name]), len(same), figures])
    return markdown(["images", "px", "network", "parameters", "seeds", "test %"], cells)


def shares_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Backbones with weights at shares of the learning rate, by the search images."""
    cells = []
    for row in rows:
        share = next((s.partition("=")[2] for s in row["settings"] if s.startswith("backbone_lr=")), "1")
        metric = METRICS[row["task"]]
        cells.append([row["data"], row["network"], share, f"{metric} {number(row['search'][metric], 1)}"])
    return markdown(["images", "backbone", "share", "search"], cells)


def tables() -> dict[str, str]:
    """The tables of the page."""
    rows = rows_of(sorted(p for p in RESULTS.glob("*.jsonl") if not p.name.startswith("shares")))
    found = {task: table_of(rows, task) for task in METRICS if any(r["task"] == task for r in rows)}
    moved = [row for row in rows if row["task"] == "transfer"]
    shares = rows_of(sorted(RESULTS.glob("shares-*.jsonl")))
    return {**found, "transfer": transfer_table(moved), "shares": shares_table(shares)}


def table(options: argparse.Namespace) -> None:
    """Fill the page."""
    fill(PAGE, tables())


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    one, other = verbs.add_parser("run"), verbs.add_parser("transfer")
    one.add_argument("task", choices=METRICS)
    one.add_argument("--scratch", action="store_true", help="fresh weights in networks of ours too")
    other.add_argument("--peer", action="append", default=[], help="timm:NAME, from scratch; may be repeated")
    for verb in (one, other):
        verb.add_argument("--data", required=True)
        verb.add_argument("--name", default="", help="of the images, in the table")
        verb.add_argument("--network", action="append", required=True, help="LABEL=RUN or timm:NAME; may be repeated")
        verb.add_argument("--seeds", type=int, nargs="+", default=[1])
        verb.add_argument("--image-size", type=int, required=True)
        verb.add_argument("--set", nargs="*", default=[])
        verb.add_argument("--out", type=Path, required=True)
    one.set_defaults(work=run)
    other.set_defaults(work=transfer)
    many = verbs.add_parser("lease")
    for name in ("bccd", "pets", "easy-vqa", "found", "tailored"):
        many.add_argument(f"--{name}", type=Path, required=True)
    many.add_argument("--peer", default="timm:resnet10t")
    many.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    many.add_argument("--processes", type=int, default=4)
    many.add_argument("--seconds", type=float, default=float("inf"))
    many.add_argument("--out", type=Path, required=True)
    many.set_defaults(work=lease)
    verbs.add_parser("table").set_defaults(work=table)
    options = parser.parse_args()
    options.work(options)


if __name__ == "__main__":
    main()
