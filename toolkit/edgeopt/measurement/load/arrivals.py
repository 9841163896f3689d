"""When frames should arrive: the timetable of a load for a seed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import EdgeoptError
from edgeopt.measurement.load.models import OpenLoad, examples

_MOST_ARRIVALS: Final = 10**8
"""Most arrivals of one timetable: two columns of 8 bytes each."""
_MOST_JITTER: Final = 0.49
"""Periods; above it frames of one camera could overtake each other."""


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

    Each stream has its own generator, so one stream more changes none of the others, apart from uniform phases.

    Args:
        load: Rate of each stream.
        seconds: Length of the timetable.
        streams: 1 or more.
        phases: Of a load that takes phases.
        jitter_ms: Standard deviation of the capture times, cut at 0.49 periods.
        seed: Of all that is random.

    Raises:
        EdgeoptError: If nothing arrives, or jitter is asked of a load that takes none.
    """
    if streams < 1 or not 0 < seconds < math.inf:
        raise EdgeoptError(
            f"{streams} streams for {seconds:g} s give no arrivals", remedy="ask for one stream or more, and some time"
        )
    if jitter_ms < 0 or (jitter_ms and not load.takes_jitter):
        taking = examples(lambda kind: kind.takes_jitter)
        raise EdgeoptError(f"{load} cannot have a jitter of {jitter_ms:g} ms", remedy=f"give jitter to {taking} only")
    if (expected := seconds * load.rate_per_s * streams) > _MOST_ARRIVALS:
        raise EdgeoptError(
            f"{load} on {streams} streams for {seconds:g} s are {expected:.3g} frames, more than {_MOST_ARRIVALS:.0e}",
            remedy="lower the rate, or measure for a shorter time",
        )
    each = []
    for stream in range(streams):
        rng = np.random.default_rng([seed, stream])
        phase = 0.0
        if load.takes_phases:
            phase = rng.random() if phases is Phases.RANDOM else stream / streams
        each.append(_stream_ns(load, seconds, phase, jitter_ms, rng))
    instants = np.concatenate(each)
    if not len(instants):
        raise EdgeoptError(f"nothing arrives in {seconds:g} s of {load}", remedy="measure longer, or raise the rate")
    order = np.argsort(instants, kind="stable")
    return Arrivals(instants[order], np.repeat(np.arange(streams), [len(array) for array in each])[order])


def _stream_ns(
    load: OpenLoad, seconds: float, phase: float, jitter_ms: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return instants of one stream; `phase` in periods."""
    instants = load.instants_ns(seconds, phase, rng)
    if jitter_ms:
        most = _MOST_JITTER * load.period_ns
        instants = instants + np.clip(rng.standard_normal(len(instants)) * jitter_ms * 1e6, -most, most)
    rounded: NDArray[np.int64] = np.rint(np.maximum(instants, 0.0)).astype(np.int64)
    return rounded
