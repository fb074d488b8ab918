"""What result.json tells of a pretrained network that was cut: the whole of it, and the sizes it was cut to."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator

from tailorvit.report.fields import PART, Amount, Label, Number, Table, Text, listed, whole

WHOLE = "whole network, fine-tuned"  # its name among the peers
FIRST = "first blocks"  # the name of the candidate that keeps blocks from the front, as people do by hand
_BLOCKS = 512
_SIZES = 40


def block_order(value: Any) -> tuple[int, ...]:
    """Every block once, the most important first; empty where the list is damaged."""
    found = [whole(item) for item in listed(value)[:_BLOCKS]]
    known = tuple(block for block in found if block is not None)
    return known if sorted(known) == list(range(len(found))) else ()


def genes(value: Any) -> tuple[int, ...]:
    """Positive whole numbers, one per kept block; empty where one is damaged."""
    found = [whole(item) for item in listed(value)[:_BLOCKS]]
    known = tuple(gene for gene in found if gene is not None and gene > 0)
    return known if len(known) == len(found) else ()


class WholeNetwork(BaseModel):
    """The pretrained network after its fine-tuning."""

    model_config = PART

    network: Text = ""
    sha256: Text = ""
    params: Amount = None
    blocks: Annotated[tuple[int, ...], BeforeValidator(block_order)] = ()  # the most important first
    search_accuracy: Number = None


class SizeCut(BaseModel):
    """The network of one size of the front."""

    model_config = PART

    size: Amount = None
    arch: Table = {}
    params: Amount = None
    macs: Amount = None
    inherited_accuracy: Number = None  # on the search images, before the last training
    final_search_accuracy: Number = None
    test_accuracy: Number = None
    folder: Label = ""


def size_cuts(value: Any) -> list[Any]:
    """The rows of the front that can be read; a damaged file must not make an endless page."""
    return [row for row in listed(value)[:_SIZES] if row and isinstance(row, dict | SizeCut)]
