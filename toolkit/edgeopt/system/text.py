"""Numbers and durations as people read and write them."""

from __future__ import annotations

import math
import re
import reprlib
import textwrap
from pathlib import Path
from unicodedata import east_asian_width

from edgeopt.errors import EdgeoptError

_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_BYTES = {"b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40, "kb": 10**3, "mb": 10**6, "gb": 10**9}
_MOST_BYTES = 1 << 60
_MOST_SECONDS = 30 * 86400.0
_DRIVES = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
"""Characters that drive a terminal, break a line, turn the direction of text, or cannot be written at all."""
_CUT = "..."
_LEAST_FOLDED = 30
"""Columns of a text that is folded, whatever the terminal's width."""
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 60


def parse_duration_s(text: str, *, unit: str = "s") -> float:
    """Return seconds for texts such as `33ms`, `5m` or `1.5s`; a bare number is in `unit`.

    Raises:
        EdgeoptError: If the text is no positive, finite duration.
    """
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?)\s*([a-z]*)\s*", text)
    seconds = float(match[1]) * _SECONDS.get(match[2] or unit, math.nan) if match else math.nan
    if not (math.isfinite(seconds) and 0 < seconds <= _MOST_SECONDS):
        problem = f"{short(text)} is not a duration" + (" of 30 days or less" if seconds > _MOST_SECONDS else "")
        raise EdgeoptError(problem, remedy="write a number with us, ms, s, m or h, for example 33ms")
    return seconds


def parse_bytes(text: str) -> int:
    """Return bytes for texts such as `2GiB`, `512 MiB` or `1.5GB`.

    Raises:
        EdgeoptError: If the text is no size above zero, or has no unit.
    """
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([A-Za-z]+)\s*", text)
    size = float(match[1]) * _BYTES.get(match[2].lower(), math.nan) if match else math.nan
    if not 1 <= size <= _MOST_BYTES:
        raise EdgeoptError(f"{short(text)} is not a size", remedy="write a number with MiB or GiB, for example 2GiB")
    return round(size)


def parse_ratio(text: str) -> float:
    """Return a share from 0 to 1 for texts such as `1%` or `0.01`.

    Raises:
        EdgeoptError: If the text is no share.
    """
    try:
        value = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1:
        raise EdgeoptError(
            f"{short(text)} is not a share", remedy="write a number from 0 to 1, or a percentage such as 1%"
        )
    return value


def parse_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """Return an input's name and its shape for texts such as `images=1x3x48x192`.

    Raises:
        EdgeoptError: If the text is no name with a shape.
    """
    name, _, sizes = text.rpartition("=")
    words = sizes.split("x")
    if not name or not all(re.fullmatch(r"[1-9][0-9]{0,8}", word, re.ASCII) for word in words):
        raise EdgeoptError(
            f"{text!r} is not a shape of an input",
            remedy="write INPUT=1x3x48x192, sizes above zero, one for each input",
        )
    return name, tuple(map(int, words))


def format_ms(nanoseconds: float | None) -> str:
    """Return milliseconds with three significant digits; `n/a` for None."""
    if nanoseconds is None:
        return "n/a"
    ms = nanoseconds / 1e6
    return f"{ms:.3f}" if ms < 1 else f"{ms:.2f}" if ms < 100 else f"{ms:.0f}"


def format_budget(budget_ms: float) -> str:
    """Return milliseconds that somebody asked for: four digits, and never a power of ten."""
    return _plain(budget_ms)


def _plain(value: float) -> str:
    """Return a number of four significant digits, never with an exponent: `33.33`, `10000`, `0.0001`."""
    text = f"{value:.4g}"
    return text if "e" not in text else f"{value:.0f}" if abs(value) >= 1 else f"{value:.9f}".rstrip("0").rstrip(".")


def typed_duration(ms: float) -> str:
    """Return a duration as a person would type it for an option: `33.33ms`, `10s`, `5m`, `500us`."""
    for unit in ("h", "m", "s"):
        value = ms / 1000 / _SECONDS[unit]
        if value >= 1 and (unit == "s" or value == int(value)):
            return f"{_plain(value)}{unit}"
    return f"{_plain(ms)}ms" if ms >= 1 else f"{_plain(1000 * ms)}us"


def format_bytes(size_bytes: int) -> str:
    """Return a size in B, KiB or MiB."""
    if size_bytes < 1024:
        return f"{size_bytes} B"
    kib = size_bytes / 1024
    return f"{kib:.0f} KiB" if kib < 1024 else f"{kib / 1024:.2f} MiB"


def format_score(value: float | None) -> str:
    """Return a metric's value with four digits; None: nothing."""
    return "" if value is None else f"{value:.4f}"


def format_drop(value: float | None) -> str:
    """Return what a metric lost or gained, signed, with four digits; None: nothing."""
    return "" if value is None else f"{value:+.4f}"


def words_of(text: str) -> frozenset[str]:
    """Return the words of a text, which white space parts: how a long list of names is written."""
    return frozenset(text.split())


def plural(count: int, noun: str) -> str:
    """Return `1 image`, `2 images`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def short(value: object) -> str:
    """Return a value from outside as it would be written, of a length and depth that fit into a message."""
    try:
        return _SHORT.repr(value)
    except ValueError:  # Python writes no whole number of more than 4,300 digits
        return "a number of thousands of digits"


def printable(text: str) -> str:
    """Return one line in which nothing drives a terminal: names from files come in as they are, and go out so."""
    return _DRIVES.sub(lambda one: one[0].encode("unicode_escape").decode("ascii"), text)


def shown_path(path: Path) -> str:
    """Return a path as short as it can be typed here: relative to the folder where the program runs, if it is below."""
    try:
        return str(path.absolute().relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)


def columns(text: str) -> int:
    """Return how many columns a terminal takes for a text."""
    return len(text) + sum(east_asian_width(name) in "WF" for name in text)


def fold(text: str, width: int, head: str = "") -> list[str]:
    """Return lines of at most `width` columns, blanks under the head; words, names and paths are never broken.

    Args:
        text: One line.
        width: Of the terminal; 0: the line stays as long as it is.
        head: Comes before the first line, a label for example.
    """
    if not width or columns(head) + columns(text) <= width:
        return [f"{head}{text}".rstrip()]
    room = max(_LEAST_FOLDED, width - columns(head))
    lines = textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False)
    return [f"{' ' * columns(head) if number else head}{line}" for number, line in enumerate(lines or [""])]


def shorten(text: str, width: int) -> str:
    """Return a name in at most `width` columns: its two ends tell more than its middle."""
    if columns(text) <= width:
        return text
    kept = max(2, width - len(_CUT))
    ends = text[: (kept + 1) // 2], text[-(kept // 2) :]
    while columns(_CUT.join(ends)) > width and len(ends[0]) > 1:
        ends = ends[0][:-1], ends[1][-(len(ends[0]) - 1) :]
    return _CUT.join(ends)
