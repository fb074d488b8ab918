"""METHODS: the explicit table of complete procedures, each a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tailorvit.errors import unknown
from tailorvit.methods.autoformer import autoformer
from tailorvit.methods.bignas import bignas
from tailorvit.methods.finetune import finetune
from tailorvit.methods.fixed import fixed
from tailorvit.methods.hat import hat
from tailorvit.methods.s3 import s3
from tailorvit.methods.s4 import s4
from tailorvit.methods.session import Session
from tailorvit.methods.tftas import tftas

__all__ = ["METHODS", "Method", "Session", "method"]


@dataclass(frozen=True)
class Method:
    """The record of a method."""

    name: str
    summary: str
    run: Callable[[Session], dict[str, Any]]


METHODS: Mapping[str, Method] = {
    m.name: m
    for m in (
        Method("s4", "move the space along the accuracy gradient under the limit, then search it (S4)", s4),
        Method("s3", "shift the space by the error of its subspaces, then search it (S3)", s3),
        Method("autoformer", "one supernet in a fixed space, then a search under the limit (AutoFormer)", autoformer),
        Method(
            "bignas",
            "a sandwich supernet that teaches its own sub-networks, searched and used as it is (BigNAS)",
            bignas,
        ),
        Method("hat", "a search under a latency limit, predicted from measurements on this device (HAT)", hat),
        Method("tf-tas", "score untrained networks under the limits, train the best of them (TF-TAS)", tftas),
        Method("fixed", "train one given architecture, no search", fixed),
        Method("finetune", "train a finished network on at another resolution or for other classes", finetune),
    )
}


def method(name: str) -> Method:
    """The method of that name."""
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return METHODS[name]
