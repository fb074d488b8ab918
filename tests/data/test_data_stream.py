"""Files on their way to a device: resized there as Pillow would, decoded once, shared by processes, bounded."""

from __future__ import annotations

import multiprocessing
import os
import signal

import numpy as np
import pytest
import torch
from data_pictures import fill, picture, same
from PIL import Image

from tailorvit.data import Augment, images, open_data, resize
from tailorvit.data.batches import StreamBatches
from tailorvit.data.images import ImageCache, UnresizedImage, shared_bytes
from tailorvit.data.resize import (
    filter_lengths,
    make_filter,
    pillow_vertical_first,
    pixel_range,
    resize_batch,
    source_spans,
)
from tailorvit.portable import fit, to_image

MILD = Augment(scale=(0.5, 1.0), flip=True)
FORK = multiprocessing.get_context("fork")
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="workers fork")


@pytest.fixture(autouse=True)
def at_first_sighting(monkeypatch):
    monkeypatch.setattr(images, "_SIGHTINGS", 1)


def streamed(data, batch=16, augment=MILD):
    reader = data.train_batches(batch, 3, augment).reader
    return StreamBatches(reader, batch, 3, augment, data._images.stored_shape, torch.device("cpu"))


def counted(data):
    """How often each image is opened from now on, in whichever process."""
    count, opener = shared_bytes((len(data._images.labels),)), data._images.opener

    def counting(index):
        count[index] += 1
        return opener(index)

    data._images.opener = counting
    return count


# -- the resize -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_the_resize_is_pillows_to_the_bit(seed):
    rng = np.random.default_rng(seed)
    want, channels = tuple(rng.integers(6, 70, 2).tolist()), (1, 3)[seed % 2]
    have = [tuple(rng.integers(4, 160, 2).tolist()), want, (want[1], want[0])][seed % 3 if seed % 4 == 0 else 0]
    image = rng.integers(0, 256, (*have, channels), dtype=np.uint8)
    if seed % 5 == 0:
        image = (image > 127).astype(np.uint8) * 255  # overshoots are clipped twice
    spans = source_spans(have, want)
    (top, bottom), (left, right) = (pixel_range(s, g) for s, g in zip(spans, want))
    cut = image[top:bottom, left:right]
    padded = np.full((1, cut.shape[0] + 3, cut.shape[1] + 2, channels), 99, np.uint8)  # as beside a larger one
    padded[0, : cut.shape[0], : cut.shape[1]] = cut
    table = np.asarray([spans], np.float32)
    down, across = (
        make_filter(torch.from_numpy(table[:, k]), want[k], n) for k, n in enumerate(filter_lengths(table, want))
    )
    first = pillow_vertical_first(have, want, channels)
    assert first is not None
    found = resize_batch(torch.from_numpy(padded), down, across, first)[0].permute(1, 2, 0).numpy()
    assert np.array_equal(found.squeeze(), np.asarray(fit(to_image(image.transpose(2, 0, 1)), want)).squeeze())


def test_another_pillow_leaves_the_resize_to_the_host(monkeypatch, tmp_path):
    monkeypatch.setattr(resize, "fit", lambda image, want: image.resize(want[::-1], Image.Resampling.BILINEAR))
    pillow_vertical_first.cache_clear()
    assert pillow_vertical_first((61, 47), (32, 32), 3) is None
    data = open_data(str(fill(tmp_path / "r", {"a": 12, "b": 12})), cache_bytes=0)
    assert not data._images.file_access(np.arange(12)).decode(np.arange(4)).unresized
    pillow_vertical_first.cache_clear()


def test_files_of_every_kind_stream_as_they_are_read(tmp_path, monkeypatch):
    """Landscape, portrait, turned by EXIF, grey, transparent, CMYK, 16 bit, palette, too large to be sent unresized."""
    exif = Image.Exif()
    exif[0x0112] = 6
    kinds = [("jpg", (50, 40), "RGB", {}), ("jpg", (40, 66), "RGB", {}), ("jpg", (61, 44), "RGB", {"exif": exif}),
             ("jpg", (45, 45), "L", {}), ("png", (45, 60), "RGBA", {}), ("jpg", (37, 37), "CMYK", {}),
             ("png", (44, 48), "P", {"transparency": 3}), ("png", (40, 41), "I;16", {}), ("jpg", (190, 170), "RGB", {}),
             ("jpg", (600, 520), "RGB", {}), ("gif", (44, 39), "RGB", {})]  # fmt: skip
    for i in range(6 * len(kinds)):
        suffix, size, mode, options = kinds[i % len(kinds)]
        picture(tmp_path / "r" / "ab"[i % 2] / f"{i:03d}.{suffix}", i, size, mode, **options)
    unresized = shared_bytes((1,))
    decode = images.decode_unresized

    def noticing(image, *rest):
        found = decode(image, *rest)
        unresized[0] += isinstance(found, UnresizedImage)
        return found

    monkeypatch.setattr("tailorvit.data.images.decode_unresized", noticing)
    data = open_data(str(tmp_path / "r"), image_size=32, cache_bytes=0)
    resident = data.train_batches(20, 3, MILD, "cpu", "always")
    got = list(streamed(data, 20).iterate(0, 4, workers=1))
    assert len(got) == 4 and all(same(b, resident.at(k)) for k, b in enumerate(got))
    assert 40 <= unresized[0] < 80 and not data.failed  # large ones came resized


def test_the_resize_reads_nothing_back_from_its_device():
    spans = torch.empty((2, 2, 4), device="meta")
    down, across = (make_filter(spans[:, k], goal, 5) for k, goal in ((0, 20), (1, 24)))
    for first in (False, True):
        found = resize_batch(torch.empty((2, 31, 40, 3), dtype=torch.uint8, device="meta"), down, across, first)
        assert found.shape == (2, 3, 20, 24) and found.device.type == "meta"


# -- the image cache --------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    return str(fill(tmp_path / "r", {"a": 50, "b": 50}, size=(61, 47)))


def lazy(folder, share=1.0):
    """Data whose cache holds a share of the training images and cannot hold everything."""
    one = open_data(folder, search_share=0.1, image_size=32, cache_bytes=0)
    size = int(np.prod(one._images.stored_shape))
    return open_data(folder, search_share=0.1, image_size=32, cache_bytes=int(share * one.counts["train"]) * size)


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_the_second_epoch_decodes_nothing(folder, workers):
    data = lazy(folder)
    assert not data._images.load_all
    count, stream = counted(data), streamed(data, 14)  # 70 images: epochs without a rest
    data._images.cache.filled[:] = 0  # mean and deviation have filled it already
    resident = open_data(folder, search_share=0.1, image_size=32).train_batches(14, 3, MILD, "cpu", "always")
    for epoch, opened in ((0, 1), (1, 1), (2, 1)):
        got = list(stream.iterate(5 * epoch, 5 * epoch + 5, workers))
        assert len(got) == 5 and all(same(b, resident.at(5 * epoch + k)) for k, b in enumerate(got))
        assert set(count[data._splits["train"]]) == {opened}
    assert not count[data._splits["search"]].any()


def test_statistics_fill_the_cache(folder):
    data = lazy(folder)
    count = counted(data)
    list(streamed(data).iterate(0, 5, workers=1))
    assert not count.any() and data._images.cache.filled.all()


def test_memory_is_bounded_and_the_rest_is_decoded_again(folder):
    data = lazy(folder, 0.5)
    held = data.counts["train"] // 2
    assert (
        data._images.cache.rows.shape == (held, *data._images.stored_shape) and data._images.cache.filled.sum() == held
    )
    count, stream = counted(data), streamed(data, 14)
    resident = open_data(folder, search_share=0.1, image_size=32).train_batches(14, 3, MILD, "cpu", "always")
    assert all(same(b, resident.at(k)) for k, b in enumerate(stream.iterate(0, 10, workers=2)))
    assert sorted(count[data._splits["train"]]) == [0] * held + [2] * (70 - held)


def test_workers_of_the_host_share_the_cache(folder):
    data = lazy(folder)
    count = counted(data)
    data._images.cache.filled[:] = 0
    batches = data.train_batches(14, 3, Augment(randaugment="rand-m9-mstd0.5-inc1"))
    for start in (0, 5):
        assert len(list(batches.iterate(start, start + 5, workers=2))) == 5
        assert set(count[data._splits["train"]]) == {1}


def test_a_killed_worker_ends_the_stream_and_harms_nothing(folder):
    data = lazy(folder)
    data._images.cache.filled[:] = 0
    stream = streamed(data, 14)
    with pytest.raises(RuntimeError, match="killed"):
        for k, _ in enumerate(stream.iterate(0, 200, workers=2)):
            if k == 2:
                os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)
    held = np.flatnonzero(data._images.cache.has(data._splits["train"]))
    clean = open_data(folder, search_share=0.1, image_size=32).resident("train", "cpu").numpy()
    assert len(held) and np.array_equal(data._images.cache.get(data._splits["train"][held]), clean[held])
    again = data.train_batches(14, 3, MILD, "cpu", "always")
    assert all(same(b, again.at(k)) for k, b in enumerate(stream.iterate(0, 6, workers=2)))


def forked(work, *args):
    child = FORK.Process(target=work, args=args)
    child.start()
    child.join()
    return child.exitcode


def test_processes_see_whole_images_only():
    there = ImageCache(9, (3, 8, 8), 4)
    there.reserve(np.asarray([5, 2, 7, 5, 8, 1])[:3])
    there.reserve(np.asarray([5, 8, 1]))  # 5 keeps its place, 1 finds none
    ids = np.asarray([1, 2, 5, 7, 8])
    images = np.random.default_rng(0).integers(1, 256, (5, 3, 8, 8), dtype=np.uint8)

    def torn():
        there.rows[there._row[2], :2] = images[1, :2]
        os._exit(9)

    assert forked(torn) == 9
    assert not there.has(ids).any() and there.lacks(ids).tolist() == [False, True, True, True, True]
    assert forked(there.put, ids[:4], images[:4]) == 0
    assert there.has(ids).tolist() == [False, True, True, True, False]
    out = np.empty((3, 3, 8, 8), np.uint8)
    there.copy_to(ids[1:4], out)
    assert np.array_equal(out, images[1:4]) and np.array_equal(there.get(ids[1:4]), out)
