"""A pipeline on this machine, whole frames one after the other, every stage by its name."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgeopt.errors import EdgeoptError, Note, NoteKind
from edgeopt.measurement.frames.options import MeasureOptions
from edgeopt.measurement.load.closed_loop import run_marked
from edgeopt.measurement.load.run import observe
from edgeopt.measurement.pipelines.given import OpenedPipeline, open_pipeline
from edgeopt.measurement.pipelines.marked import MarkedPipeline
from edgeopt.measurement.pipelines.result import PipelineResult
from edgeopt.measurement.resources.trust import judge_trust
from edgeopt.measurement.samples import Samples
from edgeopt.measurement.sides import Tell
from edgeopt.measurement.statistics.budget import judge_budget
from edgeopt.measurement.statistics.trend import find_warmup
from edgeopt.recipes.inputs.frames import Frames, open_frames
from edgeopt.recipes.inputs.made_up import synthetic_frames
from edgeopt.recipes.inputs.timed import readers_of
from edgeopt.runtime.pipelines.pipeline import Pipeline
from edgeopt.system.amounts import Tenths
from edgeopt.system.machine.environment import read_environment

_SYNTHETIC = (480, 640)


@contextmanager
def prepare_pipeline(source: str, options: Any) -> Iterator[PipelineBlock]:
    """Open a pipeline with its pictures.

    Args:
        source: Path of a `pipeline.toml`, or of a pipeline's bundle.
        options: What to measure, `PipelineBench`.

    Raises:
        EdgeoptError: If something cannot be opened.
    """
    with tempfile.TemporaryDirectory(prefix="edgeopt-pipeline-") as folder:
        opened = open_pipeline(
            source, target=options.target, threads=options.threads, code=options.code, folder=Path(folder)
        )
        pictures, notes = choose_pictures(opened, options.source)
        with closing(opened.open()) as pipeline:
            yield PipelineBlock(opened, pipeline, pictures, options, notes)


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


@dataclass(frozen=True, slots=True)
class PipelineBlock:
    """A pipeline that is open, and its frames, one after the other."""

    given: OpenedPipeline
    pipeline: Pipeline
    pictures: Frames
    options: MeasureOptions
    notes: tuple[Note, ...]

    def run(self, tell: Tell | None) -> PipelineResult:
        """Run whole frames, and judge."""
        given, options, pictures = self.given, self.options, self.pictures
        marked = MarkedPipeline(readers_of(pictures), self.pipeline, time.perf_counter_ns)
        seconds = options.measure_s

        def run() -> Samples:
            return run_marked(
                marked,
                seconds=seconds,
                min_frames=options.min_frames,
                on_progress=_told(tell, seconds) if tell else None,
                warmup_s=min(2.0, seconds),
                variant=given.description.name,
            )

        observed = observe(run)
        samples = observed.samples
        budget_ms = options.budget_ms or given.description.budget_ms or given.target.budget_ms
        threads = max(model.opening.options.threads for model in self.pipeline.models.values())
        return PipelineResult(
            given=given,
            pictures=pictures,
            options=options,
            samples=samples,
            runs=marked.runs(),
            budget_ms=budget_ms,
            budget=judge_budget(samples.steady().frame_ns, budget_ms, options.max_miss_ratio),
            warmup=find_warmup(samples.frame_ns, min_s=min(2.0, seconds), input_id=samples.input_id),
            trust=judge_trust(samples, observed.readings, observed.anchors, workers=threads),
            environment=read_environment({"pipeline": given.description.name}, {"source": str(pictures.source)}),
            notes=(*given.notes, *self.pipeline.notes, *self.notes),
        )


def _told(tell: Tell, seconds: float) -> Callable[[int, float], None]:
    """Return what hears how long a run is going on; its last frames take a little longer."""
    whole = Tenths(10 * (seconds + 2))
    return lambda _, spent_s: tell("measure", min(int(10 * spent_s), whole), whole)
