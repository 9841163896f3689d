"""Intervals of a sound in which something is there: a CSV of `file,start_s,end_s`, or RTTM.

A file without speech has a line with an empty start and end; in RTTM, which has no such lines, sounds beside it that it
does not name hold none.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from os.path import isfile
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import InvalidFileError
from edgeopt.recipes.labels import LabelFormat, Labels, is_file_like, require_right, why_wrong_file
from edgeopt.system.disk.files import list_folder, read_text
from edgeopt.system.text import short

if TYPE_CHECKING:
    from edgeopt.recipes.inputs.frames import FramePart

_MOST_BYTES = 1 << 28
_LONGEST_S = 1e6
_COLUMNS = ("file", "start_s", "end_s")
_REMEDY = "write file,start_s,end_s, one line an interval; a file without any has both empty"
_REMEDY_RTTM = "write SPEAKER FILE 1 START SECONDS <NA> <NA> NAME <NA> <NA>, one line an interval"
_LEAST_GROUPS, _BLOCK_S = 8, 5.0
"""Sounds that are drawn whole, rather than in blocks, and how long a block is where there is as much: a sentence."""
Interval = tuple[float, float]
"""Begin and end, in seconds."""


@dataclass(frozen=True, slots=True)
class IntervalLabels(Labels):
    """The intervals of each sound, or those of the sound that each window is of."""

    intervals: tuple[tuple[Interval, ...], ...] = ()
    parts: tuple[FramePart, ...] = ()
    """Stretch of a sound that each window is; empty: sounds are taken as a whole."""
    lacks_suffix: bool = False
    """Whether names are stems, as in RTTM."""

    def select(self, kept: Sequence[int]) -> Self:
        """Return the labels of the sounds or windows at these positions only."""
        return replace(
            self,
            files=tuple(self.files[i] for i in kept),
            intervals=tuple(self.intervals[i] for i in kept),
            parts=tuple(self.parts[i] for i in kept) if self.parts else (),
        )

    def of_parts(self, parts: Sequence[FramePart]) -> Self:
        """Return the labels of windows."""
        whole = self.select([part.place for part in parts])
        return replace(whole, parts=tuple(parts))

    def named_in(self, folder: Path) -> Self:
        """Return the labels with the suffix of the sounds in a folder, and those that RTTM does not name."""
        if not self.lacks_suffix:
            return self
        known = dict(zip(self.files, self.intervals, strict=True))
        names = [
            name for name in list_folder(folder, remedy="correct its permissions") if name.lower().endswith(".wav")
        ]
        held = [known.get(Path(name).stem, ()) for name in names if isfile(folder / name)]
        return replace(self, files=tuple(names), intervals=tuple(held)) if names else self

    @property
    def groups(self) -> tuple[int, ...]:
        """Windows of one sound go together; of few sounds, those of one block of a few seconds.

        Source: the block bootstrap, Kuensch 1989; blocks of at least as long as neighbours depend on each other.
        """
        places = [part.place for part in self.parts]
        keys: list[tuple[int, int]] = [(place, 0) for place in places]
        if len(set(places)) < _LEAST_GROUPS:
            ends = dict(zip(places, (part.end_s for part in self.parts), strict=True))  # of each the last
            block_s = min(_BLOCK_S, sum(ends.values()) / _LEAST_GROUPS)
            keys = [(part.place, int(part.begin_s / block_s)) for part in self.parts]
        numbers = {key: i for i, key in enumerate(dict.fromkeys(keys))}
        return tuple(numbers[key] for key in keys)

    def truth(self, stretches: int) -> NDArray[np.bool_]:
        """Return (windows, stretches) whether something is there in the middle of each stretch.

        Args:
            stretches: Evenly long, of each window.

        Raises:
            InvalidFileError: If these are no windows.
        """
        if not self.parts:
            raise InvalidFileError(
                f"{self.source} labels stretches of sounds, and the recipe hears each as a whole",
                remedy="write hop under [audio]: how many samples lie between two windows",
            )
        array = np.zeros((len(self.parts), stretches), np.bool_)
        middles = (np.arange(stretches) + 0.5) / stretches
        for row, part, intervals in zip(array, self.parts, self.intervals, strict=True):
            times = part.begin_s + middles * (part.end_s - part.begin_s)
            for begin, end in intervals:
                row |= (begin <= times) & (times < end)
        return array


def read_intervals(path: Path) -> IntervalLabels:
    """Read a CSV with the columns `file`, `start_s` and `end_s`.

    Raises:
        InvalidFileError: If it is none; the first wrong line is named, and how many there are.
    """
    rows = _rows(path)
    head = [cell.strip().lower() for cell in rows[0]]
    places = [head.index(column) for column in _COLUMNS]
    by_file, wrong = dict[str, list[Interval]](), list[str]()
    for number, row in enumerate(rows[1:], 2):
        if not any(row):
            continue
        cells = [row[i].strip() if i < len(row) else "" for i in places]
        reason = why_wrong_file(cells[0]) or (why_no_interval(cells[1], cells[2]) if any(cells[1:]) else "")
        if reason:
            wrong.append(f"line {number}: {reason}")
            continue
        held = by_file.setdefault(cells[0], [])
        if any(cells[1:]):
            held.append((float(cells[1]), float(cells[2])))
    require_right(path, wrong, _REMEDY)
    if not by_file:
        raise InvalidFileError(f"{path} labels no sound", remedy=_REMEDY)
    return _labels(path, by_file)


def read_rttm(path: Path) -> IntervalLabels:
    """Read RTTM: the speakers of a sound, whoever they are. Source: NIST, Rich Transcription 2009, appendix A.

    Raises:
        InvalidFileError: If it is none; the first wrong line is named, and how many there are.
    """
    text = read_text(path, remedy=_REMEDY_RTTM, most_bytes=_MOST_BYTES)
    by_file, wrong = dict[str, list[Interval]](), list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        cells = line.split()
        if not cells or cells[0].startswith(";") or cells[0] != "SPEAKER":
            continue
        length = cells[4] if len(cells) > 4 else ""
        end = f"{float(cells[3]) + float(length):.9g}" if _is_number(length) and _is_number(cells[3]) else length
        reason = why_no_interval(cells[3], end) if length else f"{len(cells)} columns"
        if reason:
            wrong.append(f"line {number}: {reason}")
        else:
            by_file.setdefault(cells[1], []).append((float(cells[3]), float(end)))
    require_right(path, wrong, _REMEDY_RTTM)
    if not by_file:
        raise InvalidFileError(f"{path} names no speaker", remedy=_REMEDY_RTTM)
    return replace(_labels(path, by_file), lacks_suffix=True)


def _labels(path: Path, by_file: Mapping[str, Sequence[Interval]]) -> IntervalLabels:
    return IntervalLabels(tuple(by_file), path, tuple(tuple(sorted(one)) for one in by_file.values()))


def _rows(path: Path) -> list[list[str]]:
    text = read_text(path, remedy=_REMEDY, most_bytes=_MOST_BYTES)
    try:
        return list(csv.reader(text.splitlines(), strict=True))
    except csv.Error as error:
        raise InvalidFileError(f"{path} is no CSV: {error}", remedy=_REMEDY) from error


def is_intervals(path: Path) -> bool:
    """Return whether a CSV has these columns."""
    if not is_file_like(path, ".csv") or not isfile(path):
        return False
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            head = file.readline(4096)
    except OSError:
        return False
    return set(_COLUMNS) <= {cell.strip().strip('"').lower() for cell in head.lstrip("\ufeff").split(",")}


def _is_number(word: str) -> bool:
    try:
        return math.isfinite(float(word))
    except ValueError:
        return False


def why_no_interval(begin: str, end: str) -> str:
    """Return why two words are no interval in seconds, or empty."""
    if not (_is_number(begin) and _is_number(end)):
        return f"{short(begin)} to {short(end)} are no seconds"
    if not 0 <= float(begin) < float(end) <= _LONGEST_S:
        return f"{begin} to {end} s is no interval"
    return ""


def _read(path: Path) -> IntervalLabels:
    return read_rttm(path) if is_file_like(path, ".rttm") else read_intervals(path)


FORMAT = LabelFormat(
    "a CSV of file,start_s,end_s or RTTM (.rttm)",
    lambda path: is_file_like(path, ".rttm") or is_intervals(path),
    _read,
)
