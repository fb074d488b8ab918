"""Every row of SPEC 2.5 and every count of SPEC 12, as a person would ask for it: ``tailorvit cost`` and ``space``."""

from __future__ import annotations

import json

import pytest

PUBLISHED = {  # SPEC 2.5: parameters, and MACs in thousand millions
    "deit-ti": (5_717_416, 1.254),
    "deit-s": (22_050_664, 4.599),
    "deit-b": (86_567_656, 17.564),
    "pit-ti": (4_847_272, 0.699),
    "pit-xs": (10_618_888, 1.395),
    "pit-s": (23_461_912, 2.871),
    "pit-b": (73_764_840, 12.402),
    "swin-t": (28_288_354, 4.491),
    "swin-s": (49_606_258, 8.741),
    "swin-b": (87_768_224, 15.431),
    "s3-t": (28_328_674, 4.623),
    "s3-s": (49_737_298, 9.405),
    "s3-b": (71_125_762, 13.655),
    "shunted-t": (11_553_576, 2.147),
    "shunted-s": (22_401_256, 4.993),
    "shunted-b": (39_614_376, 8.150),
    "autoformer-t": (5_867_944, 1.344),
    "autoformer-s": (22_891_432, 4.892),
    "autoformer-b": (53_691_688, 11.242),
}
EXACT = {  # MACs to the last digit
    "deit-s": 4_598_882_304,
    "pit-ti": 699_059_456,
    "pit-s": 2_870_796_096,
    "swin-t": 4_490_566_656,
    "shunted-s": 4_993_077_312,
    "s3-s": 9_404_703_744,
}
TFTAS = {"tftas-pit-ti": (4.732, 0.672), "tftas-pit-xs": (10.643, 1.826), "tftas-pit-s": (14.451, 2.406)}
TFTAS |= {"tftas-pit-s-yaml": (24.966, 3.406), "evl-4x768": (28.437, None)}
SWIN = {"heads": [3, 6, 12, 12], "classes": 200}
SHUNTED = {"stem": 64, "classes": 200}
WRITTEN = [  # SPEC 12: an architecture, its settings, parameters and MACs
    ({"family": "swin", "depth.3": 4, "embed": 72, "mlp": 3}, SWIN, 11_514_890, 1_828_240_128),
    ({"family": "swin", "depth.3": 4, "embed": 72, "mlp": 3.5}, SWIN, 12_563_426, 1_990_810_368),
    ({"family": "swin", "depth.3": 6, "embed": 84, "mlp": 3.5}, SWIN, 19_560_050, 3_189_013_632),
    ({"family": "swin", "depth.3": 6, "embed": 96, "mlp": 4}, SWIN, 27_669_098, 4_489_952_256),
    ({"family": "swin", "depth.3": 8, "embed": 96, "mlp": 4}, SWIN, 31_222_082, 5_198_337_024),
    ({"family": "shunted", "depth": 3, "embed": 36, "mlp": 6}, SHUNTED, 5_159_988, 1_636_872_024),
    ({"family": "shunted", "depth": 3, "embed": 48, "mlp": 7}, SHUNTED, 9_613_944, 2_511_697_632),
    ({"family": "shunted", "depth": 4, "embed": 60, "mlp": 8}, SHUNTED, 19_359_348, 4_486_665_948),
    ({"family": "shunted", "depth": 5, "embed": 60, "mlp": 7}, SHUNTED, 21_653_028, 4_885_562_208),
    ({"family": "shunted", "depth": 3, "embed": 72, "mlp": 7}, SHUNTED, 21_375_216, 4_701_177_552),
    ({"family": "vit", "depth": 12, "embed": 192, "heads": 3, "mlp": 4}, {}, 5_809_576, 1_308_149_760),
    ({"family": "vit", "depth": 12, "embed": 384, "heads": 6, "mlp": 4}, {}, 22_142_824, 4_707_815_424),
    ({"family": "vit", "depth": 12, "embed": 768, "heads": 12, "mlp": 4}, {}, 86_659_816, 17_781_694_464),
    ({"family": "vit", "depth": 12, "embed": 336, "heads": 2, "mlp": 3.5}, {"classes": 200}, 12_075_704, None),
    ({"family": "vit", "depth": 14, "embed": 384, "heads": 14, "mlp": 4}, {"classes": 200}, 36_430_664, None),
    ({"family": "vit", "depth": 13, "embed": 360, "heads": 12, "mlp": 3.5}, {"classes": 200}, 26_765_852, None),
]
HEADS = {"swin-t": {200: 27_673_154, 397: 27_824_647}, "shunted-s": {200: 21_990_856, 397: 22_091_917}}
SPACES = {  # smallest and largest in millions at so many classes, and the number of architectures
    "autoformer-t": (1000, 5.37, 10.52, 1.057e9),
    "autoformer-s": (1000, 13.06, 34.79, 7.710e13),
    "autoformer-b": (1000, 41.69, 76.88, 1.011e13),
    "s4-vit": (100, 12.04, 36.39, None),
    "s4-swin": (100, 11.46, 31.15, None),
    "s4-swin-table": (100, 12.51, 31.15, None),
    "s4-shunted": (100, 5.13, 19.31, None),
    "s4-shunted-four": (100, 5.69, 19.31, None),
    "s4-shunted-same": (100, 6.8, 26.83, None),
    "s4-clip": (100, 3.71, 11.48, None),
    "s4-clip-lst": (100, 3.97, 11.77, None),
    "s4-clip-evl": (100, 13.67, 30.01, None),
    "pit-ti": (1000, 0.14, 35.9, 4320),
    "pit-xs": (1000, 0.58, 91.1, 4320),
    "pit-s": (1000, 0.96, 257.7, 4320),
    "s3": (1000, 4.89, 17.38, None),
}


@pytest.fixture
def ask(call):
    def facts(*words):
        code, out, err = call(*words, "--json")
        assert code == 0, err
        return json.loads(out)

    return facts


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_networks(ask, name):
    facts, (params, giga) = ask("cost", name), PUBLISHED[name]
    assert facts["params"] == params and round(facts["macs"] / 1e9, 3) == giga
    assert facts["macs"] == EXACT.get(name, facts["macs"])


@pytest.mark.parametrize("name", TFTAS)
def test_networks_the_papers_found(ask, name):
    facts, (params, macs) = ask("cost", name), TFTAS[name]
    assert round(facts["params"] / 1e6, 3) == params
    assert macs is None or round(facts["macs"] / 1e9, 3) == macs


@pytest.mark.parametrize(("arch", "fixed", "params", "macs"), WRITTEN)
def test_architectures_written_by_hand(ask, tmp_path, arch, fixed, params, macs):
    path = tmp_path / "arch.json"
    path.write_text(json.dumps({"arch": arch, "fixed": fixed}))
    facts = ask("cost", path)
    assert facts["params"] == params and (macs is None or facts["macs"] == macs)


def test_classes_and_readings(ask, tmp_path):
    for name, by_classes in HEADS.items():
        for classes, params in by_classes.items():
            assert ask("cost", name, "--classes", classes)["params"] == params
    assert ask("cost", "autoformer-s")["readings"]["macs_dense"] == 5_161_400_832
    path = tmp_path / "arch.json"
    for arch, classes, eq3 in (((12, 3.5, 2, 336), 200, 12_284_024), ((12, 4, 6, 384), 1000, 22_380_904)):
        genes = dict(zip(("depth", "mlp", "heads", "embed"), arch), family="vit")
        path.write_text(json.dumps({"arch": genes, "fixed": {"classes": classes}}))
        assert ask("cost", path)["readings"]["params_eq3"] == eq3


@pytest.mark.parametrize("name", SPACES)
def test_named_spaces(ask, name):
    classes, low, high, count = SPACES[name]
    facts = ask("space", name, "--classes", classes)

    def shown(figure, like):
        return f"{facts[figure]['params'] / 1e6:.{len(str(like).partition('.')[2])}f}"

    assert (shown("smallest", low), shown("largest", high)) == (f"{low}", f"{high}")
    assert count is None or f"{facts['count']:.3e}" == f"{count:.3e}"
    if name == "s3":
        assert [facts[k][c] for k in ("smallest", "largest") for c in ("params", "macs")] == [
            4_889_408,
            4_602_987_648,
            17_376_472,
            18_831_453_696,
        ]
