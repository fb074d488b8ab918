"""Steps made together: every batch equals the one made alone, and fewer kernels are launched."""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from data_pictures import fill, same
from torch.utils._python_dispatch import TorchDispatchMode

from tailorvit.data import PRESETS, Augment, augment_preset, images, open_data
from tailorvit.data.augment_batches import join_plans, steps_at_once
from tailorvit.data.batches import PIECE, DeviceBatches, StreamBatches
from tailorvit.train.share import rows_of

CUDA = torch.device("cuda")
CPU = torch.device("cpu")
KINDS = {
    **{name: augment_preset(name, 32, "photos") for name in PRESETS},
    "standard at 64 px": augment_preset("auto", 64, "photos"),  # what auto means there
    "layers": Augment(randaugment="rand-m9-mstd0.5-inc1-n3", crop_pad=4),
    "weighted": Augment(randaugment="rand-m7-n3-tweights-p0.3", scale=(0.5, 1.0)),
    "erasing": Augment(crop_pad=2, erasing=0.2),  # a step without any, now and then
    "jitter": Augment(scale=(0.3, 1.0), flip=True, jitter=0.4, mixup=0.8),
    "sometimes mixed": Augment(flip=True, mixup=0.8, cutmix=1.0, mix_prob=0.5, smoothing=0.1),
}
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="workers fork")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return open_data(str(fill(tmp_path_factory.mktemp("r"), {"a": 60, "b": 60, "c": 6})), search_share=0.2)


def resident(data, how, batch=8, at_once=1):
    out = data.train_batches(batch, 3, how, "cpu", "always")
    assert isinstance(out, DeviceBatches) and out.at_once == 1  # a CPU has nothing to gain
    out.at_once = at_once
    return out


def streamed(data, how, batch=8, at_once=1):
    reader = data.train_batches(batch, 3, how).reader
    out = StreamBatches(reader, batch, 3, how, data._images.stored_shape, CPU)
    out.at_once = at_once
    return out


class Calls(TorchDispatchMode):
    """The operations that torch carries out, without views."""

    def __init__(self):
        super().__init__()
        self.seen, self.products = Counter(), []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        self.seen[name] += not func.is_view
        if name == "bmm":
            self.products.append(len(args[0]))
        return out


# -- the same batches -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("batch", "at_once"), [(8, 4), (7, 3), (1, 5)])
def test_a_joined_step_is_the_step_alone(data, kind, batch, at_once):
    alone = resident(data, KINDS[kind], batch)
    for start in (0, 5):  # 11 steps: the last group is shorter
        got = list(resident(data, KINDS[kind], batch, at_once).iterate(start, start + 11))
        assert len(got) == 11 and all(same(b, alone.at(start + k)) for k, b in enumerate(got))
        assert all(b.x.is_contiguous() and b.x.shape == (batch, 3, 32, 32) for b in got)


@needs_fork
@pytest.mark.parametrize("kind", ["mild", "standard", "jitter", "sometimes mixed"])
def test_joined_streams_give_the_batches_of_resident_images(data, kind):
    alone = resident(data, KINDS[kind], 45)  # two pieces a step, the second shorter; two steps an epoch
    assert len(alone.at(0).y) == 45 > PIECE
    for workers, start in ((0, 0), (1, 1), (2, 3)):
        got = list(streamed(data, KINDS[kind], 45, 3).iterate(start, start + 5, workers))
        assert len(got) == 5 and all(same(b, alone.at(start + k)) for k, b in enumerate(got))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", [12, 45])
def test_a_part_of_a_batch_is_made_as_within_the_whole(data, kind, batch):
    """What several processes make of a batch, each its rows: on the device, from a stream, and on the host."""
    for rows in (rows_of(rank, 3, batch) for rank in range(3)):
        alone = resident(data, KINDS[kind], batch)
        for make in (resident, streamed):
            part = list(make(data, KINDS[kind], batch, 2).only(rows).iterate(1, 4, 0))
            assert len(part) == 3 and all(len(b.y) == len(rows) for b in part)
            for step, got in enumerate(part, 1):
                whole = alone.at(step)
                assert torch.equal(got.y, whole.y[rows]) and torch.allclose(got.target, whole.target[rows])
                off = (got.x - whole.x[rows]).abs() > 0.03  # products of other shapes may round to the next grey value
                # A box is erased with noise that depends on the box and not on how many images there are.
                assert off.float().mean() < 1e-3
        whole = data.train_batches(batch, 3, KINDS[kind]).at(2)
        host = data.train_batches(batch, 3, KINDS[kind]).only(rows)
        for got in (host.at(2), *host.iterate(2, 3, 0)):
            assert all(torch.equal(a, b[rows]) for a, b in zip(got, whole, strict=True))


def test_parts_of_a_batch_cover_it_once():
    for world, batch in ((1, 5), (2, 8), (3, 7), (4, 30), (8, 17)):
        parts = [rows_of(rank, world, batch) for rank in range(world)]
        assert sorted(row for part in parts for row in part) == list(range(batch))
        even = batch // 2 * 2
        for part in parts:
            assert part and part == sorted(part)
            assert {even - 1 - row for row in part if row < even} == {row for row in part if row < even}


def test_ranges_may_be_empty_or_short(data):
    for batches in (resident(data, KINDS["standard"], 8, 4), streamed(data, KINDS["standard"], 8, 4)):
        assert not list(batches.iterate(3, 3, 0))
        assert [same(b, batches.at(6)) for b in batches.iterate(6, 7, 0)] == [True]


@pytest.mark.parametrize("kind", ["none", "standard"])
def test_a_batch_is_not_changed_by_later_ones(data, kind):
    alone = resident(data, KINDS[kind])
    for batches in (resident(data, KINDS[kind], 8, 3), streamed(data, KINDS[kind], 8, 3)):
        held = list(batches.iterate(0, 9, 0))
        for k, batch in enumerate(batches.iterate(0, 9, 0)):
            assert same(batch, alone.at(k))
            for tensor in batch:
                tensor.zero_()  # must not change later batches
        assert all(same(b, alone.at(k)) for k, b in enumerate(held))


def test_odd_sizes_and_grey_images_join_too():
    data = open_data("digits", limit=60)
    for how in (data.augment("standard"), KINDS["jitter"], KINDS["erasing"]):
        alone = data.train_batches(5, 0, how, "cpu", "always")
        joined = data.train_batches(5, 0, how, "cpu", "always")
        joined.at_once = 4
        assert all(same(b, alone.at(k)) for k, b in enumerate(joined.iterate(0, 9)))


# -- files ------------------------------------------------------------------------------------------------------------


@needs_fork
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_joined_streams_fill_the_cache(tmp_path, monkeypatch, workers):
    monkeypatch.setattr(images, "_SIGHTINGS", 1)
    root = str(fill(tmp_path / "r", {"a": 50, "b": 50}, size=(61, 47)))
    one = open_data(root, search_share=0.1, image_size=32, cache_bytes=0)
    size = int(np.prod(one._images.stored_shape))
    data = open_data(root, search_share=0.1, image_size=32, cache_bytes=one.counts["train"] * size)
    filled = data._images.cache.filled
    filled[:] = 0  # mean and deviation have filled it already
    how = KINDS["standard"]
    alone = open_data(root, search_share=0.1, image_size=32).train_batches(14, 3, how, "cpu", "always")
    stream = streamed(data, how, 14, 3)  # 70 images: 5 steps an epoch, so groups cross its end
    got = list(stream.iterate(0, 10, workers))
    assert len(got) == 10 and all(same(b, alone.at(k)) for k, b in enumerate(got))
    assert filled[: one.counts["train"]].all()
    filled[::3] = 0  # some from files, some from the cache
    assert all(same(b, alone.at(k)) for k, b in enumerate(stream.iterate(5, 10, workers), start=5)) and filled.all()


@needs_fork
def test_joined_streams_may_be_left_early(data):
    for workers in (0, 1):
        stream = streamed(data, KINDS["mild"], 8, 4).iterate(0, 1000, workers)
        next(stream)
        assert len(multiprocessing.active_children()) == workers
        stream.close()
        assert not multiprocessing.active_children()


# -- how many, and what it saves --------------------------------------------------------------------------------------


def test_small_batches_on_large_cards_are_joined(monkeypatch):
    card = SimpleNamespace(total_memory=140 << 30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)

    def steps(batch, have=256, size=224, device=CUDA):
        return steps_at_once(batch, 3, (have, have), (size, size), device)

    assert [steps(b) for b in (32, 64, 128, 256, 512, 1024)] == [8, 8, 4, 2, 1, 1]
    assert [steps(b, 32, 32) for b in (1, 128, 512, 1024, 4096)] == [8, 8, 4, 2, 1]
    assert [steps(b, 439, 384) for b in (48, 64, 128, 256)] == [3, 2, 1, 1]  # 320 MiB hold 189 images
    assert steps(128, device=CPU) == 1
    assert [steps(b, 37, 32) for b in (16, 15)] == [8, 1]  # 15 images of 37 px end amid 64 bytes
    card.total_memory = 12 << 30
    assert [steps(b) for b in (32, 64, 128)] == [2, 1, 1]  # 48 MiB


@pytest.mark.parametrize("kind", ["mild", "standard"])
def test_joined_steps_take_fewer_kernels(data, kind):
    counts = []
    for at_once in (1, 4):
        batches = resident(data, KINDS[kind], 16, at_once)
        with Calls() as calls:
            assert len(list(batches.iterate(0, 4))) == 4
        counts.append(sum(calls.seen.values()))
        # A product sees as many images as ever: a library may add up in another order for more.
        assert set(calls.products) <= {16} and len(calls.products) == (8 if kind == "standard" else 0)
    assert counts[1] < 0.4 * counts[0]  # a quarter, and what stays each step's own


def test_joined_plans_are_grouped_by_what_happens(data):
    batches = resident(data, KINDS["layers"], 16)
    plans = [batches._plan(step) for step in range(3)]
    whole = join_plans(plans)
    assert join_plans(plans[:1]) is plans[0] and len(whole.rand_layers) == 3 and whole.mixes == (None,) * 3
    for k, layer in enumerate(whole.rand_layers):
        ends = np.cumsum([0, layer.fixed_tables, layer.autocontrast, layer.equalise])
        got = [set(whole.arrays[f"{k}.table_at"][a:b].tolist()) for a, b in pairwise(ends)]
        want: list[set[int]] = [set(), set(), set()]
        for n, plan in enumerate(plans):
            own = plan.rand_layers[k]
            parts = np.split(plan.arrays[f"{k}.table_at"], np.cumsum([own.fixed_tables, own.autocontrast]))
            for kind, part in zip(want, parts):
                kind |= set((part + 16 * n).tolist())
        assert got == want and len(whole.arrays[f"{k}.table"]) == layer.fixed_tables
        assert layer.affine == len(whole.arrays[f"{k}.affine_at"]) == sum(p.rand_layers[k].affine for p in plans)
