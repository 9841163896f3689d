"""The picture of a few frames with the answers of several models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgeopt.recipes.frames import Frames
from edgeopt.system.files import write_beside
from edgeopt.tasks._drawing import draw_answer, draw_sheet


def write_sheet(path: Path, frames: Frames, answers: Mapping[str, Sequence[Any]], names: Sequence[str]) -> None:
    """Write a PNG with one row a frame and one column a model.

    Args:
        path: The file.
        frames: As many as each model has answers.
        answers: Title of the column to one answer a frame.
        names: Class names.

    Raises:
        InvalidFileError: If the folder is not writable or the disk is full.
    """
    rows = []
    for i in range(len(frames)):
        frame = frames.picture(i)
        rows.append([draw_answer(frame, found[i], names) for found in answers.values()])
    write_beside(path, draw_sheet(rows, list(answers)))
