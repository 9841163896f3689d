"""Drawn pictures side by side: one row a frame, one column a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import cv2
import numpy as np

from edgeopt.graph.tensors import Frame
from edgeopt.recipes.drawing import write_text
from edgeopt.system.files import write_beside


def write_sheet(path: Path, columns: Mapping[str, Sequence[Frame]]) -> None:
    """Write a PNG.

    Args:
        path: The file.
        columns: Title of each column to its pictures: as many in each, those of a row equally high.

    Raises:
        InvalidFileError: If the folder is not writable or the disk is full.
    """
    rows = list(zip(*columns.values(), strict=True))
    widths = [max(picture.shape[1] for picture in column) for column in columns.values()]
    heading = np.hstack([_title(title, width) for title, width in zip(columns, widths, strict=True)])
    lines = [np.hstack([_padded(one, width) for one, width in zip(row, widths, strict=True)]) for row in rows]
    done, data = cv2.imencode(".png", np.vstack([heading, *lines]))
    if not done:
        raise ValueError("the sheet cannot be encoded as PNG")
    write_beside(path, bytes(data.tobytes()))


def _title(text: str, width: int) -> Frame:
    bar = np.full((28, width, 3), 32, np.uint8)
    write_text(bar, text, (6, 19))
    return bar


def _padded(picture: Frame, width: int) -> Frame:
    right = width - picture.shape[1]
    return np.asarray(cv2.copyMakeBorder(picture, 0, 4, 0, right, cv2.BORDER_CONSTANT, value=(32, 32, 32)), np.uint8)
