"""Trainings of cut networks side by side: a pretrained network fine-tuned whole, and every rival trained on from it.

python benchmarks/pretrained/trainings.py rivals --data flowers=FOLDER@98#25 --weights FILE --out rows.jsonl

Every row says what was trained and how it did on the search images, with --test on the test images too. A row that is
there is not made again; one that failed is, and one without test images where they are asked for. The whole network is
trained once and kept in the folder --store. ``tiny`` tries everything on a few images. Torch-Pruning must be importable
for its rows.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from tailorvit.checkpoints.pretrained import Pretrained
    from tailorvit.data import Data
    from tailorvit.families.tailored.plain import PlainTailored

sys.path.append(str(Path(__file__).resolve().parent))

Job = dict[str, Any]
LIMITS = (11e6, 6e6, 3e6)
WHOLE: Job = {"epochs": 25, "lr": 1e-4, "augment": "mild"}
RATES = {"whole": 1e-4, "scratch": 1e-3}  # where --lr does not say; all others 3e-4
TAUGHT = ("first", "every_other", "slimmed", "torch_pruned")
PRUNED = (("taylor", False), ("magnitude", False))  # importance, isomorphic
MAIN = ({"network": "first"}, {"network": "slimmed", "blocks": 12}, {"network": "torch_pruned", "importance": "taylor"})
UNSAID = ("source", "weights", "store", "test")  # where things lie here, and whether to test: no part of a row
# What a training is; rows that agree in these are the same.
CUT = ("network", "limit", "blocks", "importance", "isomorphic", "taught")
NAMES = ("data", "image_size", "images", "model", *CUT, "epochs", "lr", "augment", "batch", "seed", "whole")


# -- which trainings --------------------------------------------------------------------------------------------------


def jobs(base: Job, limits: Iterable[float] = LIMITS) -> list[Job]:
    """The whole network, and per limit every rival; ``base`` says data, epochs and how to train."""
    rows: list[Job] = [{**base, **base["whole"], "network": "whole"}]
    for limit in limits:
        cuts: list[Job] = [{"network": "first"}, {"network": "every_other"}, {"network": "slimmed", "blocks": 12}]
        if limit < max(LIMITS):  # there six whole blocks fit, which is every_other
            cuts.append({"network": "slimmed", "blocks": 6})
        cuts += [{"network": "torch_pruned", "importance": i, "isomorphic": together} for i, together in PRUNED]
        cuts.append({"network": "scratch"})
        for cut in cuts:
            for taught in (False, True) if cut["network"] in TAUGHT else (False,):
                lr = base.get("lr") or RATES.get(cut["network"], 3e-4)
                rows.append({**base, **cut, "limit": limit, "taught": taught, "lr": lr})
    return rows


def key(row: Mapping[str, Any]) -> str:
    """What makes a training the same as another."""
    return json.dumps({name: row[name] for name in NAMES if row.get(name) is not None}, sort_keys=True)


# -- one training -----------------------------------------------------------------------------------------------------


OPENED: dict[tuple[str, int], tuple[Pretrained, Data]] = {}  # of this process


def work(job: Job) -> dict[str, Any]:
    """One training; the whole network is trained first where it is not stored yet."""
    import numpy as np
    import rivals
    import torch

    from tailorvit.train import hits

    torch.set_num_threads(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    begin = time.monotonic()
    if (name := (job["data"], job["seed"])) not in OPENED:
        start = opened(job["model"], Path(job["weights"]))
        OPENED[name] = start, images(job, start)
    start, data = OPENED[name]
    whole, facts = whole_network(job, start, data, device)
    model: nn.Module = whole
    version = {}
    if job["network"] != "whole":
        model = rival(job, whole, data)
        facts = fitted(model, data, job, job["network"], device, whole if job.get("taught") else None)
        facts["before"] = round(time.monotonic() - begin - facts["seconds"], 1)
    if job["network"] == "torch_pruned":
        version = {"torch_pruning": metadata.version("torch-pruning")}
    found = hits(model.to(device), data.eval_batches("search", 256, device), device)
    tested = {}
    if job.get("test"):  # for figures that are shown, never for a choice
        data.unseal_test("final figures")
        tested = {"test": 100 * float(np.mean(hits(model, data.eval_batches("test", 256, device), device)))}
    return {
        **said(job),
        "params": rivals.count(model),
        "macs": macs(model, data),
        "search": 100 * float(np.mean(found)),
        **tested,
        "tried": len(found),
        **facts,
        **version,
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
    }


def opened(name: str, weights: Path) -> Pretrained:
    """The pretrained network: weights from a file, all else as timm knows it by this name."""
    import timm
    from safetensors.torch import load_file

    from tailorvit.checkpoints.pretrained import from_named

    theirs: Any = timm.create_model(name, num_classes=0)
    norm = tuple(theirs.pretrained_cfg["mean"]), tuple(theirs.pretrained_cfg["std"])
    return from_named(f"timm:{name}", load_file(weights), norm, heads=theirs.blocks[0].attn.num_heads)


def images(job: Job, start: Pretrained) -> Data:
    """The data, split by the package's rules, normalised as the pretrained network has always seen images."""
    from tailorvit.data import open_data

    data = open_data(
        job["source"], seed=job["seed"], image_size=job["image_size"], cache_bytes=8 << 30, limit=job.get("images")
    )
    data.mean, data.std = start.mean, start.std
    return data


def whole_network(job: Job, start: Pretrained, data: Data, device: str) -> tuple[PlainTailored, dict[str, Any]]:
    """The pretrained network fine-tuned whole, from the store or trained now; and how its training went."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    from tailorvit.families.tailored.plain import PlainTailored

    high, wide = data.image_size
    trained = [f"{name}{value}" for name, value in job["whole"].items()]
    few = [f"{job['images']}images"] if job.get("images") else []
    name = "-".join([job["model"], job["data"], f"{high}px", *few, f"seed{job['seed']}", *trained])
    path = Path(job["store"]) / f"{name}.safetensors"

    def untrained() -> PlainTailored:
        model = start.network((high, wide), len(data.classes), data.channels, job["seed"])
        assert isinstance(model, PlainTailored)
        return model

    if not path.is_file():
        model = untrained()
        facts = fitted(model, data, {**job, **job["whole"]}, "whole", device)
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_suffix(f".{os.getpid()}")
        save_file({k: v.cpu() for k, v in model.state_dict().items()}, beside, {"facts": json.dumps(facts)})
        beside.replace(path)  # in one step: another process may look for it
    model = untrained()  # also where it was trained just now: a recorded training may have left its buffers behind
    with safe_open(path, "pt") as file:
        model.load_state_dict({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
        return model.to(device).eval(), json.loads(file.metadata()["facts"])


def rival(job: Job, whole: PlainTailored, data: Data) -> nn.Module:
    """The cut network before it is trained on."""
    import rivals

    limit = job["limit"]
    if job["network"] == "first":
        return rivals.first_blocks(whole, limit)
    if job["network"] == "every_other":
        return rivals.every_other(whole, limit)
    if job["network"] == "slimmed":
        return rivals.slimmed(whole, limit, job["blocks"])
    if job["network"] == "scratch":
        return rivals.scratch(whole, limit, job["seed"])
    device = next(whole.parameters()).device
    batches = plain_batches(data, job["seed"], device)
    example = batches[0][0][:1]
    return rivals.torch_pruned(rivals.as_timm(whole), example, limit, job["importance"], batches, job["isomorphic"])


def plain_batches(data: Data, seed: int, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    """Ten batches of 64 training images without augmentation: what Torch-Pruning's example takes."""
    from tailorvit.rng import generator

    total = data.counts["train"]
    chosen = generator(seed, "pruning").permutation(total)[:640].tolist()
    found = []
    for at in range(0, len(chosen), 64):
        x, y = data.examples("train", chosen[at : at + 64])
        found.append((data.normalise(x).to(device), y.to(device)))
    return found


def fitted(
    model: nn.Module, data: Data, job: Job, stage: str, device: str, teacher: nn.Module | None = None
) -> dict[str, Any]:
    """Train a network in place; how long it took and where the loss ended."""
    from tailorvit.memory import half_precision
    from tailorvit.rng import derive
    from tailorvit.train import Fixed, Sink, TrainSettings, train

    settings = TrainSettings(
        epochs=job["epochs"],
        batch=job["batch"],
        lr=job["lr"],
        min_lr=job["lr"] / 100,
        warmup=min(2.0, job["epochs"] / 4),
        weight_decay=0.05,
        layer_decay=job.get("layer_decay", 1.0) if stage == "whole" else 1.0,
        precision=half_precision(device),
        augment=job["augment"],
    )
    # All rivals share one stream of batches and draws: they differ in the network alone.
    stream = "whole" if stage == "whole" else "cut"
    batches = data.train_batches(
        settings.batch, derive(job["seed"], stream, "data") % 2**31, data.augment(job["augment"]), device
    )
    taught: dict[str, Any] = {}
    if teacher is not None:
        from tailorvit.methods.tailor import FEATURES, SHARE
        from tailorvit.train.teacher import Teacher

        # As our own networks are taught. Torch-Pruning cuts the stream, so its tokens cannot be compared.
        features = 0.0 if job["network"] == "torch_pruned" else FEATURES
        taught = {"teacher": Teacher(teacher.eval(), SHARE, features)}
    begin = time.monotonic()
    seed = derive(job["seed"], stream, "train") % 2**31
    done = train(model.to(device), batches, Fixed(), settings, seed, Sink(), None, device, **taught)
    return {"seconds": round(time.monotonic() - begin, 1), "loss": done.loss}


def macs(model: nn.Module, data: Data) -> int:
    """Multiplications of one image, counted by torch, so that timm's networks are counted as ours are."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    x = torch.zeros(1, data.channels, *data.image_size, device=next(model.parameters()).device)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model.eval()(x)
    return int(counter.get_total_flops() // 2)


def best_whole(paths: Iterable[Path]) -> Job:
    """How the whole network is trained: as it did best on the search images, over all these files."""
    found: dict[str, list[float]] = {}
    for path in paths:
        for row in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
            if "search" in row:
                found.setdefault(json.dumps(row["whole"]), []).append(row["search"])
    most = max(map(len, found.values()), default=0)  # a recipe that failed somewhere is none
    sums = {recipe: sum(own) for recipe, own in found.items() if len(own) == most}
    return dict(json.loads(max(sums, key=lambda recipe: sums[recipe]))) if sums else dict(WHOLE)


def said(job: Job) -> Job:
    """The job as a row begins."""
    return {name: value for name, value in job.items() if name not in UNSAID}


def tried(job: Job) -> dict[str, Any]:
    """One training, or why there is none."""
    try:
        return work(job)
    except Exception as error:
        return {**said(job), "failed": f"{type(error).__name__}: {error}"[:300]}


# -- command line -----------------------------------------------------------------------------------------------------


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", choices=("rivals", "tiny"))
    parser.add_argument("--data", action="append", required=True, help="NAME=SOURCE[@PIXELS][#EPOCHS]")
    parser.add_argument("--weights", type=Path, required=True, help="safetensors file by timm's names")
    parser.add_argument("--model", default="vit_small_patch14_dinov2", help="timm's name of the pretrained network")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--store", type=Path, default=None, help="folder of the whole networks; beside --out")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--limits", type=float, nargs="+", default=list(LIMITS))
    parser.add_argument("--lr", type=float, default=None, help="of all rivals; 3e-4, from scratch 1e-3")
    parser.add_argument(
        "--best-whole", type=Path, nargs="+", default=[], help="study.py's rows of wholes: take the best"
    )
    parser.add_argument("--augment", default="mild")
    parser.add_argument("--only", nargs="+", default=None, help="networks: whole first every_other slimmed ...")
    parser.add_argument(
        "--taught", choices=("yes", "no"), help="only those that the whole network teaches, or does not"
    )
    parser.add_argument("--main", action="store_true", help="only the best form of each rival")
    parser.add_argument("--test", action="store_true", help="open the test images")
    parser.add_argument("--processes", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no training after this")
    return parser.parse_args()


def listed(chosen: argparse.Namespace) -> list[Job]:
    """The trainings asked for, the whole networks first."""
    todo: list[Job] = []
    tiny = chosen.set == "tiny"
    for text in chosen.data:
        name, _, rest = text.partition("=")
        rest, _, epochs = rest.partition("#")
        source, _, pixels = rest.partition("@")
        length = 1 if tiny else int(epochs or 25)
        for seed in chosen.seeds:
            base: Job = {
                "data": name,
                "source": source,
                "image_size": int(pixels or 98),
                "model": chosen.model,
                "weights": str(chosen.weights),
                "store": str(chosen.store or chosen.out.with_suffix("")),
                "epochs": length,
                "batch": 16 if tiny else 128,
                "augment": chosen.augment,
                "seed": seed,
                "whole": {**best_whole(chosen.best_whole), **({"epochs": 1} if tiny else {})},
                **({"lr": chosen.lr} if chosen.lr else {}),
                **({"images": 30} if tiny else {}),
                **({"test": True} if chosen.test else {}),
            }
            todo += jobs(base, chosen.limits[:1] if tiny else chosen.limits)
    todo = [job for job in todo if chosen.only is None or job["network"] in chosen.only]
    wanted = {"yes": (True, None), "no": (False, None)}.get(chosen.taught, (True, False, None))
    todo = [job for job in todo if job.get("taught") in wanted]
    if chosen.main:
        todo = [j for j in todo if j["network"] == "whole" or any(main.items() <= j.items() for main in MAIN)]
    return sorted(todo, key=lambda job: job["network"] != "whole")


def main() -> None:
    """Train them all: first the whole networks, which the others are cut from."""
    chosen = options()
    begin = time.monotonic()
    lines = chosen.out.read_text(encoding="utf-8").splitlines() if chosen.out.is_file() else []
    done = [row for row in map(json.loads, lines) if "failed" not in row and ("test" in row or not chosen.test)]
    there = {key(row) for row in done}
    todo = [job for job in listed(chosen) if key(job) not in there]
    print(f"{len(todo)} trainings to do", flush=True)
    context = multiprocessing.get_context("spawn")
    for stage in (True, False):
        own = [job for job in todo if (job["network"] == "whole") is stage]
        with context.Pool(max(1, min(chosen.processes, len(own)))) as pool:
            for row in pool.imap_unordered(tried, own):
                print(json.dumps(row), flush=True)
                with chosen.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
                if time.monotonic() - begin > chosen.seconds:
                    pool.terminate()
                    return


if __name__ == "__main__":
    main()
