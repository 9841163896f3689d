"""One model or bundle on this machine under a load, frame by frame, stage by stage."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Unpack

from edgeopt.errors import EdgeoptError
from edgeopt.measurement.bench.options import BenchOptions, FrameBenchWishes
from edgeopt.measurement.bench.passes import run_passes
from edgeopt.measurement.bench.result import BenchResult, raw_files
from edgeopt.measurement.bench.setup import Setup, open_setup
from edgeopt.measurement.bench.summary import summarize
from edgeopt.measurement.bench.trace import make_trace, write_trace
from edgeopt.measurement.load.result import summarize_load
from edgeopt.measurement.load.run import Observed, Tell, judge_warmup, observe, run_load
from edgeopt.measurement.opening.subject import Subject, choose_frames, open_subject
from edgeopt.measurement.resources.meters import MeterKind, find_meters
from edgeopt.measurement.resources.trust import judge_trust
from edgeopt.measurement.samples import Samples
from edgeopt.report.formats import write_pages
from edgeopt.system.declared.signatures import with_options_of
from edgeopt.system.disk.files import require_writable

__all__ = ["BenchOptions", "BenchResult", "Subject", "bench", "choose_frames", "open_subject"]


@with_options_of(BenchOptions)
def bench(
    model: str | Path,
    *,
    target: str = "cpu",
    recipe: str | None = None,
    options: BenchOptions | None = None,
    out: Path | None = None,
    tell: Tell | None = None,
    **wishes: Unpack[FrameBenchWishes],
) -> BenchResult:
    """Measure a model or a bundle on this machine.

    Args:
        model: Path of an ONNX file or a bundle, or a shipped model's name.
        target: For a model; a bundle brings its own.
        recipe: For a model; a bundle brings its own.
        options: What to measure; None: all defaults.
        out: Where `bench.json`, `bench.md` and the raw samples go; None: nowhere.
        tell: Hears progress: what, how much is done, of how much.
        **wishes: Fields of `BenchOptions` that differ, such as `load="fps:30", budget_ms=33`.

    Raises:
        EdgeoptError: If the model, recipe, target or pictures cannot be used, or wishes contradict each other.
    """
    bench_options = replace(options or BenchOptions(), **wishes)
    for file in (*((out / "bench.json",) if out else ()), *((bench_options.trace,) if bench_options.trace else ())):
        require_writable(file)
    setup = open_setup(str(model), target=target, recipe=recipe, options=bench_options)
    result = _measure(setup, tell)
    if setup.options.trace is not None:
        _write_trace(setup.options.trace, result)
    if out is not None:
        write(out, result)
    return result


def _measure(setup: Setup, tell: Tell | None) -> BenchResult:
    """Run the load, then every pass beside it, and judge."""
    meters = find_meters() if setup.options.energy else None
    environment = setup.environment()
    observed = observe(lambda: _run(setup, tell), meters.best if meters else None)
    samples, plan = observed.samples, setup.plan
    if not len(samples.steady().served()):
        raise EdgeoptError(
            "no frame was served after warm-up", remedy="measure longer with --seconds, or lower the rate of --load"
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
    return BenchResult(
        setup=setup,
        observed=observed,
        load=load,
        warmup=judge_warmup(samples, plan, setup.options.measure_s),
        trust=trust,
        passes=passes,
        environment=environment,
    )


def _run(setup: Setup, tell: Tell | None) -> Samples:
    return run_load(
        setup.readers,
        setup.pipelines,
        setup.plan,
        seconds=setup.options.measure_s,
        min_frames=setup.options.min_frames,
        tell=tell,
        variant=setup.subject.name,
    )


def write(out: Path, result: BenchResult) -> None:
    """Write the raw samples first: a summary without them is no result."""
    for name, samples in raw_files(result).items():
        samples.save(out / name)
    write_pages(summarize(result), out, "bench")


def _write_trace(path: Path, result: BenchResult) -> None:
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
