"""The CIFAR-10 study's surface: found again where it is known, and S4 led astray by the error it is given."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

import cifar10
import study.queue
import study.surface as surface
import study.tables
from study.sizes import FULL

SIZE = FULL["1.5M"]
TRUE = {"depth": 0.8, "mlp": 1.8, "heads": -0.1, "embed": 3.9}
BIAS = {"depth": -0.6, "mlp": -1.5, "heads": 1.1, "embed": -1.9}


def height(arch, bend=-0.9):
    each = surface.logs(arch)
    gains = sum(g * v for g, v in zip(TRUE.values(), each))
    return 40 + gains + bend * (each[0] - surface.BEND) ** 2


def rows_of(noise=0.0, count=40, seed=0):
    """Networks all over the place, and three supernets off the truth by the bias."""
    rng, rows = np.random.default_rng(seed), []
    for i in range(count):
        values = {"depth": rng.integers(4, 20), "mlp": rng.uniform(2, 5), "heads": rng.integers(1, 8)}
        arch = {k: float(v) for k, v in values.items()} | {"embed": float(rng.integers(50, 180))}
        percent = height(arch) + rng.normal(0, noise)
        rows.append({"case": "x", "seed": i, "arch": arch, "test": percent, "search": percent, "slopes": []})
    space = SIZE.first()
    at = surface.middle(space)
    true = np.array([*TRUE.values()])
    true[0] -= 1.8 * (at[0] - surface.BEND)
    for seed in range(3):
        slopes = []
        for k, v, gain, off in zip(surface.KEYS, at, true, BIAS.values()):
            step = math.log2(1 + float(space[k].shift) / 2**v)
            off += rng.normal(0, noise / 10)
            slopes.append({"t": 0, "dim": k, "shift": space[k].shift, "z_step": (gain + off) * step})
        path = [{"t": 0, "step": 0, "space": space.to_dict()}]
        rows.append({"case": "d s4", "seed": seed, "slopes": slopes, "path": path})
    return rows


def test_a_surface_is_found_again_with_errors_that_hold():
    found = surface.fit(rows_of())
    assert found.slopes == pytest.approx([*TRUE.values()]) and found.bend == pytest.approx(-0.9)
    assert found.deviation < 1e-9 and found.networks == 40
    away = [(f := surface.fit(rows_of(0.8, seed=s))).slopes - [*TRUE.values()] for s in range(40)]
    assert np.std(away, axis=0) == pytest.approx(f.errors, rel=0.5)
    assert surface.fit(rows_of(count=10)) is None


def test_half_rates_and_a_network_found_twice_do_not_count():
    rows = rows_of()
    more = [{**rows[0], "case": "y"}, {**rows[1], "case": "noise half rate", "seed": 99}]
    assert len(surface.trained([*rows, *more])) == 40


def test_what_supernets_share_is_their_bias_and_chance_says_how_likely_it_is():
    found = surface.fit(rows_of())
    bias, spread = surface.errors_of(found, surface.supernets(rows_of(0.01)))
    assert bias == pytest.approx([*BIAS.values()], abs=0.05) and (spread < 0.05).all()
    noisy = rows_of(0.8)
    fitted, judged = surface.fit(noisy), surface.supernets(noisy)
    square, p = surface.chance(fitted, judged)
    assert square > 10 and p < 0.05
    right = [
        (at, fitted.slopes_at(at) + 0.1 * np.random.default_rng(i).normal(size=4)) for i, (at, _) in enumerate(judged)
    ]
    assert surface.chance(fitted, right)[1] > 0.05


def test_s4_gains_by_right_slopes_and_loses_by_biased_ones():
    way = "sized by the middle, three moves"
    found = surface.what_if(rows_of(0.3), SIZE, seeds=2, ways=(way,))
    by = found["ways"][way]
    assert by["right"][0] > found["first"] and by["right"][0] > by["bias"][0] + 1
    assert len(by["spread"]) == 2 and not found["surveys"]
    text = surface.told({**found, "surveys": {"8 members": [1.0, 3.0]}}, study.tables.grid)
    assert f"{by['right'][0]:.1f}" in text and "| 8 members | 2.0 ± 1.4 |" in text
    assert surface.told({}, study.tables.grid) == "Not run yet."


def test_the_stored_figures_are_those_of_the_stored_rows():
    """One way over the real surface; the others are made by `cifar10.py surface`."""
    kept = json.loads(cifar10.SURFACE.read_text())
    rows = [r for r in study.queue.finished(study.queue.read_rows(cifar10.ROWS)).values() if r.get("size") == "1.5M"]
    way = "as in the paper, three moves"
    made = json.loads(json.dumps(surface.what_if(rows, SIZE, seeds=1, ways=(way,))))
    for key in ("networks", "deviation", "slopes", "errors", "bias", "spread", "chance", "first", "hand"):
        assert made[key] == pytest.approx(kept[key]), key
    assert made["ways"][way]["right"] == kept["ways"][way]["right"]
    assert made["ways"][way]["both"][0] == kept["ways"][way]["both"][0]
