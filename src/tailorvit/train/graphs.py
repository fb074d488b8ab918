"""Training steps and evaluations as CUDA graphs: recorded once per shape, then replayed with one launch.

A step of a transformer is hundreds of kernels. Where launching them takes longer than running them, the GPU waits for
Python; a recorded step has no Python in it. Shapes must repeat, so a supernet runs in groups (``model.grouped``): one
recording per width and depth, with the heads and hidden widths in use as an input.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from tailorvit.arch import Arch
from tailorvit.train.compiled import CompiledBlocks
from tailorvit.train.optim import SliceAdamW, soft_cross_entropy, taught, without_drop_path
from tailorvit.train.settings import TrainSettings

# -- recordings -------------------------------------------------------------------------------------------------------


def can_record(
    model: nn.Module, settings: TrainSettings, optimizer: torch.optim.Optimizer, device: str, batch_norms: bool
) -> bool:
    """Whether a training's steps can be recorded: they may not depend on values the host would have to read."""
    adamw = isinstance(optimizer, torch.optim.AdamW) and not isinstance(optimizer, SliceAdamW)
    # Other networks may make tensors on the host in their forward, which a recording refuses: not tried on a GPU yet.
    tried = hasattr(model, "grouped") or bool(getattr(model, "recordable", False))
    return (
        settings.graphs
        and torch.device(device).type == "cuda"
        and adamw
        and tried
        and settings.freeze == "none"
        and not batch_norms
    )


class Recorder:
    """Recordings by key, in one memory pool: what they write for others lies outside it, so any order is safe.

    Without CUDA a recording is the work itself, done again at every replay; tests on a CPU use that.
    """

    def __init__(self, device: torch.device) -> None:
        self.graphs: dict[Hashable, Callable[[], None]] = {}
        self.cuda = device.type == "cuda"
        self.pool: Any = None

    def record(self, key: Hashable, work: Callable[[], None]) -> bool:
        """Record work unless the key is known; True where it was run (once) to warm up."""
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
        # Another thread that fills pinned memory at this moment must not break the recording.
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


# -- training steps ---------------------------------------------------------------------------------------------------


class GraphSteps:
    """Recorded optimiser steps over one batch and the architectures of a rule; the same arithmetic as eager steps."""

    def __init__(
        self,
        model: nn.Module,
        call: Callable[..., Tensor],
        optimizer: torch.optim.Optimizer,
        settings: TrainSettings,
        device: str,
    ) -> None:
        self.model, self.call, self.optimizer = model, call, optimizer
        self.settings, self.device = settings, torch.device(device)
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.half: HalfWeights | None = None
        own_forward = call is model or isinstance(call, CompiledBlocks)
        if settings.precision == "bf16" and own_forward and not hasattr(model, "slices"):
            self.half = HalfWeights(model)
        self.gradients = [torch.zeros_like(p) for p in self.parameters] if self.half is None else self.half.gradients
        for p, grad in zip(self.parameters, self.gradients, strict=True):
            p.grad = grad
        self.lr = torch.zeros((), device=device)
        for group in optimizer.param_groups:
            group["lr"], group["capturable"] = self.lr, self.device.type == "cuda"
        self.sums = torch.zeros(2, device=device)  # loss, correct answers
        self.figures = torch.zeros(3, device=device)  # the same, and the norm of the gradient
        self.not_finite = torch.zeros((), device=device)
        cast(Any, optimizer).found_inf = self.not_finite  # where this is one, the fused AdamW changes nothing
        self.recorder = Recorder(self.device)
        self.inputs: tuple[Tensor, ...] = ()
        self.switches: list[Tensor] = []
        self.teacher: Tensor | None = None

    def prepare(self, batch: Sequence[Tensor], archs: Sequence[Arch | None]) -> None:
        """Copy a batch in and record what this step needs; weights and moments do not change."""
        if not self.inputs:
            self.inputs = tuple(torch.empty_like(t, device=self.device) for t in batch)
            self.teacher = torch.empty_like(self.inputs[2], dtype=torch.float32)
            first = [None if a is None else cast(Any, self.model).switches(a).to(self.device) for a in archs]
            self.switches = [torch.zeros(0) if s is None else s for s in first]
        for mine, theirs in zip(self.inputs, batch, strict=True):
            mine.copy_(theirs, non_blocking=True)
        ran = []
        for i, arch in enumerate(archs):
            ran.append(self.recorder.record(self._key(i, arch), partial(self._learn, i, arch, len(archs))))
        if "finish" not in self.recorder.graphs:
            self.sums.fill_(math.nan)  # so that the warm-up counts as a step to skip
            ran.append(self.recorder.record("finish", self._finish))
        if any(ran):
            torch._foreach_zero_(self.gradients)
            self.sums.zero_()

    def step(self, archs: Sequence[Arch | None], lr: float) -> Pending:
        """Replay the step that was prepared."""
        self.lr.fill_(lr)
        for i, arch in enumerate(archs):
            if arch is not None:
                switches = cast(Any, self.model).switches(arch)
                self.switches[i].copy_(switches.pin_memory() if self.recorder.cuda else switches, non_blocking=True)
            self.recorder.replay(self._key(i, arch))
        self.recorder.replay("finish")
        return Pending(self.figures)

    def close(self) -> None:
        """Free the memory of recordings and gradients."""
        self.recorder = Recorder(self.device)
        for p in self.parameters:
            p.grad = None

    def _key(self, i: int, arch: Arch | None) -> Hashable:
        group = None if arch is None else cast(Any, self.model).group(arch)
        return i, group

    def _learn(self, i: int, arch: Arch | None, count: int) -> None:
        """Add the gradients of one architecture."""
        settings, (x, y, target) = self.settings, self.inputs
        no_drop = settings.reg_largest_only and i > 0
        paths: AbstractContextManager[None] = without_drop_path(self.model) if no_drop else nullcontext()
        with paths, self._autocast():
            if arch is None:
                logits = self._half_call(self.half, x) if self.half else self.call(x)
            else:
                model = cast(Any, self.model)
                logits = model.grouped(x, model.group(arch), self.switches[i])
        assert self.teacher is not None
        loss = soft_cross_entropy(logits, self.teacher if settings.distill and i else target)
        self._add_gradients(loss * (1 / count if settings.clip else 1.0))
        with torch.no_grad():
            if settings.distill and i == 0:
                self.teacher.copy_(taught(target, logits))
            self.sums[0] += loss / count
            self.sums[1] += (logits.argmax(-1) == y).sum()

    def _autocast(self) -> AbstractContextManager[Any]:
        # Without the cache of casts, whose tensors would have to outlive a recording.
        on = self.settings.precision == "bf16"
        return torch.autocast(self.device.type, torch.bfloat16, enabled=on, cache_enabled=False)

    def _half_call(self, half: HalfWeights, x: Tensor) -> Tensor:
        """A plain network's logits with the 16-bit copies of its weights, equal to those autocast would make."""
        half.refresh()
        with self.call.enabled() if isinstance(self.call, CompiledBlocks) else nullcontext():
            out: Tensor = torch.func.functional_call(self.model, half.copies, (x,))
        return out

    def _add_gradients(self, loss: Tensor) -> None:
        """Add the loss's gradients to the sums, in a few launches."""
        if self.half:  # a plain network: one pass a step, so there is nothing to add to
            self.half.set_gradients(torch.autograd.grad(loss, self.half.leaves, allow_unused=True))
            return
        found = torch.autograd.grad(loss, self.parameters, allow_unused=True)
        pairs = [(mine, new) for mine, new in zip(self.gradients, found, strict=True) if new is not None]
        torch._foreach_add_([m for m, _ in pairs], [n for _, n in pairs])

    def _finish(self) -> None:
        """Clip and step, unless something was not finite; then clear the sums for the next step."""
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, self.settings.clip or math.inf, foreach=True)
        with torch.no_grad():
            self.not_finite.copy_(~(norm.isfinite() & self.sums[0].isfinite()))
            self.figures.copy_(torch.cat([self.sums, norm[None]]))
        self.optimizer.step()
        with torch.no_grad():
            torch._foreach_zero_(self.gradients)
            self.sums.zero_()


# -- many small tensors in one buffer ---------------------------------------------------------------------------------

ALIGN = 64  # entries: compilers and fused optimisers need tensors that begin at round addresses


class FlatBuffer:
    """A buffer with a part for each of the tensors ``like``: filled or cast in two launches, not one for each."""

    def __init__(self, like: Sequence[Tensor], dtype: torch.dtype) -> None:
        device = like[0].device if like else torch.device("cpu")
        self.gaps = [-t.numel() % ALIGN for t in like]
        sizes = [t.numel() + gap for t, gap in zip(like, self.gaps, strict=True)]
        self.whole = torch.zeros(sum(sizes), dtype=dtype, device=device)
        self.parts: list[Tensor] = []
        offset = 0
        for t, size in zip(like, sizes, strict=True):
            # Shares the memory but is no view: compilers see through views to the shape of the whole.
            part = torch.empty(0, dtype=dtype, device=device)
            part.set_(self.whole.untyped_storage(), offset, t.shape, _strides(t.shape))
            self.parts.append(part)
            offset += size
        self.blanks: dict[torch.dtype, Tensor] = {}

    @torch.no_grad()
    def fill(self, tensors: Sequence[Tensor]) -> None:
        """Copy tensors of one dtype to the parts."""
        if not tensors:
            return
        kind = tensors[0].dtype
        if kind not in self.blanks:  # stored: a recording would make it again at every replay
            self.blanks[kind] = torch.zeros(ALIGN, dtype=kind, device=self.whole.device)
        blank = self.blanks[kind]
        pieces: list[Tensor] = []
        for t, gap in zip(tensors, self.gaps, strict=True):
            pieces.append(t.reshape(-1))
            if gap:
                pieces.append(blank[:gap])
        if kind == self.whole.dtype:
            torch.cat(pieces, out=self.whole)
        else:
            self.whole.copy_(torch.cat(pieces))


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


class HalfWeights:
    """16-bit copies of the weights of linear layers and convolutions, which autocast would cast at every use.

    Copies and gradients lie in three buffers: a network has hundreds of small tensors, and a launch for each cast and
    each gradient was a twelfth of a small network's step.
    """

    def __init__(self, model: nn.Module) -> None:
        owners = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.Linear | nn.Conv2d)]
        names = {f"{n}.{leaf}" for n, m in owners for leaf, _ in m.named_parameters(recurse=False)}
        named = {n: p for n, p in model.named_parameters() if p.requires_grad}
        halves = [n for n in named if n in names]
        others = [n for n in named if n not in names]
        self.weights = [named[n] for n in halves]
        self.buffer = FlatBuffer(self.weights, torch.bfloat16)
        self.copies = {n: part.requires_grad_() for n, part in zip(halves, self.buffer.parts, strict=True)}
        self.order = [*halves, *others]
        self.leaves = [*self.copies.values(), *(named[n] for n in others)]  # a loss is differentiated by these
        self.copy_gradients = FlatBuffer(self.weights, torch.float32)
        self.other_gradients = FlatBuffer([named[n] for n in others], torch.float32)
        parts = [*self.copy_gradients.parts, *self.other_gradients.parts]
        by_name = dict(zip(self.order, parts, strict=True))
        self.gradients = [by_name[n] for n in named]

    def refresh(self) -> None:
        """Copy the weights of this moment."""
        self.buffer.fill(self.weights)

    def set_gradients(self, found: Sequence[Tensor | None]) -> None:
        """Replace the gradients by those of the leaves."""
        every = [torch.zeros_like(leaf) if g is None else g for leaf, g in zip(self.leaves, found, strict=True)]
        self.copy_gradients.fill(every[: len(self.copies)])
        self.other_gradients.fill(every[len(self.copies) :])


# -- evaluation -------------------------------------------------------------------------------------------------------


class GraphCalls:
    """A supernet's logits, recorded per group and input shape: ``call(x, arch)``."""

    def __init__(self, model: nn.Module, bf16: bool) -> None:
        self.model, self.bf16, self.device = model, bf16, next(model.parameters()).device
        self.recorder = Recorder(self.device)
        self.inputs: dict[Hashable, tuple[Tensor, Tensor]] = {}
        self.outputs: dict[Hashable, Tensor] = {}

    @torch.no_grad()
    def __call__(self, x: Tensor, arch: Arch) -> Tensor:
        """Logits (B, classes); the next call with images of this shape overwrites them."""
        model, shape = cast(Any, self.model), tuple(x.shape)
        group, in_use = model.group(arch), model.switches(arch)
        if shape not in self.inputs:
            self.inputs[shape] = torch.empty_like(x), in_use.to(x.device)
        images, switches = self.inputs[shape]
        images.copy_(x)
        switches.copy_(in_use.pin_memory() if x.is_cuda else in_use, non_blocking=True)

        def work() -> None:
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16, cache_enabled=False):
                logits = model.grouped(images, group, switches)
            self.outputs.setdefault(shape, torch.empty_like(logits)).copy_(logits)

        self.recorder.record((group, shape), work)
        self.recorder.replay((group, shape))
        return self.outputs[shape]
