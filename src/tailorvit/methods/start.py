"""Where a fine-tuning starts: a finished network, kept with the run, and what it becomes for other data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from tailorvit.arch import Arch
from tailorvit.config import Config, configure, merged, overrides
from tailorvit.data import Data
from tailorvit.errors import TailorError
from tailorvit.export import Network, load
from tailorvit.export.network import WEIGHTS, network_folder
from tailorvit.families import family
from tailorvit.families.network import PlainNetwork
from tailorvit.families.resize import Windows, require_size, resized, resized_settings
from tailorvit.families.windows.plain import Sides
from tailorvit.methods.plan import around, tiny
from tailorvit.rng import seed_everything
from tailorvit.runs import Run
from tailorvit.runs.atomic import write_bytes
from tailorvit.space import Space
from tailorvit.train.transfer import preset

COPY = "start"  # folder in the run; a resumed run needs no other


@dataclass(frozen=True)
class Start:
    """The network a run starts from."""

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
        """Whether it tells the same classes apart, in the same order: then its head stays."""
        return self.network.card.classes == tuple(data.classes)

    def arguments(self, data: Data) -> tuple[Sides, int | None, int, Windows]:
        """What :func:`tailorvit.plain.resize.resized` is asked for."""
        high, wide = data.image_size
        return (high, wide), None if self.same_classes(data) else len(data.classes), data.channels, self.windows

    def target(self, data: Data) -> tuple[Arch, dict[str, Any]]:
        """The architecture and the shared settings of the network for this data, as its family spells them."""
        card = self.network.card
        settings = resized_settings(self.model, *self.arguments(data))
        shared = {"image_size": tuple(data.image_size), "classes": len(data.classes), "channels": data.channels}
        arch, fixed = card.arch, {**card.fixed, **shared}
        if arch.family == "swin":
            fixed["window"] = settings["stages"][0]["window"][0]
        elif arch.family == "windowed":
            stages = settings["stages"]
            arch = arch.replace(**{f"window.{i}": tuple(stage["window"]) for i, stage in enumerate(stages, 1)})
        elif arch.family == "shunted":
            fixed["reduce"] = tuple(settings["reduce"])
        record = family(arch.family)
        with torch.device("meta"):
            built = cast(PlainNetwork, record.build(record.frame(fixed), arch))
        if built.settings != settings:
            differ = next(k for k in settings if built.settings.get(k) != settings[k])
            raise TailorError(
                f"The starting network is no {arch.family} as its architecture says: '{differ}' is {settings[differ]}."
            )
        return arch, fixed

    def space(self, data: Data) -> tuple[Arch, Space]:
        """The architecture, and the space that holds it alone."""
        arch, fixed = self.target(data)
        return arch, Space(arch.family, around(arch), tuple(sorted(fixed.items())))

    def resized(self, data: Data, seed: int, drop_path: float = 0.0) -> PlainNetwork:
        """The network for this data before it is tuned; a new head is a function of the seed."""
        seed_everything(seed, "init", "head")
        return resized(self.model, *self.arguments(data), drop_path)

    def normalise(self, data: Data) -> None:
        """Let images be normalised as the network has always seen them, not by this data's own statistics."""
        mean, std = (tuple(map(float, self.network.card.preprocessing[k])) for k in ("mean", "std"))
        if len(mean) != data.channels:  # grey to colour or back, as the filters are
            mean, std = (
                (sum(values) / len(values),) if data.channels == 1 else values * data.channels for values in (mean, std)
            )
        data.mean, data.std = mean, std


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


def open_start(config: Config, run: Path | None = None) -> Start | None:
    """The starting network of method finetune: the run's own copy where there is one; None for other methods."""
    if config.method != "finetune":
        return None
    if not config.start.network:
        raise TailorError(
            "Method 'finetune' needs start.network, the folder of a finished run; `tailorvit finetune RUN` sets it."
        )
    copied = run is not None and all((run / COPY / n).is_file() for n in ("network.json", WEIGHTS[0]))
    folder = network_folder(run / COPY if run is not None and copied else Path(config.start.network).expanduser())
    start = Start(load(folder), config.start.windows, _checksum(_files(folder)))
    require_size(start.model, _side(config) or start.size)
    return start


def earlier_splits(config: Config) -> dict[str, Any] | None:
    """The splits of the run a network comes from: on the same data its test images must not have been trained on."""
    folder = Path(config.start.network).expanduser()
    for place in (folder, folder.parent, folder.parent.parent):  # a run, the network inside it, an export of it
        try:
            found = json.loads((place / "splits.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        return found if isinstance(found, dict) else None
    return None


def _side(config: Config) -> Sides | None:
    size = config.data.image_size
    return (size, size) if isinstance(size, int) else size


def keep_start(start: Start | None, config: Config, run: Run) -> None:
    """Copy the starting network into the run, once; refuse another one than the run began with."""
    if start is None:
        return
    begun = run.info.get("start", {}).get("sha256")
    if begun != start.checksum:
        raise TailorError(
            f"The network this run starts from has changed since it began (checksum {start.checksum[:12]}, "
            f"not {str(begun)[:12]})."
        )
    place = run.folder / COPY
    if (place / "network.json").is_file():
        return
    files = _files(network_folder(Path(config.start.network).expanduser()))
    place.mkdir(exist_ok=True)
    for name in (WEIGHTS[0], "network.json"):  # the card last: it makes the copy whole
        write_bytes(place / name, files[name])


def transfer_recipe(
    network: str | Path,
    *,
    data: str,
    image_size: int | None = None,
    preset_name: str = "default",
    windows: str | None = None,
    seed: int | None = None,
    sets: Sequence[str] = (),
    small: bool = False,
) -> Config:
    """The config of a fine-tuning: the preset, then the options, then ``--set``."""
    base = preset(preset_name).recipe()
    if small:
        base.pop("data", None)  # a paper's 384 px are no seconds of work
    options: dict[str, Any] = {
        "method": "finetune",
        "start": {"network": str(network), **({"windows": windows} if windows else {})},
        "data": {"source": data, **({"image_size": image_size} if image_size is not None else {})},
        **({"seed": seed} if seed is not None else {}),
    }
    full = merged(merged(base, options), overrides(sets))
    if small:
        # There is one training, [train]: without a table of its own the last one is the same.
        full = merged({k: v for k, v in tiny(full, own_data=True).items() if k != "final"}, overrides(sets))
    return configure(full)
