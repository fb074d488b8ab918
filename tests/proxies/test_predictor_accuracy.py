"""The accuracy predictor: features free of scale, both ways to fit, error bars, the one that comes with the package."""

from __future__ import annotations

import json

import numpy as np
import pytest
from rank_tools import REFERENCE, pit_rows, vit_rows

from tailorvit import Arch, Counter, named_space
from tailorvit.errors import TailorError
from tailorvit.families import FAMILIES
from tailorvit.proxies import Refused
from tailorvit.proxies.predictor import FEATURE_NAMES, Predictor, default, feature_matrix, pooled, shape_features
from tailorvit.proxies.ranking import agree
from tailorvit.proxies.tables import read_table, table_of
from tailorvit.rng import generator


def band_tau(model, table, key):
    score, _ = model.predict([r.arch for r in table.rows], [r.settings for r in table.rows])
    return agree(score.tolist(), table.targets[key], table.params, 0.05, bootstrap=0).band_tau.value


# -- features ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
def test_features_are_finite_in_every_family(name):
    space = next(iter(FAMILIES[name].spaces.values()))
    counter = Counter(name, dict(space.settings))
    archs = [space.sample(generator(0, "features", i)) for i in range(5)]
    x = feature_matrix([counter] * 5, archs)
    assert x.shape == (5, len(FEATURE_NAMES)) and np.isfinite(x).all()


def test_features_mean_what_they_say():
    counter = Counter("vit", dict(named_space("autoformer-t").settings))

    def row(heads, mlp, embed=192):
        arch = Arch("vit", depth=len(heads), embed=embed, heads=tuple(heads), mlp=tuple(mlp))
        return dict(zip(FEATURE_NAMES, feature_matrix([counter], [arch])[0]))

    even = row([3] * 12, [4] * 12)
    assert even["qkv_trend"] == even["mlp_trend"] == even["width_trend"] == 0
    assert even["blocks"] == pytest.approx(np.log(12) / 0.1)
    late = row([3] * 6 + [4] * 6, [4] * 6 + [3] * 6)
    assert late["qkv_trend"] > 0 > late["mlp_trend"]
    assert row([4] * 12, [4] * 12)["attention"] > even["attention"] > row([3] * 12, [5] * 12)["attention"]
    twice = row([6] * 12, [4] * 12, 384)  # the same shape, larger
    assert [twice[k] for k in FEATURE_NAMES[3:]] == pytest.approx([even[k] for k in FEATURE_NAMES[3:]])
    pit = Counter("pit", dict(named_space("pit-ti").settings))
    shape = FAMILIES["pit"].archs["pit-ti"].arch
    assert feature_matrix([pit], [shape])[0][FEATURE_NAMES.index("width_trend")] > 0


@pytest.mark.parametrize("change", [{"qkv": None}, {"hidden": 0}])
def test_blocks_without_the_widths_are_refused(change):
    """A family from outside may have no attention; its rows then lack these widths."""
    counter = Counter("vit", dict(named_space("vit-8px").settings))
    arch = named_space("vit-8px").smallest()
    blocks = counter.family.outline(counter.shared, arch)
    (key,) = change
    for rows in ([{**b, **change} for b in blocks], [{k: v for k, v in b.items() if k != key} for b in blocks]):
        with pytest.raises(Refused, match=f"needs the width '{key}' of every block, which this architecture does not"):
            shape_features(rows, 1000, 2000)


# -- fitted on a few accuracies ----------------------------------------------------------------------------------------


def test_a_few_dozen_accuracies_are_enough_for_a_simple_truth():
    table = table_of("t", vit_rows(140))
    seen, rest = table.take(range(40)), table.take(range(40, 140))
    model = Predictor.fit(seen.rows, seen.targets["top1"].tolist())
    mean, sd = model.predict([r.arch for r in rest.rows])
    gaps = np.abs(mean - rest.targets["top1"])
    assert np.sqrt((gaps**2).mean()) < 0.25 * rest.targets["top1"].std()
    assert 0.8 < (gaps < 1.96 * sd).mean() <= 1, "the error bar says how far off it is"
    assert model.helps and model.facts["left_out_error"] < model.facts["constant_error"] / 3
    assert band_tau(model, rest, "top1") > 0.7


def test_it_says_when_it_does_not_help():
    table = table_of("t", vit_rows(40, form="vitbench"))
    model = Predictor.fit(table.rows, table.targets["noise_acc"].tolist())
    assert not model.helps
    mean, sd = model.predict([r.arch for r in table.rows])
    assert mean.std() < 0.6 * table.targets["noise_acc"].std() and (sd > 0.5 * table.targets["noise_acc"].std()).all()


def test_proxies_join_the_features():
    table = table_of("t", vit_rows(60, form="vitbench"))
    noise = table.targets["noise_acc"]
    values = {"dss": np.exp(3 * noise), "naswot": -noise}
    rows, archs = table.rows[:40], [r.arch for r in table.rows[40:]]
    model = Predictor.fit(rows, noise[:40].tolist(), {k: v[:40].tolist() for k, v in values.items()})
    assert model.proxies == ("dss", "naswot") and model.logs == ("dss",)
    mean, _ = model.predict(archs, proxies={k: v[40:].tolist() for k, v in values.items()})
    assert np.corrcoef(mean, noise[40:])[0, 1] > 0.95
    with pytest.raises(TailorError, match="'dss'"):
        model.predict(archs)
    with pytest.raises(TailorError, match="'naswot'"):
        model.predict(archs, proxies={"dss": [1.0] * 20, "naswot": [float("nan")] * 20})
    with pytest.raises(TailorError, match="above zero"):
        model.predict(archs, proxies={"dss": [-1.0] * 20, "naswot": [1.0] * 20})


def test_too_little_or_broken_accuracies_are_refused():
    rows = table_of("t", vit_rows(8)).rows
    with pytest.raises(TailorError, match="at least 8"):
        Predictor.fit(rows[:7], [1.0] * 7)
    with pytest.raises(TailorError, match="Accuracy 3"):
        Predictor.fit(rows, [1.0, 2.0, float("nan"), 1, 1, 1, 1, 1])


@pytest.mark.parametrize("kinds", [("ridge",), ("gp",)])
def test_saved_and_loaded_it_answers_the_same(tmp_path, kinds):
    table = table_of("t", vit_rows(30))
    model = Predictor.fit(table.rows, table.targets["top1"].tolist(), kinds=kinds)
    model.save(tmp_path / "p.json")
    loaded = Predictor.load(tmp_path / "p.json")
    archs = [r.arch for r in table_of("t", vit_rows(5, seed=9)).rows]
    for a, b in zip(model.predict(archs), loaded.predict(archs)):
        assert b == pytest.approx(a, rel=1e-9)
    assert loaded.facts["kind"] == kinds[0] and loaded.helps == model.helps


def test_a_file_that_is_no_predictor(tmp_path):
    with pytest.raises(TailorError, match="no predictor"):
        Predictor.load(tmp_path / "absent.json")
    (tmp_path / "p.json").write_text(json.dumps({**default().to_dict(), "names": ["length"]}))
    with pytest.raises(TailorError, match="another version"):
        Predictor.load(tmp_path / "p.json")


# -- pooled from whole tables ------------------------------------------------------------------------------------------


def test_what_one_table_teaches_holds_in_another_family():
    vit, pit = table_of("v", vit_rows(120)), table_of("p", pit_rows(120))
    assert band_tau(pooled([vit], bootstrap=0), pit, "c100_acc") > 0.5
    from_pit = pooled([pit], bootstrap=0)
    assert from_pit.model.weights[FEATURE_NAMES.index("blocks")] > 0
    both = pooled([vit, pit], bootstrap=20)
    assert band_tau(both, vit, "top1") > 0.5 and band_tau(both, pit, "c100_acc") > 0.5
    assert (np.diag(both.model.covariance) > 0).any()


def test_pooled_is_seeded_and_needs_pairs_of_like_size():
    table = table_of("v", vit_rows(30))
    one, two = (pooled([table], bootstrap=5, seed=s).to_dict() for s in (1, 1))
    assert one == two != pooled([table], bootstrap=5, seed=2).to_dict()
    flat = table_of("v", [{**r, "top1": 1.0} for r in vit_rows(30)])
    with pytest.raises(TailorError, match="'v'"):
        pooled([flat])


def test_the_predictor_that_comes_along_says_where_it_is_from():
    model = default()
    assert sum(model.facts["tables"].values()) == 1151 and "benchmarks/ranking/ranking.py" in model.facts["command"]
    arch = FAMILIES["vit"].archs["autoformer-t"].arch
    (mean,), (sd,) = model.predict([arch], dict(named_space("autoformer-t").settings))
    assert np.isfinite(mean) and sd > 0


def test_rows_without_an_accuracy_are_not_fitted_on():
    rows = vit_rows(40, form="vitbench")
    for row in rows[:10]:
        row["noise_acc"] = None
    holes, short = table_of("v", rows), table_of("v", rows[10:])
    found, wanted = (pooled([t], bootstrap=3).to_dict() for t in (holes, short))
    assert found == wanted and found["facts"]["tables"] == {"v": 30}
    with pytest.raises(TailorError, match="'v'"):
        pooled([table_of("v", [{**r, "top1": None} for r in vit_rows(5)])])


@pytest.mark.skipif(not REFERENCE.is_dir(), reason="the reference tables are not part of the project")
def test_on_tables_it_never_saw_it_beats_the_size():
    tables = [read_table(p) for p in sorted(REFERENCE.glob("*.json"))]
    for left in tables:
        model = pooled([t for t in tables if t is not left], bootstrap=0)
        ours = [band_tau(model, left, key) for key in left.targets]
        sizes = [
            agree(left.params.tolist(), truth, left.params, 0.05, bootstrap=0).band_tau.value
            for truth in left.targets.values()
        ]
        assert np.mean(ours) > np.mean(sizes) + 0.08, left.name
    fitted = pooled(tables, bootstrap=0).model.weights
    assert fitted == pytest.approx(default().model.weights, abs=1e-4), "predictor.json is what the command makes"
