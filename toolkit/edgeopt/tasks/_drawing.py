"""Answers drawn on pictures, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np

from edgeopt.graph.tensors import Frame
from edgeopt.tasks.detection.boxes import Detections

_HEIGHT = 320  # pixels of one picture in a sheet
_SHOWN_ABOVE = 0.3  # score: weaker boxes would bury the picture


def draw_answer(frame: Frame, answer: Any, names: Sequence[str]) -> Frame:
    """Return a copy of the frame with its boxes, or its best class written in the corner."""
    scale = _HEIGHT / frame.shape[0]
    drawn = cv2.resize(frame, (max(int(frame.shape[1] * scale), 1), _HEIGHT), interpolation=cv2.INTER_AREA)
    if isinstance(answer, Detections):
        for box, score, label in zip(answer.boxes, answer.scores, answer.classes, strict=True):
            if score >= _SHOWN_ABOVE:
                _draw_box(drawn, box * scale, f"{_name(names, int(label))} {score:.2f}", int(label))
    elif len(answer):
        _write(drawn, f"{_name(names, int(answer.indices[0]))} {answer.scores[0]:.2f}", (4, 18))
    return np.asarray(drawn, np.uint8)


def draw_sheet(rows: Sequence[Sequence[Frame]], titles: Sequence[str]) -> bytes:
    """Return a PNG: one row a picture, one column a title.

    Args:
        rows: Drawn pictures of equal height in each row.
        titles: What each column shows.
    """
    widths = [max(row[i].shape[1] for row in rows) for i in range(len(titles))]
    heading = np.hstack([_title(title, width) for title, width in zip(titles, widths, strict=True)])
    lines = [np.hstack([_padded(one, width) for one, width in zip(row, widths, strict=True)]) for row in rows]
    done, data = cv2.imencode(".png", np.vstack([heading, *lines]))
    if not done:
        raise ValueError("the sheet cannot be encoded as PNG")
    return bytes(data.tobytes())


def _name(names: Sequence[str], index: int) -> str:
    return names[index] if index < len(names) else f"class {index}"


def _draw_box(drawn: Frame, box: Any, text: str, label: int) -> None:
    hue = np.array([[[label * 47 % 180, 220, 255]]], np.uint8)
    colour = tuple(int(v) for v in cv2.cvtColor(hue, cv2.COLOR_HSV2BGR)[0, 0])
    left, top, right, bottom = (int(v) for v in box)
    cv2.rectangle(drawn, (left, top), (right, bottom), colour, 2)
    _write(drawn, text, (left, max(top - 4, 12)), colour)


def _write(drawn: Frame, text: str, place: tuple[int, int], colour: Any = (255, 255, 255)) -> None:
    (width, height), _ = cv2.getTextSize(text, cv2.FONT_HERSHEY_SIMPLEX, 0.45, 1)
    left = max(min(place[0], drawn.shape[1] - width), 0)
    corner = (left + width, place[1] + 4)
    cv2.rectangle(drawn, (left, place[1] - height - 2), corner, (32, 32, 32), cv2.FILLED)
    cv2.putText(drawn, text, (left, place[1]), cv2.FONT_HERSHEY_SIMPLEX, 0.45, colour, 1, cv2.LINE_AA)


def _title(text: str, width: int) -> Frame:
    bar = np.full((28, width, 3), 32, np.uint8)
    _write(bar, text, (6, 19))
    return bar


def _padded(picture: Frame, width: int) -> Frame:
    right = width - picture.shape[1]
    return np.asarray(cv2.copyMakeBorder(picture, 0, 4, 0, right, cv2.BORDER_CONSTANT, value=(32, 32, 32)), np.uint8)
