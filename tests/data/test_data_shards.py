"""Shards: found, indexed, fetched and read; the same batches whatever the number of processes; a run from them."""

from __future__ import annotations

import io
import json
import os
import signal
import tarfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from data_pictures import same
from data_shards import png, served, write_tars

import tailorvit
from tailorvit.data import Augment, images, open_data, shard_files, shard_index, shards
from tailorvit.data.batches import StreamBatches
from tailorvit.data.disk_cache import DiskCache, _locked, bounded
from tailorvit.data.shard_files import Shard
from tailorvit.data.sources import absolute_path, source_of_run
from tailorvit.data.splits import SPLITS
from tailorvit.errors import TailorError
from tailorvit.train.share import rows_of

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
MILD = Augment(scale=(0.5, 1.0), flip=True)


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TAILORVIT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def small_windows(monkeypatch):
    """Eight shards a window, in two groups."""
    monkeypatch.setattr(shards, "WINDOW", 8)


def pictures(data, splits=SPLITS):
    """Every image of some splits with its class, by bytes."""
    data.unseal_test("compare")
    found = set()
    for split in splits:
        x, y = data.examples(split, range(data.counts[split]))
        found |= {(data.classes[k], image.numpy().tobytes()) for k, image in zip(y.tolist(), x)}
    return found


def streamed(data, batch=16):
    reader = data.train_batches(batch, 3, MILD).reader
    return StreamBatches(reader, batch, 3, MILD, data._images.stored_shape, torch.device("cpu"))


def tar_of(path: Path, members: dict[str, bytes], form: int = tarfile.PAX_FORMAT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=form) as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def fetched_files(tmp_path) -> list[Path]:
    return [p for p in (tmp_path / "cache" / "shards").glob("*") if p.name != ".locks"]


def refusal(*sources) -> str:
    with pytest.raises(TailorError) as error:
        open_data("::".join(map(str, sources)))
    assert "\n" not in str(error.value)
    return str(error.value)


# -- what is in shards ------------------------------------------------------------------------------------------------


@pytest.fixture(params=["tar", "parquet"])
def both(request, tmp_path):
    """The same pictures as a folder and as shards, in three parts."""
    counts, first, rows = {"train": 24, "val": 8, "test": 12}, 0, []
    for part, count in counts.items():
        for i in range(first, first + count):
            file = tmp_path / "folder" / part / f"{i % 4}" / f"{i:05d}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(png(i))
            rows.append((part, png(i), i % 4))
        if request.param == "tar":
            write_tars(tmp_path / "shards" / part, count, 5, first=first)
        first += count
    if request.param == "parquet":
        import datasets

        features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=list("0123"))})
        for part in counts:
            mine = [(data, k) for p, data, k in rows if p == part]
            table = {"image": [{"bytes": data, "path": None} for data, _ in mine], "label": [k for _, k in mine]}
            for half in (0, 1):
                piece = {key: column[half::2] for key, column in table.items()}
                place = tmp_path / "shards" / "data" / f"{part}-0000{half}-of-00002.parquet"
                place.parent.mkdir(parents=True, exist_ok=True)
                datasets.Dataset.from_dict(piece, features=features).to_parquet(place)
    return tmp_path / "folder", tmp_path / "shards"


def test_shards_hold_what_the_folder_holds(both):
    folder, place = (open_data(str(both[0])), open_data(f"shards:{both[1]}"))
    assert place.classes == folder.classes == tuple("0123") and place.image_size == folder.image_size
    assert place.counts == folder.counts == {"train": 24, "search": 8, "test": 12}
    for split in SPLITS:
        assert pictures(place, [split]) == pictures(folder, [split])
    assert place.mean == pytest.approx(folder.mean) and place.std == pytest.approx(folder.std)
    assert place.notes == ()


def test_a_folder_of_shards_needs_no_name(tmp_path):
    write_tars(tmp_path / "set" / "train", 20, 5)
    write_tars(tmp_path / "set" / "test", 8, 5, first=20)
    by_path = open_data(str(tmp_path / "set"))
    assert by_path.counts["test"] == 8
    patterns = f"shards:{tmp_path}/set/train/x-{{0000..0003}}.tar::{tmp_path}/set/test/x-000{{0,1}}.tar"
    assert open_data(patterns).split_record() == by_path.split_record()
    write_tars(tmp_path / "one", 20, 20)
    assert sum(open_data(str(tmp_path / "one" / "x-0000.tar")).counts.values()) == 20
    folder = tmp_path / "classes"
    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
        for i in range(5):
            (folder / name / f"{i}.png").write_bytes(png(i))
    tar_of(folder / "backup.tar", {"a.txt": b"x"})  # an archive beside class folders is no set of shards
    assert open_data(str(folder)).classes == ("cat", "dog")


def test_where_labels_are_found(tmp_path):
    """.cls before .json before .txt before the folder; the plain image before one with a longer ending."""
    members: dict[str, bytes] = {}
    for i in range(12):
        name = f"sub/{i:03d}"
        members |= {f"{name}.mask.png": png(99), f"{name}.PNG": png(i)}
        if i % 3 == 0:
            members |= {f"{name}.json": b'{"label": 7}', f"{name}.cls": b" 1\n", f"{name}.txt": b"a picture of 2"}
        elif i % 3 == 1:
            members |= {f"{name}.json": b'{"class": 2, "other": [1]}'}
        else:
            members |= {f"{name}.txt": b"3", f"{name}.json": b"no json"}
    members |= {"__meta__/a.png": png(0), "lonely.cls": b"1", "sub/.hidden.png": png(0), "no_ending": b""}
    tar_of(tmp_path / "a.tar", members)
    data = open_data(str(tmp_path / "a.tar"))
    assert data.classes == ("1", "2", "3") and sum(data.counts.values()) == 12
    assert dict(data.skipped) == {"a.tar/lonely": "the sample has no image"}
    assert {pixels for _, pixels in pictures(data)} == {
        image.numpy().tobytes() for i in range(12) for image in [open_picture(i)]
    }
    tar_of(tmp_path / "b" / "a.tar", {f"./x/{'cat' if i % 2 else 'dog'}/{i}.png": png(i) for i in range(10)})
    assert open_data(str(tmp_path / "b")).classes == ("cat", "dog")
    tar_of(
        tmp_path / "c" / "a.tar", {f"{i}.{e}": png(i) if e == "png" else b"x" for i in range(4) for e in ("png", "a")}
    )
    assert "have no labels: they need a .cls, .txt or .json file" in refusal(tmp_path / "c")
    some = {f"{i}.png": png(i) for i in range(12)} | {f"{i}.cls": str(i % 2).encode() for i in range(11)}
    tar_of(tmp_path / "d" / "a.tar", dict(sorted(some.items())))
    assert [why for _, why in open_data(str(tmp_path / "d")).skipped] == ["it has no label"]
    mixed = {f"{i}.{e}": png(i) if e == "png" else (b"1", b"cat")[i % 2] for i in range(4) for e in ("png", "cls")}
    tar_of(tmp_path / "e" / "a.tar", mixed)
    assert "Some labels in" in refusal(tmp_path / "e") and "'cat'" in refusal(tmp_path / "e")


def open_picture(number: int) -> torch.Tensor:
    from PIL import Image

    return torch.from_numpy(np.asarray(Image.open(io.BytesIO(png(number)))).transpose(2, 0, 1).copy())


def test_class_names_beside_the_shards(tmp_path):
    write_tars(tmp_path / "a", 40, 10)
    (tmp_path / "a" / "classes.txt").write_text("ant\nbee\ncat\ndog\n")
    assert open_data(str(tmp_path / "a")).classes == ("ant", "bee", "cat", "dog")
    (tmp_path / "a" / "classes.txt").unlink()
    (tmp_path / "a" / "classes.json").write_text('["ant", "bee"]')
    assert "names 2 classes, but its labels run from 0 to 3" in refusal(tmp_path / "a")
    (tmp_path / "a" / "classes.json").write_text('{"ant": 0}')
    assert "is not a list of names" in refusal(tmp_path / "a")


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_archives_are_read_as_tarfile_and_webdataset_read_them(tmp_path, form):
    import webdataset

    long = "folder/" * 11 + "n" * 60 if form == tarfile.USTAR_FORMAT else "folder/" * 30 + "n" * 150
    names = ["a.png", f"{long}.png", "käse/ü.png", "b.x.y.png"]
    path = tar_of(tmp_path / "a.tar", {n: png(i) + b"x" * i for i, n in enumerate(names)}, form)
    with tarfile.open(path, "a") as tar:
        folder = tarfile.TarInfo("a folder")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        link = tarfile.TarInfo("a link.png")
        link.type, link.linkname = tarfile.SYMTYPE, "a.png"
        tar.addfile(link)
        last = tarfile.TarInfo("last.png")
        last.size = 5
        tar.addfile(last, io.BytesIO(b"hello"))
    with tarfile.open(path) as tar:
        want = [(m.name, m.offset_data, m.size) for m in tar.getmembers() if m.isreg()]
    file = os.open(path, os.O_RDONLY)
    assert list(shard_index._members(shard_index._Bytes(file))) == want and len(want) == 5
    os.close(file)
    index = shard_index.read_index(Shard(str(path), path.stat().st_size, "", "a.tar"), None, {})
    samples = list(webdataset.WebDataset(str(path), shardshuffle=False))
    starts = [0, *index.ends.tolist()]
    found = [index.names[a:b].decode() for a, b in pairwise(starts)]
    assert [name.split(".")[0] for name in found] == [s["__key__"].split(".")[0] for s in samples]


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda raw: raw[: len(raw) // 2], "it is cut off"),
        (lambda raw: raw[:700], "it is cut off"),
        (lambda raw: raw[:5120] + b"\xff" * 512 + raw[5632:], "there is no header at byte|is damaged"),
        (lambda raw: b"", "it is cut off"),
        (lambda raw: raw + raw * 8, "there is more after its end at byte"),
        (lambda raw: b"not an archive" * 100, "there is no header at byte 0"),
    ],
)
def test_a_damaged_archive_is_one_sentence(tmp_path, harm, words):
    place = write_tars(tmp_path / "set", 20, 10)
    file = place / "x-0001.tar"
    file.write_bytes(harm(file.read_bytes()))
    import re

    sentence = refusal(place)
    assert re.search(words, sentence) and "fetch it again, or leave it out" in sentence and "x-0001.tar" in sentence


def test_parquet_columns(tmp_path):
    def write(name: str, **columns) -> str:
        parquet.write_table(pa.table(columns), tmp_path / name)
        return f"shards:{tmp_path / name}"

    raw, words = [png(i) for i in range(12)], ["cat", "dog"] * 6
    data = open_data(write("a.parquet", picture=raw, label=words))
    assert data.classes == ("cat", "dog") and len(pictures(data)) == 12
    data.unseal_test("names")
    assert data.names("test")[0].startswith(f"{tmp_path / 'a.parquet'}[")
    two = write("b.parquet", left=raw, right=raw[::-1], fine=words, coarse=[0, 1] * 6)
    assert "the columns left, right could be the image: add ?image=NAME" in refusal(two)
    assert "no column is the label" in refusal(f"{two}?image=left")
    assert "has no column 'depth' for image; its columns: left, right, fine, coarse" in refusal(f"{two}?image=depth")
    assert open_data(f"{two}?image=left&label=coarse").classes == ("0", "1")
    assert pictures(open_data(f"{two}?image=right&label=fine")) != pictures(open_data(f"{two}?image=left&label=fine"))
    holes = open_data(write("c.parquet", image=[*raw[:11], None], label=[0, 1] * 5 + [0, None]))
    assert sum(holes.counts.values()) == 11 and [why for _, why in holes.skipped] == ["it has no label"]
    lists = write("d.parquet", image=raw, label=[[1]] * 12)
    assert "neither a class number nor a name: [1]" in refusal(lists)
    (tmp_path / "e.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-9])
    assert "cannot be read as a .parquet file" in refusal(tmp_path / "e.parquet")


def test_a_test_part_without_labels_is_left_out(tmp_path):
    place = tmp_path / "set"
    write_tars(place, 20, 10, prefix="train")
    parquet_like = {f"{i}.png": png(i) for i in range(5)}
    tar_of(place / "test-0.tar", parquet_like)
    data = open_data(str(place))
    assert data.notes == ("The test shards have no labels and are not used.",) and sum(data.counts.values()) == 20


# -- places -----------------------------------------------------------------------------------------------------------


def test_places_that_are_refused(tmp_path, monkeypatch):
    assert "would run a command, which data never does" in refusal("shards:pipe:cat /etc/passwd")
    assert "would run a command" in refusal(f"shards:{write_tars(tmp_path / 'a', 20, 10)}::pipe:curl x")
    assert "is none of the addresses that shards are read from: http, https, hf" in refusal("shards:ssh://host/a.tar")
    assert "There are no .tar or .parquet files in" in refusal(
        f"shards:{(tmp_path / 'none').mkdir() or tmp_path / 'none'}"
    )
    assert "There is no shard" in refusal(f"shards:{tmp_path}/a/x-{{0000..0002}}.tar")
    assert "unpack what is compressed" in refusal("shards:/data/a.tar.gz")
    assert "stands for more than 100,000 shards" in refusal("shards:/data/{1..99999999}.tar")
    assert "comes twice" in refusal(f"shards:{tmp_path}/a::{tmp_path}/a/x-0000.tar")
    assert "There is no 'shards'" in refusal("shards")
    (tmp_path / "a" / "val-0.tar").write_bytes((tmp_path / "a" / "x-0000.tar").read_bytes())
    assert "'val-0.tar' names its part of the data and 'x-0000.tar' does not" in refusal(tmp_path / "a")
    (tmp_path / "a" / "x-0000.tar").unlink()
    (tmp_path / "a" / "x-0001.tar").unlink()
    assert "has shards for val, but none for train" in refusal(tmp_path / "a")
    (tmp_path / "a" / "val-0.tar").rename(tmp_path / "a" / "train-val-0.tar")
    assert "could belong to train or val" in refusal(tmp_path / "a")
    assert "needs the package s3fs" in refusal("shards:s3://bucket/a.tar") or "s3" in refusal(
        "shards:s3://bucket/a.tar"
    )
    from tailorvit.trunks import libraries

    monkeypatch.setattr(libraries, "hub_reachable", lambda: False)
    assert "the hub is out of reach" in refusal("shards:hf://datasets/nobody/nothing")


@pytest.mark.parametrize("name", ["webdataset", "braceexpand", "pyarrow.parquet"])
def test_a_missing_package_is_one_sentence(tmp_path, monkeypatch, name):
    place = write_tars(tmp_path / "a", 20, 10)
    parquet.write_table(pa.table({"image": [png(0)], "label": [0]}), tmp_path / "a.parquet")
    real = shard_files.import_module

    def missing(wanted):
        if wanted == name:
            raise ImportError(name)
        return real(wanted)

    monkeypatch.setattr(shard_files, "import_module", missing)
    text = {"webdataset": place, "braceexpand": f"shards:{place}/x-000{{0,1}}.tar"}.get(name, tmp_path / "a.parquet")
    assert f"needs the package {name.partition('.')[0]}: pip install 'tailorvit[shards]'" in refusal(text)


def test_a_run_finds_shards_from_another_folder(tmp_path, monkeypatch):
    place = write_tars(tmp_path / "a", 20, 10)
    monkeypatch.chdir(tmp_path)
    path = absolute_path("shards:a")
    assert path == f"shards:{place}" and absolute_path("a") == str(place)
    monkeypatch.chdir(place)
    assert source_of_run("shards:a", {"data": {"path": path}}, tmp_path / "run") == path
    assert source_of_run(f"shards:{place}", {"data": {"path": "shards:/gone"}}, tmp_path) == f"shards:{place}"


# -- the index --------------------------------------------------------------------------------------------------------


def test_the_index_is_kept_checked_and_made_again(tmp_path, monkeypatch):
    place, made, read = write_tars(tmp_path / "a", 20, 10), [], shards.read_index

    def counted(shard, *rest):
        made.append(shard.name)
        return read(shard, *rest)

    monkeypatch.setattr(shards, "read_index", counted)
    first = open_data(str(place))
    assert sorted(made) == ["x-0000.tar", "x-0001.tar"]
    made.clear()
    assert open_data(str(place)).split_record() == first.split_record() and made == []
    kept = sorted((tmp_path / "cache" / "shard-index").glob("*.npz"))
    with np.load(kept[0], allow_pickle=False) as arrays:
        assert {name: arrays[name].dtype.kind for name in arrays.files} == {"numbers": "i", "text": "u"}
    raw = kept[0].read_bytes()
    for harm in (raw[: len(raw) // 2], b"", raw[:200] + bytes([raw[200] ^ 1]) + raw[201:], kept[1].read_bytes()):
        kept[0].write_bytes(harm)
        assert open_data(str(place)).split_record() == first.split_record()
        assert len(made) == 1
        made.clear()
    (place / "x-0000.tar").touch()
    assert open_data(str(place)).split_record() == first.split_record() and made == ["x-0000.tar"]


def test_changed_shards_are_named(tmp_path):
    place = write_tars(tmp_path / "a", 40, 10)
    data = open_data(str(place), cache_bytes=0)
    saved = json.loads(json.dumps(data.split_record()))
    assert saved["files"]["shards"]["x-0001.tar"] == (place / "x-0001.tar").stat().st_size
    assert open_data(str(place), saved=saved).split_record() == saved and data.changed() == ""
    write_tars(place, 13, 10, first=7, prefix="y")
    with pytest.raises(TailorError, match=r"data changed since its splits were made: 'y-0000.tar' is new and 1 more"):
        open_data(str(place), saved=saved)
    (place / "x-0001.tar").write_bytes((place / "y-0001.tar").read_bytes())
    assert "'x-0001.tar' became another file or went away" in data.changed()
    with pytest.raises(images.UnreachableError, match=r"x-0001\.tar' has changed since the run read its index"):
        list(data.train_batches(8, 0, MILD).iterate(0, 3, 0))


def test_headers_are_read_by_several_processes(tmp_path, monkeypatch):
    place = write_tars(tmp_path / "a", 32, 2)
    monkeypatch.setattr(shards, "usable_cores", lambda: 2)
    data = open_data(str(place))
    monkeypatch.setenv("TAILORVIT_CACHE", str(tmp_path / "other"))
    monkeypatch.setattr(shards, "usable_cores", lambda: 1)
    assert open_data(str(place)).split_record() == data.split_record()
    (place / "x-0007.tar").write_bytes(b"x" * 2000)
    monkeypatch.setenv("TAILORVIT_CACHE", str(tmp_path / "third"))
    monkeypatch.setattr(shards, "usable_cores", lambda: 2)
    assert "x-0007.tar' is damaged" in refusal(place)


# -- broken images ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
def test_images_that_cannot_be_decoded_are_skipped_or_replaced(tmp_path, cache_bytes):
    members = {}
    for i in range(20):
        members |= {f"{i:03d}.png": png(i) if i != 4 else b"broken", f"{i:03d}.cls": str(i % 2).encode()}
    tar_of(tmp_path / "train-a.tar", members)
    tar_of(
        tmp_path / "test-a.tar",
        {f"{i:03d}.{e}": v for i in range(4) for e, v in (("png", png(i)), ("cls", b"01"[i % 2 : i % 2 + 1]))},
    )
    data = open_data(f"shards:{tmp_path / 'train-a.tar'}::{tmp_path / 'test-a.tar'}", cache_bytes=cache_bytes, seed=1)
    for batch in data.train_batches(5, 0, MILD).iterate(0, 6, 0):
        assert torch.isfinite(batch.x).all()
    found = dict(data.skipped if cache_bytes else data.failed)
    assert found == {f"{tmp_path / 'train-a.tar'}/004.png": "not an image"}


# -- order ------------------------------------------------------------------------------------------------------------


def test_few_shards_are_shuffled_as_any_other_set(tmp_path):
    from tailorvit.rng import generator

    numbers, sizes = np.arange(320) // 10, np.full(32, 1000)
    want = generator(3, "epoch", 5).permutation(320)
    assert (shards.epoch_order(numbers, sizes, 3, 5, 16) == want).all()
    more = generator(3, "epoch", 5).permutation(330)
    assert (shards.epoch_order(np.arange(330) // 10, np.full(33, 1000), 3, 5, 16) != more).any()


@pytest.mark.parametrize("batch", [1, 2, 7, 32, 33, 64, 500])
def test_an_epoch_has_every_image_once_and_a_window_few_shards(batch):
    rng = np.random.default_rng(batch)
    counts = rng.integers(1, 40, 100)
    numbers, sizes = np.repeat(np.arange(100), counts), rng.integers(500, 2000, 100)
    order = shards.epoch_order(numbers, sizes, 0, 1, batch)
    assert sorted(order.tolist()) == list(range(len(numbers)))
    assert (order == shards.epoch_order(numbers, sizes, 0, 1, batch)).all()
    assert (order != shards.epoch_order(numbers, sizes, 0, 2, batch)).any()
    for at in range(0, len(order) // batch * batch, batch):
        assert len(np.unique(numbers[order[at : at + batch]])) <= shards.WINDOW + 1 + batch // 2
    span = shards.WINDOW // 2 * 20 // batch  # batches of half a window
    if span > 1:
        near = [np.unique(numbers[order[at : at + span * batch]]) for at in range(0, len(order), span * batch)]
        assert max(map(len, near)) <= 2 * shards.WINDOW + 2


def test_large_shards_make_small_windows(monkeypatch):
    monkeypatch.setattr(shards, "WINDOW_BYTES", 1000)
    assert shards.windows([400, 400, 400, 1000, 5000, 1, 1]) == [2, 3, 4, 5, 7]
    assert shards.windows([1] * 100) == [32, 64, 96, 100]


@pytest.mark.parametrize(("world", "most"), [(2, 0.54), (4, 0.31), (8, 0.2)])
def test_each_process_reads_its_share_of_the_shards(world, most):
    """128 shards of 100 images: of a window's 32 shards each of four processes reads 8, and those that are cut."""
    numbers, sizes, batch = np.arange(12_800) // 100, np.full(128, 1 << 20), 64
    order = shards.epoch_order(numbers, sizes, 0, 0, batch).reshape(-1, batch)
    for rank in range(world):
        mine = numbers[order[:, rows_of(rank, world, batch)]]
        for window in np.array_split(mine, 4):
            assert len(np.unique(window)) <= most * 32 + 2
        assert len(np.unique(mine)) <= most * 128, (rank, len(np.unique(mine)))
    whole = np.unique(numbers[order], return_counts=True)[1]
    assert whole.sum() == 12_800 and (whole == 100).all()
    partners = numbers[order[:, : batch // 2]] == numbers[order[:, : -batch // 2 - 1 : -1]]
    assert partners.mean() < 0.5, "mixing pairs images of different shards"


def test_batches_do_not_depend_on_processes_workers_or_where_they_begin(tmp_path, small_windows, monkeypatch):
    monkeypatch.setattr(images, "_SIGHTINGS", 1)
    data = open_data(str(write_tars(tmp_path / "a", 400, 10)), cache_bytes=0)
    batches = streamed(data)
    assert len(np.unique(data._images.shards[data._splits["train"]])) > 2 * shards.WINDOW
    want = [batches.at(step) for step in range(12, 24)]  # the end of an epoch and the next one
    assert batches.steps_per_epoch < 20
    for workers in (0, 1, 3):
        assert all(same(a, b) for a, b in zip(streamed(data).iterate(12, 24, workers), want, strict=True))
    assert all(same(a, b) for a, b in zip(streamed(data).iterate(17, 24, 2), want[5:], strict=True))
    for world in (2, 4):
        parts = [streamed(data).only(rows_of(rank, world, 16)) for rank in range(world)]
        for k, step in enumerate(range(12, 24)):
            for rank, part in enumerate(parts):
                assert same(part.at(step), [t[rows_of(rank, world, 16)] for t in want[k]])
    host = data.train_batches(16, 3, MILD)
    for a, b in zip(host.iterate(12, 24, 0), range(12, 24)):
        assert torch.equal(a.y, want[b - 12].y)


def test_held_out_images_lie_in_few_shards(tmp_path):
    data = open_data(str(write_tars(tmp_path / "a", 480, 12)), test_share=0.1, search_share=0.1)
    numbers = data._images.shards
    touched = {s: len(np.unique(numbers[data._splits[s]])) for s in SPLITS}
    assert touched["test"] <= 6 and touched["search"] <= 7 and touched["train"] <= 34
    assert (
        np.bincount(numbers[data._splits["test"]] * 0 + data._images.labels[data._splits["test"]]).tolist() == [12] * 4
    )
    small = open_data(str(tmp_path / "a"), limit=8)
    assert small.counts == dict.fromkeys(SPLITS, 8)
    assert all(len(np.unique(numbers[small._splits[s]])) <= 3 for s in SPLITS)
    assert np.bincount(small.labels("train")).tolist() == [2] * 4


def test_shards_sorted_by_class_are_noted(tmp_path, small_windows):
    data = open_data(str(write_tars(tmp_path / "a", 400, 10, classes=20, in_order=True)))
    assert len(data.notes) == 1 and data.notes[0].startswith("A shard holds 1 of 20 classes on average")
    assert open_data(str(write_tars(tmp_path / "b", 400, 10, classes=20))).notes == ()


# -- elsewhere --------------------------------------------------------------------------------------------------------


def total_bytes(tmp_path) -> int:
    """While nobody removes a file or takes room for one."""
    with _locked(tmp_path / "cache" / "shards"):
        return sum(p.stat().st_size for p in fetched_files(tmp_path) if p.exists())


@pytest.mark.parametrize("workers", [0, 2])
def test_the_cache_keeps_its_bound_while_images_are_read(tmp_path, small_windows, workers, monkeypatch):
    monkeypatch.setattr(images, "_SIGHTINGS", 1)
    place = write_tars(tmp_path / "a", 400, 10)
    each = (place / "x-0000.tar").stat().st_size
    local, limit = open_data(str(place), cache_bytes=0), 17 * each
    data = open_data(f"shards:file://{place}", cache_bytes=0, disk_bytes=limit)
    assert data.fingerprint == local.fingerprint and data.split_record() == local.split_record()
    assert data.mean == local.mean
    seen = set()
    for step, batch in enumerate(streamed(data).iterate(0, 30, workers)):
        assert same(batch, streamed(local).at(step))
        assert total_bytes(tmp_path) <= limit
        seen |= {p.name for p in fetched_files(tmp_path)}
    assert len(seen) > 20 and not [p for p in fetched_files(tmp_path) if p.suffix == ".part"]
    assert len(list(data.eval_batches("search", 10))) == -(-data.counts["search"] // 10)
    with pytest.raises(TailorError, match=r"read together take .* of disk, and data\.disk_cache is .*: set it higher"):
        open_data(f"shards:file://{place}", disk_bytes=9 * each)


def test_statistics_need_few_shards(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "LOOKED_AT", 3)
    import datasets

    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=list("0123"))})
    for k in range(12):
        rows = {
            "image": [{"bytes": png(k * 8 + i), "path": None} for i in range(8)],
            "label": [i % 4 for i in range(8)],
        }
        path = tmp_path / "set" / f"train-{k:05d}-of-00012.parquet"
        path.parent.mkdir(exist_ok=True)
        datasets.Dataset.from_dict(rows, features=features).to_parquet(path)
    data = open_data(f"shards:file://{tmp_path / 'set'}", cache_bytes=0)
    assert len(fetched_files(tmp_path)) <= 6, "three for headers, three for mean and deviation"
    whole = open_data(f"shards:file://{tmp_path / 'set'}")
    assert whole.split_record() == data.split_record() and len(pictures(whole)) == 96
    assert len(fetched_files(tmp_path)) == 12, "unpacked, and what was fetched for it is gone"


def test_shards_by_http(tmp_path, small_windows):
    place = write_tars(tmp_path / "a", 120, 10)
    (place / "classes.txt").write_text("ant\nbee\ncat\ndog\n")
    with served(place) as (url, server):
        data = open_data(f"shards:{url}/x-{{0000..0011}}.tar", cache_bytes=0)
        assert data.classes == ("ant", "bee", "cat", "dog") and data.fingerprint == open_data(str(place)).fingerprint
        list(data.train_batches(16, 0, MILD).iterate(0, 12, 0))
        assert all(server.asked[f"GET x-{k:04d}.tar"] == 1 for k in range(12)), "each is fetched once"
        assert "the server says 404" in refusal(f"shards:{url}/y-0000.tar")
        assert "unpack what is compressed" in refusal(f"shards:{url}/set")
        server.stamp = "2"
        for file in fetched_files(tmp_path):
            file.unlink()
        fresh = open_data(f"shards:{url}/x-{{0000..0011}}.tar", cache_bytes=0)
        assert fresh.split_record() == data.split_record()
        for file in fetched_files(tmp_path):
            file.unlink()
        fresh._images.reader._open.clear()
        server.stamp = "3"
        with pytest.raises(images.UnreachableError, match="has changed since it was indexed; start again"):
            list(fresh.train_batches(16, 0, MILD).iterate(0, 12, 0))


def test_a_broken_connection_is_taken_up_again(tmp_path, monkeypatch):
    monkeypatch.setattr(shard_files, "BLOCK", 1000)
    monkeypatch.setattr(shard_files, "PAUSE", 0.0)
    place = write_tars(tmp_path / "a", 40, 20)
    for parts in (True, False):
        with served(place) as (url, server):
            server.breaks, server.parts = 3, parts
            data = open_data(f"shards:{url}/x-{{0000..0001}}.tar")
            assert pictures(data) == pictures(open_data(str(place))) and server.breaks == 0
            for file in fetched_files(tmp_path):
                file.unlink()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_server_that_is_gone_ends_the_run_with_a_sentence(tmp_path, monkeypatch, workers):
    monkeypatch.setattr(shard_files, "RETRIES", 0)
    monkeypatch.setattr(images, "_SIGHTINGS", 1)
    place = write_tars(tmp_path / "a", 80, 10)
    with served(place) as (url, _):
        data = open_data(f"shards:{url}/x-{{0000..0007}}.tar", cache_bytes=0)
    for file in fetched_files(tmp_path):
        file.unlink()
    data._images.reader._open.clear()
    with pytest.raises(TailorError, match=r"^'http://127\.0\.0\.1:\d+/x-\d{4}\.tar' cannot be read: .*$") as error:
        list(streamed(data).iterate(0, 4, workers))
    assert "\n" not in str(error.value) and not data.failed


def test_parquet_by_http(tmp_path):
    raw = [png(i) for i in range(30)]
    for k in range(3):
        part = slice(10 * k, 10 * k + 10)
        parquet.write_table(pa.table({"image": raw[part], "label": [0, 1] * 5}), tmp_path / f"{k}.parquet")
    with served(tmp_path) as (url, server):
        data = open_data(f"shards:{url}/{{0..2}}.parquet")
        want = pictures(open_data(f"shards:{tmp_path}/{{0..2}}.parquet"))
        assert pictures(data) == want and len(want) == 30
        server.parts = False
        for old in (tmp_path / "cache").rglob("*.npz"):
            old.unlink()
        assert "gives no parts of files" in refusal(f"shards:{url}/{{0..2}}.parquet")


def test_processes_fetch_each_shard_once(tmp_path):
    place = write_tars(tmp_path / "a", 60, 10)
    with served(place) as (url, server):
        children = []
        for _ in range(3):
            if (pid := os.fork()) == 0:
                try:
                    data = open_data(f"shards:{url}/x-{{0000..0005}}.tar", cache_bytes=0)
                    os._exit(0 if sum(data.counts.values()) == 60 else 1)
                finally:
                    os._exit(2)
            children.append(pid)
        assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0, 0, 0]
        assert {k: server.asked[f"GET x-{k:04d}.tar"] for k in range(6)} == dict.fromkeys(range(6), 1)


def test_the_cache_alone(tmp_path):
    with bounded(100):
        cache = DiskCache(tmp_path / "c")

    def make(size, filling=b"x"):
        return lambda file: os.pwrite(file, filling * size, 0)

    first = cache.open("a", 40, make(40))
    os.close(cache.open("b", 40, make(40, b"y")))
    os.utime(tmp_path / "c" / "a", (1, 1))
    os.close(cache.open("c", 40, make(30)))
    assert cache.get("a") is None and os.pread(first, 99, 0) == b"x" * 40, "removed, and still open here"
    os.close(first)
    with pytest.raises(TailorError, match=r"takes 200 B of disk, more than data\.disk_cache"):
        cache.open("d", 200, make(200))

    def fail(file):
        raise KeyError("broken")

    with pytest.raises(KeyError):
        cache.open("d", 20, fail)
    (tmp_path / "c" / "dead.part").write_bytes(b"z" * 60)  # of a process that was killed
    os.close(cache.open("e", 90, make(90)))
    assert sorted(p.name for p in (tmp_path / "c").iterdir()) == [".locks", "e"]
    os.close(cache.open("f", 5, make(30)))  # larger than it seemed
    assert [p.name for p in (tmp_path / "c").glob("[ef]")] == ["f"]


# -- a run ------------------------------------------------------------------------------------------------------------


def test_a_run_from_shards_is_killed_and_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "WINDOW", 4)
    place = write_tars(tmp_path / "set", 240, 10, classes=3)
    sets = ["train.checkpoint_seconds=0", "baseline=false", "analysis.images=0", "analysis.mistakes=0", "data.cache=0"]
    given = {"method": "fixed", "data": f"shards:file://{place}", "tiny": True, "progress": "quiet"}
    settings = [*sets, "final.train.batch=16", "arch={depth=2, embed=24, heads=2, mlp=2}"]

    def weights(folder: Path) -> bytes:
        return (folder / "network" / "network.safetensors").read_bytes()

    def begin(folder: Path):
        return tailorvit.run("image-folder", out=folder, settings=settings, **given)

    begin(tmp_path / "whole")
    if (pid := os.fork()) == 0:
        from tailorvit.train import loop

        steps, step = [0], loop.Trainer.step

        def dying(self, batch):
            step(self, batch)
            steps[0] += 1
            if steps[0] == 10:
                os.kill(os.getpid(), signal.SIGKILL)

        loop.Trainer.step = dying
        begin(tmp_path / "killed")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    result = tailorvit.resume(tmp_path / "killed", progress="quiet")
    assert weights(tmp_path / "killed") == weights(tmp_path / "whole")
    whole = json.loads((tmp_path / "whole" / "result.json").read_text())
    assert result["final"] == whole["final"]
