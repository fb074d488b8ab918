"""What the tests against timm share: its networks with random weights, made quickly."""

from __future__ import annotations

import pytest
import torch


def random_timm(name: str, monkeypatch: pytest.MonkeyPatch) -> torch.nn.Module:
    """A network of timm in which no weight is zero or one, so that none could be left out unseen."""
    import timm

    # Ten times quicker than truncated normals; the weights are moved anyway.
    monkeypatch.setattr(torch.nn.init, "trunc_normal_", torch.nn.init.normal_)
    torch.manual_seed(0)
    theirs = timm.create_model(name, weight_init="skip").eval()
    with torch.no_grad():
        for p in theirs.parameters():
            p.add_(0.02 * torch.randn_like(p))
    return theirs
