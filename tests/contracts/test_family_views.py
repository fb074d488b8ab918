"""Every family says what its networks are made of, block by block, and shows what they look at."""

from __future__ import annotations

import json

import pytest
import torch
from family_variants import VARIANTS
from test_families import NAMES, SPACES, close, counter, images, sample, spaces, supernet

from tailorvit.families import FAMILIES, named_space
from tailorvit.families.vit.relative import EXECUTIONS

OUTLINE = ("stage", "block", "tokens", "embed", "heads", "qkv", "mlp", "hidden", "window", "params", "macs")
LOOKING = [n for n in NAMES if FAMILIES[named_space(n).family].attention is not None]


@spaces
def test_outlines_sum_with_the_rest_to_the_total(name):
    space = named_space(name)
    family, count = FAMILIES[space.family], counter(space)
    for arch in [space.smallest(), space.largest(), *sample(space, 10, name, "outline")]:
        rows = family.outline(count.frame, arch)
        rest = [part for part in count.parts(arch) if not part.part.startswith("blocks.")]
        assert sum(r["params"] for r in rows) + sum(p.params for p in rest) == count.params(arch)
        assert sum(r["macs"] for r in rows) + sum(p.macs for p in rest) == count.macs(arch)
        assert json.loads(json.dumps(rows)) == rows
        for row in rows:
            assert tuple(row) == OUTLINE and row["hidden"] == int(row["embed"] * row["mlp"])
            assert row["qkv"] % row["heads"] == 0 and min(row["params"], row["macs"], row["tokens"]) > 0


# -- attention --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LOOKING)
@torch.no_grad()
def test_attention_is_a_distribution_over_the_grid(name):
    space, model = supernet(name)
    family, frame = FAMILIES[space.family], counter(space).frame
    arch = sample(space, 1, name, "attention")[0]
    plain, x = family.extract(model, arch).eval(), images(space, 3)
    before = plain(x)
    found = list(family.attention(plain, x))
    assert {(m.stage, m.block) for m in found} == {(r["stage"], r["block"]) for r in family.outline(frame, arch)}
    assert len({m.name for m in found}) == len(found)
    for m in found:
        weights = m.weights()
        (groups, queries, two), keys = m.queries.shape, m.keys.shape[1]
        assert weights.shape == (3, groups, m.heads, queries, keys) and two == 2 and m.keys.shape == (groups, keys, 2)
        assert weights.min() >= 0
        close(weights.sum(-1), torch.ones(weights.shape[:-1]))
        places = {tuple(p) for p in m.queries.flatten(0, 1).tolist()}
        if groups * queries > 1:  # a lone query looks from nowhere; its keys are the grid
            assert places >= {(r, c) for r in range(m.grid[0]) for c in range(m.grid[1])}
        else:
            assert {tuple(k) for k in m.keys[0].tolist()} == {
                (r, c) for r in range(m.grid[0]) for c in range(m.grid[1])
            }
        assert keys == 1 or weights.std((0, 2)).max() > 1e-3, "images and heads differ, so should their maps"
    torch.testing.assert_close(plain(x), before, atol=0, rtol=0)


def vit_with_inputs(fixed, execution):
    """A plain ViT, images, and the true input of each block's attention, caught in a forward pass."""
    space, model = supernet(SPACES["vit"][0], execution, **fixed)
    plain, x, caught = FAMILIES["vit"].extract(model, space.largest()).eval(), images(space), []
    hooks = [b.attn.register_forward_hook(lambda _, args, out: caught.append((args[0], out))) for b in plain.blocks]
    plain(x)
    for hook in hooks:
        hook.remove()
    return plain, x, caught


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("fixed", VARIANTS["vit"].values(), ids=list(VARIANTS["vit"]))
@torch.no_grad()
def test_vit_attention_reproduces_the_output(fixed, execution):
    plain, x, caught = vit_with_inputs(fixed, execution)
    found = list(FAMILIES["vit"].attention(plain, x))
    for m, block, (inputs, output) in zip(found, plain.blocks, caught, strict=True):
        attn, tables = block.attn, block.attn._tables()
        whole = attn.weights(inputs)
        value = attn._split(inputs)[2]
        mixed = whole @ value
        if tables is not None:
            down, across = attn.places.pairs()
            mixed = mixed + torch.einsum("bhij,ijd->bhid", whole, tables.value_v[down] + tables.value_h[across])
        close(attn.proj(mixed.transpose(1, 2).flatten(2)), output)
        patches = whole[:, :, 1:, 1:]
        close(m.weights()[:, 0], patches / patches.sum(-1, keepdim=True))
