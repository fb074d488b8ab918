"""Training steps and evaluations as CUDA graphs: recorded once per shape, then replayed with one launch.

A step of a transformer is hundreds of kernels; where launching them takes longer than running them, the GPU waits for
Python. A recorded step has no Python in it. Shapes must repeat, so a supernet runs by groups (``model.grouped``): one
recording per width and depth, heads and hidden widths switched by numbers that are an input.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from tailorvit.arch import Arch
from tailorvit.train.compiled import BlockByBlock
from tailorvit.train.flat import Flat
from tailorvit.train.losses import soft_cross_entropy, without_drop_path
from tailorvit.train.optim import SliceAdamW
from tailorvit.train.settings import TrainSettings


def can_replay(
    model: nn.Module, settings: TrainSettings, optimizer: torch.optim.Optimizer, device: str, batch_norms: bool
) -> bool:
    """Whether a training's steps can be recorded: what they do may not depend on values the host would have to see."""
    plain = isinstance(optimizer, torch.optim.AdamW) and not isinstance(optimizer, SliceAdamW)
    # Others may make tensors on the host in their forward, which a recording refuses: not tried on a GPU yet.
    known = hasattr(model, "grouped") or bool(getattr(model, "recordable", False))
    return (
        settings.graphs
        and torch.device(device).type == "cuda"
        and plain
        and known
        and settings.freeze == "none"
        and not batch_norms
    )


class Recorder:
    """Recordings by key, in one pool of memory: what they write for others lies outside it, so any order is safe.

    Where there is no CUDA the work itself is kept and done again, which is how the tests look at it.
    """

    def __init__(self, device: torch.device) -> None:
        self.graphs: dict[Hashable, Callable[[], None]] = {}
        self.cuda = device.type == "cuda"
        self.pool: Any = None

    def record(self, key: Hashable, work: Callable[[], None]) -> bool:
        """Record a piece of work unless that was done; True where it was run (once) to warm up."""
        if key in self.graphs:
            return False
        if not self.cuda:
            self.graphs[key] = work
            work()
            return True
        side, here = torch.cuda.Stream(), torch.cuda.current_stream()
        side.wait_stream(here)
        with torch.cuda.stream(side):
            work()  # compilers, autotuners and libraries settle before the recording
        here.wait_stream(side)
        torch.cuda.empty_cache()  # the recording has memory of its own: do not hold both
        graph = torch.cuda.CUDAGraph()
        # A thread that fills pinned memory meanwhile is no part of it and must not spoil it.
        with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
            work()
        self.pool = self.pool or graph.pool()
        self.graphs[key] = graph.replay
        return True

    def replay(self, key: Hashable) -> None:
        """Run a recording."""
        self.graphs[key]()


class Pending:
    """The figures of a step that may still be running."""

    def __init__(self, figures: Tensor) -> None:
        self.host = torch.empty(figures.shape, dtype=figures.dtype, pin_memory=figures.is_cuda)
        self.host.copy_(figures, non_blocking=True)
        self.done = torch.cuda.Event() if figures.is_cuda else None
        if self.done is not None:
            self.done.record()

    def read(self) -> list[float]:
        """Wait for the step, no longer."""
        if self.done is not None:
            self.done.synchronize()
        return [float(v) for v in self.host]


class GraphSteps:
    """Optimiser steps over one batch and the architectures of a rule; the same arithmetic as the loop's own step."""

    def __init__(
        self,
        model: nn.Module,
        call: Callable[..., Tensor],
        optimizer: torch.optim.Optimizer,
        ema: Mapping[str, Tensor] | None,
        settings: TrainSettings,
        device: str,
    ) -> None:
        self.model, self.call, self.optimizer, self.ema = model, call, optimizer, ema
        self.settings, self.device = settings, torch.device(device)
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        # Weights of products in 16 bits, all cast at once instead of one by one, and their gradients likewise.
        self.short: Short | None = None
        own = call is model or isinstance(call, BlockByBlock)
        if settings.precision == "bf16" and own and not hasattr(model, "slices"):
            self.short = Short(model)
        self.gradients = [torch.zeros_like(p) for p in self.parameters] if self.short is None else self.short.gradients
        for p, grad in zip(self.parameters, self.gradients, strict=True):
            p.grad = grad
        self.rate = torch.zeros((), device=device)
        for group in optimizer.param_groups:
            group["lr"], group["capturable"] = self.rate, self.device.type == "cuda"
        self.sums = torch.zeros(2, device=device)  # loss, right answers
        self.figures = torch.zeros(3, device=device)  # the same, and the norm of the gradient
        self.bad = torch.zeros((), device=device)
        cast(Any, optimizer).found_inf = self.bad  # the fused AdamW leaves everything as it is where this is one
        self.recorder = Recorder(self.device)
        self.inputs: tuple[Tensor, ...] = ()
        self.switches: list[Tensor] = []
        self.teacher: Tensor | None = None

    def prepare(self, batch: Sequence[Tensor], archs: Sequence[Arch | None]) -> None:
        """Record what this step needs and was not recorded; weights and averages stay as they are."""
        if not self.inputs:
            self.inputs = tuple(torch.empty_like(t, device=self.device) for t in batch)
            self.teacher = torch.empty_like(self.inputs[2], dtype=torch.float32)
            blank = [None if a is None else cast(Any, self.model).switches(a).to(self.device) for a in archs]
            self.switches = [torch.zeros(0) if b is None else b for b in blank]
        for mine, theirs in zip(self.inputs, batch, strict=True):
            mine.copy_(theirs, non_blocking=True)
        fresh = []
        for i, arch in enumerate(archs):
            fresh.append(self.recorder.record(self._key(i, arch), partial(self._learn, i, arch, len(archs))))
        if "finish" not in self.recorder.graphs:
            self.sums.fill_(math.nan)  # so that the warm-up counts as a step to skip
            fresh.append(self.recorder.record("finish", self._finish))
        if any(fresh):
            torch._foreach_zero_(self.gradients)
            self.sums.zero_()

    def step(self, archs: Sequence[Arch | None], rate: float) -> Pending:
        """Replay the step that was prepared; its batch is in place."""
        self.rate.fill_(rate)
        for i, arch in enumerate(archs):
            if arch is not None:
                own = cast(Any, self.model).switches(arch)
                self.switches[i].copy_(own.pin_memory() if self.recorder.cuda else own, non_blocking=True)
            self.recorder.replay(self._key(i, arch))
        self.recorder.replay("finish")
        return Pending(self.figures)

    def close(self) -> None:
        """Give the memory of recordings and gradients back."""
        self.recorder = Recorder(self.device)
        for p in self.parameters:
            p.grad = None

    def _key(self, i: int, arch: Arch | None) -> Hashable:
        group = None if arch is None else cast(Any, self.model).group(arch)
        return i, group

    def _learn(self, i: int, arch: Arch | None, count: int) -> None:
        """Gradients of one architecture, added to what is there."""
        settings, (x, y, target) = self.settings, self.inputs
        spare = settings.reg_largest_only and i > 0
        paths: AbstractContextManager[None] = without_drop_path(self.model) if spare else nullcontext()
        with paths, self._half():
            if arch is None:
                logits = self._short_call(self.short, x) if self.short else self.call(x)
            else:
                model = cast(Any, self.model)
                logits = model.grouped(x, model.group(arch), self.switches[i])
        assert self.teacher is not None
        loss = soft_cross_entropy(logits, self.teacher if settings.distill and i else target)
        self._add_gradients(loss * (1 / count if settings.clip else 1.0))
        with torch.no_grad():
            if settings.distill and i == 0:
                self.teacher.copy_(logits.float().softmax(-1))
            self.sums[0] += loss / count
            self.sums[1] += (logits.argmax(-1) == y).sum()

    def _half(self) -> AbstractContextManager[Any]:
        # No cache of casts: what it keeps would have to outlive a recording.
        on = self.settings.precision == "bf16"
        return torch.autocast(self.device.type, torch.bfloat16, enabled=on, cache_enabled=False)

    def _short_call(self, short: Short, x: Tensor) -> Tensor:
        """A plain network's answer through the 16-bit copies of its weights, as autocast would make them."""
        short.refresh()
        with self.call.on() if isinstance(self.call, BlockByBlock) else nullcontext():
            out: Tensor = torch.func.functional_call(self.model, short.copies, (x,))
        return out

    def _add_gradients(self, loss: Tensor) -> None:
        """The loss's gradients on top of those that are there, in a few launches."""
        if self.short:  # a plain network: one pass a step, so there is nothing to add to
            self.short.take(torch.autograd.grad(loss, self.short.used, allow_unused=True))
            return
        found = torch.autograd.grad(loss, self.parameters, allow_unused=True)
        pairs = [(mine, new) for mine, new in zip(self.gradients, found, strict=True) if new is not None]
        torch._foreach_add_([m for m, _ in pairs], [n for _, n in pairs])

    def _finish(self) -> None:
        """Clip, step and average, unless something was not finite; then make ready for the next step."""
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, self.settings.clip or math.inf, foreach=True)
        with torch.no_grad():
            good = norm.isfinite() & self.sums[0].isfinite()
            self.bad.copy_(~good)
            self.figures.copy_(torch.cat([self.sums, norm[None]]))
        self.optimizer.step()
        with torch.no_grad():
            if self.ema is not None:
                weight = (1 - self.settings.ema) * good
                for name, parameter in self.model.named_parameters():
                    self.ema[name].lerp_(parameter, weight.to(parameter.dtype))
            torch._foreach_zero_(self.gradients)
            self.sums.zero_()


class Short:
    """16-bit copies of the weights of linear layers and convolutions, which autocast would cast at every use.

    Copies and gradients lie in three buffers: a network has hundreds of small tensors, and a launch for each cast and
    each gradient was a twelfth of a small network's step.
    """

    def __init__(self, model: nn.Module) -> None:
        owners = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.Linear | nn.Conv2d)]
        names = {f"{n}.{leaf}" for n, m in owners for leaf, _ in m.named_parameters(recurse=False)}
        named = {n: p for n, p in model.named_parameters() if p.requires_grad}
        halves = [n for n in named if n in names]
        wholes = [n for n in named if n not in names]
        self.weights = [named[n] for n in halves]
        self.flat = Flat(self.weights, torch.bfloat16)
        self.copies = {n: part.requires_grad_() for n, part in zip(halves, self.flat.parts, strict=True)}
        self.order = [*halves, *wholes]
        self.used = [*self.copies.values(), *(named[n] for n in wholes)]  # what a loss is differentiated by
        self.of_copies = Flat(self.weights, torch.float32)
        self.of_wholes = Flat([named[n] for n in wholes], torch.float32)
        by_name = dict(zip(self.order, [*self.of_copies.parts, *self.of_wholes.parts], strict=True))
        self.gradients = [by_name[n] for n in named]

    def refresh(self) -> None:
        """The weights as they are now."""
        self.flat.fill(self.weights)

    def take(self, found: Sequence[Tensor | None]) -> None:
        """Gradients of what is used, in its order, in place of those before."""
        whole = [torch.zeros_like(u) if g is None else g for u, g in zip(self.used, found, strict=True)]
        self.of_copies.fill(whole[: len(self.copies)])
        self.of_wholes.fill(whole[len(self.copies) :])


class GraphCalls:
    """A supernet's answers, recorded per group and shape: ``call(x, arch)``."""

    def __init__(self, model: nn.Module, bf16: bool) -> None:
        self.model, self.bf16, self.device = model, bf16, next(model.parameters()).device
        self.recorder = Recorder(self.device)
        self.inputs: dict[Hashable, tuple[Tensor, Tensor]] = {}
        self.answers: dict[Hashable, Tensor] = {}

    @torch.no_grad()
    def __call__(self, x: Tensor, arch: Arch) -> Tensor:
        """Logits (B, classes); the next call with images of this shape writes over them."""
        model, shape = cast(Any, self.model), tuple(x.shape)
        group, own = model.group(arch), model.switches(arch)
        if shape not in self.inputs:
            self.inputs[shape] = torch.empty_like(x), own.to(x.device)
        images, switches = self.inputs[shape]
        images.copy_(x)
        switches.copy_(own.pin_memory() if x.is_cuda else own, non_blocking=True)

        def work() -> None:
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16, cache_enabled=False):
                logits = model.grouped(images, group, switches)
            self.answers.setdefault(shape, torch.empty_like(logits)).copy_(logits)

        self.recorder.record((group, shape), work)
        self.recorder.replay((group, shape))
        return self.answers[shape]
