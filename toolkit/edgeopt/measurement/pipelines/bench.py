"""A pipeline on this machine, whole frames one after the other, every stage by its name."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path
from typing import Unpack

from edgeopt.errors import EdgeoptError, Note, NoteKind
from edgeopt.measurement.bench.options import BenchOptions, FrameBenchWishes
from edgeopt.measurement.load.closed_loop import run_marked
from edgeopt.measurement.load.run import Tell, observe
from edgeopt.measurement.pipelines.given import OpenedPipeline, open_pipeline
from edgeopt.measurement.pipelines.marked import MarkedPipeline
from edgeopt.measurement.pipelines.result import PipelineResult
from edgeopt.measurement.pipelines.summary import summarize
from edgeopt.measurement.resources.trust import judge_trust
from edgeopt.measurement.samples import Samples
from edgeopt.measurement.statistics.budget import judge_budget
from edgeopt.measurement.statistics.trend import find_warmup
from edgeopt.recipes.inputs.frames import Frames, open_frames
from edgeopt.recipes.inputs.made_up import synthetic_frames
from edgeopt.recipes.inputs.timed import readers_of
from edgeopt.report.formats import write_pages
from edgeopt.runtime.pipelines.pipeline import Pipeline
from edgeopt.system.amounts import Tenths
from edgeopt.system.declared.signatures import with_options_of
from edgeopt.system.disk.files import require_writable, write_beside
from edgeopt.system.machine.environment import read_environment

_TAKEN = ("source", "seconds", "minutes", "min_frames", "budget_ms", "max_miss_ratio", "threads", "seed")
_SYNTHETIC = (480, 640)


@with_options_of(BenchOptions)
def bench_pipeline(
    asked: str | Path,
    *,
    target: str = "cpu",
    code: Path | None = None,
    options: BenchOptions | None = None,
    out: Path | None = None,
    tell: Tell | None = None,
    **wishes: Unpack[FrameBenchWishes],
) -> PipelineResult:
    """Measure a pipeline on this machine.

    Args:
        asked: Path of a `pipeline.toml`, or of a pipeline's bundle.
        target: For a description; a bundle brings its own.
        code: The folder of the app's functions.
        options: What to measure; None: all defaults.
        out: Where `bench.json`, its pages and the raw samples go; None: nowhere.
        tell: Hears progress: what, how much is done, of how much.
        **wishes: Fields of `BenchOptions` that differ.

    Raises:
        EdgeoptError: If something cannot be opened or fails, or a wish is for single models only.
    """
    options = replace(options or BenchOptions(), **wishes)
    require_for_pipelines(options)
    if out is not None:
        require_writable(out / "bench.json")
    with tempfile.TemporaryDirectory(prefix="edgeopt-pipeline-") as folder:
        given_pipeline = open_pipeline(
            str(asked), target=target, threads=options.threads, code=code, folder=Path(folder)
        )
        pictures, notes = choose_pictures(given_pipeline, options.source)
        with closing(given_pipeline.open()) as pipeline:
            result = _measure(given_pipeline, pipeline, pictures, options, notes, tell)
    if out is not None:
        result.samples.save(out / "samples.npz")
        write_runs(out / "runs.json", result)
        write_pages(summarize(result), out, "bench")
    return result


def require_for_pipelines(options: BenchOptions) -> None:
    """Raise where a wish is for single models.

    Raises:
        EdgeoptError: If so.
    """
    default = BenchOptions()
    for field in fields(BenchOptions):
        if field.name not in _TAKEN and getattr(options, field.name) != getattr(default, field.name):
            raise EdgeoptError(
                f"{field.name.replace('_', ' ')} is for a single model: a pipeline is measured frame after frame",
                remedy="leave it out, or name the model",
            )


def choose_pictures(pipeline: OpenedPipeline, source: str | Path | None) -> tuple[Frames, tuple[Note, ...]]:
    """Return the pictures asked for, else the description's own, else synthetic ones with a note.

    Raises:
        EdgeoptError: If the source holds no pictures.
    """
    own = pipeline.description.path_of(pipeline.description.calib)
    if source is None and own is None:
        note = Note(NoteKind.WARNING, "synthetic pictures: nothing is found in them", "pass --source with real ones")
        return synthetic_frames(_SYNTHETIC), (note,)
    frames = open_frames(Path(source) if source is not None else own or Path())
    if not frames.holds_pictures:
        raise EdgeoptError(f"{frames.source} holds {frames.held}: a pipeline takes pictures", remedy="pass pictures")
    return frames, frames.notes


def _measure(
    given_pipeline: OpenedPipeline,
    pipeline: Pipeline,
    pictures: Frames,
    options: BenchOptions,
    notes: tuple[Note, ...],
    tell: Tell | None,
) -> PipelineResult:
    marked = MarkedPipeline(readers_of(pictures), pipeline, time.perf_counter_ns)
    seconds = options.measure_s

    def run() -> Samples:
        return run_marked(
            marked,
            seconds=seconds,
            min_frames=options.min_frames,
            on_progress=_told(tell, seconds) if tell else None,
            warmup_s=min(2.0, seconds),
            variant=given_pipeline.description.name,
        )

    observed = observe(run)
    samples = observed.samples
    budget_ms = options.budget_ms or given_pipeline.description.budget_ms or given_pipeline.target.budget_ms
    threads = max(model.opening.options.threads for model in pipeline.models.values())
    return PipelineResult(
        given=given_pipeline,
        pictures=pictures,
        options=options,
        samples=samples,
        runs=marked.runs(),
        budget_ms=budget_ms,
        budget=judge_budget(samples.steady().frame_ns, budget_ms, options.max_miss_ratio),
        warmup=find_warmup(samples.frame_ns, min_s=min(2.0, seconds), input_id=samples.input_id),
        trust=judge_trust(samples, observed.readings, observed.anchors, workers=threads),
        environment=read_environment({"pipeline": given_pipeline.description.name}, {"source": str(pictures.source)}),
        notes=(*given_pipeline.notes, *pipeline.notes, *notes),
    )


def _told(tell: Tell, seconds: float) -> Callable[[int, float], None]:
    """Return what hears how long a run is going on; its last frames take a little longer."""
    whole = Tenths(10 * (seconds + 2))
    return lambda _, spent_s: tell("measure", min(int(10 * spent_s), whole), whole)


def write_runs(path: Path, result: PipelineResult) -> None:
    """Write how often each model ran for each frame, in the order of the samples."""
    write_beside(path, json.dumps({name: counts.tolist() for name, counts in result.runs.items()}) + "\n")
