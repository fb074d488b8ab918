"""Which parts make a network learn fast from scratch: convolutions, batch norm, attention, width, depth.

python benchmarks/win/hybrid.py first --data flowers=FOLDER@96#10 --data cifar10=FOLDER#4 --out rows.jsonl
python benchmarks/win/hybrid.py second --data flowers=FOLDER@96#30 --data cifar10=FOLDER#6 --out rows.jsonl

Networks of at most 1.5M parameters in four stages. A stage is C (inverted residuals), F (the same with a full 3x3
convolution), X (ConvNeXt's block), T (attention and an MLP with a depthwise convolution) or M (C, the last block T).
Learning rate 0.002, mild augmentation, seed 11; the search images judge, the test images stay sealed. The first list
changes one thing at a time; the second was made from what the first showed. The family "hybrid" came out of it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.append(str(Path(__file__).resolve().parent))

LIMIT, DROP = 1_500_000, 0.05
VOVNET, STARNET = "ese_vovnet19b_slim_dw", "starnet_s100"


@dataclass(frozen=True)
class Variant:
    """One design."""

    kinds: str = "CCTT"
    norm: str = "bn"  # of stem and convolutions; else layer norm over the channels
    attention_norm: str = "ln"
    inner_norm: bool = False  # norms inside the MLP of attention blocks
    ratio: tuple[float, ...] = (1, 2, 4, 6)  # widths of the stages
    depths: tuple[int, ...] = (2, 2, 4, 2)
    expand: float = 4  # of inverted residuals
    mlp: float = 4
    squeeze: bool = False  # squeeze-and-excitation
    act: str = "gelu"
    kernel: int = 3
    stem: float = 0.5  # its width over the first stage's
    stem_convs: int = 2
    depthwise: bool = True  # in the MLP of attention blocks
    local: bool = False  # a depthwise convolution of the values beside attention
    head_dim: int = 16
    zero: bool = False  # branches start at zero
    start: str = "scaled"  # or he
    last: int = 0  # channels of a 1x1 convolution before the head


BASE = Variant()
WIDE, WIDER, SHORT = (1, 1.5, 2.5, 4), (1, 1.2, 1.7, 2.5), (2, 2, 3, 1)
FIRST = {
    "base": BASE,
    "ln": replace(BASE, norm="ln"),
    "wide": replace(BASE, ratio=WIDE),
    "wider": replace(BASE, ratio=WIDER),
    "early": replace(BASE, depths=(3, 4, 4, 2)),
    **{kinds: replace(BASE, kinds=kinds) for kinds in ("CCCT", "CCCC", "CTTT", "FFTT", "FCTT")},
    "se": replace(BASE, squeeze=True),
    "nodw": replace(BASE, depthwise=False),
    "nodw-lepe": replace(BASE, depthwise=False, local=True),
    "tbn": replace(BASE, attention_norm="bn"),
    "tbn-fn": replace(BASE, attention_norm="bn", inner_norm=True),
    "relu": replace(BASE, act="relu"),
    "ec2": replace(BASE, expand=2),
    "k5": replace(BASE, kernel=5),
    "zero": replace(BASE, zero=True),
    "he": replace(BASE, start="he"),
    "XXTT": replace(BASE, kinds="XXTT", norm="ln", kernel=7),
    "stem1": replace(BASE, stem=1, stem_convs=3),
    "last": replace(BASE, last=384, ratio=(1, 2, 4, 5)),
    "et2": replace(BASE, mlp=2, depths=(2, 2, 5, 2)),
    "lepe": replace(BASE, local=True),
    "short": replace(BASE, depths=(2, 2, 3, 1)),
    "hd32": replace(BASE, head_dim=32),
}
NORMED = replace(BASE, attention_norm="bn", inner_norm=True, ratio=WIDE)
SECOND = {
    "CCCC-wide": replace(BASE, kinds="CCCC", ratio=WIDE),
    "CCCT-wide": replace(BASE, kinds="CCCT", ratio=WIDE),
    "CCCT-wide-bn": replace(NORMED, kinds="CCCT"),
    "CCCT-wide-bn-short": replace(NORMED, kinds="CCCT", depths=SHORT),
    "CCCT-wider-bn": replace(NORMED, kinds="CCCT", ratio=WIDER),
    "CCCT-wide-bn-se": replace(NORMED, kinds="CCCT", squeeze=True),
    "CCTT-wide-bn-short": replace(NORMED, depths=SHORT),
    "CCMT-wide-bn": replace(NORMED, kinds="CCMT"),
    "CCCM-wide-bn": replace(NORMED, kinds="CCCM"),
}
SETS = {"first": FIRST, "second": SECOND}


# -- the networks -----------------------------------------------------------------------------------------------------


class ChannelNorm(nn.Module):
    """Layer norm over the channels of a map."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels, 1e-6)
        self.weight = self.norm.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def norm(kind: str, channels: int) -> nn.Module:
    return nn.BatchNorm2d(channels) if kind == "bn" else ChannelNorm(channels)


def activation(kind: str) -> nn.Module:
    return nn.ReLU() if kind == "relu" else nn.GELU()


class Squeeze(nn.Module):
    """Channels weighted by their mean over the map."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.fc = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * F.hardsigmoid(self.fc(x.mean((2, 3), keepdim=True)))


def inverted_residual(v: Variant, width: int, full: bool) -> nn.Sequential:
    hidden = int(width * v.expand)
    if full:
        parts = [nn.Conv2d(width, hidden, 3, 1, 1, bias=False), norm(v.norm, hidden), activation(v.act)]
    else:
        parts = [nn.Conv2d(width, hidden, 1, bias=False), norm(v.norm, hidden), activation(v.act)]
        parts += [nn.Conv2d(hidden, hidden, v.kernel, 1, v.kernel // 2, groups=hidden, bias=False)]
        parts += [norm(v.norm, hidden), activation(v.act)]
    parts += [Squeeze(hidden)] if v.squeeze else []
    end = norm(v.norm, width)
    if v.zero:
        nn.init.zeros_(end.weight)
    return nn.Sequential(*parts, nn.Conv2d(hidden, width, 1, bias=False), end)


def convnext(v: Variant, width: int) -> nn.Sequential:
    hidden, k = int(width * v.expand), v.kernel
    first = nn.Conv2d(width, width, k, 1, k // 2, groups=width)
    ends = nn.Conv2d(width, hidden, 1), activation(v.act), nn.Conv2d(hidden, width, 1)
    return nn.Sequential(first, norm(v.norm, width), *ends)


class Attention(nn.Module):
    """Attention of all positions, behind a norm."""

    def __init__(self, v: Variant, width: int) -> None:
        super().__init__()
        self.heads = max(1, width // v.head_dim)
        inner = self.heads * v.head_dim
        self.norm = norm(v.attention_norm, width)
        self.qkv, self.proj = nn.Conv2d(width, 3 * inner, 1), nn.Conv2d(inner, width, 1)
        self.local = nn.Conv2d(inner, inner, 3, 1, 1, groups=inner) if v.local else None

    def forward(self, x: Tensor) -> Tensor:
        grid = x.shape[-2:]
        q, k, v = self.qkv(self.norm(x)).flatten(2).unflatten(1, (3, self.heads, -1)).transpose(-1, -2).unbind(1)
        out = F.scaled_dot_product_attention(q, k, v).transpose(-1, -2).flatten(1, 2).unflatten(-1, grid)
        if self.local is not None:
            out = out + self.local(v.transpose(-1, -2).flatten(1, 2).unflatten(-1, grid))
        return self.proj(out)


def mlp(v: Variant, width: int) -> nn.Sequential:
    hidden = int(width * v.mlp)
    inside = [norm(v.attention_norm, hidden)] if v.inner_norm else []
    parts = [norm(v.attention_norm, width), nn.Conv2d(width, hidden, 1)]
    if v.depthwise:
        parts += [*inside, nn.Conv2d(hidden, hidden, 3, 1, 1, groups=hidden)]
    again = [norm(v.attention_norm, hidden)] if v.inner_norm else []
    return nn.Sequential(*parts, *again, activation(v.act), nn.Conv2d(hidden, width, 1))


class Residual(nn.Module):
    """Branches that are added, dropped at random for single images."""

    def __init__(self, rate: float, *branches: nn.Module) -> None:
        super().__init__()
        self.rate, self.branches = rate, nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        for branch in self.branches:
            y = branch(x)
            if self.training and self.rate:
                keep = 1 - self.rate
                y = y * torch.empty(len(x), 1, 1, 1, device=x.device, dtype=x.dtype).bernoulli_(keep) / keep
            x = x + y
        return x


def block(v: Variant, kind: str, width: int, rate: float) -> Residual:
    if kind == "T":
        return Residual(rate, Attention(v, width), mlp(v, width))
    return Residual(rate, convnext(v, width) if kind == "X" else inverted_residual(v, width, kind == "F"))


def network(v: Variant, base: int, classes: int, channels: int, side: int) -> nn.Sequential:
    """Stem, four stages, head."""
    widths = [max(8, round(base * r / 8) * 8) for r in v.ratio]
    before, layers = max(8, int(widths[0] * v.stem / 8) * 8), list[nn.Module]()
    for i in range(v.stem_convs):
        stride = 2 if i == 0 and side >= 48 else 1
        layers += [nn.Conv2d(before if i else channels, before, 3, stride, 1, bias=False), norm(v.norm, before)]
        layers += [activation(v.act)]
    place = 0
    for width, depth, kind in zip(widths, v.depths, v.kinds, strict=True):
        layers += [nn.Conv2d(before, width, 3, 2, 1, bias=False), norm(v.norm, width)]
        for i in range(depth):
            own = kind if kind != "M" else "T" if i == depth - 1 else "C"
            layers.append(block(v, own, width, DROP * place / (sum(v.depths) - 1)))
            place += 1
        before = width
    layers.append(norm(v.attention_norm if v.kinds[-1] in "TM" else v.norm, before))
    if v.last:
        layers += [nn.Conv2d(before, v.last, 1, bias=False), nn.BatchNorm2d(v.last), activation(v.act)]
    head = nn.Linear(v.last or before, classes)
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)
    for m in model.modules():
        if isinstance(m, nn.Conv2d):
            inputs = m.weight[0].numel()
            if v.start == "he":
                nn.init.trunc_normal_(m.weight, std=(2 / inputs) ** 0.5)
            elif m.kernel_size == (1, 1):
                nn.init.trunc_normal_(m.weight, std=max(0.02, 0.5 * inputs**-0.5))
            if m.bias is not None:
                nn.init.zeros_(m.bias)
    nn.init.trunc_normal_(head.weight, std=0.02)
    nn.init.zeros_(head.bias)
    return model


def largest(v: Variant, classes: int, channels: int, side: int) -> nn.Sequential:
    """The widest network within the limit."""
    fits = 8
    with torch.device("meta"):
        for base in range(8, 200, 2):
            if sum(p.numel() for p in network(v, base, classes, channels, side).parameters()) <= LIMIT:
                fits = base
    return network(v, fits, classes, channels, side)


# -- trainings --------------------------------------------------------------------------------------------------------


def jobs(name: str, data: Iterable[str]) -> list[dict[str, Any]]:
    """The trainings of a list."""
    rows = []
    for text in data:
        label, _, rest = text.partition("=")
        rest, _, epochs = rest.partition("#")
        source, _, pixels = rest.partition("@")
        base = {"data": label, "source": source, "px": int(pixels) if pixels else None, "epochs": int(epochs)}
        base["lr"] = 2e-3
        rows += [{**base, "v": v} for v in SETS[name]]
        rows += [{**base, "peer": VOVNET}, {**base, "peer": STARNET}, {**base, "family": "shunted"}]
    return rows


def work(job: dict[str, Any]) -> dict[str, Any]:
    """One training, or why there is none."""
    from sweep import tried

    if "v" not in job:
        given = {**job, "image_size": job["px"], "augment": "mild", "seed": 11, "limit": LIMIT}
        return {k: v for k, v in tried(given).items() if k in {*job, "params", "search", "seconds", "failed"}}
    import numpy as np

    from tailorvit.data import open_data
    from tailorvit.methods.prepare import batch_for
    from tailorvit.rng import seed_everything
    from tailorvit.train import Fixed, Sink, TrainSettings, hits, train

    torch.set_num_threads(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    data = open_data(job["source"], image_size=job["px"], cache_bytes=8 << 30, seed=11)
    seed_everything(11, "init", "plain")
    model = largest((FIRST | SECOND)[job["v"]], len(data.classes), data.channels, data.image_size[0])
    precision: Any = "bf16" if device == "cuda" else "fp32"
    batch = batch_for(data.counts["train"], device == "cuda")
    settings = TrainSettings(epochs=job["epochs"], batch=batch, lr=job["lr"], warmup=1, precision=precision)
    train(model, data.train_batches(batch, 5, data.augment("mild"), device), Fixed(), settings, 7, Sink(), None, device)
    found = 100 * float(np.mean(hits(model, data.eval_batches("search", 256, device), device)))
    return {**job, "params": sum(p.numel() for p in model.parameters()), "search": found}


def main() -> None:
    """Train them all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", choices=SETS)
    parser.add_argument("--data", action="append", required=True, help="NAME=SOURCE[@PIXELS]#EPOCHS")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--processes", type=int, default=8)
    options = parser.parse_args()
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        for row in pool.imap_unordered(work, jobs(options.set, options.data)):
            row.pop("source", None)
            print(json.dumps(row), flush=True)
            with options.out.open("a") as file:
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
