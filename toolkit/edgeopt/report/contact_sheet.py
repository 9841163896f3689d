"""Drawn pictures: side by side on one sheet, one row a frame, one column a model; and each as a file of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import cv2
import numpy as np

from edgeopt.graph.tensors import Frame
from edgeopt.recipes.drawings.drawing import write_text
from edgeopt.system.disk.files import write_beside

ANSWERS = "answers"
"""Folder of single pictures."""
_QUALITY = 82


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
    lines = [np.hstack([_padded(value, width) for value, width in zip(row, widths, strict=True)]) for row in rows]
    done, data = cv2.imencode(".png", np.vstack([heading, *lines]))
    if not done:
        raise ValueError("the sheet cannot be encoded as PNG")
    write_beside(path, bytes(data.tobytes()))


def write_pairs(folder: Path, before: Sequence[Frame], after: Sequence[Frame]) -> None:
    """Write each picture as a JPEG of its own: `1-before.jpg`, `1-after.jpg`, ...; pictures of an earlier run go.

    Args:
        folder: Where they go.
        before: Drawn pictures.
        after: As many, equally large.

    Raises:
        InvalidFileError: If the folder is not writable or the disk is full.
    """
    for old in folder.glob("*.jpg"):
        old.unlink(missing_ok=True)
    for number, pair in enumerate(zip(before, after, strict=True), 1):
        for word, picture in zip(("before", "after"), pair, strict=True):
            _, data = cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, _QUALITY])
            write_beside(folder / f"{number}-{word}.jpg", bytes(data.tobytes()))


def find_pairs(folder: Path) -> tuple[tuple[str, str], ...]:
    """Return the names of the files of each pair that `write_pairs` wrote."""
    names = [f"{number}-{{}}.jpg" for number in range(1, len([*folder.glob("*-before.jpg")]) + 1)]
    return tuple((name.format("before"), name.format("after")) for name in names)


def _title(text: str, width: int) -> Frame:
    bar = np.full((28, width, 3), 32, np.uint8)
    write_text(bar, text, (6, 19))
    return bar


def _padded(picture: Frame, width: int) -> Frame:
    right = width - picture.shape[1]
    return np.asarray(cv2.copyMakeBorder(picture, 0, 4, 0, right, cv2.BORDER_CONSTANT, value=(32, 32, 32)), np.uint8)
