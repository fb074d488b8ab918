"""DSS: diversity of attention and saliency of MLPs at initialisation (TF-TAS, CVPR 2022, Algorithm 1).

The score is the sum over attention's linear layers of |dL/dW|_nuc |W|_nuc plus the sum over the MLPs' linear layers of
|dL/dW * W|. L is the sum of all logits on one image of ones. The paper and its code disagree, so there are three
proxies. ``dss`` is the formula with signed weights in evaluation mode, query-key-value and output projections.
``dss_paper`` does the same in training mode, as the supplement's listing says; drop path is 0 here, so it differs only
where there is dropout or batch norm. ``dss_official`` computes what the released code computes: it takes absolute
values of the class token and the positions only (its other slices were made before), and query-key-value layers
contribute 0 (their slice does not require gradients).

The second half of the file computes nuclear norms: from the Gram matrix, and much faster where a gradient has low rank.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from tailorvit.families import FAMILIES, plain_class
from tailorvit.proxies.base import Proxy, Refused, Task
from tailorvit.proxies.layers import (
    Weight,
    device,
    gradients_for,
    input_shape,
    noise,
    weights,
)
from tailorvit.rng import derive

ABSOLUTE = ("cls_token", "pos_embed")  # the only parameters whose sign the released code really removes
SKETCHES = (16, 40)  # columns tried; the first is enough for nearly every layer of AutoFormer-T
TOLERANCE = 5e-5  # relative bound on a norm's error; the error itself is about 2e-6
MAX_NORMS = 4096  # weight norms remembered; AutoFormer-T has 168 different slices


def measure(task: Task, training: bool = False, official: bool = False) -> dict[str, float]:
    """The score, its two halves, and attention's half by layer."""
    model = task.network()
    chosen = [w for w in weights(task, model) if w.part in ("mixing", "mlp")]
    if not any(w.part == "mixing" for w in chosen):
        raise Refused("The network has no attention or mixing layers, so DSS has no score for it.")
    output = FAMILIES[task.family].output_layer
    wanted = [w for w in chosen if not official or w.part == "mlp" or w.layer == output]
    gradients = _gradients(task, model, wanted, training, official)
    attention = [(w, g) for w, g in zip(wanted, gradients, strict=True) if w.part == "mixing"]
    norms: WeightNorms = task.cache.setdefault("nuclear norms", WeightNorms())
    of_weights = norms(_keys([w for w, _ in attention]), lambda i: attention[i][0].tensor)
    of_gradients = nuclear([g for _, g in attention], low_rank=True)
    layers = {w.layer: 0.0 for w in chosen if w.part == "mixing"}
    for (w, _), a, b in zip(attention, of_weights, of_gradients, strict=True):
        layers[w.layer] += a * b
    mlp = [(w.tensor.detach() * g).abs().sum() for w, g in zip(wanted, gradients, strict=True) if w.part == "mlp"]
    diversity, saliency = sum(layers.values()), float(torch.stack(mlp).sum()) if mlp else 0.0
    return {"score": diversity + saliency, "msa": diversity, "mlp": saliency, **layers}


def _gradients(
    task: Task, model: nn.Module, wanted: list[Weight], training: bool = False, official: bool = False
) -> list[Tensor]:
    """dL/dW for the wanted weights; zeros where L does not depend on one."""
    if plain_class(task.family).takes_features:
        x = noise(task, model, "dss")[:1]  # the first norms turn constant features into zeros
    else:
        x = torch.ones(1, *input_shape(task), device=device(model))
    tensors = [w.tensor for w in wanted]
    swapped = {n: p.detach().abs() for n, p in model.named_parameters() if n in ABSOLUTE} if official else {}
    with gradients_for(model, tensors, training), torch.random.fork_rng(enabled=training), torch.enable_grad():
        if training:
            torch.manual_seed(derive(task.seed, "dss", "dropout"))
        logits = torch.func.functional_call(model, swapped, (x,)) if swapped else model(x)
        return list(torch.autograd.grad(logits.sum(), tensors, materialize_grads=True))


def _keys(attention: list[Weight]) -> list[tuple[str, torch.Size, float]]:
    """Keys of slices of one supernet: layer, shape, and a checksum, since slices of one shape may hold other rows."""
    if not attention:
        return []
    first = attention[0].tensor
    ramp = torch.arange(1, 1 + max(max(w.tensor.shape) for w in attention), dtype=first.dtype, device=first.device)
    sums = []
    for w in attention:
        t = w.tensor.detach()
        sums.append(torch.dot(t[-1], ramp[: t.shape[1]]) + torch.dot(t[:, -1], ramp[: t.shape[0]]))
    return [(w.name, w.tensor.shape, s) for w, s in zip(attention, torch.stack(sums).tolist(), strict=True)]


DSS = Proxy(
    name="dss",
    summary="diversity of attention and saliency of MLPs on an image of ones",
    paper="TF-TAS (CVPR 2022)",
    higher=True,
    cost="backward",
    needs="ones",
    measure=measure,
)
DSS_PAPER = Proxy(
    name="dss_paper",
    summary="dss in training mode, as the paper's listing has it",
    paper="TF-TAS (CVPR 2022)",
    higher=True,
    cost="backward",
    needs="ones",
    measure=partial(measure, training=True),
)
DSS_OFFICIAL = Proxy(
    name="dss_official",
    summary="dss as the released code computes it: query-key-value layers contribute nothing",
    paper="TF-TAS (CVPR 2022), its code",
    higher=True,
    cost="backward",
    needs="ones",
    measure=partial(measure, official=True),
)


# -- nuclear norms ----------------------------------------------------------------------------------------------------
#
# On an image of ones all patches are equal but for their positions, so the gradients are nearly of rank one
# (AutoFormer-T: 1 - 1e-5 of the norm in the first 2 to 9 of 240 singular values). A small random sketch finds that
# part, and the rest is bounded: |nuc(G) - nuc(QB)| <= nuc(G - QB) <= sqrt(n) |G - QB|.


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
    """Nuclear norms of an approximation of this rank, and bounds on what it leaves out."""
    tall = stack if stack.shape[-2] >= stack.shape[-1] else stack.mT
    columns = tall.shape[-1]
    start = torch.Generator().manual_seed(0)  # the same sketch every time
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
    # What overflows in this pass is computed again in float64.
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
    """Nuclear norms in the order given; ``low_rank`` tries sketches first and keeps them where their bound allows."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for i, matrix in enumerate(matrices):
        groups.setdefault(tuple(matrix.shape), []).append(i)
    found = [0.0] * len(matrices)
    for places in groups.values():
        stack = torch.stack([matrices[i].detach() for i in places])
        norms = _low_rank(stack) if low_rank else exact_nuclear(stack)
        for i, value in zip(places, norms.tolist(), strict=True):
            found[i] = value
    return found


class WeightNorms:
    """Nuclear norms of weights, remembered: candidates that use the same slice of a supernet share its norm."""

    def __init__(self, limit: int = MAX_NORMS) -> None:
        self._limit, self._known = limit, OrderedDict[Hashable, float]()

    def __len__(self) -> int:
        return len(self._known)

    def __call__(self, keys: Sequence[Hashable], weights: Callable[[int], Tensor]) -> list[float]:
        """The norms under these keys; calls ``weights(i)`` only where key i is new."""
        found = []
        for i, key in enumerate(keys):
            # One at a time: in a stack the last bit would depend on which others are new.
            value = self._known[key] if key in self._known else nuclear([weights(i)])[0]
            found.append(value)
            self._known[key] = value
            self._known.move_to_end(key)
        while len(self._known) > self._limit:
            self._known.popitem(last=False)
        return found
