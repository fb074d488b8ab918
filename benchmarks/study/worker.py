"""One job of the CIFAR-10 study in its own process: run or resume it, look at what is asked, leave one row.

PYTHONPATH=benchmarks python -m study.worker JOB.json    what queue.py starts; killed and started again it goes on
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from study.sizes import FULL, TINY, Size
from study.surveys import answered
from tailorvit.arch import Arch
from tailorvit.runs import Run
from tailorvit.space import Space

Table = dict[str, Any]
AFTER = ("final", "baseline", "analysis", "rank", "edf")  # stages that are no search


def follow(parent: int) -> None:
    """End with the queue: a worker left alone would hold its run while the next queue wants to go on with it."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(3)

    threading.Thread(target=watch, daemon=True).start()


def fast(device: str) -> None:
    """Tensor cores for what is left in float32: scoring, whose errors are far above TF32's rounding."""
    import torch

    if device.startswith("cuda"):
        torch.set_float32_matmul_precision("high")


def run(recipe: Table, folder: Path) -> Table:
    """Run a recipe in a folder, or go on with what is there; what result.json holds."""
    import tomli_w

    from tailorvit import api

    if (folder / "info.json").is_file():
        return dict(api.resume(folder, progress="plain").facts)
    folder.parent.mkdir(parents=True, exist_ok=True)
    written = folder.with_suffix(".toml")
    written.write_text(tomli_w.dumps(recipe), encoding="utf-8")
    return dict(api.run(str(written), out=folder, progress="plain", command=f"cifar10.py run ({folder.name})").facts)


def short(value: float | None) -> float | None:
    """Two decimals: accuracies of 5,000 images have no more."""
    return None if value is None or not math.isfinite(value) else round(value, 2)


def extract(folder: Path, facts: Table) -> Table:
    """What the study keeps of a run."""
    with Run.open(folder, lock=False) as record:
        spaces = [{**row, "space": row["space"].to_dict()} for row in record.spaces()]
        trials, slopes, decisions = record.trials(), record.slopes(), record.decisions()
        seconds = record.seconds()
        said = [e["text"] for e in record.events("warning")]
        anchors = [e["data"] for e in record.events("anchors")]
        epochs = record.epochs()
        skips = len(record.events("skip"))
    rates = {e["stage"]: e.get("images_per_second") for e in epochs}  # the last epoch of each stage
    curves: dict[str, list[float | None]] = {}
    for e in epochs:
        curves.setdefault(e["stage"], []).append(short(e.get("loss")))
    stages: dict[str, list[Table]] = {}
    for trial in trials:
        stages.setdefault(trial["stage"], []).append(trial)
    found = sorted(stages.get("search", []), key=lambda t: -(t["accuracy"] or t.get("score") or -1e9))[:10]
    return {
        "method": facts["method"],
        "arch": facts["arch"],
        "params": facts["params"],
        "macs": facts["macs"],
        "test": facts["test_accuracy"],
        "search": facts["final_search_accuracy"],
        "inherited": facts["search_accuracy"],
        "search_seconds": sum(s for k, s in seconds.items() if k.partition("-")[0] not in AFTER),
        "stages": {k: round(v, 2) for k, v in seconds.items()},
        "rates": {k: v and round(v) for k, v in rates.items()},
        "curves": curves,  # loss of every epoch: where a training went wrong
        "skipped_steps": skips,
        "path": spaces,
        "backtracks": facts.get("backtracks"),
        "edf": {k: [short(t["accuracy"]) for t in rows] for k, rows in stages.items() if k.startswith("edf-")},
        "edf_params": {k: [t["params"] for t in rows] for k, rows in stages.items() if k.startswith("edf-")},
        "slopes": slopes,
        "anchors": anchors,
        "decisions": [{k: d.get(k) for k in ("t", "kind", "gamma", "reason", "sentence", "legal")} for d in decisions],
        "trials": {k: len(rows) for k, rows in stages.items()},
        "best": [{"params": t["params"], "accuracy": short(t["accuracy"]), "score": t.get("score")} for t in found],
        "warnings": said,
    }


def look_at_ranks(folder: Path, where: str, count: int, size: Size) -> list[Table]:
    """Members near the limit of the run's first or last space, with accuracies inherited from the supernet there.

    The members of the first space are the same in every run, as they are drawn from the space alone.
    """
    from tailorvit.api import prepare
    from tailorvit.config import configure, parse_recipe
    from tailorvit.methods.session import Session
    from tailorvit.progress import make_progress
    from tailorvit.search import Candidate

    with Run.open(folder) as record:
        config = configure(parse_recipe(record.recipe, "recipe.toml"))
        config, data, space, limits, device = prepare(config, record.read_json("splits"))
        session = Session(config, record, data, space, limits, device, make_progress("plain"))
        row = record.spaces()[0 if where == "first" else -1]
        place, step = row["space"], int(row.get("step", 0))
        drawn = size.near(place, count, where)
        scored = session.supernet(place, step).score("rank", [Candidate(a, "sample") for a in drawn])
        return [
            {"genes": t.arch.to_dict(), "inherited": t.accuracy, "params": t.params, "macs": t.macs} for t in scored
        ]


def two_ways(row: Table, count: int, size: Size) -> Table:
    """Members near the limit of the spaces that step and raw slopes choose, at the first step where these differ."""
    from study.slopes import chosen

    for step in sorted({s["t"] for s in row["slopes"]}):
        by = {units: chosen(row, step, units, size) for units in ("step", "raw")}
        if by["step"] is not None and by["raw"] is not None and by["step"] != by["raw"]:
            members = {f"next_{u}": [a.to_dict() for a in size.near(s, count, "next")] for u, s in by.items() if s}
            return {"differ_at": step, **members}
    return {"differ_at": None}


def work(job: Table, runs: Path) -> Table:
    """The row of a job."""
    folder, size = runs / job["name"], (TINY if job["tiny"] else FULL)[job["size"]]
    fast(job["recipe"]["device"])
    begun = time.monotonic()
    with answered(job["asked"]) as heard:
        facts = run(job["recipe"], folder)
    row = extract(folder, facts) | ({"asked_before": len(heard)} if heard else {})
    if job["rank"]:
        row["rank"] = look_at_ranks(folder, job["rank"], job["members"], size)
    elif job["members"]:
        row |= two_ways(row, job["members"], size)
    # A run that was resumed has stages of an earlier process.
    return {**row, "seconds": round(max(time.monotonic() - begun, sum(row["stages"].values())), 2)}


def scores(archs: list[Arch], size: Size, device: str = "cpu") -> list[Table]:
    """What is known of architectures without training: parameters, MACs, depth, the predictor's answer, DSS."""
    from tailorvit.proxies.base import ProxySettings
    from tailorvit.proxies.score import Scorer

    first: Space = size.first()
    rows = Scorer("vit", dict(first.fixed), ProxySettings(names=("dss", "predictor")), device=device)(archs)
    return [{"params": r.params, "macs": r.macs, "depth": int(r.arch.one("depth")), **r.scores} for r in rows]


def main() -> None:
    """Read the job, work, write the row; a failure is a row too."""
    path = Path(sys.argv[1])
    job = json.loads(path.read_text(encoding="utf-8"))
    follow(job["parent"])
    head = {k: job[k] for k in ("name", "case", "seed", "size", "epochs", "settings")}
    runs, out = Path(job["runs"]), Path(job["row"])
    try:
        row = {**head, "ok": True, **work(job, runs)}
    except BaseException as error:  # whatever it was, the queue must hear of it
        if isinstance(error, KeyboardInterrupt):
            raise
        text = f"{type(error).__name__}: {error}"
        row = {**head, "ok": False, "error": text[-800:], "trace": traceback.format_exc()[-3000:]}
    part = out.with_suffix(".part")
    part.write_text(json.dumps(row), encoding="utf-8")
    part.replace(out)
    if row["ok"] and not job["keep"]:
        shutil.rmtree(runs / job["name"], ignore_errors=True)
    sys.exit(0 if row["ok"] else 1)


if __name__ == "__main__":
    main()
