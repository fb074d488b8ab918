"""Finetune: train a finished network on, for other images, other classes or another resolution.

Holds the papers' settings (PRESETS), the starting network with what it becomes for the data, and the method itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import torch

from tailorvit.arch import Arch
from tailorvit.data import Data
from tailorvit.errors import TailorError, unknown
from tailorvit.export import Network, load
from tailorvit.export.network import WEIGHTS, network_folder
from tailorvit.families import family
from tailorvit.families.base import around
from tailorvit.families.network import PlainNetwork, Sides, Windows
from tailorvit.families.resize import require_size, resized, resized_settings
from tailorvit.methods import Method
from tailorvit.rng import seed_everything
from tailorvit.runs import Run
from tailorvit.runs.atomic import write_bytes
from tailorvit.search import Candidate
from tailorvit.space import Space
from tailorvit.texts import read_table
from tailorvit.train import accuracy

if TYPE_CHECKING:
    from tailorvit.config import Config
    from tailorvit.methods.peers import Peer
    from tailorvit.methods.session import Session
    from tailorvit.methods.tailor import PretrainedStart

PROBE, SCRATCH = "linear-probe", "training-from-scratch"  # trained beside, as result.json names them
COPY = "start"  # folder in the run that holds the starting network; a resumed run needs no other


@dataclass(frozen=True)
class StartSettings:
    """[start]: the weights a run starts from."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by config.py

    network: str = ""  # finetune: folder of a finished run, or with network.json; tailor: timm:NAME, a file, ...
    weights: str = ""  # method tailor: a local copy of the network's weight file; nothing is downloaded
    windows: Literal["scale", "keep"] = "scale"  # at another image size: windows grow with the image, or stay
    # finetune: also a linear probe on the frozen network, and the same network from scratch; tailor: also the whole
    # network slimmed uniformly, and the shape found from scratch
    beside: bool = False
    supernet: str = ""  # methods autoformer, bignas, hat: a released supernet's file, searched without training

    def __post_init__(self) -> None:
        if self.weights and not self.network:
            raise TailorError(
                f"start.weights is '{self.weights}', but start.network, which it belongs to, is not given: "
                "--from timm:NAME sets it."
            )


# -- presets ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Preset:
    """One way to fine-tune: training settings, and the image size where the paper names one."""

    name: str
    summary: str
    source: str
    train: Mapping[str, Any]
    image_size: int | None = None

    def recipe(self) -> dict[str, Any]:
        """The part of a recipe it stands for."""
        size = {} if self.image_size is None else {"data": {"image_size": self.image_size}}
        return {"train": dict(self.train), **size}


# The released code neither clips nor warms up here; what no paper states (augmentation of the transfers, SGD's
# schedule) is AutoFormer's supernet recipe or our choice, and docs/transfer.md says which.
_PAPERS: Mapping[str, Any] = {"warmup": 0.0, "clip": 0.0, "augment": "standard"}
_SGD = {**_PAPERS, "optimizer": "sgd", "lr": 1e-2, "min_lr": 0.0, "batch": 64, "weight_decay": 1e-8}
_ADAM = {**_PAPERS, "lr": 5e-4, "min_lr": 1e-6, "batch": 64, "weight_decay": 1e-8}
_AUTOFORMER = "AutoFormer (ICCV 2021)"

PRESETS: Mapping[str, Preset] = {
    p.name: p
    for p in (
        Preset(
            "default",
            "AdamW 1e-4, 30 epochs: for your own photos",
            "ours",
            {"epochs": 30, "batch": 64, "lr": 1e-4, "min_lr": 1e-6, "warmup": 1.0, "drop_path": 0.1},
        ),
        Preset(
            "autoformer-384",
            "from 224 to 384 px: AdamW 1e-6, 30 epochs",
            _AUTOFORMER,
            {**_PAPERS, "epochs": 30, "batch": 64, "lr": 1e-6, "min_lr": 1e-7, "weight_decay": 0.05, "drop_path": 0.1},
            384,
        ),
        Preset(
            "s3-384",
            "from 224 to 384 px with windows that grow: AdamW at a constant 1e-5, 10 epochs",
            "S3 (NeurIPS 2021)",
            {**_PAPERS, "epochs": 10, "lr": 1e-5, "schedule": "constant", "weight_decay": 1e-8, "drop_path": 0.2},
            384,
        ),
        Preset(
            "cifar",
            "CIFAR-10 and CIFAR-100 at 224 px: SGD 1e-2, 1000 epochs",
            _AUTOFORMER,
            _SGD | {"epochs": 1000},
            224,
        ),
        Preset("cars", "Stanford Cars at 384 px: SGD 1e-2, 1000 epochs", _AUTOFORMER, _SGD | {"epochs": 1000}, 384),
        Preset("flowers", "Flowers-102 at 384 px: AdamW 5e-4, 1000 epochs", _AUTOFORMER, _ADAM | {"epochs": 1000}, 384),
        Preset("pets", "Oxford Pets at 384 px: AdamW 5e-4, 1000 epochs", _AUTOFORMER, _ADAM | {"epochs": 1000}, 384),
    )
}


def preset(name: str) -> Preset:
    """The preset of that name."""
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return PRESETS[name]


# -- the starting network ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StartingNetwork:
    """The finished network a fine-tuning starts from, and what it becomes for other data."""

    network: Network
    windows: Windows
    checksum: str  # of its files

    @property
    def model(self) -> PlainNetwork:
        """The plain network."""
        return cast(PlainNetwork, self.network.model)

    @property
    def size(self) -> Sides:
        """The image size it was trained at."""
        high, wide = self.model.settings["image_size"]
        return int(high), int(wide)

    def same_classes(self, data: Data) -> bool:
        """Whether it has the same classes in the same order: then its head stays."""
        return self.network.card.classes == tuple(data.classes)

    def _resize_arguments(self, data: Data) -> tuple[Sides, int | None, int, Windows]:
        high, wide = data.image_size
        return (high, wide), None if self.same_classes(data) else len(data.classes), data.channels, self.windows

    def target(self, data: Data) -> tuple[Arch, dict[str, Any]]:
        """The architecture and the shared settings of the network for this data."""
        card = self.network.card
        settings = resized_settings(self.model, *self._resize_arguments(data))
        shared = {"image_size": tuple(data.image_size), "classes": len(data.classes), "channels": data.channels}
        record = family(card.arch.family)
        arch, shared = record.resettle(card.arch, {**card.settings, **shared}, settings)
        with torch.device("meta"):
            built = cast(PlainNetwork, record.build(record.settings(shared), arch))
        if built.settings != settings:
            differ = next(k for k in settings if built.settings.get(k) != settings[k])
            raise TailorError(
                f"The starting network is not the {arch.family} its card describes: '{differ}' is {settings[differ]}."
            )
        return arch, shared

    def space(self, data: Data) -> tuple[Arch, Space]:
        """The architecture, and the space that holds it alone."""
        arch, shared = self.target(data)
        return arch, Space(arch.family, around(arch), tuple(sorted(shared.items())))

    def resized(self, data: Data, seed: int, drop_path: float = 0.0) -> PlainNetwork:
        """The network for this data before it is tuned; a new head is a function of the seed."""
        seed_everything(seed, "init", "head")
        return resized(self.model, *self._resize_arguments(data), drop_path)

    def normalise(self, data: Data) -> None:
        """Normalise images as the network has always seen them, not by this data's own statistics."""
        normalise_by(data, *(tuple(map(float, self.network.card.preprocessing[k])) for k in ("mean", "std")))


def normalise_by(data: Data, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
    """Normalise images by these values; from grey to colour or back they change as the filters do."""
    if len(mean) != data.channels:
        mean, std = (
            (sum(values) / len(values),) if data.channels == 1 else values * data.channels for values in (mean, std)
        )
    data.mean, data.std = mean, std


def read_start(config: Config, run: Path | None = None) -> StartingNetwork | PretrainedStart | None:
    """The start of methods finetune and tailor: the run's own copy where there is one; None for other methods."""
    if config.method == "tailor":
        from tailorvit.methods.tailor import read_pretrained

        return read_pretrained(config, run)
    if config.method != "finetune":
        return None
    if not config.start.network:
        raise TailorError(
            "Method 'finetune' needs start.network, the folder of a finished run; `tailorvit finetune RUN` sets it."
        )
    copied = run is not None and all((run / COPY / n).is_file() for n in ("network.json", WEIGHTS[0]))
    folder = network_folder(run / COPY if run is not None and copied else Path(config.start.network).expanduser())
    start = StartingNetwork(load(folder), config.start.windows, _checksum(_files(folder)))
    size = config.data.image_size
    require_size(start.model, start.size if size is None else (size, size) if isinstance(size, int) else size)
    return start


def copy_start(start: StartingNetwork | PretrainedStart | None, config: Config, run: Run) -> None:
    """Copy the starting network into the run, once; refuse another one than the run began with."""
    if start is None:
        return
    begun = run.info.get("start", {}).get("sha256")
    if begun != start.checksum:
        raise TailorError(
            f"The starting network of this run has changed since the run began (checksum {start.checksum[:12]}, "
            f"not {str(begun)[:12]})."
        )
    place = run.folder / COPY
    if not isinstance(start, StartingNetwork):
        if not start.pretrained.kept_in(place):
            start.pretrained.save(place)
        return
    if (place / "network.json").is_file():
        return
    files = _files(network_folder(Path(config.start.network).expanduser()))
    place.mkdir(exist_ok=True)
    for name in (WEIGHTS[0], "network.json"):  # the card last: it makes the copy whole
        write_bytes(place / name, files[name])


def _files(folder: Path) -> dict[str, bytes]:
    """The two files of a network, by the names a run gives them."""
    weights = next((folder / n for n in WEIGHTS if (folder / n).is_file()), folder / WEIGHTS[0])
    try:
        return {"network.json": (folder / "network.json").read_bytes(), WEIGHTS[0]: weights.read_bytes()}
    except OSError as error:
        raise TailorError(f"The network in '{folder}' cannot be read: {error.strerror or error}.") from None


def _checksum(files: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(f"{name} {len(files[name])}\n".encode() + files[name])
    return digest.hexdigest()


def earlier_splits(config: Config) -> dict[str, Any] | None:
    """The splits of the run a network comes from: on the same data its test images must not have been trained on."""
    folder = Path(config.start.network).expanduser()
    for place in (folder, folder.parent, folder.parent.parent):  # a run, the network inside it, an export of it
        try:
            return read_table(place / "splits.json")
        except (OSError, ValueError):
            continue
    return None


# -- the method -------------------------------------------------------------------------------------------------------


def finetune(session: Session) -> dict[str, Any]:
    """Train the starting network on the run's data."""
    from tailorvit.methods.finish import finish

    start = session.plan.start
    assert isinstance(start, StartingNetwork)  # the run was prepared with it
    settings, (arch, _) = session.config.final.train, start.target(session.data)
    same = start.same_classes(session.data)
    session.log_once("start", _opening(session, start, same))
    _say_splits(session, same)
    model = session.plain(arch, settings, "final", start.resized(session.data, session.seed, settings.drop_path))
    trial = session.trial(Candidate(arch, "given"), session.search_accuracy(model), 0)
    # Where a full disk refused the weights, finish trains again, and must not begin with random ones.
    again = start.resized(session.data, session.seed, settings.drop_path)
    result = finish(session, [trial], None, again, given=True, beside=_beside(session, start, arch))
    facts: dict[str, Any] = {
        "network": session.config.start.network,
        "sha256": start.checksum,
        "image_size": list(start.size),
        "classes": len(start.network.card.classes),
        "head": "kept" if same else "new",
    }
    if same:  # a new head has learnt nothing: its accuracy would be chance
        untuned = start.resized(session.data, session.seed).to(session.device).eval()
        facts["search_accuracy"] = session.search_accuracy(untuned)
        facts["test_accuracy"] = accuracy(untuned, session.batches("test"), session.device)
    return {**result, "final": "finetune", "start": facts}


def _beside(session: Session, start: StartingNetwork, arch: Arch) -> list[Peer]:
    """What the tuning is measured by, where the recipe asks for it: a linear probe, and no first training at all."""
    from tailorvit.methods.peers import Peer
    from tailorvit.methods.probe import linear_probe

    if not session.config.start.beside:
        return []
    settings = session.config.final.train
    costs = {**session.meter.facts(arch), "over": None}
    probe, penalty = linear_probe(session, start.resized(session.data, session.seed), f"peer-{PROBE}")
    session.log_once("probe", f"Linear probe: C = {penalty:g} was the best on the search images.")
    scratch = session.plain(arch, settings, f"peer-{SCRATCH}")
    return [
        Peer(PROBE, costs, 0, probe, session.search_accuracy(probe)),
        Peer(SCRATCH, costs, settings.epochs, scratch, session.search_accuracy(scratch)),
    ]


def _opening(session: Session, start: StartingNetwork, same: bool) -> str:
    (high, wide), (new_high, new_wide) = start.size, session.data.image_size
    change = (
        f"{high}x{wide} px" if (high, wide) == (new_high, new_wide) else f"{high}x{wide} to {new_high}x{new_wide} px"
    )
    head = "its head is kept" if same else f"it gets a new head for {len(session.data.classes)} classes"
    return f"Starting network: {change}; {head}."


def _say_splits(session: Session, same: bool) -> None:
    earlier = earlier_splits(session.config)
    if earlier is not None and earlier.get("fingerprint") == session.data.fingerprint:
        session.log_once("splits", "Same images as in the run of the starting network, so its splits are used.")
    elif same:
        session.log_once(
            "warning",
            "The starting network has the same classes, and the images it was trained on are not known: some test "
            "images may be among them, and then the test accuracy is too high.",
        )


METHOD = Method("finetune", "train a finished network on at another resolution or for other classes", finetune)
