"""A rough lower bound on the memory of a step, known before anything is built."""

from __future__ import annotations

from tailorvit.arch import Arch
from tailorvit.costs.count import Counter

_FLOAT = 4  # bytes
_TRAINED = 4  # weight, gradient and the optimiser's two averages


def step_bytes(counter: Counter, arch: Arch, batch: int, training: bool, width: int = _FLOAT) -> int:
    """Bytes that a step on ``batch`` images takes at least.

    Counted are weights, images, and the inputs of the layers of each block: all blocks when gradients need them, else
    the largest. ``width`` is the bytes of an activation. Real use is up to a few times more.
    """
    shared, params = counter.shared, counter.params(arch)
    high, wide = shared.image_size
    rows = counter.family.outline(shared, arch)
    blocks = [
        _number(r, "tokens") * (2 * _number(r, "embed") + 3 * _number(r, "qkv") + _number(r, "hidden")) for r in rows
    ]
    held = sum(blocks) if training else max(blocks, default=0)
    image = _FLOAT * int(shared.channels) * int(high) * int(wide)
    return _FLOAT * params * (_TRAINED if training else 1) + batch * (image + width * held)


def _number(row: dict[str, object], key: str) -> int:
    value = row.get(key)
    return int(value) if isinstance(value, int | float) else 0
