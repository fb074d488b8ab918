"""Proxies against values worked out by hand or by the long way round."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from proxy_tools import FAMILY_NAMES, sample, scorer, small_space, task
from torch import nn

from tailorvit.families import FAMILIES, plain_class
from tailorvit.proxies import PROXIES, Labelled, Refused
from tailorvit.proxies.dss import SKETCHES, exact_nuclear, nuclear
from tailorvit.proxies.layers import noise, weights
from tailorvit.proxies.score import rescored
from tailorvit.proxies.te import tangent_kernel
from tailorvit.stats import ranks


class One(nn.Module):
    """One linear layer under a path a proxy knows, fed with ones."""

    def __init__(self, room, rows=5, columns=3):
        super().__init__()
        self.room = room
        self.add_module(room, nn.ModuleDict({"proj": nn.Linear(columns, rows)}))

    def forward(self, x):
        return self.get_submodule(self.room)["proj"](x.flatten(1)[:, :3])


def built(family, seed=0):
    space, (arch,) = small_space(family), sample(family)
    torch.manual_seed(seed)
    return space, arch, FAMILIES[family].build(FAMILIES[family].settings(dict(space.settings)), arch).eval()


def test_dss_of_one_linear_layer():
    """SPEC 8.1: the gradient is all ones, of nuclear norm sqrt(out * in)."""
    space, arch, _ = built("vit")
    model = One("attn")
    found = PROXIES["dss"].measure(task(model, arch, space))
    wanted = math.sqrt(15) * float(torch.linalg.svdvals(model.attn["proj"].weight.detach().double()).sum())
    assert found["score"] == found["msa"] == pytest.approx(wanted, rel=1e-6) and found["mlp"] == 0
    both = nn.Module()
    both.attn, both.mlp = One("attn").attn, nn.ModuleDict({"fc1": nn.Linear(3, 4)})
    both.forward = lambda x: both.attn["proj"](x.flatten(1)[:, :3]).sum() + both.mlp["fc1"](x.flatten(1)[:, :3]).sum()
    assert PROXIES["dss"].measure(task(both, arch, space))["mlp"] == pytest.approx(
        float(both.mlp["fc1"].weight.detach().abs().sum()), rel=1e-6
    )


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_dss_equals_the_formula_layer_by_layer(family):
    space, arch, model = built(family)
    job = task(model, arch, space)
    x = (
        noise(job, model, "dss")[:1]
        if plain_class(family).takes_features
        else torch.ones(1, *noise(job, model, "dss").shape[1:])
    )
    model(x).sum().backward()
    wanted = 0.0
    for path, layer in model.named_modules():
        if isinstance(layer, nn.Linear) and ".attn." in path:
            norms = [torch.linalg.svdvals(t.detach().double()).sum() for t in (layer.weight, layer.weight.grad)]
            wanted += float(norms[0] * norms[1])
        elif isinstance(layer, nn.Linear | nn.Conv2d) and ".mlp." in path and "dwconv" not in path:
            wanted += float((layer.weight * layer.weight.grad).detach().abs().sum())
    assert PROXIES["dss"].measure(job)["score"] == pytest.approx(wanted, rel=1e-4)


def test_convolutions_that_count():
    """Those of the patch embedding, and of 1x1 in an MLP; a Shunted network's keys of one pixel keep out as others."""
    for family, wanted in (("hybrid", {"patch", "mlp"}), ("shunted", {"patch"})):
        space, arch, model = built(family)
        convs = {w.name: w for w in weights(task(model, arch, space), model) if w.tensor.ndim == 4}
        assert {w.part for w in convs.values()} == wanted
        assert {w.layer for w in convs.values() if w.part == "mlp"} <= {"fc1", "fc2"}
        pixels = [m for m in model.modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (1, 1)]
        assert pixels, "there is something to tell apart"


def test_dss_of_the_paper_and_of_the_released_code():
    space, arch, model = built("vit")
    with torch.no_grad():
        model.pos_embed.neg_()  # signs matter to dss_official
    ours, paper, official = (PROXIES[n].measure(task(model, arch, space)) for n in ("dss", "dss_paper", "dss_official"))
    assert paper == ours, "no dropout, no drop path: training mode changes nothing"
    assert official["qkv"] == 0 and ours["qkv"] > 0
    with torch.no_grad():
        model.pos_embed.abs_()
        model.cls_token.abs_()
    absolute = PROXIES["dss"].measure(task(model, arch, space))
    assert official["proj"] == pytest.approx(absolute["proj"]) and official["mlp"] == pytest.approx(absolute["mlp"])
    assert official["proj"] != pytest.approx(ours["proj"])


def test_a_family_may_name_its_layers_otherwise(monkeypatch):
    """A token mixer in the place of attention, under words of its own."""
    space, arch, _ = built("vit")

    class Mixer(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Conv2d(1, 3, 8)
            self.mixer = nn.ModuleDict({"tokens": nn.Linear(3, 4), "out": nn.Linear(4, 3)})
            self.ffn, self.classifier = nn.Linear(3, 3), nn.Linear(3, 10)

        def forward(self, x):
            x = self.stem(x).flatten(1)
            return self.classifier(self.ffn(self.mixer["out"](self.mixer["tokens"](x))))

    model = Mixer()
    job = task(model, arch, space)
    with pytest.raises(Refused, match="no attention or mixing layers"):
        PROXIES["dss"].measure(job)
    words = {"stem": "patch", "mixer": "mixing", "ffn": "mlp", "classifier": "head"}
    mixer = replace(FAMILIES["vit"], name="mixer", layer_words=words, output_layer="out")
    monkeypatch.setitem(FAMILIES.added, "mixer", mixer)
    job = replace(job, family="mixer")
    assert [w.part for w in weights(job, model)] == ["patch", "mixing", "mixing", "mlp", "head"]
    ours, official = (PROXIES[n].measure(job) for n in ("dss", "dss_official"))
    assert set(ours) == {"score", "msa", "mlp", "tokens", "out"} and min(ours.values()) > 0
    assert official["tokens"] == 0 and official["out"] == pytest.approx(ours["out"])
    assert set(PROXIES["snip"].measure(job)) == {"score", "patch", "msa", "mlp", "head"}


@pytest.mark.parametrize("rank", [1, 9, SKETCHES[0] + 1, 80])
def test_nuclear_norms_of_any_rank(rank):
    torch.manual_seed(rank)
    tall = torch.randn(200, rank) @ torch.diag(10.0 ** -torch.arange(rank).clamp(max=6)) @ torch.randn(rank, 90)
    matrices = [
        tall,
        torch.randn(200, rank) @ torch.randn(rank, 90),
        3 * tall,
        tall.T,
        torch.randn(80, 90),
        torch.zeros(200, 90),
        torch.randn(4, 3),
    ]
    wanted = [float(torch.linalg.svdvals(m.double()).sum()) for m in matrices]
    for low_rank in (False, True):
        assert nuclear(matrices, low_rank) == pytest.approx(wanted, rel=5e-5)


def test_a_matrix_that_is_not_finite_spoils_itself_only():
    bad = torch.randn(100, 60)
    bad[3, 4] = torch.inf
    for low_rank in (False, True):
        first, second = nuclear([bad, torch.ones(100, 60)], low_rank)
        assert math.isnan(first) and second == pytest.approx(math.sqrt(6000))
    assert exact_nuclear(torch.eye(4)[None]).tolist() == [4.0]


@pytest.mark.parametrize("name", ["snip", "grasp"])
def test_snip_and_grasp_equal_the_formula_on_the_whole_batch(name):
    space, arch, model = built("vit")
    images, labels = torch.randn(20, 1, 8, 8), torch.randint(10, (20,))  # more than one chunk
    job = task(model, arch, space, batch=20, labelled=Labelled(images, labels))
    chosen = [w.tensor for w in weights(job, model)]
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        first = torch.autograd.grad(F.cross_entropy(model(images), labels), chosen, create_graph=True)
        product = sum((g.detach() * g).sum() for g in first)
        second = torch.autograd.grad(product, chosen)
    snip = sum(float((w * g).abs().sum()) for w, g in zip(chosen, first, strict=True))
    grasp = -sum(float((w * h).sum()) for w, h in zip(chosen, second, strict=True))
    assert PROXIES[name].measure(job)["score"] == pytest.approx({"snip": snip, "grasp": grasp}[name], rel=1e-3)


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_the_tangent_kernel_equals_one_gradient_an_image(family):
    space, arch, model = built(family)
    job = task(model, arch, space, batch=3)
    images = noise(job, model, "te")
    chosen = weights(job, model)
    rows = []
    for image in images:
        found = torch.autograd.grad(model(image[None]).sum(), [w.tensor for w in chosen], materialize_grads=True)
        rows.append(torch.cat([g.flatten() for g in found]).double())
    jacobian = torch.stack(rows)
    layers = {w.name: model.get_submodule(w.name.removesuffix(".weight")) for w in chosen}
    torch.testing.assert_close(tangent_kernel(model, layers, images), jacobian @ jacobian.T, rtol=1e-3, atol=1e-6)


def test_te_ranks_candidates_against_each_other():
    assert ranks([3.0, 1.0, 3.0, 2.0]) == [3.5, 1.0, 3.5, 2.0]
    rule = PROXIES["te"].together
    assert rule([{"kappa": 9.0, "regions": 4.0}, {"kappa": 2.0, "regions": 6.0}]) == [2.0, 4.0]
    archs = sample("vit", 4)
    rows = scorer("vit", "te", "te_released")(archs)
    assert [r.scores["te_released"] for r in rows] == [-r.parts["te"]["kappa"] for r in rows]
    alone = scorer("vit", "te")(archs[:1])[0]
    assert alone.scores["te"] is None and "at least two" in alone.problems["te"]
    combined = rescored([scorer("vit", "te")([a])[0] for a in archs])
    assert [r.scores["te"] for r in combined] == [r.scores["te"] for r in rows] and combined[0].problems == {}


def test_naswot_counts_signs_at_every_gelu():
    space, arch, model = built("shunted")  # its GELUs are calls, not modules
    found = PROXIES["naswot"].measure(task(model, arch, space))
    assert found["codes"] > 0
    one = PROXIES["naswot"].measure(task(model, arch, space, batch=2))
    assert one["codes"] == found["codes"] and one["score"] < found["score"]


def test_what_makes_no_sense_is_refused_in_a_sentence():
    space, arch, model = built("vit")
    equal = Labelled(torch.ones(6, 1, 8, 8), torch.zeros(6, dtype=torch.long))
    for name, job, words in (
        ("naswot", task(model, arch, space, batch=1), "at least 2, not 1"),
        (
            "naswot",
            task(model, arch, space, labelled=equal),
            "Images 1 and 2 of the batch have the same signs everywhere",
        ),
        ("naswot", task(One("attn"), arch, space), "no GELU"),
        ("te", task(model, arch, space, batch=1), "at least 2, not 1"),
        ("dss", task(One("mlp"), arch, space), "no attention or mixing layers"),
    ):
        with pytest.raises(Refused, match=words):
            PROXIES[name].measure(job)


def test_what_is_not_finite_is_explained_and_never_wins():
    good, bad = sample("vit", 2)
    scores = scorer("vit", "dss", "params")
    network = scores.network

    def spoilt(arch, init=0):
        model = network(arch, init)
        if arch == bad:
            model.norm = nn.LayerNorm(model.norm.weight.shape[0])
            nn.init.constant_(model.norm.weight, float("inf"))
        return model

    scores.network = spoilt
    first, second = scores([good, bad])
    assert second.scores == {"dss": None, "params": second.params}
    assert second.problems["dss"].startswith("dss is nan with initialisation 1")
    assert max((first, second), key=lambda r: r.rank_value("dss")) is first and first.problems == {}
