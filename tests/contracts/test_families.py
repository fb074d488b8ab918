"""The contract of every family: a supernet equals its extracted sub-networks, and they are counted exactly."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from family_variants import VARIANTS
from torch.utils.flop_counter import FlopCounterMode

from tailorvit.arch import Arch
from tailorvit.costs import Counter
from tailorvit.elastic.slicing import prefix
from tailorvit.errors import TailorError
from tailorvit.families import FAMILIES, named_arch, named_space, with_fixed
from tailorvit.plain.relative import EXECUTIONS
from tailorvit.rng import generator


def small(space, side):
    return max(dict(space.fixed)["image_size"]) <= side


# Small spaces of every family.
SPACES = {name: [n for n, s in family.spaces.items() if small(s, 32)] for name, family in FAMILIES.items()}
NAMES = [n for names in SPACES.values() for n in names]
VARIED = [(SPACES[f][0], fixed) for f, rows in VARIANTS.items() for fixed in rows.values()]
VARIED_IDS = [f"{f}-{name}" for f, rows in VARIANTS.items() for name in rows]

spaces = pytest.mark.parametrize("name", NAMES)
variants = pytest.mark.parametrize(("name", "fixed"), VARIED, ids=VARIED_IDS)


def how(space, execution):
    """The execution of relative position, for a family that has several."""
    return {"execution": execution} if executions(space) else {}


def executions(space):
    return EXECUTIONS if "macs_factored" in FAMILIES[space.family].readings else ()


@cache
def supernet(name, execution="fused", **fixed):
    """A space and its supernet with noise on all weights: at first biases are zero and tables tiny."""
    space = with_fixed(named_space(name), **fixed)
    torch.manual_seed(0)
    model = FAMILIES[space.family].supernet(space, **how(space, execution)).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return space, model


def fresh_supernet(name):
    """As above, for a test that changes the weights."""
    supernet.cache_clear()
    space, model = supernet(name)
    supernet.cache_clear()
    return space, model


def images(space, n=2):
    frame = FAMILIES[space.family].frame(dict(space.fixed))
    return torch.randn(n, frame.channels, *frame.image_size, generator=torch.Generator().manual_seed(1))


def sample(space, n, *path):
    rng = generator(0, "families", *path)
    return [space.sample(rng) for _ in range(n)]


def counter(space):
    return Counter(space.family, dict(space.fixed))


def close(a, b):
    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def check_executions(space, model, archs):
    """Sliced, grouped and extracted agree, and the extracted network has the counted size."""
    family, count, x = FAMILIES[space.family], counter(space), images(space)
    outputs = [model(x, arch) for arch in archs]
    assert torch.stack(outputs).std(0).max() > 1e-2, "the architectures differ, so should their outputs"
    for arch, sliced in zip(archs, outputs, strict=True):
        plain = family.extract(model, arch).eval()
        close(plain(x), sliced)
        if hasattr(model, "grouped"):
            close(model.grouped(x, model.group(arch), model.switches(arch)), sliced)
        assert sum(p.numel() for p in plain.parameters()) == count.params(arch)


def measured_macs(space, arch, execution):
    family, frame = FAMILIES[space.family], counter(space).frame
    with torch.device("meta"):  # on the CPU fused attention is counted as nothing
        model = family.build(frame, arch, **how(space, execution)).eval()
        x = torch.empty(1, frame.channels, *frame.image_size)
        with FlopCounterMode(display=False) as flops:
            model(x)
    return flops.get_total_flops() / 2


def test_every_family_is_tested():
    assert all(SPACES.values()), f"no small space: {SPACES}"
    assert set(VARIANTS) == set(FAMILIES)


# -- one network, several executions ----------------------------------------------------------------------------------


@spaces
@torch.no_grad()
def test_sliced_grouped_and_extracted_agree(name):
    space, model = supernet(name)
    check_executions(space, model, sample(space, 170 if small(space, 8) else 30, name))


@variants
@torch.no_grad()
def test_variants_agree_and_are_counted(name, fixed):
    space, model = supernet(name, **fixed)
    archs = sample(space, 4, name)
    check_executions(space, model, archs)
    for execution in executions(space):
        if execution == "fused" and 1 in counter(space).frame.grid:
            continue  # torch multiplies by the single row instead of taking a product, and counts nothing
        assert counter(space).readings(archs[0])[f"macs_{execution}"] == measured_macs(space, archs[0], execution)


@spaces
@torch.no_grad()
def test_no_arch_means_the_largest(name):
    space, model = supernet(name)
    x = images(space)
    largest = space.largest()
    torch.testing.assert_close(model(x), model(x, largest), atol=0, rtol=0)
    used = model.slices(largest)
    for key, p in model.named_parameters():
        assert prefix(p, *used[key]).numel() == p.numel(), f"{key} is larger than the largest network"
    assert sum(p.numel() for p in model.parameters()) == counter(space).params(largest)


@pytest.mark.parametrize("execution", EXECUTIONS)
@torch.no_grad()
def test_supernet_executions_agree(execution):
    for name in SPACES["vit"][:1]:
        space, model = supernet(name)
        _, other = supernet(name, execution)
        other.load_state_dict(model.state_dict())
        arch = sample(space, 1, name)[0]
        close(other(images(space), arch), model(images(space), arch))


# -- the slice --------------------------------------------------------------------------------------------------------


@spaces
def test_gradients_reach_only_the_slice(name):
    space, model = supernet(name)
    x = images(space)
    for arch in [space.smallest(), *sample(space, 3, name, "gradients")]:
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
    model.zero_grad(set_to_none=True)


@spaces
@torch.no_grad()
def test_weights_outside_the_slice_do_not_matter(name):
    space, model = fresh_supernet(name)
    x, arch = images(space), space.smallest()
    used, before = model.slices(arch), model(x, arch)
    changed = 0
    for key, p in model.named_parameters():
        inside = torch.zeros_like(p, dtype=torch.bool)
        if key in used:
            prefix(inside, *used[key])[...] = True
        changed += int((~inside).sum())
        p[~inside] = 10 * torch.randn_like(p)[~inside]
    assert changed == sum(p.numel() for p in model.parameters()) - counter(space).params(arch) > 0
    torch.testing.assert_close(model(x, arch), before, atol=0, rtol=0)


@pytest.mark.parametrize("name", [names[0] for names in SPACES.values()])
@torch.no_grad()
def test_weights_inside_the_slice_matter(name):
    space, model = fresh_supernet(name)
    x, arch = images(space), space.smallest()
    for key in model.slices(arch):
        p = dict(model.named_parameters())[key]
        before, copy = model(x, arch), p.clone()
        p.add_(torch.randn_like(p))
        assert not torch.allclose(model(x, arch), before, atol=1e-6), f"{key} changes nothing"
        p.copy_(copy)


# -- the extracted network --------------------------------------------------------------------------------------------


@spaces
@torch.no_grad()
def test_extracted_network_is_plain_and_owns_its_weights(name):
    space, model = fresh_supernet(name)
    x, arch = images(space), sample(space, 1, name)[0]
    plain = FAMILIES[space.family].extract(model, arch).eval()
    homes = {type(m).__module__ for m in plain.modules()}
    assert all(h.startswith(("torch.nn.", "tailorvit.plain.")) for h in homes), homes
    before = plain(x)
    for p in model.parameters():
        p.zero_()
    torch.testing.assert_close(plain(x), before, atol=0, rtol=0)


@spaces
def test_blocks_keep_their_drop_path(name):
    space = named_space(name)
    family = FAMILIES[space.family]
    arch = space.smallest()
    model = family.supernet(space, drop_path=0.3)
    plain = family.extract(model, arch)
    rates = [m.rate for m in plain.modules() if hasattr(m, "rate")]
    largest = [m.rate for m in model.modules() if hasattr(m, "rate")]
    rest = iter(largest)
    assert all(rate in rest for rate in rates), "the rates of the extracted blocks, in their order"
    assert max(largest) == pytest.approx(0.3) and len(rates) < len(largest)


# -- counting ---------------------------------------------------------------------------------------------------------


@spaces
def test_macs_are_what_torch_counts(name):
    space = named_space(name)
    count = counter(space)
    for i, arch in enumerate([space.smallest(), space.largest(), *sample(space, 6, name, "macs")]):
        assert count.macs(arch) == measured_macs(space, arch, "factored")
        for execution in executions(space) if i < 3 else ():
            assert count.readings(arch)[f"macs_{execution}"] == measured_macs(space, arch, execution)


@spaces
def test_parts_sum_to_the_total(name):
    space = named_space(name)
    count = counter(space)
    for arch in sample(space, 20, name):
        parts = count.parts(arch)
        assert (sum(p.params for p in parts), sum(p.macs for p in parts)) == count.both(arch)
        assert Counter(space.family, dict(space.fixed)).both(arch) == count.both(arch)  # nothing stale is remembered


def smaller(space, arch):
    """Every architecture one step below: one dimension, or one block of it, at the next lower choice."""
    for dim in space.dims:
        lower = dict(zip(dim.choices[1:], dim.choices))
        if dim.scope == "block":
            values = arch.many(dim.key)
            for i, v in enumerate(values):
                if v in lower:
                    yield arch.replace(**{dim.key: (*values[:i], lower[v], *values[i + 1 :])})
        elif arch.one(dim.key) in lower:
            yield space.with_value(arch, dim.key, lower[arch.one(dim.key)], generator(0))


@spaces
def test_a_smaller_arch_costs_less(name):
    space = named_space(name)
    count = counter(space)
    for arch in sample(space, 50, name, "monotone"):
        params, macs = count.both(arch)
        for below in smaller(space, arch):
            assert space.contains(below)
            assert count.params(below) < params and count.macs(below) < macs
        assert count.params(space.smallest()) <= params <= count.params(space.largest())


# -- the record -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_json_identity_and_membership(name):
    for space in FAMILIES[name].spaces.values():
        assert space.family == name
        for arch in [space.smallest(), space.largest(), *sample(space, 20, "json")]:
            assert space.contains(arch)
            back = Arch.from_json(arch.to_json())
            assert back == arch and hash(back) == hash(arch) and back.to_json() == arch.to_json()
            assert FAMILIES[name].arch(arch.to_dict()) == arch


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_named_archs_are_counted(name):
    for key, named in FAMILIES[name].archs.items():
        assert named_arch(key) == named
        assert Counter(name, named.fixed).params(named.arch) > 0
        assert named.source


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_automatic_shapes_grow(name):
    family = FAMILIES[name]
    fixed = dict(family.spaces[SPACES[name][0]].fixed)
    count = Counter(name, fixed)
    for growing in ([s.largest() for s in family.auto(fixed)], list(family.baseline(fixed))):
        sizes = [count.params(a) for a in growing]
        assert len(sizes) > 20 and sizes[0] < 10_000 and sizes[-1] > 100_000_000
        # Roughly growing: the search for the largest that fits gives up after 24 misses in a row, so nothing later may
        # be smaller than the smallest of those.
        assert all(min(sizes[i + 24 :]) >= min(sizes[i : i + 24]) for i in range(len(sizes) - 24))


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_unknown_settings_are_named(name):
    with pytest.raises(TailorError, match=r"no setting 'colour'; known: .*classes"):
        with_fixed(named_space(SPACES[name][0]), colour=3)


@pytest.mark.parametrize("find", [named_space, named_arch])
def test_unknown_names_list_the_known(find):
    with pytest.raises(TailorError, match=r"Unknown .* 'typo-t'.*Known: autoformer-b"):
        find("typo-t")
