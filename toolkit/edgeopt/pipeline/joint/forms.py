"""The candidates of each model of a pipeline, a bundle of each: what it takes of a frame, and what the whole loses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from edgeopt.pipeline.candidate import BASELINE, Candidate
from edgeopt.pipeline.joint.choice import Form
from edgeopt.pipeline.joint.judge import Judge
from edgeopt.pipeline.joint.observe import Original
from edgeopt.pipeline.result import Report
from edgeopt.runtime.availability import find_device
from edgeopt.runtime.bundle import make_artefact, read_bundle, write_bundle
from edgeopt.runtime.pipelines.pipeline import Pipeline
from edgeopt.runtime.runtime import Runtime
from edgeopt.system.environment import package_versions


@dataclass(frozen=True)
class ModelForms:
    """One stage with a model: its candidates, and a bundle of each."""

    stage: str
    threads: int
    """Of its sessions."""
    bundles: Mapping[str, Path]
    """By the candidate's name, the original first."""
    time_ratio: Mapping[str, float]
    """A run's time over the original's."""


def write_forms(stage: str, report: Report, target: str, folder: Path) -> ModelForms:
    """Write a bundle of each candidate that is faster than the original, as far as measured, and of the original.

    Args:
        stage: The name of the stage.
        report: Of `optimize` on its model.
        target: As the user wrote it.
        folder: Where the bundles go: `folder/CANDIDATE`.
    """
    made = read_bundle(report.bundle)
    bundles, ratios = {}, {}
    for one in report.candidates:
        ratio = time_ratio(one, report.candidates[0])
        if one.name != BASELINE and (one.unfit or one.compiled or ratio >= 1):
            continue
        device = find_device(one.profile or target)
        device = replace(device, options={**device.options, **one.options})
        data = (report.folder / one.file).read_bytes()
        artefacts = [(make_artefact("model.onnx", data, one.precision, device, report.threads), data)]
        if one.name != BASELINE:
            first = report.candidates[0]
            before = (report.folder / first.file).read_bytes()
            own = find_device(target)
            artefacts.append((make_artefact("fallback.onnx", before, first.precision, own, report.threads), before))
        bundles[one.name] = folder / one.name
        write_bundle(bundles[one.name], artefacts, made.target, made.recipe, {}, package_versions())
        ratios[one.name] = ratio
    return ModelForms(stage, report.threads, bundles, ratios)


def time_ratio(one: Candidate, original: Candidate) -> float:
    """Return a run's time over the original's, reading pictures left out; 1 where no difference was measured."""
    speed = one.speed
    if one.latency is None or original.latency is None or speed is None or speed.low <= 1 <= speed.high:
        return 1.0
    times = [
        sum(time.p50_ms or 0.0 for name, time in each.stages.items() if name != "load")
        for each in (one.latency, original.latency)
    ]
    return times[0] / times[1] if times[1] else 1.0


def weigh(
    models: Sequence[ModelForms], original: Original, pipeline: Pipeline, judge: Judge
) -> tuple[tuple[Form, ...], ...]:
    """Return what each form takes of a frame, and what the whole loses with it alone in place of the original.

    Args:
        models: In the order of the stages.
        original: What the pipeline takes as it came.
        pipeline: With the models as they came.
        judge: Of the whole.
    """
    return tuple(
        tuple(
            Form(
                stage=one.stage,
                name=name,
                frame_ms=original.model_ms[one.stage] * one.time_ratio[name],
                loss=0.0 if name == BASELINE else _loss_of(one, name, pipeline, judge),
            )
            for name in one.bundles
        )
        for one in models
    )


def _loss_of(model: ModelForms, name: str, pipeline: Pipeline, judge: Judge) -> float:
    with closing(Runtime.load(model.bundles[name])) as runtime:
        changed = pipeline.with_models({model.stage: runtime})
        return judge.judge(changed, f"{model.stage} {name} in the whole").loss
