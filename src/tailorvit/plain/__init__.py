"""Plain networks: ordinary torch modules without any elastic code; what a person takes away.

PLAIN names them by family: ``PLAIN["vit"].from_settings(network.settings)`` is the same network again.
"""

from __future__ import annotations

from tailorvit.plain.ladder import PlainLadder
from tailorvit.plain.network import PlainNetwork
from tailorvit.plain.pit import PlainPiT
from tailorvit.plain.shunted import PlainShunted
from tailorvit.plain.vit import PlainViT
from tailorvit.plain.windowed import PlainWindowed

PLAIN: dict[str, type[PlainNetwork]] = {
    "vit": PlainViT,
    "pit": PlainPiT,
    "shunted": PlainShunted,
    "swin": PlainWindowed,
    "windowed": PlainWindowed,
    "ladder": PlainLadder,
}

__all__ = ["PLAIN", "PlainLadder", "PlainNetwork", "PlainPiT", "PlainShunted", "PlainViT", "PlainWindowed"]
