"""What study.json tells of a study of a run: the best network of each space, and networks in three ways."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator

from tailorvit.methods.study import STUDY
from tailorvit.report.fields import PART, Amount, Flag, Label, Number, Positive, Table, Text, Whole, objects, table
from tailorvit.texts import read_json


class _Part(BaseModel):
    """A part of a JSON file."""

    model_config = PART


class Judged(_Part):
    """The accuracies of a network, in percent, with the interval of the one on the test images."""

    search_accuracy: Number = None
    test_accuracy: Number = None
    low: Number = None
    high: Number = None


class SpaceBest(_Part):
    """The best network of a space, or why there is none."""

    t: Whole = None
    searched: Flag = False
    problem: Text = ""
    how: Text = ""
    arch: Table = {}
    params: Amount = None
    macs: Amount = None
    inherited: Number = None  # on the search images
    retrained: Annotated[Judged, BeforeValidator(table)] = Judged()


class Drawn(_Part):
    """A network drawn from the last space, with its weights in three ways."""

    name: Label = ""
    arch: Table = {}
    params: Amount = None
    macs: Amount = None
    inherited: Annotated[Judged, BeforeValidator(table)] = Judged()
    tuned: Annotated[Judged, BeforeValidator(table)] = Judged()
    retrained: Annotated[Judged, BeforeValidator(table)] = Judged()


class Agreement(_Part):
    """Kendall's tau between two ways, with its interval; ``gain`` is the second less the first, in points."""

    first: Label = ""
    second: Label = ""
    tau: Number = None
    low: Number = None
    high: Number = None
    gain: Number = None


class Study(_Part):
    """A study, as far as it has come."""

    epochs: Positive = None  # of a retraining
    tuned_epochs: Positive = None
    spaces: Annotated[tuple[SpaceBest, ...], BeforeValidator(objects)] = ()
    networks: Annotated[tuple[Drawn, ...], BeforeValidator(objects)] = ()
    agreement: Annotated[tuple[Agreement, ...], BeforeValidator(objects)] = ()


def read_study(folder: Path) -> Study:
    """The study in a run's folder; empty where there is none, or none that can be read."""
    try:
        found = read_json(folder / STUDY / f"{STUDY}.json", largest=None)
    except (OSError, ValueError, RecursionError):
        return Study()
    return Study.model_validate(found) if isinstance(found, Mapping) else Study()
