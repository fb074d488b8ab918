"""``tailorvit import``: a published checkpoint as a network folder, which predict, export and finetune take."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailorvit import units
from tailorvit.errors import TailorError
from tailorvit.lookup import read_arch


@dataclass(frozen=True)
class Imported:
    """The folder that was written, and facts about the checkpoint."""

    folder: Path
    facts: dict[str, Any]

    def lines(self) -> list[str]:
        """The lines that the command line prints."""
        facts = self.facts
        size = f"{facts['params']:,} parameters, {units.show(facts['macs'])} MACs (papers' FLOPs)"
        return [
            f"{facts['checkpoint']}: {facts['kind']} ({facts['summary']}), loaded as {facts['arch']}",
            f"  {size}, {facts['classes']} classes, {facts['tensors']} tensors",
            f"  {facts['preprocessing']}",
            f"  network folder {self.folder}",
        ]

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {"folder": str(self.folder), **self.facts}


def import_checkpoint(
    path: str | Path,
    arch: str,
    *,
    classes_file: str | Path | None = None,
    out: str | Path | None = None,
    image_size: int | None = None,
    origin: str | None = None,
) -> Imported:
    """Read a checkpoint into the plain network of a named architecture (or ARCH.json) and write its folder.

    The folder is ``networks/NAME`` unless ``out`` is given. ``classes_file`` holds the class names, one per line.
    ``origin``, as timm:NAME, says whose preprocessing to write where the file itself does not.
    """
    from tailorvit.checkpoints import IMAGENET, LOADERS, checksum, load_plain, read_state, recognise
    from tailorvit.checkpoints.prepared import preparation
    from tailorvit.costs import Counter
    from tailorvit.export import Card, save_network
    from tailorvit.export.base import require_free, whole_folder

    architecture, settings = read_arch(arch)
    if image_size is not None:
        settings["image_size"] = (image_size, image_size)
    place = Path("networks") / Path(arch).stem if out is None else Path(out)
    require_free(place)
    state = read_state(path)
    loader = LOADERS[recognise(state)]
    network = load_plain(state, architecture, settings, label=f"'{arch}'")
    names = class_names(classes_file, int(network.num_classes))
    settings = {**settings, **loader.settings, "classes": len(names)}
    counter = Counter(architecture.family, settings)
    shared = counter.shared
    if shared.channels != len(IMAGENET.mean):
        raise TailorError(
            f"Published networks take colour images, so 'channels' of '{arch}' cannot be {shared.channels}."
        )
    how, why = preparation(Path(path), loader, origin)
    params, macs = counter.both(architecture)
    facts: dict[str, Any] = {
        "method": "import",
        "checkpoint": Path(path).name,
        "sha256": checksum(path),
        "kind": loader.name,
        "params": params,
        "macs": macs,
        "preprocessing": why,
    }
    preprocessing = {
        "image_size": list(shared.image_size),
        "channels": shared.channels,
        "mean": list(how.mean),
        "std": list(how.std),
        "margin": how.margin,
    }
    with whole_folder(place) as beside:
        save_network(beside, network, Card(architecture, settings, names, preprocessing, facts))
    shown = {"arch": arch, "summary": loader.summary, "classes": len(names), "tensors": len(state)}
    return Imported(place, {**facts, **shown})


def class_names(path: str | Path | None, count: int) -> tuple[str, ...]:
    """The names in a file, one per line; without a file, "class 0" and so on."""
    if path is None:
        return tuple(f"class {i}" for i in range(count))
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TailorError(f"The classes file '{path}' cannot be read: {error}.") from None
    names = [line.strip() for line in lines if line.strip()]
    if len(names) != count:
        raise TailorError(f"The classes file '{path}' has {len(names)} names, but the checkpoint has {count} classes.")
    seen: dict[str, int] = {}
    for number, name in enumerate(names, 1):
        if name in seen:  # ImageNet's usual list has two cranes and two maillots
            raise TailorError(
                f"The classes file '{path}' has '{name}' twice, as names {seen[name]} and {number}; "
                "predictions are given by name, so each class needs its own."
            )
        seen[name] = number
    return tuple(names)
