"""Complete procedures, each a file. METHODS names them; plug-ins add to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tailorvit.registry import Registry

if TYPE_CHECKING:
    from tailorvit.methods.session import Session

__all__ = ["METHODS", "Method"]


@dataclass(frozen=True)
class Method:
    """The record of a method."""

    name: str
    summary: str
    run: Callable[[Session], dict[str, Any]]  # returns the facts of result.json
    settings: type[Any] | None = None  # a plug-in's dataclass of settings, read from the recipe's [plugin] table
    experimental: bool = False


METHODS: Registry[Method] = Registry(
    "method",
    "tailorvit.methods",
    {
        "contest": "tailorvit.methods.contest:METHOD",
        "s4": "tailorvit.methods.s4:METHOD",
        "s3": "tailorvit.methods.s3:METHOD",
        "autoformer": "tailorvit.methods.autoformer:AUTOFORMER",
        "bignas": "tailorvit.methods.autoformer:BIGNAS",
        "hat": "tailorvit.methods.hat:METHOD",
        "tf-tas": "tailorvit.methods.untrained:METHOD",
        "fixed": "tailorvit.methods.fixed:METHOD",
        "finetune": "tailorvit.methods.finetune:METHOD",
        "tailor": "tailorvit.methods.tailor:METHOD",
    },
)
