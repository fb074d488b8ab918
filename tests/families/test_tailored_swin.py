"""The same Swin in another order, blocks in the places they had, and what is refused."""

from __future__ import annotations

import json

import pytest
import torch

from tailorvit.errors import TailorError
from tailorvit.families import FAMILIES, with_settings
from tailorvit.families.tailored_swin.order import best_side, logits, parts, reordered, whole_arch
from tailorvit.families.tailored_swin.spaces import (
    SPACES,
    TailoredSwinSettings,
    tailored_swin_arch,
    tailored_swin_settings,
    whole_space,
)
from tailorvit.families.tailoring import Orders, tailoring_of
from tailorvit.families.windows.plain import PlainWindowed

FAMILY = FAMILIES["tailored-swin"]
SMALL = {"image_size": (16, 16), "patch": 1, "channels": 3, "classes": 5, "head_dim": 8, "window": (4, 4, 2, 2)}
DEPTHS = [2, 2, 6, 2]
WHOLE = tailored_swin_arch(
    {"depth": DEPTHS, "embed": [8, 16, 24, 32], "heads": [1, 2, 3, 4], "hidden": [32, 40, 64, 96]}
)


def network(drop_path: float = 0.0) -> PlainWindowed:
    """One in which every weight matters."""
    torch.manual_seed(0)
    model = FAMILY.build(tailored_swin_settings(SMALL), WHOLE, drop_path)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.2 * torch.randn_like(p))
    return model.eval()


def images(n=4, side=16):
    return torch.randn(n, 3, side, side, generator=torch.Generator().manual_seed(1))


def shuffled(n, seed):
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed)).tolist()


def orders_for(model):
    found = parts(model)
    heads = [shuffled(b.attn.heads, i) for i, b in enumerate(found.blocks)]
    hidden = [shuffled(b.mlp.fc1.out_features, i) for i, b in enumerate(found.blocks)]
    return Orders(heads, hidden, [shuffled(width, 40 + s) for s, width in enumerate(found.widths)])


def close(found, wanted):
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_another_order_computes_the_same():
    model = network(0.1)
    orders = orders_for(model)
    other, x = reordered(model, orders), images()
    close(other(x), model(x))
    for s, (mine, theirs) in enumerate(
        zip(*(m.forward_intermediates(x, intermediates_only=True) for m in (other, model)), strict=True)
    ):
        close(mine, theirs[:, orders.streams[s]])
    for s in range(4):
        assert not torch.equal(other.layers[s].blocks[0].mlp.fc1.weight, model.layers[s].blocks[0].mlp.fc1.weight)
    assert [b.drop_path.rate for b in parts(other).blocks] == [b.drop_path.rate for b in parts(model).blocks]
    without = reordered(model, Orders(orders.heads, orders.hidden))
    close(without(x), model(x))
    close(without.forward_features(x), model.forward_features(x))


def test_parts_are_those_of_every_stage():
    found = parts(network())
    assert found.stages == [0, 0, 1, 1, 2, 2, 2, 2, 2, 2, 3, 3] and found.widths == [8, 16, 24, 32]
    assert [len(norms) for norms in found.norms] == [5, 5, 13, 5] and found.head_dim == 8
    assert [norms[-1].normalized_shape[0] for norms in found.norms] == [32, 64, 96, 32]
    assert whole_arch(network()) == WHOLE and tailoring_of(network()) is FAMILY.tailoring


@torch.no_grad()
def test_a_supernet_filled_with_a_network_is_it_and_blocks_keep_their_places():
    """The third stage has windows of 2 on a map of 4, so that every second block is shifted."""
    model = network()
    order = (1, 0, 3, 2, 9, 6, 8, 4, 5, 7, 10, 11)
    space = whole_space(WHOLE, {**SMALL, "order": order, "depths": tuple(DEPTHS)})
    supernet, x = FAMILY.supernet(space).eval(), images()
    FAMILY.tailoring.fill(supernet, model)
    close(supernet(x), model(x))
    again = FAMILY.extract(supernet, space.largest())
    assert all(torch.equal(again.state_dict()[k], v) for k, v in model.state_dict().items())
    # Blocks 2, 4 and 5 of the third stage are left, of which one is shifted.
    cut = WHOLE.replace(**{"depth.3": 3, "heads.3": (3,) * 3, "hidden.3": (64,) * 3})
    kept = [b for b in range(12) if b not in (4, 5, 7)]
    plain = FAMILY.extract(supernet, cut).eval()
    assert plain.shapes[2].places == (2, 4, 5)
    assert [any(b.attn.cut.shift) for b in plain.layers[2].blocks] == [False, False, True]
    close(supernet(x, cut), logits(model, x, kept))
    close(plain(x), logits(model, x, kept))
    loaded = PlainWindowed.from_settings(json.loads(json.dumps(plain.settings))).eval()
    loaded.load_state_dict(plain.state_dict())
    assert torch.equal(loaded(x), plain(x))
    built = FAMILY.build(tailored_swin_settings(dict(space.settings)), cut)
    assert built.settings == plain.settings


@torch.no_grad()
def test_a_prefix_of_the_ordered_network_keeps_the_first_parts():
    """Parts that do nothing are put last and cut: nothing is lost."""
    model = network()
    for b in parts(model).blocks:
        b.mlp.fc2.weight[:, ::2] = 0
        dead = b.attn.heads // 2
        b.attn.proj.weight[:, : 8 * dead] = 0
    every = parts(model).blocks
    heads = [[*range(b.attn.heads // 2, b.attn.heads), *range(b.attn.heads // 2)] for b in every]
    hidden = [[*range(1, b.mlp.fc1.out_features, 2), *range(0, b.mlp.fc1.out_features, 2)] for b in every]
    ordered = reordered(model, Orders(heads, hidden))
    space = whole_space(WHOLE, SMALL)
    supernet = FAMILY.supernet(space).eval()
    FAMILY.tailoring.fill(supernet, ordered)
    half = {f"hidden.{s}": [h // 2 for h in WHOLE.many(f"hidden.{s}")] for s in range(1, 5)}
    half |= {f"heads.{s}": [h - h // 2 for h in WHOLE.many(f"heads.{s}")] for s in range(1, 5)}
    close(supernet(images(), WHOLE.replace(**half)), model(images()))


def test_hidden_units_are_exact_at_every_width():
    """They are kept as a ratio, which must give back every number."""
    shared = tailored_swin_settings(SMALL)
    for embed in (7, 49, 96, 108, 384, 767):
        for hidden in range(1, 4 * embed, max(1, embed // 9)):
            arch = tailored_swin_arch({"depth": 1, "embed": embed, "heads": 1, "hidden": hidden})
            assert whole_arch(_on_meta(shared, arch)).many("hidden.1") == (hidden,)


def _on_meta(shared, arch):
    with torch.device("meta"):
        return FAMILY.build(shared, arch)


@pytest.mark.parametrize(
    ("side", "fits"), [(224, 224), (230, 224), (250, 256), (96, 96), (32, 64), (8, 64), (500, 512)]
)
def test_sides_of_whole_windows(side, fits):
    assert best_side(TailoredSwinSettings(), side, 224) == fits


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"window": (7, 7)}, "'window' must be 4 positive whole numbers"),
        ({"order": (1, 0)}, "'depths' must be 4 positive whole numbers"),
        ({"order": (0, 1, 2), "depths": (1, 1, 1, 1)}, "'order' must name every one of 4 blocks once"),
        ({"image_size": (10, 10), "patch": 4}, "multiples of the patch 4"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(TailorError, match=message):
        with_settings(SPACES["tailored-swin-8px"], **{"order": (), "depths": (), **settings})


@pytest.mark.parametrize(
    ("genes", "message"),
    [
        ({"mlp": 4}, "no gene 'mlp'"),
        ({"embed": [8, 8]}, "'embed' of a tailored-swin architecture needs one value per stage, not 2"),
        ({"hidden.2": [8, 8, 8]}, "Stage 2 has 1 blocks, but 'hidden.2' has 3 values"),
        ({"heads": 0}, "must be whole and positive"),
        ({"hidden": 8.5}, "must be whole and positive"),
        ({"depth": 0}, "at least one whole block"),
        ({"embed": None}, "needs 'embed.1'"),
    ],
)
def test_architectures_are_checked(genes, message):
    with pytest.raises(TailorError, match=message):
        tailored_swin_arch({"depth": 1, "embed": 8, "heads": 1, "hidden": 8, **genes})


def test_blocks_without_end_are_refused_at_once():
    with pytest.raises(TailorError, match=r"1,000|1000"):
        tailored_swin_arch({"depth": [2, 2, 10**8, 2], "embed": [8, 12, 16, 24], "heads": 1, "hidden": 16})
