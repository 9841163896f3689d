"""Pictures of numbers: a vector as a strip of colours, and a model's outputs as curves and maps under their names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from edgeopt.graph.tensors import Frame
from edgeopt.recipes.drawings.drawing import LETTERS_ACROSS, MARGIN, PALE, WHITE, Letters, class_colour, cut, empty
from edgeopt.system.text import plural

_MOST_DRAWN = 4
"""Outputs of a picture; more would be too low to be seen."""
_LEAST_ROWS = 8
"""Pixels of a curve or a map: with fewer there is only its text."""
_LEAST_MAP = 32
"""Pixels of one map beside others."""
_GAP = 2
"""Pixels between two maps."""
_CURVE, _ZERO, _LOST = (200, 180, 120), (80, 80, 80), class_colour(0)
"""`_LOST`: of elements that are NaN or infinite."""
_MOST_ALONG = 4096
"""Elements along one axis of a map; of a longer one every n-th is drawn."""

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class DrawnOutput:
    """One output, and what is said of it."""

    text: str
    """Its name, its shape, its range."""
    value: NDArray[Any]


def vector_strip(vector: NDArray[np.float32], width: int, rows: int) -> Frame:
    """Return a vector as a strip of colours, zero in their middle: alike where vectors are alike."""
    peak = float(np.abs(vector).max(initial=1e-9))
    grey = np.rint((vector / peak + 1) * 127.5).astype(np.uint8)[None]
    return _coloured(cv2.resize(grey, (width, rows), interpolation=cv2.INTER_AREA))


def draw_tensors(outputs: Sequence[DrawnOutput], rows: int, width: int) -> Frame:
    """Return the first outputs, each under its text: a vector as a curve, more axes as maps from dark to bright.

    What is NaN or infinite is red in a map, and a gap in a curve. The layout follows from the outputs' number and
    shapes alone, so that two answers stand side by side.
    """
    letters, shown = Letters(width // LETTERS_ACROSS), outputs[:_MOST_DRAWN]
    drawn = empty(rows, width)
    bottom = rows - (letters.size + MARGIN if len(outputs) > len(shown) else 0)
    edges = np.linspace(0, bottom, len(shown) + 1).astype(int)
    for output, (top, end) in zip(shown, pairwise(edges.tolist()), strict=True):
        base = top + letters.size + MARGIN // 2
        place = drawn[base + MARGIN // 2 : end - MARGIN // 2, MARGIN : width - MARGIN]
        more = _fill(place, output.value) if _is_drawn(output.value, place) else ""
        letters.write(drawn, cut(output.text + more, width - 2 * MARGIN, letters), (MARGIN, base), WHITE)
    if len(outputs) > len(shown):
        text = f"and {plural(len(outputs) - len(shown), 'more output')}"
        letters.write(drawn, text, (MARGIN, rows - MARGIN // 2), PALE)
    return drawn


def _is_drawn(value: NDArray[Any], place: Frame) -> bool:
    return value.size > 1 and value.dtype.kind in "fiub" and len(place) >= _LEAST_ROWS


def _fill(place: Frame, value: NDArray[Any]) -> str:
    """Draw numbers; return which of the maps are shown, where not all are."""
    finite = value[np.isfinite(value)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    axes = [size for size in value.shape if size != 1]
    if len(axes) == 1:
        _curve(place, _levels(value.reshape(-1), low, high), _levels(np.zeros(1), low, high)[0])
        return ""
    planes = _planes(value.reshape(axes))
    shown = _maps(place, planes, low, high)
    return f"; {shown} of {len(planes)} maps" if shown < len(planes) else ""


def _levels(value: NDArray[Any], low: float, high: float) -> Numbers:
    """Return numbers from 0, the lowest, to 1, the highest; NaN where they are not finite."""
    halves = np.where(np.isfinite(value), value, np.nan).astype(np.float64) / 2  # a difference of halves stays finite
    span = high / 2 - low / 2
    return (halves - low / 2) / span if span else np.where(np.isnan(halves), np.nan, 0.5)


def _curve(place: Frame, levels: Numbers, zero: float) -> None:
    """Draw a line through numbers; of more numbers than columns the lowest and the highest of each column."""
    rows, columns = place.shape[:2]
    if 0 < zero < 1:
        place[round((1 - zero) * (rows - 1))] = _ZERO
    heights = (1 - levels) * (rows - 1)
    if len(levels) > columns:
        parts = pairwise(np.linspace(0, len(levels), columns + 1).astype(int))
        ends = [(part.min(), part.max()) if len(part) else None for part in (_told(heights[a:b]) for a, b in parts)]
        for column, end in enumerate(ends):
            if end is not None:
                cv2.line(place, (column, round(end[0])), (column, round(end[1])), _CURVE, 1)
        return
    across = np.linspace(0, columns - 1, len(levels)).round()
    points = np.stack([across, heights], axis=1)
    for run in np.split(points, np.flatnonzero(np.isnan(heights))):
        line = run[~np.isnan(run[:, 1])]
        cv2.polylines(place, [line.round().astype(np.int32)], False, _CURVE, 1, cv2.LINE_AA)


def _told(values: Numbers) -> Numbers:
    return values[~np.isnan(values)]


def _planes(value: NDArray[Any]) -> NDArray[Any]:
    """Return (maps, rows, columns): the last two axes are a map, unless the last one is that of a few channels."""
    if value.ndim == 3 and value.shape[2] < min(value.shape[:2]):
        value = np.moveaxis(value, 2, 0)
    planes = value.reshape(-1, *value.shape[-2:])
    steps = [ceil(size / _MOST_ALONG) for size in planes.shape[1:]]
    return planes[:, :: steps[0], :: steps[1]]


def _maps(place: Frame, planes: NDArray[Any], low: float, high: float) -> int:
    """Draw as many maps as have room, row by row; return their number."""
    rows, columns = place.shape[:2]
    lines = 1
    while True:
        tall = (rows - (lines - 1) * _GAP) // lines
        wide = min(max(round(tall * planes.shape[2] / planes.shape[1]), tall // 2, 1), columns)
        along = (columns + _GAP) // (wide + _GAP)
        if lines * along >= len(planes) or (rows - lines * _GAP) // (lines + 1) < _LEAST_MAP:
            break
        lines += 1
    shown = planes[: lines * along]
    for i, plane in enumerate(shown):
        top, left = i // along * (tall + _GAP), i % along * (wide + _GAP)
        place[top : top + tall, left : left + wide] = _map(_levels(plane, low, high), wide, tall)
    return len(shown)


def _map(levels: Numbers, wide: int, tall: int) -> Frame:
    is_larger = levels.shape[0] <= tall and levels.shape[1] <= wide
    how = cv2.INTER_NEAREST if is_larger else cv2.INTER_AREA
    lost = np.isnan(levels)
    grey = cv2.resize(np.where(lost, 0.0, levels).astype(np.float32), (wide, tall), interpolation=how)
    drawn = _coloured(np.rint(np.clip(grey, 0, 1) * 255).astype(np.uint8))
    if lost.any():
        drawn[cv2.resize(lost.astype(np.float32), (wide, tall), interpolation=how) > 0] = _LOST
    return drawn


def _coloured(grey: NDArray[Any]) -> Frame:
    return np.asarray(cv2.applyColorMap(grey, cv2.COLORMAP_VIRIDIS), np.uint8)
