"""The device that tests of `--on` and of `on=` share, and the project from which they use it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ssh_server import Board, ssh_board

MODEL = Path(__file__).parents[2] / "models" / "digits_detector"
LABELLED = 16
"""Pictures of the model's that come with labels."""


@pytest.fixture(scope="session")
def first_command(tmp_path_factory) -> Iterator[tuple[Board, subprocess.CompletedProcess[str]]]:
    """A device, and the command that made its environment: the connection was cut while it was asked and sent to."""
    with ssh_board(tmp_path_factory.mktemp("board")) as made:
        command = [sys.executable, "-m", "edgeopt", "doctor", "--on", "ssh://board"]
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("EDGEOPT_SSH", made.cut_once(status={"answered": 0}, prepare={"sent": 1000}))
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        yield made, done


@pytest.fixture
def board(first_command) -> Board:
    """One device, with its environment: no test waits for that by the clock."""
    return first_command[0]


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory) -> Path:
    """A folder with a model and its first labelled pictures: all of them are sent and scored by each command."""
    folder = tmp_path_factory.mktemp("model") / "mine"
    shutil.copytree(MODEL, folder)
    labels = folder / "eval" / "instances.json"
    whole = json.loads(labels.read_text("utf-8"))
    for image in whole["images"][LABELLED:]:
        (labels.parent / "images" / image["file_name"]).unlink()
    kept = whole["images"][:LABELLED]
    boxes = [box for box in whole["annotations"] if box["image_id"] <= LABELLED]
    labels.write_text(json.dumps({**whole, "images": kept, "annotations": boxes}), "utf-8")
    return folder


@pytest.fixture
def project(model_folder, tmp_path, monkeypatch):
    """A folder with a model, in which the user stands."""
    shutil.copytree(model_folder, tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    return tmp_path
