"""Predictions: files, folders and standard input; from torch and from ONNX; as text, JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tailorvit import predict as module
from tailorvit.errors import TailorError
from tailorvit.export import Card, load, save_network
from tailorvit.families import family
from tailorvit.portable import image_files
from tailorvit.predict import Prediction, load_classifier, predict, run_predict

CLASSES = ("cat", "dog", "owl", "a, b")
FIXED = {"image_size": (8, 8), "patch": 4, "channels": 1, "classes": 4, "head_dim": 8, "reach": 2}
HOW = {"image_size": [8, 8], "channels": 1, "mean": [0.4], "std": [0.3], "margin": 1.15}


def make_image(path: Path, number: int = 0, side: int = 21) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(number).integers(0, 256, (side, side + number % 5), dtype=np.uint8)
    Image.fromarray(noise).save(path)
    return path


@pytest.fixture(scope="module")
def network(tmp_path_factory) -> Path:
    """A network folder; its head is scaled up so that predictions differ between images."""
    vit = family("vit")
    arch = vit.arch({"family": "vit", "depth": 2, "embed": 16, "heads": 2, "mlp": 2})
    torch.manual_seed(0)
    model = vit.build(vit.settings(FIXED), arch)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn_like(p) * 0.5)
    folder = tmp_path_factory.mktemp("network")
    save_network(folder, model, Card(arch, FIXED, CLASSES, HOW, {"seed": 0}))
    return folder


@pytest.fixture(scope="module")
def onnx_file(network, tmp_path_factory) -> Path:
    """The same network as ONNX; six seconds."""
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name)
    loaded = load(network)
    free = ({0: torch.export.Dim("batch", min=1, max=1024)},)
    made = torch.onnx.export(
        loaded.model, (torch.rand(2, 1, 8, 8),), dynamo=True, dynamic_shapes=free, verbose=False
    ).model_proto
    meta = {"format": 1, "classes": list(CLASSES), "preprocessing": {**HOW, "interpolation": "bicubic"}}
    made.metadata_props.add(key="tailorvit", value=json.dumps(meta))
    path = tmp_path_factory.mktemp("onnx") / "network.onnx"
    path.write_bytes(made.SerializeToString())
    return path


@pytest.fixture
def photos(tmp_path) -> Path:
    """Images in nested folders, and files that are none."""
    root = tmp_path / "photos"
    for i, name in enumerate(("b/1.png", "b/0.PNG", "a.png", "b.png", "c/d/e/2.gif", "z.tif", "c/1.bmp", "c/2.jpg")):
        make_image(root / name, i)
    (root / "notes.txt").write_text("not an image")
    make_image(root / ".hidden.png")
    make_image(root / ".git" / "x.png")
    make_image(root / "__MACOSX" / "x.png")
    (root / "c" / "loop").symlink_to(root, target_is_directory=True)
    return root


ORDER = ["a.png", "b/0.PNG", "b/1.png", "b.png", "c/1.bmp", "c/2.jpg", "c/d/e/2.gif", "z.tif"]


def wrote(network, inputs, form="json", top=0, **options):
    out, err = io.StringIO(), io.StringIO()
    code = run_predict(network, inputs, form, top, out, err_stream=err, **options)
    return code, json.loads(out.getvalue()) if form == "json" else out.getvalue(), err.getvalue()


# -- predictions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 3, 64])
def test_a_folder_in_order_equals_one_at_a_time(network, photos, batch):
    found = list(predict(network, photos, batch=batch))
    assert [p.name for p in found] == [str(photos / n) for n in ORDER]
    wanted = load(network).predict([p.name for p in found])
    for row, scores in zip(found, wanted):
        assert row.error is None and set(row.probabilities) == set(CLASSES)
        assert list(row.probabilities.values()) == sorted(row.probabilities.values(), reverse=True)
        assert dict(row.probabilities) == pytest.approx(scores, abs=1e-6)
    assert len({next(iter(p.probabilities.values())) for p in found}) == len(found), "predictions depend on the image"


def test_the_order_of_the_arguments_is_kept(network, photos):
    names = [photos / "z.tif", photos / "b", photos / "a.png", photos / "z.tif"]
    found = [p.name for p in predict(network, names)]
    assert found == [str(photos / n) for n in ("z.tif", "b/0.PNG", "b/1.png", "a.png", "z.tif")]
    shallow = [Path(p.name).name for p in predict(network, [photos], recursive=False)]
    assert shallow == ["a.png", "b.png", "z.tif"]


def test_onnx_agrees_with_torch(network, onnx_file, photos, tmp_path):
    wanted = list(predict(network, photos))
    (tmp_path / "only").mkdir()
    shutil.copy(onnx_file, tmp_path / "only" / "network.onnx")
    for source in (onnx_file, tmp_path / "only"):
        found = list(predict(source, [photos], batch=3))
        assert [p.name for p in found] == [p.name for p in wanted]
        for a, b in zip(found, wanted):
            assert dict(a.probabilities) == pytest.approx(dict(b.probabilities), abs=1e-5)


def test_onnx_needs_no_torch(onnx_file, photos, network):
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from tailorvit.predict import run_predict\n"
        "code = run_predict(sys.argv[1], sys.argv[2:], 'json', 0, sys.stdout)\n"
        "heavy = {'timm', 'torchvision', 'sklearn', 'onnx', 'pydantic', 'safetensors', 'rich', 'typer'}\n"
        "sys.exit(', '.join(heavy & set(sys.modules)) or code)"
    )
    names = [str(photos / "a.png"), str(photos / "c")]
    done = subprocess.run([sys.executable, "-c", code, onnx_file, *names], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    rows, wanted = json.loads(done.stdout), list(predict(network, names))
    assert [r["file"] for r in rows] == [p.name for p in wanted]
    assert [r["classes"] for r in rows] == [pytest.approx(dict(p.probabilities), abs=1e-5) for p in wanted]
    done = subprocess.run([sys.executable, "-c", code, network, *names], capture_output=True, text=True, check=False)
    assert "TailorError: Predicting with the folder" in done.stderr and "needs torch" in done.stderr


def test_run_folders_and_other_folders(network, photos, tmp_path):
    shutil.copytree(network, tmp_path / "run" / "network")
    assert next(predict(tmp_path / "run", photos / "a.png")) == next(predict(network, photos / "a.png"))
    with pytest.raises(TailorError, match=r"'.*photos' holds no finished network"):
        predict(photos, photos)
    with pytest.raises(TailorError, match=r"notes\.txt' is not a network: give a run folder, a network folder or"):
        predict(photos / "notes.txt", photos)
    with pytest.raises(TailorError, match="There is no ONNX file"):
        predict(tmp_path / "none.onnx", photos)


def test_two_classes_of_one_name_are_refused(network, tmp_path):
    shutil.copytree(network, tmp_path / "n")
    card = json.loads((tmp_path / "n" / "network.json").read_text())
    (tmp_path / "n" / "network.json").write_text(json.dumps(card | {"classes": ["a", "b", "a", "c"]}))
    with pytest.raises(TailorError, match="two classes called 'a'"):
        load_classifier(tmp_path / "n")


def test_an_output_that_is_not_a_number(network, photos, monkeypatch):
    real = load_classifier(network)
    broken = module.Classifier(real.classes, real.preprocessing, lambda x: real.probabilities(x) * np.float32("nan"))
    monkeypatch.setattr(module, "load_classifier", lambda _: broken)
    assert [p.error for p in predict(network, photos / "a.png")] == ["the network's output is not a number"]


def test_images_are_read_a_batch_at_a_time(network, photos, monkeypatch, tmp_path):
    seen = []
    real = module.prepare
    monkeypatch.setattr(module, "prepare", lambda source, how: seen.append(source) or real(source, how))
    names = tmp_path / "names.txt"
    names.write_text(f"{photos / 'a.png'}\n" * 1000)
    with names.open("rb") as stdin:
        rows = predict(network, ["-"], batch=16, stdin=stdin)
        assert seen == []
        for _ in range(17):
            next(rows)
        assert len(seen) == 32
        assert sum(1 for _ in rows) == 1000 - 17


# -- unreadable images -----------------------------------------------------------------------------------------------


def test_broken_images_in_a_folder_get_rows(network, photos):
    (photos / "b" / "text.png").write_bytes(b"text")
    (photos / "b" / "empty.png").touch()
    (photos / "b" / "gone.png").symlink_to(photos / "nowhere.png")
    cut = photos / "c" / "1.bmp"
    cut.write_bytes(cut.read_bytes()[:200])
    code, rows, err = wrote(network, [photos], batch=4)
    bad = {Path(r["file"]).name: r["error"] for r in rows if r["error"]}
    assert code == 1 and err == "tailorvit: 4 of 11 images could not be read.\n"
    assert bad["text.png"] == bad["empty.png"] == "not an image" and bad["gone.png"] == "no such file"
    assert "truncated" in bad["1.bmp"]
    assert all(bool(r["classes"]) != bool(r["error"]) for r in rows)
    for name in ("text.png", "empty.png", "gone.png"):
        (photos / "b" / name).unlink()
    cut.unlink()
    good = {p.name: pytest.approx(dict(p.probabilities), abs=1e-6) for p in predict(network, photos)}
    assert {r["file"]: r["classes"] for r in rows if not r["error"]} == good


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("none.png", r"There is no image file or folder '.*none\.png'\."),
        ("none", r"There is no image file or folder '.*none'\."),
        ("a.png/b.png", r"There is no image file or folder .*\(not a directory\)"),
        ("x" * 300 + ".png", r"There is no image file or folder .*\(file name too long\)"),
        ("a\0.png", r"There is no image file or folder"),
        ("notes.txt", r"Cannot read '.*notes\.txt' as an image: not an image\."),
        ("empty", r"There are no images in or below '.*empty'; known endings: \.jpg"),
        ("pipe", "is neither a file nor a folder"),
    ],
)
def test_mistakes_in_the_arguments_come_first(network, photos, name, sentence):
    (photos / "empty").mkdir()
    os.mkfifo(photos / "pipe")
    out = io.StringIO()
    with pytest.raises(TailorError, match=sentence):
        run_predict(network, [photos / "a.png", "-", f"{photos}/{name}"], "csv", 3, out, stdin=io.BytesIO(b"x"))
    assert out.getvalue() == ""


def test_options_are_checked(network, photos):
    with pytest.raises(TailorError, match="Nothing to predict"):
        predict(network, [])
    with pytest.raises(TailorError, match="batch must be a whole number of at least 1, not 0"):
        predict(network, photos, batch=0)
    with pytest.raises(TailorError, match=r"Unknown output format 'jsn'. Did you mean 'json'\? Known: csv, json, text"):
        wrote(network, [photos], "jsn")
    with pytest.raises(TailorError, match=r"must be 0 \(all\) or more, not -1"):
        wrote(network, [photos], top=-1)


def test_a_folder_that_cannot_be_listed(tmp_path):
    assert list(image_files(tmp_path / "gone")) == [
        (tmp_path / "gone", "the folder cannot be listed: no such file or directory")
    ]


# -- standard input ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["png", "jpeg", "gif", "bmp", "tiff", "webp", "ppm"])
def test_one_image_on_standard_input(network, tmp_path, form):
    with Image.open(make_image(tmp_path / "a.png", 3, 300)) as image:
        image.save(tmp_path / "b", form)
    (row,) = predict(network, "-", stdin=io.BytesIO((tmp_path / "b").read_bytes()))
    assert row == Prediction("-", next(predict(network, tmp_path / "b")).probabilities)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("name", ["a.png", "BMW/1.png", "P1/1.png", "GIF89a.png", "größe ü.png", "a b\t'\".png"])
def test_a_list_on_standard_input(network, tmp_path, monkeypatch, name, end):
    """Names that begin like the signature of an image are names all the same."""
    monkeypatch.chdir(tmp_path)
    make_image(tmp_path / name, 1)
    make_image(tmp_path / "more" / "2.png", 2)
    lines = [name, "", "more", "none.png", "x" * 300, name]
    found = list(predict(network, ["more", "-"], stdin=io.BytesIO(end.join(lines).encode())))
    assert [p.name for p in found] == ["more/2.png", name, "more/2.png", "none.png", "x" * 300, name]
    assert [p.error for p in found] == [None, None, None, "no such file", "file name too long", None]
    assert found[1] == found[-1]


def test_bytes_that_are_neither_image_nor_list(network, tmp_path):
    whole = make_image(tmp_path / "a.png").read_bytes()
    for data in (whole[:60], b"\0" * 40, whole[:5] + b"\0" + whole[5:]):
        code, rows, _ = wrote(network, ["-"], stdin=io.BytesIO(data))
        assert code == 1 and [r["file"] for r in rows] == ["-"] and rows[0]["error"]
    for data in (b"", b"\n\n"):
        with pytest.raises(TailorError, match="Standard input is empty"):
            predict(network, "-", stdin=io.BytesIO(data))
    with pytest.raises(TailorError, match="can be read only once"):
        predict(network, ["-", "-"], stdin=io.BytesIO(whole))


# -- writers -----------------------------------------------------------------------------------------------------------

HOSTILE = [
    "a,b.png",
    'a"b.png',
    "a\nb.png",
    "a\rb.png",
    "=1+1.png",
    "\x1b[31mred.png",
    "<b>.png",
    os.fsdecode(b"\xff.png"),
]


def test_hostile_names_stay_names(network, tmp_path):
    """Every writer keeps the names apart, one row or line per file."""
    files = [str(make_image(tmp_path / "h" / name)) for name in HOSTILE]
    _, rows, _ = wrote(network, files)
    assert [r["file"] for r in rows] == files
    _, text, _ = wrote(network, files, "csv", 1)
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    assert [r["file"] for r in rows[:-1]] == files[:-1] and rows[-1]["file"] == str(tmp_path / "h" / "\\udcff.png")
    _, text, _ = wrote(network, files, "text", 1)
    lines = text.split("\n")
    assert len(lines) == len(files) + 1 and text.isascii() and "\x1b" not in text and "\r" not in text
    assert "a\\nb.png: " in lines[2]


def test_csv_has_a_line_for_each_class(network, photos):
    (photos / "b" / "text.png").write_bytes(b"text")
    code, text, _ = wrote(network, [photos / "a.png", photos / "b"], "csv", 2)
    rows = list(csv.reader(io.StringIO(text, newline="")))
    assert code == 1 and rows[0] == ["file", "rank", "label", "probability", "error"]
    assert [r[1] for r in rows[1:]] == ["1", "2"] * 3 + [""]
    assert rows[-1] == [str(photos / "b" / "text.png"), "", "", "", "not an image"]
    scores = next(predict(network, photos / "a.png")).top(2)
    assert {r[2]: float(r[3]) for r in rows[1:3]} == pytest.approx(scores, rel=1e-5)
    assert text.count("\r") == 0


def test_text_is_one_line_per_file(network, photos):
    code, text, err = wrote(network, [photos / "a.png"], "text", 2)
    (first, p), (second, q) = next(predict(network, photos / "a.png")).top(2).items()
    assert code == 0 and err == ""
    assert text == f"{photos / 'a.png'}: {first} {100 * p:.1f} %, {second} {100 * q:.1f} %\n"
    (photos / "b" / "text.png").write_bytes(b"text")
    assert f"{photos / 'b' / 'text.png'}: error: not an image\n" in wrote(network, [photos / "b"], "text")[1]


@pytest.mark.parametrize(("top", "count"), [(0, 4), (1, 1), (3, 3), (9, 4)])
def test_top(network, photos, top, count):
    _, rows, _ = wrote(network, [photos], top=top)
    assert {len(r["classes"]) for r in rows} == {count} and rows[0]["error"] is None


@pytest.mark.parametrize("form", ["text", "json", "csv"])
def test_a_terminal_without_the_characters(network, tmp_path, form):
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii")
    assert run_predict(network, [make_image(tmp_path / "größe.png")], form, 1, out) == 0
    out.flush()
    assert b"gr\\" in raw.getvalue()
