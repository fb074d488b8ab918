"""A whole run gives its figures: metrics from stored predictions, images a second, and which epoch was kept."""

from __future__ import annotations

import json
import re
from html import unescape
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score, f1_score
from torch import nn

import tailorvit
from tailorvit.analysis import predictions
from tailorvit.config import configure
from tailorvit.errors import TailorError
from tailorvit.methods import finish, throughput
from tailorvit.methods.contest import contest_training
from tailorvit.methods.judges import short_training
from tailorvit.report import collect
from tailorvit.report.compare import compare, render_comparison

SETTINGS = {
    **{
        "final.train.epochs": 6,
        "final.train.batch": 30,
        "final.train.lr": 4e-3,
        "data.limit": 60,
        "train.keep": "best",
    },
    **{"train.patience": 2, "evaluate.throughput": True, "analysis.images": 0, "analysis.mistakes": 0},
    **{"arch": {"depth": 1, "embed": 16, "heads": 1, "mlp": 2}},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A tiny run, and how often the test images were read."""
    folder, passes = tmp_path_factory.mktemp("figures") / "run", []
    inner = predictions.predict
    with pytest.MonkeyPatch.context() as patch:
        for module in (predictions, __import__("tailorvit.analysis", fromlist=["analysis"])):
            patch.setattr(module, "predict", lambda *args: (passes.append(args[0]), inner(*args))[1])
        patch.setattr(finish, "baseline_arch", lambda space, meter: space.smallest())
        options = {"method": "fixed", "settings": SETTINGS, "tiny": True, "out": folder, "progress": "quiet"}
        tailorvit.run("s4-digits", **options)
    return folder, passes


def test_every_network_has_its_figures(run):
    folder, passes = run
    facts = json.loads((folder / "result.json").read_text())
    rows = [facts, *facts["candidates"], facts["baseline"]]
    for row in rows:
        assert set(row["metrics"]) == {"top5_accuracy", "macro_f1", "balanced_accuracy", "calibration_error"}
        assert row["test_accuracy"] <= row["metrics"]["top5_accuracy"] <= 100
        assert row["throughput"]["images_per_second"] > 0
        assert row["throughput"] == {**facts["throughput"], **row["throughput"]} or row is not facts
    assert {(r["throughput"]["batch"], r["throughput"]["device"], r["throughput"]["threads"]) for r in rows} == {
        (facts["throughput"]["batch"], "cpu", 1)
    }
    assert len(passes) == 2, "one pass for each of the two networks, the analysis included"


def test_they_are_those_of_the_predictions_in_the_analysis(run):
    folder, _ = run
    facts = json.loads((folder / "result.json").read_text())
    cells = json.loads((folder / "analysis.json").read_text())["test"]["confusion"]
    truth, said = (np.repeat([c[i] for c in cells], [c[2] for c in cells]) for i in (0, 1))
    assert facts["metrics"]["macro_f1"] == pytest.approx(
        100 * f1_score(truth, said, average="macro", labels=np.unique(truth), zero_division=0)
    )
    assert facts["metrics"]["balanced_accuracy"] == pytest.approx(100 * balanced_accuracy_score(truth, said))
    assert facts["test_accuracy"] == pytest.approx(100 * (truth == said).mean())


def test_the_epoch_that_was_kept_is_the_best_on_the_search_images(run):
    folder, _ = run
    facts = json.loads((folder / "result.json").read_text())
    curve = {e.epoch: e.search_accuracy for e in collect(folder).epochs if e.stage == "final"}
    best = max(curve.values())
    kept = facts["kept"]
    assert kept == facts["candidates"][0]["kept"] and kept["of"] == max(curve) <= kept["planned"] == 6
    assert kept["epoch"] == max(e for e, value in curve.items() if value == best)
    assert facts["final_search_accuracy"] == kept["search_accuracy"] == best, "the network has that epoch's weights"
    assert facts["baseline"]["kept"]["planned"] == 6


def test_the_report_and_compare_show_them(run):
    folder, _ = run
    facts, page = json.loads((folder / "result.json").read_text()), unescape((folder / "report.html").read_text())
    for name, key in (("Top-5 accuracy", "top5_accuracy"), ("Balanced accuracy", "balanced_accuracy")):
        assert re.search(rf"{name} on the test images</\w+>.*?{facts['metrics'][key]:.2f} %", page), name
    assert "batches of" in page and "cpu with 1 thread)" in page
    assert f"{facts['kept']['epoch']} of {facts['kept']['of']}" in page
    assert "is a little too high. The test images took no part in that." in page
    found = compare([folder])
    assert found.runs[0].macro_f1 == facts["metrics"]["macro_f1"]
    assert found.to_dict()["runs"][0]["images_per_second"] == facts["throughput"]["images_per_second"]
    text = found.text()
    assert "calibration error" in text and f"{facts['metrics']['calibration_error']:.2f}" in text
    assert "images a second" in render_comparison(found) and "macro_f1" in found.csv().splitlines()[0]


# -- throughput -------------------------------------------------------------------------------------------------------


def fake_session(on=True):
    stored, events = {}, []
    return SimpleNamespace(
        config=configure({"evaluate": {"throughput": on}}),
        run=SimpleNamespace(result=stored.get, finish=stored.__setitem__),
        timed=lambda stage: __import__("contextlib").nullcontext(),
        search_batches=lambda: [(np_image(), None)],
        log_once=lambda kind, text: events.append(text),
        device="cpu",
        events=events,
    )


def np_image():
    import torch

    return torch.rand(2, 1, 4, 4)


class Slow(nn.Flatten):
    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds

    def forward(self, x):
        import time

        time.sleep(self.seconds * len(x))
        return super().forward(x)


def test_images_a_second_are_measured_once_at_a_batch_that_suits_the_slowest(monkeypatch):
    monkeypatch.setattr(throughput, "PASS", 0.02)
    monkeypatch.setattr(throughput, "SECONDS", 0.02)
    session = fake_session()
    found = throughput.throughputs(session, {"slow": Slow(0.004), "quick": Slow(0.0001), "failed": None})
    assert set(found) == {"slow", "quick"}
    slow, quick = found["slow"]["throughput"], found["quick"]["throughput"]
    assert slow["batch"] == quick["batch"] and 1 <= slow["batch"] <= 4
    assert 50 < slow["images_per_second"] <= 250 < quick["images_per_second"]
    assert throughput.throughputs(session, {"slow": nn.Flatten(), "quick": nn.Flatten()}) == found, "as first seen"
    assert throughput.throughputs(fake_session(on=False), {"slow": Slow(9)}) == {}


def test_a_measurement_that_fails_costs_nothing_else():
    session = fake_session()

    class Broken(nn.Module):
        def forward(self, x):
            raise RuntimeError("out of memory")

    assert throughput.throughputs(session, {"broken": Broken()}) == {}
    assert session.events == ["Images a second could not be measured (out of memory)."]


# -- where the best epoch is not for -----------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["s4", "s3", "autoformer", "bignas"])
def test_a_supernet_is_refused_and_its_last_training_is_not(method, tmp_path):
    options = {"tiny": True, "out": tmp_path / "run", "progress": "quiet", "method": method}
    with pytest.raises(TailorError, match=rf"method '{method}' trains supernets by \[train\]: write final.train.keep"):
        tailorvit.run("s4-digits", settings={"train.keep": "best"}, **options)
    assert not (tmp_path / "run").exists()


def test_trainings_that_compare_networks_keep_the_last_epoch():
    settings = configure({"method": "fixed", "train": {"keep": "best", "patience": 2}}).final.train
    entry = SimpleNamespace(augment="mild", lr=1e-3)
    for other in (contest_training(settings, entry, 4), short_training(settings, 2)):
        assert (other.keep, other.patience) == ("last", 0)
    assert (settings.keep, settings.patience) == ("best", 2)
