"""Buffers with a part for each of many tensors, and the 16-bit copies that recorded trainings keep in them."""

from __future__ import annotations

import pytest
import torch

from tailorvit.families import family
from tailorvit.train.flat import ALIGN, Flat
from tailorvit.train.graphs import Short

SHAPES = [(3, 5), (ALIGN,), (), (2, 1, 7), (130,)]


@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("target", [torch.float32, torch.bfloat16])
def test_parts_hold_the_tensors_cast_and_begin_at_round_places(source: torch.dtype, target: torch.dtype) -> None:
    torch.manual_seed(0)
    tensors = [torch.randn(shape).to(source) for shape in SHAPES]
    flat = Flat(tensors, target)
    flat.fill([t.t() if t.dim() == 2 else t for t in [tensors[0].t().contiguous(), *tensors[1:]]])  # not contiguous
    for part, tensor in zip(flat.parts, tensors, strict=True):
        assert part.dtype == target and part.shape == tensor.shape and part.is_contiguous()
        assert torch.equal(part, tensor.to(target))
        assert part.storage_offset() % ALIGN == 0 and part._base is None
    rest = torch.ones(len(flat.whole), dtype=torch.bool)
    for part in flat.parts:
        rest[part.storage_offset() : part.storage_offset() + part.numel()] = False
    assert not flat.whole[rest].any()  # between the parts nothing is left behind


def test_writing_to_a_part_writes_to_the_buffer() -> None:
    flat = Flat([torch.zeros(3), torch.zeros(2)], torch.float32)
    flat.parts[1].fill_(7)
    assert flat.whole.sum() == 14 and flat.whole[ALIGN] == 7


def test_no_tensors_make_an_empty_buffer() -> None:
    flat = Flat([], torch.float32)
    flat.fill([])
    assert flat.whole.numel() == 0 and flat.parts == []


def test_copies_follow_weights_and_gradients_come_back_in_the_networks_order() -> None:
    vit = family("vit")
    space = vit.spaces["vit-8px"]
    model = vit.build(vit.frame(dict(space.fixed)), space.smallest())
    short = Short(model)
    named = dict(model.named_parameters())
    assert "blocks.0.mlp.fc1.weight" in short.copies and "blocks.0.norm1.weight" not in short.copies
    with torch.no_grad():
        named["blocks.0.mlp.fc1.weight"].fill_(1.0039)  # no 16-bit number
    short.refresh()
    for name, copy in short.copies.items():
        assert torch.equal(copy, named[name].bfloat16())
    found: list[torch.Tensor | None] = [torch.full_like(u, k % 7 + 1) for k, u in enumerate(short.used)]
    found[0] = None
    short.take(found)
    by_name = dict(zip(short.order, found, strict=True))
    for (name, parameter), mine in zip(named.items(), short.gradients, strict=True):
        given = by_name[name]
        wanted = torch.zeros_like(parameter) if given is None else given.float()
        assert mine.dtype == torch.float32 and torch.equal(mine, wanted)
