"""Three executions of one formula, against the formula written out token by token."""

from __future__ import annotations

import pytest
import torch

from tailorvit.families.vit.relative import (
    EXECUTIONS,
    Places,
    Tables,
    attend,
    attention_weights,
    fused_width,
    table_rows,
)

DIM = 16
GRIDS = [
    ((4, 4), 3),  # reach covers the grid
    ((4, 4), 14),  # more rows than the grid can use
    ((5, 4), 2),  # offsets clamped
    ((3, 6), 5),  # non-square
    ((1, 6), 5),
    ((6, 1), 2),
    ((2, 2), 1),
    ((1, 1), 1),
]
grids = pytest.mark.parametrize(("grid", "reach"), GRIDS)


def inputs(grid, reach, dtype=torch.float32, grad=False):
    torch.manual_seed(0)
    tokens = grid[0] * grid[1] + 1
    qkv = [torch.randn(2, 3, tokens, DIM, dtype=dtype, requires_grad=grad) for _ in range(3)]
    tables = [torch.randn(table_rows(reach), DIM, dtype=dtype, requires_grad=grad) for _ in range(4)]
    return qkv, Tables(*tables), Places(grid, reach, DIM).to(dtype)


def by_hand(q, k, v, tables, grid, reach, scale):
    """The definition: for patches i, j the clamped offsets of j from i pick the rows; row 0 for the class token."""

    def row(a, b):
        return max(-reach, min(reach, b - a)) + reach + 1

    places = [None, *((r, c) for r in range(grid[0]) for c in range(grid[1]))]
    n = len(places)
    pairs = [[(0, 0) if a is None or b is None else (row(a[0], b[0]), row(a[1], b[1])) for b in places] for a in places]
    out = torch.zeros_like(q)
    for i in range(n):
        keys = torch.stack([k[:, :, j] + tables.key_v[pairs[i][j][0]] + tables.key_h[pairs[i][j][1]] for j in range(n)])
        values = torch.stack(
            [v[:, :, j] + tables.value_v[pairs[i][j][0]] + tables.value_h[pairs[i][j][1]] for j in range(n)]
        )
        weights = ((q[:, :, i] * keys).sum(-1) * scale).softmax(0)
        out[:, :, i] = (weights[..., None] * values).sum(0)
    return out


@grids
@pytest.mark.parametrize("execution", EXECUTIONS)
def test_equals_the_definition(grid, reach, execution):
    (q, k, v), tables, places = inputs(grid, reach, torch.float64)
    expected = by_hand(q, k, v, tables, grid, reach, 0.25)
    torch.testing.assert_close(attend(q, k, v, tables, places, 0.25, execution), expected, atol=2e-6, rtol=0)


@grids
def test_factored_equals_dense_in_double(grid, reach):
    (q, k, v), tables, places = inputs(grid, reach, torch.float64)
    dense, factored = (attend(q, k, v, tables, places, 0.25, e) for e in ("dense", "factored"))
    torch.testing.assert_close(factored, dense, atol=1e-12, rtol=0)


@grids
def test_all_agree_in_single(grid, reach):
    (q, k, v), tables, places = inputs(grid, reach)
    dense, factored, fused = (attend(q, k, v, tables, places, 0.25, e) for e in ("dense", "factored", "fused"))
    torch.testing.assert_close(factored, dense, atol=1e-5, rtol=0)
    torch.testing.assert_close(fused, dense, atol=1e-5, rtol=0)


@grids
def test_gradients_agree(grid, reach):
    found = {}
    for execution in EXECUTIONS:
        qkv, tables, places = inputs(grid, reach, grad=True)
        out = attend(*qkv, tables, places, 0.25, execution)
        (out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum().backward()
        found[execution] = [t.grad for t in (*qkv, *tables)]
    for name in ("factored", "fused"):
        for ours, reference in zip(found[name], found["dense"], strict=True):
            torch.testing.assert_close(ours, reference, atol=1e-5, rtol=1e-5)
    assert all(g.any() for g in found["fused"] if grid != (1, 1))


@pytest.mark.parametrize("which", range(4))
@pytest.mark.parametrize("execution", EXECUTIONS)
def test_every_table_matters(which, execution):
    (q, k, v), tables, places = inputs((3, 4), 2)
    other = Tables(*(t + (i == which) * torch.randn_like(t) for i, t in enumerate(tables)))
    first, second = (attend(q, k, v, t, places, 0.25, execution) for t in (tables, other))
    assert (first - second).abs().max() > 0.1


def test_zero_tables_are_plain_attention():
    (q, k, v), tables, places = inputs((3, 4), 2)
    zero = Tables(*(torch.zeros_like(t) for t in tables))
    plain = attend(q, k, v, None, places, 0.25)
    for execution in EXECUTIONS:
        torch.testing.assert_close(attend(q, k, v, zero, places, 0.25, execution), plain, atol=1e-6, rtol=1e-5)


@grids
def test_attention_weights_are_those_used(grid, reach):
    (q, k, v), tables, places = inputs(grid, reach)
    weights = attention_weights(q, k, tables, places, 0.25)
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
    still = tables._replace(value_v=torch.zeros_like(tables.value_v), value_h=torch.zeros_like(tables.value_h))
    torch.testing.assert_close(weights @ v, attend(q, k, v, still, places, 0.25, "dense"), atol=1e-5, rtol=1e-5)


def test_pairs_of_a_known_grid():
    vertical, horizontal = Places((2, 3), 1, DIM).pairs()
    assert vertical[0].tolist() == vertical[:, 0].tolist() == [0] * 7
    assert vertical[1].tolist() == [0, 2, 2, 2, 3, 3, 3]  # from the first patch: same row, then one down
    assert horizontal[1].tolist() == [0, 2, 3, 3, 2, 3, 3]  # two across is clamped to one
    assert horizontal[6].tolist() == [0, 1, 1, 2, 1, 1, 2]


def test_places_move_but_are_not_saved():
    places = Places((2, 3), 1, DIM)
    assert not places.state_dict()
    assert set(dict(places.named_buffers())) == {"up", "side", "mark", "onehot"}


@pytest.mark.parametrize(("dim", "grid", "width"), [(64, (14, 14), 96), (32, (8, 8), 56), (16, (4, 4), 32)])
def test_fused_width_is_a_multiple_of_eight(dim, grid, width):
    assert fused_width(dim, grid) == width
