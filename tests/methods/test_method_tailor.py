"""Method tailor: nothing is lost by ordering, members lie near the limits, and a run keeps what it promises."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from timm.layers import SwiGLU
from timm.models.vision_transformer import VisionTransformer
from torch import nn

import tailorvit
from tailorvit import api
from tailorvit.checkpoints.starts import _pretrained, open_pretrained
from tailorvit.costs import Counter
from tailorvit.costs.limits import Limits
from tailorvit.costs.meter import Meter
from tailorvit.errors import TailorError
from tailorvit.export import export
from tailorvit.families import FAMILIES
from tailorvit.methods import finish as finish_module
from tailorvit.methods.session import Session
from tailorvit.methods.tailor import (
    LATER,
    WINDOW,
    NearLimits,
    PretrainedStart,
    counted_top,
    even_shapes,
    fill,
    first_blocks,
    ordered,
    require_cuts,
    tailored_space,
    whole_blocks,
)
from tailorvit.runs import Run
from tailorvit.space import Space
from tailorvit.trunks import libraries

TINY = {"img_size": 8, "patch_size": 2, "embed_dim": 24, "depth": 4, "num_heads": 3, "num_classes": 0}
KINDS = {
    "plain": {},
    "clip": {"pre_norm": True, "norm_layer": partial(nn.LayerNorm, eps=1e-5)},
    "swiglu": {"mlp_layer": SwiGLU, "act_layer": nn.SiLU},
    "no class token": {"class_token": False, "global_pool": "avg", "fc_norm": False},
}
DATA = SimpleNamespace(image_size=(8, 8), channels=3, classes=list("abcde"))
FAMILY = FAMILIES["tailored"]


def made(kind: str = "plain") -> PretrainedStart:
    """A start whose every weight and bias matters."""
    model, rng = VisionTransformer(**{**TINY, **KINDS[kind]}), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.2 * torch.randn(p.shape, generator=rng))
    return PretrainedStart(_pretrained("timm:test", libraries.from_timm("timm:test", model)))


def whole_of(start: PretrainedStart):
    model = start.network(DATA, seed=0).eval()
    with torch.no_grad():
        model.head.weight.add_(torch.randn(model.head.weight.shape, generator=torch.Generator().manual_seed(1)))
    return model


def batches(count: int = 2):
    rng = torch.Generator().manual_seed(2)
    return [(torch.randn(12, 3, 8, 8, generator=rng), torch.randint(0, 5, (12,), generator=rng)) for _ in range(count)]


def close(found, wanted) -> None:
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)


# -- the ordered network ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_order_and_supernet_keep_the_function_of_the_whole(kind):
    start = made(kind)
    whole = whole_of(start)
    network, blocks = ordered(whole, batches())
    assert sorted(blocks) == [0, 1, 2, 3]
    assert (network.shared.norm == "rms") == (kind != "clip"), "a norm before the blocks keeps the stream as it is"
    space = start.space(DATA).with_settings(order=tuple(blocks))
    supernet = FAMILY.supernet(space).eval()
    fill(supernet, network)
    (x, _), *_ = batches(1)
    with torch.no_grad():
        wanted = whole(x)
        assert wanted.std() > 0.1
        close(network(x), wanted)
        close(supernet(x, space.largest()), wanted)
        for arch in (space.largest(), space.smallest(), space.largest().replace(embed=space["embed"].choices[0])):
            close(FAMILY.extract(supernet, arch).eval()(x), supernet(x, arch))
    moved = torch.equal(network.blocks[0].mlp.fc1.weight, whole.blocks[0].mlp.fc1.weight)
    assert not moved, "something was ordered"


@pytest.mark.parametrize("kind", KINDS)
def test_the_space_counts_what_the_network_has(kind):
    start = made(kind)
    network, _ = ordered(whole_of(start), batches(1))
    counter = Counter("tailored", dict(start.space(DATA).settings))
    arch = whole_blocks(network, 4)
    assert arch == start.space(DATA).largest()
    assert counter.params(arch) == sum(p.numel() for p in network.parameters())


@torch.no_grad()
def test_first_blocks_are_the_first_of_the_whole():
    network, _ = ordered(whole_of(made()), batches())
    (x, _), *_ = batches(1)
    for depth in (1, 3, 4):
        tokens = network.tokens(x)
        for block in network.blocks[:depth]:
            tokens = block(tokens)
        cut = first_blocks(network, depth).eval()
        assert torch.equal(cut(x), network.forward_head(network.norm(tokens))) and len(cut.blocks) == depth


def test_the_start_is_always_the_same_and_touches_no_generator():
    torch.manual_seed(1)
    one, after = open_pretrained("random:tiny"), torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(after, torch.rand(1))
    torch.manual_seed(2)
    again = open_pretrained("random:tiny")
    assert all(torch.equal(one.state[k], again.state[k]) for k in one.state)
    assert one.arch.one("embed") == 24 and one.settings.patch == 2


# -- members near the limits ------------------------------------------------------------------------------------------


def meter_of(space: Space, **limits) -> Meter:
    return Meter.for_space(space, Limits.of(**limits))


def test_members_lie_under_each_limit_in_turn_and_belong_to_seed_and_step():
    space = made().space(DATA)
    meter = meter_of(space, max_params=20_000)
    rule = NearLimits(space, meter, (("params", 20_000.0), ("params", 12_000.0), ("macs", 250_000.0)))
    seen = []
    for step in range(6):
        drawn = rule.archs_at(5, step)
        assert drawn == NearLimits(space, meter, rule.tops).archs_at(5, step)
        seen += drawn
    assert len(seen) == 12 and len(set(seen)) > 6
    for number, arch in enumerate(seen):
        metric, top = rule.tops[number % 3]
        assert WINDOW * top <= meter.cost(metric, arch) <= top
    assert rule.archs_at(6, 0) != rule.archs_at(5, 0)


def test_where_nothing_lies_in_the_window_the_nearest_is_drawn():
    space = made().space(DATA)
    meter = meter_of(space)
    rule = NearLimits(space, meter, (("params", 1.0),), members=1)
    (arch,) = rule.archs_at(0, 0)
    assert meter.cost("params", arch) < meter.cost("params", space.largest()) / 2


VIT_S = {"image_size": (98, 98), "patch": 14, "channels": 3, "classes": 102, "norm": "rms", "width": 384}


def test_even_shapes_fill_the_limit_from_deep_to_shallow(monkeypatch):
    whole = FAMILY.arch({"depth": 12, "embed": 384, "heads": 6, "hidden": 1536})
    space = tailored_space(whole, VIT_S)
    for limits, metric in (
        ({"max_params": 3e6}, "params"),
        ({"max_params": 11e6}, "params"),
        ({"max_macs": 3e8}, "macs"),
    ):
        meter = meter_of(space, **limits)
        shapes = even_shapes(space, meter)
        assert [a.one("depth") for a in shapes] == [12, 10, 8, 6]
        for arch in shapes:
            assert space.contains(arch) and all(len(set(arch.many(g))) == 1 for g in ("heads", "hidden"))
            assert 0.93 * next(iter(limits.values())) <= meter.cost(metric, arch) <= next(iter(limits.values()))
        widths = [a.one("embed") for a in shapes]
        assert widths == sorted(widths) and widths[0] < widths[-1]
    monkeypatch.setattr(Meter, "_measure", lambda self, metric, arch: 1e-11 * self.counter.macs(arch))
    for arch in even_shapes(space, meter_of(space, max_latency="3ms")):
        assert 2.5e8 <= meter.counter.macs(arch) <= 3e8
    assert even_shapes(space, meter_of(space, max_params=1e5)) == []
    between = SimpleNamespace(method="tailor", tailor=SimpleNamespace(search="shapes", front=[]))
    with pytest.raises(TailorError, match=r"No network whose blocks are alike keeps params >= 6M, params <= 6M"):
        require_cuts(between, space, meter_of(space, min_params=5.9999e6, max_params=6e6))


def test_the_counted_top_of_every_kind_of_limit(monkeypatch):
    space = made().space(DATA)
    macs, params = (meter_of(space).most(m, space) for m in ("macs", "params"))
    assert counted_top(meter_of(space, max_params=15_000), space) == ("params", 15_000)
    assert counted_top(meter_of(space, max_macs=200_000), space) == ("macs", 200_000)
    assert counted_top(meter_of(space, max_params="6M"), space) == ("params", params), "no more than there is"
    assert counted_top(meter_of(space), space) == ("macs", macs)
    monkeypatch.setattr(Meter, "_measure", lambda self, metric, arch: 0.010)
    assert counted_top(meter_of(space, max_latency="5ms"), space) == ("macs", pytest.approx(0.5 * LATER * macs))
    assert counted_top(meter_of(space, max_latency="20ms"), space) == ("macs", macs)
    assert counted_top(meter_of(space, max_latency="5ms", max_params=15_000), space) == ("params", 15_000)


# -- a whole run ------------------------------------------------------------------------------------------------------

QUICK = ["analysis.images=0", "analysis.mistakes=0", "train.batch=50", "final.train.batch=50"]


def go(folder: Path | None, *sets: str, **options):
    return tailorvit.run("tailor", out=folder, tiny=True, settings=[*QUICK, *sets], progress="quiet", **options)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run with two more sizes, of which one is the run's own limit."""
    folder = tmp_path_factory.mktemp("tailor") / "run"
    opened, before = [], finish_module._open_test_split

    def spied(session: Session) -> None:
        done = {stage: session.run.result(stage) for stage in ("whole", "final", "final-12k", "choice")}
        opened.append((session.data.test_opened, all(v is not None for v in done.values())))
        before(session)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finish_module, "_open_test_split", spied)
        result = go(folder, start="random:tiny", max_params="18k", front="12k,18k")
    assert opened == [(None, True)], "the test split is opened once, after everything is trained and chosen"
    return result


def test_result_and_networks(finished):
    facts = json.loads((finished.folder / "result.json").read_text())
    whole = facts["whole"]
    assert whole["network"] == "random:tiny" and whole["params"] > 18_000 and sorted(whole["blocks"]) == [0, 1, 2, 3]
    assert facts["params"] <= 18_000 and facts["method"] == "tailor" and facts["baseline"] is None
    (peer,) = facts["peers"]
    assert peer["name"].startswith("whole network") and peer["over"] and 0 <= peer["test_accuracy"] <= 100
    # Rows know their costs; the networks themselves are counted too.
    (row,) = facts["sizes"]
    assert row["size"] == 12_000 and row["params"] <= 12_000 and 0 <= row["test_accuracy"] <= 100
    for place, params in ((finished.folder, facts["params"]), (finished.folder / row["folder"], row["params"])):
        network = tailorvit.load(place)
        assert sum(p.numel() for p in network.parameters()) == params
        assert sum(network.predict([np.zeros((8, 8), np.uint8)])[0].values()) == pytest.approx(1, abs=1e-5)
    assert [c["arch"] for c in facts["candidates"] if c["chosen"]] == [facts["arch"]]
    names = {c["name"] for c in facts["candidates"]}
    assert "first blocks" in names and all(c["params"] <= 18_000 for c in facts["candidates"])
    assert not any("whole" in name for name in names), "beside, and never delivered"
    with Run.open(finished.folder, lock=False) as run:
        assert {e["stage"] for e in run.epochs()} == {"whole", "baseline", "final", "final-12k"}
    found = next(c for c in facts["candidates"] if c["name"] == "found")
    assert found["arch"]["depth"] == 4 and row["arch"]["depth"] == 4, "all blocks are kept"
    page = (finished.folder / "report.html").read_text(encoding="utf-8")
    assert "whole network" in page and "refitted to follow the whole" in page and "refitting what was cut" in page


def test_grey_images_are_normalised_as_the_colour_network_was(finished):
    card = json.loads((finished.folder / "network" / "network.json").read_text())
    assert card["preprocessing"]["mean"] == [0.5] and card["preprocessing"]["std"] == [0.5]
    assert finished["settings"]["channels"] == 1 and open_pretrained("random:tiny").settings.channels == 3


def test_the_delivered_network_goes_to_onnx(finished, tmp_path):
    made = export(finished.folder, "onnx", tmp_path / "out")
    assert made.facts["max_difference"] <= 1e-3 and (tmp_path / "out" / "network.onnx").is_file()


def test_under_a_latency_limit_short_trainings_choose_the_shape(tmp_path, monkeypatch):
    monkeypatch.setattr(Meter, "_measure", lambda self, metric, arch: 1e-8 * self.counter.macs(arch))
    result = go(tmp_path / "run", start="random:tiny", max_latency="3ms")
    with Run.open(tmp_path / "run", lock=False) as run:
        shapes = [t for t in run.trials() if t["stage"].startswith("shape-")]
    assert len({t["arch"].one("depth") for t in shapes}) > 2 and all(t["macs"] <= 3e5 for t in shapes)
    found = [c for c in result["candidates"] if c["name"].startswith("found")]
    assert max(t["accuracy"] for t in shapes) == max(c["search_accuracy"] for c in found), "the best goes on"
    assert not list((tmp_path / "run" / "checkpoints").glob("shape-*")), "their weights are not kept"


def test_a_supernet_is_searched_where_asked_for(tmp_path):
    result = go(tmp_path / "run", "tailor.search=supernet", start="random:tiny", max_params="18k", front="12k")
    with Run.open(tmp_path / "run", lock=False) as run:
        trials = run.trials("search")
        assert trials and all(t["params"] <= 18_000 for t in trials)
        assert {e["stage"] for e in run.epochs()} >= {"supernet-0", "baseline", "final", "final-12k"}
    assert result["params"] <= 18_000 and result["sizes"][0]["params"] <= 12_000


def test_where_the_limit_leaves_room_nothing_needs_to_be_cut(tmp_path):
    result = go(tmp_path / "run", start="random:tiny", max_params="6M")
    with Run.open(tmp_path / "run", lock=False) as run:
        said = [e["text"] for e in run.events("start")]
    assert "The whole network keeps the limits, so nothing needs to be cut." in said
    assert result["peers"][0]["over"] is None
    first = next(c for c in result["candidates"] if c["name"] == "first blocks")
    assert first["params"] == result["peers"][0]["params"], "all blocks are the first blocks"


def test_without_a_limit_it_is_halved_and_first_blocks_can_be_left_out(tmp_path):
    result = go(tmp_path / "run", "baseline=false")
    half = result["limits"]["params"]["max"]
    assert result["params"] <= half < result["whole"]["params"] * 0.51
    assert [c["name"] for c in result["candidates"]] == ["found"]


def test_what_stands_beside_where_asked_for(tmp_path, monkeypatch):
    """Uniform slimming of the whole network as it was tuned, and the shape found from scratch."""
    taught, before = {}, Session.plain

    def spied(self, arch, settings, stage, weights=None, teacher=None):
        if stage.startswith("peer-"):
            taught[stage] = arch, settings.lr, {k: t.clone() for k, t in weights.state_dict().items()}, teacher
        return before(self, arch, settings, stage, weights, teacher)

    monkeypatch.setattr(Session, "plain", spied)
    result = go(tmp_path / "run", "start.beside=true", "baseline=false", start="random:tiny", max_params="18k")
    _, slim, fresh = result["peers"]
    assert (slim["name"], fresh["name"]) == ("uniform-slimming", "training-from-scratch")
    assert 12_000 < slim["params"] <= 18_000 and fresh["params"] == result["params"]
    assert slim["epochs"] == fresh["epochs"] > 0 and slim["over"] is fresh["over"] is None
    arch, _, weights, teacher = taught["peer-uniform-slimming"]
    assert (arch.one("depth"), arch.one("embed")) == (4, 24), "all blocks and the whole stream"
    assert len(set(arch.many("heads"))) == len(set(arch.many("hidden"))) == 1
    tuned = teacher.network.state_dict()
    for i in range(4):
        norms = tuned[f"blocks.{i}.mlp.fc1.weight"].norm(dim=1) * tuned[f"blocks.{i}.mlp.fc2.weight"].norm(dim=0)
        kept = norms.argsort(descending=True, stable=True)[: arch.many("hidden")[i]]
        assert torch.equal(weights[f"blocks.{i}.mlp.fc1.weight"], tuned[f"blocks.{i}.mlp.fc1.weight"][kept])
    arch, lr, weights, teacher = taught["peer-training-from-scratch"]
    assert arch.to_dict() == result["arch"] and teacher is None and lr == 1e-3
    assert "uniform slimming" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")


def test_a_limit_under_which_nothing_can_be_slimmed_is_said(tmp_path):
    result = go(tmp_path / "run", "start.beside=true", "baseline=false", start="random:tiny", max_params="4.5k")
    assert [p["name"] for p in result["peers"]][1:] == ["training-from-scratch"]
    assert "not slimmed" in (tmp_path / "run" / "log.txt").read_text(encoding="utf-8")


def test_the_teacher_is_stored_whole_and_the_same_start_is_read_again(finished):
    """The run's copy, and networks it ended with, are starts of other runs."""
    copy = open_pretrained(str(finished.folder / "start"))
    assert copy.arch == open_pretrained("random:tiny").arch
    cut = open_pretrained(str(finished.folder / "front" / "12k"))
    assert sum(t.numel() for t in cut.state.values()) <= 12_000


# -- bad input --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    """Weights of a small network, in a file."""
    folder = tmp_path_factory.mktemp("weights")
    torch.save(VisionTransformer(**TINY).state_dict(), folder / "other.pt")
    return folder


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "Method 'tailor' needs a pretrained network: --from timm:NAME"),
        ({"start": "random:huge"}, "Unknown random network 'random:huge'"),
        ({"start": "zoo:lion"}, "There is no pretrained network 'zoo:lion'; it can be: timm:NAME"),
        ({"start": "random:tiny", "weights": "w.pt"}, "--weights 'w.pt' does not go with 'random:tiny'"),
        (
            {"start": "timm:vit_tiny_patch16_224", "weights": "FILES/other.pt"},
            "not those of 'timm:vit_tiny_patch16_224'",
        ),
        ({"start": "timm:vit_tiny_patch16_224", "weights": "FILES/none.pt"}, "none.pt"),
        ({"start": "auto", "weights": "w.pt"}, "--weights 'w.pt' goes with a named network, not with --from auto"),
        (
            {"start": "random:tiny", "image_size": 9},
            "reads patches of 2 px, which 9x9 px do not suit: use --image-size 8",
        ),
        ({"start": "random:tiny", "image_size": 1}, "use --image-size 2"),
        ({"start": "random:tiny", "max_params": "500"}, "has params <= 500: the smallest has "),
        ({"start": "random:tiny", "max_macs": "1k"}, "has macs <= 1k: the smallest has "),
        ({"start": "random:tiny", "max_latency": "0.001ms"}, "has latency <= .*: the smallest has "),
        ({"start": "random:tiny", "min_params": "1M"}, "has params >= 1M: the largest has "),
        (
            {"start": "random:tiny", "front": "12k,500"},
            "--front 500 is too small: the smallest network of the space has ",
        ),
        ({"start": "random:tiny", "front": "small"}, "Cannot read 'small'"),
        ({"start": "random:tiny", "settings": ["tailor.epochs=0"]}, "tailor.epochs and tailor.lr must be above 0"),
        ({"start": "random:tiny", "settings": ["tailor.layer_decay=0"]}, "tailor.layer_decay must be above 0"),
        ({"settings": ["start.network=auto"]}, "start.network of a recipe cannot be 'auto'"),
    ],
    ids=lambda v: v if isinstance(v, str) else " ".join(map(str, v)),
)
def test_every_mistake_is_one_sentence_before_anything_is_trained(options, message, files, tmp_path):
    options = {k: v.replace("FILES", str(files)) if isinstance(v, str) else v for k, v in options.items()}
    with pytest.raises(TailorError, match=message) as caught:
        tailorvit.run("tailor", data="digits", out=tmp_path / "run", progress="quiet", **options)
    assert "\n" not in str(caught.value) and not (tmp_path / "run").exists()


# -- auto -------------------------------------------------------------------------------------------------------------


def notes(folder: Path) -> list[str]:
    with Run.open(folder, lock=False) as run:
        return [e["text"] for e in run.events("start")]


def test_auto_takes_what_is_at_hand_by_size_and_budget(tmp_path, monkeypatch, capsys):
    asked = []

    def fake(size, params):
        asked.append((size, params))
        return open_pretrained("random:tiny"), "Starts from random:tiny (made up)."

    monkeypatch.setattr(api, "first_at_hand", fake)
    tailorvit.run(
        start="auto", image_size=8, max_params="18k", tiny=True, out=tmp_path / "run", settings=QUICK, progress="plain"
    )
    assert asked == [((8, 8), 18_000)]
    assert "Starts from random:tiny (made up)." in capsys.readouterr().out
    assert "Starts from random:tiny (made up)." in notes(tmp_path / "run")
    assert json.loads((tmp_path / "run" / "info.json").read_text())["note"] == "Starts from random:tiny (made up)."
    assert 'network = "random:tiny"' in (tmp_path / "run" / "recipe.toml").read_text(), "a resumed run does not choose"
    api.chosen_start(None, {"start": "auto"})
    assert asked[1:] == [((224, 224), None)]


def test_where_nothing_is_at_hand_the_run_is_the_one_without_a_start(tmp_path, monkeypatch):
    monkeypatch.setattr(api, "first_at_hand", lambda size, params: (None, "No pretrained network could be loaded: x."))
    options = {"data": "photos", "limits": {"max_params": "40k"}}
    for recipe, front in ((None, None), ("tailor", "20k")):
        found, rest, note = api.chosen_start(recipe, {**options, "start": "auto", "front": front})
        assert api.recipe_for(found, **rest) == api.recipe_for(**options)
        assert note.startswith("No pretrained network could be loaded: x; so the run goes on from scratch")
        assert note.count(".") == 1 and ("for one size only" in note) == (front is not None)
    assert api.chosen_start(None, {"start": "timm:vit"}) == (None, {"start": "timm:vit"}, "")


def test_auto_without_a_hub_says_why_at_once_and_goes_on(tmp_path, monkeypatch, capsys):
    from huggingface_hub import constants

    monkeypatch.setattr(libraries, "hub_reachable", lambda: False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    sets = [*QUICK, "s4.iterations=0", "train.epochs=1", "final.train.epochs=1"]
    result = tailorvit.run(start="auto", tiny=True, out=tmp_path / "run", settings=sets, progress="plain")
    (note,) = notes(tmp_path / "run")
    assert result["method"] == "s4" and "hub is out of reach" in note and note.endswith("goes on from scratch.")
    assert note in capsys.readouterr().out.replace("\n", " ")


# -- tiny forms and images of one's own -------------------------------------------------------------------------------


def test_the_tiny_form_keeps_what_the_user_brings():
    alone = api.recipe_for("tailor", front="2M", tiny=True)
    assert (alone.start.network, alone.data.source, alone.tailor.front) == ("random:tiny", "digits", [])
    assert alone.tailor.epochs <= 2 and alone.limits == {} and alone.data.image_size == 8
    brought = api.recipe_for(None, start="random:tiny", front="12k", limits={"max_params": "18k"}, tiny=True)
    assert brought.tailor.front == ["12k"] and brought.limits == {"max_params": "18k"}
    asked = api.recipe_for(None, start="random:tiny", image_size=12, tiny=True, settings=["tailor.epochs=4"])
    assert asked.data.image_size == 12 and asked.tailor.epochs == 4


def test_a_folder_of_pictures_with_a_network_from_a_file(tmp_path):
    """Patches of 7 px, so 32 px would not do; grey pictures among colour ones are no matter."""
    for colour, name in enumerate(("red", "green")):
        (tmp_path / "data" / name).mkdir(parents=True)
        for number in range(16):
            pixels = np.random.default_rng(number).integers(0, 120, (40, 48, 3), dtype=np.uint8)
            pixels[8:30, 8:30, colour] = 250
            image = Image.fromarray(pixels)
            (image if number else image.convert("L")).save(tmp_path / "data" / name / f"{number}.png")
    theirs = VisionTransformer(**{**TINY, "img_size": 28, "patch_size": 7, "global_pool": "avg"})
    torch.save(theirs.state_dict(), tmp_path / "w.pth")
    options = {"data": str(tmp_path / "data"), "tiny": True, "settings": ["train.batch=8"], "progress": "quiet"}
    result = tailorvit.run(start=f"{tmp_path / 'w.pth'}#heads=3", out=tmp_path / "run", **options)
    assert result["method"] == "tailor" and result["settings"]["image_size"] == [35, 35]
    assert result["settings"]["channels"] == 3 and result["data"]["classes"] == 2
    (scores,) = tailorvit.load(tmp_path / "run").predict([tmp_path / "data" / "red" / "1.png"])
    assert set(scores) == {"red", "green"}


def test_without_a_size_images_are_whole_patches_and_no_larger_than_the_network_knew():
    start = made()
    assert start.fitting_size((9, 7)) == (8, 8) and start.fitting_size((5, 1)) == (4, 2)
    assert start.fitting_size((500, 6)) == (8, 6)
