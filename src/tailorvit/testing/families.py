"""The contract of families: one network holds every architecture of a space, is counted exactly and is exportable."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from tailorvit.arch import Arch
from tailorvit.costs import Counter
from tailorvit.elastic.slicing import prefix
from tailorvit.errors import TailorError
from tailorvit.export import Card, export, load, save_network
from tailorvit.export.formats import traced_program
from tailorvit.families import FAMILIES, Family, named_arch, with_settings
from tailorvit.families.network import PlainNetwork
from tailorvit.families.resize import resized
from tailorvit.rng import generator
from tailorvit.space import Space

OUTLINE = ("stage", "block", "tokens", "embed", "params", "macs")  # columns every outline has
SMALL_SIDE = 32  # pixels; spaces for larger images are not run here
TINY_SIDE = 8


def sample(space: Space, n: int, *path: str) -> list[Arch]:
    """Architectures of a space, the same every time."""
    rng = generator(0, "families", *path)
    return [space.sample(rng) for _ in range(n)]


def counter(space: Space) -> Counter:
    """Exact costs in a space."""
    return Counter(space.family, dict(space.settings))


def close(a: Tensor, b: Tensor) -> None:
    """Equal to float tolerance."""
    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def equal(a: Tensor, b: Tensor) -> None:
    """Equal to the bit."""
    torch.testing.assert_close(a, b, atol=0, rtol=0)


def stirred(model: nn.Module) -> nn.Module:
    """The network with weights at which every part matters: at initialisation biases are zero and tables tiny."""
    generator_ = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=generator_))
    return model


class FamilyContract:
    """Inherit, name the family, and pytest runs the contract on its small spaces.

    The family needs a named space for images of at most 32 px. ``variants`` are shared settings to try besides those of
    its named spaces, by a name for messages. ``without_effect`` are ends of the names of parameters that cannot change
    the output, such as a bias that the next norm takes out again.
    """

    name: ClassVar[str]
    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    without_effect: ClassVar[tuple[str, ...]] = ()

    # -- tools --------------------------------------------------------------------------------------------------------

    @property
    def family(self) -> Family:
        """The record under test."""
        return FAMILIES[self.name]

    def spaces(self) -> list[Space]:
        """The small named spaces."""
        found = [s for s in self.family.spaces.values() if max(dict(s.settings)["image_size"]) <= SMALL_SIDE]
        assert found, f"the family '{self.name}' has no named space for images of at most {SMALL_SIDE} px"
        return [with_settings(space) for space in found]

    def smallest_space(self) -> Space:
        """The named space for the smallest images."""
        return min(self.spaces(), key=lambda s: max(dict(s.settings)["image_size"]))

    def supernet(self, space: Space) -> Any:
        """A supernet at which every weight matters."""
        torch.manual_seed(0)
        return stirred(self.family.supernet(space)).eval()

    def images(self, space: Space, n: int = 2) -> Tensor:
        """Random images for a space."""
        shared = self.family.settings(dict(space.settings))
        return torch.randn(n, shared.channels, *shared.image_size, generator=torch.Generator().manual_seed(1))

    def check_agreement(self, space: Space, model: Any, archs: list[Arch]) -> None:
        """Sliced, grouped and extracted agree, and the extracted network has the counted size."""
        count, x = counter(space), self.images(space)
        outputs = [model(x, arch) for arch in archs]
        assert torch.stack(outputs).std(0).max() > 1e-2, "the architectures differ, so should their outputs"
        for arch, output in zip(archs, outputs, strict=True):
            plain = self.family.extract(model, arch).eval()
            close(plain(x), output)
            if hasattr(model, "grouped"):
                close(model.grouped(x, model.group(arch), model.switches(arch)), output)
            assert sum(p.numel() for p in plain.parameters()) == count.params(arch)

    def torch_macs(self, space: Space, arch: Arch) -> float:
        """What torch's counter says; on the meta device, because fused attention counts as nothing on a CPU."""
        shared = counter(space).shared
        # Relative position is counted in its factored form; families with one execution take none, or ignore it.
        takes_execution = "execution" in inspect.signature(self.family.build).parameters
        how = {"execution": "factored"} if takes_execution else {}
        with torch.device("meta"), torch.enable_grad():  # torch's counter follows gradients
            model = self.family.build(shared, arch, **how).eval()
            x = torch.empty(1, shared.channels, *shared.image_size)
            with FlopCounterMode(display=False) as flops:
                model(x)
        return float(flops.get_total_flops()) / 2

    # -- the record ---------------------------------------------------------------------------------------------------

    def test_record(self) -> None:
        """The record describes itself, and its named spaces and architectures are its own."""
        family = self.family
        assert family.name == self.name and family.summary and family.genes
        for space in family.spaces.values():
            assert space.family == self.name and set(space.keys) == set(family.genes)
        for key, named in family.archs.items():
            assert named_arch(key) == named and named.source
            assert Counter(self.name, named.settings).params(named.arch) > 0

    def test_architectures_are_json(self) -> None:
        """An architecture reads back from its JSON, and from a table as a recipe writes it."""
        for space in self.family.spaces.values():
            for arch in [space.smallest(), space.largest(), *sample(space, 20, "json")]:
                assert space.contains(arch)
                back = Arch.from_json(arch.to_json())
                assert back == arch and hash(back) == hash(arch) and back.to_json() == arch.to_json()
                assert self.family.arch(arch.to_dict()) == arch

    def test_an_unknown_setting_is_named(self) -> None:
        """With the known ones."""
        with pytest.raises(TailorError, match=r"no setting 'colour'; known: .*classes"):
            with_settings(self.smallest_space(), colour=3)

    def test_automatic_spaces_and_baselines_grow(self) -> None:
        """From under 10,000 to over 100 million parameters, in more than 20 steps, roughly growing."""
        settings = dict(self.smallest_space().settings)
        count = Counter(self.name, settings)
        for growing in ([s.largest() for s in self.family.auto(settings)], list(self.family.baseline(settings))):
            sizes = [count.params(a) for a in growing]
            assert len(sizes) > 20 and sizes[0] < 10_000 and sizes[-1] > 100_000_000
            # The search for the largest that fits gives up after 24 misses in a row, so nothing later may be smaller
            # than the smallest of those.
            assert all(min(sizes[i + 24 :]) >= min(sizes[i : i + 24]) for i in range(len(sizes) - 24))

    def test_tiny_forms_are_small_and_keep_their_dimensions(self) -> None:
        """Every named space shrinks to 8 px digits, under 200,000 parameters."""
        for name, space in self.family.spaces.items():
            small = self.family.shrink(space)
            assert small.keys == space.keys and [d.scope for d in small.dims] == [d.scope for d in space.dims], name
            assert counter(small).params(small.largest()) < 200_000, name
            assert all(len(d.choices) <= len(f.choices) for d, f in zip(small.dims, space.dims, strict=True)), name
        assert self.family.arch({"family": self.name, **self.family.tiny}).family == self.name

    # -- one network, several executions ------------------------------------------------------------------------------

    @torch.no_grad()
    def test_supernet_and_extracted_network_agree(self) -> None:
        """``model(x, arch)`` equals ``extract(model, arch)(x)``; where the supernet runs in groups, these too."""
        for space in self.spaces():
            tiny = max(dict(space.settings)["image_size"]) <= TINY_SIDE
            self.check_agreement(space, self.supernet(space), sample(space, 100 if tiny else 20, "agree"))

    @torch.no_grad()
    def test_other_settings_agree_and_are_counted(self) -> None:
        """The same with the settings of ``variants``."""
        for settings in self.variants.values():
            space = with_settings(self.smallest_space(), **settings)
            archs = sample(space, 4, "variants")
            self.check_agreement(space, self.supernet(space), archs)
            assert counter(space).macs(archs[0]) == self.torch_macs(space, archs[0]), settings

    @torch.no_grad()
    def test_no_architecture_means_the_largest(self) -> None:
        """The supernet has exactly the parameters of its largest network."""
        for space in self.spaces():
            model, x, largest = self.supernet(space), self.images(space), space.largest()
            equal(model(x), model(x, largest))
            used = model.slices(largest)
            for key, p in model.named_parameters():
                assert prefix(p, *used[key]).numel() == p.numel(), f"{key} is larger than in the largest network"
            assert sum(p.numel() for p in model.parameters()) == counter(space).params(largest)

    def test_an_architecture_that_does_not_fit_is_refused(self) -> None:
        """Prefixes would silently run a smaller network."""
        space = self.smallest_space()
        tied = {key for pair in space.multiples for key in pair}
        free = next(d.key for d in space.dims if d.maximum is None and d.key not in tied)
        larger = space.shift({free: 1})
        with pytest.raises(TailorError, match="too small for the architecture"):
            self.supernet(space)(self.images(space), larger.largest())

    # -- the slice ----------------------------------------------------------------------------------------------------

    def test_gradients_reach_the_slice_and_nothing_else(self) -> None:
        """Every weight in use gets a gradient, no other does."""
        for space in self.spaces():
            model, x = self.supernet(space), self.images(space)
            for arch in [space.smallest(), *sample(space, 3, "gradients")]:
                model.zero_grad(set_to_none=True)
                model(x, arch).square().sum().backward()
                used = model.slices(arch)
                for key, p in model.named_parameters():
                    if key not in used:
                        assert p.grad is None or not p.grad.any(), f"{key} is not used by {arch}"
                        continue
                    inside = torch.zeros_like(p, dtype=torch.bool)
                    prefix(inside, *used[key])[...] = True
                    assert not p.grad[~inside].any(), f"gradient outside the slice of {key}"
                    assert p.grad[inside].any(), f"no gradient reaches {key}"

    @torch.no_grad()
    def test_weights_outside_the_slice_do_not_matter(self) -> None:
        """To the bit."""
        for space in self.spaces():
            model, x, arch = self.supernet(space), self.images(space), space.smallest()
            used, before, changed = model.slices(arch), model(x, arch), 0
            for key, p in model.named_parameters():
                inside = torch.zeros_like(p, dtype=torch.bool)
                if key in used:
                    prefix(inside, *used[key])[...] = True
                changed += int((~inside).sum())
                p[~inside] = 10 * torch.randn_like(p)[~inside]
            assert changed == sum(p.numel() for p in model.parameters()) - counter(space).params(arch) > 0
            equal(model(x, arch), before)

    @torch.no_grad()
    def test_weights_inside_the_slice_matter(self) -> None:
        """Every parameter in use changes the output."""
        space = self.smallest_space()
        model, x, arch = self.supernet(space), self.images(space), space.smallest()
        for key in model.slices(arch):
            p = dict(model.named_parameters())[key]
            before, old = model(x, arch), p.clone()
            p.add_(torch.randn_like(p))
            changed = not torch.allclose(model(x, arch), before, atol=1e-6)
            assert changed != key.endswith(self.without_effect or "-"), f"{key} changes nothing, or is said not to"
            p.copy_(old)

    # -- the plain network --------------------------------------------------------------------------------------------

    @torch.no_grad()
    def test_an_extracted_network_is_plain_and_owns_its_weights(self) -> None:
        """It has the modules of a built one, and does not feel what becomes of the supernet."""
        for space in self.spaces():
            model, x, arch = self.supernet(space), self.images(space), sample(space, 1, "plain")[0]
            plain = self.family.extract(model, arch).eval()
            built = self.family.build(self.family.settings(dict(space.settings)), arch)
            assert isinstance(plain, self.family.plain)
            assert {type(m) for m in plain.modules()} == {type(m) for m in built.modules()}, "elastic layers are left"
            before = plain(x)
            for p in model.parameters():
                p.zero_()
            equal(plain(x), before)

    def test_blocks_keep_their_drop_path(self) -> None:
        """A block's rate belongs to its place in the largest network."""
        for space in self.spaces():
            model = self.family.supernet(space, drop_path=0.3)
            plain = self.family.extract(model, space.smallest())
            rates = [m.rate for m in plain.modules() if hasattr(m, "rate")]
            most: list[Any] = [m.rate for m in model.modules() if hasattr(m, "rate")]
            rest = iter(most)
            assert all(rate in rest for rate in rates), "the rates of the blocks kept, in their order"
            assert max(most) == pytest.approx(0.3) and len(rates) < len(most)

    @torch.no_grad()
    def test_a_network_is_its_settings_and_its_weights(self) -> None:
        """``from_settings(model.settings)`` builds the same network."""
        space = self.smallest_space()
        model = stirred(
            self.family.build(self.family.settings(dict(space.settings)), sample(space, 1, "settings")[0])
        ).eval()
        assert isinstance(model, PlainNetwork)
        again = self.family.plain.from_settings(json.loads(json.dumps(model.settings))).eval()
        again.load_state_dict(model.state_dict())
        equal(again(self.images(space)), model(self.images(space)))

    @torch.no_grad()
    def test_resizing_keeps_the_weights(self) -> None:
        """At the same size the answers stay; at the next size that suits, the network runs."""
        space = self.smallest_space()
        model = stirred(self.family.build(self.family.settings(dict(space.settings)), space.largest())).eval()
        assert isinstance(model, PlainNetwork)
        if model.not_resizable:
            pytest.skip(model.not_resizable)
        x, side = self.images(space), max(model.settings["image_size"])
        equal(resized(model)(x), model(x))
        larger = next(s for s in range(side + 1, 40 * side) if model.suits(s))
        grown = resized(model, (larger, larger), classes=3).eval()
        assert grown(torch.randn(2, x.shape[1], larger, larger)).shape == (2, 3)

    # -- counting -----------------------------------------------------------------------------------------------------

    def test_macs_are_what_torch_counts(self) -> None:
        """For the smallest, the largest and some in between."""
        for space in self.spaces():
            for arch in [space.smallest(), space.largest(), *sample(space, 6, "macs")]:
                assert counter(space).macs(arch) == self.torch_macs(space, arch), arch

    def test_parts_and_blocks_sum_to_the_total(self) -> None:
        """The inventory by part, and the outline with what lies outside the blocks."""
        for space in self.spaces():
            count = counter(space)
            for arch in [space.smallest(), space.largest(), *sample(space, 10, "parts")]:
                parts, rows = count.parts(arch), self.family.outline(count.shared, arch)
                assert (sum(p.params for p in parts), sum(p.macs for p in parts)) == count.both(arch)
                rest = [p for p in parts if not p.part.startswith("blocks.")]
                assert sum(r["params"] for r in rows) + sum(p.params for p in rest) == count.params(arch)
                assert sum(r["macs"] for r in rows) + sum(p.macs for p in rest) == count.macs(arch)
                assert json.loads(json.dumps(rows)) == rows
                for row in rows:
                    assert set(OUTLINE) <= set(row), f"an outline has the columns {', '.join(OUTLINE)}"
                    assert min(row["params"], row["macs"], row["tokens"], row["embed"]) > 0

    def test_a_smaller_architecture_costs_less(self) -> None:
        """In parameters and MACs, for every dimension and block one choice lower."""
        for space in self.spaces():
            count = counter(space)
            for arch in sample(space, 50, "monotone"):
                params, macs = count.both(arch)
                for below in _one_lower(space, arch):
                    assert space.contains(below)
                    assert count.params(below) < params and count.macs(below) < macs
                assert count.params(space.smallest()) <= params <= count.params(space.largest())

    # -- pictures and exports -----------------------------------------------------------------------------------------

    @torch.no_grad()
    def test_attention_is_a_distribution_over_the_grid(self) -> None:
        """Weights of a query are positive and sum to one, and looking changes nothing."""
        if self.family.attention is None:
            pytest.skip("the family shows no attention")
        for space in self.spaces():
            arch = sample(space, 1, "attention")[0]
            plain, x = self.family.extract(self.supernet(space), arch).eval(), self.images(space, 3)
            before, found = plain(x), list(self.family.attention(plain, x))
            rows = self.family.outline(counter(space).shared, arch)
            attends = {(r["stage"], r["block"]) for r in rows if "heads" in r} or {
                (r["stage"], r["block"]) for r in rows
            }
            assert {(m.stage, m.block) for m in found} == attends
            assert len({m.name for m in found}) == len(found)
            for m in found:
                weights = m.weights()
                (groups, queries, _), keys = m.queries.shape, m.keys.shape[1]
                assert weights.shape == (3, groups, m.heads, queries, keys) and m.keys.shape == (groups, keys, 2)
                assert weights.min() >= 0
                close(weights.sum(-1), torch.ones(weights.shape[:-1]))
                places = {tuple(p) for p in m.queries.flatten(0, 1).tolist()}
                grid = {(r, c) for r in range(m.grid[0]) for c in range(m.grid[1])}
                # A lone query looks from nowhere; its keys are the grid.
                assert places >= grid if groups * queries > 1 else {tuple(k) for k in m.keys[0].tolist()} == grid
                assert keys == 1 or weights.std((0, 2)).max() > 1e-3, "images and heads differ, so should their maps"
            equal(plain(x), before)

    def network_folder(self, folder: Path) -> PlainNetwork:
        """A network of the smallest space, saved as a run saves it."""
        space = self.smallest_space()
        shared = self.family.settings(dict(space.settings))
        torch.manual_seed(0)
        model = self.family.build(shared, space.largest()).eval()
        assert isinstance(model, PlainNetwork)
        preprocessing = {"image_size": list(shared.image_size), "channels": shared.channels, "margin": 1.0}
        preprocessing |= {"mean": [0.5] * shared.channels, "std": [0.25] * shared.channels}
        classes = tuple(f"class {i}" for i in range(shared.classes))
        card = Card(space.largest(), dict(space.settings), classes, preprocessing, {"method": "none"})
        save_network(folder / "network", model, card)
        return model

    def test_saved_and_loaded_it_is_the_same(self, tmp_path: Path) -> None:
        """To the bit."""
        model, x = self.network_folder(tmp_path), self.images(self.smallest_space())
        loaded = load(tmp_path)  # not in inference mode: some CPUs convolve by other kernels with weights made there
        with torch.inference_mode():
            equal(loaded(x), model(x))

    def test_onnx_agrees(self, tmp_path: Path) -> None:
        """onnxruntime gives the same logits."""
        pytest.importorskip("onnxruntime")
        self.network_folder(tmp_path)
        assert export(tmp_path, "onnx", tmp_path / "onnx", images=8).facts["max_difference"] < 1e-4

    def test_the_traced_program_takes_any_batch(self) -> None:
        """One image, two and five; and it says so: libraries that lower it take its range at its word."""
        space = self.smallest_space()
        shared = self.family.settings(dict(space.settings))
        torch.manual_seed(0)
        model, x = self.family.build(shared, space.smallest()).eval(), self.images(space, 5)
        program = traced_program(model, (shared.channels, *shared.image_size))
        assert [(r.lower, r.upper > 1e6) for r in program.range_constraints.values()] == [(1, True)]
        run = program.module()
        with torch.inference_mode():
            for count in (1, 2, 5):
                torch.testing.assert_close(run(x[:count]), model(x[:count]), atol=1e-4, rtol=1e-4)

    def test_timm_opens_it_and_gives_feature_maps(self, tmp_path: Path) -> None:
        """The same logits, and maps from large to small."""
        timm = pytest.importorskip("timm")
        import tailorvit.for_timm  # noqa: F401

        model, x = self.network_folder(tmp_path), self.images(self.smallest_space())
        place = export(tmp_path, "timm", tmp_path / "timm", check=False).path
        opened = timm.create_model(f"local-dir:{place}", pretrained=True).eval()
        maps = timm.create_model(f"local-dir:{place}", pretrained=True, features_only=True).eval()
        with torch.inference_mode():
            torch.testing.assert_close(opened(x), model(x), atol=1e-4, rtol=1e-4)
            sides = [m.shape[-2:] for m in maps(x)]
        rows = self.family.outline(counter(self.smallest_space()).shared, load(tmp_path).card.arch)
        stages = {row["stage"] for row in rows} - {None}
        assert len(sides) == (len(stages) if stages else min(3, len(rows)))
        assert sides == sorted(sides, reverse=True)


def _one_lower(space: Space, arch: Arch) -> Iterator[Arch]:
    """Every architecture one step below: one dimension, or one block of it, at the next lower choice."""
    uneven = FAMILIES[space.family].uneven
    for dim in (d for d in space.dims if d.name not in uneven):
        lower = dict(zip(dim.choices[1:], dim.choices, strict=False))
        if dim.scope == "block":
            values = arch.many(dim.key)
            for i, v in enumerate(values):
                if v in lower:
                    yield arch.replace(**{dim.key: (*values[:i], lower[v], *values[i + 1 :])})
        elif arch.one(dim.key) in lower:
            yield space.with_value(arch, dim.key, lower[arch.one(dim.key)], generator(0))
