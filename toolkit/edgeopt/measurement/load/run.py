"""One run under a load, watched: samples, the machine's counters, memory, energy."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from edgeopt.measurement.load.arrivals import Arrivals, Phases, make_arrivals
from edgeopt.measurement.load.closed_loop import Pictures, run_closed, run_frames
from edgeopt.measurement.load.models import Load, OpenLoad
from edgeopt.measurement.load.open_loop import run_open
from edgeopt.measurement.load.workers import Pipeline
from edgeopt.measurement.resources.anchor import AnchorTimes, measure_anchor
from edgeopt.measurement.resources.energy import EnergyTrace, make_trace, watch_energy
from edgeopt.measurement.resources.memory import MemoryTrace, watch_memory
from edgeopt.measurement.resources.meters import Meter
from edgeopt.measurement.resources.readings import CounterReading, PeriodicSampler, take_reading
from edgeopt.measurement.samples import Samples
from edgeopt.measurement.statistics.trend import Warmup, find_warmup
from edgeopt.runtime.schedule.queueing import QueuePolicy
from edgeopt.system.amounts import Tenths
from edgeopt.system.text import plural

_WARMUP_S: Final = 2.0
_READING_S: Final = 1.0
"""A reading takes a millisecond."""
_IDLE_S: Final = 5.5
_FIRST_FRAMES: Final = 10

Tell = Callable[[str, int, int], None]
"""Called with the name of the work, the amount done, and the whole amount."""


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """The load, as values."""

    load: Load
    streams: int
    phases: Phases
    queue: QueuePolicy
    workers: int
    jitter_ms: float
    seed: int

    @property
    def rate_per_s(self) -> float | None:
        """The frames a second of all streams together; None for a closed loop."""
        return self.load.rate_per_s * self.streams if isinstance(self.load, OpenLoad) else None

    def at_rate(self, rate_per_s: float) -> LoadPlan:
        """Return the same cameras at another rate of all streams together; a closed loop becomes one camera."""
        return replace(self, load=self.load.at_rate(rate_per_s / self.streams))

    def __str__(self) -> str:
        workers = plural(self.workers, "worker")
        if not isinstance(self.load, OpenLoad):
            return f"closed loop, {workers}"
        phases = f" ({self.phases} phases)" if self.load.takes_phases and self.streams > 1 else ""
        jitter = f", jitter {self.jitter_ms:g} ms" if self.jitter_ms else ""
        return f"{self.load} on {plural(self.streams, 'stream')}{phases}{jitter}, queue {self.queue}, {workers}"


def run_load(
    frames: Pictures,
    pipelines: Sequence[Pipeline],
    plan: LoadPlan,
    *,
    seconds: float,
    min_frames: int,
    tell: Tell | None = None,
    variant: str = "",
) -> Samples:
    """Run the load and return the raw samples, warm-up marked.

    Args:
        frames: One or more.
        pipelines: One a worker.
        plan: The load.
        seconds: Least time after warm-up.
        min_frames: Least frames (open loop: arrivals) after warm-up.
        tell: Hears progress.
        variant: A name for the samples.
    """
    warmup_s = warmup_for(seconds)
    if not isinstance(plan.load, OpenLoad):
        heard = _Progress(tell, warmup_s + seconds)
        samples = _run_closed(frames, pipelines, seconds, min_frames, warmup_s, heard, variant)
    else:
        arrivals = _arrivals(plan, seconds, min_frames, warmup_s)
        heard = _Progress(tell, float(arrivals.intended_ns[-1]) / 1e9)
        samples = run_open(
            frames,
            pipelines,
            arrivals,
            queue=plan.queue,
            warmup_s=warmup_s,
            first_frames=_FIRST_FRAMES,
            on_progress=heard,
            variant=variant,
        )
    heard.end()
    return samples


def _run_closed(
    frames: Pictures,
    pipelines: Sequence[Pipeline],
    seconds: float,
    min_frames: int,
    warmup_s: float,
    heard: Callable[[int, float], None],
    variant: str,
) -> Samples:
    """One worker also runs frames without marks, several do not."""
    if len(pipelines) == 1:
        task, session = pipelines[0]
        return run_frames(
            frames,
            task,
            session,
            seconds=seconds,
            min_frames=min_frames,
            on_progress=heard,
            warmup_s=warmup_s,
            variant=variant,
        )
    return run_closed(
        frames,
        pipelines,
        seconds=seconds,
        min_frames=min_frames,
        warmup_s=warmup_s,
        on_progress=heard,
        variant=variant,
    )


class _Progress:
    """Tenths of a second; the last one is told when the run is really over."""

    def __init__(self, tell: Tell | None, seconds: float) -> None:
        self._tell, self._of = tell, Tenths(max(20, math.ceil(10 * seconds)))

    def __call__(self, frames: int, seconds: float) -> None:
        if self._tell is not None:
            self._tell("measure", min(int(10 * seconds), self._of - 1), self._of)

    def end(self) -> None:
        if self._tell is not None:
            self._tell("measure", self._of, self._of)


def warmup_for(seconds: float) -> float:
    """Return the least length of warm-up of a run, in seconds."""
    return min(_WARMUP_S, seconds)


def _arrivals(plan: LoadPlan, seconds: float, min_frames: int, warmup_s: float) -> Arrivals:
    assert isinstance(plan.load, OpenLoad)
    rate = plan.load.rate_per_s * plan.streams
    return make_arrivals(
        plan.load,
        seconds=warmup_s + max(seconds, (min_frames + plan.load.spare(min_frames)) / rate),
        streams=plan.streams,
        phases=plan.phases,
        jitter_ms=plan.jitter_ms,
        seed=plan.seed,
    )


def judge_warmup(samples: Samples, plan: LoadPlan, seconds: float) -> Warmup:
    """Return where warm-up ends and whether the rest is steady, from service times in the order of service.

    Args:
        samples: Of `run_load`.
        plan: The load it ran.
        seconds: As it was given to `run_load`.
    """
    if not isinstance(plan.load, OpenLoad):
        least_s = warmup_for(seconds) * plan.workers
        inputs = samples.input_id if plan.workers == 1 else None
        return find_warmup(samples.frame_ns, min_s=least_s, input_id=inputs)
    rows = np.flatnonzero(~samples.lost)
    if samples.started_ns is not None:
        rows = rows[np.argsort(samples.started_ns[rows], kind="stable")]
    return find_warmup(samples.frame_ns[rows], min_s=0.0, min_frames=_FIRST_FRAMES * plan.workers)


@dataclass(frozen=True, slots=True)
class Observed:
    """A run and what was read around it."""

    samples: Samples
    readings: tuple[CounterReading, ...]
    anchors: tuple[AnchorTimes, ...]
    memory: MemoryTrace
    energy: EnergyTrace | None
    idle: EnergyTrace | None
    wall_minus_clock_ns: int
    """Wall-clock time less `time.perf_counter_ns`, to place what was read by the one or the other."""


def observe(run: Callable[[], Samples], meter: Meter | None = None, *, idle_s: float = _IDLE_S) -> Observed:
    """Run with the machine's counters, memory and, if there is a meter, energy read beside it.

    Args:
        run: Makes the samples.
        meter: Read while nothing runs, then beside the run.
        idle_s: How long nothing runs; 5 s and more tell the idle power.
    """
    idle = None if meter is None else _rest(meter, idle_s)
    before, offset_ns = measure_anchor(), time.time_ns() - time.perf_counter_ns()
    with ExitStack() as beside:
        watch = beside.enter_context(watch_memory())
        power = None if meter is None else beside.enter_context(watch_energy(meter))
        sensors = beside.enter_context(PeriodicSampler(take_reading, _READING_S))
        samples = run()
    return Observed(
        samples=samples,
        readings=tuple(reading for _, reading in sensors.taken),
        anchors=(before, measure_anchor()),
        memory=watch.trace(),
        energy=None if meter is None or power is None else make_trace(meter, power.taken, power.failure),
        idle=idle,
        wall_minus_clock_ns=offset_ns,
    )


def _rest(meter: Meter, seconds: float) -> EnergyTrace:
    with watch_energy(meter) as power:
        time.sleep(seconds)
    return make_trace(meter, power.taken, power.failure)
