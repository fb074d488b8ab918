"""Run docs/notebook.ipynb from top to bottom and write what its cells print into it: ``python docs/notebook.py``."""

from __future__ import annotations

import contextlib
import io
import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

NOTEBOOK = Path(__file__).parent / "notebook.ipynb"


def read() -> dict[str, Any]:
    """The notebook as it lies in the repository."""
    notebook: dict[str, Any] = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return notebook


def executed(notebook: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The same notebook with the outputs of an execution in that folder; cells print, they display nothing."""
    names: dict[str, Any] = {"__name__": "__main__"}
    cells, count = [], 0
    with contextlib.chdir(folder):
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                count += 1
                printed = io.StringIO()
                with contextlib.redirect_stdout(printed):
                    exec(compile("".join(cell["source"]), f"cell {count}", "exec"), names)
                text = printed.getvalue().splitlines(keepends=True)
                shown = [{"name": "stdout", "output_type": "stream", "text": text}] if text else []
                cell = {**cell, "execution_count": count, "outputs": shown}
            cells.append(cell)
    return {**notebook, "cells": cells}


def main() -> None:
    """Execute and write."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with TemporaryDirectory() as folder:
        new = executed(read(), Path(folder))
    NOTEBOOK.write_text(json.dumps(new, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
