"""A ladder decoder found by S4 against linear probes on the same frozen trunk.

    python benchmarks/ladder/ladder.py FOLDER --trunk FILE_OR_NAME
    python benchmarks/ladder/ladder.py table     # the page's table, from the stored results

The probes come first: for every image size and every layer, logistic regression on the layer's class token and mean
patch. The search split alone chooses the image size and how many of the trunk's layers to keep. The decoders get the
same images, the same split and the same cached trunk features.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from common import fill, machine, markdown, number, read, spread, write

from tailorvit import open_data

HERE = Path(__file__).parent
DECAYS = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
SPLITS = ("train", "search", "test")


@torch.no_grad()
def pooled(data: Any, trunk: Any, device: str, batch: int = 128) -> dict[str, tuple[Tensor, Tensor]]:
    """Per split, class token and mean patch of every layer, (images, layers, 2 x width), and the labels."""
    network, found = trunk.network.to(device), {}
    mean, std = (torch.tensor(v, device=device)[:, None, None] for v in (trunk.mean, trunk.std))
    for split in SPLITS:
        rows, labels = [], []
        for at in range(0, data.counts[split], batch):
            x, y = data.examples(split, range(at, min(at + batch, data.counts[split])))
            features = network((x.to(device) / 255 - mean) / std)
            rows.append(torch.cat([features[:, :, 0], features[:, :, 1:].mean(2)], -1))
            labels.append(y)
        found[split] = (torch.cat(rows), torch.cat(labels).to(device))
    return found


def probe(found: dict[str, tuple[Tensor, Tensor]], classes: int, steps: int = 600) -> list[dict[str, Any]]:
    """Logistic regressions on standardised features, all layers and penalties at once; by layer the best on search.

    Full-batch Adam, cosine learning rate: the problems are convex and independent, so one batched product serves all.
    """
    x, y = found["train"]
    mean, std = x.mean(0), x.std(0).clamp_min(1e-6)
    ready = {split: ((f - mean) / std).transpose(0, 1) for split, (f, _) in found.items()}  # (layers, images, width)
    layers, _, width = ready["train"].shape
    decays = torch.tensor(DECAYS, device=x.device)[None, :, None, None]
    weight = torch.zeros(layers, len(DECAYS), width, classes, device=x.device, requires_grad=True)
    bias = torch.zeros(layers, len(DECAYS), 1, classes, device=x.device, requires_grad=True)
    solver = torch.optim.Adam([weight, bias], lr=0.01)
    rate = torch.optim.lr_scheduler.CosineAnnealingLR(solver, steps)
    target = y[None, None, :, None].expand(layers, len(DECAYS), -1, -1)
    for _ in range(steps):
        scores = (ready["train"][:, None] @ weight + bias).log_softmax(-1)
        loss = -scores.gather(-1, target).mean(2).sum() + (decays * weight.square()).sum()
        solver.zero_grad()
        loss.backward()
        solver.step()
        rate.step()
    rows = []
    with torch.no_grad():
        right = {
            split: 100 * ((ready[split][:, None] @ weight + bias).argmax(-1) == found[split][1]).float().mean(-1)
            for split in ("search", "test")
        }
    for layer in range(layers):
        at = int(right["search"][layer].argmax())
        figures = {split: float(right[split][layer, at]) for split in right}
        rows.append({"layer": layer + 1, **figures, "decay": DECAYS[at], "params": (width + 1) * classes})
    return rows


def probes(options: argparse.Namespace, seed: int, device: str) -> list[dict[str, Any]]:
    """One row per image size and layer."""
    from tailorvit.trunks import open_trunk

    rows = []
    for size in options.sizes:
        data = open_data(options.folder, seed=seed, image_size=size)
        trunk = open_trunk(options.trunk, data.image_size, channels=data.channels)
        data.unseal_test("linear probes")  # the search split chooses layers and decoders
        found = pooled(data, trunk, device)
        rows += [{"seed": seed, "size": size, **row} for row in probe(found, len(data.classes))]
        last = rows[-1]
        print(f"{size} px, last layer: search {last['search']:.2f} %, test {last['test']:.2f} %", flush=True)
    return rows


def decoder(options: argparse.Namespace, seed: int, size: int, layers: int, place: Path) -> subprocess.Popen:
    """Start the S4 run of one seed."""
    sets = [f"trunk.source={options.trunk}", f"trunk.layers={layers}"]
    sets += [f"limits.max_params={options.limit}", f"limits.min_params={0.8 * options.limit}", *options.sets]
    command = [sys.executable, "-m", "tailorvit", "run", "s4-ladder-pets", "--data", options.folder, "--plain"]
    command += ["--image-size", str(size), "--seed", str(seed), "--out", str(place / f"seed-{seed}")]
    command += [part for s in sets for part in ("--set", s)]
    log = (place / f"seed-{seed}.log").open("w")
    env = {**os.environ, "TAILORVIT_CACHE": str(place / "cache")}
    return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=env)


def mean_of(rows: Sequence[dict[str, Any]], size: int, layer: int, key: str) -> float:
    """A probe's mean over seeds."""
    return statistics.fmean(r[key] for r in rows if (r["size"], r["layer"]) == (size, layer))


def best_probe(rows: Sequence[dict[str, Any]]) -> tuple[int, int]:
    """Image size and layer of the best probe on the search split; small and early ones win ties."""
    places = {(r["size"], r["layer"]) for r in rows}
    return max(places, key=lambda at: (mean_of(rows, *at, "search"), -at[0], -at[1]))


def table(facts: dict[str, Any]) -> str:
    """Probes, baseline decoder and found decoder: mean and deviation over seeds."""
    rows, found = facts["probes"], facts["decoders"]
    size, layer = best_probe(rows)
    last = max(r["layer"] for r in rows)
    lines = []
    for at in sorted({last, layer}, reverse=True):
        what = " and ".join(name for name, one in (("last", last), ("best on the search split", layer)) if one == at)
        tests = [r["test"] for r in rows if (r["size"], r["layer"]) == (size, at)]
        lines.append((f"linear probe, layer {at} ({what}), {size} px", number(rows[0]["params"]), spread(tests)))
    baselines = [f["baseline"] for f in found if f["baseline"]]
    for what, networks in (("baseline decoder", baselines), ("decoder found by S4", found)):
        params = number(statistics.fmean(n["params"] for n in networks)) if networks else "-"
        lines.append((what, params, spread(n["test_accuracy"] for n in networks)))
    return markdown(("on the frozen trunk", "trained parameters", "test %"), lines)


def tables() -> dict[str, str]:
    """The page's table by name."""
    return {"ladder": table(read(HERE / "results" / "ladder-2026-11-15.json"))}


def main() -> None:
    """Probe, choose, search, write, print."""
    if sys.argv[1:] == ["table"]:
        fill(HERE / "README.md", tables())
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--trunk", required=True, help="a file, or a name such as timm:vit_small_patch14_dinov2")
    parser.add_argument("--sizes", type=int, nargs="+", default=[112, 168, 224])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--limit", type=float, default=1e6, help="parameters of the decoder, at most")
    parser.add_argument("--set", dest="sets", action="append", default=[], help="passed on to the S4 runs")
    parser.add_argument("--keep", type=Path, help="keep runs and cache here")
    parser.add_argument("--out", type=Path, help="where the JSON goes (default: results/ladder-DATE.json)")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        place = options.keep or Path(scratch)
        place.mkdir(parents=True, exist_ok=True)
        rows = [row for seed in options.seeds for row in probes(options, seed, device)]
        size, layer = best_probe(rows)
        layers = min(max(r["layer"] for r in rows), layer + 1)  # one block beyond the best layer, which refines it
        print(f"by the search split: {size} px, layer {layer}", flush=True)
        probed = time.monotonic()
        runs = [decoder(options, seed, size, layers, place) for seed in options.seeds]
        found = []
        for seed, run in zip(options.seeds, runs):
            if run.wait():
                sys.exit(f"seed {seed} failed:\n{(place / f'seed-{seed}.log').read_text()[-2000:]}")
            result = read(place / f"seed-{seed}" / "result.json")
            keys = ("arch", "params", "macs", "test_accuracy", "baseline", "spaces", "seconds", "trials", "trunk")
            found.append({"seed": seed, **{k: result.get(k) for k in keys}})
        seconds = {"probes": probed - started, "decoders": time.monotonic() - probed}
    facts = {
        **machine(),
        "folder": Path(options.folder).name,
        "trunk": Path(options.trunk).name,
        "limit": options.limit,
        "set": options.sets,
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "seconds": seconds,
        "size": size,
        "layers": layers,
        "probes": rows,
        "decoders": found,
    }
    print(table(facts))
    write(facts, options.out or HERE / "results" / f"ladder-{facts['date']}.json")


if __name__ == "__main__":
    main()
