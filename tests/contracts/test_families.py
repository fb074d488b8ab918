"""Every family of ours passes the contract that ships with the package."""

from __future__ import annotations

import pytest

from tailorvit.errors import TailorError
from tailorvit.families import FAMILIES, named_arch, named_space
from tailorvit.testing import FamilyContract


class TestViT(FamilyContract):
    name = "vit"
    variants = {
        "non-square": {"image_size": (8, 12)},
        "2x2": {"image_size": (4, 4)},
        "cls": {"pool": "cls"},
        "no relative": {"relative": False},
        "no absolute": {"absolute": False},
        "neither": {"absolute": False, "relative": False},
        "short reach": {"reach": 1},
        "no qkv bias": {"qkv_bias": False},
    }


class TestPiT(FamilyContract):
    name = "pit"
    variants = {
        "non-square": {"image_size": (8, 12)},
        "one row": {"image_size": (2, 10)},
        "one patch": {"image_size": (2, 2)},
        "no overlap": {"stride": 2},
        "wide overlap": {"patch": 4, "stride": 2},
        "official start": {"init": "official"},
    }


class TestSwin(FamilyContract):
    name = "swin"
    variants = {
        "non-square": {"image_size": (8, 12)},
        "odd maps": {"image_size": (9, 5)},
        "padded windows": {"image_size": (10, 14), "window": 3},
        "patch": {"image_size": (16, 16), "patch": 2},
        "other heads": {"heads": (2, 2, 2, 4)},
        "deeper": {"depths": (2, 1, 2)},
        "no qkv bias": {"qkv_bias": False},
    }


class TestWindowed(FamilyContract):
    name = "windowed"
    variants = {
        "non-square": {"image_size": (8, 12)},
        "odd maps": {"image_size": (9, 5)},
        "padded windows": {"image_size": (11, 14)},
        "patch": {"image_size": (16, 16), "patch": 2},
        "no qkv bias": {"qkv_bias": False},
    }


class TestShunted(FamilyContract):
    name = "shunted"
    variants = {
        "non-square": {"image_size": (8, 12)},
        "odd sides": {"image_size": (7, 9)},
        "padded keys": {"image_size": (10, 11), "strides": (2, 1, 1)},
        "ratios four": {"ratios": "four"},
        "ratios same": {"ratios": "same"},
    }


class TestHybrid(FamilyContract):
    name = "hybrid"
    variants = {
        "non-square": {"image_size": (8, 12)},
        "odd sides": {"image_size": (7, 9)},
        "one stage attends": {"attention": 1},
        "all stages attend": {"attention": 4},
        "strided stem": {"image_size": (16, 16), "stem_stride": 2},
    }


class TestTailored(FamilyContract):
    name = "tailored"
    variants = {
        "non-square": {"image_size": (8, 12)},
        "pooled": {"pool": "gap"},
        "no class token": {"class_token": False, "pool": "gap"},
        "registers": {"registers": 3},
        "registers alone": {"class_token": False, "pool": "gap", "registers": 2},
        "no positions": {"positions": False},
        "clip": {"pre_norm": True, "act": "quick_gelu"},
        "gated": {"gated": True, "act": "silu"},
        "norms of queries and keys": {"qk_norm": True, "qkv_bias": False},
        "rms": {"norm": "rms"},
        "rms of the uncut width": {"norm": "rms", "width": 24, "pre_norm": True},
        "first blocks": {"order": ()},
    }


class TestTailoredSwin(FamilyContract):
    name = "tailored-swin"
    variants = {
        "non-square": {"image_size": (8, 12)},
        "odd maps": {"image_size": (9, 5)},
        "padded windows": {"image_size": (11, 14), "window": (3, 4, 2, 1)},
        "patch": {"image_size": (16, 16), "patch": 2},
        "no qkv bias": {"qkv_bias": False},
        "first blocks": {"order": (), "depths": ()},
    }


class TestLadder(FamilyContract):
    name = "ladder"
    variants = {
        "evl": {"design": "evl", "act": "quick_gelu", "mlp_dropout": 0.5, "head_dropout": 0.5},
        "lst": {"design": "lst"},
        "lst with fewer features": {"design": "lst", "channels": 5},
        "quick": {"act": "quick_gelu"},
        "one token": {"image_size": (1, 24)},
        "wide trunk": {"image_size": (7, 40), "channels": 6},
    }


def test_every_family_of_ours_is_tested():
    tested = {kind.name for kind in FamilyContract.__subclasses__()}
    assert {name for name in FAMILIES if FAMILIES.origin(name) == "tailorvit"} <= tested


@pytest.mark.parametrize("find", [named_space, named_arch])
def test_unknown_names_list_the_known(find):
    with pytest.raises(TailorError, match=r"Unknown .* 'typo-t'.*Known: autoformer-b"):
        find("typo-t")
