"""Where memory runs out: training steps and evaluations with fewer images at a time."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from tailorvit.errors import TailorError, out_of_memory


class MemoryNotice(UserWarning):
    """Something goes on with fewer images at a time; a run writes it to its log."""


def free() -> None:
    """Give a device's unused memory back, so that smaller pieces find room."""
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    if torch.backends.mps.is_available():
        torch.mps.empty_cache()


def halved(parts: int, images: int, norms: bool, why: str) -> tuple[int, str]:
    """Twice as many parts of a step's images, and the sentence that says so; batch norms need two images at least."""
    most = -(-images // parts)
    parts = min(2 * parts, images // 2 if norms else images)
    now = -(-images // max(parts, 1))
    if now >= most:
        least = "the least that batch norm can use" if norms and most > 1 else "the least there is"
        raise TailorError(
            f"Out of memory in a training step of {most} image{'s' * (most > 1)}, {least} ({why}): "
            "take a smaller network (--max-params) or smaller images (--image-size)."
        )
    seen = f"; batch norms now see {now} images at a time, so results may differ" if norms else ""
    text = (
        f"out of memory with {most} images at a time ({why}): steps go on with {now} at a time "
        f"and add their gradients up{seen}"
    )
    return parts, text


def reason(error: BaseException) -> str:
    """What the allocator said, up to its first full stop."""
    text = " ".join(str(error).split())
    text = text.rsplit("DefaultCPUAllocator: ", 1)[-1].removeprefix("CUDA out of memory. ")
    return text.split(". ", 1)[0].rstrip(".") or type(error).__name__


class Fitting:
    """A network called with as many images at a time as memory allows; in evaluation every image is on its own."""

    def __init__(self, call: Callable[..., Tensor], most: int = 0) -> None:
        self.call, self.most = call, most  # 0: no bound is known

    def __call__(self, x: Tensor) -> Tensor:
        """The outputs of all images."""
        while True:
            pieces = x.split(self.most) if self.most else (x,)
            try:
                # Copied: a recording writes its next outputs to the same place.
                found = [self.call(piece).clone() if self.most else self.call(piece) for piece in pieces]
                return torch.cat(found) if self.most else found[0]
            except Exception as error:
                if not out_of_memory(error):
                    raise
                why = reason(error)
            self._halve(len(pieces[0]), why)  # here, since an error keeps all tensors of its calls alive

    def _halve(self, size: int, why: str) -> None:
        free()
        if size < 2:
            raise TailorError(
                f"Out of memory in an evaluation of one image ({why}): "
                "take a smaller network (--max-params) or smaller images (--image-size)."
            )
        self.most = size // 2
        text = f"Out of memory with {size} images at a time ({why}): the evaluation goes on with {self.most}."
        warnings.warn(text, MemoryNotice, stacklevel=3)
