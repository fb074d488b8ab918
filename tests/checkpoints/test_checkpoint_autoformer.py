"""The released AutoFormer supernets: every sub-network computes what the released code computes."""

from __future__ import annotations

import pytest
import torch
from checkpoint_states import autoformer_reference, autoformer_shapes, autoformer_state, subnet_state

from tailorvit.checkpoints import load_plain, load_supernet, recognise
from tailorvit.errors import TailorError
from tailorvit.families import family, named_arch, named_space
from tailorvit.rng import generator

# Four heads of 16 and so 64 channels, of which the space uses at most 56: as 240 of 256 in the released T.
SMALL = {"heads": 4, "depth": 5, "ratio": 3, "head_dim": 16, "side": 4, "patch": 2, "channels": 1, "reach": 3}
SPACE = named_space("vit-8px", eps=1e-5)
FIXED = {**dict(SPACE.settings), "eps": 1e-5}


@pytest.fixture(scope="module")
def state():
    return autoformer_state(classes=7, **SMALL)


@pytest.fixture
def x():
    return torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(1))


def archs(n=4):
    rng = generator(0, "released")
    return [SPACE.smallest(), SPACE.largest(), *(SPACE.sample(rng) for _ in range(n))]


def reference(state, x, arch):
    return autoformer_reference(state, x, arch, head_dim=16, patch=2)


@torch.no_grad()
def test_every_sub_network_of_the_supernet_is_the_released_one(state, x):
    model = load_supernet(state, SPACE)
    assert model.shared.qkv == "official" and model.shared.classes == 7
    outputs = []
    for arch in archs():
        expected = reference(state, x, arch)
        torch.testing.assert_close(model(x, arch), expected, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(family("vit").extract(model, arch)(x), expected, atol=1e-4, rtol=1e-4)
        outputs.append(expected)
    assert torch.stack(outputs).std(0).min() > 1e-2, "the sub-networks differ, so a wrong one would show"


@torch.no_grad()
def test_the_aligned_layout_would_be_wrong(state, x):
    """The bias alone decides: with it at zero the rows could be put in order once and for all."""
    model, arch = load_supernet(state, SPACE), SPACE.smallest()
    aligned = family("vit").supernet(SPACE.with_settings(classes=7)).eval()
    aligned.load_state_dict(
        {k: v.unflatten(0, (3, 4, 16)) if k.endswith("qkv_bias") else v for k, v in model.state_dict().items()}
    )
    largest = SPACE.largest()
    torch.testing.assert_close(aligned(x, largest), reference(state, x, largest), atol=1e-4, rtol=1e-4)
    assert (aligned(x, arch) - reference(state, x, arch)).abs().max() > 1e-2


@torch.no_grad()
@pytest.mark.parametrize("own_shapes", [False, True], ids=["supernet's shapes", "its own shapes"])
def test_one_sub_network_becomes_a_plain_network(state, x, own_shapes):
    arch = archs()[3]
    found = subnet_state(state, arch, 16) if own_shapes else state
    network = load_plain(found, arch, FIXED)
    torch.testing.assert_close(network(x), reference(state, x, arch), atol=1e-4, rtol=1e-4)
    assert network.num_classes == 7 and not network.training


@torch.no_grad()
def test_the_released_shapes():
    """AutoFormer-T's own supernet, 256 wide, and the network the paper found in it."""
    state = autoformer_state(classes=1000)
    d, c, b, a = 256, 4, 4, 14  # the paper's count of a network of these sizes
    block = 6 * d + 256 * c * d + 192 * c + 7680 + 2 * b * d * d + b * d
    assert sum(v.numel() for v in state.values()) == 967 * d + a * block + 2 * d + 1000 * (d + 1)
    assert recognise(state) == "autoformer"
    model, plain = load_supernet(state, "autoformer-t"), load_plain(state, "autoformer-t")
    assert sum(p.numel() for p in plain.parameters()) == 5_867_944
    x = torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(2))
    arch = named_arch("autoformer-t").arch
    expected = plain(x)
    torch.testing.assert_close(model(x, arch), expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(
        autoformer_reference(state, x, arch, head_dim=64, patch=16), expected, atol=1e-4, rtol=1e-4
    )


@pytest.mark.parametrize(("name", "heads", "depth"), [("s", 7, 14), ("b", 10, 16)])
def test_the_larger_ones_fit(name, heads, depth):
    with torch.device("meta"):
        state = {k: torch.empty(v) for k, v in autoformer_shapes(heads=heads, depth=depth).items()}
        model, plain = load_supernet(state, f"autoformer-{name}"), load_plain(state, f"autoformer-{name}")
    assert model.heads == heads and len(model.blocks) == depth
    assert sum(p.numel() for p in plain.parameters()) == {"s": 22_891_432, "b": 53_691_688}[name]


@torch.no_grad()
def test_the_norms_have_the_released_eps_whatever_the_space_says(state, x):
    other = SPACE.with_settings(eps=0.1)
    model, arch = load_supernet(state, other), archs()[2]
    assert model.shared.eps == 1e-5 and dict(model.space.settings)["eps"] == 1e-5 and dict(other.settings)["eps"] == 0.1
    network = load_plain(state, arch, {**FIXED, "eps": 0.1})
    assert network.settings["eps"] == 1e-5
    expected = reference(state, x, arch)
    for output in (model(x, arch), network(x), family("vit").extract(model, arch)(x)):
        torch.testing.assert_close(output, expected, atol=1e-4, rtol=1e-4)
    wrong = family("vit").supernet(model.space.with_settings(eps=0.1)).eval()
    wrong.load_state_dict(model.state_dict())
    assert (wrong(x, arch) - expected).abs().max() > 1e-2, "another eps would show"


# -- refusals ---------------------------------------------------------------------------------------------------------


def test_a_space_the_file_has_no_room_for(state):
    with pytest.raises(TailorError, match=r"too small for the space: 'depth' goes up to 8, and the file has 5\."):
        load_supernet(state, "vit-32px")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s.pop("blocks.1.fc1.bias"), r"lacks 'blocks\.1\.fc1\.bias'; it does not belong to"),
        (lambda s: s.update({"blocks.0.lora": torch.zeros(1)}), r"an extra tensor, 'blocks.0.lora'"),
        (
            lambda s: s.update(pos_embed=torch.zeros(1, 26, 64)),
            r"shape of 'pos_embed', \(1, 26, 64\) instead of \(1, 17",
        ),
        (lambda s: s.pop("head.weight"), r"no head"),
        (
            lambda s: [s.pop(k) for k in list(s) if "table_h" in k],
            r"lacks 'blocks\.0\S+k\.embeddings_table_h' \(and \d more\)",
        ),
    ],
)
def test_a_damaged_file_is_one_sentence(state, change, words):
    damaged = dict(state)
    change(damaged)
    for load in (lambda: load_supernet(damaged, SPACE), lambda: load_plain(damaged, SPACE.smallest(), FIXED)):
        with pytest.raises(TailorError, match=words) as caught:
            load()
        assert str(caught.value).count(".\n") == 0 and str(caught.value).endswith(".")


def test_another_family_is_refused(state):
    with pytest.raises(TailorError, match=r"kind 'autoformer' .* family vit; 'swin-t' is of the family swin"):
        load_plain(state, "swin-t")
    with pytest.raises(TailorError, match=r"family vit, but the space is of the family windowed"):
        load_supernet(state, "s3")
