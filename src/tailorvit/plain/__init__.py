"""Plain networks: ordinary torch modules without any elastic code; what a person takes away.

PLAIN names them by family: ``PLAIN["vit"].from_settings(network.settings)`` is the same network again.
"""

from __future__ import annotations

from tailorvit.plain.vit import PlainViT

PLAIN: dict[str, type[PlainViT]] = {"vit": PlainViT}

__all__ = ["PLAIN", "PlainViT"]
