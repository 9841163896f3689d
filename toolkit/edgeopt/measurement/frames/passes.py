"""Passes of `bench` beside the run itself, apart from one another, so that none disturbs another."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgeopt.measurement.common_options import COLD_STARTS
from edgeopt.measurement.frames.attribution import Attribution, check_attribution
from edgeopt.measurement.frames.neighbour import Neighbour, measure_beside
from edgeopt.measurement.frames.opening import OpeningParts, measure_opening
from edgeopt.measurement.frames.options import PROBE_SECONDS
from edgeopt.measurement.frames.process_rounds import Rounds, run_rounds
from edgeopt.measurement.frames.setup import Setup
from edgeopt.measurement.fresh_process.cold_start import ColdStart
from edgeopt.measurement.fresh_process.start import run_cold_start
from edgeopt.measurement.load.batch import BatchPoint, sweep_batches
from edgeopt.measurement.load.beside import Beside
from edgeopt.measurement.load.capacity import Capacity, find_capacity, probe_seconds
from edgeopt.measurement.load.closed_loop import run_frames
from edgeopt.measurement.load.result import LoadResult, summarize_load
from edgeopt.measurement.load.run import Observed, Tell, run_load
from edgeopt.measurement.load.sustained import Sustained, sustained_curve
from edgeopt.measurement.load.workers import Pipeline
from edgeopt.measurement.resources.cost import InferenceCost, cost_per_inference
from edgeopt.measurement.resources.cpu_time import CpuCost, run_paced
from edgeopt.measurement.resources.energy import Energy, NotMeasured, judge_energy
from edgeopt.measurement.resources.meters import Meters
from edgeopt.measurement.resources.profile import Profile, parse_profile, record_profile

_PACE_S = 2.0
_BUSY_RATIO = 0.8
"""A pace above this share of what is served would be a closed loop."""
_CHECK_S = 1.0
_CHECK_FRAMES = 60
_PROFILED_PICTURES = 8


@dataclass(frozen=True, slots=True)
class Passes:
    """Measurements beside the run; None where nobody asked for one."""

    cpu: CpuCost
    attribution: Attribution
    energy: Energy | NotMeasured | None = None
    rounds: Rounds | None = None
    sustained: Sustained | None = None
    capacity: Capacity | None = None
    cost: InferenceCost | None = None
    batches: tuple[BatchPoint, ...] = ()
    beside: Beside | None = None
    opening: OpeningParts | None = None
    cold: ColdStart | None = None
    profile: Profile | None = None
    profile_text: str | None = None
    """Text of the engine's profile, for the trace; None: no trace was wanted."""


def run_passes(setup: Setup, observed: Observed, meters: Meters | None, tell: Tell | None = None) -> Passes:
    """Do every pass that was asked for, one after the other.

    Args:
        setup: What is measured.
        observed: The run itself.
        meters: Where energy was to be read; None: nobody asked.
        tell: Hears progress.
    """
    options, samples = setup.options, observed.samples
    service_s = float(samples.steady().served().frame_ns.mean()) / 1e9
    pace = _pace(setup, service_s)
    energy = None if meters is None else _energy(observed, meters)
    capacity = _search_capacity(setup, service_s, tell) if options.find_capacity else None
    text = _profile(setup) if options.profile or (options.trace and setup.runs_onnxruntime) else None
    return Passes(
        cpu=_measure_cpu(setup, pace),
        attribution=check_attribution(samples) if samples.wall_ns is not None else _check_stages(setup),
        energy=energy,
        rounds=_run_rounds(setup, tell) if options.rounds else None,
        sustained=sustained_curve(samples, observed.readings) if options.minutes else None,
        capacity=capacity,
        cost=_cost(setup, capacity, energy),
        batches=_sweep(setup, tell) if options.batches else (),
        beside=_run_beside(setup, setup.neighbour, tell) if setup.neighbour else None,
        opening=measure_opening(setup.subject),
        cold=_start_cold(setup, tell) if options.cold else None,
        profile=parse_profile(text) if text and options.profile else None,
        profile_text=text if options.trace else None,
    )


def _pace(setup: Setup, service_s: float) -> float:
    """Frames a second of the load, or of the budget, as far as the device keeps up with them."""
    wanted = setup.plan.rate_per_s or 1000 / setup.budget_ms
    return min(wanted, _BUSY_RATIO / service_s)


def _check_stages(setup: Setup) -> Attribution:
    """A run with arrivals has no unmarked frames: a short closed loop beside it tells."""
    subject = setup.subject
    beside = run_frames(setup.readers, *subject.pipeline, seconds=_CHECK_S, min_frames=_CHECK_FRAMES)
    return check_attribution(beside)


def _measure_cpu(setup: Setup, pace: float) -> CpuCost:
    seconds = max(min(_PACE_S, setup.options.measure_s), 3 / pace)
    return run_paced(_whole_frame(setup, setup.pipelines[0]), fps=pace, seconds=seconds)


def _whole_frame(setup: Setup, pipeline: Pipeline) -> Callable[[int], object]:
    (task, session), readers = pipeline, setup.readers

    def run(index: int) -> object:
        inputs, geometry = task.preprocess(readers[index % len(readers)]())
        return task.postprocess(session.run(inputs), geometry)

    return run


def _energy(observed: Observed, meters: Meters) -> Energy | NotMeasured:
    if observed.energy is None:
        return NotMeasured(meters.why_none())
    samples = observed.samples
    frames = len(samples.served()) + (0 if samples.wall_ns is None else len(samples.wall_ns))
    p50_ns = float(np.median(samples.steady().served().frame_ns))
    return judge_energy(observed.energy, frames=frames, p50_ns=p50_ns, idle=observed.idle)


def _run_rounds(setup: Setup, tell: Tell | None) -> Rounds:
    return run_rounds(
        setup.asked,
        target=setup.asked_target or "cpu",
        recipe=setup.asked_recipe,
        options=setup.options,
        tell=tell,
    )


def _search_capacity(setup: Setup, service_s: float, tell: Tell | None) -> Capacity:
    """Search the rate of all streams together; a closed loop is searched as one camera."""
    options, plan = setup.options, setup.plan
    least_s, ceiling = options.seconds or PROBE_SECONDS, plan.workers / service_s

    def run_at_rate(rate_per_s: float) -> LoadResult:
        probe = plan.at_rate(rate_per_s)
        seconds = probe_seconds(rate_per_s, options.max_miss_ratio, least_s=least_s)
        what = f"try {rate_per_s:.4g} per second"
        named: Tell | None = None if tell is None else lambda _, done, of: tell(what, done, of)
        samples = run_load(setup.readers, setup.pipelines, probe, seconds=seconds, min_frames=1, tell=named)
        return summarize_load(
            samples,
            probe.load,
            queue=probe.queue,
            streams=probe.streams,
            workers=probe.workers,
            budget_ms=setup.budget_ms,
            max_miss_ratio=options.max_miss_ratio,
        )

    return find_capacity(run_at_rate, low=ceiling / 4, high=ceiling)


def _cost(setup: Setup, capacity: Capacity | None, energy: Energy | NotMeasured | None) -> InferenceCost | None:
    machine = setup.options.per_s(energy.mean_watts if isinstance(energy, Energy) else None)
    if machine is None or capacity is None or not capacity.rate_per_s:
        return None
    return cost_per_inference(machine, capacity.rate_per_s)


@contextmanager
def _told(tell: Tell | None, what: str) -> Iterator[None]:
    """Say that something goes on whose end nobody can tell."""
    if tell is not None:
        tell(what, 0, 1)
    yield
    if tell is not None:
        tell(what, 1, 1)


def _sweep(setup: Setup, tell: Tell | None) -> tuple[BatchPoint, ...]:
    with _told(tell, "batches"), closing(setup.subject.open_again()[1]) as session:
        task, options = setup.subject.task, setup.options
        return sweep_batches(setup.readers, task, session, options.batches, seconds=options.measure_s)


def _run_beside(setup: Setup, other: Neighbour, tell: Tell | None) -> Beside:
    return measure_beside(setup.subject, setup.readers, setup.plan, other, setup.options, tell)


def _start_cold(setup: Setup, tell: Tell | None) -> ColdStart:
    """Start fresh processes on the first picture."""
    inputs, _ = setup.subject.task.preprocess(setup.readers[0]())
    with tempfile.TemporaryDirectory(prefix="edgeopt-inputs-") as folder:
        path = Path(folder) / "inputs.npz"
        arrays: dict[str, Any] = {name: np.asarray(value) for name, value in inputs.items()}
        np.savez(path, **arrays)
        return run_cold_start(
            setup.subject.path,
            setup.subject.opening,
            repeats=setup.options.repeats or COLD_STARTS,
            inputs=path,
            tell=(lambda done, of: tell("fresh processes", done, of)) if tell else None,
        )


def _profile(setup: Setup) -> str:
    """Return what ONNX Runtime's profiler writes over some pictures."""
    chosen = [setup.readers[int(i)] for i in np.linspace(0, len(setup.readers) - 1, _PROFILED_PICTURES)]
    task = setup.subject.task
    inputs = [{name: value.copy() for name, value in task.preprocess(read())[0].items()} for read in chosen]
    return record_profile(setup.subject.source, setup.subject.options, inputs)
