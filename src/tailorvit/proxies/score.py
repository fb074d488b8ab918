"""Scorer: architectures in, scores out, in this process or (ScorerPool) in several.

One untrained supernet per initialisation serves any number of architectures, so memory does not grow with them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache
from multiprocessing import get_context
from typing import Any

import torch
from torch import Tensor, nn

from tailorvit import proxies
from tailorvit.arch import Arch
from tailorvit.costs import Counter
from tailorvit.errors import TailorError
from tailorvit.families import family, with_settings
from tailorvit.families.base import around
from tailorvit.proxies.base import Labelled, Proxy, ProxySettings, Refused, Scored, Task
from tailorvit.rng import derive
from tailorvit.space import Space

Parts = dict[str, float]


class Scorer:
    """Scores architectures of a space: same seed and architecture, same score, whatever else is scored.

    A candidate is a plain network whose weights are slices of one untrained supernet per initialisation, so it starts
    as a sub-network of that supernet does. Where only a family is given, every architecture gets the smallest supernet
    that contains it. That is slower, and architectures then share no weights.
    """

    def __init__(
        self,
        space: Space | str,
        shared: Mapping[str, Any] | None = None,
        settings: ProxySettings | None = None,
        seed: int = 0,
        device: str | torch.device = "cpu",
        images: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        self.settings, self.seed, self.device = settings or ProxySettings(), seed, torch.device(device)
        self.proxies = [proxies.proxy(name) for name in self.settings.names]
        size = self.settings.image_size
        self.space = space if isinstance(space, Space) else None
        self.shared = {**(dict(space.settings) if isinstance(space, Space) else {}), **(shared or {})}
        self.shared |= {} if size is None else {"image_size": size}
        self.family = family(space.family if isinstance(space, Space) else space)
        if self.space is not None:
            self.space = with_settings(self.space, **self.shared)
        self.counter = Counter(self.family.name, self.shared)
        self.images = None if images is None else self._checked(*images)
        for p in self.proxies:
            if p.needs == "images" and images is None and not self.settings.noise:
                raise TailorError(
                    f"The proxy {p.name} needs images and labels: give data, or allow noise and random labels."
                )
        self._forget()

    def __call__(self, archs: Sequence[Arch]) -> list[Scored]:
        """Scores in the order given."""
        return rescored([self._one(arch) for arch in archs])

    def network(self, arch: Arch, init: int = 0) -> nn.Module:
        """The untrained plain network that is scored; its weights are the supernet's own, so do not train it."""
        plain: nn.Module = self.family.extract(self._supernet(arch, init), arch, share=True)
        return plain

    def _forget(self) -> None:
        self._supernets: dict[int, nn.Module] = {}
        self._caches: list[dict[str, Any]] = [{} for _ in range(self.settings.inits)]

    def _checked(self, images: Tensor, labels: Tensor) -> Labelled:
        shared = self.counter.shared
        wanted = (int(shared.channels), *map(int, shared.image_size))
        if tuple(images.shape[1:]) != wanted:
            raise TailorError(f"The images are {list(images.shape[1:])}; the networks take {list(wanted)}.")
        if len(images) != len(labels) or not len(images) or int(labels.max()) >= shared.classes:
            raise TailorError(
                f"{len(images)} images need as many labels under {shared.classes}, "
                f"not {len(labels)} up to {int(labels.max()) if len(labels) else 'none'}."
            )
        return Labelled(images, labels)

    def _supernet(self, arch: Arch, init: int) -> nn.Module:
        if init not in self._supernets:
            space = self.space or Space(self.family.name, around(arch), tuple(self.shared.items()))
            with torch.random.fork_rng():
                torch.manual_seed(derive(self.seed, "proxies", init))
                self._supernets[init] = self.family.supernet(space).eval().to(self.device)
        return self._supernets[init]

    def _one(self, arch: Arch) -> Scored:
        params, macs = self.counter.both(arch)
        if self.space is None:
            self._forget()
        found: dict[str, list[Parts]] = {p.name: [] for p in self.proxies}
        problems: dict[str, str] = {}
        for init in range(self.settings.inits):
            network = cache(lambda init=init: self.network(arch, init))
            for p in self.proxies:
                if p.name in problems or (init and p.cost == "counted"):
                    continue
                task = self._task(p, arch, params, macs, network, init)
                try:
                    parts = p.measure(task)
                except Refused as error:
                    problems[p.name] = str(error)
                    continue
                if not math.isfinite(parts["score"]):
                    problems[p.name] = f"{p.name} is {parts['score']} with initialisation {init + 1}."
                found[p.name].append(parts)
        means = {name: _mean(rows) for name, rows in found.items() if rows}
        scores = {p.name: None if p.name in problems else means[p.name]["score"] for p in self.proxies}
        parts_of = {name: {k: v for k, v in row.items() if k != "score"} for name, row in means.items()}
        return Scored(arch, params, macs, scores, {k: v for k, v in parts_of.items() if v}, problems)

    def _task(self, p: Proxy, arch: Arch, params: int, macs: int, network: Callable[[], nn.Module], init: int) -> Task:
        images = self.images if p.needs == "images" else None
        batch = self.settings.batch or p.batch
        return Task(
            arch,
            self.family.name,
            self.counter.shared,
            params,
            macs,
            network,
            derive(self.seed, "proxies", init, "draws"),
            batch if images is None else min(batch, len(images.images)),
            images,
            self._caches[init],
        )


def _mean(rows: Sequence[Parts]) -> Parts:
    """Over initialisations."""
    return {k: sum(row[k] for row in rows) / len(rows) for k in rows[0]}


def rescored(rows: Sequence[Scored]) -> list[Scored]:
    """The same rows; scores of proxies that compare candidates with each other (te) are computed over these rows."""
    found = [(dict(r.scores), dict(r.problems)) for r in rows]
    for name in {n for r in rows for n in r.scores}:
        rule = proxies.PROXIES[name].together if name in proxies.PROXIES else None  # old run folders may name others
        if rule is None:
            continue
        whole = [i for i, r in enumerate(rows) if name in r.parts and all(map(math.isfinite, r.parts[name].values()))]
        if len(whole) > 1:
            for i, score in zip(whole, rule([rows[i].parts[name] for i in whole]), strict=True):
                found[i][0][name] = score
                found[i][1].pop(name, None)
        elif whole:
            found[whole[0]][0][name] = None
            found[whole[0]][1][name] = f"{name} ranks candidates against each other: score at least two together."
    return [replace(r, scores=scores, problems=problems) for r, (scores, problems) in zip(rows, found, strict=True)]


# -- several processes ------------------------------------------------------------------------------------------------

_scorer: Scorer | None = None  # of a worker process, made once when it starts


def _start_worker(arguments: dict[str, Any]) -> None:
    global _scorer
    torch.set_num_threads(1)  # one thread per process
    _scorer = Scorer(**arguments)


def _score_in_worker(arch: Arch) -> Scored:
    assert _scorer is not None
    return _scorer([arch])[0]


class ScorerPool:
    """A :class:`Scorer` of several processes, with its arguments and the same scores; close it after use.

    One network is too small to fill a GPU, or two cores. On an H200 a score of AutoFormer-T is 31 ms of building and
    52 ms of a pass that waits for Python; eight processes gave 51 architectures a second, one gave 13.
    """

    def __init__(self, count: int, **arguments: Any) -> None:
        if count < 1:
            raise TailorError(f"Scores need at least one worker, not {count}.")
        Scorer(**arguments)  # wrong arguments raise here, not in a worker
        # Spawned: a forked process cannot use the parent's GPU.
        self._pool = ProcessPoolExecutor(count, get_context("spawn"), _start_worker, (arguments,))
        self.count = count

    def __call__(self, archs: Sequence[Arch]) -> list[Scored]:
        """Scores in the order given."""
        chunk = max(1, len(archs) // (4 * self.count))
        return rescored(list(self._pool.map(_score_in_worker, archs, chunksize=chunk)))

    def close(self) -> None:
        """End the processes."""
        self._pool.shutdown(cancel_futures=True)

    def __enter__(self) -> ScorerPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
