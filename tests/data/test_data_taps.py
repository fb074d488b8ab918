"""Taps in place of pixels: the interface of Data, and a cache that is exact, resumable, shared and self-mending."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from data_pictures import fill
from torch import nn

from tailorvit.data import open_data
from tailorvit.data.images import preprocess
from tailorvit.data.taps import TapData
from tailorvit.errors import TailorError
from tailorvit.trunks import TrunkSettings, open_trunk

LIMIT = 40


def taps(cache: Path, **more) -> TapData:
    """Digits through the tiny random tower."""
    said: list[str] = []
    trunk = open_trunk(more.pop("source", "random:tiny"), (8, 8), channels=1, taps=more.pop("taps", None))
    settings = TrunkSettings(trunk.source, cache=str(cache), batch=more.pop("batch", 16), **more)
    data = TapData(open_data("digits", limit=LIMIT), trunk, settings)
    data.say, data.said = said.append, said
    return data


def files(cache: Path) -> Path:
    (folder,) = cache.glob("taps-*")
    return folder


def everything(data: TapData, split: str = "train") -> torch.Tensor:
    return torch.cat([x for x, _ in data.eval_batches(split, 7)])


def test_taps_take_the_place_of_pixels(tmp_path):
    data = taps(tmp_path)
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
    assert data.counts == data.pictures.counts and data.names("search") == data.pictures.names("search")


def test_files_meet_the_trunk_as_the_cache_did(tmp_path):
    pictures = open_data(str(fill(tmp_path / "pets", {"cat": 8, "dog": 9})), image_size=32)
    data = TapData(pictures, open_trunk("random:tiny", (32, 32)), TrunkSettings("random:tiny", cache=str(tmp_path)))
    with torch.no_grad():
        one = data.trunk.network(preprocess(Path(data.source) / data.names("train")[0], **data.preprocessing))
    assert torch.allclose(one, everything(data)[:1], atol=2e-2)


def test_a_second_run_reads_the_same_bits_and_computes_nothing(tmp_path):
    first = everything(taps(tmp_path))
    data = taps(tmp_path, batch=5)
    data._compute = None  # would fail if called
    assert torch.equal(everything(data), first)
    assert any(f"0 computed, {len(first)} from the cache" in line for line in data.said)


def test_test_rows_wait_for_the_seal(tmp_path):
    data = taps(tmp_path)
    data.ready()
    with pytest.raises(TailorError, match="sealed"):
        data.eval_batches("test", 4)
    ids = data._splits["test"]
    assert data.cache.there("plain", ids) == 0
    data.unseal_test("a test")
    assert data.cache.there("plain", ids) == len(ids) == len(everything(data, "test"))


def test_caches_are_told_apart_by_trunk_size_and_data(tmp_path):
    for changes in ({}, {"source": "random:tiny#seed=1"}, {"taps": 2}):
        taps(tmp_path, **changes)
    other = open_data("digits", image_size=16, limit=LIMIT)
    TapData(other, open_trunk("random:tiny", (16, 16), channels=1), TrunkSettings("random:tiny", cache=str(tmp_path)))
    assert len(list(tmp_path.glob("taps-*"))) == 4


@pytest.mark.parametrize("damage", ["row", "facts", "short", "marks"])
def test_damage_is_mended_with_a_word(damage, tmp_path):
    first = everything(taps(tmp_path))
    folder = files(tmp_path)
    if damage == "row":
        row = taps(tmp_path)._splits["train"][3]
        with (folder / "plain.f16").open("r+b") as file:
            file.seek(int(row) * 4 * 17 * 32 * 2 + 100)
            file.write(b"\x12\x34\x56")
    elif damage == "facts":
        (folder / "cache.json").write_text('{"trunk": "another"}')
    elif damage == "short":
        os.truncate(folder / "plain.f16", 1000)
    else:
        (folder / "plain.marks").unlink()
    data = taps(tmp_path)
    data.ready()
    assert torch.equal(everything(data), first)
    wanted = "1 computed" if damage == "row" else f"{len(first)} computed"
    assert any(wanted in line for line in data.said) and any("damaged" in line for line in data.said)


def test_a_changed_picture_of_the_same_size_is_seen(tmp_path):
    data = taps(tmp_path)
    before = everything(data)
    data.pictures._pool.images = data.pictures._pool.images.copy()
    row = data._splits["train"][0]
    data.pictures._pool.images[row] = 255 - data.pictures._pool.images[row]
    data._ready.clear()
    after = everything(data)
    assert not torch.equal(after[0], before[0]) and torch.equal(after[1:], before[1:])


KILLED = """
import sys, time, torch
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import test_data_taps as own
data = own.taps(Path(sys.argv[1]), batch=4)
plain = data._compute
def slow(x):
    time.sleep(float(sys.argv[3]))
    return plain(x)
data._compute = slow
print("go", flush=True)
data.ready()
"""


def start(cache: Path, delay: float) -> subprocess.Popen:
    command = [sys.executable, "-c", KILLED, str(cache), str(Path(__file__).parent), str(delay)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_killed_and_shared_between_processes(tmp_path):
    whole = everything(taps(tmp_path / "whole", batch=4))
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
    data = taps(cache, batch=4)
    assert torch.equal(everything(data), whole)
    assert any("0 computed" in line for line in data.said)


# -- training ---------------------------------------------------------------------------------------------------------


def test_batches_are_a_function_of_the_step(tmp_path):
    data = taps(tmp_path)
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


def test_mirrored_views_are_kept_and_drawn(tmp_path):
    data = taps(tmp_path, mirror=True)
    batches = data.train_batches(20, 0, data.augment("none"))
    batch, ids = batches.at(0), data._splits["train"][batches._positions(0)]
    views = [data.cache.read(view, ids).float() for view in ("plain", "mirror")]
    from_view = np.array([[torch.equal(x, v[k]) for v in views] for k, x in enumerate(batch.x)])
    assert (from_view.sum(1) == 1).all() and 0 < from_view[:, 1].sum() < 20
    x, _ = data.pictures.examples("train", [0])
    assert torch.allclose(
        data.normalise(x.flip(3)), data.cache.read("mirror", data._splits["train"][:1]).float(), atol=2e-3
    )
    assert data.cache.there("mirror", data._splits["search"]) == 0


def test_a_full_disk_is_told_before_anything_is_computed(tmp_path, monkeypatch):
    data = taps(tmp_path)
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("tailorvit.data.tap_cache.shutil.disk_usage", lambda _: usage)
    data._compute = None  # would fail if called
    with pytest.raises(TailorError, match=r"need .* but .* free; lower trunk\.taps"):
        data.ready()


def test_outputs_beyond_float16_are_refused(tmp_path):
    data = taps(tmp_path)
    data.trunk.network.blocks[3].mlp.fc2.bias.fill_(1e6)
    with pytest.raises(TailorError, match="leave the range of float16"):
        data.ready()


def test_the_cache_folder_can_be_told(tmp_path, monkeypatch):
    from tailorvit.data.tap_cache import cache_root

    monkeypatch.setenv("TAILORVIT_CACHE", str(tmp_path / "mine"))
    assert cache_root() == tmp_path / "mine" and cache_root("~/x") == Path.home() / "x"
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(TailorError, match="cannot be kept"):
        taps(tmp_path / "file")


def test_plain_data_attaches_nothing():
    data, model = open_data("digits", limit=LIMIT), nn.Linear(2, 2)
    assert data.attached(model) is model
    data.ready()
