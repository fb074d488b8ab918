"""Every batched change against Pillow's or timm's to one image."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from timm.data import auto_augment
from timm.data.mixup import Mixup

from tailorvit.data import Augment
from tailorvit.data.augment import crop_boxes, crop_lines, shift_flip, timm_randaugment
from tailorvit.data.augment_batches import (
    Mix,
    affine_maps,
    apply_affine,
    apply_layer,
    apply_mix,
    apply_tables,
    autocontrast_tables,
    blend_factors,
    blend_rows,
    crop,
    cutmix_box,
    draw_mix,
    draw_ops,
    draw_randaugment,
    enhance,
    equalise_tables,
    erase_boxes,
    fixed_tables,
    parse_randaugment,
    resized_crop,
)
from tailorvit.rng import generator

FILL = (100, 110, 120)
LEVELS = (0.0, 3.3, 7.3, 9.0, 10.0)


def pictures(size=(32, 40), count=6, channels=3):
    """Smooth pictures of different range, the last of one colour."""
    rng, out = np.random.default_rng(0), []
    for i in range(count):
        small = Image.fromarray(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8))
        wide = np.asarray(small.resize(size[::-1], Image.Resampling.BICUBIC))
        out.append((wide // (1 + i % 3) + 7 * (i % 3)).astype(np.uint8))
    out[-1][:] = 77
    x = torch.from_numpy(np.stack(out)).permute(0, 3, 1, 2)[:, :channels].contiguous()
    return x, [Image.fromarray(a if channels == 3 else a[:, :, 0]) for a in out]


def stacked(images):
    arrays = [np.array(i) for i in images]
    return torch.from_numpy(np.stack([a[None] if a.ndim == 2 else a.transpose(2, 0, 1) for a in arrays]))


def difference(a, b):
    return (a.int() - b.int()).abs().float()


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("pad", "flip"), [(0, False), (3, True), (9, False), (0, True)])
def test_crop_equals_the_hosts(channels, pad, flip):
    x, _ = pictures((16, 20), channels=channels)
    want = shift_flip(x, (12, 14), pad, flip, generator(5))
    rows, cols = crop_lines(6, channels, (16, 20), (12, 14), pad, flip, generator(5))
    lines = torch.from_numpy(np.concatenate([rows, cols], 1).astype(np.int16))
    assert torch.equal(crop(x, torch.arange(6), torch.arange(channels), lines, (12, 14)), want)


@pytest.mark.parametrize("size", [(24, 28), (64, 60)])
def test_resized_crop_equals_pillows(size):
    x, images = pictures((48, 40))
    boxes = crop_boxes(6, (48, 40), (0.08, 1.0), generator(1))
    boxes[0] = (0, 0, 40, 48)  # shrinks where the size is small: the filter widens
    turned = np.arange(6) % 2
    how = torch.from_numpy(np.concatenate([boxes, turned[:, None]], 1).astype(np.float32))
    want = stacked([i.resize(size[::-1], Image.Resampling.BICUBIC, box=tuple(b)) for i, b in zip(images, boxes)])
    want[1::2] = want[1::2].flip(3)
    far = difference(resized_crop(x, how, size), want)
    assert far.max() <= 1 and far.mean() < 0.01  # Pillow's weights are fixed-point


def test_autocontrast_and_equalise_are_pillows():
    for channels in (1, 3):
        x, images = pictures(channels=channels)
        for make, op in ((autocontrast_tables, ImageOps.autocontrast), (equalise_tables, ImageOps.equalize)):
            out = apply_tables(x, [make(x)])
            assert torch.equal(out, stacked(map(op, images))) and not torch.equal(out, x)
    noise = torch.from_numpy(np.random.default_rng(1).integers(0, 256, (4, 3, 31, 33), dtype=np.uint8))
    want = stacked([ImageOps.equalize(Image.fromarray(n.permute(1, 2, 0).numpy())) for n in noise])
    assert torch.equal(apply_tables(noise, [equalise_tables(noise)]), want)


@pytest.mark.parametrize("op", ["Brightness", "Contrast", "Color", "Sharpness"])
@pytest.mark.parametrize("size", [(32, 40), (2, 5)])
def test_enhancements_are_pillows(op, size):
    for channels in (1, 3):
        x, images = pictures(size, channels=channels)
        for factor in (0.1, 0.55, 1.0, 1.9):
            how = torch.from_numpy(blend_rows(op, np.full(6, factor)).astype(np.float32))
            want = stacked([getattr(ImageEnhance, op)(i).enhance(factor) for i in images])
            assert torch.equal(enhance(x, how), want)


def timms(name, level, images, monkeypatch, negative):
    """timm's op on Pillow images at one strength, its coin fixed."""
    monkeypatch.setattr(auto_augment.random, "random", lambda: 0.9 if negative else 0.1)
    op = auto_augment.AugmentOp(name, 1.0, level, {"img_mean": FILL, "interpolation": Image.Resampling.BICUBIC})
    return stacked([op(i) for i in images])


@pytest.mark.parametrize("name", ["Invert", "Posterize", "PosterizeIncreasing", "Solarize", "SolarizeIncreasing",
                                  "SolarizeAdd"])  # fmt: skip
def test_tables_are_timms(name, monkeypatch):
    x, images = pictures()
    for level in LEVELS:
        if (name, level) in {("Posterize", 0.0), ("PosterizeIncreasing", 10.0)}:
            continue  # timm asks for no bits at all there, which Pillow 13 refuses
        table = torch.from_numpy(fixed_tables(name, np.full(6, level)))[:, None].expand(-1, 3, -1)
        assert torch.equal(apply_tables(x, [table]), timms(name, level, images, monkeypatch, False))


@pytest.mark.parametrize("name", ["Brightness", "Contrast", "Color", "Sharpness"])
def test_strengths_of_enhancements_are_timms(name, monkeypatch):
    x, images = pictures()
    for level in LEVELS:
        for full, sign in ((name, 1), (f"{name}Increasing", 1), (f"{name}Increasing", -1)):
            how = blend_rows(full, blend_factors(full, np.full(6, level), np.full(6, sign)))
            want = timms(full, level, images, monkeypatch, sign < 0)
            assert torch.equal(enhance(x, torch.from_numpy(how.astype(np.float32))), want)


@pytest.mark.parametrize("name", ["Rotate", "ShearX", "ShearY", "TranslateXRel", "TranslateYRel"])
def test_turns_and_shifts_are_close_to_timms(name, monkeypatch):
    x, images = pictures()
    fill = torch.tensor(FILL, dtype=torch.uint8)[:, None, None]
    for level in LEVELS:
        for sign in (1.0, -1.0):
            look = affine_maps(name, np.full(6, level), np.full(6, sign), (32, 40)).astype(np.float32)
            out = apply_affine(x, torch.from_numpy(look), fill)
            far = difference(out, timms(name, level, images, monkeypatch, sign < 0))
            assert far.mean() < 0.6 and far.max() <= 8  # of 255; torch's cubic is a little softer
    assert difference(out, x).mean() > 5 and (out == fill).all(1).any()


def test_the_notation_is_read_as_timm_reads_it():
    settings = parse_randaugment("rand-m9-mstd0.5-inc1", (32, 32), (0.5, 0.4, 0.3))
    want = timm_randaugment("rand-m9-mstd0.5-inc1", (32, 32), (0.5, 0.4, 0.3))
    assert settings.ops == tuple(op.name for op in want.ops) and len(settings.ops) == 15
    assert (settings.layers, settings.chance, settings.magnitude, settings.spread, settings.top) == (
        2,
        0.5,
        9.0,
        0.5,
        10.0,
    )
    other = parse_randaugment("rand-m3-n4-p0.7-mmax20-mstd101-tweights", (32, 32), (0.5,))
    assert (other.layers, other.chance, other.spread, other.top) == (4, 0.7, np.inf, 20.0)
    assert other.weights is not None and sum(other.weights) == pytest.approx(1)


@pytest.mark.parametrize("text", ["rand-m9-mstd0.5-inc1-p1", "rand-m6-n3-p0.5", "rand-m9-p1-tweights"])
def test_layers_do_to_each_image_what_was_drawn(text):
    """A batch through the groups equals each image through its own op alone."""
    x, _ = pictures(count=40)
    settings = parse_randaugment(text, (32, 40), (0.4, 0.45, 0.5))
    fill = torch.tensor([102, 115, 128], dtype=torch.uint8)[:, None, None]
    layers, arrays = draw_randaugment(settings, 40, (32, 40), generator(2))
    sent = {k: torch.from_numpy(v) for k, v in arrays.items()}
    assert len(layers) == settings.layers
    for layer in layers:
        before, counts = (
            x.clone(),
            (layer.affine, layer.fixed_tables + layer.autocontrast + layer.equalise, layer.blends),
        )
        apply_layer(x, layer, sent, fill)
        parts = [sent[f"{layer.name}.{p}_at"] for p in ("affine", "table", "blend")]
        assert tuple(map(len, parts)) == counts
        touched = torch.cat(parts)
        assert len(touched.unique()) == len(touched) and (sum(counts) == 40) == (settings.chance == 1)
        rest = torch.ones(40, dtype=torch.bool)
        rest[touched] = False
        assert torch.equal(x[rest], before[rest])
        for k, i in enumerate(parts[0].tolist()):
            assert torch.equal(
                x[i : i + 1], apply_affine(before[i : i + 1], sent[f"{layer.name}.affine"][k : k + 1], fill)
            )
        for k, i in enumerate(parts[1].tolist()):
            one = before[i : i + 1]
            if k < layer.fixed_tables:
                table = sent[f"{layer.name}.table"][k][None, None].expand(1, 3, -1)
            else:
                table = (autocontrast_tables if k < layer.fixed_tables + layer.autocontrast else equalise_tables)(one)
            assert torch.equal(x[i : i + 1], apply_tables(one, [table]))
        for k, i in enumerate(parts[2].tolist()):
            assert torch.equal(x[i : i + 1], enhance(before[i : i + 1], sent[f"{layer.name}.blend"][k : k + 1]))


def test_weighted_ops_follow_their_weights_and_do_not_repeat():
    settings = parse_randaugment("rand-m9-p1-tweights", (32, 32), (0.5,))
    chosen = draw_ops(settings, 4000, generator(0))
    assert (chosen[0] != chosen[1]).all()
    share = np.bincount(chosen[0], minlength=len(settings.ops)) / 4000
    assert np.abs(share - np.asarray(settings.weights)).max() < 0.03


@pytest.mark.parametrize("share", [0.0, 0.3, 0.77, 1.0])
def test_mixing_equals_timms(share, monkeypatch):
    x, y = torch.randn(6, 3, 8, 10, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 4
    smooth = torch.full((6, 4), 0.1 / 4).scatter_(1, y[:, None], 1 - 0.1 + 0.1 / 4)
    for cut in (False, True):
        timm = Mixup(0.8, 1.0, label_smoothing=0.1, num_classes=4)
        monkeypatch.setattr(timm, "_params_per_batch", lambda cut=cut: (share, cut))
        middle = iter((3, 7))
        monkeypatch.setattr("timm.data.mixup.np.random.randint", lambda *_, at=middle, **__: next(at))
        want, soft = timm(x.clone(), y)
        mine, target = x.clone(), smooth.clone()
        if share < 1:  # timm leaves the batch alone at 1
            apply_mix(mine, target, cutmix_box(share, (8, 10), 3, 7) if cut else Mix(share))
        assert torch.equal(mine, want) and torch.allclose(target, soft, atol=1e-7)


def test_mixing_is_drawn_as_asked():
    both = [draw_mix(Augment(mixup=0.8, cutmix=1.0, mix_prob=0.5), (32, 32), generator(0, s)) for s in range(600)]
    cut = sum(m is not None and m.box is not None for m in both)
    assert 240 < sum(m is None for m in both) < 360 and 110 < cut < 190
    assert all(m is not None and m.box is None for m in
               (draw_mix(Augment(mixup=0.8), (32, 32), generator(0, s)) for s in range(50)))  # fmt: skip
    kept = [m.share for m in (draw_mix(Augment(cutmix=1.0), (32, 32), generator(0, s)) for s in range(50)) if m]
    assert len(kept) == 50 and min(kept) >= 0 and max(kept) <= 1 and np.std(kept) > 0.1
    assert draw_mix(Augment(), (32, 32), generator(0)) is None


def test_erased_boxes_are_timms_in_area_and_number():
    at, boxes = erase_boxes(4000, (32, 24), 0.25, generator(0))
    assert 900 < len(at) < 1100 and len(np.unique(at)) == len(at) == len(boxes)
    top, bottom, left, right = boxes.T
    assert top.min() >= 0 and left.min() >= 0 and bottom.max() <= 32 and right.max() <= 24
    area = (bottom - top) * (right - left) / (32 * 24)
    assert area.min() > 0.01 and area.max() < 0.36 and 0.14 < area.mean() < 0.2
    assert bottom.max() == 32 and right.max() == 24  # boxes reach the far border
