"""What ``train.class_weights`` and ``train.keep`` do to one network on digits.

    python benchmarks/digits/epochs.py           # measure what is not stored yet
    python benchmarks/digits/epochs.py table     # the tables of the page, from the stored results

One ViT, trained by itself for 60 epochs, for seeds 0 to 3. In ``even`` every class has 50 images for training and
search, with the cosine and with a learning rate that does not fall. In ``long tail`` the classes have from 140
down to 7, in equal ratios; which are rare changes with the seed. The test images are 36 of every class, so that their
accuracy is the balanced accuracy.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from common import fill, machine, markdown, number, read, spread, write

import tailorvit
from tailorvit.data.splits import Ints

RESULTS = Path(__file__).parent / "results" / "epochs-2026-11-19.json"
MOST, LEAST, EVEN, TEST = 140, 7, 50, 36  # images of a class
CASES = {
    "even": ("none",),
    "even, constant rate": ("none",),
    "long tail": ("none", "balanced"),
}
KEEPS: dict[str, dict[str, Any]] = {
    "last": {"train.keep": "last"},
    "best": {"train.keep": "best"},
    "best, 3": {"train.keep": "best", "train.patience": 3},
}
EPOCHS = 60
NETWORK = {"method": "fixed", "arch": {"depth": 2, "embed": 48, "heads": 3, "mlp": 2}, "baseline": False}
QUIET = {"analysis.images": 0, "analysis.mistakes": 0, "evaluate.throughput": False, "threads": 1}


def images(folder: Path, seed: int, long_tail: bool) -> Path:
    """Digits as a file with a test part, long-tailed in its training part or not."""
    from sklearn.datasets import load_digits

    digits, rng = load_digits(), np.random.default_rng(seed)
    pixels = np.clip(digits.images * 16, 0, 255).astype(np.uint8)
    ranks = rng.permutation(10)  # how rare a class is
    train: list[Ints] = []
    test: list[Ints] = []
    for c in range(10):
        own = rng.permutation(np.flatnonzero(digits.target == c))
        wanted = round(MOST * (LEAST / MOST) ** (ranks[c] / 9)) if long_tail else EVEN
        test.append(own[:TEST])
        train.append(own[TEST : TEST + wanted])
    a, b = np.concatenate(train), np.concatenate(test)
    path = folder / "digits.npz"
    parts = {"x_train": pixels[a], "y_train": digits.target[a], "x_test": pixels[b], "y_test": digits.target[b]}
    np.savez(path, **parts)
    return path


def measure(case: str, weights: str, keep: str, seed: int) -> dict[str, Any]:
    """Train one network; its figures."""
    with tempfile.TemporaryDirectory() as folder:
        data, begin = images(Path(folder), seed, case == "long tail"), time.process_time()
        settings = {
            **NETWORK,
            **QUIET,
            **KEEPS[keep],
            "train.epochs": EPOCHS,
            "train.batch": 32,
            "train.class_weights": weights,
            "train.schedule": "constant" if "constant" in case else "cosine",
        }
        result = tailorvit.run(data=data, seed=seed, settings=settings, out=Path(folder) / "run", progress="quiet")
        facts = read(Path(folder) / "run" / "result.json")
    kept = facts.get("kept", {})
    return {
        **{"case": case, "class_weights": weights, "keep": keep, "seed": seed},
        **{"test": result.test_accuracy, "search": facts["final_search_accuracy"]},
        **{"macro_f1": facts["metrics"]["macro_f1"], "calibration_error": facts["metrics"]["calibration_error"]},
        **{"epoch": kept.get("epoch", EPOCHS), "trained": kept.get("of", EPOCHS)},
        "seconds": round(time.process_time() - begin, 1),
    }


def stored() -> list[dict[str, Any]]:
    """What was measured so far."""
    return list(read(RESULTS)["rows"]) if RESULTS.exists() else []


def tables() -> dict[str, str]:
    """The page's table: a row for every case."""
    told, columns = [], ("test", "search", "macro_f1", "calibration_error", "epoch", "trained")
    for case, weights, keep in dict.fromkeys((r["case"], r["class_weights"], r["keep"]) for r in stored()):
        own = [r for r in stored() if (r["case"], r["class_weights"], r["keep"]) == (case, weights, keep)]
        figures = [spread([float(r[k]) for r in own], 1) for k in columns]
        told.append((case, weights, keep, str(len(own)), *figures, number(statistics.fmean(r["seconds"] for r in own))))
    head = ("digits", "class_weights", "keep, patience", "seeds", "test %", "search %", "macro-F1", "calibration error")
    return {"epochs": markdown((*head, "epoch kept", "epochs trained", "processor seconds"), told)}


def main(words: list[str]) -> None:
    """Measure what is not stored yet, or fill the page."""
    if words == ["table"]:
        fill(Path(__file__).parent / "README.md", tables())
        return
    for seed in range(4):
        for case, every in CASES.items():
            for weights in every:
                for keep in KEEPS:
                    known = {(r["case"], r["class_weights"], r["keep"], r["seed"]) for r in stored()}
                    if (case, weights, keep, seed) not in known:
                        row = measure(case, weights, keep, seed)
                        write({**machine(), "rows": [*stored(), row]}, RESULTS)
                        print(row, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
