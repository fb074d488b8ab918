"""S3, Swin, DeiT and PiT checkpoints: the same outputs through a file as from the original network."""

from __future__ import annotations

import pytest
import torch
from checkpoint_states import s3_reference, s3_shapes, s3_state
from safetensors.torch import save_file

from tailorvit.checkpoints import LOADERS, load_plain, load_supernet, read_state, recognise
from tailorvit.errors import TailorError
from tailorvit.families import FAMILIES, named_arch
from tailorvit.families.windows.windowed import windowed_arch

SMALL = {"dims": (16, 24, 32, 48), "depths": (2, 2, 3, 2), "heads": (2, 3, 4, 6), "windows": (4, 4, 4, 4)}
FIXED = {"image_size": (64, 64), "patch": 4, "head_dim": 8, "eps": 1e-5}


def small_arch(**changes):
    genes = {
        "depth": list(SMALL["depths"]),
        "embed": list(SMALL["dims"]),
        "qkv": [8 * h for h in SMALL["heads"]],
        "window": list(SMALL["windows"]),
        "mlp": 4,
    }
    return windowed_arch({**genes, **changes})


@torch.no_grad()
def test_s3_gives_the_released_outputs():
    """Maps of 16, 8, 4 and 2 with windows of 4: shifted and masked, shifted, whole, and clipped."""
    state = s3_state(**SMALL, head_dim=8, side=16, classes=9)
    assert recognise(state) == "s3"
    network = load_plain(state, small_arch(), FIXED)
    x = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    expected = s3_reference(state, x, SMALL["depths"], SMALL["heads"], SMALL["windows"], 8, 4)
    torch.testing.assert_close(network(x), expected, atol=1e-4, rtol=1e-4)
    assert expected.std(0).min() > 1e-3, "the outputs differ between images"


@pytest.mark.parametrize(
    ("name", "third", "windows"),
    [("s3-t", 6, (7, 7, 14, 7)), ("s3-s", 18, (14, 14, 14, 14)), ("s3-b", 30, (7, 7, 14, 7))],
)
def test_the_released_s3_shapes_fit(name, third, windows):
    dims, heads = (96, 192, 384, 768), (3, 6, 12, 24)
    shapes = s3_shapes(dims, (2, 2, third, 2), heads, windows)
    with torch.device("meta"):
        network = load_plain({k: torch.empty(v) for k, v in shapes.items()}, name)
    counts = {"s3-t": 28_328_674, "s3-s": 49_737_298, "s3-b": 71_125_762}
    assert sum(p.numel() for p in network.parameters()) == counts[name]


@pytest.mark.parametrize(
    ("theirs", "ours", "kind"),
    [
        ("deit_tiny_patch16_224", "deit-ti", "vit"),
        ("swin_tiny_patch4_window7_224", "swin-t", "timm-swin"),
        ("swin_s3_tiny_224", "s3-t", "timm-swin"),
        ("pit_ti_224", "pit-ti", "pit"),
    ],
)
@torch.no_grad()
def test_timm_networks_give_the_same_outputs(tmp_path, theirs, ours, kind):
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    model = timm.create_model(theirs, num_classes=11).eval()
    for p in model.parameters():  # zero biases and tiny tables would hide a mistake
        p.add_(0.02 * torch.randn_like(p))
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    state = read_state(tmp_path / "weights.safetensors")
    assert recognise(state) == kind
    x = torch.randn(1, 3, 224, 224)
    torch.testing.assert_close(load_plain(state, ours)(x), model(x), atol=1e-4, rtol=1e-4)


def old_names(state):
    """Swin's names before timm moved the merging to the next stage."""
    moved = {}
    for name, tensor in state.items():
        parts = name.split(".")
        if parts[0] == "layers" and parts[2] == "downsample":
            parts[1] = str(int(parts[1]) - 1)
        moved[".".join(parts).replace("head.fc.", "head.")] = tensor
    return moved


def own_state(name, **fixed):
    named = named_arch(name)
    record = FAMILIES[named.arch.family]
    return record.build(record.settings({**named.settings, "classes": 5, **fixed}), named.arch).state_dict()


@pytest.mark.parametrize("name", ["swin-t", "pit-ti"])
def test_first_releases_load_too(name):
    state = own_state(name)
    if name == "swin-t":
        older = {**old_names(state), "layers.0.blocks.1.attn_mask": torch.zeros(64, 49, 49)}
    else:
        older = {
            k.replace("transformers.1.pool.", "pools.0.").replace("transformers.2.pool.", "pools.1."): v
            for k, v in state.items()
        }
    assert older.keys() != state.keys()
    loaded = load_plain(older, name).state_dict()
    assert loaded.keys() == state.keys() and all(torch.equal(loaded[k], state[k]) for k in state)


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "extra"), [("deit-ti", "dist_token"), ("pit-ti", "head_dist.weight")], ids=["deit", "pit"]
)
def test_distilled_networks_are_refused(name, extra):
    state = {**own_state(name), extra: torch.zeros(1, 1, 192)}
    with pytest.raises(TailorError, match=r"distilled .* two class tokens and two heads; ours have one"):
        load_plain(state, name)


def test_the_wrong_architecture_is_named():
    state = own_state("deit-ti")
    with pytest.raises(
        TailorError,
        match=r"another shape of 'cls_token', \(1, 1, 192\) instead of \(1, 1, 384\) \(and \d+ more\); .* 'deit-s'",
    ):
        load_plain(state, "deit-s")
    with pytest.raises(TailorError, match=r"lacks 'blocks\.0\.attn\.rel_key_v' \(and 63 more\)"):
        load_plain(state, "autoformer-t")
    with pytest.raises(TailorError, match="Unknown architecture 'deit-xl'"):
        load_plain(state, "deit-xl")
    with pytest.raises(TailorError, match=r"kind 'vit' .* for the family vit; 'pit-ti' is of the family pit"):
        load_plain(state, "pit-ti")
    with pytest.raises(TailorError, match=r"of the kind 'vit' is not a supernet; kinds with supernets: autoformer\."):
        load_supernet(state, "autoformer-t")


def test_a_left_over_tensor_is_named():
    state = {**own_state("deit-ti"), "blocks.0.ls1.gamma": torch.ones(192), "blocks.1.ls1.gamma": torch.ones(192)}
    with pytest.raises(TailorError, match=r"an extra tensor, 'blocks\.0\.ls1\.gamma' \(and 1 more\)"):
        load_plain(state, "deit-ti")


def test_foreign_names_are_no_kind():
    with pytest.raises(
        TailorError, match=r"names \(such as 'conv1\.weight'\) are of no known kind\. Known: AutoFormer"
    ):
        recognise({"conv1.weight": torch.zeros(64, 3, 7, 7)})
    assert all(loader.name == key and loader.families for key, loader in LOADERS.items())
