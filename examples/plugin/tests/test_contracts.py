"""The plug-in's own test suite: the contracts that ship with TailorViT, and equality with timm's Mixer."""

from __future__ import annotations

import pytest
import torch

from tailorvit.families import FAMILIES
from tailorvit.testing import FamilyContract, ProxyContract


class TestMixer(FamilyContract):
    name = "mixer"
    # The same number for all channels of a token: the next norm takes it out again.
    without_effect = ("mlp_tokens.fc2.bias",)
    variants = {"non-square": {"image_size": (8, 12)}, "one patch": {"image_size": (2, 2)}, "colour": {"channels": 3}}


class TestSynFlow(ProxyContract):
    name = "synflow"
    others = ("mixer",)


def test_the_plain_network_is_timms():
    timm = pytest.importorskip("timm")
    family = FAMILIES["mixer"]
    shared = family.settings({"image_size": (32, 32), "patch": 8, "classes": 5})
    ours = family.build(shared, family.arch({"depth": 3, "embed": 48, "token": 0.5, "mlp": 4})).eval()
    theirs = timm.models.mlp_mixer.MlpMixer(num_classes=5, img_size=32, patch_size=8, num_blocks=3, embed_dim=48).eval()
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 3, 32, 32)
    with torch.inference_mode():
        torch.testing.assert_close(ours(x), theirs(x), atol=1e-6, rtol=1e-5)
