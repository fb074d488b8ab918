"""The ViT's executions of relative position: equal answers, each counted as torch counts it, attention reproduced."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tailorvit.families import FAMILIES, named_space, with_settings
from tailorvit.families.vit.relative import EXECUTIONS
from tailorvit.testing.families import close, counter, sample, stirred

VIT = FAMILIES["vit"]
VARIANTS = {
    "plain": {},
    "non-square": {"image_size": (8, 12)},
    "one row": {"image_size": (2, 10)},
    "2x2": {"image_size": (4, 4)},
    "cls": {"pool": "cls"},
    "no relative": {"relative": False},
    "neither": {"absolute": False, "relative": False},
    "short reach": {"reach": 1},
    "no qkv bias": {"qkv_bias": False},
}
executions = pytest.mark.parametrize("execution", EXECUTIONS)
variants = pytest.mark.parametrize("fixed", VARIANTS.values(), ids=list(VARIANTS))


def supernet(fixed, execution):
    space = with_settings(named_space("vit-8px"), **fixed)
    torch.manual_seed(0)
    return space, stirred(VIT.supernet(space, execution=execution)).eval()


def images(space, n=2):
    settings = counter(space).shared
    return torch.randn(n, settings.channels, *settings.image_size, generator=torch.Generator().manual_seed(1))


@executions
@variants
@torch.no_grad()
def test_supernets_agree_and_so_do_their_extracted_networks(fixed, execution):
    space, model = supernet(fixed, "dense")
    _, other = supernet(fixed, execution)
    x = images(space)
    for arch in sample(space, 3, "executions"):
        close(other(x, arch), model(x, arch))
        close(VIT.extract(other, arch).eval()(x), model(x, arch))


@executions
@variants
def test_every_execution_is_counted_as_torch_counts_it(fixed, execution):
    space, _ = supernet(fixed, execution)
    settings = counter(space).shared
    if execution == "fused" and 1 in settings.grid:
        pytest.skip("torch multiplies by the single row instead of taking a product, and counts nothing")
    for arch in [space.smallest(), space.largest(), *sample(space, 1, "macs")]:
        with torch.device("meta"), FlopCounterMode(display=False) as flops:
            VIT.build(settings, arch, execution=execution).eval()(
                torch.empty(1, settings.channels, *settings.image_size)
            )
        assert counter(space).readings(arch)[f"macs_{execution}"] == flops.get_total_flops() / 2


@executions
@variants
@torch.no_grad()
def test_attention_maps_reproduce_the_output(fixed, execution):
    space, model = supernet(fixed, execution)
    plain, x, caught = VIT.extract(model, space.largest()).eval(), images(space), []
    hooks = [b.attn.register_forward_hook(lambda _, args, out: caught.append((args[0], out))) for b in plain.blocks]
    plain(x)
    for hook in hooks:
        hook.remove()
    for m, block, (inputs, output) in zip(VIT.attention(plain, x), plain.blocks, caught, strict=True):
        attn, tables = block.attn, block.attn._tables()
        whole, value = attn.weights(inputs), attn._split(inputs)[2]
        mixed = whole @ value
        if tables is not None:
            down, across = attn.places.pairs()
            mixed = mixed + torch.einsum("bhij,ijd->bhid", whole, tables.value_v[down] + tables.value_h[across])
        close(attn.proj(mixed.transpose(1, 2).flatten(2)), output)
        patches = whole[:, :, 1:, 1:]
        close(m.weights()[:, 0], patches / patches.sum(-1, keepdim=True))
