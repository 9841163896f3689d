"""Requests that were recorded: they come again when they came then."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Final, Self

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import InvalidFileError
from edgeopt.measurement.load.models import OpenLoad
from edgeopt.system.disk.files import read_text
from edgeopt.system.text import short

_TIMES: Final = ("time", "timestamp", "ts", "arrival_time", "time_ms", "timestamp_ms")
_PROMPTS: Final = ("prompt_tokens", "input_tokens", "input_length", "contexttokens")
_ANSWERS: Final = ("output_tokens", "completion_tokens", "output_length", "generatedtokens")
"""Names of columns and keys, in lower case: those of edgeopt's access log, and of the traces of Azure and Mooncake."""
_MOONCAKE: Final = "hash_ids"
"""Key of Mooncake's traces, whose `timestamp` is in milliseconds."""
_REMEDY: Final = (
    "write a time a line (seconds, or 2026-01-31T12:00:00.5Z), a CSV with a column `time`, or JSON lines with a key "
    "`time`, as the access log of edgeopt serve has it"
)
_SPEED: Final = re.compile(r"(.+)@([0-9]+(?:\.[0-9]+)?)x")
_LEAST: Final = 2
_MOST_S: Final = 366 * 86400.0
"""A record of more than a year is one whose times are no seconds."""
_MOST_TOKENS: Final = 10_000_000


@dataclass(frozen=True, slots=True)
class Trace(OpenLoad):
    """Recorded arrivals, from their beginning on; a run that is longer than the record begins it anew."""

    file: str = ""
    times_s: tuple[float, ...] = field(default=(), repr=False)
    """Since the first one, in rising order."""
    tokens: tuple[tuple[int, int], ...] = field(default=(), repr=False)
    """Tokens of each prompt and its answer; empty: they were not recorded."""
    example: ClassVar[str] = "trace:FILE"

    @classmethod
    def parse(cls, value: str | None) -> Self | None:
        """Return the load that a file holds, behind `@2x` at so many times its speed.

        Raises:
            InvalidFileError: If it holds no times.
        """
        if not value:
            return None
        match, file = _SPEED.fullmatch(value), cls.file_in(value)
        speed = float(match[2]) if match else 1.0
        if not speed:
            return None
        times, tokens = read_trace(Path(file))
        made = cls(1.0, file, times, tokens)
        return replace(made, rate_per_s=speed / made._mean_gap_s)

    @classmethod
    def file_in(cls, value: str) -> str:
        """Return the file, without the speed behind it."""
        match = _SPEED.fullmatch(value)
        return match[1] if match else value

    @property
    def _mean_gap_s(self) -> float:
        return self.times_s[-1] / (len(self.times_s) - 1)

    def instants_ns(self, seconds: float, phase: float, rng: np.random.Generator) -> NDArray[np.float64]:
        """Return (n,) the instants of the record; between its end and its beginning lies its mean gap."""
        faster = self.rate_per_s * self._mean_gap_s
        length_s = len(self.times_s) * self._mean_gap_s / faster
        times = np.array(self.times_s) / faster
        repeats = int(seconds // length_s) + 1
        instants = (np.arange(repeats)[:, None] * length_s + times).ravel()
        return instants[instants < seconds] * 1e9

    def tokens_of(self, number: int) -> tuple[int, int] | None:
        """Return the tokens of the prompt and the answer of a request."""
        return self.tokens[number % len(self.tokens)] if self.tokens else None

    def __str__(self) -> str:
        speed = self.rate_per_s * self._mean_gap_s
        return f"trace:{self.file}" + ("" if abs(speed - 1) < 1e-9 else f"@{speed:.6g}x")


def read_trace(path: Path) -> tuple[tuple[float, ...], tuple[tuple[int, int], ...]]:
    """Return when the requests of a file came, in seconds since the first, and their tokens where all have them.

    Raises:
        InvalidFileError: If it cannot be read, holds fewer than two, or all came at the same time.
    """
    lines = [line for line in read_text(path, remedy=_REMEDY).splitlines() if line.strip() and not line.startswith("#")]
    try:
        requests = sorted(_requests(lines))
    except (ValueError, KeyError, TypeError, OverflowError, csv.Error, RecursionError) as error:
        raise InvalidFileError(f"{path} holds no trace: {short(str(error))}", remedy=_REMEDY) from error
    if len(requests) < _LEAST or not requests[-1][0] > requests[0][0]:
        raise InvalidFileError(f"{path} holds {len(requests)} requests at one time", remedy=_REMEDY)
    if (length_s := requests[-1][0] - requests[0][0]) > _MOST_S:
        problem = f"{path} holds requests of {length_s / _MOST_S:.3g} years"
        raise InvalidFileError(problem, remedy="write times in seconds, or name the column time_ms")
    tokens = tuple((prompt, answer) for _, prompt, answer in requests)
    is_whole = all(prompt > 0 and answer > 0 for prompt, answer in tokens)
    return tuple(time - requests[0][0] for time, _, _ in requests), tokens if is_whole else ()


def _requests(lines: Sequence[str]) -> Iterator[tuple[float, int, int]]:
    """Yield seconds, tokens of the prompt and tokens of the answer; 0 tokens: not recorded."""
    for row in _rows(lines):
        is_logged = "method" in row  # a line of an access log, written when its answer was over
        if is_logged and row["method"] != "POST":
            continue
        name = next((name for name in _TIMES if name in row), "")
        if not name:
            raise ValueError(f"no time among {', '.join(map(str, row))[:99]}")
        scale = 1e-3 if name.endswith("_ms") or _MOONCAKE in row else 1.0
        took_s = _seconds(row.get("ms", 0)) / 1000 if is_logged else 0.0
        yield _seconds(row[name]) * scale - took_s, _count(row, _PROMPTS), _count(row, _ANSWERS)


def _rows(lines: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    """Yield the lines of JSON or a table by their names in lower case; of a table without a head only the times."""
    if lines and lines[0].lstrip().startswith("{"):
        for line in lines:
            if not isinstance(row := json.loads(line), dict):
                raise ValueError("a line is no object")
            yield {str(name).lower(): value for name, value in row.items()}
        return
    heads = [name.strip().lower() for name in next(csv.reader(lines[:1]), [])]
    has_heads = bool(set(heads) & set(_TIMES))
    for cells in csv.reader(lines[has_heads:]):
        yield dict(zip(heads, cells, strict=False)) if has_heads else {_TIMES[0]: cells[0]}


def _seconds(value: Any) -> float:
    """Return seconds of a number or a date with a time; one without a zone is in UTC."""
    try:
        seconds = float(value)
    except ValueError:
        moment = datetime.fromisoformat(str(value).strip())
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    if not np.isfinite(seconds):
        raise ValueError(f"{value} is no time")
    return seconds


def _count(row: Mapping[str, Any], names: Sequence[str]) -> int:
    count = next((int(float(row[name])) for name in names if row.get(name)), 0)
    if count > _MOST_TOKENS:
        raise ValueError(f"{count:g} tokens in a request")
    return count


LOAD = Trace
