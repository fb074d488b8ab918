"""Other people's counts for the ViT, kept under their names: S4's Eq. 3 and the released complexity counter."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tailorvit.arch import Arch
from tailorvit.plain.network import hidden_width
from tailorvit.plain.relative import table_rows
from tailorvit.plain.vit import Frame


def eq3_params(frame: Frame, arch: Arch) -> int:
    """S4's Eq. 3, summed per block. It says 1539d where the network has 967d, and 5d a block where it has d.

    The general form keeps what 1539 = 2 * 769 + 1 seems to be: the patch embedding twice, plus the class token.
    """
    d = int(arch.one("embed"))
    pixels = frame.channels * frame.patch**2
    total = (2 * (pixels + 1) + 1) * d + 2 * d + frame.classes * (d + 1)
    tables = 4 * table_rows(frame.reach) * frame.head_dim if frame.relative else 0
    for heads, ratio in zip(arch.many("heads"), arch.many("mlp"), strict=True):
        q, hidden = int(heads) * frame.head_dim, hidden_width(d, ratio)
        total += 4 * d + 4 * q * d + 3 * q + 5 * d + tables + 2 * hidden * d + hidden + d
    return total


def official_complexity(frame: Frame, arch: Arch) -> int:
    """What AutoFormer's released code prints as FLOPs: a token too many in the blocks, the head on every token."""
    d, n = int(arch.one("embed")), frame.tokens - 1
    tokens = n + 2  # the released counter adds the class token twice
    pixels = frame.channels * frame.patch**2
    total = d + n * pixels * d + (n + 1) * d / 2
    for heads, ratio in zip(arch.many("heads"), arch.many("mlp"), strict=True):
        q, hidden = int(heads) * frame.head_dim, hidden_width(d, ratio)
        relative = 2 * frame.reach * tokens**2 + tokens**2 / 2 + tokens * q / 2 if frame.relative else 0
        total += 2 * tokens * d + 4 * tokens * q * d + 2 * tokens**2 * q + relative + 2 * tokens * d * hidden
    return int(total + (n + 1) * frame.classes * d)


READINGS: Mapping[str, Callable[[Frame, Arch], int]] = {
    "params_eq3": eq3_params,
    "official_complexity": official_complexity,
}
