"""Backbones: every family gives maps whose strides double, at any image size, from plain settings and weights."""

from __future__ import annotations

import math

import pytest
import torch
from task_toys import save_tiny
from torch import nn

from tailorvit.errors import TailorError
from tailorvit.families import FAMILIES, family
from tailorvit.families.vit.plain import PlainViT, ViTSettings
from tailorvit.tasks.backbone import Pyramid, Start, backbone_of, counted, open_start

KINDS = sorted(set(FAMILIES) - {"ladder"})
ONE_STRIDE = {"vit", "tailored"}


def start(name: str) -> Start:
    record = family(name)
    fixed = dict(record.shrink(next(iter(record.spaces.values()))).settings)
    torch.manual_seed(0)
    model = record.build(record.settings(fixed), record.arch({"family": name, **record.tiny}))
    return Start(name, {"family": name, "settings": model.settings}, model.state_dict())


def cells(size: tuple[int, int], stride: int) -> tuple[int, int]:
    return math.ceil(size[0] / stride), math.ceil(size[1] / stride)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("size", [(8, 8), (13, 19), (24, 16)])
def test_maps_of_any_image_size(name, size):
    body = start(name).backbone(size, 3, seed=0).eval()
    x = torch.randn(2, 3, *size)
    with torch.no_grad():
        maps = body(x)
        assert [tuple(m.shape) for m in maps] == [
            (2, c, *cells(size, s)) for c, s in zip(body.channels, body.strides, strict=True)
        ]
        assert all(b == 2 * a for a, b in zip(body.strides, body.strides[1:], strict=False))
        assert (body.deepest == -1) == (name not in ONE_STRIDE)
        again = backbone_of(body.settings).eval()
        again.load_state_dict(body.state_dict())
        assert all(torch.equal(a, b) for a, b in zip(again(x), maps, strict=True))
        other = body.at((21, 33))
        assert not other.training
        found = [tuple(m.shape[-2:]) for m in other(torch.randn(1, 3, 21, 33))]
        assert found == [cells((21, 33), s) for s in body.strides]
        smaller = body(x[..., :7, :5])  # padded
        assert [tuple(m.shape[-2:]) for m in smaller] == [cells((7, 5), s) for s in body.strides]
    with pytest.raises(ValueError, match="takes images up to"):
        body(torch.randn(1, 3, 64, 64))


@pytest.mark.parametrize("name", KINDS)
def test_every_weight_is_used_and_the_network_is_inherited(name):
    begun = start(name)
    body = begun.backbone((16, 16), 1, seed=0).train()
    mine = {k: v.clone() for k, v in body.state_dict().items()}
    sum(m.square().mean() * (i + 1) for i, m in enumerate(body(torch.randn(2, 1, 16, 16)))).backward()
    unused = [n for n, p in body.named_parameters() if p.grad is None]
    assert not any("head" in n for n, _ in body.named_parameters())
    assert all("transformers" in n or "cls_token" in n for n in unused), unused
    kept = [k for k in begun.state if k.startswith(("blocks.", "layers.", "stages.")) and "rel" not in k]
    assert all(torch.equal(mine[f"network.{k}"], begun.state[k]) for k in kept)
    fresh = Start(name, begun.plain, None)
    one, two, three = (fresh.backbone((16, 16), 1, seed=s).state_dict() for s in (0, 0, 1))
    assert all(torch.equal(one[k], two[k]) for k in one)
    assert any(not torch.equal(one[k], three[k]) for k in one)


@pytest.mark.parametrize(("patch", "strides"), [(16, (4, 8, 16, 32)), (14, (7, 14, 28, 56)), (32, (4, 8, 16, 32))])
def test_a_pyramid_reaches_down_to_four_pixels(patch, strides):
    pyramid = Pyramid(32, patch, normed=True)
    assert pyramid.strides == strides and pyramid.strides[pyramid.whole] == patch
    maps = pyramid(torch.randn(1, 32, 3, 2))
    assert [m.shape[1] for m in maps] == list(pyramid.channels)
    assert [tuple(m.shape[-2:]) for m in maps] == [cells((3 * patch, 2 * patch), s) for s in strides]


def test_a_pyramids_middle_map_is_the_networks_own():
    shared = ViTSettings(image_size=(32, 32), patch=16, channels=3, classes=2, head_dim=8, reach=2)
    model = PlainViT(shared, 16, [2], [2]).eval()
    body = Start("x", {"family": "vit", "settings": model.settings}, model.state_dict()).backbone((32, 32), 3, 0).eval()
    x = torch.randn(1, 3, 32, 32)
    with torch.no_grad():
        own = model.forward_intermediates(x, 1, norm=True, intermediates_only=True)[0]
        assert body.strides == (4, 8, 16, 32) and torch.equal(body(x)[body.deepest], own)


@pytest.mark.parametrize("name", ["vit", "swin", "hybrid"])
def test_costs_are_those_of_torchs_counter(name):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    body, x = start(name).backbone((16, 16), 3, seed=0).eval(), torch.randn(1, 3, 16, 16)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        body.requires_grad_(False)(x)
    found = counted(body, x)
    assert found == {"params": sum(p.numel() for p in body.parameters()), "macs": counter.get_total_flops() // 2}


class Depends(nn.Module):
    """What is computed depends on values, as where a detector leaves boxes out."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x[x[:, 0] > 0])


def test_what_depends_on_values_is_counted_by_computing_it():
    assert counted(Depends(), torch.ones(3, 4)) == {"params": 20, "macs": 48}


# -- timm ------------------------------------------------------------------------------------------------------------


def timm_start(name: str) -> Start:
    return open_start(f"timm:{name}")


@pytest.mark.parametrize(
    ("name", "strides"),
    [("test_resnet", (4, 8, 16, 32)), ("test_vit", (4, 8, 16, 32)), ("test_convnext", (4, 8, 16, 32))],
)
def test_networks_of_timm(name, strides):
    body, x = timm_start(name).backbone((40, 70), 3, seed=0).eval(), torch.randn(1, 3, 40, 70)
    with torch.no_grad():
        maps = body(x)
        assert body.strides == strides
        assert [tuple(m.shape) for m in maps] == [
            (1, c, *cells((40, 70), s)) for c, s in zip(body.channels, strides, strict=True)
        ]
        again = backbone_of(body.settings).eval()
        again.load_state_dict(body.state_dict())
        assert all(torch.equal(a, b) for a, b in zip(again(x), maps, strict=True))
        wider = body.at((64, 96))
        assert [tuple(m.shape[-2:]) for m in wider(torch.randn(1, 3, 64, 96))] == [cells((64, 96), s) for s in strides]


def test_weights_of_a_file_reach_timms_network(tmp_path):
    import timm
    from safetensors.torch import save_file

    torch.manual_seed(1)
    theirs = timm.create_model("test_resnet", num_classes=7)
    save_file(theirs.state_dict(), tmp_path / "w.safetensors")
    begun = open_start("timm:test_resnet", tmp_path / "w.safetensors")
    assert begun.mean is not None and begun.std is not None
    mine = begun.backbone((32, 32), 3, seed=0).state_dict()
    assert torch.equal(mine["network.layer1.0.conv1.weight"], theirs.state_dict()["layer1.0.conv1.weight"])


# -- starts ----------------------------------------------------------------------------------------------------------


def test_a_start_is_kept_whole(tmp_path, net):
    begun = open_start(net)
    begun.save(tmp_path)
    again = Start.saved(tmp_path)
    assert (again.name, again.plain, again.mean, again.std) == (begun.name, begun.plain, (0.4,), (0.2,))
    assert all(torch.equal(again.state[k], v) for k, v in begun.state.items())
    (tmp_path / "start.safetensors").write_bytes(b"other")
    with pytest.raises(TailorError, match=r"cannot be read: start\.safetensors is not the file"):
        Start.saved(tmp_path)
    fresh = open_start(net, scratch=True)
    fresh.save(tmp_path / "fresh")
    assert Start.saved(tmp_path / "fresh").state is None and fresh.mean is None


def test_what_cannot_be_a_backbone_is_one_sentence(tmp_path, net):
    for given, words in (
        ({"network": "timm:nothing_like_it"}, "timm has no model 'nothing_like_it'"),
        ({"network": net, "weights": "x.pth"}, "goes with timm:NAME"),
        ({"network": "timm:test_vit", "weights": "x.pth", "scratch": True}, "choose one"),
        ({"network": "timm:test_vit", "weights": tmp_path / "no.pth"}, "There is no checkpoint file"),
        ({"network": tmp_path / "nowhere"}, "There is no folder"),
        ({"network": save_tiny(tmp_path / "ladder", "ladder")}, "cannot be a backbone: its features are tied"),
    ):
        with pytest.raises(TailorError, match=words):
            open_start(**given)
