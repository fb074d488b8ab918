"""The benchmarks: pages say what their results say, cases are valid recipes, the GPU benchmark runs."""

from __future__ import annotations

import ast
import importlib
import json
import re
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
sys.path.extend(str(place) for place in (Path(__file__).parents[1] / "benchmarks").iterdir() if place.is_dir())

import bignas
import cifar10
import claims
import cpu
import digits
import downstream
import dss
import epochs
import estimate
import gpu
import gpu_steps
import gpu_tables
import half
import house
import ladder
import paths
import pretrained
import ranking
import slopes
import takeaway
import tiles
import win
from common import fill, shown

import faults
from tailorvit import Counter, named_space
from tailorvit.config import configure, merged, overrides, read_recipe
from tailorvit.families import family

HOME = Path(claims.__file__).parent
PAGES = {
    ".": [claims],
    "cifar10": [cifar10],
    "digits": [digits, bignas, epochs, paths],
    "downstream": [downstream],
    "faults": [faults],
    "house": [house],
    "ladder": [ladder],
    "pretrained": [pretrained],
    "ranking": [ranking],
    "slopes": [slopes],
    "speed": [gpu, cpu, half, dss, tiles, estimate],
    "takeaway": [takeaway],
    "win": [win],
}


# -- pages ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", PAGES)
def test_the_tables_of_a_page_are_those_of_its_results(folder):
    made = {name: text for module in PAGES[folder] for name, text in module.tables().items()}
    assert shown(HOME / folder / "README.md") == made, "run `SCRIPT table`, or claims.py for the first page"


def test_every_study_has_a_page_and_every_page_a_test():
    assert {p.parent.name for p in HOME.glob("*/README.md")} == PAGES.keys() - {"."}
    assert {p.parent.parent.name for p in HOME.glob("*/results/*")} == PAGES.keys() - {"."}


def test_what_scripts_import_from_the_package_is_there():
    """Also inside functions, which no quick form may run."""
    asked = [
        (path.name, node.module, name.name)
        for path in HOME.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "tailorvit"
        for name in node.names
    ]
    gone = [
        row
        for row in asked
        if not hasattr(importlib.import_module(row[1]), row[2]) and find_spec(f"{row[1]}.{row[2]}") is None
    ]
    assert len(asked) > 100 and gone == []


def test_tables_are_put_between_their_marks(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- table one -->\n<!-- /table -->\nb\n<!-- table two -->\nold\n<!-- /table -->\nc\n")
    fill(page, {"one": "new"})
    assert shown(page) == {"one": "new", "two": "old"}
    assert page.read_text().startswith("a\n<!-- table one -->\nnew\n<!-- /table -->\nb\n")
    with pytest.raises(SystemExit, match="three"):
        fill(page, {"three": "new"})


# -- cases ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("study", digits.STUDIES)
def test_cases_of_whole_runs_are_valid_recipes(study):
    for recipe, sets in digits.STUDIES[study].cases.values():
        configure(merged(read_recipe(recipe), overrides(sets)))


def test_cases_without_training_use_the_proxy_they_name():
    for word, proxy in (("dss", "dss"), ("size", "params")):
        recipe, sets = digits.TRAINING_FREE[f"tf-tas, {word}"]
        assert f"'{proxy}'" in str(configure(merged(read_recipe(recipe), overrides(sets))).proxy)


@pytest.mark.parametrize("size", cifar10.BASELINES)
@pytest.mark.parametrize("case", cifar10.CASES)
def test_cases_on_cifar10_are_valid_recipes(case, size):
    config = configure(cifar10.recipe(case, size, 3, Path("data")))
    assert config.seed == 3 and config.method == cifar10.CASES[case].get("method", "s4")


def test_a_survey_on_cifar10_is_the_recipe():
    made, recipe = cifar10.recipe("s4 survey", "1.5M", 0, Path("data")), read_recipe("s4-vit-cifar10")
    assert all(made[k] == recipe[k] for k in ("method", "s4", "seek", "search", "final", "limits", "space"))


@pytest.mark.parametrize("size", cifar10.BASELINES)
def test_baselines_on_cifar10_use_the_limit(size):
    table = cifar10.recipe("baseline", size, 0, Path("data"))
    fixed = {**table["space"]["settings"], "image_size": (32, 32), "classes": 10}
    params = Counter("vit", fixed).params(family("vit").arch(table["arch"]))
    limit = {"1.5M": 1.5e6, "6M": 6e6}[size]
    assert 0.9 * limit <= params <= limit
    stored = cifar10.methods(cifar10.stored(), size)["baseline"]
    assert {r["params"] for r in stored} == {params}


def test_the_head_of_the_recipe_states_what_was_measured():
    text = (Path(sys.modules["tailorvit"].__file__).parent / "recipes" / "s4-vit-cifar10.toml").read_text("utf-8")
    (head,) = re.findall(r"^# expected: (.*)$", text, re.M)
    groups = cifar10.methods(cifar10.stored(), "1.5M")
    tests = {case: [r["test"] for r in sorted(rows, key=lambda r: r["seed"])] for case, rows in groups.items()}
    assert ", ".join(f"{v:.2f}" for v in tests["s4 survey"]) in head
    for case, mark in (("s4 survey", ""), ("baseline", "12 blocks of 100 channels) "), ("s4", "S4 as in the paper ")):
        assert f"{mark}{np.mean(tests[case]):.2f} +- {np.std(tests[case], ddof=1):.2f}" in head


# -- the GPU benchmark ------------------------------------------------------------------------------------------------


def test_the_quick_form_of_the_gpu_benchmark_runs(tmp_path):
    out = tmp_path / "rows.jsonl"
    command = [sys.executable, str(HOME / "speed" / "gpu.py"), "--device", "cpu", "--quick", "--no-compile"]
    command += ["--minutes", "30", "--limit", "600", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert not [r for r in rows if "error" in r]
    found = {r["section"] for r in rows if "skipped" not in r}
    assert found == {*gpu.SECTIONS, "facts", "ceilings", "end"}
    speeds = [r["img_s"] for r in rows if r["section"] in ("table", "loop") and "skipped" not in r]
    assert len(speeds) == 4 * 3 + 3 and min(speeds) > 0
    assert "best against released code" in done.stdout


def test_plain_networks_stand_in_one_line_eager_beside_recorded():
    rows = [
        {"section": "families", "what": f"pit, 32 px, batch {b}", "variant": v, "img_s": s, "name": "pit", "side": 32}
        | {"batch": b, "params_m": 1.44}
        for b, v, s in ((128, "eager", 1000.0), (128, "graphs", 2500.0), (512, "eager", 3000.0))
    ]
    *_, line = gpu_tables.plain(rows).splitlines()
    assert line == "| pit | 32 | 1.44 | 1,000 | 2,500 | 2.5x | 3,000 | - | - |"
    assert gpu_tables.plain([]) == ""


@pytest.mark.parametrize("name", gpu.FAMILIES)
@pytest.mark.parametrize("side", [32, 96])
def test_hand_designed_networks_use_the_limit(name, side):
    count = sum(p.numel() for p in gpu.hand_designed(name, side, quick=False).parameters())
    assert 0.9 * gpu.LIMIT < count <= gpu.LIMIT


def test_a_failure_and_an_endless_measurement_leave_rows_and_the_next_one_comes(tmp_path):
    out = tmp_path / "rows.jsonl"
    bench = gpu_steps.Bench(torch.device("cpu"), quick=True, limit=0.2, compile=False, out=out)

    def fails():
        raise ValueError("no such kernel\nsecond line")

    bench.measure("table", "a", "eager", fails)
    start = time.perf_counter()
    bench.measure("table", "b", "eager", lambda: time.sleep(30))
    assert time.perf_counter() - start < 5
    bench.measure("table", "c", "compiled", lambda: {"ms": 1.0})
    bench.measure("table", "d", "eager", lambda: {"ms": 1.0})
    bench.minutes = 0
    bench.measure("table", "e", "eager", lambda: {"ms": 1.0})
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert "ValueError: no such kernel (" in rows[0]["error"]
    assert "TooSlow" in rows[1]["error"]
    assert rows[2]["skipped"] == "--no-compile" and "over" in rows[4]["skipped"]
    assert rows[3]["ms"] == 1.0


def test_the_warm_up_meets_every_group_that_is_timed():
    space = named_space("autoformer-s")
    warm, timed = gpu_steps.architectures(space, quick=False)
    assert len(timed) >= 20 and warm[:2] == [space.largest(), space.smallest()]
    groups = [{(a.one("embed"), a.one("depth")) for a in archs} for archs in (warm[2:], timed)]
    assert groups[1] <= groups[0], "a recording would be made while the clock runs"


def test_a_pass_that_makes_a_graph_counts_as_warm_up():
    made, seen = [0], []

    def step(i, arch):
        made[0] += len(seen) == 4
        seen.append(arch)
        return torch.tensor(1.0)

    bench = gpu_steps.Bench(torch.device("cpu"), seconds=0.0)
    row = gpu_steps.timed(bench, gpu_steps.Runner(step, lambda: made[0]), [None], [None] * 4, batch=1)
    assert (row["passes"], row["passes_that_compiled"], row["graphs"]) == (1, 1, 1)


def test_kernels_are_told_apart_by_the_narrowest_part_of_their_names():
    kinds = {
        "void pytorch_flash::flash_bwd_kernel<cutlass::bfloat16_t>": "attention",
        "nvjet_hsh_256x128_64x4_2x1_v_bz_coopA_NNT": "matrix products",
        "void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>>": "optimiser",
        "triton_poi_fused__scaled_dot_product_flash_attention__to_copy_3": "norm and elementwise",
        "void at::native::elementwise_kernel<128, 4, direct_copy_kernel_cuda>": "copies",
        "_queries": "attention",
        "mystery": "other",
    }
    assert {name: gpu.kind_of(name) for name in kinds} == kinds
    assert gpu.busy([(5, 7), (0, 2), (1, 3), (6, 6.5)]) == (5, 7)
