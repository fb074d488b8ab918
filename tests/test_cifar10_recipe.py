"""The recipe that the CIFAR-10 study ended in: it is the case that was measured, and its head says what was."""

from __future__ import annotations

import re
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

import cifar10
import study.queue
from study.jobs import jobs
from study.sizes import FULL

from tailorvit.config import configure, read_recipe
from tailorvit.space import Space

RECIPES = Path(__file__).parent.parent / "src" / "tailorvit" / "recipes"


def results_of(case):
    rows = study.queue.finished(study.queue.read_rows(cifar10.ROWS)).values()
    found = {r["seed"]: r["test"] for r in rows if r["case"] == case}
    return [found[seed] for seed in sorted(found)]


def test_the_recipe_is_the_case_that_was_measured():
    planned = {j.name: j for j in jobs(cifar10.options().parse_args(["plan"]))}
    case, recipe = configure(planned["g-s4-survey-0"].recipe), configure(read_recipe("s4-vit-cifar10"))
    parts = ("method", "seed", "train", "evaluate", "s4", "seek", "search", "final")
    one, other = ({k: v for k, v in asdict(c).items() if k in parts} for c in (recipe, case))
    for some in (one, other):
        del some["s4"]["pairs"], some["seek"]["samples"]  # a survey has no pairs, and no score sets a scale
        for training in (some["train"], some["final"]["train"]):
            del training["checkpoint_seconds"]
    assert one == other
    assert recipe.budget() == case.budget()
    made = read_recipe("s4-vit-cifar10")["space"]
    made["fixed"] |= {"image_size": [32, 32], "classes": 10}  # what the data tells
    first = FULL["1.5M"].first()
    assert [(d.key, d.scope, d.choices, d.shift) for d in Space.from_dict(made).dims] == [
        (d.key, d.scope, d.choices, d.shift) for d in first.dims
    ]
    assert dict(Space.from_dict(made).fixed) == dict(first.fixed)


def test_its_head_states_what_was_measured():
    (head,) = re.findall(r"^# expected: (.*)$", (RECIPES / "s4-vit-cifar10.toml").read_text(encoding="utf-8"), re.M)
    got = results_of("g s4 survey")
    assert ", ".join(f"{v:.2f}" for v in got) in head
    assert f"{np.mean(got):.2f} +- {np.std(got, ddof=1):.2f} %" in head
    hand = results_of("a hand-designed")
    assert f"12 blocks of 100 channels) {np.mean(hand):.2f} +- {np.std(hand, ddof=1):.2f}" in head
