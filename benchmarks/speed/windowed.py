"""gpu.py, windowed networks: supernet `s3` at 224 px, sliced, beside timm's Swin-T and our member of about its MACs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from speed.bench import SEED, Bench, Call, Row, compiled_call
from speed.timing import Runner, draws, evaluating, inputs, random_images, sizes, timed, training
from tailorvit.arch import Arch
from tailorvit.costs.count import Counter
from tailorvit.families import family, named_arch, named_space
from tailorvit.rng import generator, seed_everything
from tailorvit.space import Space

NAME = "swin_tiny_patch4_window7_224"
SMALL = {"img_size": 32, "embed_dim": 16, "depths": (1, 1, 1, 1), "num_heads": (1, 1, 2, 2), "window_size": 2}


def swin_t_gmacs() -> float:
    """MACs of Swin-T by our own count of the same network."""
    named = named_arch("swin-t")
    return Counter("swin", named.fixed).macs(named.arch) / 1e9


def counted(x: Tensor, **options: Any) -> float:
    """GMACs of timm's network for one image by torch's counter, which sees fused attention on the meta device only."""
    import timm
    from torch.utils.flop_counter import FlopCounterMode

    with torch.device("meta"):
        model = timm.create_model(NAME, pretrained=False, **options).eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(x.to("meta"))
    return float(counter.get_total_flops()) / 2e9


def windowed_space(bench: Bench) -> Space:
    """The four-stage space of S3."""
    return named_space("windowed-8px") if bench.quick else named_space("s3", classes=1000)


def nearest(space: Space, gmacs: float) -> Arch:
    """A member of about these MACs: the nearest of both ends and of some draws."""
    counter, rng = Counter(space.family, dict(space.fixed)), generator(SEED, "gpu", "nearest")
    members = [space.smallest(), space.largest(), *(space.sample(rng) for _ in range(200))]
    return min(members, key=lambda a: abs(counter.macs(a) / 1e9 - gmacs))


def windowed(bench: Bench) -> None:
    """What is quick to start comes first; the compiled supernet, with most graphs to make, last."""
    lines = [("training, batch 128", 128), ("training, batch 256", 256), ("evaluation, batch 256", 256)]
    cases: list[tuple[str, Callable[[str, int], Row]]] = [
        ("eager, timm Swin-T", lambda what, batch: timm_swin(bench, what, batch, False)),
        ("eager, drawn", lambda what, batch: supernet(bench, what, batch, "eager", True)),
        ("eager, one of Swin-T's MACs", lambda what, batch: supernet(bench, what, batch, "eager", False)),
        ("eager, the same extracted", lambda what, batch: extracted(bench, what, batch, "eager")),
        ("compiled, timm Swin-T", lambda what, batch: timm_swin(bench, what, batch, True)),
        ("compiled, one of Swin-T's MACs", lambda what, batch: supernet(bench, what, batch, "compiled", False)),
        ("compiled, the same extracted", lambda what, batch: extracted(bench, what, batch, "compiled")),
        ("compiled, drawn", lambda what, batch: supernet(bench, what, batch, "compiled", True)),
    ]
    for variant, work in cases:
        if variant.partition(",")[0] not in bench.variants:
            continue
        for what, batch in lines:
            row = bench.measure(
                "windowed", what, variant, lambda k=work, w=what, b=batch: rated(k(w, 8 if bench.quick else b))
            )
            if ("error" in row or "skipped" in row) and variant.startswith("compiled"):
                break  # what cannot be compiled, or not in time, at one batch cannot at the next


def rated(row: Row) -> Row:
    """Images times MACs a second, so that networks of other sizes compare."""
    return row | {"tmacs_s": row["img_s"] * row["gmacs"] / 1e3}


def _steps(bench: Bench, what: str, model: nn.Module, call: Call, batches: list[tuple]) -> Runner:
    return (evaluating if what.startswith("evaluation") else training)(bench, model, call, batches)


def supernet(bench: Bench, what: str, batch: int, variant: str, drawn: bool) -> Row:
    """The supernet sliced: random members, or one of Swin-T's MACs."""
    space = windowed_space(bench)
    model, call = bench.supernet(space, variant)
    warm, archs = draws(space, bench.quick)
    archs = archs[:12]  # twice the MACs of AutoFormer-S on average
    if not drawn:
        one = nearest(space, swin_t_gmacs())
        warm, archs = [one] * 3, [one] * len(archs)
    step = _steps(bench, what, model, call, inputs(bench, space, batch))
    warm = warm if variant == "compiled" else warm[:4]
    return sizes(space, archs) | timed(bench, step, warm, archs, batch, seconds=bench.seconds / 2)


def extracted(bench: Bench, what: str, batch: int, variant: str) -> Row:
    """That one member as a plain network."""
    space = windowed_space(bench)
    key = (space, f"extracted, {variant}")
    arch = nearest(space, swin_t_gmacs())
    if key not in bench.networks:
        model = family(space.family).extract(bench.supernet(space, "eager")[0], arch).to(bench.device)
        bench.networks[key] = (model, compiled_call(model) if variant == "compiled" else model)
    return sizes(space, [arch]) | _plain(bench, what, batch, *bench.networks[key], inputs(bench, space, batch))


def timm_swin(bench: Bench, what: str, batch: int, compile_it: bool) -> Row:
    """timm's own Swin-T, compiled by torch as it comes."""
    import timm

    options = SMALL if bench.quick else {}
    key = ("timm", compile_it)
    if key not in bench.networks:
        seed_everything(SEED, "gpu")
        model = timm.create_model(NAME, pretrained=False, **options).to(bench.device)
        bench.networks[key] = (model, torch.compile(model) if compile_it else model)
    model, call = bench.networks[key]
    batches = random_images(bench, batch, 3, (32, 32) if bench.quick else (224, 224), 1000)
    row = {"params_m": sum(p.numel() for p in model.parameters()) / 1e6, "gmacs": counted(batches[0][0][:1], **options)}
    return row | _plain(bench, what, batch, model, call, batches)


def _plain(bench: Bench, what: str, batch: int, model: nn.Module, call: Call, batches: list[tuple]) -> Row:
    step = _steps(bench, what, model, call, batches)
    return timed(bench, step, [None] * 4, [None] * (2 if bench.quick else 20), batch, seconds=bench.seconds / 2)
