"""The beginning of an `optimize` of a pipeline: what is given, the output folder, and what each model is asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any

from edgeopt.errors import EdgeoptError, InvalidFileError
from edgeopt.graph.files.outside import sha256_of
from edgeopt.graph.model import find_model
from edgeopt.measurement.fresh_process.proof_time import SPARE
from edgeopt.measurement.pipelines.code import load_calls
from edgeopt.measurement.pipelines.given import OpenedPipeline, beside, open_pipeline
from edgeopt.optimization.candidate import BASELINE
from edgeopt.optimization.candidates.measure import CONFIRM_SECONDS, MOST_SECONDS
from edgeopt.optimization.folder.resume import fingerprint_files
from edgeopt.optimization.folder.workspace import holds_run, lock_run
from edgeopt.optimization.optimize import folder_of_run
from edgeopt.optimization.options import Options, Prefer
from edgeopt.optimization.plan import all_steps
from edgeopt.recipes.inputs.frames import Frames, open_frames
from edgeopt.runtime.pipelines.bundle import is_pipeline_bundle
from edgeopt.runtime.pipelines.description import FRAME, Description, Stage, read_description
from edgeopt.system.declared.target import Target
from edgeopt.system.disk.files import write_beside

MARK = "pipeline-run.json"
_FOR_MODELS = 0.6
"""Share of a time limit for the candidates of all models together."""
TURNS = 0.5
"""Share of what is then left for turns at most; fresh processes have the rest."""


@dataclass(frozen=True, slots=True)
class PipelineStart:
    """A pipeline as it was given, and the output folder, which is taken."""

    file: Path
    description: Description
    pictures: Frames
    folder: Path
    code: Path | None
    """Folder of the app's functions."""
    options: Options

    @property
    def inputs(self) -> Path:
        """Folder of what models behind others are fed, below it a folder for each stage."""
        return self.folder / "inputs"

    def wishes_of(self, stage: Stage) -> dict[str, Any]:
        """Return what the `optimize` of a stage's model is asked for, by the names of its arguments."""
        limit_s, is_first = self.options.time_limit_s, stage.takes[0] == FRAME
        feeding = (name for name, step in all_steps().items() if step.feeds)  # a pipeline reads its frames whole
        return {
            "model": beside(self.description, stage.model),
            "out": self.folder / "models" / stage.name,
            "recipe": beside(self.description, stage.recipe) or None,
            "options": replace(
                self.options,
                calib=str(self.pictures.source if is_first else self.inputs / stage.name),
                eval="",
                budget_ms=None,
                max_drop=None,
                skip=(*self.options.skip, *feeding),
                time_limit_s=limit_s * _FOR_MODELS / len(self.description.models) if limit_s else None,
            ),
        }

    def described(self, profile: str) -> Mapping[str, Any]:
        """Return on what the inputs of models behind others depend, wherever its files lie.

        Args:
            profile: Name of the target.
        """
        models = [_model_of(self.description, stage) for stage in self.description.models]
        calls = {stage.call.partition(":")[0] for stage in self.description.calls}
        code = [self.code.joinpath(*name.split(".")).with_suffix(".py") for name in sorted(calls)] if self.code else []
        return {
            "pipeline": repr(replace(self.description, folder=Path())),
            "profile": profile,
            "models": [sha256_of(file) for file in models],
            "code": [sha256_of(file) for file in code],
            "pictures": fingerprint_files(self.pictures.paths),
        }


@contextmanager
def started_pipeline(
    file: Path, *, named: str, code: Path | None, out: str | Path | None, options: Options
) -> Iterator[PipelineStart]:
    """Read a pipeline, take its output folder and lock it.

    Args:
        file: A `pipeline.toml`.
        named: The target as it was named.
        code: The folder of the app's functions.
        out: Output folder; None: `out/PIPELINE-TARGET`.
        options: What to do.

    Raises:
        EdgeoptError: On what the user can mend before work begins.
    """
    require_possible(file, options)
    description = read_description(file)
    folder, pictures = folder_of_run(Path(out) if out else None, description.name, named), _pictures(file, options)
    load_calls(description, code)  # a missing function ends the run here
    holds_run(folder, MARK)
    with lock_run(folder):
        write_beside(folder / MARK, json.dumps({"tool": "edgeopt optimize", "pipeline": description.name}) + "\n")
        yield PipelineStart(file, description, pictures, folder, code, options)


def require_possible(path: Path, options: Options) -> None:
    """Raise where a pipeline cannot be made fast as it was asked for.

    Raises:
        EdgeoptError: If so.
    """
    if is_pipeline_bundle(path):
        raise EdgeoptError(f"{path} is a bundle: its models were chosen", remedy="name the pipeline.toml it is made of")
    if options.replay:
        raise EdgeoptError("a pipeline has no replay", remedy="leave --replay out")
    if options.shapes:
        raise EdgeoptError("--shape is for a single model", remedy="name shapes in the recipe of the stage")
    known = all_steps()
    single = {name for name, step in known.items() if step.embeds or step.feeds}
    if embedding := [name for name in options.steps or () if name in single]:
        raise EdgeoptError(
            f"{embedding[0]} is for a single model: the stages of a pipeline feed each other in Python",
            remedy=f"leave {embedding[0]} out",
        )
    if options.prefer is not Prefer.SPEED:
        raise EdgeoptError("a pipeline is chosen by its budget", remedy="leave --prefer out")


def open_original(start: PipelineStart, target: str | Target, threads: int) -> OpenedPipeline:
    """Return the pipeline with its models as they came, bundles of which lie in the output folder."""
    folder = start.folder / "combinations" / BASELINE
    return open_pipeline(str(start.file), target=target, threads=threads, code=start.code, folder=folder)


def limit_with(limit_s: float, missing_s: float) -> float:
    """Return the time limit that leaves so many seconds more for the fresh processes which prove the whole.

    Args:
        limit_s: The time limit that was too short.
        missing_s: For those processes.
    """
    return limit_s + SPARE * missing_s / ((1 - _FOR_MODELS) * (1 - TURNS))


def later_s(began_s: float, models: int, left_s: float) -> float:
    """Return about how long the models behind one take, each as long as it does, and what proves the whole.

    Args:
        began_s: When that one began, on the monotonic clock.
        models: Behind it.
        left_s: What it takes from now on.
    """
    return models * (monotonic() - began_s + left_s) + MOST_SECONDS + CONFIRM_SECONDS


def _pictures(path: Path, options: Options) -> Frames:
    """Return the calibration pictures of the whole, else those of its labels."""
    description = read_description(path)
    source = Path(options.calib) if options.calib else description.path_of(description.calib)
    if source is None or options.calib == "synthetic":
        raise EdgeoptError(
            f"pipeline {description.name} names no pictures: nothing would be found in made-up ones",
            remedy="write calib into its file, or pass --calib PICTURES",
        )
    frames = open_frames(source)
    if not frames.holds_pictures:
        raise InvalidFileError(f"{source} holds {frames.held}: a pipeline takes pictures", remedy="pass pictures")
    return frames


def _model_of(description: Description, stage: Stage) -> Path:
    """Return the file of a stage's model.

    Raises:
        EdgeoptError: If there is none; the stage is named.
    """
    try:
        return find_model(beside(description, stage.model))
    except EdgeoptError as error:
        raise EdgeoptError(f"stage {stage.name}: {error.problem}", remedy=error.remedy) from error
