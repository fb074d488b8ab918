"""Widths of MLPs: rounded down as the product is meant, not as floats have it."""

from __future__ import annotations

from fractions import Fraction

import pytest

from tailorvit.costs import Counter
from tailorvit.families import FAMILIES, family
from tailorvit.families.network import hidden_width


def test_the_product_is_that_of_the_numbers_as_written():
    tenths = [k / 10 for k in range(5, 61)]
    for embed in range(4, 700):
        for ratio in tenths:
            assert hidden_width(embed, ratio) == int(embed * Fraction(str(ratio))), (embed, ratio)
    assert int(30 * 4.1) == 122 and hidden_width(30, 4.1) == 123, "what floats make of it"


@pytest.mark.parametrize("ratio", [1.1, 2.3, 4.1])
def test_a_network_and_its_count_agree_on_it(ratio):
    one, fixed = family("vit"), {"image_size": (8, 8), "patch": 4, "channels": 1, "classes": 3, "head_dim": 8}
    for embed in (10, 30, 50):
        arch = one.arch({"family": "vit", "depth": 2, "embed": embed, "heads": 1, "mlp": ratio})
        made = one.build(one.settings(fixed), arch)
        assert sum(p.numel() for p in made.parameters()) == Counter("vit", fixed).params(arch)
        assert made.blocks[0].mlp.fc1.out_features == int(embed * Fraction(str(ratio)))


@pytest.mark.parametrize("name", [n for n in FAMILIES if n != "ladder"])  # its trunk has a size of its own
def test_every_family_counts_decimal_ratios_as_it_builds_them(name):
    one = family(name)
    space = next(s for n, s in one.spaces.items() if n.endswith("-8px"))
    for ratio in (1.1, 2.3, 4.1):
        for arch in (space.smallest(), space.largest()):
            genes = {k: (ratio,) * len(v) if isinstance(v, tuple) else ratio for k, v in arch.items() if "mlp" in k}
            changed = arch.replace(**genes)
            made = one.build(one.settings(dict(space.settings)), changed)
            assert sum(p.numel() for p in made.parameters()) == Counter(name, dict(space.settings)).params(changed)


@pytest.mark.parametrize("name", ["shunted", "swin", "windowed"])
def test_hand_designed_widths_suit_a_gpus_layer_norm(name):
    """From 16 channels on in fours: others take torch's slow kernel."""
    settings = family(name).settle((96, 96), 1_500_000) | {"image_size": (96, 96), "channels": 3, "classes": 10}
    widths = {arch.one("embed.1" if name == "windowed" else "embed") for arch in family(name).baseline(settings)}
    assert max(widths) > 64 and all(width % 4 == 0 for width in widths if width >= 16)
