"""The model card: what the run folder holds, other people's words escaped, and how to load the folder."""

from __future__ import annotations

import re

import pytest
from export_tools import NAMES

from tailorvit.export.formats import accuracy_table, data_name, escaped


@pytest.mark.parametrize(
    ("to", "needs"), [("timm", "import tailorvit.for_timm"), ("hf", "import tailorvit.for_transformers")]
)
def test_the_card_says_what_is_known_and_no_more(exported, to, needs):
    text = (exported(to).path / "README.md").read_text()
    assert needs in text.split("## Use")[1]
    for word in (
        "s4",
        "90.00 %",
        "A baseline is not recorded",
        "## Limits",
        "## Licence",
        "1259 train",
        "| name | digits |",
    ):
        assert word in text, word
    assert "/home" not in text and "<b>" not in text and not re.search(r"(?<!\\)\]\(", text)
    for name in NAMES:
        assert escaped(name) in text


def test_hostile_names_stay_text():
    assert escaped("a|b\n# c") == r"a\|b \# c"
    assert escaped("<script>*x*</script>") == r"&lt;script&gt;\*x\*&lt;/script&gt;"
    assert escaped("[x](http://e.org) `y` 1.5") == r"\[x\](http\://e\.org) \`y\` 1.5"


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("digits", "digits"),
        ("/home/me/photos", "photos"),
        ("C:\\Users\\me\\photos", "photos"),
        ("torchvision:CIFAR10@/data/me", "torchvision:CIFAR10"),
        ("/home/me@work/photos", "photos"),
        ("photos/", "photos"),
    ],
)
def test_data_is_named_without_its_folders(source, name):
    assert data_name(source) == name


def test_no_baseline_is_not_the_same_as_none_known():
    assert "No baseline was trained" in accuracy_table({"baseline": None}, {})
    assert "not recorded" in accuracy_table({}, {})
    text = accuracy_table({"baseline": {"params": 5, "macs": 6, "test_accuracy": 50.0}}, {})
    assert "| baseline | 5 | 6 | 50.00 % |" in text


def test_the_hand_designed_network_and_peers_are_named():
    row = {"params": 5, "macs": 6, "test_accuracy": 50.0}
    found = {**row, "name": "found", "test_accuracy": 45.0}
    peer = {**row, "name": "timm:resnet18", "test_accuracy": 55.0}
    result = {**row, "chosen": "baseline", "baseline": row, "candidates": [found, {**row, "name": "baseline"}, 3]}
    text = accuracy_table({**result, "peers": [peer]}, {})
    assert "| this network, designed by hand | 5 | 6 | 50.00 % |" in text and "| baseline |" not in text
    assert "| found by the search | 5 | 6 | 45.00 % |" in text and "resnet18 | 5 | 6 | 55.00 % |" in text
