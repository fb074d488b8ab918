"""Training steps and evaluations as CUDA graphs: recorded once per shape, then replayed with one launch.

A step of a transformer is hundreds of kernels. Where launching them takes longer than running them, the GPU waits for
Python; a recorded step has no Python in it. Shapes must repeat, so a supernet runs in groups (``model.grouped``): one
recording per width and depth, with the heads and hidden widths in use as an input. A plain network of any kind is
tried: it is rehearsed first, and what cannot be recorded runs eagerly.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tailorvit.arch import Arch
from tailorvit.train.compiled import CompiledBlocks
from tailorvit.train.optim import SliceAdamW, batch_statistics, soft_cross_entropy, taught, without_drop_path
from tailorvit.train.settings import TrainSettings
from tailorvit.train.share import Share
from tailorvit.train.teacher import Lesson, Teacher, Telling, told

# -- recordings -------------------------------------------------------------------------------------------------------


class NotRecorded(Exception):
    """Work that cannot be recorded, and why; nothing has changed."""


def can_record(model: nn.Module, settings: TrainSettings, optimizer: torch.optim.Optimizer, device: str) -> bool:
    """Whether it is worth trying to record a training's steps."""
    adamw = isinstance(optimizer, torch.optim.AdamW) and not isinstance(optimizer, SliceAdamW)
    # The slices of a supernet have other shapes in every step, so it must run in groups.
    shapes_repeat = hasattr(model, "grouped") or not hasattr(model, "slices")
    on_gpu = torch.device(device).type == "cuda"
    return settings.graphs and on_gpu and adamw and shapes_repeat and settings.freeze == "none"


class Recorder:
    """Recordings by key, in one memory pool: what they write for others lies outside it, so any order is safe.

    Without CUDA a recording is the work itself, done again at every replay; tests on a CPU use that.
    """

    def __init__(self, device: torch.device) -> None:
        self.graphs: dict[Hashable, Callable[[], None]] = {}
        self.device, self.cuda = device, device.type == "cuda"
        self.pool: Any = None

    def record(self, key: Hashable, work: Callable[[], None], rehearse: bool = False) -> None:
        """Record work unless the key is known; it is run to warm up, and a second time where it is to be rehearsed."""
        if key in self.graphs:
            return
        try:
            self.graphs[key] = self._captured(work, rehearse) if self.cuda else self._warmed(work, rehearse)
            return
        except Exception as error:  # whatever it is: a mistake of the network's own comes again in an eager step
            reason = _first_cause(error)
        # Raised here, since an error keeps all tensors of its calls alive.
        raise NotRecorded(reason)

    def replay(self, key: Hashable) -> None:
        """Run a recording."""
        self.graphs[key]()

    def _warmed(self, work: Callable[[], None], rehearse: bool) -> Callable[[], None]:
        """The work itself, after compilers, autotuners, libraries and what a network makes once have settled."""
        work()
        if rehearse:
            with rehearsal(self.device):
                work()
        return work

    def _captured(self, work: Callable[[], None], rehearse: bool) -> Callable[[], None]:
        side, here = torch.cuda.Stream(), torch.cuda.current_stream()
        side.wait_stream(here)
        try:
            with torch.cuda.stream(side):
                self._warmed(work, rehearse)
        finally:
            here.wait_stream(side)
        torch.cuda.empty_cache()  # the recording has memory of its own: do not hold both
        graph, pool = torch.cuda.CUDAGraph(), self.pool or torch.cuda.graph_pool_handle()
        try:
            # Another thread that fills pinned memory at this moment must not break the recording.
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                work()
        except Exception:
            _end_capture(here, pool)
            raise
        self.pool = pool
        return graph.replay


def _end_capture(stream: torch.cuda.Stream, pool: Any) -> None:
    """End a recording that failed: else stream, allocator and random generator stay as if it went on."""
    torch.cuda.set_stream(stream)
    torch.cuda.synchronize()
    index = torch.cuda.current_device()
    try:
        torch._C._cuda_endAllocateToPool(index, pool)
        torch._C._cuda_releasePool(index, pool)
    except RuntimeError:
        pass  # torch has ended it
    generator = torch.cuda.default_generators[index]
    generator.graphsafe_set_state(generator.clone_state())


def _first_cause(error: BaseException) -> str:
    """What went wrong first, in one line: later errors only say that a recording had failed."""
    while error.__context__ is not None:
        error = error.__context__
    text = (str(error).strip().splitlines() or [""])[0]
    return text if isinstance(error, NotRecorded) else f"{type(error).__name__}: {text}"


# -- rehearsals -------------------------------------------------------------------------------------------------------


class _Refuse(TorchDispatchMode):
    """While it is on, operations for which the host must wait for the device are errors, in backward passes too.

    A recording would refuse them as well, but a failed recording leaves more to clean up.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kind = device.type

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        if any(t.device.type == self.kind for t in given) and _read_by_host(func, args):
            raise NotRecorded(f"the host must read a result of the device ({func})")
        out = func(*args, **(kwargs or {}))
        if func in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default):
            kinds = {t.device.type for t in (*given, out)}
            if self.kind in kinds and len(kinds) > 1:
                raise NotRecorded(f"a tensor is copied between {' and '.join(sorted(kinds))} in every step")
        return out


def _read_by_host(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether an operation's outcome or the shape of its result depends on values."""
    aten = torch.ops.aten
    if func.overloadpacket in (aten.index, aten.index_put, aten.index_put_):  # shapes depend on masks only
        masks = any(isinstance(t, Tensor) and t.dtype in (torch.bool, torch.uint8) for t in args[1])
        return masks and not (len(args) > 2 and args[2].numel() == 1)  # one value: written where the mask is set
    return torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags


@contextmanager
def rehearsal(device: torch.device) -> Iterator[None]:
    """Refuse inside what a recording would refuse, and what it would silently repeat: draws on the host."""
    before = _host_generators(device)
    with _Refuse(device):
        yield
    if _host_generators(device) != before:
        raise NotRecorded("random numbers are drawn on the host, and a recording would repeat them")


def _host_generators(device: torch.device) -> tuple[Any, ...]:
    name, keys, *rest = np.random.get_state()  # noqa: NPY002 - networks may draw from the legacy generator
    ours = b"" if device.type == "cpu" else torch.get_rng_state().numpy().tobytes()
    return random.getstate(), name, np.asarray(keys).tobytes(), *rest, ours


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
        call: Callable[..., Any],
        optimizer: torch.optim.Optimizer,
        settings: TrainSettings,
        device: str,
        teacher: Teacher | None = None,
        share: Share | None = None,
    ) -> None:
        self.share = share
        self.model, self.call, self.optimizer = model, call, optimizer
        self.settings, self.device, self.teacher = settings, torch.device(device), teacher
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.half: HalfWeights | None = None
        called: Any = call.model if isinstance(call, CompiledBlocks) else call
        own_forward = called is model or isinstance(called, Telling)
        self.supernet = hasattr(model, "slices")
        float32 = all(p.dtype == torch.float32 for p in self.parameters)
        if settings.precision == "bf16" and own_forward and not self.supernet and float32:
            self.half = HalfWeights(called)
        # Not compiled: a compiler does things in its calls that no recording has.
        self.rehearse = own_forward and called is call and not self.supernet
        self.gradients = [torch.zeros_like(p) for p in self.parameters] if self.half is None else self.half.gradients
        for p, grad in zip(self.parameters, self.gradients, strict=True):
            p.grad = grad
        self.statistics = Statistics(model)
        self.rates = {group["share"]: torch.zeros((), device=device) for group in optimizer.param_groups}
        for group in optimizer.param_groups:
            group["lr"], group["capturable"] = self.rates[group["share"]], self.device.type == "cuda"
        self.sums = torch.zeros(2, device=device)  # loss, correct answers
        self.figures = torch.zeros(3, device=device)  # the same, and the norm of the gradient
        self.not_finite = torch.zeros((), device=device)
        cast(Any, optimizer).found_inf = self.not_finite  # where this is one, the fused AdamW changes nothing
        self.recorder = Recorder(self.device)
        self.inputs: tuple[Tensor, ...] = ()
        self.switches: list[Tensor] = []
        self.distilled: Tensor | None = None  # what the others of a sandwich learn
        self.lesson: Lesson | None = None  # outside the recordings: the teacher's writes it, the others read it

    def prepare(self, batch: Sequence[Tensor], archs: Sequence[Arch | None]) -> None:
        """Copy a batch in and record what this step needs; weights, moments and batch statistics do not change.

        Raises NotRecorded where something cannot be recorded.
        """
        if not self.inputs:
            self.inputs = tuple(torch.empty_like(t, device=self.device) for t in batch)
            self.distilled = torch.empty_like(self.inputs[2], dtype=torch.float32)
            first = [None if a is None else cast(Any, self.model).switches(a).to(self.device) for a in archs]
            self.switches = [torch.zeros(0) if s is None else s for s in first]
        for mine, theirs in zip(self.inputs, batch, strict=True):
            mine.copy_(theirs, non_blocking=True)
        keys = [self._key(i, arch) for i, arch in enumerate(archs)]
        if all(key in self.recorder.graphs for key in (*keys, "finish")):
            return
        with self.statistics.unchanged():
            try:
                if self.teacher is not None:  # first, so that the others learn something sensible as they warm up
                    self.recorder.record("teacher", partial(self._ask, self.teacher), rehearse=True)
                for i, (key, arch) in enumerate(zip(keys, archs, strict=True)):
                    self.recorder.record(key, partial(self._learn, i, arch, len(archs)), self.rehearse)
                self.sums.fill_(math.nan)  # so that the warm-up counts as a step to skip
                self.recorder.record("finish", self._finish)
            finally:
                torch._foreach_zero_(self.gradients)
                self.sums.zero_()

    def step(self, archs: Sequence[Arch | None], lr: float) -> Pending:
        """Replay the step that was prepared."""
        for share, rate in self.rates.items():
            rate.fill_(lr * share)
        if self.teacher is not None:
            self.recorder.replay("teacher")
        for i, arch in enumerate(archs):
            if arch is not None:
                switches = cast(Any, self.model).switches(arch)
                self.switches[i].copy_(switches.pin_memory() if self.recorder.cuda else switches, non_blocking=True)
            self.recorder.replay(self._key(i, arch))
        if self.share is not None:
            self.share.add_up(self.gradients, self.sums)  # between two recordings, which hold no message
        self.recorder.replay("finish")
        return Pending(self.figures)

    def close(self) -> None:
        """Free the memory of recordings and gradients; the optimiser is again as for eager steps."""
        self.recorder = Recorder(self.device)
        for p in self.parameters:
            p.grad = None
        for group in self.optimizer.param_groups:
            group["lr"], group["capturable"] = self.settings.lr, False
        if getattr(self.optimizer, "found_inf", None) is self.not_finite:
            del cast(Any, self.optimizer).found_inf

    def _key(self, i: int, arch: Arch | None) -> Hashable:
        group = None if arch is None else cast(Any, self.model).group(arch)
        return i, group

    @torch.no_grad()
    def _ask(self, teacher: Teacher) -> None:
        """Store what a teacher says about the batch."""
        x, _, target = self.inputs
        with self.device, self._autocast():
            found = teacher.lesson(x, target)
        if self.lesson is None:  # while it warms up
            self.lesson = Lesson._make(None if t is None else torch.empty_like(t) for t in found)
        for mine, new in zip(self.lesson, found, strict=True):
            if mine is not None and new is not None:
                mine.copy_(new)

    def _learn(self, i: int, arch: Arch | None, count: int) -> None:
        """Add the gradients of one architecture."""
        settings, (x, y, target) = self.settings, self.inputs
        if i == 0:
            self.statistics.keep()
        no_drop = settings.reg_largest_only and i > 0
        paths: AbstractContextManager[None] = without_drop_path(self.model) if no_drop else nullcontext()
        # Tensors that a network makes in its forward without naming a device: on the host they could not be recorded.
        made = self.device if self.rehearse else nullcontext()
        whole, weight = (nullcontext(), 1.0) if self.share is None else (self.share.forward(), self.share.weight)
        with paths, made, self._autocast(), whole:
            if arch is None:
                logits, tokens = told(self._half_call(self.half, x) if self.half else self.call(x))
            else:
                model = cast(Any, self.model)
                logits, tokens = model.grouped(x, model.group(arch), self.switches[i]), None
        assert self.distilled is not None
        if self.teacher is None or self.lesson is None:
            loss = soft_cross_entropy(logits, self.distilled if settings.distill and i else target)
        else:
            loss = self.teacher.loss(logits, tokens, self.lesson)
        self._add_gradients(loss * ((1 / count if settings.clip else 1.0) * weight))
        with torch.no_grad():
            if settings.distill and i == 0:
                self.distilled.copy_(taught(target, logits))
            self.sums[0] += loss * (weight / count)
            self.sums[1] += (logits.argmax(-1) == y).sum()

    def _autocast(self) -> AbstractContextManager[Any]:
        # Without the cache of casts, whose tensors would have to outlive a recording.
        on = self.settings.precision == "bf16"
        return torch.autocast(self.device.type, torch.bfloat16, enabled=on, cache_enabled=False)

    def _half_call(self, half: HalfWeights, x: Tensor) -> Any:
        """A plain network's output with the 16-bit copies of its weights, equal to those autocast would make."""
        half.refresh()
        with self.call.enabled() if isinstance(self.call, CompiledBlocks) else nullcontext():
            return half(x)

    def _add_gradients(self, loss: Tensor) -> None:
        """Add the loss's gradients to the sums, in a few launches."""
        if self.half:  # a plain network: one pass a step, so there is nothing to add to
            self.half.set_gradients(self.half.differentiate(loss))
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
            self.statistics.undo(self.not_finite > 0)
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


class Statistics:
    """What a forward pass changes in a network, such as the statistics of batch norms; taken back on the device."""

    def __init__(self, model: nn.Module) -> None:
        by_kind: dict[torch.dtype, list[Tensor]] = {}
        for tensor in batch_statistics(model):
            by_kind.setdefault(tensor.dtype, []).append(tensor)
        self.groups = [(own, FlatBuffer(own, kind), FlatBuffer(own, kind)) for kind, own in by_kind.items()]

    def keep(self) -> None:
        """Remember them as they are."""
        for own, before, _ in self.groups:
            before.fill(own)

    @torch.no_grad()
    def undo(self, where: Tensor) -> None:
        """Put back what was kept if ``where``, a tensor of one entry, is true."""
        for own, before, now in self.groups:
            now.fill(own)
            now.whole.copy_(torch.where(where, before.whole, now.whole))
            torch._foreach_copy_(own, now.parts)

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """At the end they are as they were, whatever happened inside."""
        saved = [(t, t.clone()) for own, _, _ in self.groups for t in own]
        try:
            yield
        finally:
            with torch.no_grad():
                for tensor, before in saved:
                    tensor.copy_(before)


class HalfWeights:
    """16-bit copies of the weights of linear layers and convolutions, which autocast would cast at every use.

    Layers of other kinds keep their weights, and autocast does with them what it does in eager steps. Copies and
    gradients lie in three buffers: a network has hundreds of small tensors, and a launch for each cast and each
    gradient was a twelfth of a small network's step.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        named = {n: p for n, p in model.named_parameters() if p.requires_grad}
        places = [  # one for each use: modules may share a weight
            (f"{n}.{leaf}" if n else leaf, p, leaf in _cast_by_autocast(m))
            for n, m in model.named_modules()
            for leaf, p in m._parameters.items()
            if p is not None
        ]
        kept = {p for _, p, cast_there in places if not cast_there}
        halves = [n for n, p in named.items() if p not in kept]
        others = [n for n, p in named.items() if p in kept]
        self.weights = [named[n] for n in halves]
        self.buffer = FlatBuffer(self.weights, torch.bfloat16)
        self.copies = {n: part.requires_grad_() for n, part in zip(halves, self.buffer.parts, strict=True)}
        self.order = [*halves, *others]
        self.leaves = [*self.copies.values(), *(named[n] for n in others)]  # a loss is differentiated by these
        copies = dict(zip(self.weights, self.copies.values(), strict=True))
        self.places = {n: copies[p] for n, p, _ in places if p in copies}
        self.copy_gradients = FlatBuffer(self.weights, torch.float32)
        self.other_gradients = FlatBuffer([named[n] for n in others], torch.float32)
        parts = [*self.copy_gradients.parts, *self.other_gradients.parts]
        by_name = dict(zip(self.order, parts, strict=True))
        self.gradients = [by_name[n] for n in named]

    def refresh(self) -> None:
        """Copy the weights of this moment."""
        self.buffer.fill(self.weights)

    def __call__(self, x: Tensor) -> Any:
        """The network's output with the copies in the place of its weights."""
        return torch.func.functional_call(self.model, self.places, (x,), tie_weights=False)

    def differentiate(self, loss: Tensor) -> Sequence[Tensor | None]:
        """Gradients of the leaves."""
        found = torch.autograd.grad(loss, [*self.leaves, *self.weights], allow_unused=True)
        if any(g is not None for g in found[len(self.leaves) :]):
            raise NotRecorded("a weight is also used from outside its layer, where no copy can take its place")
        return found[: len(self.leaves)]

    def set_gradients(self, found: Sequence[Tensor | None]) -> None:
        """Replace the gradients by those of the leaves."""
        every = [torch.zeros_like(leaf) if g is None else g for leaf, g in zip(self.leaves, found, strict=True)]
        self.copy_gradients.fill(every[: len(self.copies)])
        self.other_gradients.fill(every[len(self.copies) :])


def _cast_by_autocast(layer: nn.Module) -> tuple[str, ...]:
    """The parameters of a layer that it hands to one product as they are; a subclass may compute with them first."""
    for kind, calls in ((nn.Linear, ("forward",)), (nn.Conv2d, ("forward", "_conv_forward"))):
        if isinstance(layer, kind) and all(getattr(type(layer), c) is getattr(kind, c) for c in calls):
            return "weight", "bias"
    return ()


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
