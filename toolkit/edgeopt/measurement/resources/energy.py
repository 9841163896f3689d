"""Energy of one inference from a meter's readings, with what the meter covers.

Where no meter is, or a run is too short for it, the answer is `NotMeasured` with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeopt.measurement.resources.meters import Meter, MeterKind
from edgeopt.measurement.resources.readings import PeriodicSampler

_LEAST_SAMPLES = 100
_INTERVAL_S = 0.05
_LEAST_IDLE_S = 5.0
_SLOWEST_S = 0.1
"""Power must be read ten times a second, or what happens between the readings is lost."""


@dataclass(frozen=True, slots=True, eq=False)
class EnergyTrace:
    """A meter's raw readings over a run."""

    source: str
    coverage: str
    kind: MeterKind
    at_ns: NDArray[np.int64]
    """(n,) rising, of the clock that timed the frames."""
    values: NDArray[np.float64]
    """(n, channels) joules of counters, watts of power."""
    wraps_at_j: tuple[float, ...] = ()
    least_s: float = 30.0
    failure: str | None = None
    """Why reading ended early."""

    @property
    def seconds(self) -> float:
        """From the first reading to the last."""
        return float(self.at_ns[-1] - self.at_ns[0]) / 1e9 if len(self.at_ns) > 1 else 0.0

    @property
    def joules(self) -> float:
        """Over all channels: differences of counters, or the trapezoids under the power.

        Raises:
            ValueError: If a counter fell that is not known to wrap.
        """
        if self.kind is MeterKind.POWER:
            watts = self.values.sum(axis=1)
            return float(((watts[1:] + watts[:-1]) / 2 * np.diff(self.at_ns)).sum()) / 1e9
        steps = np.diff(self.values, axis=0)
        wraps = np.broadcast_to(np.array(self.wraps_at_j or (0.0,)), steps.shape)
        if ((steps < 0) & (wraps <= 0)).any():
            raise ValueError(f"the counter of {self.source} fell")
        return float(np.where(steps < 0, steps + wraps, steps).sum())

    @property
    def mean_watts(self) -> float:
        """Energy over time; 0 for an empty trace."""
        return self.joules / self.seconds if self.seconds else 0.0

    def why_unusable(self) -> str | None:
        """Return None if the trace can be judged, otherwise what is missing."""
        if self.failure is not None:
            return f"{self.source} stopped answering: {self.failure}"
        if self.seconds < self.least_s:
            return f"the run took {self.seconds:.1f} s; {self.source} needs {self.least_s:.0f} s"
        if self.kind is MeterKind.POWER:
            return self._why_too_thin()
        try:
            self.joules  # noqa: B018  (asked for its error)
        except ValueError as error:
            return str(error)
        return None

    def _why_too_thin(self) -> str | None:
        if len(self.at_ns) < _LEAST_SAMPLES:
            return f"{len(self.at_ns)} readings of power; {_LEAST_SAMPLES} are needed"
        gap_s = float(np.median(np.diff(self.at_ns))) / 1e9
        if gap_s > 1.5 * _SLOWEST_S:
            return f"{self.source} answers only every {gap_s:.2f} s; power must be read every {_SLOWEST_S} s"
        return None


@dataclass(frozen=True, slots=True)
class NotMeasured:
    """Why there is no figure."""

    reason: str

    def __str__(self) -> str:
        return f"not measured: {self.reason}"


@dataclass(frozen=True, slots=True)
class Energy:
    """Energy of a run, gross and, where idle power is known, net of it."""

    source: str
    coverage: str
    total_j: float
    seconds: float
    frames: int
    idle_watts: float | None
    p50_ns: float

    @property
    def mean_watts(self) -> float:
        """While frames ran."""
        return self.total_j / self.seconds

    @property
    def gross_j(self) -> float:
        """The energy of one inference, idle power included."""
        return self.total_j / self.frames

    @property
    def net_j(self) -> float | None:
        """The energy of one inference above idle; None where idle was not measured. Noise can push it below zero."""
        return None if self.idle_watts is None else (self.total_j - self.idle_watts * self.seconds) / self.frames

    @property
    def edp_js(self) -> float:
        """Energy-delay product: gross joules times the median latency in seconds."""
        return self.gross_j * self.p50_ns / 1e9

    def __str__(self) -> str:
        net = "" if self.net_j is None else f", {self.net_j * 1e3:.3g} mJ above idle"
        return f"{self.gross_j * 1e3:.3g} mJ{net} an inference ({self.coverage})"


def watch_energy(meter: Meter, interval_s: float = _INTERVAL_S) -> PeriodicSampler[tuple[float, ...]]:
    """Return a sampler to enter around a run; `make_trace` turns what it took into a trace."""
    return PeriodicSampler(meter.read, interval_s)


def make_trace(meter: Meter, taken: Sequence[tuple[int, tuple[float, ...]]], failure: str | None = None) -> EnergyTrace:
    """Return the trace of readings: (instant in ns, one value a channel), in order."""
    return EnergyTrace(
        source=meter.source,
        coverage=meter.coverage,
        kind=meter.kind,
        at_ns=np.array([at for at, _ in taken], np.int64),
        values=np.array([values for _, values in taken], np.float64).reshape(len(taken), -1 if taken else 1),
        wraps_at_j=meter.wraps_at_j,
        least_s=meter.least_s,
        failure=failure,
    )


def judge_energy(
    trace: EnergyTrace, *, frames: int, p50_ns: float, idle: EnergyTrace | None = None
) -> Energy | NotMeasured:
    """Return the energy of an inference, or why there is none.

    Args:
        trace: Over the frames and nothing else: 30 s or more; 100 readings or more if they are power.
        frames: Inferences within the trace.
        p50_ns: Median latency of one.
        idle: The same meter while nothing ran; below 5 s it is not used.
    """
    if reason := trace.why_unusable():
        return NotMeasured(reason)
    if frames < 1:
        return NotMeasured("no frame ran while energy was read")
    is_same = idle is not None and (idle.source, idle.coverage) == (trace.source, trace.coverage)
    idle_watts = idle.mean_watts if idle is not None and is_same and idle.seconds >= _LEAST_IDLE_S else None
    return Energy(trace.source, trace.coverage, trace.joules, trace.seconds, frames, idle_watts, p50_ns)
