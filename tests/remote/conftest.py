"""The device that tests of `--on` and of `on=` share, and the project from which they use it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ssh_server import ssh_board

MODEL = Path(__file__).parents[2] / "models" / "digits_detector"


@pytest.fixture(scope="session")
def board(tmp_path_factory):
    """One device, with its environment: the first command makes it, and no test waits for that by the clock."""
    with ssh_board(tmp_path_factory.mktemp("board")) as made:
        command = [sys.executable, "-m", "edgeopt", "doctor", "--on", "ssh://board"]
        subprocess.run(command, capture_output=True, check=False)
        yield made


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder with a model, in which the user stands."""
    shutil.copytree(MODEL, tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    return tmp_path
