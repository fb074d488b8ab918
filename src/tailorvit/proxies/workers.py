"""The same scores from several processes: one network is too small to fill a GPU, or two cores.

On an H200 a score of AutoFormer-T is 31 ms of building and 52 ms of a pass whose kernels wait for Python; eight
processes gave 51 architectures a second where one gave 13.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import torch

from tailorvit.arch import Arch
from tailorvit.errors import TailorError
from tailorvit.proxies.base import Scored
from tailorvit.proxies.score import Scorer, rescored

_own: Scorer | None = None  # of a worker process, made once when it starts


def _start(arguments: dict[str, Any]) -> None:
    global _own
    torch.set_num_threads(1)  # the processes are the threads
    _own = Scorer(**arguments)


def _score(arch: Arch) -> Scored:
    assert _own is not None
    return _own([arch])[0]


class Workers:
    """A :class:`Scorer` of several processes, to be closed; takes its arguments and gives its scores."""

    def __init__(self, count: int, **arguments: Any) -> None:
        if count < 1:
            raise TailorError(f"Scores need at least one worker, not {count}.")
        Scorer(**arguments)  # what is wrong with them is told here, not in a worker
        # Spawned: a forked process cannot use the parent's GPU.
        self._pool = ProcessPoolExecutor(count, get_context("spawn"), _start, (arguments,))
        self.count = count

    def __call__(self, archs: Sequence[Arch]) -> list[Scored]:
        """Scores in the order given."""
        chunk = max(1, len(archs) // (4 * self.count))
        return rescored(list(self._pool.map(_score, archs, chunksize=chunk)))

    def close(self) -> None:
        """End the processes."""
        self._pool.shutdown(cancel_futures=True)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
