"""Distances, similarities, references and maps against cases worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from analysis_tools import lattice, maps, network, unpacked

from tailorvit.analysis import attention
from tailorvit.analysis.attention import (
    as_bytes,
    as_map,
    attention_of,
    box,
    cosines,
    distances,
    layer_stats,
    plan_maps,
    redundancy,
    references,
)
from tailorvit.families import family

UNIFORM = torch.full((1, 1, 1, 9, 9), 1 / 9)


# -- distance ---------------------------------------------------------------------------------------------------------


def test_uniform_attention_on_three_by_three():
    # Nine keys, so the ten strongest are all nine. From the centre: 4 at 1, 4 at sqrt 2. From a corner: 2 at 1, 1 at
    # sqrt 2, 2 at 2, 2 at sqrt 5, 1 at sqrt 8. From an edge: 3 at 1, 2 at sqrt 2, 1 at 2, 2 at sqrt 5.
    centre = (4 + 4 * math.sqrt(2)) / 9
    corner = (2 + math.sqrt(2) + 2 * 2 + 2 * math.sqrt(5) + math.sqrt(8)) / 9
    edge = (3 + 2 * math.sqrt(2) + 2 + 2 * math.sqrt(5)) / 9
    (found,) = distances(UNIFORM, lattice(3, 3), lattice(3, 3), [10])
    expected = [corner, edge, corner, edge, centre, edge, corner, edge, corner]
    assert found.shape == (1, 1, 1, 9)
    assert found.flatten().tolist() == pytest.approx(expected)


def test_distance_counts_the_strongest_keys_only():
    weights = torch.zeros(1, 1, 2, 1, 4)
    weights[0, 0, 0, 0] = torch.tensor([0.4, 0.3, 0.2, 0.1])
    weights[0, 0, 1, 0] = torch.tensor([0.1, 0.2, 0.3, 0.4])
    keys = torch.tensor([[[0.0, 0.0], [0.0, 2.0], [3.0, 4.0], [6.0, 8.0]]])
    one, two, three = distances(weights, torch.zeros(1, 1, 2), keys, [1, 2, 3])
    assert one.flatten().tolist() == [0, 10]
    assert two.flatten().tolist() == [1, 7.5]
    assert three.flatten().tolist() == pytest.approx([7 / 3, 17 / 3])


def test_masked_keys_never_count_and_a_query_without_keys_has_no_distance():
    weights = torch.tensor([[0.75, 0.25, 0, 0], [0, 0, 0, 0]]).view(1, 1, 1, 2, 4)
    keys = torch.tensor([[[0.0, 0.0], [0.0, 1.0], [9.0, 9.0], [8.0, 8.0]]])
    (found,) = distances(weights, torch.zeros(1, 2, 2), keys, [3])
    assert found.flatten()[0] == 0.5 and found.flatten()[1].isnan()
    assert box(found.numpy().ravel())["median"] == 0.5
    assert box(np.array([np.nan])) is None


def test_groups_keep_to_their_own_keys():
    weights = torch.ones(1, 2, 1, 1, 1)
    queries = torch.tensor([[[0.0, 0.0]], [[0.0, 5.0]]])
    keys = torch.tensor([[[0.0, 1.0]], [[0.0, 7.0]]])
    (found,) = distances(weights, queries, keys, [5])
    assert found.flatten().tolist() == [1, 2]


# -- boxes ------------------------------------------------------------------------------------------------------------


def test_box_of_known_numbers():
    found = box(np.array([1, 2, 3, 4, 5, 6, 7, 8, 100.0]))
    assert found == {"low": 1, "q1": 3, "median": 5, "q3": 7, "high": 8, "mean": round(136 / 9, 4)}


def test_whiskers_never_lie_inside_the_box():
    found = box(np.array([0, 10, 10, 10.0]))  # the lower quartile 7.5 lies between values, 0 out of its reach 3.75
    assert (found["low"], found["q1"]) == (7.5, 7.5)
    assert box(np.array([2.0])) == dict.fromkeys(("low", "q1", "median", "q3", "high", "mean"), 2.0)


# -- heads ------------------------------------------------------------------------------------------------------------


def test_identical_heads_are_wholly_alike_and_disjoint_ones_not_at_all():
    weights = torch.zeros(1, 1, 3, 2, 2)
    weights[0, 0, :2] = torch.eye(2)  # the first two heads look at themselves, the third at the other
    weights[0, 0, 2] = 1 - torch.eye(2)
    found = cosines(weights)[0].numpy()
    np.testing.assert_allclose(found, [[1, 1, 0], [1, 1, 0], [0, 0, 1]], atol=1e-6)
    assert redundancy(found) == pytest.approx(1 / 3)
    assert redundancy(np.ones((1, 1))) is None


def test_similarity_is_the_mean_over_images():
    alike, apart = torch.eye(2).expand(1, 2, 2, 2), torch.stack([torch.eye(2), 1 - torch.eye(2)])[None]
    both = maps(torch.stack([alike, apart]), (1, 2), lattice(1, 2), lattice(1, 2))
    found, _ = attention_of(lambda model, x: iter([both]), torch.nn.Identity(), torch.zeros(2, 1), 1)
    assert found["layers"][0]["similarity"] == [[1, 0.5], [0.5, 1]]  # the cosine of the mean maps would be 0.71
    assert found["layers"][0]["redundancy"] == 0.5


# -- references and maps ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("grid", [(1, 1), (4, 4), (3, 5), (1, 7), (14, 14), (8, 2)])
@pytest.mark.parametrize("side", [1, 3, 5, 7, 15])
def test_references_start_at_the_centre_and_stay_apart_on_the_grid(grid, side):
    found = references(grid, side)
    assert found[0] == [grid[0] // 2, grid[1] // 2]
    assert len({tuple(p) for p in found}) == len(found) == min(side, grid[0]) * min(side, grid[1])
    assert all(0 <= r < grid[0] and 0 <= c < grid[1] for r, c in found)


def test_references_are_spread():
    assert sorted(references((14, 14), 3)) == [[r, c] for r in (2, 7, 11) for c in (2, 7, 11)]


@pytest.mark.parametrize("depth", [1, 3, 12])
@pytest.mark.parametrize("grid", [(4, 4), (14, 14), (7, 20)])
def test_the_limit_is_used_and_kept(depth, grid):
    layers = [(3, grid)] * depth

    def spent(side):
        return 4 * depth * 3 * grid[0] * grid[1] * len(references(grid, side))

    kept = plan_maps(layers, 4, 400_000)
    assert kept.images == 4 and kept.stride == 1 and kept.side % 2 == 1
    assert spent(kept.side) <= 400_000
    assert kept.side >= max(grid) or spent(kept.side + 2) > 400_000


def test_beyond_the_limit_images_go_first_then_layers():
    layers = [(1, (10, 10))] * 6
    assert plan_maps(layers, 4, 2400) == (1, 4, 1)
    assert plan_maps(layers, 4, 1900) == (1, 3, 1)
    assert plan_maps(layers, 4, 599) == (1, 1, 2)
    assert plan_maps(layers, 4, 200) == (1, 1, 3)
    assert plan_maps(layers, 4, 1) == (1, 1, 6), "one map of one layer is kept whatever it costs"


def test_painting_puts_each_weight_on_its_patch():
    weights = torch.tensor([[0.5, 0.25, 0.25]])
    keys = torch.tensor([[0.0, 1.0], [1.0, 0.0], [5.0, 5.0]])  # the last one is padding
    assert as_map(weights, keys, (2, 2)).tolist() == [[[0, 0.5], [0.25, 0]]]


def test_a_pooled_key_covers_its_patches():
    keys = torch.tensor([[0.5, 0.5], [0.5, 2.5]])  # two rows, four columns, pooled two by two
    found = as_map(torch.tensor([0.75, 0.25]), keys, (2, 4), (2, 2))
    assert found.tolist() == [[0.75, 0.75, 0.25, 0.25]] * 2
    between = as_map(torch.tensor([0.75, 0.25]), torch.tensor([[0.0, 1.0], [0.0, 3.0]]), (1, 4), (1, 2))
    assert between.tolist() == [[0.75, 0.75, 0.25, 0.25]], "a patch on the border of two keys belongs to one of them"


def test_scaling_keeps_the_shape_of_each_map():
    data = torch.tensor([[[0.5, 0.25]], [[0.0, 0.001]], [[0.0, 0.0]]])
    found, peaks = as_bytes(data)
    assert found.dtype == np.uint8 and found.tolist() == [[[255, 128]], [[0, 255]], [[0, 0]]]
    assert peaks.tolist() == pytest.approx([0.5, 0.001, 0])


# -- a network's layers -----------------------------------------------------------------------------------------------


def test_packed_maps_give_the_attention_back():
    model, x = network(), torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    found, notes = attention_of(family("vit").attention, model, x, 2)
    assert notes == [] and (found["shown"], found["pooled"]) == (2, 3)
    with torch.no_grad():
        truth = [m.weights() for m in family("vit").attention(model, x)]
    assert [layer["heads"] for layer in found["layers"]] == [2, 3]
    for layer, weights in zip(found["layers"], truth, strict=True):
        assert layer["grid"] == [4, 4] and len(layer["references"]) == 16
        rebuilt = unpacked(layer, 2) / 255 * unpacked(layer, 2, "peaks")[..., None, None]
        for k, (r, c) in enumerate(layer["references"]):
            expected = weights[:2, 0, :, 4 * r + c].unflatten(-1, (4, 4)).numpy()
            np.testing.assert_allclose(rebuilt[:, k], expected, atol=1 / 255)
            np.testing.assert_allclose(unpacked(layer, 2, "peaks")[:, k], expected.max((-2, -1)), rtol=1e-6)
        np.testing.assert_allclose(layer["similarity"], cosines(weights).mean(0), atol=1e-4)
        far = distances(weights, lattice(4, 4), lattice(4, 4), [5])[0]
        assert layer["distance"]["5"]["mean"] == pytest.approx(float(far.mean()), abs=1e-3)


def test_small_steps_change_nothing(monkeypatch):
    model, x = network(), torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    whole, _ = attention_of(family("vit").attention, model, x, 3)
    monkeypatch.setattr(attention, "AT_ONCE", 1)
    single, _ = attention_of(family("vit").attention, model, x, 3)
    for a, b in zip(whole["layers"], single["layers"], strict=True):
        # A product over one image may round otherwise than one over five.
        assert np.abs(unpacked(a, 3).astype(int) - unpacked(b, 3)).max() <= 1
        np.testing.assert_allclose(a["similarity"], b["similarity"], atol=2e-4)
        assert a["distance"]["10"] == pytest.approx(b["distance"]["10"], abs=2e-4)


def test_windows_show_the_window_and_padding_is_no_query():
    # Two windows of 1 x 2 over a grid of 1 x 3: the last place of the second is padding.
    queries = torch.tensor([[[0.0, 0.0], [0.0, 1.0]], [[0.0, 2.0], [0.0, 3.0]]])
    weights = torch.tensor([[[0.5, 0.5], [0.0, 1.0]], [[1.0, 0.0], [0.2, 0.8]]]).view(1, 2, 1, 2, 2)
    layer = maps(weights, (1, 3), queries, queries)
    seen = layer_stats(layer, weights, [[0, 0], [0, 1], [0, 2]], 1, 1)
    assert seen.maps[0, :, 0, 0].tolist() == [[255, 255, 0], [0, 255, 0], [0, 0, 255]]
    assert seen.far[0].tolist() == [0.5, 0.0, 0.0]


def test_layers_too_large_are_named_and_never_computed():
    def refuse():
        raise AssertionError("the weights of a layer too large were asked for")

    big = maps(UNIFORM, (60, 60), lattice(60, 60), lattice(60, 60), name="block 9")
    object.__setattr__(big, "weights", refuse)
    found, notes = attention_of(lambda model, x: iter([big, maps(UNIFORM)]), torch.nn.Identity(), torch.zeros(1, 1), 1)
    assert [layer["name"] for layer in found["layers"]] == ["block 1"]
    assert notes == ["Attention is left out where a layer has more than 3200 queries: block 9."]
    found, notes = attention_of(lambda model, x: iter([big]), torch.nn.Identity(), torch.zeros(1, 1), 1)
    assert found is None and "block 9" in notes[0]


def test_layers_that_are_not_finite_are_named():
    bad = maps(UNIFORM * float("nan"), name="block 2")
    found, notes = attention_of(lambda model, x: iter([maps(UNIFORM), bad]), torch.nn.Identity(), torch.zeros(1, 1), 1)
    assert [layer["name"] for layer in found["layers"]] == ["block 1"]
    assert notes == ["Attention is not finite in block 2, and left out."]


def test_what_does_not_fit_is_said(monkeypatch):
    layers = [maps(UNIFORM.expand(2, -1, -1, -1, -1), name=f"block {i}") for i in (1, 2, 3)]
    monkeypatch.setattr(attention, "plan_maps", lambda layers, images: plan_maps(layers, images, 20))
    found, notes = attention_of(lambda model, x: iter(layers), torch.nn.Identity(), torch.zeros(2, 1), 2)
    assert found["shown"] == 1 and [len(layer["references"]) for layer in found["layers"]] == [1, 0, 1]
    assert [unpacked(layer, 1).shape[1] for layer in found["layers"]] == [1, 0, 1]
    assert len(notes) == 2 and "1 of 2 images" in notes[0] and "one layer in 2" in notes[1]
