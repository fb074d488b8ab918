import json
import re
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

import speed.bench  # noqa: E402
import speed.growth  # noqa: E402
import speed.profile  # noqa: E402
import speed.show  # noqa: E402
import speed.table  # noqa: E402
import speed.timing  # noqa: E402
import speed.windowed  # noqa: E402

from tailorvit.families import named_space  # noqa: E402

CPU = torch.device("cpu")


def test_kernels_are_told_apart_by_the_narrowest_part_of_their_names():
    kinds = {
        "void pytorch_flash::flash_bwd_kernel<cutlass::bfloat16_t>": "attention",
        "nvjet_hsh_256x128_64x4_2x1_v_bz_coopA_NNT": "matrix products",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n": "matrix products",
        "void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>>": "optimiser",
        "triton_poi_fused__scaled_dot_product_flash_attention__to_copy_3": "norm and elementwise",
        "triton_per_fused_native_layer_norm_backward_1": "norm and elementwise",
        "void at::native::elementwise_kernel<128, 4, direct_copy_kernel_cuda>": "copies",
        "void at::native::vectorized_layer_norm_kernel<float>": "norm and elementwise",
        "Memcpy HtoD (Pageable -> Device)": "copies",
        "_queries": "attention",
        "mystery": "other",
    }
    assert {name: speed.profile.kind(name) for name in kinds} == kinds


def test_busy_time_counts_overlapping_kernels_once():
    assert speed.profile.busy([(5, 7), (0, 2), (1, 3), (6, 6.5)]) == (5, 7)
    assert speed.profile.busy([]) == (0, 0)


def test_shares_add_up_to_one_and_the_longest_comes_first():
    row = speed.profile.grouped([("gemm", 30.0), ("gemm", 30.0), ("Memset", 20.0), ("mystery", 20.0)])
    assert row["shares"] == {"matrix products": 0.6, "copies": 0.2, "other": 0.2}
    assert row["top"][0]["kernel"] == "gemm" and row["top"][0]["share"] == 0.6


def test_the_slope_of_a_square_is_two():
    assert speed.growth.slope([1, 2, 4], [3, 12, 48]) == pytest.approx(2)
    assert speed.growth.slope([2], [3]) is None


def test_the_middle_member_belongs_to_its_space():
    space = named_space("autoformer-s")
    assert space.contains(speed.growth.middle(space))
    assert speed.growth.middle(space, depth=4).many("heads") == (6,) * 4


def test_every_variant_draws_the_architectures_that_the_loop_draws():
    space = named_space("autoformer-s")
    warm, timed = speed.timing.draws(space, quick=False)
    rule = speed.timing.SinglePath(space)
    drawn = [rule.archs_at(speed.bench.SEED, step)[0] for step in range(speed.bench.WARM + speed.bench.TIMED)]
    assert (warm[2:], timed) == (drawn[: speed.bench.WARM], drawn[speed.bench.WARM :])
    assert len(timed) >= 20 and warm[:2] == [space.largest(), space.smallest()]
    groups = [{(a.one("embed"), a.one("depth")) for a in archs} for archs in (warm[2:], timed)]
    assert groups[1] <= groups[0]  # or a recording would be made while the clock runs


def test_a_pass_that_makes_a_graph_counts_as_warm_up():
    made = [0]

    def step(i, arch):
        made[0] += len(seen) == 4
        seen.append(arch)
        return torch.tensor(1.0)

    seen = []
    bench = speed.bench.Bench(CPU, seconds=0.0)
    row = speed.timing.timed(bench, speed.timing.Runner(step, lambda: made[0]), [None], [None] * 4, batch=1)
    assert (row["passes"], row["passes_that_compiled"], row["graphs"]) == (1, 1, 1)


def test_a_failure_and_an_endless_measurement_leave_rows_and_the_next_one_comes(tmp_path):
    out = tmp_path / "rows.jsonl"
    bench = speed.bench.Bench(CPU, quick=True, limit=0.2, compile=False, out=out)

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


def test_steps_are_timed_over_whole_passes_and_a_loss_that_is_not_finite_is_refused():
    bench = speed.bench.Bench(CPU, seconds=0.05)
    seen = []

    def step(i, arch):
        seen.append(i)
        time.sleep(0.01)
        return torch.tensor(1.0)

    row = speed.timing.timed(bench, speed.timing.Runner(step, lambda: 0), [None], [None] * 3, batch=10)
    assert len(seen) == 1 + 3 * row["passes"] + 1
    assert row["passes"] >= 2 and 0 < row["img_s"] <= 1000
    with pytest.raises(FloatingPointError):
        bad = speed.timing.Runner(lambda i, arch: torch.tensor(float("nan")), lambda: 0)
        speed.timing.timed(bench, bad, [None], [None], batch=1)


def test_one_line_of_the_table_really_trains():
    bench = speed.bench.Bench(CPU, quick=True, seconds=0.0)
    bench.cast = lambda on=True: torch.autocast("cpu", enabled=False)  # bfloat16 on a CPU is no concern here
    space = speed.timing.vit_space(bench)
    model, _ = bench.supernet(space, "eager")
    before = model.head.weight.detach().clone()
    row = speed.table.one(bench, speed.table.WORKS[0], "eager")
    assert row["img_s"] > 0 and row["steps"] == 2 and row["gmacs"] > 0
    assert not torch.equal(model.head.weight, before)


@pytest.fixture
def rows():
    figures = {"img_s_low": 1, "img_s_high": 2, "passes": 1, "params_m": 1, "gmacs": 5.0, "tflops": 200.0}
    figures |= {"compile_s": 30.0, "graphs": 2, "ms": 1.0}
    return [
        {"section": "facts", "device": "a card", "date": "2026-01-02", "command": "python x", "torch": "2"},
        {"section": "ceilings", "what": "", "variant": "", "tflops": 800.0},
        {"section": "table", "what": "training, batch 512", "variant": "compiled", "img_s": 7000, "peak_gib": 21.0}
        | figures,
        {"section": "table", "what": "training, batch 128", "variant": "compiled", "img_s": 100.0} | figures,
        {"section": "table", "what": "evaluation, batch 512", "variant": "compiled", "error": "TooSlow: over 90 s"},
        {"section": "growth", "what": "step against batch", "variant": "eager", "points": [[1, 2.0]], "slope": None},
    ]


def test_targets_are_judged_by_the_quickest_variant_memory_by_the_same_one(rows):
    rows.append({**rows[2], "variant": "graphs", "img_s": 6900.0, "peak_gib": 10.0})
    lines = {line.split(" | ")[0].strip("| "): line for line in speed.show.short(rows).splitlines()}
    assert "| 7,000 | 6,900 | 6,500 | yes |" in lines["training, batch 512"]
    assert "| 100 | - | 4,500 | no |" in lines["training, batch 128"]
    assert "| 21.0 | 10.0 | 20 | no |" in lines["peak memory, training, batch 512, GiB"]
    assert "| - | - | 22,000 | - |" in lines["evaluation, batch 512"]


def test_all_tables_are_put_into_a_page_and_what_is_missing_is_named(rows, tmp_path):
    text = speed.show.everything(rows, "gpu.jsonl")
    assert "25 %" in text and "TooSlow: over 90 s" in text
    page = tmp_path / "page.md"
    page.write_text(f"before\n{speed.show.MARKS[0]}\nold\n{speed.show.MARKS[1]}\nafter\n")
    speed.show.put_into(page, text)
    assert page.read_text() == f"before\n{speed.show.MARKS[0]}\n{text}\n{speed.show.MARKS[1]}\nafter\n"
    page.write_text("no marks")
    with pytest.raises(SystemExit):
        speed.show.put_into(page, text)


def test_a_later_run_replaces_what_it_measured_and_curves_come_from_their_points(rows):
    point = {"section": "growth", "what": "step against tokens", "variant": "graphs"}
    later = [
        {**rows[0], "command": "python y"},
        {**rows[2], "img_s": 8000},
        {**rows[3], "error": "TooSlow: over 90 s"},
        *({**point, "x": x, "ms": ms} for x, ms in ((10, 3.0), (1000, 300.0))),
        {**point, "x": 2000, "skipped": "over"},
    ]
    text = speed.show.everything([*rows, *later], "one.jsonl", "two.jsonl")
    assert "8,000" in text and "7,000" not in text and "results/two.jsonl" in text
    assert "| training, batch 128 | compiled | 100 |" in text  # a failure takes no figure away
    assert "| step against tokens | graphs | 10: 3.0, 1000: 300.0 | 1.00 |" in text


def test_windowed_networks_of_one_variant_can_be_asked_for(monkeypatch):
    bench = speed.bench.Bench(CPU, quick=True, variants=("compiled",))
    asked = []
    monkeypatch.setattr(bench, "measure", lambda *args, **_: asked.append(args[2]) or {})
    speed.windowed.windowed(bench)
    assert len(set(asked)) == 4 and all(a.startswith("compiled, ") for a in asked)


def test_ten_passes_over_files_are_one_slow_one_and_nine_fast_ones():
    same = {"side": 224, "batch": 128, "augment": "mild", "host_ms": 10.0}
    speeds = {speed.show.LATER: 3000.0, "kept": 9000.0, speed.show.FIRST: 1000.0}
    measured = [{"images": k, "per_second": v, **same} for k, v in speeds.items()]
    lines = speed.show.data([{"section": "input", "what": "x", "variant": "", "rows": measured}]).splitlines()[2:]
    assert lines[0].startswith("| kept |") and len(lines) == 4
    assert "| files, 10 passes, from these | 224 | 128 | mild | 2,500 | 10.00 | - |" in lines


def test_the_tables_of_the_page_are_those_of_its_files():
    home = ROOT / "benchmarks"
    text = (home / "README.md").read_text().partition(speed.show.MARKS[0])[2].partition(speed.show.MARKS[1])[0].strip()
    names = re.findall(r"`results/(gpu-[^`]+)`", text)
    rows = [json.loads(line) for n in names for line in (home / "results" / n).read_text().splitlines()]
    assert len(names) >= 2 and speed.show.everything(rows, *names) == text


def test_spans_that_the_host_names_on_the_device_timeline_are_no_kernels():
    def event(name, kind=torch.autograd.DeviceType.CUDA, annotation=False):
        return SimpleNamespace(name=name, device_type=kind, is_user_annotation=annotation)

    assert speed.profile._is_kernel(event("nvjet_hsh"))
    assert not speed.profile._is_kernel(event("aten::mm", torch.autograd.DeviceType.CPU))
    assert not speed.profile._is_kernel(event("Optimizer.step#AdamW.step"))
    assert not speed.profile._is_kernel(event("mine", annotation=True))
