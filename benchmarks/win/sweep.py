"""Trainings of single networks side by side: what initialisation, augmentation, stem and family are worth.

python benchmarks/win/sweep.py SET --data NAME=SOURCE ... --out rows.jsonl [--processes 8]

SET names a list of trainings below. Every row of the output says what was trained and how it did on the search images;
the test images stay sealed but for the set ``parts``, which chooses nothing. Meant for a GPU, where eight processes
share it; --quick tries the script on digits.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

OURS = ("vit", "pit", "shunted")
PEERS = ("mobilevit_xxs", "mobilevitv2_050", "edgenext_xx_small", "mobilenetv3_small_075")
MILD = {"augment": "mild", "lr": 1e-3}


def jobs(name: str, data: list[str], epochs: int) -> list[dict[str, Any]]:
    """The trainings of a set."""
    rows: list[dict[str, Any]] = []
    for source in data:
        base = {"data": source, "epochs": epochs, **MILD}
        if name in ("init", "all"):
            for rule, (network, shape) in itertools.product(
                ("scaled", "paper", "step", "unbounded"),
                (("vit", "hand-designed"), ("vit", "shallow"), ("pit", "hand-designed"), ("shunted", "hand-designed")),
            ):
                rows.append({**base, "family": network, "shape": shape, "init": rule})
        if name in ("families", "all"):
            for network in (*OURS, "swin", "windowed"):
                rows += [{**base, "family": network, "stem": stem} for stem in ("usual", "fine", "coarse")]
                rows += [{**base, "family": network, "shape": shape} for shape in ("shallow", "deep")]
        if name in ("augment", "all"):
            for augment, length, network in itertools.product(
                ("mild", "light", "medium", "strong"), (1, 3), ("shunted", "vit")
            ):
                rows.append({**base, "family": network, "augment": augment, "epochs": epochs * length})
        if name == "ladder":
            lengths = (("vit", "usual", (1, 3, 9)), ("pit", "usual", (1, 3)), ("shunted", "coarse", (1, 3)))
            for network, stem, times in lengths:
                for length, augment in itertools.product(times, ("mild", "light", "medium", "strong")):
                    choice = {"family": network, "stem": stem, "augment": augment, "epochs": epochs * length}
                    rows.append({**base, **choice, "lr": 2e-3})
        if name in ("rates", "all"):
            rows += [
                {**base, "family": network, "lr": lr} for network in ("shunted", "vit") for lr in (5e-4, 2e-3, 4e-3)
            ]
        if name == "parts":
            best = {**base, "family": "hybrid", "lr": 2e-3, "test": True}
            changes: list[dict[str, Any]] = [{}, {"precision": "fp32"}, {"init": "paper"}, {"lr": 5e-4}]
            changes += [{"augment": step} for step in ("light", "medium", "strong", "standard")]
            changes += [{"epochs": max(1, epochs // 3)}, {"shape": "shallow"}, {"shape": "deep"}]
            changes += [{"family": network} for network in ("shunted", "pit", "swin", "windowed", "vit")]
            rows += [{**best, **change} for change in changes]
        if name in ("peers", "all"):
            rows += [{**base, "peer": peer, "lr": lr} for peer in PEERS for lr in (1e-3, 2e-3)]
    unique = {json.dumps(r, sort_keys=True): r for r in rows}
    return list(unique.values())


def work(job: dict[str, Any]) -> dict[str, Any]:
    """One training."""
    import numpy as np
    import torch

    from tailorvit.costs.limits import Limits
    from tailorvit.data import open_data
    from tailorvit.families import family
    from tailorvit.memory import half_precision
    from tailorvit.methods.contest import largest_of, stem_settings
    from tailorvit.methods.prepare import batch_for
    from tailorvit.rng import seed_everything
    from tailorvit.train import Fixed, Sink, TrainSettings, hits, train

    torch.set_num_threads(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    begin = time.monotonic()
    data = open_data(job["source"], image_size=job.get("image_size"), cache_bytes=8 << 30, seed=job.get("seed", 1))
    limits = Limits.of(max_params=job.get("limit", 1.5e6))
    seed_everything(job.get("seed", 1), "init", "plain")
    drop = 0.05
    if job.get("peer"):
        import timm

        size = {"img_size": data.image_size[0]} if "efficientvit_m" in job["peer"] else {}
        model = timm.create_model(job["peer"], num_classes=len(data.classes), in_chans=data.channels, **size)
        macs = 0
    else:
        name = job["family"]
        stem, shape = job.get("stem", "usual"), job.get("shape", "hand-designed")
        if (stem != "usual" and stem not in family(name).stems) or (
            shape != "hand-designed" and shape not in family(name).shapes
        ):
            return {**job, "skipped": "no such stem or shape"}
        settings = stem_settings(name, stem, data, limits)
        if stem != "usual" and settings == stem_settings(name, "usual", data, limits):
            return {**job, "skipped": "the usual stem"}
        if job.get("arch"):
            arch = family(name).arch(job["arch"])
        else:
            rows = {"hand-designed": family(name).baseline, **family(name).shapes}
            arch = largest_of(rows[shape], name, settings, limits)
        assert arch is not None
        with started_by(job.get("init")):
            model = family(name).build(family(name).settings(dict(settings)), arch, drop)
        from tailorvit.costs.meter import Meter

        macs = Meter(name, dict(settings), limits).counter.macs(arch)
    train_settings = TrainSettings(
        epochs=job["epochs"],
        batch=job.get("batch") or batch_for(data.counts["train"], device == "cuda"),
        lr=job["lr"],
        warmup=3 if job["epochs"] >= 15 else 1,
        drop_path=drop,
        precision=job.get("precision") or half_precision(device),
        augment=job["augment"],
    )
    batches = data.train_batches(train_settings.batch, 5, data.augment(job["augment"]), device)
    started = time.monotonic()
    done = train(model, batches, Fixed(), train_settings, 7, Sink(), None, device)
    took = time.monotonic() - started
    found = hits(model, data.eval_batches("search", 256, device), device)
    params = sum(p.numel() for p in model.parameters())
    tested = {}
    if job.get("test"):  # for figures that are shown, never for a choice
        data.unseal_test("final figures")
        tested = {"test": 100 * float(np.mean(hits(model, data.eval_batches("test", 256, device), device)))}
    return {
        **job,
        "params": params,
        "macs": macs,
        "search": 100 * float(np.mean(found)),
        **tested,
        "images": len(found),
        "seconds": round(took, 1),
        "before": round(started - begin, 1),
        "loss": done.loss,
    }


@contextmanager
def started_by(rule: str | None) -> Iterator[None]:
    """Put one of the rules to compare in place of the package's, for a while."""
    rules = {
        "scaled": lambda inputs, init="scaled": max(0.02, 0.5 * inputs**-0.5),
        "paper": lambda inputs, init="scaled": 0.02,
        "step": lambda inputs, init="scaled": 0.02 if inputs >= 128 else max(0.02, 0.5 * inputs**-0.5),
        "unbounded": lambda inputs, init="scaled": 0.577 * inputs**-0.5,
    }
    named = [(n, m) for n, m in list(sys.modules.items()) if rule and n.startswith("tailorvit.families")]
    changed = [(m, m.start_scale) for _, m in named if hasattr(m, "start_scale")]
    for module, _ in changed:
        module.start_scale = rules[str(rule)]
    yield
    for module, own in changed:
        module.start_scale = own


def tried(job: dict[str, Any]) -> dict[str, Any]:
    """One training, or why there is none."""
    try:
        return work(job)
    except Exception as error:
        return {**job, "failed": f"{type(error).__name__}: {error}"[:300]}


def main() -> None:
    """Train them all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", choices=("init", "ladder", "families", "augment", "rates", "parts", "peers", "all"))
    parser.add_argument("--data", action="append", default=[], help="NAME=SOURCE[@PIXELS][#EPOCHS]")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--limit", type=float, default=1.5e6, help="parameters")
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no training after this")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    begin = time.monotonic()
    todo: list[dict[str, Any]] = []
    for text in ["digits=digits#1"] if options.quick else options.data:
        name, _, rest = text.partition("=")
        rest, _, epochs = rest.partition("#")
        source, _, pixels = rest.partition("@")
        extra = {
            "source": source,
            **({"image_size": int(pixels)} if pixels else {}),
            "limit": 6e4 if options.quick else options.limit,
        }
        listed = jobs(options.set, [name], int(epochs or 20))
        todo += [{**job, **extra, "seed": seed} for seed in options.seeds for job in listed]
    todo = todo[:3] if options.quick else todo
    context = multiprocessing.get_context("spawn")
    with context.Pool(1 if options.quick else options.processes, maxtasksperchild=1) as pool:
        results = []
        for row in pool.imap_unordered(tried, todo):
            results.append(row)
            print(json.dumps(row), flush=True)
            if options.out:
                with options.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
            if time.monotonic() - begin > options.seconds:
                pool.terminate()
                break


if __name__ == "__main__":
    main()
