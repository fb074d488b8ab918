"""How the latency of a run's network is known, as result.json says it, and in words."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator

from tailorvit.report.fields import PART, Number, Text, Whole, Words, table
from tailorvit.report.markup import clean


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
    table: Annotated[LatencyFit, BeforeValidator(table)] = LatencyFit()
    beyond: Words = ()


def latency_in_words(by: LatencyBy) -> str:
    """With what the latency was measured, or how well it is predicted; nothing where it was not limited."""
    threads = f"{by.threads} thread{'' if by.threads == 1 else 's'}" if by.threads else ""
    where = ", ".join(word for word in (clean(by.provider, 60), threads) if word)
    runtime = f"{clean(by.runtime, 60)}{f' ({where})' if where else ''}"
    if by.how == "measured" and by.runtime:
        return f"measured in {runtime} on the run's device, one image at a time."
    if by.how != "predicted":
        return ""
    known = by.table
    words = f"predicted for {clean(known.host, 100) or 'another host'}, not measured there"
    if known.median_error is not None and known.worst_error is not None:
        tau = "" if known.tau is None else f", Kendall's tau {known.tau:.2f}"
        words += (
            f"; from {known.rows or 'the'} networks of {clean(known.name, 60)}, measured in {runtime}. On rows the fit "
            f"did not see the median error is {100 * known.median_error:.1f} %, the worst "
            f"{100 * known.worst_error:.1f} %{tau}"
        )
    beyond = ", ".join(clean(word, 40) for word in by.beyond)
    doubt = f" The network lies beyond what was measured in {beyond}: its own error may be larger." if beyond else ""
    return f"{words}.{doubt}"
