"""Batches made on a device: pure, equal to the host's where both draw the same, the same resident and streamed."""

from __future__ import annotations

import json
import multiprocessing
import random
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from data_pictures import fill, picture, same

import tailorvit
from tailorvit.data import Augment, augment_preset, open_data
from tailorvit.data.augment_batches import NOISE, noise_bank, send
from tailorvit.data.batches import (
    PIECE,
    SMALL_SPLIT,
    DeviceBatches,
    HostBatches,
    StreamBatches,
    placement,
    resident_limit,
)
from tailorvit.errors import TailorError
from tailorvit.runs import Run

KINDS = {
    "none": Augment(),
    "mild": Augment(crop_pad=4, flip=True, smoothing=0.1),
    "mix": Augment(crop_pad=2, mixup=0.8, cutmix=1.0, erasing=0.5),
    "jitter": Augment(scale=(0.3, 1.0), flip=True, jitter=0.4),
    "standard": augment_preset("standard", 32, "photos"),
    "weighted": Augment(randaugment="rand-m7-n3-tweights", scale=(0.5, 1.0)),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return open_data(str(fill(tmp_path_factory.mktemp("r"), {"a": 60, "b": 60, "c": 6})), search_share=0.2)


def on_device(data, kind, batch=8, seed=3):
    return data.train_batches(batch, seed, KINDS[kind], "cpu", "always")


def streamed(data, kind, batch=8, seed=3):
    reader = on_device(data, kind, batch, seed).reader
    return StreamBatches(reader, batch, seed, KINDS[kind], data._images.stored_shape, torch.device("cpu"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_is_pure_and_resumes(data, kind):
    batches = on_device(data, kind)
    first = batches.at(11)
    random.seed(9), np.random.seed(9), torch.manual_seed(9)  # noqa: NPY002
    state = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    assert isinstance(batches, DeviceBatches) and same(first, batches.at(11))
    assert same(first, next(iter(on_device(data, kind).iterate(11, 12))))  # as a resumed run would begin
    for step, batch in zip(range(9, 14), on_device(data, kind).iterate(9, 14), strict=True):
        assert same(batch, batches.at(step))
    assert torch.equal(torch.get_rng_state(), state[0]) and random.getstate() == state[1]
    assert np.random.get_state()[1].tolist() == state[2]  # noqa: NPY002
    assert not torch.equal(first.x, on_device(data, kind, seed=4).at(11).x)
    assert first.x.dtype == torch.float32 and first.x.is_contiguous() and first.x.shape == (8, 3, 32, 32)
    assert torch.allclose(first.target.sum(1), torch.ones(8)) and torch.isfinite(first.x).all()


@pytest.mark.parametrize("kind", ["none", "mild"])
def test_crops_and_flips_equal_the_hosts_to_the_bit(data, kind):
    host = data.train_batches(8, 3, KINDS[kind])
    assert isinstance(host, HostBatches)
    for step in (0, 5, 40):
        assert same(host.at(step), on_device(data, kind).at(step))


def test_resized_crops_and_jitter_equal_the_hosts_to_a_level(data):
    crop = Augment(scale=(0.3, 1.0), flip=True)
    for how, levels, mean in ((crop, 1.01, 0.02), (KINDS["jitter"], 8.0, 0.05)):  # contrast stretches a level
        host, mine = (data.train_batches(24, 3, how, "cpu", where).at(2) for where in ("never", "always"))
        far = (host.x - mine.x).abs() * 255 * torch.tensor(data.std)[:, None, None]
        assert far.max() <= levels and far.mean() < mean and torch.equal(host.y, mine.y)


@pytest.mark.parametrize("kind", KINDS)
def test_workers_and_threads_give_the_batches_of_resident_images(data, kind):
    resident = on_device(data, kind, batch=45)  # two pieces, the second shorter
    assert len(resident.at(0).y) > PIECE and streamed(data, kind, 45).pieces == 2
    for workers in (0, 2):
        got = list(streamed(data, kind, 45).iterate(1, 6, workers))
        assert len(got) == 5 and all(same(b, resident.at(1 + k)) for k, b in enumerate(got))
    assert same(streamed(data, kind, 45).at(3), resident.at(3))


def test_streams_may_be_left_early_and_end_their_workers(data):
    for workers in (0, 1):
        stream = streamed(data, "mild").iterate(0, 1000, workers)
        next(stream)
        assert len(multiprocessing.active_children()) == workers
        stream.close()
        assert not multiprocessing.active_children()


def test_streams_report_what_failed(tmp_path):
    root = fill(tmp_path / "r", {"a": 20, "b": 20})
    data = open_data(str(root), cache_bytes=0)
    for path in sorted(p for p in root.rglob("*") if p.is_file())[:6]:
        path.write_bytes(b"broken")
    stream = streamed(data, "mild", 10)
    assert all(torch.isfinite(b.x).all() for b in stream.iterate(0, 6, workers=1))
    assert 0 < len(data.failed) <= 6


def test_grey_images_take_every_kind():
    data = open_data("digits", limit=60)
    for how in (*KINDS.values(), data.augment("standard"), data.augment("mild")):
        batch = data.train_batches(21, 0, how, "cpu", "always").at(1)
        assert batch.x.shape == (21, 1, 8, 8) and torch.isfinite(batch.x).all()
    host, mine = (data.train_batches(21, 0, Augment(crop_pad=2), "cpu", w).at(1) for w in ("never", "always"))
    assert same(host, mine)


@pytest.mark.parametrize("how", [{"crop_pad": 3}, {"flip": True}, {"scale": (0.3, 0.9)}, {"jitter": 0.4},
                                 {"randaugment": "rand-m9-mstd0.5-inc1"}, {"erasing": 1.0}, {"mixup": 0.8},
                                 {"cutmix": 1.0}])  # fmt: skip
def test_each_part_changes_images(data, how):
    plain, changed = (data.train_batches(7, 0, a, "cpu", "always").at(1) for a in (Augment(), Augment(**how)))
    assert torch.equal(plain.y, changed.y) and not torch.equal(plain.x, changed.x)
    mixes = bool({"mixup", "cutmix"} & set(how))
    assert torch.equal(plain.target, changed.target) != mixes
    if mixes:  # the odd last image has no partner
        assert torch.equal(plain.x[-1], changed.x[-1]) and torch.equal(plain.target[-1], changed.target[-1])


def test_erasing_puts_noise_into_a_box_and_nowhere_else(data):
    plain, erased = (data.train_batches(64, 0, a, "cpu", "always").at(1) for a in (Augment(), Augment(erasing=0.6)))
    changed = (plain.x != erased.x).any(1)
    hit = changed.flatten(1).any(1)
    assert 0.4 < hit.float().mean() < 0.8
    noise = []
    for image, mask in zip(erased.x[hit], changed[hit]):
        rows, cols = mask.any(1).nonzero().flatten(), mask.any(0).nonzero().flatten()
        box = mask[rows[0] : rows[-1] + 1, cols[0] : cols[-1] + 1]
        assert box.float().mean() > 0.99
        noise.append(image[:, rows[0] : rows[-1] + 1, cols[0] : cols[-1] + 1].flatten())
    every = torch.cat(noise)
    assert abs(every.mean()) < 0.05 and abs(every.std() - 1) < 0.05
    assert not torch.equal(noise[0][:20], noise[1][:20])


def test_the_bank_of_noise_is_a_view():
    bank = noise_bank(0, 3 * 8 * 8, torch.device("cpu"))
    assert bank.shape == (NOISE, 192) and bank.untyped_storage().nbytes() == 4 * (NOISE + 191)


def test_arrays_travel_in_one_piece():
    arrays = {"a": np.arange(5), "b": np.ones((3, 7), np.int16), "c": np.empty((0, 4)), "d": np.float32([[1.5], [2]]),
              "e": np.arange(13, dtype=np.uint8), "f": np.asarray([[1, 2], [3, 4]]).T}  # fmt: skip
    sent = send(arrays, torch.device("cpu"))
    assert set(sent) == set("abdef") and len({t.untyped_storage().data_ptr() for t in sent.values()}) == 1
    assert all(np.array_equal(sent[k].numpy(), arrays[k]) and sent[k].numpy().dtype == arrays[k].dtype for k in sent)
    nowhere = send(arrays, torch.device("meta"))
    assert all(t.device.type == "meta" for t in nowhere.values())


@pytest.mark.parametrize("kind", ["mild", "mix", "jitter", "standard"])
def test_nothing_is_read_back_from_the_device(data, kind):
    """On the meta device there are no values: reading one, or a shape that depends on one, would fail here."""
    there = on_device(data, kind, 80)  # enough images for every op of RandAugment
    meta = DeviceBatches(there.reader, 80, 3, KINDS[kind], there.images.to("meta"))
    for a, b in zip(meta.at(0), there.at(0), strict=True):
        assert a.device.type == "meta" and a.shape == b.shape and a.dtype == b.dtype
    layers = there._plan(0).rand_layers
    assert kind != "standard" or all(k.affine and k.fixed_tables and k.blends for k in layers)
    assert kind != "standard" or (any(k.autocontrast for k in layers) and any(k.equalise for k in layers))


def test_where_images_go():
    small, large = SMALL_SPLIT - 1, SMALL_SPLIT
    assert [placement("auto", d, small) for d in ("cpu", "mps", "cuda", "cuda:1")] == [
        "host",
        "host",
        "resident",
        "resident",
    ]
    assert placement("auto", "cuda", large) == "streamed" and placement("always", "cuda", large) == "resident"
    assert {placement("never", d, small) for d in ("cpu", "cuda")} == {"host"} and placement(
        "always", "cpu", small
    ) == "resident"
    with pytest.raises(TailorError, match="'sometimes'"):
        placement("sometimes", "cpu", small)


def test_a_large_card_holds_images_in_a_quarter_of_its_memory(monkeypatch, data):
    assert resident_limit("cuda:0") == SMALL_SPLIT or torch.cuda.is_available()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    memory = SimpleNamespace(total_memory=80 << 30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: memory)
    assert resident_limit("cuda") == 20 << 30 and resident_limit("cpu") == SMALL_SPLIT
    assert placement("auto", "cuda", (20 << 30) - 1) == "resident" and placement("auto", "cuda", 20 << 30) == "streamed"
    assert placement("auto", "cuda", 6 << 30, 14 << 30) == "streamed"  # both together are too much
    assert placement("auto", "cuda", SMALL_SPLIT - 1, 19 << 30) == "resident"  # small splits stay, as on any card
    memory.total_memory = 8 << 30
    assert resident_limit("cuda") == SMALL_SPLIT
    memory.total_memory = 80 << 30
    gib = {"train": 14, "search": 7, "test": 6}
    monkeypatch.setattr(data, "split_bytes", lambda split: gib[split] << 30)
    assert [data.placement(s, "cuda", "auto") for s in gib] == ["resident", "streamed", "streamed"]
    gib["train"] = 30
    assert [data.placement(s, "cuda", "auto") for s in gib] == ["streamed", "resident", "resident"]


def test_going_on_with_a_smaller_card_gives_the_same_batches(monkeypatch, tmp_path):
    root = str(fill(tmp_path / "r", {"a": 40, "b": 40}, size=(61, 47)))
    batches = {}
    for where, cache in (("resident", 1 << 30), ("streamed", 0)):
        monkeypatch.setattr("tailorvit.data.dataset.placement", lambda *_, where=where: where)
        batches[where] = open_data(root, image_size=32, cache_bytes=cache).train_batches(9, 3, KINDS["standard"], "cpu")
    assert isinstance(batches["resident"], DeviceBatches) and isinstance(batches["streamed"], StreamBatches)
    after = list(batches["streamed"].iterate(6, 12, workers=1))
    assert all(same(a, batches["resident"].at(6 + k)) for k, a in enumerate(after)) and len(after) == 6


def test_images_are_read_once_and_the_seal_holds(data):
    assert on_device(data, "mild").images is on_device(data, "standard").images
    with pytest.raises(TailorError, match="sealed"):
        data.resident("test", "cpu")
    with pytest.raises(TailorError, match="sealed"):
        data.eval_batches("test", 8, "cpu", "always")


def test_evaluation_from_the_device_equals_the_hosts(tmp_path):
    for i in range(60):
        picture(tmp_path / "r" / "ab"[i % 2] / f"{i}.png", i, (60, 50))
    data = open_data(str(tmp_path / "r"), image_size=32)
    host, mine = (list(data.eval_batches("search", 4, "cpu", where)) for where in ("never", "always"))
    assert len(host) > 1 and all(same(a, b) for a, b in zip(host, mine, strict=True))
    assert data._images.stored_shape[1] > 32  # the margin was cut off on the device


# -- a whole run ------------------------------------------------------------------------------------------------------

SETS = ["arch={depth=2, embed=16, heads=2, mlp=2}", "baseline=false", "train.epochs=2", "analysis.images=0",
        "analysis.mistakes=0", "train.augment=standard"]  # fmt: skip


def run_once(folder: Path) -> tuple[dict, bytes, list[str]]:
    tailorvit.run("s4-digits", method="fixed", out=str(folder), tiny=True, settings=SETS, progress="quiet")
    result = json.loads((folder / "result.json").read_text())
    with Run.open(folder) as run:
        messages = [e["text"] for e in run.events("data")]
    return result, (folder / "network" / "network.safetensors").read_bytes(), messages


def test_a_run_with_resident_images_repeats_exactly(tmp_path, monkeypatch):
    _, host, silent = run_once(tmp_path / "auto")
    assert not silent  # on a CPU everything is left to the host
    monkeypatch.setattr("tailorvit.data.dataset.placement", lambda *_: "host")
    assert run_once(tmp_path / "host")[1] == host
    monkeypatch.setattr("tailorvit.data.dataset.placement", lambda *_: "resident")
    (first, weights, messages), (second, repeated, _) = (run_once(tmp_path / str(i)) for i in range(2))
    assert first["test_accuracy"] == second["test_accuracy"] and weights == repeated != host
    assert len(messages) == 1 and messages[0].startswith("Training images are kept on cpu as bytes (")
