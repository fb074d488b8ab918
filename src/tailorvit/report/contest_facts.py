"""What result.json tells of a contest and of its plan for the time."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator

from tailorvit.report.fields import PART, Amount, Flag, Index, Label, Number, Positive, Table, Text, Whole, objects

_ENTRIES = 500


class _Part(BaseModel):
    """A part of a JSON file."""

    model_config = PART


class Leg(_Part):
    """One rung of one entry of the contest."""

    rung: Index = None
    epochs: Amount = None
    total_epochs: Amount = None
    accuracy: Number = None  # on the search images, in percent
    images: Positive = None
    seconds: Amount = None
    kept: Flag = False


class Entry(_Part):
    """A network that took part in the contest."""

    id: Whole = None
    family: Label = ""
    stem: Label = ""
    shape: Label = ""
    arch: Table = {}
    augment: Label = ""
    lr: Number = None
    params: Amount = None
    macs: Amount = None
    rungs: Annotated[tuple[Leg, ...], BeforeValidator(objects)] = ()
    won: Flag = False

    def leg(self, rung: int) -> Leg | None:
        """How it went at one rung; None where the entry was not there."""
        return next((leg for leg in self.rungs if leg.rung == rung and leg.accuracy is not None), None)


class Rung(_Part):
    """One rung of the contest: what was asked, and how many went on."""

    rung: Index = None
    asks: Text = ""
    epochs: Amount = None
    entries: Whole = None
    kept: Whole = None


class Worth(_Part):
    """What one choice was worth: the best against the worst, all else equal, in points of accuracy."""

    what: Text = ""
    best: Label = ""
    worst: Label = ""
    points: Number = None
    low: Number = None
    high: Number = None


class Contest(_Part):
    """The contest before the search: networks of several families, of which the best trained on."""

    entries: Annotated[tuple[Entry, ...], BeforeValidator(lambda value: objects(value)[:_ENTRIES])] = ()
    rungs: Annotated[tuple[Rung, ...], BeforeValidator(objects)] = ()
    worth: Annotated[tuple[Worth, ...], BeforeValidator(objects)] = ()
    winner: Whole = None
    why: Text = ""

    @property
    def champion(self) -> Entry | None:
        """The entry that won."""
        named = (e for e in self.entries if self.winner is not None and e.id == self.winner)
        return next(named, next((e for e in self.entries if e.won), None))


class Planned(_Part):
    """A network's place in the plan of a run with a budget of time."""

    label: Text = ""
    epoch: Amount = None  # seconds
    epochs: Amount = None  # of the final training, should it win
    inside: Flag = False


class PlannedPiece(_Part):
    """A piece of work of a pretrained network's run, in its plan."""

    label: Text = ""
    epoch: Amount = None  # seconds
    planned: Amount = None  # epochs


class Plan(_Part):
    """How a budget of time was shared out."""

    seconds: Amount = None
    whole_epochs: Amount = None
    final_epochs: Amount = None
    pieces: Annotated[tuple[PlannedPiece, ...], BeforeValidator(lambda value: objects(value)[:_ENTRIES])] = ()
    entries: Annotated[tuple[Planned, ...], BeforeValidator(lambda value: objects(value)[:_ENTRIES])] = ()
