"""Method tailor with a Swin: nothing is lost by ordering, all stages are cut alike, and a run ends in a network."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from timm.models.swin_transformer import SwinTransformer
from torch import nn
from torch.nn import functional as F

import tailorvit
from tailorvit import api
from tailorvit.checkpoints.pretrained_swin import TINY, from_timm_swin
from tailorvit.checkpoints.starts import open_pretrained
from tailorvit.costs import Counter
from tailorvit.costs.limits import Limits
from tailorvit.costs.meter import Meter
from tailorvit.errors import TailorError
from tailorvit.export import export
from tailorvit.families import FAMILIES
from tailorvit.families.tailored_swin.order import logits, parts, refit, whole_arch
from tailorvit.methods.importance import CRITERIA, block_order, importance
from tailorvit.methods.tailor import PretrainedStart, even_shapes, fill, ordered, tailored_space
from tailorvit.report.reading import collect
from tailorvit.report.tailored import kept, section
from tailorvit.runs import Run
from tailorvit.train.teacher import Telling, token_difference

DATA = SimpleNamespace(image_size=(16, 16), channels=3, classes=list("abcde"))
FAMILY = FAMILIES["tailored-swin"]


def made(**kind) -> PretrainedStart:
    """A start whose every weight and bias matters; its third stage has windows of 2 on a map of 4."""
    torch.manual_seed(0)
    model = SwinTransformer(**{**TINY, "window_size": (4, 4, 2, 2), **kind})
    rng = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.2 * torch.randn(p.shape, generator=rng))
    return PretrainedStart(from_timm_swin("timm:test", model))


def whole_of(start: PretrainedStart, data=DATA):
    model = start.network(data, seed=0).eval()
    with torch.no_grad():
        model.head.fc.weight.add_(torch.randn(model.head.fc.weight.shape, generator=torch.Generator().manual_seed(1)))
    return model


def batches(count: int = 2, side: int = 16):
    rng = torch.Generator().manual_seed(2)
    return [(torch.randn(8, 3, side, side, generator=rng), torch.randint(0, 5, (8,), generator=rng))] * count


def close(found, wanted) -> None:
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)


# -- the ordered network ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [16, 32, 8])
def test_order_and_supernet_keep_the_function_of_the_whole(size):
    start, data = made(), SimpleNamespace(**{**vars(DATA), "image_size": (size, size)})
    whole = whole_of(start, data)
    network, blocks = ordered(whole, batches(side=size))
    assert sorted(blocks) == list(range(7)) and {0, 6} <= set(blocks[:4]), "every stage keeps a block"
    space = start.space(data).with_settings(order=tuple(blocks))
    supernet = FAMILY.supernet(space).eval()
    fill(supernet, network)
    (x, _), *_ = batches(1, size)
    with torch.no_grad():
        wanted = whole(x)
        assert wanted.std() > 0.1
        close(network(x), wanted)
        close(supernet(x), wanted)
        narrow = space.largest().replace(**{"embed.2": space["embed.2"].choices[0], "embed.4": 32})
        for arch in (space.largest(), space.smallest(), narrow):
            close(FAMILY.extract(supernet, arch).eval()(x), supernet(x, arch))
    for mine, theirs in zip(parts(network).blocks, parts(whole).blocks, strict=True):
        assert not torch.equal(mine.mlp.fc1.weight, theirs.mlp.fc1.weight), "something was ordered in every block"
    assert not torch.equal(network.patch_embed.proj.weight, whole.patch_embed.proj.weight), "channels too"
    counter = Counter("tailored-swin", dict(space.settings))
    assert whole_arch(network) == space.largest()
    assert counter.params(space.largest()) == sum(p.numel() for p in network.parameters())


@torch.no_grad()
def test_blocks_that_do_nothing_are_given_up_first_and_a_stage_keeps_one():
    model = whole_of(made())
    for b in (2, 3, 6):
        block = parts(model).blocks[b]
        for p in (*block.attn.proj.parameters(), *block.mlp.fc2.parameters()):
            p.zero_()
    order = block_order(model, [(x, model(x).argmax(-1)) for x, _ in batches()])
    assert set(order[-2:]) == {2, 3} and 6 in order[:4]
    (x, _), *_ = batches(1)
    close(logits(model, x, [b for b in range(7) if b not in (2, 3)]), model(x))


@pytest.mark.parametrize("criterion", CRITERIA)
def test_dead_parts_come_last_and_nothing_is_changed(criterion):
    model = whole_of(made())
    dead = {0: 3, 1: 5, 2: 9, 3: 11}
    with torch.no_grad():
        for b in parts(model).blocks:
            b.mlp.fc1.weight[7], b.mlp.fc1.bias[7], b.mlp.fc2.weight[:, 7] = 0, 0, 0
        for s, channel in dead.items():
            _silence(model, s, channel)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    found = importance(model, batches(), criterion)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    orders = found.orders()
    assert all(hidden[-1] == 7 for hidden in orders.hidden)
    assert [len(heads) for heads in orders.heads] == [1, 2, 2, 4, 4, 4, 8]
    assert [len(stream) for stream in orders.streams] == [8, 16, 32, 64]
    assert [stream[-1] for stream in orders.streams] == list(dead.values())


def _silence(model: nn.Module, stage: int, channel: int) -> None:
    """Nothing writes to this channel of a stage, and no block reads it."""
    found, before = parts(model), model.layers[stage].downsample
    for weight in (before.reduction.weight,) if stage else (model.patch_embed.norm.weight, model.patch_embed.norm.bias):
        weight[channel] = 0
    for block, own in zip(found.blocks, found.stages, strict=True):
        if own == stage:
            for layer in (block.attn.qkv, block.mlp.fc1):
                layer.weight[:, channel] = 0
            for layer in (block.attn.proj, block.mlp.fc2):
                layer.weight[channel], layer.bias[channel] = 0, 0


def test_taylor_is_the_change_of_the_loss_to_first_order():
    """Scaling a channel where norms read it, a merge's among them, changes the loss as its score says."""
    model = whole_of(made()).double()
    x, y = (t[:1] for t in batches(1)[0])
    x = x.double()
    scores, share = importance(model, [(x, y)], "taylor").streams, 1e-5
    found = parts(model)

    def loss():
        with torch.no_grad():
            return float(torch.nn.functional.cross_entropy(model(x), y))

    for stage, channel in ((0, 2), (1, 9), (2, 30), (3, 1)):
        whole, total = loss(), 0.0
        for norm in found.norms[stage]:
            handle = norm.register_forward_pre_hook(_scaled(channel, found.widths[stage], 1 - share))
            total += abs(loss() - whole) / share
            handle.remove()
        assert total == pytest.approx(float(scores[stage][channel]), rel=0.05, abs=1e-4)


def _scaled(channel, width, by):
    def hook(module, given):
        given[0][..., channel::width] *= by  # in place: the stream itself, not only what the norm reads of it

    return hook


# -- even shapes ------------------------------------------------------------------------------------------------------

SWIN_T = {
    "depth": [2, 2, 6, 2],
    "embed": [96, 192, 384, 768],
    "heads": [3, 6, 12, 24],
    "hidden": [384, 768, 1536, 3072],
}


def test_even_shapes_fill_the_limit_with_the_same_share_of_every_stage():
    space = tailored_space(FAMILY.arch(SWIN_T), {"image_size": (224, 224), "classes": 102})
    for limits, metric in (
        ({"max_params": 6e6}, "params"),
        ({"max_params": 14e6}, "params"),
        ({"max_macs": 1e9}, "macs"),
    ):
        meter = Meter.for_space(space, Limits.of(**limits))
        shapes = even_shapes(space, meter)
        assert [shapes[0].one(f"depth.{s}") for s in range(1, 5)] == [2, 2, 6, 2], "all blocks come first"
        for arch in shapes:
            top = next(iter(limits.values()))
            assert space.contains(arch) and 0.93 * top <= meter.cost(metric, arch) <= top
        first = shapes[0]
        shares = [int(first.one(f"embed.{s}")) / SWIN_T["embed"][s - 1] for s in range(1, 5)]
        assert max(shares) - min(shares) < 0.05
        assert [len(set(first.many(f"hidden.{s}"))) for s in range(1, 5)] == [1] * 4


@torch.no_grad()
def test_maps_are_compared_channel_by_channel():
    start = made()
    network, blocks = ordered(whole_of(start), batches())
    space = start.space(DATA).with_settings(order=tuple(blocks))
    supernet = FAMILY.supernet(space).eval()
    fill(supernet, network)
    (x, _), *_ = batches(1)
    theirs = Telling(network)(x)
    mine = Telling(supernet)(x, space.largest())
    assert token_difference(mine.tokens, theirs.tokens) < 1e-6
    narrow = Telling(supernet)(x, space.smallest())
    assert narrow.tokens.shape[-1] < theirs.tokens.shape[-1] and token_difference(narrow.tokens, theirs.tokens) > 0.01
    close(narrow.logits, supernet(x, space.smallest()))
    with pytest.raises(TailorError, match="cannot be compared"):
        token_difference(theirs.tokens[:, :1], theirs.tokens)


@pytest.mark.parametrize("size", [16, 32])
@torch.no_grad()
def test_a_cut_swin_follows_the_whole_once_it_is_refitted(size):
    start, data = made(), SimpleNamespace(**{**vars(DATA), "image_size": (size, size)})
    rng = torch.Generator().manual_seed(3)
    images = [F.interpolate(torch.randn(24, 3, 4, 4, generator=rng), size, mode="bilinear") for _ in range(4)]
    network, blocks = ordered(whole_of(start, data), batches(side=size))
    space = start.space(data).with_settings(order=tuple(blocks))
    supernet = FAMILY.supernet(space).eval()
    fill(supernet, network)

    def far(cut: nn.Module) -> float:
        mine, theirs = (model.forward_features(images[3]) for model in (cut, network))
        return float((mine - theirs[..., : mine.shape[-1]]).square().mean())

    same = FAMILY.extract(supernet, space.largest()).eval()
    refit(same, network, blocks, images[:3])
    assert far(same) < 1e-6, "nothing was lost"
    few = {f"hidden.{s}": (space[f"hidden.{s}"].choices[0],) * n for s, n in ((1, 1), (2, 2), (3, 3), (4, 1))}
    hidden = space.largest().replace(**few)
    shallow = space.largest().replace(**{"depth.3": 2, "heads.3": (4, 4), "hidden.3": (128, 128)})
    for arch in (hidden, shallow, space.smallest()):
        cut = FAMILY.extract(supernet, arch).eval()
        before = far(cut)
        refit(cut, network, blocks, images[:3])
        assert far(cut) < 0.8 * before, arch


# -- a whole run ------------------------------------------------------------------------------------------------------

QUICK = ["analysis.images=0", "analysis.mistakes=0", "train.batch=50", "final.train.batch=50"]


def go(folder: Path, *sets: str, **options):
    return tailorvit.run(
        "tailor", out=folder, tiny=True, start="random:tiny-swin", settings=[*QUICK, *sets], progress="quiet", **options
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return go(tmp_path_factory.mktemp("tailor") / "run", max_params="40k", front="25k")


def test_result_and_networks(finished):
    facts = json.loads((finished.folder / "result.json").read_text())
    whole = facts["whole"]
    assert whole["network"] == "random:tiny-swin" and sorted(whole["blocks"]) == list(range(7))
    assert facts["arch"]["family"] == "tailored-swin" and facts["params"] <= 40_000 and facts["baseline"] is None
    assert facts["settings"]["window"] == [2, 2, 2, 1], "windows shrink with the images, from 16 to 8 px"
    (row,) = facts["sizes"]
    for place, params in ((finished.folder, facts["params"]), (finished.folder / row["folder"], row["params"])):
        network = tailorvit.load(place)
        assert sum(p.numel() for p in network.parameters()) == params <= 40_000
        assert sum(network.predict([np.zeros((8, 8), np.uint8)])[0].values()) == pytest.approx(1, abs=1e-5)
    assert [facts["arch"][f"depth.{s}"] for s in range(1, 5)] == [1, 2, 3, 1], "all blocks are kept"
    assert [c["name"] for c in facts["candidates"]] == ["found"]
    with Run.open(finished.folder, lock=False) as run:
        assert {e["stage"] for e in run.epochs()} == {"whole", "final", "final-25k"}
        said = [e["text"] for e in run.events("start")]
        assert any("1-2-3-1 blocks of 8-16-32-64 channels" in text for text in said)
        assert [e["text"] for e in run.events("baseline")] == [
            "The first blocks of this network are no network of their own, so none compete."
        ]


def test_the_report_tells_what_was_kept_of_every_stage(finished):
    facts = collect(finished.folder)
    assert [row.stage for row in kept(facts)] == [0, 1, 1, 2, 2, 2, 3]
    text = section(facts)
    assert "7 of 7 blocks" in text and "of 8-16-32-64 channels" in text and "tailored-kept" in text
    assert "cannot be shown" not in (finished.folder / "report.html").read_text(encoding="utf-8")


def test_the_delivered_network_goes_to_onnx(finished, tmp_path):
    done = export(finished.folder, "onnx", tmp_path / "out")
    assert done.facts["max_difference"] <= 1e-3 and (tmp_path / "out" / "network.onnx").is_file()


def test_under_a_latency_limit_short_trainings_choose_the_shape(tmp_path, monkeypatch):
    monkeypatch.setattr(Meter, "_measure", lambda self, metric, arch: 1e-8 * self.counter.macs(arch))
    result = go(tmp_path / "run", max_latency="3ms")
    with Run.open(tmp_path / "run", lock=False) as run:
        shapes = [t for t in run.trials() if t["stage"].startswith("shape-")]
    assert len({t["arch"].one("depth.3") for t in shapes}) > 1 and all(t["macs"] <= 3e5 for t in shapes)
    # Blocks that are left out leave the others in their places, with the shift they had.
    network = tailorvit.load(tmp_path / "run").model
    order, depth = result["whole"]["blocks"], result["arch"]["depth.3"]
    places = sorted(b - 3 for b in [b for b in order if 3 <= b < 6][:depth])
    assert [network.shapes[2].place(i) for i in range(depth)] == places
    rows = [row.block for row in kept(collect(tmp_path / "run")) if row.heads is not None]
    assert [b - 3 for b in rows if 3 <= b < 6] == places


def test_a_supernet_is_searched_where_asked_for(tmp_path):
    result = go(tmp_path / "run", "tailor.search=supernet", max_params="40k")
    with Run.open(tmp_path / "run", lock=False) as run:
        trials = run.trials("search")
        assert trials and all(t["params"] <= 40_000 for t in trials)
    assert result["params"] <= 40_000
    assert "cannot be shown" not in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")


def test_the_copy_in_the_run_is_a_start_and_a_finished_swin_is_for_finetune(finished):
    assert open_pretrained(str(finished.folder / "start")).arch == open_pretrained("random:tiny-swin").arch
    with pytest.raises(TailorError, match="family tailored-swin, which is not tailored further"):
        open_pretrained(str(finished.folder))


def test_a_delivered_network_is_fine_tuned_on(finished, tmp_path):
    tuned = tailorvit.finetune(
        finished.folder, data="digits", out=tmp_path / "tuned", tiny=True, settings=QUICK[:2], progress="quiet"
    )
    assert tuned["params"] == json.loads((finished.folder / "result.json").read_text())["params"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image_size": 4}, "reads patches of 1 px, at least 5 a side, which 4x4 px do not suit: use --image-size 5"),
        ({"max_params": "500"}, "has params <= 500: the smallest has "),
        ({"weights": "w.pt"}, "--weights 'w.pt' does not go with 'random:tiny-swin'"),
    ],
)
def test_every_mistake_is_one_sentence_before_anything_is_trained(options, message, tmp_path):
    with pytest.raises(TailorError, match=message) as caught:
        tailorvit.run(
            "tailor", data="digits", start="random:tiny-swin", out=tmp_path / "run", progress="quiet", **options
        )
    assert "\n" not in str(caught.value) and not (tmp_path / "run").exists()


def test_the_tiny_form_has_images_of_whole_windows():
    assert api.recipe_for(None, start="random:tiny-swin", tiny=True).data.image_size == 8
