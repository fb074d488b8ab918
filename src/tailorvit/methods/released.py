"""A released supernet in place of a trained one: checked against data and space, stored with the run, never trained."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from tailorvit.checkpoints import (
    IMAGENET,
    autoformer_sizes,
    checksum,
    class_count,
    load_supernet,
    read_state,
    recognise,
)
from tailorvit.data import Data
from tailorvit.errors import TailorError
from tailorvit.space import Space

if TYPE_CHECKING:
    from tailorvit.config import Config
    from tailorvit.methods.session import Session

METHODS = ("autoformer", "bignas", "hat")  # those that search in one supernet; s4 and s3 train one in every space


def space_of_released(config: Config, data: Data, space: Space, resumed: bool = False) -> Space:
    """The space, with the layout of the released supernet where the recipe names one.

    Everything that can be wrong with the file is said here. A resumed run has its weights and does not need the file.
    Images are normalised as in the papers, because the file's weights have seen no others.
    """
    file = config.start.supernet
    if not file:
        return space
    if config.method not in METHODS:
        raise TailorError(
            f"start.supernet is for the methods {', '.join(METHODS)}; '{config.method}' does not search in one."
        )
    if data.channels == len(IMAGENET.mean):
        data.mean, data.std = IMAGENET.mean, IMAGENET.std
    if resumed:
        return space
    state = read_state(file)
    classes, wanted = class_count(state), len(data.classes)
    if classes != wanted:
        raise TailorError(f"The supernet in '{file}' has {classes} classes, but the data has {wanted}.")
    found = load_supernet(state, space).space
    assert isinstance(found, Space)
    return found


def load_released(session: Session, space: Space, stage: str) -> nn.Module:
    """The supernet with the file's weights; a copy stays with the run as if it had been trained there."""
    file = Path(session.config.start.supernet)
    model = session.family.supernet(space, session.config.train.drop_path)
    if session.load_stage(model, stage):
        return model.to(session.device).eval()
    with session.timed(stage):
        state = read_state(file)
        model.load_state_dict(load_supernet(state, space).state_dict())
        facts = {"file": file.name, "loader": recognise(state), "sha256": checksum(file)}
        # A file may have room for more than the space asks for: 256 channels for 240, or a larger supernet by mistake.
        sizes = autoformer_sizes(state, int(dict(space.settings)["head_dim"]))
        size = ", ".join(f"{gene} {n}" for gene, n in sizes.items())
        text = f"weights of {file.name} ({facts['loader']}, for {size}; sha256 {facts['sha256'][:12]}), not trained"
        session.log_once("start", f"{stage}: {text}", **facts)
        session.save_stage(model, stage, facts)
    session.run.finish(stage, facts)
    return model.to(session.device).eval()
