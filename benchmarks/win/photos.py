"""A small folder of photos for runs on a CPU: the ten largest classes of Flowers-102, 100 to train and 25 to test each.

python benchmarks/win/photos.py FLOWERS OUT      # FLOWERS holds train/, valid/ and test/, a folder a class
python benchmarks/win/photos.py FLOWERS OUT 1000 # all images that are left to test, 838
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

CLASSES, TRAIN, TEST = 10, 100, 25


def main(source: Path, out: Path, test: int = TEST) -> None:
    """Copy them, in the order of their names."""
    counts = {place.name: len(list(place.iterdir())) for place in (source / "train").iterdir()}
    for name in sorted(counts, key=lambda c: (-counts[c], int(c)))[:CLASSES]:
        files = [file for split in ("train", "valid", "test") for file in (source / split / name).iterdir()]
        for i, file in enumerate(sorted(files, key=lambda f: f.name)[: TRAIN + test]):
            place = out / ("train" if i < TRAIN else "test") / name
            place.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, place / file.name)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:]))
