"""When frames should arrive: the kind of load, and its timetable for a seed."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import EdgeoptError

_REMEDY: Final = "write closed, closed:4, fps:30 or poisson:30"
_CHUNK: Final = 1024
"""Gaps drawn at a time, whatever the length of the run: a longer run then begins like a shorter one."""
_MOST_ARRIVALS: Final = 10**8
"""Of one timetable: two columns of 8 bytes each."""
_MOST_JITTER: Final = 0.49
"""Periods; above it frames of one camera could overtake each other."""


@dataclass(frozen=True, slots=True)
class Closed:
    """So many workers, each taking the next frame when its last one is done: a measure of capacity."""

    workers: int = 1

    def __str__(self) -> str:
        return f"closed:{self.workers}"


@dataclass(frozen=True, slots=True)
class FixedRate:
    """A camera: one frame every 1 / fps seconds, on each stream."""

    rate_per_s: float

    @property
    def period_ns(self) -> float:
        """Time between two frames of a stream."""
        return 1e9 / self.rate_per_s

    def __str__(self) -> str:
        return f"fps:{self.rate_per_s:g}"


@dataclass(frozen=True, slots=True)
class Poisson:
    """Independent requests at a mean rate, on each stream."""

    rate_per_s: float

    @property
    def period_ns(self) -> float:
        """Mean time between two requests of a stream."""
        return 1e9 / self.rate_per_s

    def __str__(self) -> str:
        return f"poisson:{self.rate_per_s:g}"


OpenLoad: TypeAlias = FixedRate | Poisson
Load: TypeAlias = Closed | OpenLoad


class Phases(StrEnum):
    """When in its period each camera takes its first frame."""

    UNIFORM = "uniform"
    """Evenly spread: the least queueing."""
    RANDOM = "random"
    """Drawn for the seed, as cameras that know nothing of each other."""


@dataclass(frozen=True, slots=True, eq=False)
class Arrivals:
    """A timetable in rising order; ties lie in order of the stream."""

    intended_ns: NDArray[np.int64]
    """(n,) since the start of the timetable."""
    stream: NDArray[np.int64]
    """(n,)"""

    def __post_init__(self) -> None:
        if self.intended_ns.shape != self.stream.shape or self.intended_ns.ndim != 1:
            raise ValueError(f"intended_ns is {self.intended_ns.shape} and stream {self.stream.shape}, not both (n,)")
        if len(self.intended_ns) and (np.diff(self.intended_ns, prepend=0) < 0).any():
            raise ValueError("a timetable rises from 0 on")

    def __len__(self) -> int:
        return len(self.intended_ns)


def parse_load(text: str) -> Load:
    """Return the load for `closed`, `closed:4`, `fps:30` or `poisson:30`; a rate is per stream.

    Raises:
        EdgeoptError: If the text is none of these, or a number is not above zero.
    """
    match = re.fullmatch(r"(closed|fps|poisson)(?::([0-9]+(?:\.[0-9]+)?))?", text.strip())
    kind, number = (match[1], match[2]) if match else ("", None)
    if kind == "closed" and (number is None or (number.isdigit() and int(number) > 0)):
        return Closed(int(number or 1))
    if kind in ("fps", "poisson") and number is not None and float(number) > 0:
        return FixedRate(float(number)) if kind == "fps" else Poisson(float(number))
    raise EdgeoptError(f"{text!r} is not a load", remedy=_REMEDY)


def make_arrivals(
    load: OpenLoad,
    *,
    seconds: float,
    streams: int = 1,
    phases: Phases = Phases.UNIFORM,
    jitter_ms: float = 0.0,
    seed: int = 0,
) -> Arrivals:
    """Return the timetable of all streams; the same arguments give the same one on every machine.

    Poisson arrivals are not rescaled: their number varies with the seed. Each stream has its own generator, so
    one stream more changes none of the others, apart from uniform phases.

    Args:
        load: Rate of each stream.
        seconds: Length of the timetable.
        streams: 1 or more.
        phases: Of a fixed rate; Poisson arrivals have none.
        jitter_ms: Standard deviation of a fixed rate's capture times, cut at 0.49 periods.
        seed: Of random phases, jitter and Poisson gaps.

    Raises:
        EdgeoptError: If nothing arrives, or jitter is asked of Poisson arrivals.
    """
    if streams < 1 or not 0 < seconds < math.inf:
        raise EdgeoptError(
            f"{streams} streams for {seconds:g} s give no arrivals", remedy="ask for one stream or more, and some time"
        )
    if jitter_ms < 0 or (jitter_ms and isinstance(load, Poisson)):
        raise EdgeoptError(f"{load} cannot have a jitter of {jitter_ms:g} ms", remedy="give jitter to fps:N only")
    if (expected := seconds * load.rate_per_s * streams) > _MOST_ARRIVALS:
        raise EdgeoptError(
            f"{load} on {streams} streams for {seconds:g} s are {expected:.3g} frames, more than {_MOST_ARRIVALS:.0e}",
            remedy="lower the rate, or measure for a shorter time",
        )
    each = []
    for stream in range(streams):
        rng = np.random.default_rng([seed, stream])
        if isinstance(load, Poisson):
            each.append(_poisson_ns(load, seconds, rng))
        else:
            phase = rng.random() if phases is Phases.RANDOM else stream / streams
            each.append(_fixed_ns(load, seconds, phase, jitter_ms, rng))
    instants = np.concatenate(each)
    if not len(instants):
        raise EdgeoptError(f"nothing arrives in {seconds:g} s of {load}", remedy="measure longer, or raise the rate")
    order = np.argsort(instants, kind="stable")
    return Arrivals(instants[order], np.repeat(np.arange(streams), [len(one) for one in each])[order])


def _poisson_ns(load: Poisson, seconds: float, rng: np.random.Generator) -> NDArray[np.int64]:
    chunks, last = [], 0.0
    while last < seconds:
        chunks.append(last + np.cumsum(rng.exponential(1 / load.rate_per_s, _CHUNK)))
        last = float(chunks[-1][-1])
    instants = np.concatenate(chunks)
    rounded: NDArray[np.int64] = np.rint(instants[instants < seconds] * 1e9).astype(np.int64)
    return rounded


def _fixed_ns(
    load: FixedRate, seconds: float, phase: float, jitter_ms: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return instants of one camera; `phase` in periods."""
    count = max(0, math.ceil(seconds * load.rate_per_s - phase - 1e-9))
    instants = (phase + np.arange(count)) * load.period_ns
    if jitter_ms:
        most = _MOST_JITTER * load.period_ns
        instants += np.clip(rng.standard_normal(count) * jitter_ms * 1e6, -most, most)
    rounded: NDArray[np.int64] = np.rint(np.maximum(instants, 0.0)).astype(np.int64)
    return rounded
