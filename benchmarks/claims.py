"""The page of claims: what TailorViT does, in figures computed from the stored results of the studies.

python benchmarks/claims.py    # fill the table of benchmarks/README.md; tests compare it with the results
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

sys.path.extend(str(place) for place in Path(__file__).resolve().parent.iterdir() if place.is_dir())
import cifar10
import digits
import downstream
import gpu_tables
import ladder
import ranking
import slopes
import win
from common import fill, markdown, number, read, spread

HERE = Path(__file__).resolve().parent
Claim = tuple[str, str, str, str]  # what, the figure, the command, the data (a path below benchmarks/)


def span(values: Iterable[float], digits: int = 2, sign: str = "") -> str:
    """``low to high``."""
    known = list(values)
    return f"{min(known):{sign}.{digits}f} to {max(known):{sign}.{digits}f}"


def gaps(rows: list[dict[str, Any]]) -> str:
    """Found less baseline, in points, from the worst to the best row."""
    return span((r["test"] - r["baseline_test"] for r in rows), 2, "+")


def whole_runs() -> list[Claim]:
    """Whole runs on digits and Fashion-MNIST."""
    data = {name: f"digits/results/{study.stored}.json" for name, study in digits.STUDIES.items()}
    default, families, fashion, free = (read(HERE / data[name])["rows"] for name in digits.STUDIES)
    mean = {k: statistics.fmean(r[k] for r in default) for k in ("found_params", "baseline_params", "seconds")}
    tests = [spread(r[k] for r in default) for k in ("test", "found_test", "baseline_test")]
    s4 = {case: rows for case, rows in digits.by_case(families).items() if case.endswith("-s4")}
    s4_means = [{k: statistics.fmean(r[k] for r in rows) for k in ("test", "baseline_test")} for rows in s4.values()]
    cases = digits.by_case(free)
    search = {c: statistics.fmean(r["search_seconds"] for r in rows) for c, rows in cases.items()}
    accuracy = {c: statistics.fmean(r["test"] for r in rows) for c, rows in cases.items()}
    quick = [c for c in cases if c != "s4, supernet"]
    return [
        (
            "The default run on digits delivers a network as good as the baseline in minutes; what it finds is smaller",
            f"delivered {tests[0]} %; found {tests[1]} % with {mean['found_params']:,.0f} parameters; baseline "
            f"{tests[2]} % with {mean['baseline_params']:,.0f}; {mean['seconds']:.0f} s",
            "digits/digits.py default",
            data["default"],
        ),
        (
            f"S4 on digits equals the baseline within noise in all {len(s4)} families",
            f"{span(r['test'] for r in s4_means)} %; found less baseline {gaps(s4_means)} points",
            "digits/digits.py families",
            data["families"],
        ),
        (
            f"S4 on Fashion-MNIST with eight epochs a supernet loses to the baseline in {len(fashion)} families",
            f"found less baseline {gaps(fashion)} points",
            "digits/digits.py fashion-mnist",
            data["fashion-mnist"],
        ),
        (
            "Searching without training takes seconds on digits and finds networks as good",
            f"{span((search[c] for c in quick), 0)} s and {span(accuracy[c] for c in quick)} %; with supernets "
            f"{search['s4, supernet']:.0f} s and {accuracy['s4, supernet']:.2f} %",
            "digits/digits.py training-free",
            data["training-free"],
        ),
    ]


def on_cifar10() -> list[Claim]:
    """Methods on CIFAR-10, and the ladder on Pets."""
    rows, data = cifar10.stored(), "cifar10/results/rows.jsonl"
    small, large = (cifar10.methods(rows, size) for size in ("1.5M", "6M"))
    percent = {case: spread(r["test"] for r in some) for case, some in small.items()}
    both = (small["s4 survey"], small["baseline"])
    others = [cifar10.difference(large[c], large["baseline"], large.values()) for c in ("autoformer", "s3", "s4")]
    pets = "ladder/results/ladder-2026-11-15.json"
    probe, baseline, found = (line.split(" | ") for line in ladder.table(read(HERE / pets)).splitlines()[2:])
    return [
        (
            "S4 by a survey on CIFAR-10 (1.5M parameters) has the highest mean of all methods, just above DeiT's shape",
            f"{percent['s4 survey']} %; baseline {percent['baseline']}; difference {cifar10.difference(*both, both)}",
            'cifar10/cifar10.py run "s4 survey"',
            data,
        ),
        (
            "S4 as in the paper, AutoFormer and S3 do not beat DeiT's shape there",
            f"S4 {percent['s4']} %, AutoFormer {percent['autoformer']}, S3 {percent['s3']}",
            "cifar10/cifar10.py run s4",
            data,
        ),
        (
            "At 6M parameters no difference from DeiT's shape is seen",
            f"AutoFormer {others[0]}, S3 {others[1]}, S4 {others[2]} points",
            "cifar10/cifar10.py run s4 --size 6M",
            data,
        ),
        (
            "A ladder decoder on a frozen ViT-S/14 beats a linear probe on Oxford-IIIT Pet; S4's equals the baseline",
            f"probe {probe[2].rstrip(' |')} %, baseline {baseline[2].rstrip(' |')} with {baseline[1]} parameters, "
            f"S4 {found[2].rstrip(' |')} with {found[1]}",
            "ladder/ladder.py pets --trunk FILE",
            pets,
        ),
    ]


def judges() -> list[Claim]:
    """Slopes of supernets and surveys, chance of a training, and scores of untrained networks."""
    derived = read(HERE / "cifar10/results/derived.json")
    along = {k: [s["along_limit"] for s in derived[k]] for k in ("supernets", "surveys")}
    small = {judge: by[1] for judge, by in slopes.cosines(slopes.stored()).items()}
    better: dict[str, int] = {}
    first, others = (read(ranking.RESULTS / f"ranking-{name}.json") for name in ("2026-11-15", "others-2026-11-15"))
    for r in (*first["scores"], *(r for r in others["scores"] if r["score"] not in ("predictor", *ranking.FREE))):
        better[r["score"]] = better.get(r["score"], 0) + r["verdict"].startswith("better")
    lines = cifar10.repeated_table(cifar10.stored()).splitlines()[2:]
    chance = [float(line.split(" | ")[-1].rstrip(" |")) for line in lines if line.startswith("| study")]
    count = {name: f"{better[name]} of 14" for name in ("dss", "snip", "grasp", "te_released", "naswot", "predictor")}
    return [
        (
            "Slopes of supernets do not say what to trade at a size limit; a survey's do "
            "(cosine with the true slopes along the limit)",
            f"CIFAR-10: supernets {statistics.fmean(along['supernets']):.2f} in the mean, surveys "
            f"{span(along['surveys'])}; Fashion-MNIST: {span(small['supernet'])} and {span(small['survey'])}",
            "slopes/slopes.py alone supernet survey",
            "cifar10/results/derived.json",
        ),
        (
            "Training supernets longer, or by the sandwich rule, does not mend their slopes (the same cosine)",
            f"four times as long {span(small['supernet, four times as long'])}, sandwich {span(small['sandwich'])}",
            'slopes/slopes.py alone "supernet, four times as long" sandwich',
            "slopes/results/slopes-more-2026-11-15.json",
        ),
        (
            "One training of one network says little on CIFAR-10: standard deviation over seeds",
            f"{span(chance)} points",
            "cifar10/cifar10.py run baseline",
            "cifar10/results/rows.jsonl",
        ),
        (
            "At equal size scores of untrained networks know hardly more than #params "
            "(accuracies on which each is clearly better)",
            f"DSS {count['dss']}, snip {count['snip']}, grasp {count['grasp']}, te {count['te_released']}, "
            f"NASWOT {count['naswot']}; predictor fitted on other tables {count['predictor']}",
            "ranking/ranking.py TABLES",
            "ranking/results/ranking-2026-11-15.json",
        ),
    ]


def on_a_gpu() -> list[Claim]:
    """Speed on an H200."""
    rows = gpu_tables.stored()
    released = read(gpu_tables.RESULTS / "released-autoformer.json")
    table, loop, windowed = (gpu_tables.of(rows, section) for section in ("table", "loop", "windowed"))

    def speed(what: str) -> str:
        value = gpu_tables.pick(table, what, "graphs") or 0.0
        return f"{value:,.0f} ({value / released[what]:.1f}x)"

    memory = gpu_tables.pick(table, "training, batch 512", "graphs", "peak_gib")
    bare = [r["img_s"] / (gpu_tables.pick(table, r["what"], "graphs") or 1) for r in loop if r["variant"] == "graphs"]
    swin = {
        what: (gpu_tables.pick(windowed, what, "eager, one of Swin-T's MACs") or 0)
        / (gpu_tables.pick(windowed, what, "eager, timm Swin-T") or 1)
        for what in ("training, batch 128", "training, batch 256", "evaluation, batch 256")
    }
    rates = gpu_tables.input_rates(rows)
    shares = {name: [r["share"] for key, r in rates.items() if key[0] == name] for name in {k[0] for k in rates}}
    same = [r["largest"] for r in gpu_tables.of(rows, "precision") if r["what"].endswith("the same as sliced")]
    script, data = "speed/gpu.py --only", "speed/results/gpu-2026-11-{}.jsonl"
    return [
        (
            "Supernet training on an H200, AutoFormer-S at 224 px, images a second (against the released code)",
            f"batch 128: {speed('training, batch 128')}, batch 512: {speed('training, batch 512')}; memory "
            f"{number(memory, 1)} GiB instead of {released[gpu_tables.MEMORY]}",
            f"{script} table --variants graphs",
            data.format("15-c"),
        ),
        (
            "The same at 32 px, batch 1,024, and evaluation of sub-networks at 224 px",
            f"{speed('32 px, patch 4, training, batch 1024')}; {speed('evaluation, batch 512')}",
            f"{script} table --variants graphs",
            data.format("15-c"),
        ),
        (
            "The training loop's share of the speed of bare steps",
            span(bare),
            f"{script} table,loop",
            data.format("15-d"),
        ),
        (
            "A windowed sub-network of Swin-T's MACs against timm's Swin-T, eager",
            f"training {span(v for k, v in swin.items() if 'training' in k)}x, evaluation "
            f"{swin['evaluation, batch 256']:.2f}x its speed",
            f"{script} windowed",
            data.format("15-b"),
        ),
        (
            "The input pipeline against the speed of training",
            f"images kept on the GPU {span(shares['kept'], 1)}x; JPEG files {span(shares['files, first pass'], 1)}x in "
            f"the first pass, {span(shares['files, 10 passes'], 1)}x over ten",
            f"{script} table,input",
            data.format("16-h"),
        ),
        (
            "Recorded and compiled supernets compute what sliced ones do (largest relative difference, float32)",
            f"{max(same):.1e}",
            f"{script} precision",
            data.format("15-e"),
        ),
    ]


def on_a_cpu() -> list[Claim]:
    """Speed on two CPU cores, and DSS."""
    data = "speed/results/cpu-2026-11-15.json"
    facts = read(HERE / data)
    fused = {r["patches"]: r for r in facts["attention"] if r["execution"] == "fused"}
    dss, h200 = "speed/results/dss-2026-11-15-cpu.json", "speed/results/dss-2026-11-15-h200.json"
    scores = read(HERE / dss)

    def ratios(patches: int) -> str:
        row = fused[patches]
        return f"{row['time_against_dense']:.2f}x the time and {row['memory_against_dense']:.2f}x the memory"

    return [
        (
            "Fused relative position on a CPU, exact, against the dense formula",
            f"196 patches: {ratios(196)}; 1,024 patches: {ratios(1024)}",
            "speed/cpu.py",
            data,
        ),
        (
            "Exact parameters and MACs of AutoFormer-S architectures",
            f"{facts['counting']['counted_per_second']:,.0f} a second",
            "speed/cpu.py",
            data,
        ),
        ("`tailorvit --help`", f"{facts['start_up']['seconds']:.2f} s", "speed/cpu.py", data),
        (
            "DSS of untrained AutoFormer-T networks",
            f"{scores['rate']['a_second']:.1f} a second on two cores, "
            f"{read(HERE / h200)['eight_processes']['a_second']:.1f} on an H200 with eight processes; relative error "
            f"{scores['largest_relative_error']:.1e}",
            "speed/dss.py",
            dss,
        ),
    ]


def to_take_away() -> list[Claim]:
    """The report and the exports."""
    data = "takeaway/results/takeaway-2026-11-15.json"
    facts = read(HERE / data)
    page, exports = facts["pages"], facts["exports"]
    int8 = next(r["facts"]["int8"] for r in exports if r["format"] == "onnx")
    return [
        (
            f"The report of a run with {page['trials']:,} trials",
            f"{page['bytes'] / 2**20:.2f} MiB, written in {page['write_seconds']:.2f} s, opens in "
            f"{page['open_seconds']:.2f} s",
            "takeaway/takeaway.py RUN",
            data,
        ),
        (
            f"All {len(exports)} export formats compute the same on the whole test split",
            f"largest difference of a logit {max(r['difference'] for r in exports):.1e}; test accuracy "
            f"{' and '.join(sorted({format(r['accuracy'], '.2f') for r in exports}))} %",
            "takeaway/takeaway.py RUN",
            data,
        ),
        (
            "The int8 ONNX network of the default run",
            f"{int8['bytes']['int8'] / 1e3:.0f} kB instead of {int8['bytes']['float'] / 1e3:.0f}; test accuracy "
            f"{int8['test_accuracy']['int8']:.2f} % instead of {int8['test_accuracy']['float']:.2f}",
            "takeaway/takeaway.py RUN",
            data,
        ),
    ]


def on_photos() -> list[Claim]:
    """Whole runs on photos, and what augmentation needs."""
    data, ladder_data = "win/results/photos-2026-11-18.json", "win/results/ladder-2026-11-18.jsonl"
    _, ours, *others = read(HERE / data)["rows"]
    peers = [row for row in others if row["form"].startswith("timm's")]
    theirs = " and ".join(f"{peer['test']:.1f}" for peer in peers)
    best: dict[int, str] = {}
    for epochs in (15, 45, 135):
        rows = [r for r in win.rows("ladder-2026-11-18.jsonl") if (r["family"], r["epochs"]) == ("vit", epochs)]
        best[epochs] = max(rows, key=lambda r: r["search"])["augment"]
    ways, means = win.finished(), dict[str, list[str]]()
    for way in ("the default run", "the best model of timm", "version 0.2's default"):
        means[way] = [f"{statistics.fmean(ways[way][name].values()):.1f}" for name in win.SETS]
    default, timm, old = (", ".join(figures) for figures in means.values())
    return [
        (
            "The default run from scratch (1.5M parameters, 8 to 60 epochs) on CIFAR-10, Fashion-MNIST, Flowers-102 "
            "and Pets, beside the best of eight models of timm by the recipe it chose, and version 0.2's default",
            f"{default} %; {timm} %; {old} %",
            "win/lease.py",
            "win/results/runs-2026-11-18.jsonl",
        ),
        (
            "The default run on 1,000 photos (1M parameters, twenty minutes on two CPU cores, one seed) beats "
            "timm's mobilevit_xxs and starnet_s100 trained by the same recipe for as many epochs",
            f"{ours['test']:.1f} % after {ours['minutes']:.0f} minutes; {theirs} %",
            "tailorvit run --data FOLDER --image-size 64 --max-params 1M --budget 20m",
            data,
        ),
        (
            "How much augmentation is right depends on the length of the training (ViT on Flowers-102)",
            "; ".join(f"{epochs} epochs: {name}" for epochs, name in best.items()),
            "win/sweep.py ladder",
            ladder_data,
        ),
    ]


def cut_networks() -> list[Claim]:
    """Networks cut from a pretrained one."""
    refit, runs = "pretrained/results/refit-2026-11-20.jsonl", "pretrained/results/cpu-2026-11-20.jsonl"
    kept = [row for row in lines(refit) if row["limit"] == "3M"]
    own = [row for row in lines(runs) if row["data"] == "Flowers-102"]
    test = {(row["network"], row["refit"]): row["test"] for row in own}
    sizes = ", ".join(f"{test[f'at most {size}', True]:.1f}" for size in ("11M", "6M", "3M"))
    return [
        (
            "A ViT-S/14 cut to 3M parameters and refitted has half of the whole one's accuracy before any training",
            "; ".join(
                f"{row['data']} {row['refitted']:.1f} % (only cut {row['cut']:.1f}, the whole {row['whole']:.1f})"
                for row in kept
            ),
            "pretrained/refit.py RUN",
            refit,
        ),
        (
            "Cut to 11M, 6M and 3M, refitted and taught for five epochs on two CPU cores (Flowers-102, one seed); "
            "uniform slimming to 3M, taught alike",
            f"{sizes} % of the test images, the whole {test['the whole, fine-tuned', None]:.1f}; slimming "
            f"{test['uniform slimming, taught alike', None]:.1f}",
            "tailorvit run --data FOLDER --from timm:vit_small_patch14_dinov2 --max-params 6M --front 3M,11M",
            runs,
        ),
    ]


def at_work() -> list[Claim]:
    """A found network as a backbone."""
    data = "downstream/results/detect-2026-11-20.jsonl"
    rows = downstream.rows_of(sorted((HERE / "downstream" / "results").glob("*.jsonl")))
    metric = {"detect": "map", "segment": "miou", "answer": "accuracy"}

    def figure(task: str, network: str) -> str:
        same = [r for r in rows if r["task"] == task and r["network"] == network and r["seed"] < 10]
        return spread((row["test"][metric[task]] for row in same), 1)

    networks = ("found by S4", "timm:mobilenetv3_small_075")
    told = (f"{metric[task]} {' against '.join(figure(task, n) for n in networks)}" for task in metric)
    return [
        (
            "A found network of 0.55M parameters as the backbone of a detector (BCCD), a segmenter (Pets) and an "
            "answerer (easy-vqa), against mobilenetv3_small_075 of the same size, both from scratch",
            "; ".join(told),
            "downstream/downstream.py run",
            data,
        )
    ]


def lines(path: str) -> list[dict[str, Any]]:
    """Stored rows."""
    return [json.loads(line) for line in (HERE / path).read_text(encoding="utf-8").splitlines()]


def tables() -> dict[str, str]:
    """The page's table by name."""
    found = []
    for part in (on_photos, cut_networks, at_work, whole_runs, on_cifar10, judges, on_a_gpu, on_a_cpu, to_take_away):
        for what, figure, command, data in part():
            day = re.search(r"\d{4}-\d\d-\d\d", data)
            folder = data.partition("/")[0]
            place = f"[{folder}]({folder}/README.md), [data]({data})"
            found.append((what, figure, f"`{command}`", day[0] if day else "2026-11-16", place))
    return {"claims": markdown(("claim", "figure", "command", "date", "where"), found)}


if __name__ == "__main__":
    fill(HERE / "README.md", tables())
