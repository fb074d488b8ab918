"""torchvision datasets by name, as far as they tell images by class and unpickle nothing."""

from __future__ import annotations

import hashlib
import inspect
from typing import TYPE_CHECKING, Any

import numpy as np

from tailorvit.data.arrays import array_pool
from tailorvit.data.images import is_grey, to_image
from tailorvit.data.pools import ItemPool, Pool
from tailorvit.errors import TailorError, unknown

if TYPE_CHECKING:
    from PIL import Image

_PICKLED = ("CIFAR10", "CIFAR100", "LSUN", "LSUNClass")
_SPLITS = {"train": ("train", "trainval"), "val": ("val", "valid"), "test": ("test",)}


def no_pickle(what: str) -> TailorError:
    """The refusal of anything that would have to be unpickled."""
    return TailorError(
        f"{what} is stored as pickles, which are never loaded; "
        "give the binary version (data_batch_1.bin, train.bin), .npy or .npz files, or an image folder."
    )


def _open_parts(name: str, root: str) -> dict[str, Any]:
    """The dataset once per split it offers, or once as "all"."""
    import torchvision.datasets as catalogue

    if name not in catalogue.__all__:
        raise unknown("torchvision dataset", name, catalogue.__all__)
    if name in _PICKLED:
        raise no_pickle(f"torchvision's {name}")
    make = getattr(catalogue, name)
    takes = inspect.signature(make).parameters
    fixed: dict[str, Any] = {"root": root} if "root" in takes else {}
    fixed |= {"download": False} if "download" in takes else {}
    fixed |= {"split": "balanced"} if name == "EMNIST" else {}  # its "split" names a selection of letters
    if "train" in takes or name == "EMNIST":
        wanted: dict[str, list[dict[str, Any]]] = {"train": [{"train": True}], "test": [{"train": False}]}
    elif "split" in takes:
        wanted = {part: [{"split": word} for word in words] for part, words in _SPLITS.items()}
    else:
        wanted = {"all": [{}]}
    parts: dict[str, Any] = {}
    for part, tries in wanted.items():
        for extra in tries:
            try:
                parts[part] = make(**fixed, **extra)
                break
            except ValueError:  # the dataset has no such split
                continue
            except (TypeError, NotImplementedError) as error:
                raise TailorError(f"torchvision's {name} is not a plain set of images with a class each.") from error
            except (RuntimeError, OSError, ImportError) as error:
                raise TailorError(
                    f"torchvision's {name} cannot be opened under '{root}' and is not downloaded: "
                    f"{' '.join(str(error).split()).split('. ')[0].rstrip('.')}."
                ) from error
    if "train" not in parts and "all" not in parts:
        raise TailorError(f"torchvision's {name} offers no train split that can be read here.")
    return {"all": parts["train"]} if set(parts) == {"train"} else parts


def _labels(dataset: Any, name: str) -> np.ndarray[Any, Any]:
    for attribute in ("targets", "labels", "_labels", "y"):
        values = getattr(dataset, attribute, None)
        if values is not None and len(values) == len(dataset):
            break
    else:
        values = [dataset[i][1] for i in range(len(dataset))]
    array = np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise TailorError(f"torchvision's {name} does not label each image with one class number.")
    return array.astype(np.int64)


def open_torchvision(spec: str) -> Pool:
    """The dataset NAME under ROOT, from "NAME@ROOT"; ROOT is "data" unless given."""
    name, _, root = spec.partition("@")
    parts = _open_parts(name, root or "data")
    labels = {part: _labels(d, name) for part, d in parts.items()}
    names = getattr(next(iter(parts.values())), "classes", None)
    names = [str(n) for n in names] if isinstance(names, list | tuple) else None
    raw: dict[str, Any] = {part: getattr(d, "data", None) for part, d in parts.items()}
    if all(hasattr(d, "shape") and len(d.shape) in (3, 4) for d in raw.values()):
        return array_pool({p: (np.asarray(raw[p]), labels[p]) for p in parts}, f"torchvision's {name}", names)
    return _items(name, parts, labels, names)


def _items(name: str, parts: dict[str, Any], labels: dict[str, Any], names: list[str] | None) -> ItemPool:
    """Datasets that hand out images one by one; threads stay out, as such objects rarely expect them."""
    places = [(part, i) for part, d in parts.items() for i in range(len(d))]

    def opener(index: int) -> Image.Image:
        part, i = places[index]
        image: Any = parts[part][i][0]
        if not hasattr(image, "mode"):
            image = to_image((np.asarray(image) * 255).astype(np.uint8))
        found: Image.Image = image
        return found

    values, index = np.unique(np.concatenate(list(labels.values())), return_inverse=True)
    fits = names is not None and values[0] >= 0 and values[-1] < len(names)
    seen = [k for k, (part, _) in enumerate(places) if part != "test"]
    some = [opener(seen[k]) for k in np.unique(np.linspace(0, len(seen) - 1, 200).astype(int))]
    digest = hashlib.sha256(f"torchvision {name} {[(p, len(d)) for p, d in parts.items()]}".encode())
    digest.update(index.astype(np.int64).tobytes())
    return ItemPool(
        opener,
        np.asarray([min(image.size) for image in some]),
        False,
        classes=[names[v] if names and fits else str(v) for v in values],
        labels=index.astype(np.int64),
        origin=np.asarray([part for part, _ in places]),
        fingerprint=digest.hexdigest(),
        channels=1 if all(is_grey(image) for image in some) else 3,
    )
