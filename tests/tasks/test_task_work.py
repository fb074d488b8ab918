"""A task's run from start to end, with a made-up task: result, resume to the bit, predictions, export, report."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from tailorvit import api, cli, downstream, health, load, load_task, lookup
from tailorvit.callbacks import Callback
from tailorvit.errors import TailorError
from tailorvit.methods.stages import StageSink
from tailorvit.report import compare, write_report
from tailorvit.runs import atomic
from tailorvit.runs.database import Database
from tailorvit.tasks.work import TaskConfig, prepare_task, read_recipe, recipe_text, task_recipe
from tailorvit.texts import parse_toml
from tailorvit.train import TrainSettings
from tailorvit.train.optim import make_optimizer
from tailorvit.train.stopping import Stopped

SETS = {"train.checkpoint_seconds": 0, "train.epochs": 2}


def start(net: Path, pictures: Path, out: Path, **options):
    options = {"seed": 3, "progress": "quiet", "settings": SETS, **options}
    return downstream.work("mean-colour", net, data=pictures, out=out, **options)


def outcome(folder: Path) -> dict:
    facts = json.loads((folder / "result.json").read_text())
    facts.pop("seconds")
    facts.pop("latency")
    return {"facts": facts, "weights": (folder / "network" / "task.safetensors").read_bytes()}


@pytest.fixture(scope="module")
def whole(net, pictures, tmp_path_factory):
    """A finished run, with the number of writes it took."""
    from task_toys import TASK

    from tailorvit.tasks import TASKS

    folder, seen = tmp_path_factory.mktemp("whole") / "run", []
    TASKS.register(TASK)
    with pytest.MonkeyPatch.context() as patch:
        watch(patch, seen)
        result = start(net, pictures, folder)
    del TASKS.added[TASK.name]
    return folder, result, len(seen)


class Killed(BaseException):
    """As sudden as a kill: no handler of ours catches it."""


def watch(patch: pytest.MonkeyPatch, seen: list, moment: int | None = None) -> None:
    """Note every write to a run folder; die before the given one."""
    write, write_bytes = Database.write, atomic.write_bytes

    def tick(what: str) -> None:
        seen.append(what)
        if len(seen) == moment:
            raise Killed

    def rows(self, statement, rows):
        tick(statement)
        write(self, statement, rows)

    def file(path, data, before=None):
        tick(path.name)
        write_bytes(path, data, before)

    patch.setattr(Database, "write", rows)
    patch.setattr(atomic, "write_bytes", file)


def test_the_result_says_what_was_trained(whole, net, pictures, toy):
    folder, result, _ = whole
    assert result["task"] == "mean-colour" and result["metric"] == "close"
    assert set(result["test"]) == set(result["search"]) == {"close", "error"}
    assert result["params"] > result["backbone"]["params"] > 0 and result["macs"] > 0
    assert result["data"]["counts"] == {"train": 8, "search": 2, "test": 2} and result["data"]["skipped"] == 1
    assert result["network"]["weights"] == "inherited" and result["network"]["family"] == "windowed"
    assert [row["name"] for row in result["beside"]] == ["all grey"]
    lines = result.summary()
    assert lines[0].startswith(f"mean-colour with {net} as the backbone: test close ")
    assert any("1 left out" in line for line in lines)
    assert json.loads((folder / "skipped.json").read_text()) == [{"path": "broken.png", "reason": "it is no picture"}]
    trained = load_task(folder)
    data = toy.read(str(pictures), trained.settings, 3, json.loads((folder / "splits.json").read_text()))
    data.mean, data.std = trained.facts["mean"], trained.facts["std"]
    assert data.mean == (0.4, 0.4, 0.4), "as the backbone has always seen images"
    data.unseal_test("a test")
    assert toy.evaluate(trained.network, data, "test", "cpu") == pytest.approx(result["test"], abs=1e-5)


def test_the_test_split_is_opened_last(net, pictures, tmp_path, toy, monkeypatch):
    from task_toys import ToyData

    seen = []
    monkeypatch.setattr(ToyData, "unseal_test", lambda self, reason: seen.append(json.dumps(state(tmp_path / "run"))))
    with pytest.raises(TailorError, match="sealed"):
        start(net, pictures, tmp_path / "run", settings={**SETS, "beside": False})
    assert len(seen) == 1 and '"train"' in seen[0]


def state(folder: Path) -> list[str]:
    return [path.name.partition(".")[0] for path in (folder / "checkpoints").glob("*.safetensors")]


@pytest.mark.parametrize("share", [0.1, 0.3, 0.45, 0.6, 0.8, 0.97])
def test_killed_anywhere_and_resumed_it_ends_the_same(whole, net, pictures, tmp_path, toy, monkeypatch, share):
    reference, _, writes = whole
    folder, own = tmp_path / "run", tmp_path / "net"
    shutil.copytree(net, own)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        watch(patch, [], max(6, round(share * writes)))
        start(own, pictures, folder)
    if (folder / "start" / "0" / "start.json").exists():
        shutil.rmtree(own)  # the run has its own copy
    api.resume(folder, progress="quiet")
    found, expected = outcome(folder), outcome(reference)
    assert found["weights"] == expected["weights"]
    for facts in (found["facts"], expected["facts"]):
        facts["network"].pop("source"), facts["network"].pop("name")
    assert found["facts"] == expected["facts"]


def test_a_signal_stops_after_a_checkpoint_and_says_how_to_go_on(whole, net, pictures, tmp_path, toy, monkeypatch):
    folder, progress = tmp_path / "run", StageSink.progress

    def stop(self, step, total, facts):
        progress(self, step, total, facts)
        if step == 3:
            signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(StageSink, "progress", stop)
        with pytest.raises(Stopped, match=f"tailorvit resume {folder}"):
            start(net, pictures, folder)
    assert (folder / "checkpoints" / "train.safetensors").is_file()
    downstream.resume(folder, progress="quiet")
    assert outcome(folder)["weights"] == outcome(whole[0])["weights"]


def test_only_the_same_data_go_on(net, pictures, tmp_path, toy, monkeypatch):
    folder, data = tmp_path / "run", tmp_path / "data"
    shutil.copytree(pictures, data)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        watch(patch, [], 12)
        start(net, data, folder)
    Image.new("RGB", (9, 9)).save(data / "05.png")
    with pytest.raises(TailorError, match="does not hold the images that"):
        api.resume(folder, progress="quiet")
    shutil.rmtree(data)
    with pytest.raises(TailorError, match="There is no folder"):
        api.resume(folder, progress="quiet")
    assert api.resume(folder, data=pictures, progress="quiet")["task"] == "mean-colour"
    assert json.loads((folder / "info.json").read_text())["data"]["path"] == str(pictures)


def test_predictions_of_files_and_folders(whole, pictures, tmp_path, toy):
    trained = load_task(whole[0])
    one = trained.predict(pictures / "00.png")
    assert set(one) == {"red", "green", "blue"}
    assert trained.predict([pictures / "00.png"]) == [one]
    run = CliRunner().invoke(cli.app, ["predict", str(whole[0]), str(pictures)])
    rows = [json.loads(line) for line in run.stdout.splitlines()]
    assert run.exit_code == 1 and len(rows) == 13
    assert rows[0] == {"image": str(pictures / "00.png"), **one} and "is no picture" in rows[-1]["error"]
    with pytest.raises(TailorError, match="There is no image file"):
        trained.predict(tmp_path / "none.png")
    with pytest.raises(TailorError, match="takes no question"):
        trained.predict(pictures / "00.png", question="why?")
    for name, words in (("task.json", "cannot be read"), ("task.safetensors", "has the checksum")):
        broken = tmp_path / name
        shutil.copytree(whole[0] / "network", broken)
        (broken / name).write_bytes(b"{}")
        with pytest.raises(TailorError, match=words):
            load_task(broken)


def test_onnx_is_the_same_function(whole, tmp_path, toy):
    import onnxruntime

    exported = downstream.export(whole[0], "onnx", tmp_path / "onnx")
    assert exported.files == ("network.onnx", "task.json") and exported.facts["max_difference"] < 1e-4
    assert "largest difference to PyTorch" in "".join(exported.lines())
    session = onnxruntime.InferenceSession(str(tmp_path / "onnx" / "network.onnx"))
    x = torch.randn(5, 3, 8, 8)
    with torch.inference_mode():
        mine = load_task(whole[0]).network(x)
    np.testing.assert_allclose(session.run(None, {"images": x.numpy()})[0], mine.numpy(), atol=1e-4)
    for to, more, words in (("timm", {}, "is exported to onnx"), ("onnx", {"int8": True}, "leave out --int8")):
        with pytest.raises(TailorError, match=words):
            downstream.export(whole[0], to, tmp_path / "other", **more)


def test_the_report_shows_figures_and_pictures_and_escapes_names(whole, toy):
    page = write_report(whole[0], whole[0].parent / "page.html").read_text()
    assert '<p class="lead">You get a network of the task mean-colour on the backbone' in page
    assert "data:image/png;base64," in page and "one of &lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<script>alert(1)" not in page and "<b>first</b>" not in page
    assert 'id="task-score"' in page and 'id="training-loss"' in page and "all grey" in page
    assert "tailorvit run." not in page


@pytest.mark.parametrize("damage", ["result.json", "pictures.json", "run.db", "info.json"])
def test_a_damaged_folder_still_has_a_page(whole, tmp_path, toy, damage):
    folder = tmp_path / "run"
    shutil.copytree(whole[0], folder)
    (folder / damage).write_bytes(b'{"task": ["x"], "metric": {"a": 1}, "test": 3, "beside": [1], "backbone": 7}')
    assert "</html>" in write_report(folder).read_text()


def test_other_commands_know_a_tasks_run(whole, toy):
    folder = whole[0]
    rows = health.check_run(folder)
    assert health.sound(rows) and {"network", "start/0", "result.json"} <= {row["what"] for row in rows}
    row = next(r for r in lookup.list_runs(folder.parent) if r["name"] == folder.name)
    assert (
        row["method"] == "mean-colour" and row["metric"] == "close" and row["test_score"] == whole[1]["test"]["close"]
    )
    assert any("close" in line for line in lookup.run_lines(folder.parent, [row]))
    for call in (lambda: compare([folder]), lambda: load(folder)):
        with pytest.raises(TailorError, match="task"):
            call()
    (folder / "network" / "task.safetensors").rename(folder / "away")
    try:
        assert not health.sound(health.check_run(folder))
    finally:
        (folder / "away").rename(folder / "network" / "task.safetensors")


# -- the recipe and what it refuses ----------------------------------------------------------------------------------


def test_options_come_in_order_and_the_recipe_says_all(net, pictures, toy):
    recipe = task_recipe(
        toy.name, str(net), str(pictures), preset="slow", image_size=10, settings=["train.epochs=7"], tiny=True
    )
    config, settings = read_recipe(recipe)
    assert (config.train.epochs, config.train.lr, config.backbone_lr, config.epoch_steps) == (7, 1e-4, 0.1, 4)
    assert settings.image_size == 10 and config.preset == "slow"
    plan = prepare_task(recipe)
    again = read_recipe(parse_toml(recipe_text(plan.config, plan.settings)))
    assert again == (plan.config, plan.settings) and plan.config.threads == 1


def test_the_backbone_gets_its_share_of_the_learning_rate(toy):
    from task_toys import ToyNetwork

    from tailorvit.families.vit.plain import PlainViT, ViTSettings
    from tailorvit.tasks.backbone import Start

    model = PlainViT(
        ViTSettings(image_size=(8, 8), patch=2, channels=3, classes=2, head_dim=8, reach=2), 8, [1, 1], [1, 1]
    )
    network = ToyNetwork(Start("x", {"family": "vit", "settings": model.settings}, None).backbone((8, 8), 3, 0), 3)
    network.rate_shares = {"backbone.": 0.1}
    named = {p: n for n, p in network.named_parameters()}
    for decay in (1.0, 0.5):
        groups = make_optimizer(network, TrainSettings(layer_decay=decay)).param_groups
        shares = {named[p]: group["share"] for group in groups for p in group["params"]}
        assert shares["head.weight"] == 1.0, "after the backbone, though it was made before it"
        first, second = (shares[f"backbone.network.blocks.{i}.mlp.fc1.weight"] for i in (0, 1))
        assert first == pytest.approx(0.1 * decay**2) and second == pytest.approx(0.1 * decay)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"preset": "fast"}, "Unknown preset of the task mean-colour 'fast'"),
        ({"settings": {"train.rule": "sandwich"}}, "train.rule is not for tasks"),
        ({"settings": {"train.compile": True}}, "train.compile is not for tasks"),
        ({"settings": {"backbone_lr": 0}}, "backbone_lr must be above 0"),
        ({"settings": {"mean-colour.size": 3}}, "Unknown recipe key 'mean-colour.size'"),
        ({"settings": {"colour": 3}}, "Unknown recipe key 'colour'"),
        ({"settings": {"mean-colour": 3}}, "is a table of settings"),
        ({"settings": {"limits.max_latency": "3ms"}}, "limited in params and macs, not in latency"),
        ({"max_params": "1k"}, r"The whole network on .* breaks the limit: params [\d.]+k > 1k"),
        ({"max_macs": "1k"}, "breaks the limit: macs"),
        ({"weights": "x.pth"}, "goes with timm:NAME"),
        ({"candidates": 2, "scratch": True}, "leave out --candidates"),
    ],
)
def test_mistakes_are_one_sentence_before_there_is_a_folder(net, pictures, tmp_path, toy, options, words):
    with pytest.raises(TailorError, match=words):
        start(net, pictures, tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_missing_parts_are_named(net, pictures, tmp_path, toy, monkeypatch):
    monkeypatch.setattr(type(toy), "needs", (("no_such_library", "tasks"),))
    with pytest.raises(TailorError, match=r"needs no_such_library: pip install 'tailorvit\[tasks\]'"):
        start(net, pictures, tmp_path / "run")
    with pytest.raises(TailorError, match="Unknown task 'detct'"):
        downstream.work("detct", net, data=pictures)
    with pytest.raises(TailorError, match="holds no network of a task"):
        load_task(net)


def test_networks_of_timm_and_fresh_weights(net, pictures, tmp_path, toy):
    few = {"settings": {"train.epochs": 1, "beside": False}}
    fresh = start(net, pictures, tmp_path / "fresh", scratch=True, **few)
    assert fresh["network"]["weights"] == "fresh"
    peer = start("timm:test_resnet", pictures, tmp_path / "peer", image_size=32, **few)
    assert peer["network"]["family"] == "timm" and peer["image_size"] == [32, 32]
    assert load_task(tmp_path / "peer").network.backbone.name == "timm:test_resnet"


def test_a_config_has_good_values():
    with pytest.raises(TailorError, match="candidate_share must be above 0"):
        TaskConfig("x", "y", candidate_share=0)
    with pytest.raises(TailorError, match="seed must be"):
        TaskConfig("x", "y", seed=-1)


def test_callbacks_are_told_of_a_task_once_over_a_stop(whole, net, pictures, tmp_path, toy):
    class Stop(Callback):
        def __init__(self, after=0):
            self.after, self.epochs, self.ends, self.begun = after, [], [], []

        def run_begins(self, info):
            self.begun.append((info.method, info.resumed, info.recipe["task"]))

        def epoch_ends(self, stage, epoch, facts):
            self.epochs.append((stage, epoch))
            if len(self.epochs) == self.after:
                raise KeyboardInterrupt

        def run_ends(self, result):
            self.ends.append(result["test"])

    first, second = Stop(after=1), Stop()
    with pytest.raises(Stopped):
        start(net, pictures, tmp_path / "run", callbacks=[first])
    result = api.resume(tmp_path / "run", progress="quiet", callbacks=[second, "csv"])
    assert outcome(tmp_path / "run")["weights"] == outcome(whole[0])["weights"]
    assert (first.epochs + second.epochs)[:2] == [("train", 1), ("train", 2)]
    assert len(set(first.epochs + second.epochs)) == len(first.epochs + second.epochs)
    assert first.begun == [("mean-colour", False, "mean-colour")] and second.begun == [
        ("mean-colour", True, "mean-colour")
    ]
    assert first.ends == [] and second.ends == [result["test"]]
    assert f",result,,test_close,{result['test']['close']}" in (tmp_path / "run" / "log.csv").read_text()
