"""The processes of one torchrun: who this one is, and how they talk. A process that runs alone needs none of it.

Process 0 is the writer: it alone has the run folder and the terminal. All messages go over the CPU (gloo); gradients
on GPUs go by NCCL. torchrun notices a lost process and ends the others, so no wait needs a short time limit.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar
from uuid import uuid4

from tailorvit.errors import TailorError

if TYPE_CHECKING:
    from torch import Tensor

PATIENCE = timedelta(days=1)  # the writer may work alone for hours; a lost process is noticed at once all the same
ARRIVAL = timedelta(minutes=10)  # all processes have started by then
PIECE = 4 << 20  # bytes of a value in the store, which takes 8 MiB at most
T = TypeVar("T")


class LostError(TailorError):
    """Another process of this run has ended."""


@dataclass
class Team:
    """The store that all processes share, how many queues were begun, and what this process keeps meanwhile."""

    store: Any  # of this joining alone
    queues: int = 0
    kept: dict[str, Any] = field(default_factory=dict)


_team: Team | None = None


# -- who ------------------------------------------------------------------------------------------------------------


def launch() -> str | None:
    """What all processes and restarts of one torchrun have in common; None where torchrun did not start this one."""
    name = os.environ.get("TORCHELASTIC_RUN_ID")
    if name is None or name != "none":
        return name
    return f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}:{os.getppid()}"


def restarted() -> bool:
    """Whether torchrun has started the processes again after one was lost."""
    return launch() is not None and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"


def rank() -> int:
    """The number of this process, from 0."""
    return int(os.environ["RANK"]) if launch() is not None else 0


def world() -> int:
    """How many processes there are."""
    return int(os.environ["WORLD_SIZE"]) if launch() is not None else 1


def is_writer() -> bool:
    """Whether this process has the run folder and the terminal."""
    return rank() == 0


def may_speak() -> bool:
    """Whether this process is the first to report an error: one sentence is enough for all."""
    if _team is None:
        return True
    try:
        return bool(_team.store.add("spoken", 1) == 1)
    except RuntimeError:  # the store went with the process that kept it
        return True


# -- joining --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def joined() -> Iterator[None]:
    """Connected to the other processes inside; after an error they stay connected, for :func:`may_speak`."""
    global _team
    if world() == 1 or _team is not None:
        yield
        return
    _team = _join()
    yield
    import torch.distributed as dist

    barrier()
    dist.destroy_process_group()
    _team = None


def leave(code: int) -> NoReturn:
    """End this process of a torchrun at once, without taking the interpreter down.

    Threads that are still there then abort some processes (3 of about 30 runs of two processes on a busy machine), and
    torchrun would count a run as failed that is finished.
    """
    atexit._run_exitfuncs()  # temporary files, readers of images
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _join() -> Team:
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    backend = "cpu:gloo,cuda:nccl" if _own_gpu() else "gloo"
    try:
        store, _, _ = next(iter(rendezvous("env://", timeout=ARRIVAL)))
        store = PrefixStore(_agreed_name(store), store)
        dist.init_process_group(backend, store=store, rank=rank(), world_size=world(), timeout=PATIENCE)
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise TailorError(f"The {world()} processes of torchrun cannot reach each other ({reason}).") from error
    return Team(PrefixStore("tailorvit", store))


def _agreed_name(store: Any) -> str:
    """A name that the processes of this attempt alone have.

    torchrun's store outlives a restart and still has the addresses of the dead. So the writer answers whoever asks,
    the dead as well, until everyone has said that the answer arrived.
    """
    own, begin = uuid4().hex, time.monotonic()
    if not is_writer():
        store.set(f"tailorvit asks {rank()}", own)
        name = str(store.get(f"tailorvit answer {own}").decode())
        store.set(f"tailorvit heard {name} {rank()}", "yes")
        return name
    absent = set(range(1, world()))
    while absent:
        for other in sorted(absent):
            if store.check([f"tailorvit asks {other}"]):
                store.set(f"tailorvit answer {store.get(f'tailorvit asks {other}').decode()}", own)
            if store.check([f"tailorvit heard {own} {other}"]):
                absent.discard(other)
        if time.monotonic() - begin > ARRIVAL.total_seconds():
            raise RuntimeError(f"{len(absent)} of them did not come")
        time.sleep(0.02)
    return own


def _own_gpu() -> bool:
    """Let this process see one GPU, also from its threads; False where there are too few for each to have its own."""
    import torch

    count, local = torch.cuda.device_count(), int(os.environ["LOCAL_RANK"])
    if count == 0:
        return False
    if torch.cuda.is_initialized():
        torch.cuda.set_device(local % count)
    else:
        names = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(count)))
        os.environ["CUDA_VISIBLE_DEVICES"] = names.split(",")[local % count].strip()
    return count >= int(os.environ["LOCAL_WORLD_SIZE"])


# -- talking --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _connected() -> Iterator[Team]:
    """Turn a broken connection into one sentence."""
    assert _team is not None, "ranks.joined() comes first"
    try:
        yield _team
    except RuntimeError as error:
        raise LostError(
            f"Another of the {world()} processes was lost; torchrun --max-restarts 3 starts all again by itself, "
            "and the run goes on from its last checkpoint."
        ) from error


def kept() -> dict[str, Any]:
    """What this process keeps between two messages."""
    assert _team is not None, "ranks.joined() comes first"
    return _team.kept


def broadcast(value: Any = None) -> Any:
    """The writer's value, in every process."""
    import torch
    import torch.distributed as dist

    held = [pickle.dumps(value) if is_writer() else b""]
    with _connected():
        dist.broadcast_object_list(held, src=0, device=torch.device("cpu"))
    return value if is_writer() else pickle.loads(held[0])


def gather(value: T) -> list[T]:
    """Every process's value in every process, in the order of the ranks."""
    import torch.distributed as dist

    found: list[Any] = [None] * world()
    with _connected():
        dist.all_gather_object(found, value)
    return found


def barrier() -> None:
    """Wait until every process has come here."""
    gather(None)


def add_up(tensor: Tensor) -> None:
    """Replace a tensor by its sum over the processes, the same to the bit in each."""
    import torch.distributed as dist

    with _connected():
        dist.all_reduce(tensor)


# -- a queue of items -----------------------------------------------------------------------------------------------


class Queue:
    """Items that whoever is free takes next; results go to the writer. All processes make it at the same point."""

    def __init__(self, count: int) -> None:
        with _connected() as team:
            team.queues += 1
            self.name, self.count, self.store = f"queue {team.queues}", count, team.store

    def take(self) -> int | None:
        """The next item nobody has; None where all are taken."""
        with _connected():
            number = int(self.store.add(self.name, 1)) - 1
        return number if number < self.count else None

    def put(self, item: int, result: Any) -> None:
        """Leave an item's result for the writer."""
        data, key = pickle.dumps(result), f"{self.name}/{item}"
        pieces = [data[at : at + PIECE] for at in range(0, len(data), PIECE)]
        with _connected():
            for number, piece in enumerate(pieces):
                self.store.set(f"{key}/{number}", piece)
            self.store.set(key, str(len(pieces)))  # last: it says that the others are there

    def get(self, item: int, wait: bool) -> tuple[bool, Any]:
        """Whether a result is there, and the result; the store forgets it."""
        key = f"{self.name}/{item}"
        with _connected():
            if wait:
                self.store.wait([key], PATIENCE)
            elif not self.store.check([key]):
                return False, None
            keys = [f"{key}/{n}" for n in range(int(self.store.get(key)))]
            data = b"".join(self.store.get(k) for k in keys)
            for k in (*keys, key):
                self.store.delete_key(k)
        return True, pickle.loads(data)
