"""A plain ViT on tiny pictures, a family record to change, and readers of what analysis.json keeps."""

from __future__ import annotations

import base64
import io

import numpy as np
import torch
from PIL import Image

from tailorvit.arch import Arch
from tailorvit.families import family
from tailorvit.families.base import Maps

ARCH = Arch("vit", depth=2, embed=12, heads=(2, 3), mlp=(2, 2))


def network(classes: int = 3, size=(8, 8), channels: int = 1, arch: Arch = ARCH, **fixed):
    """Weights at which every part matters: biases are zero and tables tiny at birth."""
    vit = family("vit")
    shared = vit.settings(
        {"image_size": size, "patch": 2, "channels": channels, "classes": classes, "head_dim": 4, "reach": 2, **fixed}
    )
    torch.manual_seed(0)
    model = vit.build(shared, arch)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return model.eval()


def lattice(rows: int, columns: int) -> torch.Tensor:
    """(1, n, 2) places of a grid in reading order."""
    return torch.tensor([[[r, c] for r in range(rows) for c in range(columns)]], dtype=torch.float32)


def maps(weights: torch.Tensor, grid=(3, 3), queries=None, keys=None, name: str = "block 1", **more) -> Maps:
    """A layer with the given weights (B, groups, heads, Q, K)."""
    queries = lattice(*grid) if queries is None else queries
    keys = lattice(*grid) if keys is None else keys
    return Maps(name, None, 1, grid, weights.shape[2], queries, keys, lambda: weights, **more)


def unpacked(layer, images: int, what: str = "maps"):
    """The arrays behind a layer's base64, by the contract's shapes alone."""
    shape = (images, len(layer["references"]), layer["heads"])
    if what == "peaks":
        return np.frombuffer(base64.b64decode(layer["peaks"]), "<f4").reshape(shape)
    return np.frombuffer(base64.b64decode(layer["maps"]), np.uint8).reshape(*shape, *layer["grid"])


def opened(uri: str) -> Image.Image:
    """The picture of a data URI."""
    head, _, body = uri.partition(",")
    image = Image.open(io.BytesIO(base64.b64decode(body, validate=True)))
    assert head == f"data:image/{image.format.lower()};base64"
    return image
