"""Weight files: sizes and types are checked before memory is taken, and nothing in them runs."""

from __future__ import annotations

import json
import os
import shutil
import zipfile

import pytest
import torch
from safetensors.torch import load_file, save_file
from trust_tools import QUICK, refused

from tailorvit.families import family, named_arch
from tailorvit.tensors import read_safetensors, safetensors_shapes


def header(text: str | bytes, body: bytes = b"") -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return len(raw).to_bytes(8, "little") + raw + body


BAD = {
    "empty": b"",
    "short": b"\0\0",
    "long header": (10**15).to_bytes(8, "little") + b"{}",
    "list": header("[]"),
    "deep": header("[" * 5000),
    "not UTF-8": header(b'{"\xff": 1}'),
    "huge": header('{"a":{"dtype":"F32","shape":[1000000000000,1000],"data_offsets":[0,4]}}', b"0000"),
    "negative": header('{"a":{"dtype":"F32","shape":[-1,-1],"data_offsets":[0,4]}}', b"0000"),
    "type": header('{"a":{"dtype":"C64","shape":[1],"data_offsets":[0,8]}}', b"00000000"),
    "cut": header('{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}', b"0000"),
    "overlong": header('{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', b"00000000"),
    "no shape": header('{"a":{"dtype":"F32"}}'),
    "number": header('{"a":3}'),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_header_that_lies_is_refused_before_anything_is_read(call, tmp_path, kind, pictures):
    file = tmp_path / "x.safetensors"
    file.write_bytes(BAD[kind])
    with pytest.raises(ValueError):
        safetensors_shapes(file)
    refused(call("import", file, "--as", "deit-s", "--out", tmp_path / "net"))
    refused(call("run", "--data", pictures, "--from", file, *QUICK[:2], "--out", tmp_path / "run"))
    refused(call("run", "--data", pictures, "--set", f"trunk.source={file}", "--set", "family=ladder", *QUICK))


def test_shapes_are_those_of_the_library(tmp_path):
    save_file({"a": torch.zeros(2, 3), "b": torch.ones(1, dtype=torch.int64)}, tmp_path / "x.safetensors")
    assert safetensors_shapes(tmp_path / "x.safetensors") == {"a": (2, 3), "b": (1,)}
    assert set(read_safetensors(tmp_path / "x.safetensors")) == {"a", "b"}


@pytest.fixture(scope="module")
def deit():
    named, record = named_arch("deit-ti"), family("vit")
    return record.build(record.settings(dict(named.settings)), named.arch).state_dict()


class Harm:
    def __init__(self, place):
        self.place = place

    def __reduce__(self):
        return os.makedirs, (self.place,)


CHANGES = {
    "NaN": (lambda w: w * float("nan"), "NaN or infinite"),
    "infinite": (lambda w: w + float("inf"), "NaN or infinite"),
    "int8": (lambda w: w.to(torch.int8), "int8"),
    "complex": (lambda w: w.to(torch.complex64), "complex"),
    "sparse": (lambda w: w.to_sparse(), "sparse"),
    "expanded": (lambda w: torch.zeros(1).expand(10**6, 10**6), "without all its values"),
    "meta": (lambda w: w.to("meta"), ""),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_a_checkpoint_of_other_numbers_is_refused(call, tmp_path, deit, kind):
    change, words = CHANGES[kind]
    torch.save({"model": {**deit, "head.weight": change(deit["head.weight"])}}, tmp_path / "x.pth")
    refused(call("import", tmp_path / "x.pth", "--as", "deit-ti", "--out", tmp_path / "net"), words)
    assert not (tmp_path / "net").exists()


def test_a_pickle_that_would_act_does_nothing(call, tmp_path, deit):
    torch.save({"model": deit, "args": Harm(str(tmp_path / "harm"))}, tmp_path / "x.pth")
    refused(call("import", tmp_path / "x.pth", "--as", "deit-ti", "--out", tmp_path / "net"))
    refused(call("run", "--set", f"trunk.source={tmp_path / 'x.pth'}", "--set", "family=ladder", *QUICK))
    assert not (tmp_path / "harm").exists()


def test_compressed_parts_are_refused(call, tmp_path, deit):
    torch.save({"model": deit}, tmp_path / "x.pth")
    kind = zipfile.ZIP_DEFLATED
    with zipfile.ZipFile(tmp_path / "x.pth") as plain, zipfile.ZipFile(tmp_path / "y.pth", "w", kind) as packed:
        for part in plain.infolist():
            packed.writestr(part.filename, plain.read(part.filename))
    refused(call("import", tmp_path / "y.pth", "--as", "deit-ti", "--out", tmp_path / "net"), "neither a safetensors")


# -- a finished network -----------------------------------------------------------------------------------------------


def edited(folder, **changes):
    path = folder / "network" / "network.json"
    card = json.loads(path.read_text())
    for key, value in changes.items():
        where = card
        *way, last = key.split("__")
        for step in way:
            where = where[step]
        where[last] = value
    path.write_text(json.dumps(card))
    return folder


def reweighted(folder, checksum: bool, **changes):
    file = folder / "network" / "network.safetensors"
    save_file({**load_file(file), **changes}, file)
    return folder if checksum else edited(folder, sha256=None)


def test_weights_that_changed_are_refused(call, damaged, pictures):
    file = damaged / "network" / "network.safetensors"
    raw = bytearray(file.read_bytes())
    raw[-3] ^= 1
    file.write_bytes(raw)
    for command in (("predict", damaged, pictures), ("export", damaged, "--to", "safetensors")):
        refused(call(*command), "network.safetensors has the checksum")


def test_a_card_of_a_newer_format_is_refused(call, damaged, pictures):
    refused(call("predict", edited(damaged, format=2), pictures), "format is 2")


def test_a_network_of_nan_is_named_as_such(call, damaged, pictures):
    nan = torch.full_like(load_file(damaged / "network" / "network.safetensors")["head.weight"], float("nan"))
    refused(call("predict", reweighted(damaged, False, **{"head.weight": nan}), pictures), "NaN", "head.weight")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"plain__settings__embed": 10**12}, "do not belong"),
        ({"plain__settings__heads": [2] * 100_000}, "at most 1000 blocks"),
        ({"plain__settings__image_size": [10**9, 10**9]}, ""),
        ({"plain__settings__classes": 10**12}, "do not belong"),
        ({"plain": None, "arch__embed": 10**12}, "do not belong"),
    ],
)
def test_a_card_that_asks_for_too_much(call, damaged, pictures, changes, words):
    for command in (("predict", damaged, pictures), ("export", damaged, "--to", "safetensors")):
        edited(damaged, **changes)
        refused(call(*command), words)


def test_an_older_card_without_checksum_still_loads(call, base, tmp_path, pictures):
    folder = shutil.copytree(base, tmp_path / "run")
    path = folder / "network" / "network.json"
    card = json.loads(path.read_text())
    del card["sha256"]
    path.write_text(json.dumps(card))
    assert call("predict", folder, pictures)[0] == 0
