"""One finished run on a few pictures, copied for every test that damages it."""

from __future__ import annotations

import shutil

import pytest
from trust_tools import called, picture_folder

import tailorvit


@pytest.fixture
def call(capsys):
    return lambda *args: called(capsys, *args)


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    return picture_folder(tmp_path_factory.mktemp("trust") / "pictures")


@pytest.fixture(scope="session")
def base(tmp_path_factory, pictures):
    folder = tmp_path_factory.mktemp("trust") / "base"
    small = {"baseline": False, "analysis.samples": 1, "train.epochs": 1, "final.train.epochs": 1}
    tailorvit.run(data=pictures, method="autoformer", settings=small, tiny=True, out=folder, progress="quiet")
    return folder


@pytest.fixture
def damaged(base, tmp_path):
    return shutil.copytree(base, tmp_path / "run")
