"""Pipelines side by side, for `compare` and `check`."""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from edgeopt.errors import Note
from edgeopt.measurement.accuracy.bootstrap import drop_between, drop_of_means
from edgeopt.measurement.check.run import thresholds_of
from edgeopt.measurement.load.closed_loop import run_marked
from edgeopt.measurement.pipelines.bench import choose_pictures
from edgeopt.measurement.pipelines.given import OpenedPipeline, open_pipeline
from edgeopt.measurement.pipelines.marked import MarkedPipeline, RunnablePipeline
from edgeopt.measurement.resources.anchor import measure_anchor
from edgeopt.measurement.resources.readings import take_reading
from edgeopt.measurement.resources.trust import Trust, judge_trust
from edgeopt.measurement.samples import FRAME, Samples
from edgeopt.measurement.sides import CheckGuard, Quality, SideFacts, Tell
from edgeopt.measurement.turns.interleaved import Pace, Turns, take_turns
from edgeopt.measurement.turns.side_by_side import distinct_labels
from edgeopt.optimization.pipelines.judge import Judged, PipelineJudge, labels_of
from edgeopt.recipes.default_limits import Check
from edgeopt.recipes.inputs.frames import Frames
from edgeopt.recipes.inputs.timed import readers_of
from edgeopt.runtime.pipelines.pipeline import Pipeline
from edgeopt.system.machine.environment import read_environment
from edgeopt.workloads.pipeline.guards import AnswerGuard
from edgeopt.workloads.pipeline.options import PipelineCheck, PipelineCompare

_LEAST_FRAMES = 200
_BASELINE = "baseline"


@dataclass(frozen=True)
class PipelineSide:
    """One pipeline, open."""

    label: str
    given: str
    """As the user named it."""
    opened: OpenedPipeline
    pipeline: Pipeline

    @property
    def threads(self) -> int:
        """Threads of the model that has most."""
        return max(model.opening.options.threads for model in self.pipeline.models.values())

    @cached_property
    def facts(self) -> SideFacts:
        """Facts that are known without running it."""
        files = [(name, model.artefact) for name, model in self.pipeline.models.items()]
        weights = [artefact.weights for _, artefact in files if artefact.weights]
        hashes = [f"{name} {artefact.sha256}" for name, artefact in files] + [each.sha256 for each in weights]
        text = "\n".join([*hashes, repr(self.opened.bundle.description.stages)])
        return SideFacts(
            label=self.label,
            given=self.given,
            size_bytes=sum(artefact.size_bytes for _, artefact in files) + sum(each.size_bytes for each in weights),
            sha256=hashlib.sha256(text.encode()).hexdigest(),
            threads=self.threads,
            environment=read_environment({"pipeline": self.opened.description.name}),
        )


@dataclass(frozen=True)
class PipelineSides:
    """Pipelines, open side by side."""

    sides: tuple[PipelineSide, ...]
    pictures: Frames
    notes_of_pictures: tuple[Note, ...]
    labels: Path | None
    """Labels of the last stage's answers; None: the first one's answers judge."""
    seed: int
    stack: ExitStack
    """Closes them."""

    @property
    def facts(self) -> tuple[SideFacts, ...]:
        """One for each, in order."""
        return tuple(side.facts for side in self.sides)

    @property
    def notes(self) -> tuple[Note, ...]:
        """Notes of each."""
        notes = [note for side in self.sides for note in (*side.opened.notes, *side.pipeline.notes)]
        return tuple(dict.fromkeys((*notes, *self.notes_of_pictures)))

    @property
    def source(self) -> str:
        """Where the pictures come from."""
        return str(self.pictures.source)

    @property
    def settings(self) -> Mapping[str, Any]:
        """Nothing: a pipeline's description says it all."""
        return {}

    @property
    def judged_parts(self) -> tuple[str, ...]:
        """Every stage, and the frame."""
        return (*self.sides[-1].pipeline.stages, FRAME)

    @cached_property
    def guards(self) -> Mapping[str, CheckGuard]:
        """Guards of `check` besides those of every kind."""
        now = self.sides[-1]
        return {
            "accuracy": AnswerGuard(self.judge, now.pipeline, now.opened.description.least_agreement, self.is_made_up),
        }

    @property
    def is_made_up(self) -> bool:
        """Whether no file holds the pictures, and none is labelled."""
        return self.labels is None and not self.pictures.paths

    def limits(self, wishes: Mapping[str, float]) -> Check:
        """Return what `check` allows."""
        description = self.sides[-1].opened.description
        return thresholds_of(description.check, wishes, description.max_drop)

    def judge(self, tell: Tell | None) -> PipelineJudge:
        """Return the judge by the labels, or by the answers of the first."""
        first = self.sides[0]
        description = first.opened.description
        return PipelineJudge(
            first.pipeline,
            self.pictures,
            self.labels,
            tell,
            max_drop=description.max_drop,
            least_agreement=description.least_agreement,
        )

    def score(self, tell: Tell | None) -> Mapping[str, Quality]:
        """Return the accuracy of each on the labels, or its agreement with the first."""
        if self.is_made_up:
            return {}
        judge = self.judge(tell)
        judged = [judge.baseline, *(judge.judge(side.pipeline, f"judge {side.label}") for side in self.sides[1:])]
        return {
            side.label: _quality(each, judge.baseline, judge.metric)
            for side, each in zip(self.sides, judged, strict=True)
        }

    def run_in_turns(self, seconds: float, tell: Tell | None) -> Turns:
        """Run whole frames of all in turns, and of a second copy of the first."""
        openers = {
            side.label: RunnablePipeline(side.opened.bundle.folder, side.opened.code).open for side in self.sides
        }
        say = partial(tell, "measure in turns") if tell else None
        return take_turns(
            openers, self.pictures, Pace(seconds), workers=self.sides[0].threads, seed=self.seed, tell=say
        )

    def run_alone(self, seconds: float, tell: Tell | None) -> tuple[Samples, Trust]:
        """Run whole frames of the last one alone."""
        del tell
        side = self.sides[-1]
        readings, anchors = [take_reading()], [measure_anchor()]
        marked = MarkedPipeline(readers_of(self.pictures), side.pipeline, time.perf_counter_ns)
        samples = run_marked(marked, seconds=seconds, min_frames=_LEAST_FRAMES, variant=side.label)
        readings.append(take_reading())
        anchors.append(measure_anchor())
        return samples, judge_trust(samples, readings, anchors, workers=side.threads)

    def without_first(self) -> PipelineSides:
        """Close the first, and return the others."""
        self.sides[0].pipeline.close()
        return replace(self, sides=self.sides[1:])

    def close(self) -> None:
        """Free all models."""
        self.stack.close()


def _quality(judged: Judged, first: Judged, metric: str) -> Quality:
    is_first = judged is first
    if judged.scored and first.scored:
        drop = None if is_first else drop_between(first.scored, judged.scored)
        return Quality(metric, judged.scored.accuracy.value, drop, agreement=None if is_first else judged.agreement)
    value = judged.accuracy.value if judged.accuracy else judged.agreement
    before = np.array(first.of_each) if judged.accuracy else np.ones(len(judged.of_each))
    drop = None if is_first or len(before) < 2 else drop_of_means(before, np.array(judged.of_each))
    return Quality(metric, value, drop)


def open_sides(sources: Sequence[str], options: PipelineCompare) -> PipelineSides:
    """Open pipelines.

    Raises:
        EdgeoptError: If one cannot be opened.
    """
    with ExitStack() as stack:
        opened = [_open(source, options, stack) for source in sources]
        labels = distinct_labels([pipeline.description.name for pipeline in opened], sources)
        return _sides(opened, labels, sources, options, stack)


def open_checked(sources: Sequence[str], options: PipelineCheck, settings: Mapping[str, Any]) -> PipelineSides:
    """Open what is checked, and before it the baseline's pipeline.

    Raises:
        EdgeoptError: If one cannot be opened.
    """
    del settings
    with ExitStack() as stack:
        opened = [_open(source, options, stack) for source in sources]
        labels = [*[_BASELINE] * (len(sources) - 1), opened[-1].description.name]
        if labels[0] == labels[-1] and len(labels) > 1:
            labels[0] = f"the {_BASELINE}"
        return _sides(opened, labels, sources, options, stack)


def _open(source: str, options: PipelineCompare | PipelineCheck, stack: ExitStack) -> OpenedPipeline:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="edgeopt-pipeline-")))
    return open_pipeline(source, target=options.target, threads=options.threads, code=options.code, folder=folder)


def _sides(
    opened: Sequence[OpenedPipeline],
    labels: Sequence[str],
    sources: Sequence[str],
    options: PipelineCompare | PipelineCheck,
    stack: ExitStack,
) -> PipelineSides:
    sides = []
    for pipeline, label, source in zip(opened, labels, sources, strict=True):
        sides.append(PipelineSide(label, source, pipeline, stack.enter_context(pipeline.open())))
    named = next((pipeline for pipeline in opened if pipeline.description.calib), opened[0])
    pictures, notes = choose_pictures(named, options.source)
    asked = str(options.eval) if options.eval else ""
    found = [labels_of(pipeline.description, asked) for pipeline in opened]
    judging = next((file for file in found if file), None)
    return PipelineSides(tuple(sides), pictures, notes, judging, options.seed, stack.pop_all())
