"""One model or bundle on this machine under a load, frame by frame, stage by stage."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgeopt.errors import EdgeoptError
from edgeopt.measurement.frames.passes import run_passes
from edgeopt.measurement.frames.result import FrameBenchResult, notes_of_costs
from edgeopt.measurement.frames.setup import Setup, open_setup
from edgeopt.measurement.frames.trace import make_trace, write_trace
from edgeopt.measurement.load.result import summarize_load
from edgeopt.measurement.load.run import Observed, judge_warmup, observe, run_load
from edgeopt.measurement.resources.meters import MeterKind, find_meters
from edgeopt.measurement.resources.trust import judge_trust
from edgeopt.measurement.samples import Samples
from edgeopt.measurement.sides import Tell
from edgeopt.system.disk.files import require_writable


@contextmanager
def prepare_frames(source: str, options: Any) -> Iterator[FrameBlock]:
    """Open a model or a bundle with its pictures.

    Args:
        source: Path of an ONNX file or a bundle, or a shipped model's name.
        options: What to measure, `FrameBench`.

    Raises:
        EdgeoptError: If the model, recipe, target or pictures cannot be used, or options contradict each other.
    """
    if options.trace is not None:
        require_writable(options.trace)
    yield FrameBlock(open_setup(source, target=options.target, recipe=options.recipe, options=options))


@dataclass(frozen=True, slots=True)
class FrameBlock:
    """A model that is open, its frames, and its load."""

    setup: Setup

    def run(self, tell: Tell | None) -> FrameBenchResult:
        """Run the load, then every pass beside it, and judge; write the timeline where one is wanted."""
        result = self._measure(tell)
        if self.setup.options.trace is not None:
            _write_trace(self.setup.options.trace, result)
        return result

    def _measure(self, tell: Tell | None) -> FrameBenchResult:
        setup = self.setup
        meters = find_meters() if setup.options.energy else None
        environment = setup.environment()
        observed = observe(lambda: self._run(tell), meters.best if meters else None)
        samples, plan = observed.samples, setup.plan
        if not len(samples.steady().served()):
            raise EdgeoptError(
                "no frame was served after warm-up",
                remedy="measure longer with --seconds, or lower the rate of --load",
            )
        load = summarize_load(
            samples,
            plan.load,
            queue=plan.queue,
            streams=plan.streams,
            workers=plan.workers,
            budget_ms=setup.budget_ms,
            max_miss_ratio=setup.options.max_miss_ratio,
        )
        passes = run_passes(setup, observed, meters, tell)
        trust = judge_trust(
            samples,
            observed.readings,
            (*observed.anchors, *(passes.rounds.anchors if passes.rounds else ())),
            workers=setup.subject.threads * plan.workers,
            send_lag_ratio=load.send_lag_ratio,
        )
        return FrameBenchResult(
            setup=setup,
            observed=observed,
            load=load,
            warmup=judge_warmup(samples, plan, setup.options.measure_s),
            trust=trust,
            passes=passes,
            environment=environment,
            notes=(*setup.notes, *notes_of_costs(setup.options, passes)),
        )

    def _run(self, tell: Tell | None) -> Samples:
        setup = self.setup
        return run_load(
            setup.readers,
            setup.pipelines,
            setup.plan,
            seconds=setup.options.measure_s,
            min_frames=setup.options.min_frames,
            tell=tell,
            variant=setup.subject.name,
        )


def _write_trace(path: Path, result: FrameBenchResult) -> None:
    observed = result.observed
    events = make_trace(
        result.samples, observed.readings, profile=result.passes.profile_text, counters=_counters(observed)
    )
    write_trace(path, events)


def _counters(observed: Observed) -> dict[str, list[tuple[int, float]]]:
    """Return memory, and power where a meter tells it, over the instants of the run."""
    shift = observed.wall_minus_clock_ns - observed.samples.epoch_ns
    memory, energy = observed.memory, observed.energy
    counters = {
        "memory (MiB)": [
            (int(at) + shift, float(rss) / 2**20) for at, rss in zip(memory.at_ns, memory.rss_bytes, strict=True)
        ]
    }
    if energy is not None and energy.kind is MeterKind.POWER:
        watts = energy.values.sum(axis=1)
        counters["power (W)"] = [(int(at) + shift, float(watt)) for at, watt in zip(energy.at_ns, watts, strict=True)]
    return counters
