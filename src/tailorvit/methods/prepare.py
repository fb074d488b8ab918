"""From a recipe to a plan: everything that can fail before training does, in one place."""

from __future__ import annotations

import math
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch

from tailorvit import ranks, units
from tailorvit.arch import Arch
from tailorvit.costs.clock import Clock
from tailorvit.costs.count import Counter
from tailorvit.costs.limits import COUNTED
from tailorvit.costs.meter import Meter
from tailorvit.costs.need import step_bytes
from tailorvit.data import Data, open_data
from tailorvit.errors import TailorError
from tailorvit.families import family, with_settings
from tailorvit.families.base import around
from tailorvit.memory import half_precision, require_memory, usable_device
from tailorvit.methods import METHODS
from tailorvit.methods.contest import AUTO, Entry, first_entries
from tailorvit.methods.feasibility import limits_to_check, require_feasible
from tailorvit.methods.finetune import StartingNetwork, earlier_splits, read_start
from tailorvit.methods.first_space import data_settings, default_limit, fixed_arch, image_size_for, initial_space
from tailorvit.methods.latency import with_clock
from tailorvit.methods.peers import check_peers
from tailorvit.methods.released import space_of_released
from tailorvit.methods.schedule import DEFAULTS as DEFAULT_SECONDS
from tailorvit.methods.session import Plan
from tailorvit.methods.tailor import PretrainedStart, require_cuts
from tailorvit.methods.trunk import tower_of, trunk_data
from tailorvit.registry import HOME
from tailorvit.search import SEARCHERS
from tailorvit.space import Space
from tailorvit.train.settings import TrainSettings

if TYPE_CHECKING:
    from tailorvit.config import Config

STARTED = ("tailor", "finetune")  # methods that begin with the network of [start]
SUPERNETS = ("s4", "s3", "autoformer", "bignas", "hat")  # methods whose supernets [train] trains
Start = StartingNetwork | PretrainedStart
SMALL_STEP = (
    2_000_000_000  # MACs of a training step's forward pass; below, waiting for threads costs more than it gains
)


def prepare(config: Config, saved_splits: dict[str, Any] | None = None, start: Start | None = None) -> Plan:
    """Check names, device, data, space and limits, and resolve them. A resumed run brings its stored splits."""
    METHODS[config.method]
    if config.start.network and METHODS.origin(config.method) == HOME and config.method not in STARTED:
        raise TailorError(
            f"start.network is '{config.start.network}', but method '{config.method}' starts from no network; "
            f"methods that do: {', '.join(STARTED)}."
        )
    if config.start.beside and config.method not in STARTED:
        raise TailorError(f"start.beside goes with methods {' and '.join(STARTED)}, not with '{config.method}'.")
    if config.family != AUTO:
        family(config.family)
    by_supernet = config.method == "tailor" and config.tailor.search == "supernet"
    if config.train.keep == "best" and (config.method in SUPERNETS or by_supernet):
        raise TailorError(
            f"train.keep = 'best' is for single networks, and method '{config.method}' trains supernets by [train]: "
            "write final.train.keep = 'best'."
        )
    _require_packages(config)
    device = usable_device(config.device)
    config, clock = with_clock(config, device)
    start = start or read_start(config)
    data, pixels = _read_data(config, saved_splits, start, device)
    config = _with_device_settings(_with_default_limit(config, data, start), data, device)
    for training in (config.train, config.final.train):
        data.augment(training.augment)  # an unknown preset is found here
    require_images_for_paths(config.train, data)
    check_peers(config.peers, data)
    limits = config.budget()
    entries: list[Entry] = []
    if holds_contest(config):
        entries = first_entries(config.family, data, limits, config.final.train, device, clock)
        space, arch = entries[0].space, None
    else:
        space, arch = _first_space(config, data, start, device, clock)
    space = space_of_released(config, data, space, resumed=saved_splits is not None)
    _require_memory(config, space, device)
    if saved_splits is None:  # a resumed run was checked; measuring a latency again could refuse it
        meter = Meter.for_space(space, limits_to_check(config, limits), device=device, clock=clock)
        require_feasible(config, space, meter, arch)
        require_cuts(config, space, meter)
    # From here on the recipe says what was chosen, so that a resumed run cannot choose otherwise.
    config = replace(
        config,
        space=space.to_dict() if _searches(config) and not entries else config.space,
        data=replace(config.data, image_size=pixels),
        device=device,
        threads=threads_for(config, space),
    )
    return Plan(config, data, space, limits, device, start, tuple(entries), clock=clock)


def _require_memory(config: Config, space: Space, device: str) -> None:
    """Say before training that a step of the largest network cannot fit."""
    counter, batch = Counter(space.family, dict(space.settings)), config.train.batch
    high, wide = counter.shared.image_size
    what = f"A training step on {batch} images of {high}x{wide} px"
    half = config.train.precision in ("bf16", "fp16") and torch.device(device).type == "cuda"
    need = step_bytes(counter, space.hull(), batch, training=True, width=2 if half else 4)
    require_memory(need, what, "set data.image_size, train.batch or the limit on parameters lower", device)


def holds_contest(config: Config) -> bool:
    """Whether a contest decides on family, shape and training before anything else."""
    return config.method == "contest" or (config.family == AUTO and _searches(config))


def _with_device_settings(config: Config, data: Data, device: str) -> Config:
    """What follows from device and data where the recipe leaves it open: precision, batch, memory for images, time."""
    cuda = torch.device(device).type == "cuda"
    if not holds_contest(config) and config.method != "tailor":
        if config.seconds() is not None:
            raise TailorError(
                f"A budget of time is planned for a contest (method contest, or family auto) and for method tailor, "
                f"not for method '{config.method}' with family '{config.family}': set epochs instead."
            )
        config = replace(config, time=None)
    if config.time == AUTO:
        config = replace(config, time=DEFAULT_SECONDS["cuda" if cuda else "cpu"])

    def settled(train: TrainSettings) -> TrainSettings:
        precision: Any = train.precision if train.precision != AUTO else half_precision(device)
        return replace(train, precision=precision, batch=train.batch or batch_for(data.counts["train"], cuda))

    final = replace(config.final, train=settled(config.final.train))
    return replace(config, train=settled(config.train), final=final)


def require_images_for_paths(train: TrainSettings, data: Data) -> None:
    """Refuse more paths than a batch has pairs of images: every path gets a pair, which may be mixed."""
    images = min(train.batch, data.counts["train"])
    if train.paths > 1 and images // 2 < train.paths:
        raise TailorError(f"train.paths = {train.paths} needs batches of {2 * train.paths} images, not of {images}.")


def batch_for(images: int, cuda: bool) -> int:
    """A batch that leaves some forty steps to an epoch, between 32 and 128, or 256 on a GPU."""
    return int(min(256 if cuda else 128, max(32, 2 ** int(math.log2(max(images / 40, 1))))))


def _searches(config: Config) -> bool:
    return config.method not in ("fixed", "finetune")


def _require_packages(config: Config) -> None:
    """Optional packages the recipe asks for: their absence would end the run after its first training."""
    wanted = [("tensorboard = true", ("tensorboard", "tailorvit[tensorboard]"))] if config.tensorboard else []
    if _searches(config) and (needs := SEARCHERS[config.searcher].needs):
        wanted.append((f"The {config.searcher} search", needs))
    for what, (module, requirement) in wanted:
        if find_spec(module) is None:
            raise TailorError(f"{what} needs the package {module}: pip install '{requirement}'.")


def several_gpus(device: str) -> str | None:
    """How to use all GPUs of a machine, where a run has one of several."""
    count = torch.cuda.device_count() if device == "cuda" and ranks.world() == 1 else 1
    if count < 2:
        return None
    return (
        f"This machine has {count} GPUs and the run uses one: `torchrun --nproc-per-node {count} -m tailorvit` in "
        "place of `tailorvit` uses all (docs/distributed.md)."
    )


def _read_data(
    config: Config, saved_splits: dict[str, Any] | None, start: Start | None, device: str
) -> tuple[Data, tuple[int, int]]:
    """The data, with a trunk's features in place of images where the recipe has a trunk; and the image size."""
    tower, pretrained = tower_of(config), start if isinstance(start, PretrainedStart) else None
    tuned = start if isinstance(start, StartingNetwork) else None
    usual = tuned.size if tuned is not None else tower.default_size if tower is not None else None
    wanted = image_size_for(config)

    def opened(size: int | tuple[int, int] | None) -> Data:
        return open_data(
            config.data.source,
            seed=config.seed,
            image_size=size,
            search_share=config.data.search_share,
            test_share=config.data.test_share,
            saved=saved_splits,
            cache_bytes=config.data.cache,
            disk_bytes=config.data.disk_cache,
            limit=config.data.limit,
            earlier=None if tuned is None else earlier_splits(config),
        )

    if pretrained is not None and wanted is None:
        high, wide = opened(None).image_size
        usual = pretrained.fitting_size((high, wide))
    data = opened(usual if wanted is None else wanted)
    if pretrained is not None:
        pretrained.require_size((data.image_size[0], data.image_size[1]))
    high, wide = data.image_size
    return trunk_data(config, tower, data, device), (high, wide)


def _with_default_limit(config: Config, data: Data, start: Start | None = None) -> Config:
    """An upper limit on parameters by the number of images, where an auto space would have none that is counted.

    Memory and latency are bounds too, but what they leave room for may be far more than the images can train. A
    pretrained network without any limit is cut to half its size.
    """
    limits = config.budget()
    floor = next((low for metric, low, _ in limits if metric == "params" and low), 0.0)
    if isinstance(start, PretrainedStart):
        if any(high for _, _, high in limits):
            return config
        half = sum(tensor.numel() for tensor in start.pretrained.state.values()) // 2
        return replace(config, limits={**config.limits, "max_params": max(half, 2 * floor)})
    if not _searches(config) or config.space != "auto" or any(high for m, _, high in limits if m in COUNTED):
        return config
    highest = max(units.parse(default_limit(data.counts["train"]), "params"), 2 * floor)
    return replace(config, limits={**config.limits, "max_params": highest})


def _first_space(
    config: Config, data: Data, start: Start | None, device: str, clock: Clock
) -> tuple[Space, Arch | None]:
    """The first space, and the only architecture of a fine-tuning."""
    limits = config.budget()
    if config.method == "fixed":
        arch, settings = fixed_arch(config)
        base = Space(arch.family, around(arch), tuple(settings.items()))
        return with_settings(base, **data_settings(base if settings else None, data, limits, arch.family)), None
    if start is not None:
        start.normalise(data)
        if isinstance(start, PretrainedStart):
            return start.space(data), None
        arch, space = start.space(data)
        return space, arch
    return initial_space(config, data, limits, device, clock), None


def threads_for(config: Config, space: Space) -> int:
    """CPU threads of a run: one for networks so small that a busy second core would slow every operation."""
    if config.threads:
        return config.threads
    if config.budget().measured:
        return torch.get_num_threads()  # as latencies were measured while the space was chosen
    work = Meter.for_space(space).cost("macs", space.largest()) * config.train.batch
    return 1 if work < SMALL_STEP else torch.get_num_threads()
