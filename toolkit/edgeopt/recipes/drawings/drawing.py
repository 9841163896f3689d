"""Marks on pictures, for tasks that draw their answers."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np

from edgeopt.graph.tensors import Frame
from edgeopt.recipes.drawings import HEIGHT

SHOWN_ABOVE = 0.3
"""Score: weaker boxes would bury the picture."""
Colour = tuple[int, int, int]
"""Blue, green, red."""
WHITE, PALE, GROUND = (255, 255, 255), (150, 150, 150), (32, 32, 32)
SHAPE = 2
"""Width of a picture of what is none itself, such as a sound, in its heights."""
MARGIN = 8
LETTERS_ACROSS = 44
"""Sizes of a letter in the width of such a picture."""
_SMALLEST = 8
"""Pixels of a letter."""
_MOST_OF_NAME = 120


def scaled(frame: Frame, height: int = HEIGHT) -> Frame:
    """Return a copy of the frame that is so many pixels high."""
    width = max(int(frame.shape[1] * height / frame.shape[0]), 1)
    return np.asarray(cv2.resize(frame, (width, height), interpolation=cv2.INTER_AREA), np.uint8)


class Letters:
    """Writes lines of one size; before OpenCV 5 there are no letters but those of English: others become `?`."""

    def __init__(self, size: int) -> None:
        self.size = max(size, _SMALLEST)
        face = getattr(cv2, "FontFace", None)
        self._face = face("sans") if face is not None else None

    def width(self, text: str) -> int:
        """Return the pixels of a line."""
        if self._face is not None:  # spaces at the ends have no width of their own there
            return self._measured(f"|{text}|") - self._measured("||")
        (width, _), _ = cv2.getTextSize(_plain(text), cv2.FONT_HERSHEY_SIMPLEX, self.size / 30, 1)
        return int(width)

    def _measured(self, text: str) -> int:
        assert self._face is not None
        return int(cv2.getTextSize((1, 1), text, (0, 0), self._face, self.size, 400)[2])

    def write(self, drawn: Frame, text: str, place: tuple[int, int], colour: Colour) -> None:
        """Write a line, the left end of its base at a place (x, y)."""
        if self._face is not None:
            cv2.putText(drawn, text, place, colour, self._face, self.size, 400)
        else:
            font = cv2.FONT_HERSHEY_SIMPLEX
            cv2.putText(drawn, _plain(text), place, font, self.size / 30, colour, 1, cv2.LINE_AA)


def empty(rows: int, width: int) -> Frame:
    """Return a dark ground."""
    return np.full((rows, width, 3), GROUND, np.uint8)


def class_colour(index: int) -> Colour:
    """Return a colour that differs from those of the neighbouring classes."""
    hue = np.array([[[index * 47 % 180, 220, 255]]], np.uint8)
    blue, green, red = (int(v) for v in cv2.cvtColor(hue, cv2.COLOR_HSV2BGR)[0, 0])
    return blue, green, red


def draw_box(drawn: Frame, box: Sequence[float], text: str, colour: Colour) -> None:
    """Draw a box, left, top, right, bottom in pixels, with a text above it."""
    left, top, right, bottom = (int(v) for v in box)
    cv2.rectangle(drawn, (left, top), (right, bottom), colour, round(2 * _size(drawn)))
    write_text(drawn, text, (left, max(top - 4, round(12 * _size(drawn)))), colour)


def draw_point(drawn: Frame, place: Sequence[float], colour: Colour) -> None:
    """Draw a dot at a place (x, y) in pixels, which may lie outside the picture."""
    limit = 4.0 * max(drawn.shape)
    x, y = (round(min(max(number, -limit), limit)) for number in place)
    cv2.circle(drawn, (x, y), 2 * max(1, round(drawn.shape[0] / 300)), colour, cv2.FILLED, cv2.LINE_AA)


def write_text(drawn: Frame, text: str, place: tuple[int, int], colour: Colour = WHITE) -> None:
    """Write a line on a dark ground, its lower left corner at a place (x, y) in pixels; larger in a large picture."""
    font, weight = 0.45 * _size(drawn), round(_size(drawn))
    (width, height), _ = cv2.getTextSize(text, cv2.FONT_HERSHEY_SIMPLEX, font, weight)
    left = max(min(place[0], drawn.shape[1] - width), 0)
    corner = (left + width, place[1] + 4)
    cv2.rectangle(drawn, (left, place[1] - height - 2), corner, (32, 32, 32), cv2.FILLED)
    cv2.putText(drawn, text, (left, place[1]), cv2.FONT_HERSHEY_SIMPLEX, font, colour, weight, cv2.LINE_AA)


def write_below(drawn: Frame, text: str, strip: int) -> Frame:
    """Return a picture with a text in a dark strip below it, so many pixels high.

    Before OpenCV 5 there are no letters but those of English: others become question marks.
    """
    ground = np.full((strip, drawn.shape[1], 3), 32, np.uint8)
    size, place = int(min(strip * 0.6, 1.6 * drawn.shape[1] / max(len(text), 1))), (4, int(strip * 0.7))
    face = getattr(cv2, "FontFace", None)
    if face is not None:
        cv2.putText(ground, text, place, WHITE, face("sans"), max(size, 4), 400)
    else:
        plain = text.encode("ascii", "replace").decode()
        cv2.putText(ground, plain, place, cv2.FONT_HERSHEY_SIMPLEX, size / 30, WHITE, 1, cv2.LINE_AA)
    return np.concatenate([drawn, ground])


def cut(text: str, width: int, letters: Letters) -> str:
    """Return the beginning of a text that has room."""
    if letters.width(text) <= width:
        return text
    kept = text[:_MOST_OF_NAME]
    while kept and letters.width(f"{kept}...") > width:
        kept = kept[:-1]
    return f"{kept}..."


def _size(drawn: Frame) -> float:
    """Return how many times as large marks are as in a small picture."""
    return max(1.0, float(drawn.shape[0]) / 600)


def _plain(text: str) -> str:
    return text.encode("ascii", "replace").decode()
