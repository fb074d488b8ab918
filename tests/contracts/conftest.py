"""The command line in this process."""

from __future__ import annotations

import sys

import pytest

from tailorvit import cli


@pytest.fixture
def call(monkeypatch, capsys):
    """The entry point in this process: (exit code, stdout, stderr)."""

    def run(*args):
        monkeypatch.setattr(sys, "argv", ["tailorvit", *map(str, args)])
        capsys.readouterr()
        code = 0
        try:
            cli.main()
        except SystemExit as stop:
            code = stop.code
        return code or 0, *capsys.readouterr()

    return run
