"""Words of questions as numbers, and a BERT read from a folder."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from answer_tools import SMALL, Strided, folder
from safetensors.torch import load_file, save_file

from tailorvit.errors import TailorError
from tailorvit.tasks.answer import TASK, AnswerSettings
from tailorvit.tasks.words import TextFolder, WordList, WordPieces, split_words, words_of

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "what", "colour", "is", "it", "?", "re", "##d", "col", "##our"]


def bert_folder(root, **config):
    """A BERT as transformers saves it, with random weights."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    small = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    settings = transformers.BertConfig(**{"vocab_size": len(PIECES), "max_position_embeddings": 24, **small, **config})
    transformers.BertModel(settings).save_pretrained(root)
    (root / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    return root


def test_a_word_list_numbers_words_and_pads():
    words = WordList.of(["What colour is it?", "Is it IT's colour?"])
    assert words.vocabulary[:4] == ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
    assert words.vocabulary[4:] == ("colour", "is", "it", "it's", "what")
    rows = words.encode(["is it?", "what a colour is this and it", ""])
    assert rows.tolist() == [[2, 5, 6, 3, 0, 0], [2, 8, 1, 4, 5, 3], [2, 3, 0, 0, 0, 0]]
    again = words_of(json.loads(json.dumps(words.to_dict())))
    assert np.array_equal(again.encode(["what is it"]), words.encode(["What is IT!"]))
    assert split_words("don’t stop, 2 dogs") == ["don’t", "stop", "2", "dogs"]


def test_word_pieces_are_those_of_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    words = TextFolder(str(bert_folder(tmp_path))).words(["What colour is it?", "Is it red?"])
    assert words.length == 7
    tokens = transformers.BertTokenizer.from_pretrained(str(tmp_path))
    for question in ("What colour is it?", "Is it redd?"):
        theirs = tokens(question)["input_ids"]
        row = words.encode([question])[0].tolist()
        assert row[: len(theirs)] == theirs[: words.length] or row[: words.length - 1] == theirs[: words.length - 1]
    again = words_of(json.loads(json.dumps(words.to_dict())))
    assert np.array_equal(again.encode(["is it red"]), words.encode(["is it red"]))


@pytest.mark.parametrize("old", [False, True])
def test_a_berts_weights_give_what_transformers_gives(tmp_path, old):
    transformers = pytest.importorskip("transformers")
    text = bert_folder(tmp_path / "bert")
    if old:  # the names of early checkpoints: a prefix, gamma and beta, and heads that are not used
        tensors = load_file(text / "model.safetensors")
        new = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
        for now, then in new.items():
            tensors = {name.replace(now, then): t for name, t in tensors.items()}
        tensors = {"cls.bias": torch.zeros(3), **{f"bert.{name}": t for name, t in tensors.items()}}
        save_file(tensors, text / "model.safetensors")
    settings = AnswerSettings(text=str(text))
    data = TASK.read(str(folder(tmp_path / "data")), settings, 0)
    network = TASK.build(Strided(), data, settings).eval()
    reference = transformers.BertModel.from_pretrained(bert_folder(tmp_path / "again")).eval()
    words = torch.from_numpy(data.words.encode(["What colour is it?", "Is it?"]))
    there = words != data.words.pad
    with torch.no_grad():
        ours = network.encode(words, None)
        theirs = reference(input_ids=words, attention_mask=there.long()).last_hidden_state
    assert (~there).any() and torch.allclose(ours[there], theirs[there], atol=1e-5)
    assert network.head[0].in_features == 16


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (lambda f: (f / "vocab.txt").unlink(), "it has no vocab.txt"),
        (lambda f: (f / "model.safetensors").write_bytes(b"x"), "not a readable safetensors"),
        (lambda f: (f / "config.json").write_text('{"model_type": "roberta"}'), "holds a 'roberta'"),
        (lambda f: (f / "config.json").write_text("{"), "Cannot read"),
        (
            lambda f: (f / "config.json").write_text('{"model_type": "bert"}'),
            "must hold vocab_size above zero, not None",
        ),
        (lambda f: (f / "vocab.txt").write_text("\n".join(PIECES * 2)), "28 word pieces and weights for 14"),
        (lambda f: (f / "vocab.txt").write_text("what\nis"), r"has no '\[PAD\]'"),
        (lambda f: changed(f, hidden_size=32), "has the shape"),
        (lambda f: changed(f, num_hidden_layers=3), "has no 'encoder.layer.2"),
        (lambda f: changed(f, type_vocab_size=1), "need two"),
    ],
)
def test_folders_that_are_no_bert_are_refused(tmp_path, break_it, said):
    text = bert_folder(tmp_path / "bert")
    data = folder(tmp_path / "data")
    break_it(text)
    settings = AnswerSettings(text=str(text))
    with pytest.raises(TailorError, match=said):
        TASK.build(Strided(), TASK.read(str(data), settings, 0), settings)


def changed(text, **config):
    file = text / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **config}))


def test_settings_are_checked():
    for wrong, said in (
        ({"width": 48}, "multiple of 32"),
        ({"depth": 0}, "answer.depth must be from 1"),
        ({"answers": 1}, "answer.answers"),
        ({"dropout": float("nan")}, "answer.dropout"),
        ({"image_size": -3}, "image size"),
    ):
        with pytest.raises(TailorError, match=said):
            AnswerSettings(**{**SMALL, **wrong})
    assert isinstance(WordPieces(PIECES, True, 5).vocabulary, tuple)
