"""gpu.py, precision: bfloat16 against float32, and one network in four executions, on this device."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from speed.bench import COMPILED, SEED, Bench, Row
from speed.timing import inputs, recorded_calls, vit_space
from tailorvit.arch import Arch
from tailorvit.families import family
from tailorvit.rng import generator
from tailorvit.space import Space
from tailorvit.train.loop import soft_cross_entropy

ARCHS = 20
ANSWERS, GRADIENTS = 512, 128  # batches of the main table, so that its compiled graphs serve here too


def relative(out: Tensor, reference: Tensor) -> float:
    """|out - reference| / |reference| over all entries, in float64; nan or inf where one of them is not finite."""
    out, reference = out.double(), reference.double()
    return float((out - reference).norm() / reference.norm())


@contextmanager
def exact() -> Iterator[None]:
    """Full float32 products: torch lets convolutions use tf32 unless told."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


@contextmanager
def stirred(models: Sequence[nn.Module]) -> Iterator[None]:
    """The same noise on every parameter: a fresh network's zeros would hide differences. Taken back at the end."""
    kept = [[p.detach().clone() for p in m.parameters()] for m in models]
    try:
        for model in models:
            rng = torch.Generator(next(model.parameters()).device).manual_seed(SEED)
            for p in model.parameters():
                p.data.add_(torch.randn(p.shape, device=p.device, generator=rng), alpha=0.02)
        yield
    finally:
        for model, weights in zip(models, kept, strict=True):
            for p, w in zip(model.parameters(), weights, strict=True):
                p.data.copy_(w)


def precision(bench: Bench) -> None:
    """Differences over random architectures: the largest and the mean."""
    space = vit_space(bench)
    rng = generator(SEED, "gpu", "precision")
    archs = [space.largest(), space.smallest(), *(space.sample(rng) for _ in range(1 if bench.quick else ARCHS - 2))]
    for what in ("float32: masked = sliced", "float32: extracted = sliced", "bfloat16 against float32"):
        bench.measure("precision", f"answers, {what}", "eager", lambda w=what: answers(bench, space, archs, w, "eager"))
    few = archs[:1] if bench.quick else archs[:5]
    bench.measure(
        "precision", "gradients, bfloat16 against float32", "eager", lambda: gradients(bench, space, few, "eager")
    )
    for variant in COMPILED:
        for what in ("bfloat16 against float32", "float32: the same as sliced"):
            work = lambda w=what, v=variant: answers(bench, space, archs, w, v)  # noqa: E731
            bench.measure("precision", f"answers, {what}", variant, work)
    what = "gradients, bfloat16 against float32"
    bench.measure("precision", what, "compiled", lambda: gradients(bench, space, few, "compiled"))


def answers(bench: Bench, space: Space, archs: Sequence[Arch], what: str, variant: str) -> Row:
    """Logits one way against float32 slices of the same weights."""
    plain, _ = bench.supernet(space, "eager")
    x = inputs(bench, space, 4 if bench.quick else ANSWERS)[0][0]
    models, half = [plain], what.startswith("bfloat16")
    if variant in COMPILED:
        model, call = bench.supernet(space, variant)
        models.append(model)
        if variant == "graphs":
            call = recorded_calls(bench, model, half)
    elif "extracted" in what:
        call = lambda x, arch: family(space.family).extract(plain, arch).to(bench.device).eval()(x)  # noqa: E731
    elif "masked" in what:
        call = lambda x, arch: plain(x, arch, True)  # noqa: E731
    else:
        call = plain
    differences = []
    same_weights(models)
    with exact(), stirred(models):
        for m in models:
            m.eval()
        for arch in archs:
            with torch.no_grad():
                reference = plain(x, arch)
                with bench.cast(half):
                    differences.append(relative(call(x, arch), reference))
    return _told(differences)


def gradients(bench: Bench, space: Space, archs: Sequence[Arch], variant: str) -> Row:
    """All gradients as one vector."""
    plain, _ = bench.supernet(space, "eager")
    model, call = bench.supernet(space, variant)
    x, target = inputs(bench, space, 4 if bench.quick else GRADIENTS)[0]
    differences = []
    models = [plain] if model is plain else [plain, model]
    same_weights(models)
    with exact(), stirred(models):
        for arch in archs:
            found = []
            for network, way, cast in ((plain, plain, False), (model, call, True)):
                network.train()
                network.zero_grad(set_to_none=True)
                with bench.cast(cast):
                    logits = way(x, arch)
                soft_cross_entropy(logits, target).backward()
                grads = {n: p.grad.flatten().clone() for n, p in network.named_parameters() if p.grad is not None}
                network.zero_grad(set_to_none=True)
                found.append(grads)
            if found[0].keys() != found[1].keys():
                raise ValueError(f"gradients reach other parameters: {sorted(found[0].keys() ^ found[1].keys())[:3]}")
            reference, out = (torch.cat([g[n] for n in found[0]]) for g in found)
            differences.append(relative(out, reference))
    return _told(differences)


def same_weights(models: Sequence[nn.Module]) -> None:
    """Earlier sections have trained the copies apart: all get the first one's weights."""
    for model in models[1:]:
        for p, q in zip(model.parameters(), models[0].parameters(), strict=True):
            p.data.copy_(q.data)


def _told(differences: Sequence[float]) -> Row:
    if not all(math.isfinite(d) for d in differences):
        raise FloatingPointError(f"{sum(not math.isfinite(d) for d in differences)} answers were not finite")
    return {"largest": max(differences), "mean": sum(differences) / len(differences), "archs": len(differences)}
