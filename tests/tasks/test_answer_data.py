"""Reading questions about images: layouts, mistakes, splits, batches."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from answer_tools import COLOURS, folder, picture, rows_of
from PIL import Image

from tailorvit.errors import TailorError
from tailorvit.tasks.answer import TASK, AnswerSettings
from tailorvit.tasks.question_data import letterbox
from tailorvit.tasks.questions import answer_text, kind_of, read_questions, soft_scores


def read(root, seed=0, splits=None, **settings):
    return TASK.read(str(root), AnswerSettings(**settings), seed, splits)


def easy(root):
    """The layout of the package easy-vqa."""
    for split, images in (("train", 6), ("test", 3)):
        for i in range(images):
            picture(root / "data" / split / "images" / f"{i}.png", list(COLOURS)[i % 3], i)
        rows = [[r["question"], r["answer"], int(r["image"].split(".")[0])] for r in rows_of(images)]
        (root / "data" / split / "questions.json").write_text(json.dumps(rows))
    return root


def official(root):
    """The layout of VQA v2: two files a part, ten people's answers."""
    ids = {"train2014": range(1, 7), "val2014": range(7, 10)}
    for subset, numbers in ids.items():
        questions, annotations = [], []
        for n in numbers:
            picture(root / "images" / subset / f"COCO_{subset}_{n:012d}.jpg", list(COLOURS)[n % 3], n)
            questions.append({"image_id": n, "question": "What colour is it?", "question_id": 10 * n})
            given = ["a red"] * 3 + ["Blue."] * 7 if n % 2 else ["two"] * 10
            annotations.append(
                {
                    "question_id": 10 * n,
                    "image_id": n,
                    "answer_type": "other" if n % 2 else "number",
                    "answers": [{"answer": a, "answer_id": i} for i, a in enumerate(given)],
                }
            )
        head = {"data_type": "mscoco", "data_subtype": subset}
        name = f"v2_OpenEnded_mscoco_{subset}_questions.json"
        (root / name).write_text(json.dumps({**head, "questions": questions}))
        (root / f"v2_mscoco_{subset}_annotations.json").write_text(json.dumps({**head, "annotations": annotations}))
    lone = {"data_subtype": "test2015", "questions": questions}
    (root / "v2_OpenEnded_mscoco_test2015_questions.json").write_text(json.dumps(lone))
    return root


# -- layouts --


def test_splits_are_of_images_and_come_back(tmp_path):
    data = read(folder(tmp_path, 20))
    assert set(data.classes) == {"no", "yes", *COLOURS} and data.classes[0] == "no"
    record = data.split_record()
    names = [n for part in record.values() for n in part]
    assert len(names) == len(set(names)) == 20
    assert data.counts == {"train": 14, "search": 3, "test": 3}
    assert read(tmp_path, seed=1).split_record() != record
    again = read(tmp_path, seed=1, splits=record)
    assert again.split_record() == record and again.fingerprint == data.fingerprint
    data.unseal_test("it is tested")
    asked = {s: {q.image for q in data.questions(s)} for s in record}
    assert not asked["train"] & asked["test"] and not asked["train"] & asked["search"]


def test_splits_of_other_data_are_refused(tmp_path):
    record = read(folder(tmp_path, 12)).split_record()
    before = read(tmp_path).fingerprint
    folder(tmp_path, 13)
    assert read(tmp_path).fingerprint != before
    with pytest.raises(TailorError, match=r"image 'images/12\.png' is new"):
        read(tmp_path, splits=record)
    record["train"].append("images/99.png")
    record["train"].append("images/12.png")
    with pytest.raises(TailorError, match=r"image 'images/99\.png' is gone"):
        read(tmp_path, splits=record)


def test_easy_vqa_is_read_as_it_lies_in_its_package(tmp_path, monkeypatch):
    easy(tmp_path / "easy_vqa")
    (tmp_path / "easy_vqa" / "__init__.py").touch()
    data = read(tmp_path / "easy_vqa")
    assert data.counts == {"train": 5, "search": 1, "test": 3}
    with monkeypatch.context() as changed, pytest.raises(TailorError, match="pip install easy-vqa"):
        changed.setattr("tailorvit.tasks.questions.find_spec", lambda name: None)
        read_questions("easy-vqa")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert len(read_questions("easy-vqa").questions) == 18
    assert read("easy-vqa").fingerprint == data.fingerprint


def test_vqa_v2_counts_what_ten_people_said(tmp_path):
    data = read(official(tmp_path))
    assert data.soft and data.counts == {"train": 5, "search": 1, "test": 3}
    assert set(data.classes) == {"red", "blue", "2"}
    data.unseal_test("it is tested")
    first = data.questions("test")[0]
    assert first.scores == pytest.approx({"red": 0.9, "blue": 1.0}) and first.kind == "other"
    assert any("test2015" in note and "left out" in note for note in data.notes)
    batch = next(iter(data.eval_batches("test", 1)))
    assert batch.target[0, data.classes.index("red")] == pytest.approx(0.9)


def test_a_table_with_official_splits(tmp_path):
    folder(tmp_path, 9)
    lines = ["image,question,answer,split"]
    parts = ["train"] * 5 + ["val"] * 2 + ["test"] * 2
    lines += [f"{r['image']},{r['question']},{r['answer']},{parts[int(r['image'][0])]}" for r in rows_of(9)]
    (tmp_path / "questions.json").unlink()
    (tmp_path / "questions.csv").write_text("\n".join(lines), encoding="utf-8-sig")
    assert read(tmp_path).counts == {"train": 5, "search": 2, "test": 2}
    (tmp_path / "questions.csv").write_text("\n".join(line for line in lines if not line.endswith("test")))
    (tmp_path / "images" / "7.png").unlink()
    assert read(tmp_path).counts == {"train": 4, "search": 1, "test": 2}  # val is tested, training gives some up


@pytest.mark.parametrize(
    ("given", "worth"),
    [
        (["a"], {"a": 1.0}),
        (["x"] * 1 + ["y"] * 9, {"x": 0.3, "y": 1.0}),
        (["x"] * 2 + ["y"] * 8, {"x": 0.6, "y": 1.0}),
        (["x"] * 3 + ["y"] * 7, {"x": 0.9, "y": 1.0}),
        (["a dog", "the dog", "dog"], {"dog": 1.0}),
        (["x", "x", "y"], {"x": 1.0, "y": 0.5}),
    ],
)
def test_soft_scores(given, worth):
    assert soft_scores(given) == pytest.approx(worth)


def test_answers_and_their_kinds():
    assert [answer_text(a) for a in (" Dark  Blue. ", True, 3, None, "", [1])] == ["dark blue", "yes", "3", "", "", ""]
    assert [kind_of(a) for a in ("no", "12", "teal", "circle", "a dog", "three")] == [
        "yes_no",
        "number",
        "colour",
        "shape",
        "other",
        "number",
    ]


# -- mistakes --


def test_mistakes_are_named_and_left_out(tmp_path):
    rows = rows_of(10)
    rows[0]["answer"] = ""
    rows[3]["question"] = "  "
    rows += [{"image": "77.png", "question": "Is it red?", "answer": "no"}, "nonsense"]
    rows += [{"image": "8.png", "question": "Is it red?", "answer": "no", "split": "exam"}]
    rows += [{"question": "Is it red?", "answer": "no"}]
    folder(tmp_path, 10, rows)
    (tmp_path / "images" / "5.png").write_bytes(b"no image")
    data = read(tmp_path)
    assert data.skipped["questions.json row 1"] == "the question has no answer"
    assert data.skipped["questions.json row 4"] == "the question is empty"
    assert data.skipped["images/77.png"] == "there is no such image; 1 question is left out"
    assert data.skipped["questions.json row 22"] == "it is no row of image, question and answer"
    assert "'exam'" in data.skipped["questions.json row 23"]
    assert data.skipped["questions.json row 24"] == "the question names no image"
    assert data.skipped["images/5.png"] == "it cannot be read: not an image"
    assert "images/5.png" not in [n for part in data.split_record().values() for n in part]
    assert any("7 rows and images are left out" in note for note in data.notes)


def test_answers_of_the_test_alone_are_said(tmp_path):
    rows = [{**r, "split": "test" if int(r["image"][:-4]) > 8 else "train"} for r in rows_of(12)]
    rows[-1]["answer"] = "perhaps"
    data = read(folder(tmp_path, 12, rows))
    assert "perhaps" not in data.classes
    assert any("1 test questions have answers that are none of training's ('perhaps')" in n for n in data.notes)
    data.unseal_test("it is tested")
    assert next(iter(data.eval_batches("test", 6))).target[-1].sum() == 0


def test_rare_answers_are_left_out_of_training(tmp_path):
    whole = read(folder(tmp_path, 24))
    data = read(tmp_path, answers=2)
    assert data.classes == whole.classes[:2] and data.classes[0] == "no"
    assert any("have none of the 2 most frequent answers" in n for n in data.notes)
    assert all(set(q.scores) & set(data.classes) for q in data.questions("train"))
    assert len(data.questions("train")) < len(whole.questions("train"))


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([], "has no question that can be used"),
        ([{"image": "0.png", "question": "Is it?", "answer": ""}], r"questions.json row 1: the question has no answer"),
        ({"rows": []}, "must hold a list of rows"),
        ([{**r, "answer": "no"} for r in rows_of(12)], "All training questions .* have the answer 'no'"),
        ([{**r, "split": "train"} for r in rows_of(12)], "The only splits of the questions: train"),
        ([*rows_of(12), {**rows_of(1)[0], "split": "test"}], r"'images/0.png' has questions of two splits"),
        ([{**r, "split": "test" if r["image"] == "1.png" else ""} for r in rows_of(12)], "has no split"),
        (rows_of(2), "2 images with questions cannot be split"),
    ],
)
def test_useless_data_are_refused(tmp_path, rows, said):
    folder(tmp_path, 12, rows)
    with pytest.raises(TailorError, match=said):
        read(tmp_path)


def test_folders_without_questions_are_refused(tmp_path):
    with pytest.raises(TailorError, match="There is no"):
        read(tmp_path / "nowhere")
    with pytest.raises(TailorError, match="holds no questions"):
        read(tmp_path)
    (tmp_path / "questions.csv").write_text("image,question\n1,what?")
    with pytest.raises(TailorError, match="no column 'answer'"):
        read(tmp_path)
    (tmp_path / "questions.json").write_text("{")
    with pytest.raises(TailorError, match="Cannot read"):
        read(tmp_path)


# -- batches --


def test_batches_are_a_function_of_seed_and_step(tmp_path):
    data = read(folder(tmp_path, 12))
    batches, later = data.train_batches(4, 5), list(data.train_batches(4, 5).iterate(3, 9))
    state = torch.get_rng_state()
    for a, b in zip(list(batches.iterate(0, 9))[3:], later, strict=True):
        assert all(torch.equal(s, t) for s, t in zip(a, b, strict=True))
    assert not torch.equal(data.train_batches(4, 6).at(0).x, batches.at(0).x)
    assert torch.equal(torch.get_rng_state(), state)
    epoch = torch.cat([b.y for b in batches.iterate(0, batches.steps_per_epoch)])
    assert len(epoch) == batches.steps_per_epoch * 4


def test_the_test_split_is_sealed(tmp_path):
    data = read(folder(tmp_path, 12))
    with pytest.raises(TailorError, match="sealed"):
        next(iter(data.eval_batches("test", 4)))
    with pytest.raises(TailorError, match="sealed"):
        data.questions("test")


def test_a_letterbox_keeps_the_whole_image():
    wide = Image.fromarray(np.full((8, 16, 3), 200, np.uint8))
    pixels = letterbox(wide, (16, 16), 3)
    assert (pixels[:, 4:12] == 200).all() and (pixels[:, :4] == 128).all() and (pixels[:, 12:] == 128).all()


def test_images_that_do_not_fit_into_memory_are_read_when_asked_for(tmp_path, monkeypatch):
    data = read(folder(tmp_path, 12))
    monkeypatch.setattr("tailorvit.tasks.question_data.CACHE_BYTES", 10)
    lazy = read(tmp_path)
    assert lazy._pictures._kept is None and data._pictures._kept is not None
    ids = np.arange(5)
    assert torch.equal(lazy.at("train", ids).x, data.at("train", ids).x)
    (tmp_path / "images" / "3.png").write_bytes(b"broken")
    assert read(tmp_path).skipped == {"images/3.png": "it cannot be read: not an image"}
