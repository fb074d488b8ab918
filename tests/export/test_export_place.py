"""Where exports go: whole or not at all, never over other files; bad options; formats from outside."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from pathlib import Path

import pytest
import torch

from tailorvit.errors import TailorError
from tailorvit.export import EXPORTERS, Exporter, Job, export, formats, load
from tailorvit.export.base import fresh_logits


def test_an_export_replaces_an_earlier_one(made, tmp_path):
    out = tmp_path / "deep" / "out"
    first = export(made.run, "safetensors", out)
    (out / "__pycache__").mkdir()
    second = export(made.run, "torch", out, check=False)
    assert first.path == second.path == out
    assert sorted(p.name for p in out.iterdir()) == ["network.pt2", "tailorvit-export.json"]
    assert [p.name for p in out.parent.iterdir()] == ["out"]
    assert "Not checked: switched off" in second.lines()


def test_the_record_beside_the_files_holds_the_facts(made, tmp_path):
    done = export(made.run, "safetensors", tmp_path / "out", images=7)
    record = json.loads((done.path / "tailorvit-export.json").read_text())
    assert record["facts"] == done.facts and record["files"] == list(done.files)
    assert done.facts["images"] == 7 and done.facts["max_difference"] == 0
    assert json.loads(json.dumps(done.to_dict()))["path"] == str(done.path)
    assert done.facts["bytes"] == {n: (done.path / n).stat().st_size for n in done.files}


def test_a_foreign_folder_is_not_touched(made, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(TailorError, match="thesis"):
        export(made.run, "safetensors", tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_file_put_beside_an_export_keeps_it(made, tmp_path):
    export(made.run, "safetensors", tmp_path / "out")
    (tmp_path / "out" / "notes.txt").write_text("mine")
    with pytest.raises(TailorError, match="notes"):
        export(made.run, "safetensors", tmp_path / "out")
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"


def test_a_file_and_a_place_under_a_file_are_refused(made, tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(TailorError, match="is not a folder"):
        export(made.run, "safetensors", tmp_path / "file")
    with pytest.raises(TailorError, match="Cannot write to"):
        export(made.run, "safetensors", tmp_path / "file" / "below")
    assert (tmp_path / "file").read_text() == "x"


def test_a_failed_export_leaves_the_old_one_and_nothing_else(made, tmp_path, monkeypatch):
    out = export(made.run, "safetensors", tmp_path / "out").path
    before = {p.name: p.read_bytes() for p in out.iterdir()}

    def wrong(folder):
        network = load(folder)
        with torch.no_grad():
            network.model.head.bias += 1
        return network

    monkeypatch.setattr(formats, "load", wrong)
    with pytest.raises(TailorError, match="logits are off"):
        export(made.run, "safetensors", out)
    assert {p.name: p.read_bytes() for p in out.iterdir()} == before
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_an_unknown_format_lists_the_known(made):
    with pytest.raises(TailorError, match=r"Unknown export format 'onxx'\. Did you mean 'onnx'"):
        export(made.run, "onxx")
    for name, record in EXPORTERS.items():
        assert record.name == name and record.summary and callable(record.function)


def test_options_of_another_format_are_refused(made):
    for wish in ({"int8": True}, {"opset": 18}):
        with pytest.raises(TailorError, match="belong to the format onnx, not to timm"):
            export(made.run, "timm", **wish)
    with pytest.raises(TailorError, match="at least 1 image"):
        export(made.run, "timm", images=0)


def test_an_unfinished_run_and_a_missing_one(made, tmp_path):
    half = tmp_path / "half"
    shutil.copytree(made.run, half, ignore=shutil.ignore_patterns("network", "export"))
    with pytest.raises(TailorError, match="is the run finished"):
        export(half, "torch")
    assert not (half / "export").exists()
    with pytest.raises(TailorError, match="There is no folder"):
        export(tmp_path / "nowhere", "torch")


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda run: (run / "recipe.toml").write_text('[data]\nsource = "gone"\n'), "There is no 'gone'"),
        (lambda run: (run / "splits.json").unlink(), "splits.json"),
        (lambda run: (run / "recipe.toml").write_text("seed = "), "Invalid value"),
        (lambda run: (run / "recipe.toml").write_text('[data]\nsource = "digits"\nimage_size = 16\n'), "(1, 16, 16)"),
    ],
)
def test_without_its_data_an_export_is_checked_on_noise_and_says_so(made, tmp_path, change, word):
    shutil.copytree(made.run, tmp_path / "run", ignore=shutil.ignore_patterns("export"))
    change(tmp_path / "run")
    done = export(tmp_path / "run", "safetensors", images=4)
    assert done.facts["checked_on"].startswith("random images: the run's data cannot be read (")
    assert word in done.facts["checked_on"] and word in "\n".join(done.lines())
    assert word not in (done.path / "tailorvit-export.json").read_text(), "the reason may name folders of this machine"


def test_an_export_that_needs_tailorvit_or_fails_does_not_pass(tmp_path):
    x = torch.zeros(1, 2)
    with pytest.raises(TailorError, match="new process: needs tailorvit"):
        fresh_logits("import tailorvit.errors\nlogits = lambda x: x", tmp_path, x, alone=True)
    assert fresh_logits("import tailorvit.errors\nlogits = lambda x: x", tmp_path, x).equal(x)
    with pytest.raises(TailorError, match="new process: ZeroDivisionError"):
        fresh_logits("1 / 0", tmp_path, x)


def test_the_check_of_timm_runs_in_a_process_of_its_own(made, tmp_path):
    done = export(made.run, "timm", tmp_path / "out", images=9)
    assert done.facts["max_difference"] <= 1e-4 and done.facts["images"] == 9
    assert "__pycache__" not in [p.name for p in done.path.iterdir()]


def test_a_name_too_long_is_one_sentence(made, tmp_path):
    with pytest.raises(TailorError, match="File name too long"):
        export(made.run, "safetensors", tmp_path / ("x" * 300))


def test_a_namesake_in_the_working_folder_is_not_the_library(made, tmp_path, monkeypatch):
    (tmp_path / "timm.py").write_text("raise SystemExit('not timm')")
    monkeypatch.chdir(tmp_path)
    assert export(made.run.resolve(), "timm", tmp_path / "out").facts["max_difference"] <= 1e-4


# -- formats from outside ---------------------------------------------------------------------------------------------


def test_the_documented_format_works(made, tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "docs" / "export.md").read_text(encoding="utf-8")
    names: dict[str, object] = {}
    exec(next(b for b in re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S) if "Exporter(" in b), names)
    monkeypatch.setitem(EXPORTERS.added, "numpy", names["NUMPY"])
    done = export(made.run, "numpy", tmp_path / "out", images=5)
    assert done.files == ("classes.txt", "weights.npz") and done.facts["max_difference"] <= 1e-6
    assert "Checked on 5 test images of the run" in done.lines()[1]
    assert "Not checked: switched off" in export(made.run, "numpy", tmp_path / "out", check=False).lines()
    fields = re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`.*?`) \| ", page.split("A `Job` holds:")[1], re.M)))
    assert fields == [f.name for f in dataclasses.fields(Job)]


def test_a_format_from_outside_that_lacks_something(made, tmp_path, monkeypatch):
    def needy(job):
        import a_module_nobody_has  # noqa: F401

    monkeypatch.setitem(EXPORTERS.added, "needy", Exporter("needy", "", "needy[all]", needy))
    with pytest.raises(TailorError, match=r"The format needy needs 'a_module_nobody_has': pip install 'needy\[all\]'"):
        export(made.run, "needy", tmp_path / "needy")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setitem(EXPORTERS.added, "bare", Exporter("bare", "", None, lambda job: {}))
    assert "Not checked: the format has no check" in export(made.run, "bare", tmp_path / "bare").lines()
