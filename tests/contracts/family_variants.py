"""Further settings every family is tested with, beside those of its small named spaces."""

from __future__ import annotations

from typing import Any

VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "vit": {
        "non-square": {"image_size": (8, 12)},
        "one row": {"image_size": (2, 10)},
        "2x2": {"image_size": (4, 4)},
        "cls": {"pool": "cls"},
        "gap": {"pool": "gap"},
        "no relative": {"relative": False},
        "no absolute": {"absolute": False},
        "neither": {"absolute": False, "relative": False},
        "short reach": {"reach": 1},
        "no qkv bias": {"qkv_bias": False},
    },
    "pit": {
        "non-square": {"image_size": (8, 12)},
        "one row": {"image_size": (2, 10)},
        "one patch": {"image_size": (2, 2)},
        "no overlap": {"stride": 2},
        "wide overlap": {"patch": 4, "stride": 2},
        "official start": {"init": "official"},
    },
    "swin": {
        "non-square": {"image_size": (8, 12)},
        "odd maps": {"image_size": (9, 5)},
        "padded windows": {"image_size": (10, 14), "window": 3},
        "patch": {"image_size": (16, 16), "patch": 2},
        "other heads": {"heads": (2, 2, 2, 4)},
        "deeper": {"depths": (2, 1, 2)},
        "no qkv bias": {"qkv_bias": False},
    },
    "windowed": {
        "non-square": {"image_size": (8, 12)},
        "odd maps": {"image_size": (9, 5)},
        "padded windows": {"image_size": (11, 14)},
        "patch": {"image_size": (16, 16), "patch": 2},
        "no qkv bias": {"qkv_bias": False},
    },
    "shunted": {
        "non-square": {"image_size": (8, 12)},
        "odd sides": {"image_size": (7, 9)},
        "padded keys": {"image_size": (10, 11), "strides": (2, 1, 1)},
        "ratios four": {"ratios": "four"},
        "ratios same": {"ratios": "same"},
    },
    "ladder": {
        "evl": {"design": "evl", "act": "quick_gelu", "mlp_dropout": 0.5, "head_dropout": 0.5},
        "lst": {"design": "lst"},
        "lst on all taps but one": {"design": "lst", "channels": 5},
        "quick": {"act": "quick_gelu"},
        "one token": {"image_size": (1, 24)},
        "wide trunk": {"image_size": (7, 40), "channels": 6},
    },
}
