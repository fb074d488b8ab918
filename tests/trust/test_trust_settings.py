"""Values that would change a run without a word are refused; what can never fit is said before anything is trained."""

from __future__ import annotations

import errno
import json
import shutil
import sqlite3

import numpy as np
import pytest
from PIL import Image
from trust_tools import QUICK, picture_folder, refused

from tailorvit import api, memory
from tailorvit.config import configure
from tailorvit.data import open_data
from tailorvit.data.images import LazyImageSet
from tailorvit.dims import Dim
from tailorvit.errors import TailorError, out_of_memory
from tailorvit.export import export
from tailorvit.memory import device_memory, require_memory, usable_device
from tailorvit.portable import to_pixels
from tailorvit.runs import Run
from tailorvit.runs.atomic import disk_full
from tailorvit.train.loop import Trainer


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("train.epochs=true", "train.epochs cannot be true"),
        ("seed=true", "seed cannot be true"),
        ("limits.max_params=true", "limits.max_params cannot be true"),
        ("search.population=true", "search.population cannot be true"),
        ("train.checkpoint_seconds=nan", "must be a finite number"),
        ("train.checkpoint_seconds=-1", "at least 0"),
        ("train.lr=inf", "must be a finite number"),
        ("train.epochs=10000000", "at most 1000000"),
        ("data.cache=-1", "data.cache"),
        ("data.limit=1", "limit on images"),
        ("threads=100000", "threads"),
        ("start=true", "start"),
        ("device=meta", "Device 'meta' cannot be used"),
        ("device=nowhere", "Device 'nowhere' cannot be used"),
        ("start.network=somewhere", "method 'autoformer' starts from no network"),
        ("data.image_size=100000", "of memory"),
    ],
)
def test_a_value_that_means_nothing_is_refused(call, tmp_path, pictures, setting, words):
    refused(call("run", "--data", pictures, "--out", tmp_path / "run", *QUICK, "--set", setting), words)
    assert not (tmp_path / "run").exists()


def test_true_and_numbers_stay_where_they_belong():
    assert configure({"baseline": [True, "timm:resnet18"], "train": {"compile": True}}).train.compile


# -- memory -----------------------------------------------------------------------------------------------------------


def test_work_that_cannot_fit_is_refused_before_it_begins(call, monkeypatch, tmp_path, pictures):
    refused(call("cost", "deit-s", "--measure", "--batch", "10000000"), "A batch of 10,000,000 images", "TiB")
    refused(call("score", "vit-8px", "--n", "2", "--image-size", "1000000"), "of memory")
    refused(call("run", "--data", "digits", "--image-size", "50000", "--out", tmp_path / "run"), "1,797 images", "TiB")
    monkeypatch.setattr(memory, "device_memory", lambda device="cpu": 2**20)
    refused(call("run", "--data", pictures, "--out", tmp_path / "run", *QUICK), "A training step on 64 images")


def test_memory_is_known_and_its_end_recognised():
    there = device_memory()
    assert there is not None and there > 2**28
    require_memory(2**20, "This", "nothing")
    with pytest.raises(TailorError, match=r"This needs at least .* of memory, and cpu has"):
        require_memory(2**60, "This", "less")
    assert out_of_memory(MemoryError()) and not out_of_memory(RuntimeError("shapes"))
    assert out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"))
    assert usable_device("cpu") == "cpu"


def test_memory_that_ends_is_one_sentence(call, monkeypatch):
    from tailorvit import lookup

    def ends(*args, **options):
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes")

    monkeypatch.setattr(lookup, "cost", ends)
    refused(call("cost", "deit-s", "--classes", 10), "not enough memory")


def test_spaces_and_networks_have_a_largest_size(call, tmp_path):
    (tmp_path / "a.json").write_text('{"family": "vit", "embed": 64, "heads": 2, "mlp": 2, "depth": 100000000}')
    refused(call("cost", tmp_path / "a.json"), "at most 1000 blocks")
    with pytest.raises(TailorError, match="at most 1000 choices"):
        Dim.span("embed", 1, 200_000, 1)
    with pytest.raises(TailorError, match="at most 1000 choices"):
        Dim("embed", tuple(range(1, 200_000)))
    with pytest.raises(TailorError, match="at most 1000 blocks"):
        Dim("depth", (1, 10**8))


# -- images -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("top", [65535, 2**32 - 1])
def test_deep_whole_numbers_keep_their_range(tmp_path, top):
    grey = np.linspace(0, top, 64).astype(np.uint32).reshape(8, 8)
    Image.fromarray(grey.view(np.int32), "I").save(tmp_path / "deep.tiff")
    with Image.open(tmp_path / "deep.tiff") as image:
        found = to_pixels(image, 1, (8, 8))[0]
    assert np.abs(found.astype(int) - np.rint(grey.astype(float) * 255 / top)).max() <= 1


@pytest.mark.parametrize("top", [1, 255, 65535])
def test_decimal_images_keep_their_range(top):
    image = Image.fromarray(np.linspace(0, top, 64, dtype=np.float32).reshape(8, 8), "F")
    found = to_pixels(image, 1, (8, 8))[0].astype(int)
    assert np.abs(found - np.rint(np.linspace(0, 255, 64).reshape(8, 8))).max() <= 1
    with pytest.raises(ValueError, match="values go up to"):
        to_pixels(Image.fromarray(np.full((8, 8), 1e9, np.float32), "F"), 1, (8, 8))


def test_a_limit_below_the_classes_says_which_are_missing(tmp_path):
    data = open_data(str(picture_folder(tmp_path / "d", ("a", "b", "c"))), limit=2)
    assert any("train split has no image of" in note for note in data.notes)
    assert any("test split has no image of" in note for note in data.notes)


# -- data that changed, and data that moved ---------------------------------------------------------------------------


def unfinished(run):
    (run / "result.json").unlink()
    return run


def test_changed_data_names_the_file(tmp_path):
    data = picture_folder(tmp_path / "d")
    saved = json.loads(json.dumps(open_data(str(data)).split_record()))
    assert set(saved["files"]) == {"train", "search", "test"} and "a/0.png" in {
        k for p in saved["files"].values() for k in p
    }
    (data / "a" / "3.png").rename(data / "a" / "new.png")
    with pytest.raises(TailorError, match=r"'a/3.png' is gone and 1 more"):
        open_data(str(data), saved=saved)
    (data / "a" / "new.png").rename(data / "a" / "3.png")
    Image.new("RGB", (16, 16)).save(data / "b" / "4.png")
    with pytest.raises(TailorError, match=r"'b/4.png' has \d+ bytes instead of \d+"):
        open_data(str(data), saved=saved)


def test_records_of_older_runs_hold_no_names(tmp_path):
    data = picture_folder(tmp_path / "d")
    saved = open_data(str(data)).split_record()
    older = {k: v for k, v in saved.items() if k != "files"}
    assert open_data(str(data), saved=older).split_record() == saved
    (data / "a" / "3.png").unlink()
    with pytest.raises(TailorError, match="data changed since its splits were made: fingerprint"):
        open_data(str(data), saved=older)
    with pytest.raises(TailorError, match="data changed"):
        open_data(str(data), saved={**saved, "files": [1]})


def test_resume_takes_moved_data_and_no_other(call, damaged, pictures, tmp_path):
    unfinished(damaged)
    other = picture_folder(tmp_path / "other", count=11)
    refused(call("resume", damaged, "--data", other), "data changed")
    moved = shutil.copytree(pictures, tmp_path / "moved")
    assert call("resume", damaged, "--data", moved, "--quiet")[0] == 0
    assert json.loads((damaged / "info.json").read_text())["data"]["path"] == str(moved)
    (damaged / "splits.json").unlink()
    refused(call("resume", unfinished(damaged), "--data", other), "does not hold the images")


def test_every_skipped_image_is_listed(call, tmp_path):
    data = picture_folder(tmp_path / "d", count=40)
    broken = sorted((data / "a").glob("*.png"))[:25]
    for path in broken:
        path.write_bytes(b"no picture")
    assert call("run", "--data", data, "--out", tmp_path / "run", *QUICK)[0] == 0
    listed = json.loads((tmp_path / "run" / "skipped.json").read_text())
    assert [row["path"] for row in listed] == [str(path) for path in broken]
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "25 unreadable image(s)" in log and "and 5 more; skipped.json lists them" in log
    assert str(broken[19]) in log and str(broken[20]) not in log


# -- a full disk ------------------------------------------------------------------------------------------------------


def test_a_full_disk_says_how_to_go_on(call, damaged, monkeypatch):
    def full(self, name, data):
        raise TailorError("Cannot write 'x'.") from OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Run, "write_json", full)
    refused(call("resume", unfinished(damaged)), "The disk is full", f"tailorvit resume {damaged}")


def test_what_a_full_disk_is():
    assert disk_full(OSError(errno.ENOSPC, "")) and disk_full(sqlite3.OperationalError("database or disk is full"))
    assert not disk_full(OSError(errno.EACCES, "")) and not disk_full(None)


def test_an_export_beside_a_changed_run_says_so(damaged):
    (damaged / "splits.json").write_text("[")
    assert "random images" in export(damaged, "safetensors").facts["checked_on"]


def test_images_that_change_during_a_run_are_told(call, tmp_path, monkeypatch):
    data, run, method = picture_folder(tmp_path / "d"), tmp_path / "run", api.run_method

    def changing(session):
        facts = method(session)
        (data / "a" / "3.png").write_bytes(b"another file")
        (data / "b" / "0.png").unlink()
        return facts

    monkeypatch.setattr(api, "run_method", changing)
    code, _, err = call("run", "--data", data, "--out", run, *QUICK)
    assert code == 0, err
    (doubt,) = json.loads((run / "result.json").read_text())["doubts"]
    assert "Data changed during the run: 'a/3.png' and 1 more" in doubt
    with Run.open(run, lock=False) as record:
        assert doubt in [e["text"] for e in record.events("changed")]


def test_images_that_change_and_are_put_back_are_told(call, tmp_path, monkeypatch):
    """Also where the process that read the wrong one was killed before its end, and where both have as many bytes."""
    data, run = picture_folder(tmp_path / "d"), tmp_path / "run"
    file, inner, trained = data / "a" / "0.png", LazyImageSet.read, []
    right = file.read_bytes()
    wrong = right[:-20] + bytes(20)

    def read(images, ids, among):
        if not trained:
            return inner(images, ids, among)
        file.write_bytes(wrong)
        try:
            return inner(images, ids, among)
        finally:
            file.write_bytes(right)

    train, save = Trainer.run, Run.save_checkpoint

    def killed(record, *rest):
        save(record, *rest)
        raise KeyboardInterrupt

    monkeypatch.setattr(LazyImageSet, "read", read)
    monkeypatch.setattr(Trainer, "run", lambda trainer: (trained.append(True), train(trainer)))
    monkeypatch.setattr(Run, "save_checkpoint", killed)
    alone = ["--set", "data.cache=0"]
    call("run", "--data", data, "--out", run, *QUICK, *alone)
    assert not (run / "result.json").exists() and file.read_bytes() == right
    monkeypatch.undo()
    code, _, err = call("resume", run)
    assert code == 0, err
    (doubt,) = json.loads((run / "result.json").read_text())["doubts"]
    assert doubt.startswith("Data changed during the run: 'a/0.png' became another file or went away")
    assert "it became another file" in (run / "skipped.json").read_text()


def test_a_file_replaced_by_one_of_the_same_size_is_refused_by_name(call, tmp_path):
    data, run = picture_folder(tmp_path / "d"), tmp_path / "run"
    assert call("run", "--data", data, "--out", run, *QUICK)[0] == 0
    (run / "result.json").unlink()
    file = data / "a" / "0.png"
    right = file.read_bytes()
    file.write_bytes(right[:-20] + bytes(20))
    refused(call("resume", run), "'a/0.png' holds something else, though it has as many bytes")
    file.write_bytes(right)  # another time of change does not matter
    assert call("resume", run)[0] == 0
