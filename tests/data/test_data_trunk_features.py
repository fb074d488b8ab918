"""Trunk features in place of pixels: the interface of Data, and an exact, resumable, shared, self-repairing cache."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
from data_pictures import fill
from torch import nn

from tailorvit.data import Data, open_data
from tailorvit.data.images import preprocess
from tailorvit.data.trunk_features import TrunkFeatureData, cache_root
from tailorvit.errors import TailorError
from tailorvit.trunks import Trunk, open_trunk

LIMIT = 40


def through_trunk(cache: Path, images: Data, trunk: Trunk, **more) -> TrunkFeatureData:
    with patch.dict(os.environ, {"TAILORVIT_CACHE": str(cache)}):
        return TrunkFeatureData(images, trunk, **more)


def digits(cache: Path, source: str = "random:tiny", feature_layers: int | None = None, **more) -> TrunkFeatureData:
    """Digits through the tiny random tower; what the data logs is in ``messages``."""
    trunk = open_trunk(source, (8, 8), channels=1, feature_layers=feature_layers)
    data = through_trunk(cache, open_data("digits", limit=LIMIT), trunk, **{"batch": 16, **more})
    data.messages = []
    data.log = data.messages.append
    return data


def files(cache: Path) -> Path:
    (folder,) = cache.glob("taps-*")
    return folder


def everything(data: TrunkFeatureData, split: str = "train") -> torch.Tensor:
    return torch.cat([x for x, _ in data.eval_batches(split, 7)])


def test_features_take_the_place_of_pixels(tmp_path):
    data = digits(tmp_path)
    assert (data.channels, data.image_size, len(data.classes)) == (4, (17, 32), 10)
    x, y = data.examples("search", range(5))
    assert x.shape == (5, 1, 8, 8) and x.dtype == torch.uint8
    with torch.no_grad():
        direct = data.trunk.network((x / 255 - 0.5) / 0.5)
    found, labels = next(data.eval_batches("search", 5))
    assert found.dtype == torch.float32 and torch.equal(labels, y)
    assert torch.allclose(found, direct, atol=5e-3) and not torch.equal(found, direct)
    assert torch.allclose(found, data.normalise(x), atol=2e-3)
    assert data.preprocessing["image_size"] == [8, 8] and data.preprocessing["mean"] == [0.5]
    assert data.counts == data.images.counts and data.names("search") == data.images.names("search")


def test_files_meet_the_trunk_as_the_cache_did(tmp_path):
    images = open_data(str(fill(tmp_path / "pets", {"cat": 8, "dog": 9})), image_size=32)
    data = through_trunk(tmp_path, images, open_trunk("random:tiny", (32, 32)))
    with torch.no_grad():
        one = data.trunk.network(preprocess(Path(data.source) / data.names("train")[0], **data.preprocessing))
    assert torch.allclose(one, everything(data)[:1], atol=2e-2)


def test_a_second_run_reads_the_same_bits_and_computes_nothing(tmp_path):
    first = everything(digits(tmp_path))
    data = digits(tmp_path, batch=5)
    data._compute = None  # would fail if called
    assert torch.equal(everything(data), first)
    assert any(f"0 computed, {len(first)} from the cache" in line for line in data.messages)


def test_test_rows_wait_for_the_seal(tmp_path):
    data = digits(tmp_path)
    data.prepare()
    with pytest.raises(TailorError, match="sealed"):
        data.eval_batches("test", 4)
    ids = data._splits["test"]
    assert data.cache.written("plain", ids) == 0
    data.unseal_test("a test")
    assert data.cache.written("plain", ids) == len(ids) == len(everything(data, "test"))


def test_each_trunk_size_and_data_has_its_own_cache(tmp_path):
    for changes in ({}, {"source": "random:tiny#seed=1"}, {"feature_layers": 2}):
        digits(tmp_path, **changes)
    other = open_data("digits", image_size=16, limit=LIMIT)
    through_trunk(tmp_path, other, open_trunk("random:tiny", (16, 16), channels=1))
    assert len(list(tmp_path.glob("taps-*"))) == 4


@pytest.mark.parametrize("damage", ["row", "facts", "short", "marks"])
def test_damage_is_repaired_and_logged(damage, tmp_path):
    first = everything(digits(tmp_path))
    folder = files(tmp_path)
    if damage == "row":
        row = digits(tmp_path)._splits["train"][3]
        with (folder / "plain.f16").open("r+b") as file:
            file.seek(int(row) * 4 * 17 * 32 * 2 + 100)
            file.write(b"\x12\x34\x56")
    elif damage == "facts":
        (folder / "cache.json").write_text('{"trunk": "another"}')
    elif damage == "short":
        os.truncate(folder / "plain.f16", 1000)
    else:
        (folder / "plain.marks").unlink()
    data = digits(tmp_path)
    data.prepare()
    assert torch.equal(everything(data), first)
    wanted = "1 computed" if damage == "row" else f"{len(first)} computed"
    assert any(wanted in line for line in data.messages) and any("damaged" in line for line in data.messages)


def test_a_changed_picture_of_the_same_size_is_seen(tmp_path):
    data = digits(tmp_path)
    before = everything(data)
    data.images._images.images = data.images._images.images.copy()
    row = data._splits["train"][0]
    data.images._images.images[row] = 255 - data.images._images.images[row]
    data._filled.clear()
    after = everything(data)
    assert not torch.equal(after[0], before[0]) and torch.equal(after[1:], before[1:])


KILLED = """
import sys, time, torch
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import test_data_trunk_features as own
data = own.digits(Path(sys.argv[1]), batch=4)
plain = data._compute
def slow(x):
    time.sleep(float(sys.argv[3]))
    return plain(x)
data._compute = slow
print("go", flush=True)
data.prepare()
"""


def start(cache: Path, delay: float) -> subprocess.Popen:
    command = [sys.executable, "-c", KILLED, str(cache), str(Path(__file__).parent), str(delay)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_killed_and_shared_between_processes(tmp_path):
    whole = everything(digits(tmp_path / "whole", batch=4))
    cache = tmp_path / "shared"
    first, second = start(cache, 0.3), start(cache, 0.01)
    try:
        assert first.stdout.readline() == second.stdout.readline() == "go\n"
        time.sleep(0.4)
        first.send_signal(signal.SIGKILL)  # perhaps in the midst of a batch, with the lock
        assert second.wait(60) == 0
    finally:
        first.kill()
        first.wait()
        second.kill()
    data = digits(cache, batch=4)
    assert torch.equal(everything(data), whole)
    assert any("0 computed" in line for line in data.messages)


# -- training ---------------------------------------------------------------------------------------------------------


def test_batches_are_a_function_of_the_step(tmp_path):
    data = digits(tmp_path)
    mild = data.augment("mild")
    assert (mild.mixup, mild.smoothing, mild.flip, mild.crop_pad) == (0.2, 0.1, False, 0)
    batches = data.train_batches(8, 3, mild)
    ahead = list(batches.iterate(2, 7))
    for step, batch in enumerate(ahead, 2):
        again = batches.at(step)
        assert all(torch.equal(a, b) for a, b in zip(batch, again, strict=True))
    assert ahead[0].x.shape == (8, 4, 17, 32) and torch.allclose(ahead[0].target.sum(1), torch.ones(8))
    plain = data.train_batches(8, 3, data.augment("none")).at(2)
    rows = torch.from_numpy(data._splits["train"])[torch.from_numpy(batches._positions(2))]
    assert torch.equal(plain.x, data.cache.read("plain", rows.numpy()).float())


def test_mirrored_images_are_cached_and_drawn(tmp_path):
    data = digits(tmp_path, mirror=True)
    batches = data.train_batches(20, 0, data.augment("none"))
    batch, ids = batches.at(0), data._splits["train"][batches._positions(0)]
    variants = [data.cache.read(variant, ids).float() for variant in ("plain", "mirror")]
    equal = np.array([[torch.equal(x, v[k]) for v in variants] for k, x in enumerate(batch.x)])
    assert (equal.sum(1) == 1).all() and 0 < equal[:, 1].sum() < 20
    x, _ = data.images.examples("train", [0])
    assert torch.allclose(
        data.normalise(x.flip(3)), data.cache.read("mirror", data._splits["train"][:1]).float(), atol=2e-3
    )
    assert data.cache.written("mirror", data._splits["search"]) == 0


def test_a_full_disk_is_an_error_before_anything_is_computed(tmp_path, monkeypatch):
    data = digits(tmp_path)
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("tailorvit.data.trunk_features.shutil.disk_usage", lambda _: usage)
    data._compute = None  # would fail if called
    with pytest.raises(TailorError, match=r"need .* but .* free; lower trunk\.taps"):
        data.prepare()


def test_outputs_beyond_float16_are_refused(tmp_path):
    data = digits(tmp_path)
    data.trunk.network.blocks[3].mlp.fc2.bias.fill_(1e6)
    with pytest.raises(TailorError, match="leave the range of float16"):
        data.prepare()


def test_the_environment_sets_the_cache_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TAILORVIT_CACHE", "~/mine")
    assert cache_root() == Path.home() / "mine"
    monkeypatch.delenv("TAILORVIT_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_root() == Path.home() / ".cache" / "tailorvit"
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(TailorError, match="cannot be stored"):
        digits(tmp_path / "file")


def test_plain_data_has_no_trunk():
    data, model = open_data("digits", limit=LIMIT), nn.Linear(2, 2)
    assert data.with_trunk(model) is model
    data.prepare()
