"""What every export format shares: the job, the images to check on, the check, and the folder written whole or not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from tailorvit.errors import TailorError
from tailorvit.export.network import Card, Network
from tailorvit.texts import read_table, read_toml

if TYPE_CHECKING:
    from tailorvit.data import Data

TOLERANCE = 1e-4  # of the largest logit, or of 1 where all are smaller
MARK = "tailorvit-export.json"  # lists the files of an export, so that nothing else is ever deleted
_BATCH = 256


# -- images to check on -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Images:
    """The images an export is checked on: the run's, or random ones (``data`` is None) for the reason in ``origin``."""

    card: Card
    data: Data | None
    origin: str

    def sample(self, count: int, split: str = "test") -> Tensor:
        """At most ``count`` normalised images, evenly spaced over the split."""
        if self.data is None:
            noise = torch.Generator().manual_seed(0)
            return torch.randn(count, *self.card.shape, generator=noise)
        total = self.data.counts[split]
        chosen = np.unique(np.linspace(0, total - 1, min(count, total)).astype(np.int64)).tolist()
        return self.data.normalise(self.data.examples(split, chosen)[0])

    def batches(self, split: str) -> Iterator[tuple[Tensor, Tensor]]:
        """All normalised images of a split with their class numbers."""
        assert self.data is not None
        return self.data.eval_batches(split, _BATCH)


def images_of(folder: Path, card: Card, source: str | None = None) -> Images:
    """The images of a run folder, whose test split is opened, or random images with the reason.

    ``source`` says where the run's data is now; it must be the same data.
    """
    if not (folder / "recipe.toml").is_file():
        return Images(card, None, "random images: the folder holds a network but no run")
    try:
        data = _run_data(folder, source)
        if (data.channels, *data.image_size) != card.shape:
            raise TailorError(f"its images are {(data.channels, *data.image_size)}, the network's {card.shape}")
        data.mean, data.std = (tuple(card.preprocessing[k]) for k in ("mean", "std"))  # the network's, not the data's
        data.unseal_test("to check an export")
    except (TailorError, OSError, LookupError, TypeError, ValueError) as error:
        if source is not None:
            raise TailorError(f"The run's data cannot be read from '{source}': {error}") from error
        why = str(error).rstrip(".")
        return Images(card, None, f"random images: the run's data cannot be read ({why})")
    return Images(card, data, "test images of the run")


def _run_data(folder: Path, source: str | None) -> Data:
    """The run's data with its recorded splits; the test part of a new split might have been trained on."""
    from tailorvit.data import open_data
    from tailorvit.data.sources import source_of_run

    recipe = read_toml(folder / "recipe.toml")
    saved, info = (read_table(folder / name) for name in ("splits.json", "info.json"))
    settings: dict[str, Any] = recipe["data"]
    size = settings.get("image_size")
    return open_data(
        source or source_of_run(settings["source"], info, folder),
        seed=recipe.get("seed", 0),
        image_size=tuple(size) if isinstance(size, list) else size,
        saved=saved,
        cache_bytes=settings.get("cache", 1 << 30),
        limit=settings.get("limit"),
    )


# -- records ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """One export, as the function of a format gets it."""

    network: Network  # ``network.model`` is the plain torch module, ``network.card`` all that goes with it
    source: Path  # the run or network folder, for facts such as result.json
    out: Path  # the empty folder to fill
    images: Images  # where ``x`` comes from; ``sample`` and ``batches`` give more
    x: Tensor  # normalised images to check on
    expected: Tensor  # the network's logits of ``x``
    check: bool  # whether to read the export again and compare
    int8: bool = False  # onnx alone
    opset: int | None = None  # onnx alone


@dataclass(frozen=True)
class Exporter:
    """One format. ``function`` fills ``job.out`` and returns facts, those of :func:`compared` where it checked.

    ``needs`` is what to install with pip where a module is missing, or None.
    """

    name: str
    summary: str
    needs: str | None
    function: Callable[[Job], dict[str, Any]]


@dataclass(frozen=True)
class Exported:
    """A finished export: its folder, its files and what was measured."""

    format: str
    path: Path
    files: tuple[str, ...]
    facts: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {**asdict(self), "path": str(self.path), "files": list(self.files), "facts": dict(self.facts)}

    def lines(self) -> list[str]:
        """The lines that the command line prints."""
        facts, sizes = self.facts, self.facts["bytes"]
        lines = [f"Wrote {self.path}: " + ", ".join(f"{n} ({_size(sizes[n])})" for n in self.files)]
        if "opset" in facts:
            lines.append(f"ONNX opset {facts['opset']}, any batch size")
        if "max_difference" in facts:
            lines.append(
                f"Checked on {facts['images']} {facts['checked_on']}; largest difference of a logit to PyTorch "
                f"{facts['max_difference']:.1e}, same class on {100 * facts['agreement']:.1f} %"
            )
        else:
            lines.append(f"Not checked: {facts['unchecked']}")
        for name, seconds in facts.get("latency", {}).items():
            threads = f"{facts['threads']} thread{'s' if facts['threads'] > 1 else ''}"
            lines.append(f"Latency of {name}: {1000 * seconds:.2f} ms per image (median, {threads}, CPU)")
        return [*lines, *facts.get("notes", [])]


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.1f} kB"


# -- the check --------------------------------------------------------------------------------------------------------


def compared(expected: Tensor, found: Tensor) -> dict[str, float]:
    """Largest difference of a logit and share of equal classes; an error where the difference is not rounding."""
    if expected.shape != found.shape or not torch.isfinite(found).all():
        raise TailorError(f"The exported network returns the shape {tuple(found.shape)} or values that are not finite.")
    found = found.detach()
    difference = float((expected - found).abs().max())
    limit = TOLERANCE * max(1.0, float(expected.abs().max()))
    if difference > limit:
        raise TailorError(
            f"The exported network's logits are off by {difference:.1e}; at most {limit:.1e} is rounding."
        )
    return {"max_difference": difference, "agreement": float((expected.argmax(1) == found.argmax(1)).float().mean())}


_FRESH = """import sys
import numpy, torch
folder, source, target = sys.argv[1:]
sys.path.append({root!r})
{code}
with torch.inference_mode():
    numpy.save(target, logits(torch.from_numpy(numpy.load(source))).numpy())
ours = [m for m in sys.modules if m.split(".")[0] == "tailorvit"]
sys.exit(f"needs {{ours[0]}}" if ours and {alone} else 0)
"""


def fresh_logits(code: str, folder: Path, x: Tensor, alone: bool = False) -> Tensor:
    """The logits of ``x`` in another process; ``code`` defines ``logits``, and ``alone`` forbids it tailorvit."""
    with tempfile.TemporaryDirectory() as scratch:
        source, target = Path(scratch, "x.npy"), Path(scratch, "y.npy")
        np.save(source, x.numpy())
        env = {"HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        script = _FRESH.format(code=code, alone=alone, root=str(Path(__file__).parents[2]))  # tailorvit may be source
        # -P: a timm.py of the user's in the working folder is not the library.
        command = [sys.executable, "-P", "-c", script, *map(str, (folder, source, target))]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **env}, check=False)
        if done.returncode:
            last = (done.stderr.strip() or f"code {done.returncode}").splitlines()[-1]
            raise TailorError(f"The export cannot be loaded in a new process: {last}")
        return torch.from_numpy(np.load(target))


# -- the folder -------------------------------------------------------------------------------------------------------


def require_free(out: Path) -> None:
    """Refuse a file, and a folder that holds anything but an earlier export."""
    try:
        if out.is_symlink() or (out.exists() and not out.is_dir()):
            raise TailorError(f"'{out}' is not a folder; an export needs a folder of its own.")
        if not out.exists():
            return
        inside = sorted(p.name for p in out.iterdir())
    except OSError as error:  # a name too long, a folder that may not be listed
        raise TailorError(f"Cannot write to '{out}': {error.strerror}.") from None
    try:
        ours = {*read_table(out / MARK)["files"], MARK}
    except (OSError, LookupError, TypeError, ValueError):
        ours = set()
    # Folders of older versions hold Python source, and Python writes __pycache__ beside it.
    foreign = [name for name in inside if name not in ours and name != "__pycache__"]
    if foreign:
        raise TailorError(f"'{out}' holds files that no export wrote (such as '{foreign[0]}'); choose another folder.")


@contextmanager
def whole_folder(out: Path) -> Iterator[Path]:
    """A folder to write into; it replaces ``out`` when all went well and is deleted otherwise."""
    require_free(out)
    out = out.absolute()
    beside, old = (out.with_name(f".{out.name}.{os.getpid()}.{end}") for end in ("tmp", "old"))
    try:
        try:
            beside.mkdir(parents=True)
        except OSError as error:
            raise TailorError(f"Cannot write to '{out}': {error.strerror}.") from None
        yield beside
        try:
            if out.exists():
                out.rename(old)
            beside.rename(out)
        except OSError as error:
            if old.exists() and not out.exists():
                old.rename(out)
            raise TailorError(f"Cannot write to '{out}': {error.strerror}.") from None
    finally:
        for folder in (beside, old):
            shutil.rmtree(folder, ignore_errors=True)
