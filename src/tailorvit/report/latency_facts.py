"""How the latency of a run's network is known, as result.json says it."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator

from tailorvit.report.fields import PART, Number, Text, Whole, Words
from tailorvit.report.fields import table as as_table


class LatencyFit(BaseModel):
    """The table that a latency was predicted from, and the error of its fit on rows it did not see."""

    model_config = PART

    name: Text = ""
    host: Text = ""
    rows: Whole = None
    median_error: Number = None
    worst_error: Number = None
    tau: Number = None


class LatencyBy(BaseModel):
    """How the latency of the delivered network is known."""

    model_config = PART

    how: Text = ""
    runtime: Text = ""
    provider: Text = ""
    threads: Whole = None
    table: Annotated[LatencyFit, BeforeValidator(as_table)] = LatencyFit()
    beyond: Words = ()
