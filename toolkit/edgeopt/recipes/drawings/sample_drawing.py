"""Pictures of samples with what was found in them, for tasks that draw their answers."""

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
from edgeopt.recipes.drawings.drawing import (
    LETTERS_ACROSS,
    MARGIN,
    PALE,
    SHAPE,
    WHITE,
    Colour,
    Letters,
    class_colour,
    cut,
    empty,
    scaled,
)
from edgeopt.recipes.drawings.tensor_drawing import DrawnOutput, draw_tensors, vector_strip

_WAVE, _BAR, _DARK = (200, 180, 120), (200, 140, 60), (16, 16, 16)
_BARS = 3
"""Classes of a picture."""
_STRIP = 0.08
"""Height of a vector's strip, of a picture's height."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A part of a text, and what it is called."""

    start: int
    """Characters from the beginning of the text."""
    end: int
    """Place behind its last character."""
    kind: str


def draw_classes_of_sound(sound: Sound, classes: Sequence[tuple[str, float]], height: int) -> Frame:
    """Return a picture of a waveform over its time, with a bar for each of the best classes below it."""
    below = _bars(classes, height * 2 // 5, SHAPE * height)
    return np.concatenate([_waveform(sound, height - len(below), SHAPE * height), below])


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
    rows, width = height * 2 // 5, SHAPE * height
    below, letters = empty(rows, width), Letters(width // LETTERS_ACROSS)
    top, bottom = 2 * MARGIN + letters.size, rows - MARGIN
    there, colour = np.nan_to_num(probabilities, nan=-1.0, posinf=-1.0, neginf=-1.0), class_colour(1)
    edges = np.linspace(MARGIN, width - MARGIN, len(there) + 1).round().astype(int)
    for left, right, share in zip(edges[:-1], edges[1:], there, strict=True):
        if share >= 0:
            level = bottom - round(min(float(share), 1.0) * (bottom - top))
            filled = colour if share >= threshold else PALE
            cv2.rectangle(below, (int(left), level), (max(int(right) - 1, int(left)), bottom), filled, cv2.FILLED)
    line = bottom - round(threshold * (bottom - top))
    cv2.line(below, (MARGIN, line), (width - MARGIN, line), WHITE, 1)
    letters.write(below, f"{label}, bright from {threshold:g}", (MARGIN, top - MARGIN), WHITE)
    return np.concatenate([_waveform(sound, height - rows, width), below])


def draw_classes_of_text(text: str, classes: Sequence[tuple[str, float]], height: int) -> Frame:
    """Return a picture of a text, with a bar for each of the best classes below it; lower where the text is short."""
    below = _bars(classes, height * 2 // 5, SHAPE * height)
    return np.concatenate([_page(text, (), height - len(below), SHAPE * height, has_kinds=False), below])


def draw_spans_of_text(text: str, marks: Sequence[Mark], height: int) -> Frame:
    """Return a picture of a text, lower where it is short: marked parts are coloured, their kinds stand above them."""
    return _page(text, marks, height, SHAPE * height, has_kinds=True)


def draw_vector_of_text(text: str, vector: NDArray[np.float32], height: int) -> Frame:
    """Return a picture of a text, lower where it is short, over its vector."""
    return _over_strip(_page(text, (), height - _strip_rows(height), SHAPE * height, has_kinds=False), vector, height)


def draw_vector_of_sound(sound: Sound, vector: NDArray[np.float32], height: int) -> Frame:
    """Return a picture of a waveform over its vector."""
    return _over_strip(_waveform(sound, height - _strip_rows(height), SHAPE * height), vector, height)


def draw_vector_of_picture(frame: Frame, vector: NDArray[np.float32], height: int) -> Frame:
    """Return a copy of a picture with its vector at the lower edge."""
    return _over_strip(scaled(frame, height)[: height - _strip_rows(height)], vector, height)


def draw_tensors_of_sound(sound: Sound, outputs: Sequence[DrawnOutput], height: int) -> Frame:
    """Return a picture of a waveform over the outputs."""
    rows, width = height * 3 // 5, SHAPE * height
    return np.concatenate([_waveform(sound, height - rows, width), draw_tensors(outputs, rows, width)])


def draw_tensors_of_picture(frame: Frame, outputs: Sequence[DrawnOutput], height: int) -> Frame:
    """Return a picture beside the outputs."""
    return np.concatenate([scaled(frame, height), draw_tensors(outputs, height, SHAPE * height)], axis=1)


def draw_tensors_of_arrays(outputs: Sequence[DrawnOutput], height: int) -> Frame:
    """Return the outputs alone: arrays that were fed have no picture."""
    return draw_tensors(outputs, height, SHAPE * height)


def _strip_rows(height: int) -> int:
    return max(int(height * _STRIP), 1)


def _over_strip(drawn: Frame, vector: NDArray[np.float32], height: int) -> Frame:
    return np.concatenate([drawn, vector_strip(vector, drawn.shape[1], _strip_rows(height))])


def _waveform(sound: Sound, rows: int, width: int) -> Frame:
    """Return the least and the largest sample of each column, scaled to the loudest, over marks of the time."""
    drawn, letters = empty(rows, width), Letters(width // LETTERS_ACROSS)
    bottom = rows - letters.size - MARGIN
    middle, half = (MARGIN + bottom) // 2, (bottom - MARGIN) // 2
    peak = float(np.abs(sound.samples).max(initial=0.0)) or 1.0
    edges = np.linspace(0, len(sound.samples), width - 2 * MARGIN + 1).astype(int)
    for column, (begin, end) in enumerate(pairwise(edges), MARGIN):
        part = sound.samples[begin : max(end, begin + 1)]
        if len(part):
            high, low = (middle - round(half * float(value) / peak) for value in (part.max(), part.min()))
            cv2.line(drawn, (column, high), (column, low), _WAVE, 1)
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        text = f"{share * sound.seconds:.3g} s"
        left = MARGIN + round(share * (width - 2 * MARGIN - letters.width(text)))
        letters.write(drawn, text, (left, rows - MARGIN // 2), PALE)
    return drawn


def _bars(classes: Sequence[tuple[str, float]], rows: int, width: int) -> Frame:
    """Return the best classes, a line each: name, share, and a bar as long as the share."""
    drawn, letters = empty(rows, width), Letters(width // LETTERS_ACROSS)
    pitch, left = rows // _BARS, width * 2 // 5
    for i, (name, share) in enumerate(classes[:_BARS]):
        base = i * pitch + (pitch + letters.size) // 2
        letters.write(drawn, cut(name, left - 2 * MARGIN, letters), (MARGIN, base), WHITE)
        text = f"{share:.2f}"
        most = width - left - letters.width(text) - 2 * MARGIN
        right = left + round(most * min(max(share, 0.0), 1.0))
        cv2.rectangle(drawn, (left, base - letters.size), (right, base), _BAR, cv2.FILLED)
        letters.write(drawn, text, (right + MARGIN, base), WHITE)
    if not classes:
        letters.write(drawn, "nothing", (MARGIN, (pitch + letters.size) // 2), WHITE)
    return drawn


def _page(text: str, marks: Sequence[Mark], rows: int, width: int, *, has_kinds: bool) -> Frame:
    """Return a text in lines, as much of it as has room, its marked parts on grounds of a colour a kind.

    The height follows from the text alone, so that two answers to it stand side by side.
    """
    drawn, letters, small = empty(rows, width), Letters(width // 36), Letters(width // 58)
    kinds = sorted({other.kind for other in marks})
    pitch = letters.size * 3 // 2 + (small.size + MARGIN // 2 if has_kinds else 0)
    x, base = MARGIN, pitch
    edges = {edge for other in marks for edge in (other.start, other.end)}
    for word in re.finditer(r"\S{1,40}|\s+", text):
        if word[0].isspace():
            gap = letters.width(" ")
            spanned = next((other for other in marks if other.start <= word.start() and word.end() <= other.end), None)
            if spanned and x > MARGIN:
                _ground(drawn, (x, base), gap, letters, class_colour(kinds.index(spanned.kind)))
            x += gap if x > MARGIN else 0
            continue
        if x > MARGIN and x + letters.width(word[0]) > width - MARGIN:
            x, base = MARGIN, base + pitch
        if base + letters.size // 2 > rows:
            letters.write(drawn, "...", (width - MARGIN - letters.width("..."), rows - MARGIN // 2), PALE)
            break
        left = x
        cuts = [word.start(), *sorted(other for other in edges if word.start() < other < word.end()), word.end()]
        for begin, end in pairwise(cuts):
            part, wide = text[begin:end], letters.width(text[begin:end])
            mark = next((other for other in marks if other.start <= begin and end <= other.end), None)
            colour = class_colour(kinds.index(mark.kind)) if mark else WHITE
            if mark:
                _ground(drawn, (x, base), wide, letters, colour)
            if mark and begin == mark.start:
                small.write(drawn, mark.kind, (x, base - letters.size - MARGIN // 2), colour)
            letters.write(drawn, part, (x, base), _DARK if mark else WHITE)
            x += wide
        x = left + letters.width(word[0])
    return drawn[: min(base + letters.size, rows)]


def _ground(drawn: Frame, place: tuple[int, int], width: int, letters: Letters, colour: Colour) -> None:
    """Fill the ground of a part of a line."""
    x, base = place
    cv2.rectangle(drawn, (x, base - letters.size), (x + width - 1, base + letters.size // 3), colour, cv2.FILLED)
