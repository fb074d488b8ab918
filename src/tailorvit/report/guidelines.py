"""Guidelines: what S3 and AutoFormer report about good networks, tested on one network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Literal

from tailorvit.report.views import Block
from tailorvit.stats import spearman

_CLEAR = 0.3  # rank correlation below which a trend is called none: ten blocks in random order pass it 2 times in 10
_FEWEST = 4  # blocks of a trend: two or three are in order by chance once in two or six times
Word = Literal["follows", "does not", "cannot be judged"]


@dataclass(frozen=True)
class Verdict:
    """A claim, whether this network follows it, and the numbers behind that."""

    claim: str
    verdict: Word
    numbers: str


def guidelines(blocks: Sequence[Block]) -> list[Verdict]:
    """Every guideline in turn; none without blocks."""
    tests: Sequence[tuple[str, Callable[[Sequence[Block]], tuple[Word, str]]]] = (
        ("Stage 3 has the most blocks (S3)", _third_stage),
        ("Deeper stages have larger windows (S3)", _windows),
        ("Deeper blocks have larger MLP ratios (S3)", _ratios),
        ("Q-K-V is narrower than the block (S3)", _narrow),
        ("Q-K-V shrinks against the block with depth (S3)", _shrinking),
        ("Shallow blocks: wide Q-K-V, small MLP; deep blocks the reverse (AutoFormer)", _reverse),
    )
    return [Verdict(claim, *test(blocks)) for claim, test in tests] if blocks else []


def trend(values: Sequence[float]) -> tuple[float | None, float, float]:
    """Spearman's rho with depth, and the means of the first and the second half; an odd middle belongs to neither."""
    half = len(values) // 2
    rho = spearman(list(range(len(values))), list(values))
    return rho, mean(values[:half]), mean(values[-half:])


def _growth(values: Sequence[float], what: str, sign: int) -> tuple[Word, str]:
    """Whether values grow (sign 1) or shrink (-1) with depth: both rho and the halves must say so."""
    if len(values) < _FEWEST:
        return "cannot be judged", f"{what} of {len(values)} blocks is known; a trend takes {_FEWEST}"
    rho, first, second = trend(values)
    halves = f"mean {first:.3g} in the first half, {second:.3g} in the second"
    if rho is None:
        return "does not", f"the same {what} in all {len(values)} blocks: {values[0]:.3g}"
    follows = rho * sign >= _CLEAR and (second - first) * sign > 0
    return "follows" if follows else "does not", f"rho of {what} with depth {rho:+.2f}; {halves}"


def _stages(blocks: Sequence[Block]) -> dict[int, list[Block]]:
    found: dict[int, list[Block]] = {}
    for block in blocks:
        if block.stage is not None:
            found.setdefault(block.stage, []).append(block)
    return dict(sorted(found.items()))


def _third_stage(blocks: Sequence[Block]) -> tuple[Word, str]:
    stages = _stages(blocks)
    if len(stages) < 2:
        return "cannot be judged", "one stage"
    counts = ", ".join(f"stage {s}: {len(each)}" for s, each in stages.items())
    if 3 not in stages:
        return "cannot be judged", f"there is no stage 3 ({counts})"
    rest = max(len(each) for s, each in stages.items() if s != 3)
    return ("follows" if len(stages[3]) > rest else "does not"), f"blocks in {counts}"


def _windows(blocks: Sequence[Block]) -> tuple[Word, str]:
    sizes = {s: [b.window for b in each if b.window is not None] for s, each in _stages(blocks).items()}
    known = {s: mean(each) for s, each in sizes.items() if each}
    if not known:
        return "cannot be judged", "no windows"
    if len(known) < 2:
        return "cannot be judged", "one stage"
    rho = spearman(list(known), list(known.values()))
    told = ", ".join(f"stage {s}: {v:.3g}" for s, v in known.items())
    if rho is None:
        return "does not", f"the same window in all stages ({told})"
    return ("follows" if rho >= _CLEAR else "does not"), f"mean window in {told}; rho with depth {rho:+.2f}"


def _ratios(blocks: Sequence[Block]) -> tuple[Word, str]:
    return _growth([b.mlp for b in blocks if b.mlp is not None], "MLP ratio", 1)


def _shares(blocks: Sequence[Block]) -> list[float]:
    return [b.qkv / b.embed for b in blocks if b.qkv is not None and b.embed]


def _narrow(blocks: Sequence[Block]) -> tuple[Word, str]:
    shares = _shares(blocks)
    if not shares:
        return "cannot be judged", "no known widths"
    below = sum(s < 1 for s in shares)
    numbers = f"in {below} of {len(shares)} blocks; mean Q-K-V / width {mean(shares):.2f}"
    return ("follows" if below > len(shares) / 2 else "does not"), numbers


def _shrinking(blocks: Sequence[Block]) -> tuple[Word, str]:
    return _growth(_shares(blocks), "Q-K-V / width", -1)


def _reverse(blocks: Sequence[Block]) -> tuple[Word, str]:
    wide, mlp = [b.qkv for b in blocks if b.qkv is not None], [b.mlp for b in blocks if b.mlp is not None]
    if len(_stages(blocks)) > 1:  # widths of stages grow by design, so only their shares can be compared
        wide = _shares(blocks)
    (one, first), (two, second) = _growth(wide, "Q-K-V width", -1), _growth(mlp, "MLP ratio", 1)
    if "cannot be judged" in (one, two):
        return "cannot be judged", first if one == "cannot be judged" else second
    return ("follows" if one == two == "follows" else "does not"), f"{first}. {second[0].upper()}{second[1:]}"
