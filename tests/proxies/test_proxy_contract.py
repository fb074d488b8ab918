"""Every proxy keeps the same promises on every family: finite, seeded, and without a trace."""

from __future__ import annotations

import math

import pytest
import torch
from proxy_tools import ALONE, FAMILY_NAMES, MEASURED, everything, same, sample, scorer, small_space, task

from tailorvit.errors import TailorError
from tailorvit.families import FAMILIES
from tailorvit.proxies import PROXIES, ProxySettings, proxy
from tailorvit.proxies.score import Scorer


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_scores_are_finite(family):
    for row in scorer(family)(sample(family, 2)):
        assert row.problems == {}
        assert set(row.scores) == set(PROXIES)
        assert all(math.isfinite(v) for v in row.scores.values())


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_parts_add_up_to_the_score(family):
    for row in scorer(family, "dss", "snip", "params", "macs")(sample(family, 2)):
        parts = row.parts["dss"]
        assert row.scores["dss"] == pytest.approx(parts["msa"] + parts["mlp"])
        assert parts["msa"] > 0 and parts["mlp"] > 0 and parts["proj"] > 0
        assert parts["msa"] == pytest.approx(sum(v for k, v in parts.items() if k not in ("msa", "mlp")))
        assert row.scores["snip"] == pytest.approx(sum(row.parts["snip"].values()))
        assert row.parts["snip"].keys() >= {"msa", "mlp", "head"}
        assert row.scores["params"] == row.params and row.scores["macs"] == row.macs


@pytest.mark.parametrize("name", MEASURED)
@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_the_network_is_left_as_it_was(family, name):
    space, (arch,) = small_space(family), sample(family)
    torch.manual_seed(5)
    model = FAMILIES[family].build(FAMILIES[family].settings(dict(space.settings)), arch)
    for i, p in enumerate(model.parameters()):  # an unusual state, so that restoring defaults is not enough
        p.requires_grad_(i % 3 > 0)
        p.grad = torch.full_like(p, i) if i % 2 else None
    model.train()
    next(model.children()).eval()
    before = everything(model)
    found = PROXIES[name].measure(task(model, arch, space))
    assert math.isfinite(found["score"])
    assert same(before, everything(model))
    with torch.no_grad():  # the caller's gradient mode does not matter
        assert PROXIES[name].measure(task(model, arch, space)) == found


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_sliced_and_extracted_networks_score_alike(family):
    names = [n for n in MEASURED if n in ALONE]
    scores = scorer(family, *names)
    for arch in sample(family, 3, seed=1):
        (row,) = scores([arch])
        own = FAMILIES[family].extract(scores._supernet(arch, 0), arch)
        assert all(a.data_ptr() != b.data_ptr() for a, b in zip(own.parameters(), scores.network(arch).parameters()))
        for name in names:
            seed = scores._task(PROXIES[name], arch, 0, 0, torch.nn.Identity, 0).seed
            value = PROXIES[name].measure(task(own, arch, small_space(family), seed=seed))["score"]
            assert value == pytest.approx(row.scores[name], rel=2e-3 if name in ("grasp", "te_released") else 1e-4)


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_a_score_depends_on_seed_and_architecture_alone(family):
    archs = sample(family, 3)
    rows = scorer(family, *ALONE)(archs)
    single = scorer(family, *ALONE)
    assert [single([a])[0].scores for a in reversed(archs)] == [r.scores for r in reversed(rows)]
    other = scorer(family, *ALONE, seed=1)(archs[:1])[0].scores
    assert all(other[n] == rows[0].scores[n] for n in ALONE if PROXIES[n].cost == "counted")
    for name in ("dss", "dss_paper", "dss_official", "snip", "grasp", "naswot", "te_released"):
        assert other[name] != rows[0].scores[name], "another initialisation"


def test_initialisations_are_averaged():
    (arch,) = sample("vit")
    each = [scorer("vit", "dss", settings={"inits": n})([arch])[0] for n in (1, 2, 3)]
    first, two, three = (row.scores["dss"] for row in each)
    supernets = scorer("vit", "dss", settings={"inits": 3})
    single = [
        PROXIES["dss"].measure(task(supernets.network(arch, i), arch, small_space("vit")))["score"] for i in range(3)
    ]
    assert first == pytest.approx(single[0]) and len(set(single)) == 3
    assert two == pytest.approx(sum(single[:2]) / 2) and three == pytest.approx(sum(single) / 3)
    assert each[2].parts["dss"]["msa"] + each[2].parts["dss"]["mlp"] == pytest.approx(three)


def test_scoring_leaves_no_trace_in_the_random_state():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    scorer("vit")(sample("vit", 2))
    assert torch.equal(before, torch.get_rng_state())


def test_an_architecture_without_a_space_scores_by_itself():
    arch, other = sample("vit", 2)
    space = small_space("vit")
    scores = Scorer("vit", dict(space.settings), ProxySettings(("dss",)))
    assert scores([arch, other])[0].scores == Scorer("vit", dict(space.settings))([arch])[0].scores


def test_names_settings_and_images_are_checked_first():
    with pytest.raises(TailorError, match=r"Unknown proxy 'dds'. Did you mean 'dss'\? Known: .*naswot.*te_released"):
        proxy("dds")
    with pytest.raises(TailorError, match="Unknown proxy 'x'"):
        scorer("vit", "x")
    with pytest.raises(TailorError, match="snip needs images"):
        Scorer(small_space("vit"), settings=ProxySettings(("snip",)))
    with pytest.raises(TailorError, match="'inits' must be a positive whole number, not 0"):
        ProxySettings(inits=0)
    with pytest.raises(TailorError, match=r"images are \[3, 4, 4\]; the networks take \[1, 8, 8\]"):
        Scorer(small_space("vit"), images=(torch.zeros(2, 3, 4, 4), torch.zeros(2, dtype=torch.long)))
    with pytest.raises(TailorError, match="labels under 10"):
        Scorer(small_space("vit"), images=(torch.zeros(2, 1, 8, 8), torch.tensor([0, 10])))
