"""Recipe tables about scores without training: [proxy] of tf-tas, [seek] of s4 and s3."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from tailorvit.errors import TailorError, unknown

SUPERNET, TUNED, TRAINING = "supernet", "tuned", "training"  # evaluators that give accuracies; all others are scores
TRAINED = (SUPERNET, TUNED, TRAINING)


@dataclass(frozen=True)
class UntrainedSettings:
    """A search by a score without training: which score, how many architectures, of which sizes."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by config.py

    name: str = "dss"  # the proxy
    candidates: int = 2000  # architectures scored at most; the released code scores 8,000
    evolution: bool = False  # let the recipe's searcher propose them, with the score as fitness, instead of sampling
    band: float = 0.2  # with an upper limit on size and no lower one: score only sizes at most this share below it

    def __post_init__(self) -> None:
        from tailorvit.proxies import proxy

        chosen = proxy(self.name)  # an unknown name is an error that lists the known ones
        if self.candidates < 1:
            raise TailorError(f"proxy.candidates must be at least 1, not {self.candidates}.")
        if not 0 < self.band <= 1:
            raise TailorError(f"proxy.band must lie above 0 and up to 1 (no band), not {self.band:g}.")
        if self.evolution and chosen.together is not None:
            raise TailorError(
                f"proxy.evolution needs a score that stands by itself: {self.name} ranks candidates within one set, "
                "and the set changes with every generation."
            )


def renamed_keys(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe of an older run folder in today's keys: proxy.names, proxy.reading and seek.reading are gone.

    Several names become the first one, which decided. The readings of dss are proxies now: dss_paper, dss_official.
    """
    found = dict(recipe)
    proxy, seek = ({} if not isinstance(t := recipe.get(k), Mapping) else dict(t) for k in ("proxy", "seek"))
    if {"names", "reading"} & set(proxy):
        names, reading = proxy.pop("names", ["dss"]), proxy.pop("reading", "fixed")
        first = names[0] if isinstance(names, list | tuple) and names else names
        found["proxy"] = {"name": _variant(first, reading), **proxy}
    if "reading" in seek:
        reading = seek.pop("reading")
        found["seek"] = {**seek, "evaluator": _variant(seek.get("evaluator", SUPERNET), reading)}
    return found


def _variant(name: Any, reading: Any) -> Any:
    return f"dss_{reading}" if name == "dss" and reading != "fixed" else name


@dataclass(frozen=True)
class SeekSettings:
    """Who says how good the members of a space are while it moves."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by config.py

    evaluator: str = SUPERNET  # tuned, training, or a proxy's name, predictor among them
    train_epochs: int = 4  # of each member from scratch, where training judges
    tune_epochs: int = 1  # of each member from the supernet's weights, where tuned judges
    samples: int = 200  # members of every space that set the scale of its scores
    per_size: bool | None = (
        None  # what a score says beyond size; None: yes, but not for the predictor, which knows size
    )
    final: Literal["proxy", "supernet"] = "proxy"  # who searches the last space

    def __post_init__(self) -> None:
        from tailorvit.proxies import PROXIES

        if self.evaluator not in (*TRAINED, *PROXIES):
            raise unknown("seek.evaluator", self.evaluator, (*TRAINED, *PROXIES))
        for name in ("train_epochs", "tune_epochs"):
            if getattr(self, name) < 1:
                raise TailorError(f"seek.{name} must be at least 1, not {getattr(self, name)}.")
        if self.free and PROXIES[self.evaluator].together is not None:
            raise TailorError(
                f"seek.evaluator '{self.evaluator}' ranks candidates within one set, so it gives no slopes; "
                "name a score that stands by itself, such as dss."
            )
        if self.samples < 3:
            raise TailorError(f"seek.samples must be at least 3 to know a spread, not {self.samples}.")

    @property
    def free(self) -> bool:
        """Whether a score judges, so that nothing is trained while the space moves."""
        return self.evaluator not in TRAINED

    @property
    def in_every_space(self) -> bool:
        """Whether every space has its supernet."""
        return self.evaluator in (SUPERNET, TUNED)

    @property
    def member_epochs(self) -> int:
        """Epochs a member trains by itself before it is judged; 0 where it does not."""
        return {TUNED: self.tune_epochs, TRAINING: self.train_epochs}.get(self.evaluator, 0)

    @property
    def beyond_size(self) -> bool:
        """Whether scores are read as what they say beyond size."""
        return self.evaluator != "predictor" if self.per_size is None else self.per_size

    def search(self, base: UntrainedSettings) -> UntrainedSettings:
        """A search by the same score; budget, evolution and band are those of [proxy]."""
        return replace(base, name=self.evaluator)
