"""A run folder with a network that has learnt something, and its exports, each made once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from export_tools import ARCH, FIXED, NAMES, Made
from PIL import Image

from tailorvit.data import open_data
from tailorvit.export import Card, Exported, export, load, save_network
from tailorvit.families import family
from tailorvit.runs.atomic import dumps


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("export") / "run"
    data = open_data("digits", seed=3)
    torch.manual_seed(0)
    record = family("vit")
    model = record.build(record.settings(FIXED), ARCH)
    optimiser = torch.optim.AdamW(model.parameters(), 6e-3)
    x, y = map(torch.cat, zip(*data.eval_batches("train", 500)))
    for step in range(300):
        chosen = torch.arange(step * 64, step * 64 + 64) % len(x)
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(x[chosen]), y[chosen]).backward()
        optimiser.step()
    facts = {"method": "s4", "params": 1, "macs": 2, "test_accuracy": 90.0, "seed": 3}
    save_network(folder / "network", model.eval(), Card(ARCH, FIXED, NAMES, data.preprocessing, facts))
    (folder / "recipe.toml").write_text('seed = 3\n[data]\nsource = "digits"\nimage_size = [8, 8]\n')
    (folder / "splits.json").write_text(dumps(data.split_record()))
    (folder / "info.json").write_text(dumps({"data": {"source": "/home/someone/digits", "counts": data.counts}}))
    data.unseal_test("a test")
    x, y = map(torch.cat, zip(*data.eval_batches("test", 500)))
    with torch.inference_mode():
        logits = load(folder)(x)
    assert (logits.argmax(1) == y).float().mean() > 0.8, "a network that has learnt, so that its predictions can change"
    return Made(folder, x.numpy(), y.numpy(), logits.numpy())


@pytest.fixture(scope="session")
def exported(made: Made):
    """Exports by format, without the check, which the tests do themselves in processes of their own."""
    known: dict[str, Exported] = {}

    def get(to: str) -> Exported:
        if to not in known:
            known[to] = export(made.run, to, check=False)
        return known[to]

    return get


@pytest.fixture(scope="session")
def image_paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Images that need care: not square, transparent, rotated by EXIF, 16 bit, a large JPEG."""
    folder, rng = tmp_path_factory.mktemp("image_paths"), np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 255, (23, 37, 3), np.uint8)).save(folder / "a.png")
    Image.fromarray(rng.integers(0, 255, (40, 11, 4), np.uint8)).save(folder / "b.png")
    turned = Image.fromarray(rng.integers(0, 255, (16, 30), np.uint8))
    exif = turned.getexif()
    exif[0x0112] = 6
    turned.save(folder / "c.png", exif=exif)
    Image.fromarray(rng.integers(0, 65535, (9, 9)).astype(np.uint16)).save(folder / "d.png")
    Image.fromarray(rng.integers(0, 255, (300, 400, 3), np.uint8)).save(folder / "e.jpg")  # decoded at 1/8 of its size
    return sorted(folder.iterdir())
