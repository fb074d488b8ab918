"""Nuclear norms of many matrices: exact from the Gram matrix, and far quicker where a gradient has low rank.

On the ones image all patches look alike but for their position, so the gradients that DSS asks about are nearly of
rank one (AutoFormer-T: 1 - 1e-5 of the norm in the first 2 to 9 of 240 singular values). A small sketch finds that
part, and what it leaves out is bounded, so nothing is guessed: |nuc(G) - nuc(QB)| <= nuc(G - QB) <= sqrt(n) |G - QB|.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

SKETCHES = (16, 40)  # columns tried; the first does for nearly every layer of AutoFormer-T
TOLERANCE = 5e-5  # of a norm, as a bound: the error itself is some 2e-6; under 1e-5 float32's rounding is all one sees
KEPT = 4096  # norms of weights; all slices of AutoFormer-T are 168


def exact_nuclear(stack: Tensor) -> Tensor:
    """Nuclear norms (k) of (k, m, n) matrices, from the smaller Gram matrices in float64; nan where not finite.

    Squaring costs half the digits, of which float64 has enough: the error is about 1e-8 of the largest singular value.
    """
    wide = (stack if stack.shape[-2] <= stack.shape[-1] else stack.mT).double()
    fine = torch.linalg.vector_norm(wide, dim=(-2, -1)).isfinite()
    if not bool(fine.all()):  # LAPACK refuses what is not finite
        wide = torch.where(fine[:, None, None], wide, 0.0)
    gram = wide @ wide.mT
    with _one_thread():
        norms = torch.linalg.eigvalsh(gram).clamp_min(0).sqrt().sum(-1)
    return torch.where(fine, norms, torch.nan)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Eigenvalues of a 240 x 240 matrix take 2.5 ms on one thread and 29 ms on two, which wait for each other."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        yield
    finally:
        torch.set_num_threads(before)


def _sketched(stack: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Nuclear norms of the part of this rank, and bounds on what is left out."""
    tall = stack if stack.shape[-2] >= stack.shape[-1] else stack.mT
    columns = tall.shape[-1]
    start = torch.Generator().manual_seed(0)  # the same sketch every time: the bound, not luck, decides
    omega = torch.randn(columns, rank, generator=start).to(tall)
    basis = torch.linalg.qr(tall @ omega).Q
    inner = basis.mT @ tall
    rest = torch.linalg.matrix_norm(tall - basis @ inner)
    inner = inner.double()
    norms = torch.linalg.eigvalsh(inner @ inner.mT).clamp_min(0).sqrt().sum(-1)
    return norms, rest.double() * math.sqrt(columns)


def _low_rank(stack: Tensor) -> Tensor:
    """As :func:`exact_nuclear`, by sketches where their bounds allow."""
    norms = torch.zeros(len(stack), dtype=torch.float64, device=stack.device)
    # One pass over the numbers; what overflows here is looked at again in float64.
    left = torch.linalg.vector_norm(stack, dim=(-2, -1)).isfinite()
    rest, part = (~left).nonzero()[:, 0], left.nonzero()[:, 0]
    for rank in SKETCHES:
        if len(part) and 2 * rank < min(stack.shape[1:]):
            found, missing = _sketched(stack if len(part) == len(stack) else stack[part], rank)
            norms[part] = found
            part = part[~(missing <= TOLERANCE * found)]
    rest = torch.cat([rest, part])
    if len(rest):
        norms[rest] = exact_nuclear(stack[rest])
    return norms


def nuclear(matrices: Sequence[Tensor], low_rank: bool = False) -> list[float]:
    """Nuclear norms in the order given; ``low_rank`` tries the sketch first and keeps it where its bound allows."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for i, matrix in enumerate(matrices):
        groups.setdefault(tuple(matrix.shape), []).append(i)
    found = [0.0] * len(matrices)
    for places in groups.values():
        stack = torch.stack([matrices[i].detach() for i in places])
        norms = _low_rank(stack) if low_rank else exact_nuclear(stack)
        values = norms.tolist()
        for i, value in zip(places, values, strict=True):
            found[i] = value
    return found


class WeightNorms:
    """Nuclear norms of weights, remembered: candidates that use the same slice of a supernet share its norm."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept, self._known = kept, OrderedDict[Hashable, float]()

    def __len__(self) -> int:
        return len(self._known)

    def __call__(self, keys: Sequence[Hashable], weights: Callable[[int], Tensor]) -> list[float]:
        """The norms under these keys; ``weights(i)`` is asked for where key i is new."""
        found = []
        for i, key in enumerate(keys):
            # One at a time: in a stack the last bit would depend on which others are new.
            value = self._known[key] if key in self._known else nuclear([weights(i)])[0]
            found.append(value)
            self._known[key] = value
            self._known.move_to_end(key)
        while len(self._known) > self._kept:
            self._known.popitem(last=False)
        return found
