"""The command line on folders of runs: resume, report, predict, and everything that can be wrong with them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cli_tools import pictures, refused

import tailorvit
from tailorvit.api import Result
from tailorvit.methods.session import Session
from tailorvit.runs import Run

QUICK = ["method=s4", "family=vit", "s4.iterations=0", "train.epochs=1", "final.train.epochs=1"]


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    """Three classes of pictures, one of them broken."""
    root = pictures(tmp_path_factory.mktemp("photos") / "zoo", {"cat": 14, "dog": 14, "owl": 14})
    (root / "cat" / "broken.png").write_bytes(b"this is no picture")
    return root


@pytest.fixture(scope="module")
def finished(photos, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "zoo"
    tailorvit.run(data=str(photos), out=folder, tiny=True, image_size=16, settings=QUICK, progress="quiet")
    return folder


@pytest.fixture(scope="module")
def unfinished(tmp_path_factory) -> Path:
    """A run stopped before its search, with a trained supernet."""
    folder = tmp_path_factory.mktemp("runs") / "stopped"
    with pytest.MonkeyPatch.context() as patch:

        def stop(session, space, score, stage="search"):
            score([], 0)
            session.supernet(space, 0).model()
            raise KeyboardInterrupt

        patch.setattr(Session, "search", stop)
        with pytest.raises(KeyboardInterrupt, match=r"^tailorvit resume .*stopped$"):
            tailorvit.run("s4-digits", out=folder, tiny=True, settings=QUICK, progress="quiet")
    return folder


def test_broken_images_are_skipped_and_counted(finished):
    with Run.open(finished, lock=False) as run:
        (event,) = run.events("skipped")
        facts = run.read_json("result")
    assert event["text"].startswith("1 unreadable image(s)") and "broken.png" in event["text"]
    result = Result(finished, json.loads((finished / "result.json").read_text()))
    assert "  1 image(s) could not be read and were left out; skipped.json lists them" in result.summary()
    assert "not an image" in event["data"]["files"][0]["reason"]
    assert sum(facts["data"]["counts"].values()) == 42


def test_an_existing_run_is_not_overwritten(call, finished, unfinished):
    before = {p: p.stat().st_mtime_ns for p in finished.rglob("*")}
    refused(call("run", "--tiny", "--out", finished), "holds a finished run")
    refused(call("run", "--tiny", "--out", unfinished), "unfinished run", f"tailorvit resume {unfinished}")
    refused(call("run", "--tiny", "--out", finished.parent), "something else")
    assert {p: p.stat().st_mtime_ns for p in finished.rglob("*")} == before


def test_resuming_a_finished_run_gives_its_result(call, finished):
    code, out, err = call("resume", finished)
    facts = json.loads((finished / "result.json").read_text())
    assert code == 0 and err == "" and f"{facts['params']:,} parameters" in out and str(finished) in out


def test_reports(call, finished, unfinished):
    for folder in (finished, unfinished):
        (folder / "report.html").unlink(missing_ok=True)
        code, out, _ = call("report", folder)
        assert code == 0 and (folder / "report.html").is_file() and str(folder / "report.html") in out
        assert "<html" in (folder / "report.html").read_text(encoding="utf-8")
    (finished / "report.html").unlink()
    assert call("resume", finished)[0] == 0 and (finished / "report.html").is_file(), "killed before its report"


def test_the_cost_of_what_a_run_found(call, finished):
    facts = json.loads((finished / "result.json").read_text())
    shown = json.loads(call("cost", finished, "--json")[1])
    assert (shown["params"], shown["macs"], shown["arch"]) == (facts["params"], facts["macs"], facts["arch"])


def test_an_export_without_a_card_is_not_called_an_unfinished_run(call, finished, photos, tmp_path):
    for name, words in (
        ("network.onnx", "predict reads 'network.onnx' itself"),
        ("network.pt2", "give the run's folder"),
    ):
        place = tmp_path / name.partition(".")[2]
        place.mkdir()
        (place / name).write_bytes(b"")
        found = call("finetune", place, "--data", photos, "--out", tmp_path / "run")
        refused(found, "an export without network.json", words)


def test_limited_costs_are_printed_at_the_end(call, photos, tmp_path):
    sets = [word for key in QUICK for word in ("--set", key)]
    code, out, _ = call(
        *("run", "--data", photos, "--image-size", 16, "--tiny", "--max-params", "20k", "--max-memory", "64MiB"),
        *("--plain", "--out", tmp_path / "run", *sets),
    )
    assert code == 0 and "MiB)" in out and " KiB (limit 64 MiB)" in out


def test_a_run_goes_on_where_nobody_reads_its_output(tmp_path):
    command = [sys.executable, "-m", "tailorvit", "run", "--tiny", "--plain", "--out", str(tmp_path / "run")]
    command += [word for key in QUICK for word in ("--set", key)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline()
        process.stdout.close()
        assert process.wait(120) == 0, process.stderr.read()
    assert (tmp_path / "run" / "result.json").is_file()


def test_predict(call, finished, photos):
    files = [photos / "cat" / "00.png", photos / "dog" / "03.png"]
    code, out, err = call("predict", finished, *files, "--json")
    rows = json.loads(out)
    assert code == 0 and err == "" and [r["file"] for r in rows] == [str(f) for f in files]
    for row in rows:
        scores = list(row["classes"].values())
        assert set(row["classes"]) == {"cat", "dog", "owl"} and sum(scores) == pytest.approx(1, abs=1e-5)
        assert scores == sorted(scores, reverse=True)
    code, out, _ = call("predict", finished, files[0], "--top", 1)
    assert code == 0 and out.count("%") == 1 and str(files[0]) in out


def test_predictions_are_what_the_evaluation_saw(finished, photos):
    """A file goes through the same resizing, cropping and normalising as the test split did."""
    network = tailorvit.load(finished)
    data = tailorvit.open_data(str(photos), image_size=16)
    data.unseal_test("compare")
    x, y = next(iter(data.eval_batches("test", 100)))
    scores = network(x).softmax(-1)
    for row, name in zip(scores, data.names("test")):
        found = network.predict([name])[0]
        assert [found[c] for c in data.classes] == pytest.approx(row.tolist(), abs=1e-5)
    facts = json.loads((finished / "result.json").read_text())
    assert 100 * float((scores.argmax(-1) == y).float().mean()) == pytest.approx(facts["test_accuracy"], abs=1e-3)


def test_loaded_networks_are_plain(finished):
    network = tailorvit.load(finished)
    rooms = {type(m).__module__ for m in network.modules()}
    plain = {"export.network", "families.network", "families.vit.plain", "families.vit.relative"}
    assert {r for r in rooms if r.startswith("tailorvit.")} <= {f"tailorvit.{name}" for name in plain}
    facts = json.loads((finished / "result.json").read_text())
    assert sum(p.numel() for p in network.parameters()) == facts["params"]


def test_predict_on_what_is_no_image(call, finished, unfinished, photos, tmp_path):
    refused(call("predict", finished, photos / "cat" / "broken.png"), "broken.png", "not an image")
    refused(call("predict", finished, tmp_path / "none.png"), "There is no image file")
    refused(call("predict", unfinished, photos / "cat" / "00.png"), "no finished network")


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"arch": 3, "fixed": {}, "classes": [], "preprocessing": {}}'])
def test_a_damaged_network_is_one_sentence(call, finished, photos, tmp_path, text):
    shutil.copytree(finished / "network", tmp_path / "network")
    (tmp_path / "network" / "network.json").write_text(text)
    refused(call("predict", tmp_path, photos / "cat" / "00.png"))


def test_weights_of_another_network(call, finished, photos, tmp_path):
    shutil.copytree(finished / "network", tmp_path / "network")
    path = tmp_path / "network" / "network.json"
    card = json.loads(path.read_text())
    card["plain"]["settings"] |= {"embed": 64}
    path.write_text(json.dumps(card))
    refused(call("predict", tmp_path, photos / "cat" / "00.png"), "do not belong to the architecture")
    (tmp_path / "network" / "network.safetensors").write_bytes(b"nothing")
    refused(call("predict", tmp_path, photos / "cat" / "00.png"), "cannot be read")


def test_a_checkpoint_of_another_space(call, finished, unfinished, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(unfinished, run)
    shutil.copy(finished / "checkpoints" / "supernet-0.safetensors", run / "checkpoints" / "supernet-0.safetensors")
    refused(call("resume", run), "belongs to another space or network")


def test_data_that_changed_since(call, photos, tmp_path):
    root, run = tmp_path / "zoo", tmp_path / "run"
    shutil.copytree(photos, root)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Session, "supernet", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        tailorvit.run(data=str(root), out=run, tiny=True, image_size=16, settings=QUICK, progress="quiet")
    shutil.copy(root / "cat" / "00.png", root / "dog" / "new.png")
    refused(call("resume", run), "data changed")


def test_ctrl_c_says_how_to_go_on(call, tmp_path, monkeypatch):
    monkeypatch.setattr(Session, "supernet", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    code, _, err = call("run", "--tiny", "--quiet", "--out", tmp_path / "my run")
    assert code == 130 and err == f"Stopped. Go on with: tailorvit resume '{tmp_path}/my run'\n"
    with Run.open(tmp_path / "my run", lock=False) as run:
        assert run.events("interrupted") and not run.finished


def test_a_run_without_out_takes_a_free_folder(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Session, "supernet", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    for number in (1, 2):
        assert call("run", "--tiny", "--quiet")[0] == 130
        assert (tmp_path / "runs" / f"s4-digits-{number}" / "recipe.toml").is_file()


def test_a_run_goes_on_from_another_folder(call, tmp_path, monkeypatch):
    """A source is written as it was typed; where that names nothing any more, the place it named counts."""
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "few.npz", x=rng.integers(0, 255, (60, 8, 8), dtype=np.uint8), y=np.arange(60) % 3)
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as broken:
        broken.setattr(Session, "supernet", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        chosen = ("--method", "s4", "--set", "family=vit")
        assert call("run", "--tiny", "--quiet", "--data", "few.npz", "--out", "run", *chosen)[0] == 130
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    code, out, err = call("resume", "../run", "--quiet")
    assert code == 0 and "test accuracy" in out, err
    assert call("export", "../run", "--to", "torch")[0] == 0
