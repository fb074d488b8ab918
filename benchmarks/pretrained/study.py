"""What each part of tailoring is worth: orders before training, cuts and teachers after it, and whole runs.

python benchmarks/pretrained/study.py SET --data flowers=FOLDER@98#40 --weights FILE --out rows.jsonl [--seeds 11]

Sets: ``wholes`` (the whole network tuned at several learning rates and layer decays), ``kept`` (what an order keeps
before any training), ``cuts`` (one cut network, each row with one thing changed), ``rates`` (the cuts that the method
makes, at several learning rates and weights of the teacher's tokens), ``runs`` (tailorvit run, with the rivals it
trains itself), ``tau`` (members trained to the end beside what they had in the supernet).
Figures are of the search images; --test adds the test images. Rows that are there are not made again.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent))
from trainings import WHOLE, Job, best_whole, images, opened, plain_batches, said, whole_network

SHAPES = {  # blocks, channels, heads, hidden units of a ViT-S
    "6M deep": (12, 288, 3, 448),
    "6M middle": (8, 288, 4, 744),
    "6M shallow": (6, 336, 5, 768),
    "3M deep": (12, 192, 2, 352),
    "11M even": (12, 304, 4, 928),  # what tailor's even_shapes gives, and at 3M the deep one
    "6M even": (12, 240, 3, 608),
    "3M middle": (8, 192, 3, 512),
    "3M shallow": (6, 240, 3, 568),
}
BASE = {"lr": 5e-4, "share": 0.5, "features": 2.0, "augment": "mild", "order": "ours"}
CHANGES: tuple[Job, ...] = (
    {"features": 0.0},
    {"lr": 1e-3},
    {"features": 8.0},
    {"augment": "light"},
    {"share": 0.0, "features": 0.0},
    {"lr": 2e-4},
    {"order": "taylor"},
    {"share": 0.9},
    {"augment": "medium"},
    {"order": "magnitude"},
)
KEPT = (0.75, 0.5, 0.25)
EVEN = ("11M even", "6M even", "3M deep")
WHOLES = (  # learning rate, layer decay, augmentation
    (1e-4, 1.0, "mild"),
    (3e-5, 1.0, "mild"),
    (1e-4, 0.7, "mild"),
    (2e-4, 0.7, "mild"),
    (5e-4, 0.6, "mild"),
    (2e-4, 0.7, "light"),
)
RATES = ((2e-4, 8.0), (2e-4, 20.0), (3e-4, 20.0))  # learning rate, weight


def jobs(which: str, base: Job) -> list[Job]:
    """The work of a set, the most telling first."""
    if which == "wholes":
        found = ({"lr": lr, "layer_decay": decay, "augment": augment} for lr, decay, augment in WHOLES)
        return [{**base, "set": which, "whole": {**WHOLE, **row}} for row in found]
    if which == "kept":
        return [{**base, "set": which, "order": order} for order in ("ours", "taylor", "activation", "magnitude")]
    if which == "rates":
        return [
            {**base, "set": "cuts", **BASE, "shape": shape, "lr": lr, "features": features}
            for lr, features in RATES
            for shape in EVEN
        ]
    if which == "cuts":
        shaped: list[Job] = [{"shape": shape} for shape in SHAPES if "even" not in shape]
        changed = [{"shape": shape, **c} for c in CHANGES for shape in ("6M deep", "3M deep")]
        rows = [{**base, "set": which, **BASE, **row} for row in [*shaped, *changed]]
        return list({json.dumps(row, sort_keys=True): row for row in rows}.values())
    return [{**base, "set": which}]


# -- orders -----------------------------------------------------------------------------------------------------------


ORDERED: dict[tuple[str, int, str], tuple[Any, list[int]]] = {}  # of this process


def in_order(whole: Any, data: Any, job: Job) -> tuple[Any, list[int]]:
    """The whole network with its parts in the job's order, and its blocks, the most important first."""
    from tailorvit.families.tailored.order import reordered
    from tailorvit.methods.importance import block_order, importance
    from tailorvit.methods.tailor import ordered

    name, order = (job["data"], job["seed"], job["order"]), job["order"]
    if name not in ORDERED:
        batches = plain_batches(data, job["seed"], next(whole.parameters()).device)
        if order == "ours":
            ORDERED[name] = ordered(whole, batches)
        else:
            blocks = list(range(len(whole.blocks))) if order == "magnitude" else block_order(whole, batches)
            ORDERED[name] = reordered(whole, importance(whole, batches, order).orders()), blocks
    return ORDERED[name]


def member(network: Any, blocks: list[int], depth: int, embed: int, heads: int, hidden: int) -> Any:
    """The plain network of one shape."""
    from tailorvit.families.tailored.elastic import ElasticTailored, extract
    from tailorvit.families.tailored.spaces import tailored_arch
    from tailorvit.methods.tailor import fill, tailored_space, whole_blocks

    space = tailored_space(whole_blocks(network, len(network.blocks)), network.shared.to_dict())
    supernet = ElasticTailored(space.with_settings(order=tuple(blocks)))
    fill(supernet, network)
    return extract(supernet, tailored_arch({"depth": depth, "embed": embed, "heads": heads, "hidden": hidden}))


# -- sets -------------------------------------------------------------------------------------------------------------


def kept(job: Job, data: Any, whole: Any, device: str) -> dict[str, Any]:
    """Accuracy with a share of one kind of part, before any training."""
    from tailorvit.train import accuracy

    network, blocks = in_order(whole, data, job)
    shape = network.shape
    full = {
        "depth": len(network.blocks),
        "embed": int(shape["embed"]),
        "heads": max(shape["heads"]),
        "hidden": max(shape["hidden"]),
    }
    found = {}
    for gene, most in full.items():
        for share in KEPT:
            cut = member(network, blocks, **{**full, gene: max(1, round(share * most))}).to(device)
            found[f"{gene} {share}"] = accuracy(cut, data.eval_batches("search", 256, device), device)
    return {"kept": found, "whole": accuracy(whole, data.eval_batches("search", 256, device), device)}


def cuts(job: Job, data: Any, whole: Any, device: str) -> dict[str, Any]:
    """One cut network, trained."""
    from tailorvit.memory import half_precision
    from tailorvit.rng import derive
    from tailorvit.train import Fixed, Sink, Teacher, TrainSettings, hits, train

    network, blocks = in_order(whole, data, job)
    model = member(network, blocks, *SHAPES[job["shape"]]).to(device)
    before = 100 * float(hits(model, data.eval_batches("search", 256, device), device).mean())
    settings = TrainSettings(
        epochs=job["epochs"],
        batch=128,
        lr=job["lr"],
        min_lr=job["lr"] / 100,
        warmup=2,
        precision=half_precision(device),
        augment=job["augment"],
    )
    stream = derive(job["seed"], "cut", "data") % 2**31
    batches = data.train_batches(128, stream, data.augment(job["augment"]), device)
    taught = job["share"] or job["features"]
    teacher = Teacher(network.to(device).eval(), job["share"], job["features"]) if taught else None
    begin = time.monotonic()
    train(model, batches, Fixed(), settings, 7, Sink(), None, device, teacher=teacher)
    return {
        "params": sum(p.numel() for p in model.parameters()),
        "untrained": before,
        "search": 100 * float(hits(model, data.eval_batches("search", 256, device), device).mean()),
        "seconds": round(time.monotonic() - begin, 1),
    }


def runs(job: Job) -> dict[str, Any]:
    """A whole run of the command, with other constants where the job names them."""
    import tailorvit
    from tailorvit.export import export
    from tailorvit.methods import tailor

    for name, value in job.get("constants", {}).items():
        setattr(tailor, name, value)
    folder = Path(tempfile.mkdtemp())
    begin = time.monotonic()
    whole = {f"tailor.{name}": job["whole"][name] for name in ("lr", "layer_decay") if name in job["whole"]}
    result = tailorvit.run(
        data=job["source"],
        image_size=job["image_size"],
        start=f"timm:{job['model']}",
        weights=job["weights"],
        front=job["front"],
        max_params=job["limit"],
        seed=job["seed"],
        settings={"train.batch": 128, "analysis.images": 0, "analysis.mistakes": 0, **whole, **job.get("settings", {})},
        out=folder / "run",
    )
    wall = time.monotonic() - begin
    export(folder / "run", "onnx")
    exported = time.monotonic() - begin
    wanted = ("arch", "params", "macs", "final_search_accuracy", "test_accuracy", "candidates", "peers", "whole")
    facts = {k: result[k] for k in (*wanted, "sizes", "seconds", "why")}
    if not job.get("test"):
        _without_test(facts)
    shutil.rmtree(folder)
    return {**facts, "wall": round(wall, 1), "exported": round(exported, 1)}  # seconds from the command on


def _without_test(facts: Any) -> None:
    """Choices are made without the test images, so their figures are not even written."""
    if isinstance(facts, dict):
        for name in [n for n in facts if n in ("test_accuracy", "gap")]:
            del facts[name]
    for value in facts.values() if isinstance(facts, dict) else facts if isinstance(facts, list) else ():
        _without_test(value)


def tau(job: Job) -> dict[str, Any]:
    """Members of one supernet, each trained to the end, beside what they had before."""
    import numpy as np

    from tailorvit.methods import tailor

    found: list[dict[str, float]] = []
    original = tailor._of_size

    def several(session: Any, supernet: Any, size: float, teacher: Any) -> Any:
        from tailorvit.methods.finish import final_network

        rng, meter = np.random.default_rng(job["seed"]), session.meter
        drawn: dict[Any, None] = {}
        while len(drawn) < job["members"]:
            arch = session.space.sample(rng)
            if tailor.WINDOW * size <= meter.counter.params(arch) <= size:
                drawn[arch] = None
        for i, arch in enumerate(drawn):
            inherited = supernet.score("search", [tailor.Candidate(arch, "tau")])[0].accuracy
            model = final_network(session, arch, supernet, f"final-tau{i}", None, teacher)
            row = {"inherited": inherited, "trained": session.search_accuracy(model)}
            found.append({**row, "params": meter.counter.params(arch)})
        return original(session, supernet, size, teacher)

    tailor._of_size = several
    runs({**job, "front": [job["size"]]})
    return {"members_found": found}


def with_rate(options: Job, paths: list[Path]) -> Job:
    """A run's options with the learning rate and the weight of the teacher's tokens that did best over all shapes."""
    found: dict[tuple[float, float], list[float]] = {}
    for path in paths:
        for row in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
            if "search" in row:
                found.setdefault((row["lr"], row["features"]), []).append(row["search"])
    most = max(map(len, found.values()), default=0)
    whole = {choice: sum(own) for choice, own in found.items() if len(own) == most}
    if not whole:
        return options
    lr, features = max(whole, key=lambda choice: whole[choice])
    # A rate of the options stands: a supernet may need another.
    settings = {"train.lr": lr, "final.train.lr": lr, **options.get("settings", {})}
    return {**options, "settings": settings, "constants": {"FEATURES": features, **options.get("constants", {})}}


def wholes(job: Job) -> dict[str, Any]:
    """The whole network, tuned."""
    import torch

    from tailorvit.train import accuracy

    device = "cuda" if torch.cuda.is_available() else "cpu"
    start = opened(job["model"], Path(job["weights"]))
    data = images(job, start)
    model, facts = whole_network(job, start, data, device)
    return {"search": accuracy(model, data.eval_batches("search", 256, device), device), **facts}


WORK = {"kept": kept, "cuts": cuts}
OPENED: dict[tuple[str, int], tuple[Any, Any]] = {}  # data and whole networks of this process


def work(job: Job) -> dict[str, Any]:
    """One row."""
    import torch

    torch.set_num_threads(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if job["set"] == "runs":
        return {**said(job), **runs(job)}
    if job["set"] in ("tau", "wholes"):
        return {**said(job), **(tau if job["set"] == "tau" else wholes)(job)}
    if (name := (job["data"], job["seed"])) not in OPENED:
        start = opened(job["model"], Path(job["weights"]))
        data = images(job, start)
        OPENED[name] = data, whole_network(job, start, data, device)[0]
    return {**said(job), **WORK[job["set"]](job, *OPENED[name], device)}


def tried(job: Job) -> dict[str, Any]:
    """One row, or why there is none."""
    try:
        return work(job)
    except Exception as error:
        return {**said(job), "failed": f"{type(error).__name__}: {error}"[:400]}


def key(row: Job) -> str:
    """Which job a row is of."""
    names = (
        "set",
        "data",
        "seed",
        "epochs",
        "shape",
        "order",
        *BASE,
        "settings",
        "constants",
        "limit",
        "front",
        "size",
        *(("whole",) if row["set"] == "wholes" else ()),
    )
    return json.dumps({k: row[k] for k in names if row.get(k) is not None}, sort_keys=True)


def main() -> None:
    """All jobs of a set, several at a time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", help="kept, cuts, runs, tau; several with commas")
    parser.add_argument("--data", action="append", required=True, help="NAME=SOURCE[@PIXELS][#EPOCHS]")
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--model", default="vit_small_patch14_dinov2")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--store", type=Path, default=None)
    parser.add_argument("--seeds", type=int, nargs="+", default=[11])
    parser.add_argument("--limit", default="11M")
    parser.add_argument("--front", default="6M,3M")
    parser.add_argument("--options", action="append", default=[], help="JSON with settings and constants of a run")
    parser.add_argument("--shapes", nargs="+", default=None, help="of cuts and rates: only these")
    parser.add_argument("--best-of", type=Path, nargs="+", default=[], help="rows of rates: runs take the best of them")
    parser.add_argument("--best-whole", type=Path, nargs="+", default=[], help="rows of wholes: take the best of them")
    parser.add_argument("--test", action="store_true")
    parser.add_argument("--processes", type=int, default=6)
    chosen = parser.parse_args()
    todo: list[Job] = []
    for text in chosen.data:
        name, _, rest = text.partition("=")
        rest, _, epochs = rest.partition("#")
        source, _, pixels = rest.partition("@")
        for seed in chosen.seeds:
            base: Job = {
                "data": name,
                "source": source,
                "image_size": int(pixels or 98),
                "model": chosen.model,
                "weights": str(chosen.weights),
                "store": str(chosen.store or chosen.out.with_suffix("")),
                "epochs": int(epochs or 40),
                "batch": 128,
                "seed": seed,
                "whole": best_whole(chosen.best_whole),
                **({"test": True} if chosen.test else {}),
            }
            for which in chosen.sets.split(","):
                if which in ("runs", "tau"):
                    for options in map(json.loads, chosen.options or ["{}"]):
                        own = {"limit": chosen.limit, "front": chosen.front, **with_rate(options, chosen.best_of)}
                        todo.append(
                            {**base, "set": which, **({"size": 6e6, "members": 12} if which == "tau" else {}), **own}
                        )
                else:
                    todo += [j for j in jobs(which, base) if chosen.shapes is None or j["shape"] in chosen.shapes]
    lines = chosen.out.read_text(encoding="utf-8").splitlines() if chosen.out.is_file() else []
    there = {key(row) for row in map(json.loads, lines) if "failed" not in row}
    todo = [job for job in todo if key(job) not in there]
    print(f"{len(todo)} to do", flush=True)

    def store(row: Job) -> None:
        print(json.dumps(row)[:300], flush=True)
        with open(chosen.out, "a", encoding="utf-8") as file:  # noqa: PTH123
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())

    if chosen.processes == 1:  # data, whole network and orders stay in memory
        for job in todo:
            store(tried(job))
        return
    context = multiprocessing.get_context("spawn")
    with context.Pool(min(chosen.processes, max(1, len(todo))), maxtasksperchild=1) as pool:
        for row in pool.imap_unordered(tried, todo):
            store(row)


if __name__ == "__main__":
    main()
