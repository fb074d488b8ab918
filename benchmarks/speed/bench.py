"""What the parts of gpu.py share: rows written as they come, guarded measurements, networks kept for several."""

from __future__ import annotations

import gc
import json
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tailorvit.arch import Arch
from tailorvit.families import family
from tailorvit.rng import seed_everything
from tailorvit.space import Space

SEED = 0
WARM, TIMED = 40, 24  # steps; the warm-up meets every width and depth of the timed ones, each of which is a recording
# How relative position is executed in each: "auto" takes our own kernel where there is one.
VARIANTS = {
    "graphs": "auto",
    "compiled": "auto",
    "eager, own kernel": "auto",
    "eager": "fused",
    "released formula": "dense",
}
COMPILED = ("graphs", "compiled")
TOLD = ("img_s", "ms", "peak_gib", "tflops", "compile_s", "largest", "slope", "busy_share_unprofiled", "seconds")
CURVES = ("width", "depth", "candidates", "batch", "tokens")  # of growth
Row = dict[str, Any]
Call = Callable[..., Tensor]
Step = Callable[[int, Arch | None], Any]


class TooSlow(BaseException):
    """A measurement was over its limit; no Exception, as compilers catch those and go on another way."""


class LeftOut(Exception):
    """There is nothing to measure, and why."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Break off what takes longer, so that one endless compilation does not cost the other sections."""

    def ring(*_: Any) -> None:
        raise TooSlow(f"over {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds, 5.0)  # again and again, should one be caught on the way
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@dataclass
class Bench:
    """One run of the script: its settings, its rows so far, and the networks that several sections use."""

    device: torch.device
    quick: bool = False
    seconds: float = 4.0  # repeat a timed pass until this much
    minutes: float = 5.0  # start nothing later than this
    limit: float = 90.0  # break a measurement off, its compilation included
    compile: bool = True
    out: Path | None = None
    variants: tuple[str, ...] = tuple(VARIANTS)  # of the table, the loop and windowed networks
    curves: tuple[str, ...] = CURVES
    rows: list[Row] = field(default_factory=list)
    started: float = field(default_factory=time.perf_counter)
    networks: dict[Any, tuple[nn.Module, Call]] = field(default_factory=dict)

    def add(self, row: Row) -> Row:
        """Keep a row, and write it at once: a killed run leaves what it had."""
        self.rows.append(row)
        if self.out is not None:
            with self.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
        told = ", ".join(str(row[k]) for k in ("section", "what", "variant", "x") if row.get(k))
        figures = [f"{k} {v:.4g}" for k, v in row.items() if isinstance(v, float) and k in TOLD]
        why = [str(row[k]) for k in ("error", "skipped") if k in row]
        print(f"[{time.perf_counter() - self.started:6.1f} s] {told}: {', '.join(figures + why)}", flush=True)
        return row

    def measure(self, section: str, what: str, variant: str, work: Callable[[], Row], **more: Any) -> Row:
        """One row: what ``work`` returns, or its error, or why it was left out."""
        row: Row = {"section": section, "what": what, "variant": variant, **more}
        start = time.perf_counter()
        if start - self.started > 60 * self.minutes:
            row["skipped"] = f"the {self.minutes:g} minutes were over"
        elif variant.startswith(COMPILED) and not self.compile:
            row["skipped"] = "--no-compile"
        else:
            try:
                with within(min(self.limit, max(20.0, 60 * self.minutes - start + self.started))):
                    row |= work()
            except LeftOut as reason:
                row["skipped"] = str(reason)
            except (Exception, TooSlow) as error:  # whatever it is, the other rows must come
                place = traceback.extract_tb(error.__traceback__)[-1]
                text = str(error).strip().splitlines() or [""]
                row["error"] = f"{type(error).__name__}: {text[0][:300]} ({Path(place.filename).name}:{place.lineno})"
            self.tidy()
        row["took"] = time.perf_counter() - start
        return self.add(row)

    def tidy(self) -> None:
        """Give back what a measurement left: gradients and cached blocks would count as the next one's memory."""
        for model, _ in self.networks.values():
            model.zero_grad(set_to_none=True)
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def sync(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def cast(self, on: bool = True) -> torch.autocast:
        """bfloat16 as in train/loop.py."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=on)

    # -- networks ---------------------------------------------------------------------------------------------------

    def supernet(self, space: Space, variant: str) -> tuple[nn.Module, Call]:
        """The supernet of a space and how to call it, made once; every variant has its own copy of equal weights."""
        if (space, variant) not in self.networks:
            seed_everything(SEED, "gpu")
            model = family(space.family).supernet(space, execution=VARIANTS[variant]).to(self.device)
            self.networks[space, variant] = (model, compiled_call(model) if variant in COMPILED else model)
        return self.networks[space, variant]

    def other_bytes(self, mine: nn.Module) -> int:
        """What networks kept for other measurements hold."""
        return sum(held(model) for model, _ in self.networks.values() if model is not mine)


def compiled_call(model: nn.Module) -> Call:
    """The package's compiled path."""
    from tailorvit.train.compiled import compiled

    call: Call = compiled(model, evaluation=True)
    if call is model:
        raise LeftOut(f"{type(model).__name__} is not compiled")
    return call


def held(model: nn.Module) -> int:
    """Bytes of a network's tensors."""
    return sum(t.numel() * t.element_size() for t in [*model.parameters(), *model.buffers()])
