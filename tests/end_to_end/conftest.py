"""The process whose children are killed, one for all tests of a session."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


class Forks:
    """Starts jobs one at a time and says how they ended."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "writes.txt"
        env = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        command = [sys.executable, str(Path(__file__).with_name("forks.py")), str(folder / "warm")]
        self.errors = (folder / "errors.txt").open("w+")
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True, env=env
        )
        assert self._line() == "ready", self.said()

    def said(self) -> str:
        self.errors.seek(0)
        return self.errors.read()

    def _line(self) -> str:
        return self.process.stdout.readline().strip()

    def start(self, verb: str, *args, moment: int | None = None, **options) -> int:
        self.log.write_text("")
        job = {"verb": verb, "args": list(args), "moment": moment, "log": str(self.log), "options": options}
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        return json.loads(self._line())["pid"]

    def wait(self) -> tuple[int, list[str]]:
        """(exit code, negative for a signal; the writes the child began)."""
        code = json.loads(self._line())["code"]
        return code, self.log.read_text().splitlines()

    def do(self, verb: str, *args, **options) -> tuple[int, list[str]]:
        self.start(verb, *args, **options)
        return self.wait()

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(timeout=60)
        self.process.stdout.close()
        self.errors.close()


@pytest.fixture(scope="session")
def forks(tmp_path_factory):
    house = Forks(tmp_path_factory.mktemp("forks"))
    yield house
    house.close()
