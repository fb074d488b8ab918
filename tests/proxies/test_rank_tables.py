"""Tables: the published forms and ours, and one sentence for every row that does not fit."""

from __future__ import annotations

import json

import numpy as np
import pytest
from rank_tools import REFERENCE, pit_rows, tiny_rows, vit_rows, write

from tailorvit import Counter
from tailorvit.errors import TailorError
from tailorvit.families import named_space
from tailorvit.proxies.tables import read_table, table_of


@pytest.mark.parametrize(
    ("rows", "form", "family", "targets"),
    [
        (vit_rows(4), "ood-vit-nas", "vit", ["top1"]),
        (vit_rows(4, form="vitbench"), "vitbench autoformer", "vit", ["c100_acc", "noise_acc"]),
        (pit_rows(4), "vitbench pit", "pit", ["c100_acc"]),
        (tiny_rows(4), "tailorvit", "vit", ["accuracy"]),
    ],
)
def test_the_forms_are_recognised_by_their_keys(tmp_path, rows, form, family, targets):
    table = read_table(write(tmp_path / "t.json", rows))
    assert (table.form, list(table.targets)) == (form, targets)
    assert all(row.arch.family == family for row in table.rows)
    for row, params, macs in zip(table.rows, table.params, table.macs):
        assert Counter(family, row.settings).both(row.arch) == (params, macs)
    assert table.targets[targets[0]][2] == rows[2][targets[0]]


def test_genes_arrive_where_they_belong():
    rows = vit_rows(3)
    first = table_of("t", rows).rows[0]
    assert (first.arch["embed"], first.arch["depth"]) == (rows[0]["embed"], rows[0]["depth"])
    assert list(first.arch.many("heads")) == rows[0]["heads"] and list(first.arch.many("mlp")) == rows[0]["mlp_ratio"]
    assert dict(first.settings) == {**dict(named_space("autoformer-t").settings), "classes": 1000}
    arch = pit_rows(1)[0]["arch"]
    pit = table_of("t", pit_rows(2)).rows[0].arch
    assert [pit[f"depth.{s}"] for s in (1, 2, 3)] == arch["depth"] and pit["base"] == arch["base_dim"]


def test_lists_longer_than_the_depth_are_cut():
    rows = vit_rows(2)
    longer = [{**r, "heads": [*r["heads"], 3, 3], "mlp_ratio": [*r["mlp_ratio"], 4, 4]} for r in rows]
    assert [r.arch for r in table_of("t", longer).rows] == [r.arch for r in table_of("t", rows).rows]


def broken(change, row=1, form="ood"):
    rows = vit_rows(3, form=form)
    change(rows[row])
    return rows


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (broken(lambda r: r.pop("heads")), ["Row 2", "'heads'"]),
        (broken(lambda r: r["arch"].pop("depth"), form="vitbench"), ["Row 2", "'arch.depth'"]),
        (broken(lambda r: r["arch"].update(width=3), form="vitbench"), ["Row 2", "'arch.width'", "hidden_dim"]),
        (broken(lambda r: r.update(colour="blue")), ["Row 2", "'colour'", "'blue'"]),
        (broken(lambda r: r.update(top1=float("nan"))), ["Row 2", "'top1'"]),
        (broken(lambda r: r.pop("top1")), ["Row 2", "no 'top1'"]),
        (broken(lambda r: r.update(top5=90.0)), ["Row 1", "no 'top5'"]),
        (broken(lambda r: r["heads"].pop()), ["Row 2", "not a valid architecture", "'heads'"]),
        (broken(lambda r: r.update(embed="wide")), ["Row 2", "not a valid architecture", "wide"]),
        ([{"width": 3, "accuracy": 1.0}], ["Row 1", "family", "hidden_dim", "base_dim"]),
        ([3], ["list of rows"]),
        ([{k: v for k, v in vit_rows(1)[0].items() if k != "top1"}], ["no accuracies"]),
        ([{"arch": {"family": "vitt", "depth": 2}, "a": 1.0}], ["Row 1", "vitt", "Known"]),
        ([*tiny_rows(1), {"accuracy": 1.0}], ["Row 2", "'arch'"]),
    ],
)
def test_a_row_that_does_not_fit_is_named(tmp_path, rows, words):
    with pytest.raises(TailorError) as error:
        read_table(write(tmp_path / "t.json", rows))
    assert all(word in str(error.value) for word in words), str(error.value)


def test_a_file_that_is_none(tmp_path):
    with pytest.raises(TailorError, match="no table"):
        read_table(tmp_path / "absent.json")
    (tmp_path / "t.json").write_text("{")
    with pytest.raises(TailorError, match="not readable JSON"):
        read_table(tmp_path / "t.json")


def test_values_may_be_missing(tmp_path):
    rows = vit_rows(4, form="vitbench")
    rows[1]["noise_acc"] = rows[3]["c100_acc"] = None
    rows = [{**r, "params_m": None} for r in rows]
    table = read_table(write(tmp_path / "t.json", rows))
    assert (table.missing("noise_acc"), table.missing("c100_acc"), table.notes) == (1, 1, ())
    assert np.isnan(table.targets["noise_acc"][1]) and np.isfinite(table.targets["noise_acc"][[0, 2, 3]]).all()


def test_sizes_are_compared_and_no_accuracies():
    rows = vit_rows(4)
    params = table_of("t", rows).params
    right = [{**r, "params_m": p / 1e6, "official_mflops": 1.0} for r, p in zip(rows, params)]
    assert table_of("t", right).notes == () and list(table_of("t", right).targets) == ["top1"]
    right[2]["params_m"] *= 1.1
    (note,) = table_of("t", right).notes
    assert "1 of 4 rows" in note and "row 3" in note and f"{params[2]:,.0f} by our count" in note


def test_shared_settings_and_limits(tmp_path):
    rows = [{k: v for k, v in r.items() if k != "fixed"} for r in tiny_rows(9)]
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"fixed": tiny_rows(1)[0]["fixed"], "rows": rows}))
    table = read_table(path)
    assert np.array_equal(table.params, table_of("t", tiny_rows(9)).params)
    few = table.limit(3)
    assert [r.arch for r in few.rows] == [table.rows[i].arch for i in (0, 4, 8)]
    assert few.targets["accuracy"].tolist() == table.targets["accuracy"][[0, 4, 8]].tolist()
    with pytest.raises(TailorError, match="at least 2"):
        table.limit(1)
    with pytest.raises(TailorError, match=r"Unknown target 'acuracy'. Did you mean 'accuracy'"):
        table.check_target("acuracy")


@pytest.mark.skipif(not REFERENCE.is_dir(), reason="the reference tables are not part of the project")
def test_the_reference_tables_read_and_their_sizes_agree():
    found = {p.stem: read_table(p) for p in sorted(REFERENCE.glob("*.json"))}
    assert {k: len(t.rows) for k, t in found.items()} == {
        "imagenet_autoformer_tiny": 1001,
        "vitbench_autoformer_tiny": 100,
        "vitbench_pit_tiny": 50,
    }
    assert all(t.notes == () for t in found.values())
    stated = json.loads((REFERENCE / "imagenet_autoformer_tiny.json").read_text())
    assert found["imagenet_autoformer_tiny"].params.tolist() == [round(r["params_m"] * 1e6) for r in stated]
