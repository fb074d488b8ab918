"""The Mixer family: architectures, spaces, exact costs, and the record TailorViT reads."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tailorvit.arch import Arch, Value
from tailorvit.errors import TailorError
from tailorvit.families.base import Family, Layer, Named
from tailorvit.families.network import hidden_width
from tailorvit.space import Dim, Space
from tailorvit_mixer.elastic import ElasticMixer, build, extract
from tailorvit_mixer.plain import MixerSettings, PlainMixer, mixer_settings

GENES = ("depth", "token", "mlp", "embed")

# -- architectures and spaces -----------------------------------------------------------------------------------------


def mixer_arch(data: Mapping[str, Any]) -> Arch:
    """An architecture written by hand: one number for all blocks, or one per block."""
    genes = {k: v for k, v in data.items() if k != "family"}
    if set(genes) != set(GENES):
        wrong = sorted(set(genes) ^ set(GENES))[0]
        raise TailorError(f"A mixer architecture has {', '.join(GENES)}; '{wrong}' is too much or missing.")
    depth = int(genes["depth"])
    blocks = {k: v if isinstance(v, list | tuple) else [v] * depth for k, v in genes.items() if k in ("token", "mlp")}
    for gene, values in blocks.items():
        if len(values) != depth or min(values, default=0) <= 0:
            raise TailorError(f"A mixer of depth {depth} needs {depth} positive values of '{gene}', not {values}.")
    return Arch("mixer", depth=depth, embed=genes["embed"], **blocks)


def mixer_space(
    depth: Sequence[Value], token: Sequence[Value], mlp: Sequence[Value], embed: Sequence[Value], **settings: Any
) -> Space:
    """Dimensions as (low, high, step)."""
    dims = (
        Dim.span("depth", *depth, minimum=1),
        Dim.span("token", *token, scope="block", minimum=0.25),
        Dim.span("mlp", *mlp, scope="block", minimum=0.5),
        Dim.span("embed", *embed, minimum=embed[2]),
    )
    return Space("mixer", dims, tuple(settings.items()))


DIGITS: dict[str, Any] = {"image_size": (8, 8), "patch": 2, "channels": 1, "classes": 10}
SPACES = {
    "mixer-s": mixer_space((6, 10, 2), (0.25, 0.75, 0.25), (3, 5, 1), (384, 576, 64), image_size=(224, 224), patch=16),
    "mixer-8px": mixer_space((2, 4, 1), (0.5, 1, 0.5), (2, 3, 0.5), (24, 40, 8), **DIGITS),
}
ARCHS = {
    "mixer-s16": Named(
        mixer_arch({"depth": 8, "embed": 512, "token": 0.5, "mlp": 4}),
        {"image_size": (224, 224), "patch": 16, "classes": 1000},
        "MLP-Mixer (hand-designed)",
    )
}


def _widths() -> Iterator[int]:
    embed = 8
    while embed <= 4096:
        yield embed
        embed += 4 if embed < 192 else 16 if embed < 1024 else 64


def auto(settings: Mapping[str, Any]) -> Iterator[Space]:
    """Spaces of the usual shape, from small to large."""
    for embed in _widths():
        depth, step = max(2, min(12, embed // 24)), max(4, round(embed / 32) * 4)
        low = max(embed - 2 * step, embed % step or step)
        low = embed - (embed - low) // step * step
        yield mixer_space(
            (max(1, depth - 2), depth, 1), (0.25, 0.75, 0.25), (3, 4, 0.5), (low, embed, step), **settings
        )


def baseline(settings: Mapping[str, Any]) -> Iterator[Arch]:
    """Hand-designed Mixers, from small to large: token ratio a half, MLP ratio 4."""
    for embed in _widths():
        yield mixer_arch({"depth": max(2, min(12, embed // 24)), "embed": embed, "token": 0.5, "mlp": 4})


def settle(size: tuple[int, int], params: float) -> dict[str, Any]:
    """The patch that cuts the short side into about eight pieces."""
    options = [p for p in range(1, min(size) // 2 + 1) if math.gcd(*size) % p == 0]
    return {"patch": min(options, key=lambda p: abs(min(size) // p - 8))}


def shrink(space: Space) -> Space:
    """The same dimensions with small numbers, for 8 px digits."""
    small = {"depth": ((1, 2, 3), 1), "embed": ((16, 20, 24), 4)}
    dims = tuple(
        replace(d, choices=small[d.name][0][: len(d.choices)], shift=small[d.name][1], minimum=0)
        if d.name in small
        else d
        for d in space.dims
    )
    return replace(space, dims=dims).with_settings(**DIGITS)


# -- exact costs ------------------------------------------------------------------------------------------------------


def segments(arch: Arch) -> list[Hashable]:
    """Stem, blocks, head: parts that repeat between architectures."""
    embed = int(arch.one("embed"))
    blocks = zip(arch.many("token"), arch.many("mlp"), strict=True)
    return [("stem", embed), *(("block", embed, token, mlp) for token, mlp in blocks), ("head", embed)]


def layers(shared: MixerSettings, segment: Any) -> list[Layer]:
    """Parameters and MACs of one part."""
    kind, d, *ratios = segment
    n, pixels = shared.tokens, shared.channels * shared.patch**2
    if kind == "stem":
        return [Layer("stem", (pixels + 1) * d, pixels * n * d)]
    if kind == "head":
        return [Layer("norm", 2 * d, 0), Layer("head", shared.classes * (d + 1), shared.classes * d)]
    token, hidden = (hidden_width(d, ratio) for ratio in ratios)
    return [
        Layer("blocks.norm", 4 * d, 0),
        Layer("blocks.mlp_tokens", 2 * n * token + token + n, 2 * n * token * d),
        Layer("blocks.mlp_channels", 2 * d * hidden + hidden + d, 2 * n * d * hidden),
    ]


def outline(shared: MixerSettings, arch: Arch) -> list[dict[str, Any]]:
    """The blocks as rows, for the report; 'token' is a column of this family's own."""
    rows, embed = [], int(arch.one("embed"))
    for i, (token, mlp) in enumerate(zip(arch.many("token"), arch.many("mlp"), strict=True), 1):
        parts = layers(shared, ("block", embed, token, mlp))
        rows.append(
            {
                "stage": None,
                "block": i,
                "tokens": shared.tokens,
                "embed": embed,
                "token": token,
                "mlp": mlp,
                "hidden": hidden_width(embed, mlp),
                "params": sum(p.params for p in parts),
                "macs": sum(p.macs for p in parts),
            }
        )
    return rows


FAMILY = Family(
    name="mixer",
    summary="MLP-Mixer: no attention; elastic depth, width and both hidden widths",
    paper="MLP-Mixer (NeurIPS 2021)",
    genes=GENES,
    settings=mixer_settings,
    arch=mixer_arch,
    segments=segments,
    layers=layers,
    supernet=ElasticMixer,
    plain=PlainMixer,
    build=build,
    extract=extract,
    spaces=SPACES,
    archs=ARCHS,
    auto=auto,
    baseline=baseline,
    settle=settle,
    shrink=shrink,
    tiny={"depth": 2, "embed": 16, "token": 0.5, "mlp": 2},
    outline=outline,
    fractional=("token", "mlp"),
    layer_words={"stem": "patch", "mlp_tokens": "mixing", "mlp_channels": "mlp", "head": "head"},
    output_layer="fc2",
)
