"""Marks on pictures, for tasks that draw their answers."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np

from edgeopt.graph.tensors import Frame

HEIGHT = 320
"""Pixels of a drawn picture."""
SHOWN_ABOVE = 0.3
"""Score: weaker boxes would bury the picture."""
Colour = tuple[int, int, int]
"""Blue, green, red."""
WHITE = (255, 255, 255)


def scaled(frame: Frame, height: int = HEIGHT) -> Frame:
    """Return a copy of the frame that is so many pixels high."""
    width = max(int(frame.shape[1] * height / frame.shape[0]), 1)
    return np.asarray(cv2.resize(frame, (width, height), interpolation=cv2.INTER_AREA), np.uint8)


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
    x, y = (round(min(max(one, -limit), limit)) for one in place)
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


def _size(drawn: Frame) -> float:
    """Return how many times as large marks are as in a small picture."""
    return max(1.0, float(drawn.shape[0]) / 600)
