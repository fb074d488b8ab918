"""Splits: index lists for train, search and test, stratified by class. Works on label arrays alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tailorvit.errors import TailorError, unknown
from tailorvit.rng import generator

Ints = NDArray[np.int64]
SPLITS = ("train", "search", "test")
USUAL_SHARE = 0.1  # of the images for the search split
ENOUGH = 150  # search images; with fewer the split takes more than the usual share
MOST = 0.25  # of the images that are not the test split's


def require_reason(reason: str) -> str:
    """The reason to open the test split; an empty one is refused."""
    if not reason.strip():
        raise TailorError("Opening the test split needs a reason, for example 'final accuracy'.")
    return reason


def require_open(split: str, reason: str | None) -> None:
    """Refuse a split that there is not, and the test split while no reason has opened it."""
    if split not in SPLITS:
        raise unknown("split", split, SPLITS)
    if split == "test" and reason is None:
        raise TailorError("The test split is sealed; call unseal_test(reason) first.")


def stratified(labels: Ints, shares: Sequence[float], seed: int, place: str, shards: Ints | None = None) -> list[Ints]:
    """Hold shares out of every class, at least one image each; the last list holds the rest and is never empty.

    A class too small for one image per list gives to the later lists first, and keeps one for the rest. Images that
    lie in ``shards`` are held out shard by shard, as far as classes allow, so that few shards serve two lists.
    """
    parts: list[list[Ints]] = [[] for _ in range(len(shares) + 1)]
    turn = None if shards is None else generator(seed, "split", place, "shards").permutation(int(shards.max()) + 1)
    for label in np.unique(labels):
        ids = np.flatnonzero(labels == label)
        ids = ids[generator(seed, "split", place, int(label)).permutation(len(ids))]
        if shards is not None and turn is not None:
            ids = ids[np.argsort(turn[shards[ids]], kind="stable")]
        at = 0
        for k, share in enumerate(shares):
            later = len(shares) - k - 1
            take = max(1, round(share * len(ids)))
            take = max(0, min(take, len(ids) - at - 1 - later))
            parts[k].append(ids[at : at + take])
            at += take
        parts[-1].append(ids[at:])
    return [np.sort(np.concatenate(p)).astype(np.int64) for p in parts]


def _check_shares(search_share: float, test_share: float) -> None:
    for name, share in (("search_share", search_share), ("test_share", test_share)):
        if not 0 < share < 1:
            raise TailorError(f"{name} must lie between 0 and 1, not {share}.")
    if search_share + test_share >= 1:
        raise TailorError(f"search_share {search_share} and test_share {test_share} leave nothing to train on.")


def default_search_share(images: int, test_share: float) -> float:
    """The share of the images held out for the search split: more of a small set, where an image is a point or two.

    ``images`` are those the share is taken of, and ``test_share`` the share of them that is the test split's.
    """
    left = images * (1 - test_share)
    return max(USUAL_SHARE, min(ENOUGH, MOST * left) / max(images, 1))


def make_splits(
    labels: Ints,
    origin: NDArray[Any],
    classes: Sequence[str],
    seed: int,
    search_share: float | None,
    test_share: float,
    shards: Ints | None = None,
) -> dict[str, Ints]:
    """Splits by the origin of each image: "all", or "train" with "val", "test" or both.

    Without a ``search_share`` it depends on the number of images. ``shards`` are the numbers of the images' shards.
    """
    if search_share is None:
        whole = bool((origin == "all").any())
        shared = int((origin == ("all" if whole else "train")).sum())
        search_share = default_search_share(shared, test_share if whole else 0.0)
    _check_shares(search_share, test_share)
    where = {part: np.flatnonzero(origin == part).astype(np.int64) for part in ("all", "train", "val", "test")}
    if len(where["all"]):
        counts = np.bincount(labels, minlength=len(classes))
        for name, n in zip(classes, counts):
            if n < 3:
                raise TailorError(
                    f"Class '{name}' has {n} image{'s' if n != 1 else ''}; without split folders each class needs 3."
                )
        test, search, train = stratified(labels, (test_share, search_share), seed, "all", shards)
        return {"train": train, "search": search, "test": test}
    known = np.unique(labels[where["train"]])
    for part in ("val", "test"):
        for label in np.setdiff1d(labels[where[part]], known):
            raise TailorError(f"Class '{classes[label]}' has images in the {part} split but none in train.")
    if len(where["val"]) and len(where["test"]):
        return {"train": where["train"], "search": where["val"], "test": where["test"]}
    among = None if shards is None else shards[where["train"]]
    search, train = stratified(labels[where["train"]], (search_share,), seed, "train", among)
    if not len(search):
        raise TailorError("Every class has one training image only, so none can be held out for the search split.")
    test = where["test"] if len(where["test"]) else where["val"]
    return {"train": where["train"][train], "search": where["train"][search], "test": test}


def missing_classes(splits: Mapping[str, Ints], labels: Ints, classes: Sequence[str]) -> list[str]:
    """A sentence for each of the search and test splits that lacks images of some class."""
    sentences = []
    parts = {"train": "no network can learn it", "search": "the search", "test": "the test accuracy"}
    for split, what in parts.items():
        missing = [classes[i] for i in np.setdiff1d(np.arange(len(classes)), labels[splits[split]])]
        if missing:
            names = ", ".join(f"'{m}'" for m in missing[:5]) + (f" and {len(missing) - 5} more" if missing[5:] else "")
            so = what if split == "train" else f"{what} does not take it into account"
            sentences.append(f"The {split} split has no image of {names}, so {so}.")
    return sentences


Files = Sequence[tuple[str, int]]  # names below the data's folder, and their bytes, in the order of the images


def restore(
    saved: Mapping[str, Any],
    fingerprint: str,
    total: int,
    files: Files | Mapping[str, int] | None = None,
    ends: Mapping[str, int] | None = None,
) -> dict[str, Ints]:
    """Splits from a stored record; refused when the data has changed since, with the file where it is known.

    ``ends`` are checksums of the files, which tell them from others of the same name and size.
    """
    if set(saved) - {"files", "ends"} != {*SPLITS, "fingerprint"}:
        raise TailorError(
            f"A split record holds {', '.join(SPLITS)} and fingerprint, not {', '.join(map(str, saved))}."
        )
    if saved["fingerprint"] != fingerprint:
        what = "" if files is None else _change(saved, files)
        raise TailorError(
            f"The data changed since its splits were made: {what}fingerprint {fingerprint[:12]}, "
            f"recorded {str(saved['fingerprint'])[:12]}."
        )
    before = saved.get("ends")
    before = before if isinstance(before, Mapping) else {}
    others = [name for name, mark in (ends or {}).items() if before.get(name, mark) != mark]
    if others:
        more = f" and {len(others) - 1} more" if others[1:] else ""
        raise TailorError(
            f"The data changed since its splits were made: '{others[0]}'{more} holds something else, though it has as "
            "many bytes."
        )
    try:
        splits = {s: np.asarray(saved[s], dtype=np.int64).reshape(-1) for s in SPLITS}
    except (TypeError, ValueError, OverflowError):
        raise TailorError("The split record is damaged: its indices are not whole numbers.") from None
    ids = np.concatenate(list(splits.values()))
    if len(np.unique(ids)) < len(ids) or (len(ids) and not 0 <= ids.min() <= ids.max() < total):
        raise TailorError(f"The split record does not fit the data: its indices repeat or leave 0..{total - 1}.")
    return splits


def _change(saved: Mapping[str, Any], files: Files | Mapping[str, int]) -> str:
    """The first file that is gone, new or of another size, and how many more; empty for records without names."""
    try:
        before = {str(name): int(size) for part in saved["files"].values() for name, size in part.items()}
    except (LookupError, TypeError, ValueError, AttributeError):
        return ""
    now = dict(files)
    changes = [f"'{name}' is gone" for name in before if name not in now]
    changes += [f"'{name}' is new" for name in now if name not in before]
    sizes = ((name, before[name], now[name]) for name in before if name in now)
    changes += [f"'{name}' has {there:,} bytes instead of {was:,}" for name, was, there in sizes if was != there]
    if not changes:
        return ""
    more = f" and {len(changes) - 1} more" if changes[1:] else ""
    return f"{changes[0]}{more}; "


def record(
    splits: Mapping[str, Ints],
    fingerprint: str,
    files: Files | Mapping[str, int] | None = None,
    ends: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """Splits as plain data, which :func:`restore` reads: indices, and for files their names, bytes and checksums.

    Files that hold many images each (a mapping) belong to no split.
    """
    if files is None:
        named: dict[str, Any] = {}
    elif isinstance(files, Mapping):
        named = {"files": {"shards": dict(files)}}
    else:
        named = {"files": {s: dict(files[i] for i in splits[s]) for s in SPLITS}}
    if ends:
        named["ends"] = dict(ends)
    return {**{s: splits[s].tolist() for s in SPLITS}, "fingerprint": fingerprint, **named}


def balanced_subset(ids: Ints, labels: Ints, limit: int, seed: int, split: str, shards: Ints | None = None) -> Ints:
    """At most ``limit`` of the ids, spread over the classes as evenly as possible; of ``shards`` as few as possible."""
    if len(ids) <= limit:
        return ids
    order = ids[generator(seed, "limit", split).permutation(len(ids))]
    if shards is not None:
        turn = generator(seed, "limit", split, "shards").permutation(int(shards.max()) + 1)
        order = order[np.argsort(turn[shards[order]], kind="stable")]
    by_class = np.argsort(labels[order], kind="stable")
    _, first, counts = np.unique(labels[order][by_class], return_index=True, return_counts=True)
    rank = np.empty(len(order), dtype=np.int64)  # 0 for the first of its class, 1 for the second, ...
    rank[by_class] = np.arange(len(order)) - np.repeat(first, counts)
    return np.sort(order[np.argsort(rank, kind="stable")[:limit]])
