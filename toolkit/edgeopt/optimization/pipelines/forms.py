"""The candidates of each model of a pipeline, a bundle of each: what it takes of a frame, and what the whole loses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from edgeopt.optimization.candidate import BASELINE, Candidate
from edgeopt.optimization.pipelines.choice import StageForm
from edgeopt.optimization.pipelines.judge import PipelineJudge
from edgeopt.optimization.pipelines.observe import Original
from edgeopt.runtime.pipelines.pipeline import Pipeline
from edgeopt.runtime.runtime import Runtime


@dataclass(frozen=True)
class ModelForms:
    """One stage with a model: its candidates, and a bundle of each."""

    stage: str
    threads: int
    """Threads of its sessions."""
    bundles: Mapping[str, Path]
    """Bundles by the candidate's name, the original first."""
    time_ratio: Mapping[str, float]
    """A run's time over the original's."""


class FormBundles:
    """Asks for a bundle of the original, and of each candidate that was measured faster: nothing else is of use."""

    def __init__(self, folder: Path) -> None:
        """Name the place.

        Args:
            folder: Where the bundles go: `folder/CANDIDATE`.
        """
        self._folder = folder
        self.bundles: dict[str, Path] = {}
        self.time_ratio: dict[str, float] = {}

    def __call__(self, one: Candidate, original: Candidate) -> Path | None:
        """Return where a candidate's bundle goes; None where it is of no use."""
        ratio = time_ratio(one, original)
        if one.name != BASELINE and (one.unfit or ratio >= 1):
            return None
        self.bundles[one.name], self.time_ratio[one.name] = self._folder / one.name, ratio
        return self.bundles[one.name]

    def of(self, stage: str, threads: int) -> ModelForms:
        """Return what was written, as the forms of a stage."""
        return ModelForms(stage, threads, self.bundles, self.time_ratio)


def time_ratio(candidate: Candidate, original: Candidate) -> float:
    """Return a run's time over the original's, reading pictures left out; 1 where no difference was measured."""
    speed = candidate.speed
    if candidate.latency is None or original.latency is None or speed is None or speed.low <= 1 <= speed.high:
        return 1.0
    times = [
        sum(time.p50_ms or 0.0 for name, time in each.stages.items() if name != "load")
        for each in (candidate.latency, original.latency)
    ]
    return times[0] / times[1] if times[1] else 1.0


def weigh(
    models: Sequence[ModelForms], original: Original, pipeline: Pipeline, judge: PipelineJudge
) -> tuple[tuple[StageForm, ...], ...]:
    """Return what each form takes of a frame, and what the whole loses with it alone in place of the original.

    Args:
        models: In the order of the stages.
        original: What the pipeline takes as it came.
        pipeline: With the models as they came.
        judge: Of the whole.
    """
    return tuple(
        tuple(
            StageForm(
                stage=model.stage,
                name=name,
                frame_ms=original.model_ms[model.stage] * model.time_ratio[name],
                loss=0.0 if name == BASELINE else _loss_of(model, name, pipeline, judge),
            )
            for name in model.bundles
        )
        for model in models
    )


def _loss_of(model: ModelForms, name: str, pipeline: Pipeline, judge: PipelineJudge) -> float:
    with closing(Runtime.load(model.bundles[name])) as runtime:
        changed = pipeline.with_models({model.stage: runtime})
        return judge.judge(changed, f"{model.stage} {name} in the whole").loss
