"""Pictures of sounds and texts with what was found in them, for tasks that draw their answers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import cv2
import numpy as np
from numpy.typing import NDArray

from edgeopt.graph.sound import Sound
from edgeopt.graph.tensors import Frame
from edgeopt.recipes.drawing import WHITE, Colour, class_colour

_GROUND, _WAVE, _PALE, _BAR = (32, 32, 32), (200, 180, 120), (150, 150, 150), (200, 140, 60)
_DARK = (16, 16, 16)
_SHAPE = 2
"""Width of a picture, in its heights."""
_MARGIN = 8
_BARS = 3
"""Classes of a picture."""
_SMALLEST = 8
"""Pixels of a letter."""
_LETTERS_ACROSS = 44
"""Sizes of a letter in the width of a picture."""
_MOST_OF_NAME = 60


@dataclass(frozen=True, slots=True)
class Mark:
    """A part of a text, and what it is called."""

    start: int
    """Characters from the beginning of the text."""
    end: int
    """Behind its last character."""
    kind: str


def draw_classes_of_sound(sound: Sound, classes: Sequence[tuple[str, float]], height: int) -> Frame:
    """Return a picture of a waveform over its time, with a bar for each of the best classes below it."""
    below = _bars(classes, height * 2 // 5, _SHAPE * height)
    return np.concatenate([_waveform(sound, height - len(below), _SHAPE * height), below])


def draw_stretches_of_sound(
    sound: Sound, probabilities: NDArray[np.float32], threshold: float, label: str, height: int
) -> Frame:
    """Return a picture of a waveform; below it how probable a thing is over the time, bright where above the threshold.

    Args:
        sound: Any.
        probabilities: (stretches,), evenly long, of the whole sound; what is not finite is left out.
        threshold: At which the thing is there.
        label: What the thing is called.
        height: In pixels.
    """
    rows, width = height * 2 // 5, _SHAPE * height
    below, letters = _empty(rows, width), _Letters(width // _LETTERS_ACROSS)
    top, bottom = 2 * _MARGIN + letters.size, rows - _MARGIN
    there, colour = np.nan_to_num(probabilities, nan=-1.0, posinf=-1.0, neginf=-1.0), class_colour(1)
    edges = np.linspace(_MARGIN, width - _MARGIN, len(there) + 1).round().astype(int)
    for left, right, share in zip(edges[:-1], edges[1:], there, strict=True):
        if share >= 0:
            level = bottom - round(min(float(share), 1.0) * (bottom - top))
            filled = colour if share >= threshold else _PALE
            cv2.rectangle(below, (int(left), level), (max(int(right) - 1, int(left)), bottom), filled, cv2.FILLED)
    line = bottom - round(threshold * (bottom - top))
    cv2.line(below, (_MARGIN, line), (width - _MARGIN, line), WHITE, 1)
    letters.write(below, f"{label}, bright from {threshold:g}", (_MARGIN, top - _MARGIN), WHITE)
    return np.concatenate([_waveform(sound, height - rows, width), below])


def draw_classes_of_text(text: str, classes: Sequence[tuple[str, float]], height: int) -> Frame:
    """Return a picture of a text, with a bar for each of the best classes below it; lower where the text is short."""
    below = _bars(classes, height * 2 // 5, _SHAPE * height)
    return np.concatenate([_page(text, (), height - len(below), _SHAPE * height, has_kinds=False), below])


def draw_spans_of_text(text: str, marks: Sequence[Mark], height: int) -> Frame:
    """Return a picture of a text, lower where it is short: marked parts are coloured, their kinds stand above them."""
    return _page(text, marks, height, _SHAPE * height, has_kinds=True)


class _Letters:
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


def _plain(text: str) -> str:
    return text.encode("ascii", "replace").decode()


def _empty(rows: int, width: int) -> Frame:
    return np.full((rows, width, 3), _GROUND, np.uint8)


def _waveform(sound: Sound, rows: int, width: int) -> Frame:
    """Return the least and the largest sample of each column, scaled to the loudest, over marks of the time."""
    drawn, letters = _empty(rows, width), _Letters(width // _LETTERS_ACROSS)
    bottom = rows - letters.size - _MARGIN
    middle, half = (_MARGIN + bottom) // 2, (bottom - _MARGIN) // 2
    peak = float(np.abs(sound.samples).max(initial=0.0)) or 1.0
    edges = np.linspace(0, len(sound.samples), width - 2 * _MARGIN + 1).astype(int)
    for column, (begin, end) in enumerate(pairwise(edges), _MARGIN):
        part = sound.samples[begin : max(end, begin + 1)]
        if len(part):
            high, low = (middle - round(half * float(one) / peak) for one in (part.max(), part.min()))
            cv2.line(drawn, (column, high), (column, low), _WAVE, 1)
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        told = f"{share * sound.seconds:.3g} s"
        left = _MARGIN + round(share * (width - 2 * _MARGIN - letters.width(told)))
        letters.write(drawn, told, (left, rows - _MARGIN // 2), _PALE)
    return drawn


def _bars(classes: Sequence[tuple[str, float]], rows: int, width: int) -> Frame:
    """Return the best classes, a line each: name, share, and a bar as long as the share."""
    drawn, letters = _empty(rows, width), _Letters(width // _LETTERS_ACROSS)
    pitch, left = rows // _BARS, width * 2 // 5
    for i, (name, share) in enumerate(classes[:_BARS]):
        base = i * pitch + (pitch + letters.size) // 2
        letters.write(drawn, _cut(name, left - 2 * _MARGIN, letters), (_MARGIN, base), WHITE)
        told = f"{share:.2f}"
        most = width - left - letters.width(told) - 2 * _MARGIN
        right = left + round(most * min(max(share, 0.0), 1.0))
        cv2.rectangle(drawn, (left, base - letters.size), (right, base), _BAR, cv2.FILLED)
        letters.write(drawn, told, (right + _MARGIN, base), WHITE)
    if not classes:
        letters.write(drawn, "nothing", (_MARGIN, (pitch + letters.size) // 2), WHITE)
    return drawn


def _cut(text: str, width: int, letters: _Letters) -> str:
    """Return the beginning of a text that has room."""
    if letters.width(text) <= width:
        return text
    kept = text[:_MOST_OF_NAME]
    while kept and letters.width(f"{kept}...") > width:
        kept = kept[:-1]
    return f"{kept}..."


def _page(text: str, marks: Sequence[Mark], rows: int, width: int, *, has_kinds: bool) -> Frame:
    """Return a text in lines, as much of it as has room, its marked parts on grounds of a colour a kind.

    The height follows from the text alone, so that two answers to it stand side by side.
    """
    drawn, letters, small = _empty(rows, width), _Letters(width // 36), _Letters(width // 58)
    kinds = sorted({one.kind for one in marks})
    pitch = letters.size * 3 // 2 + (small.size + _MARGIN // 2 if has_kinds else 0)
    x, base = _MARGIN, pitch
    edges = {edge for one in marks for edge in (one.start, one.end)}
    for word in re.finditer(r"\S{1,40}|\s+", text):
        if word[0].isspace():
            gap = letters.width(" ")
            spanned = next((one for one in marks if one.start <= word.start() and word.end() <= one.end), None)
            if spanned and x > _MARGIN:
                _ground(drawn, (x, base), gap, letters, class_colour(kinds.index(spanned.kind)))
            x += gap if x > _MARGIN else 0
            continue
        if x > _MARGIN and x + letters.width(word[0]) > width - _MARGIN:
            x, base = _MARGIN, base + pitch
        if base + letters.size // 2 > rows:
            letters.write(drawn, "...", (width - _MARGIN - letters.width("..."), rows - _MARGIN // 2), _PALE)
            break
        left = x
        cuts = [word.start(), *sorted(one for one in edges if word.start() < one < word.end()), word.end()]
        for begin, end in pairwise(cuts):
            part, wide = text[begin:end], letters.width(text[begin:end])
            mark = next((one for one in marks if one.start <= begin and end <= one.end), None)
            colour = class_colour(kinds.index(mark.kind)) if mark else WHITE
            if mark:
                _ground(drawn, (x, base), wide, letters, colour)
            if mark and begin == mark.start:
                small.write(drawn, mark.kind, (x, base - letters.size - _MARGIN // 2), colour)
            letters.write(drawn, part, (x, base), _DARK if mark else WHITE)
            x += wide
        x = left + letters.width(word[0])
    return drawn[: min(base + letters.size, rows)]


def _ground(drawn: Frame, place: tuple[int, int], width: int, letters: _Letters, colour: Colour) -> None:
    """Fill the ground of a part of a line."""
    x, base = place
    cv2.rectangle(drawn, (x, base - letters.size), (x + width - 1, base + letters.size // 3), colour, cv2.FILLED)
