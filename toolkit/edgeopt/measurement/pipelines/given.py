"""A pipeline as a command is given it: a description with its models as they came, or a bundle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from edgeopt.errors import EdgeoptError, Note
from edgeopt.executors._guard import active_guard
from edgeopt.graph.files.outside import PieceLayout
from edgeopt.measurement.opening.given import OpenedModel, open_given
from edgeopt.measurement.pipelines.code import load_calls
from edgeopt.runtime.bundle import make_artefact, write_bundle
from edgeopt.runtime.bundles.models import in_bundle
from edgeopt.runtime.devices.availability import require_engine
from edgeopt.runtime.pipelines.bundle import PipelineBundle, is_pipeline_bundle, read_pipeline, write_pipeline
from edgeopt.runtime.pipelines.description import Description, Stage, read_description
from edgeopt.runtime.pipelines.pipeline import AppStage, Pipeline
from edgeopt.system.declared.target import Target
from edgeopt.system.machine.environment import package_versions
from edgeopt.system.machine.threads import engine_threads


@dataclass(frozen=True, slots=True)
class OpenedPipeline:
    """The opened pipeline that a command works on."""

    asked: str
    bundle: PipelineBundle
    calls: Mapping[str, AppStage]
    code: Path | None
    """Where the app's functions were read from."""
    description: Description
    """As the file says it, with its paths; of a bundle the bundle's."""
    target: Target
    """Target of the first model."""
    asked_target: str
    """As the user wrote it; empty for a bundle, which brings its own."""
    notes: tuple[Note, ...] = ()
    """Where ONNX Runtime is held back, by stage."""

    @property
    def brings_target(self) -> bool:
        """Whether it is a bundle, which no target can be given to."""
        return not self.asked_target

    def open(self) -> Pipeline:
        """Return it loaded, ready to run."""
        return Pipeline.load(self.bundle.folder, stages=self.calls)


def open_pipeline(asked: str, *, target: str | Target, threads: int, code: Path | None, folder: Path) -> OpenedPipeline:
    """Return a pipeline with its models as they came, or the bundle as it is.

    Args:
        asked: Path of a `pipeline.toml`, or of a bundle.
        target: For a description, by its name or the profile itself; a bundle brings its own.
        threads: Of each model; 0: the target's, or one per fast physical core; a bundle opens as it was measured.
        code: The folder of the app's functions.
        folder: Where the models of a description are put, opened as an app would open them.

    Raises:
        EdgeoptError: If something cannot be opened; a stage is named.
    """
    if is_pipeline_bundle(Path(asked)):
        bundle = read_pipeline(Path(asked))
        calls = load_calls(bundle.description, code)
        with Pipeline.load(bundle.folder, stages=calls, warmup=False) as pipeline:
            device = next(iter(pipeline.models.values())).bundle.target
        return OpenedPipeline(asked, bundle, calls, code, bundle.description, device, "")
    description = read_description(Path(asked))
    calls = load_calls(description, code)
    models = {stage.name: open_model(description, stage, target) for stage in description.models}
    if guard := active_guard():
        guard.entries = {}  # the last one's: a bundle of each brings its own
    bundles = {}
    for name, model in models.items():
        used = engine_threads(threads, model.target.threads)
        require_engine(model.target, used)
        bundles[name] = folder / name
        write_original(folder / name, model, used)
    written = write_pipeline(folder, description, bundles, {}, package_versions())
    device = next(iter(models.values())).target
    notes = [
        replace(note, detail=f"stage {name}: {note.detail}")
        for name, model in models.items()
        for note in model.correction.notes
    ]
    asked_target = target if isinstance(target, str) else target.name
    return OpenedPipeline(asked, written, calls, code, description, device, asked_target, tuple(notes))


def open_model(description: Description, stage: Stage, target: str | Target) -> OpenedModel:
    """Return the model of a stage with its recipe and target.

    Raises:
        EdgeoptError: If one cannot be found, read or bound; the stage is named.
    """
    try:
        return open_given(beside(description, stage.model), target, beside(description, stage.recipe) or None)
    except EdgeoptError as error:
        raise EdgeoptError(f"stage {stage.name}: {error.problem}", remedy=error.remedy) from error


def beside(description: Description, name: str) -> str:
    """Return the path of a file beside the description, or the name as it is: a shipped one."""
    path = description.folder / name
    return str(path) if name and path.exists() else name


def write_original(folder: Path, given: OpenedModel, threads: int) -> None:
    """Write the bundle of a model as it came."""
    weights = dict[str, PieceLayout]()
    data, kept = in_bundle(given.model, weights)
    artefact = make_artefact("model.onnx", data, given.target.float_precision, given.target, threads)
    models = [(replace(artefact, weights=kept), data)]
    write_bundle(folder, models, given.target, given.recipe, {}, package_versions(), weights=weights)
