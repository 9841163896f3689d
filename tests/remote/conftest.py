"""The device that tests of `--on` and of `on=` share, and the project from which they use it."""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from ssh_server import ssh_board

MODEL = Path(__file__).parents[2] / "models" / "digits_detector"


@pytest.fixture(scope="session")
def board():
    """One device; its environment is made by the first command, which takes longest.

    It lies where other users come by, as a home does: into pytest's own folders they do not come.
    """
    with TemporaryDirectory(prefix="board-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o711)
        with ssh_board(Path(folder)) as made:
            yield made


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder with a model, in which the user stands."""
    shutil.copytree(MODEL, tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    return tmp_path
