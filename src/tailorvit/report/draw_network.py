"""Drawings of the network: its blocks from stem to head, and where its parameters and MACs lie."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from tailorvit.report.axes import WIDTH, short, svg, text
from tailorvit.report.figure import tip
from tailorvit.report.views import Block, trim

_ROOMY = 16  # up to so many blocks a row has a line of text; 48 rows with text would be four screens
_LEFT, _LANES = 34, 208
_COSTS = (248, 345)  # where the bars of parameters and MACs begin; a phone's larger letters need 50 units after each
_COST = 40
Part = tuple[str, float | None, float | None]  # name, parameters, MACs


def bar(x: float, y: float, width: float, height: float, style: str, extra: str = "") -> str:
    """A filled box."""
    return f'<rect class="bar {style}" x="{x:g}" y="{y:g}" width="{max(width, 0):.1f}" height="{height:g}"{extra}/>'


def plain(value: float | None) -> str:
    """A size in words; what nobody recorded is a dash."""
    return "–" if value is None else f"{value:.10g}" if abs(value) < 1e4 else short(value)


def block_in_words(block: Block) -> str:
    """The facts of one block on a line."""
    words = [f"width {plain(block.embed)}"] if block.embed is not None else []
    if block.heads is not None:
        words.append(f"{block.heads} head{'s' if block.heads != 1 else ''}")
    if block.qkv is not None:
        words.append(f"Q-K-V {plain(block.qkv)}")
    if block.hidden is not None or block.mlp is not None:
        ratio = f" (x {block.mlp:g})" if block.mlp is not None else ""
        words.append(f"MLP {plain(block.hidden)}{ratio}")
    if block.window is not None:
        words.append(f"window {block.window}")
    return ", ".join(words) or "nothing recorded"


def _stage_in_words(group: Sequence[Block], stage: int | None) -> str:
    words = [f"Stage {stage}" if stage is not None else "Blocks"]
    told = (
        ("{} tokens", [b.tokens for b in group]),
        ("width {}", [b.embed for b in group]),
        ("window {}", [b.window for b in group]),
    )
    for form, values in told:
        known = sorted({v for v in values if v is not None})
        if known:
            words.append(form.format(plain(known[0]) + (f" to {plain(known[-1])}" if len(known) > 1 else "")))
    return ", ".join([*words, f"{len(group)} block{'s' if len(group) != 1 else ''}"])


def network_drawing(blocks: Sequence[Block], stem: Part | None, between: Part | None, head: Part | None) -> str:
    """Top to bottom: stem, blocks by stage, head; all widths of blocks share one scale of channels."""
    widest = max((w for b in blocks for w in (b.embed, b.qkv, b.hidden) if w is not None), default=0) or 1
    ends = [p for p in (stem, between, head) if p is not None]
    most = [
        max((v for v in values if v is not None), default=0) or 1
        for values in (
            [*(b.params for b in blocks), *(p[1] for p in ends)],
            [*(b.macs for b in blocks), *(p[2] for p in ends)],
        )
    ]
    roomy = len(blocks) <= _ROOMY
    parts = [text(_LEFT, 12, "channels"), text(_COSTS[0], 12, "parameters"), text(_COSTS[1], 12, "MACs")]
    y = 20.0

    def costs(at: float, params: float | None, macs: float | None) -> None:
        for x, value, top, style in zip(_COSTS, (params, macs), most, ("c2", "c4")):
            if value is not None:
                parts.append(bar(x, at, _COST * value / top, 8, style))
                parts.append(text(x + _COST + 4, at + 8, short(value)))

    def end(part: Part | None, name: str) -> None:
        nonlocal y
        if part is not None:
            words = f"{name}: {part[0]}"
            parts.append(
                f"<g{tip(words)}>{text(4, y + 13, name, style='strong')}{text(66, y + 13, trim(part[0], 22))}</g>"
            )
            costs(y + 5, part[1], part[2])
            y += 22

    end(stem, "stem")
    for stage, members in groupby(blocks, key=lambda b: b.stage):
        group = list(members)
        parts.append(f'<path class="grid" d="M0 {y + 3:g}H{WIDTH}"/>')
        parts.append(text(4, y + 17, _stage_in_words(group, stage), style="strong"))
        y += 23
        for block in group:
            parts.append(_row(block, y, (_LANES - 4) / widest, roomy))
            costs(y + 5, block.params, block.macs)
            y += 40 if roomy else 20
    parts.append(f'<path class="grid" d="M0 {y + 3:g}H{WIDTH}"/>')
    y += 4
    end(between, "joints")
    end(head, "head")
    return svg(parts, "The network block by block", WIDTH, y + 4)


def _row(block: Block, y: float, scale: float, roomy: bool) -> str:
    words = block_in_words(block)
    tall, lane = (23, 8) if roomy else (18, 6)
    tokens = f", {block.tokens:,} tokens" if block.tokens is not None else ""
    parts = [text(_LEFT - 8, y + 14, str(block.block), "end")]
    if block.embed is not None:
        parts.append(bar(_LEFT, y, block.embed * scale, tall, "c5", ' opacity=".35"'))
    if block.qkv is not None:
        parts.append(bar(_LEFT, y + 2, block.qkv * scale, lane, "c0"))
        if block.heads is not None and 1 < block.heads <= 128:
            step = block.qkv * scale / block.heads
            cuts = "".join(f"M{_LEFT + step * i:.1f} {y + 2:g}v{lane}" for i in range(1, block.heads))
            parts.append(f'<path class="grid" d="{cuts}"/>')
    if block.hidden is not None:
        parts.append(bar(_LEFT, y + 4 + lane + (2 if roomy else 0), block.hidden * scale, lane, "c1"))
    if roomy:
        parts.append(text(_LEFT, y + 34, words))
    return f"<g{tip(f'block {block.block}: {words}{tokens}')}>{''.join(parts)}</g>"


def parts_drawing(parts: Sequence[Part]) -> str:
    """A row per part with its parameters and MACs as bars and shares."""
    first, second, wide = 138, 289, 44  # a phone's larger letters need 100 units after each bar
    drawn = [text(first, 12, "parameters", style="strong"), text(second, 12, "MACs", style="strong")]
    columns = [[p[1] for p in parts], [p[2] for p in parts]]
    sums = [sum(v or 0 for v in column) or 1 for column in columns]
    most = [max((v or 0 for v in column), default=0) or 1 for column in columns]
    for row, (name, params, macs) in enumerate(parts):
        y = 20 + 19 * row
        drawn.append(f"<g{tip(name)}>{text(first - 6, y + 11, trim(name, 20), 'end')}</g>")
        for x, value, total, top, style in zip((first, second), (params, macs), sums, most, ("c2", "c4")):
            if value is not None:
                drawn.append(bar(x, y + 2, wide * value / top, 10, style))
                drawn.append(text(x + wide + 4, y + 11, f"{short(value)}, {100 * value / total:.1f} %"))
    return svg(drawn, "Parameters and MACs per part", WIDTH, 24 + 19 * len(parts))
