"""A pipeline as it is deployed: a folder with a manifest, and an ordinary bundle for each model below it.

The manifest names the app's functions and never holds their code. It has a hash of itself and of each model's manifest,
which in turn has the hashes of that model's files.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgeopt.errors import InvalidFileError
from edgeopt.recipes.default_limits import Check
from edgeopt.runtime.bundle import parse_bundle, seal
from edgeopt.runtime.bundles.folder import MANIFEST, PIPELINE, remove_stale, require_inside, require_nothing_else
from edgeopt.runtime.pipelines.description import Description, parse_description
from edgeopt.system.disk.files import read_file, write_beside
from edgeopt.system.text import short
from edgeopt.system.toml import parse_table, read_object

SCHEMA = 1
FILE = PIPELINE
_REMEDY = "copy the bundle again, or make it with this edgeopt: edgeopt optimize PIPELINE"


@dataclass(frozen=True, slots=True)
class PipelineBundle:
    """A pipeline's bundle as read: its description, and where each model's own bundle lies."""

    folder: Path
    description: Description
    expected: Mapping[str, Any]
    """Latency and accuracy of the whole as measured when it was made, and where."""
    tools: Mapping[str, str]

    def model(self, stage: str) -> Path:
        """Return the folder of a stage's bundle."""
        return self.folder / stage


def is_pipeline_bundle(path: Path) -> bool:
    """Return whether a folder is the bundle of a pipeline, or the output folder that holds one."""
    return (path / FILE).is_file() or (path / "bundle" / FILE).is_file()


def write_pipeline(
    folder: Path,
    description: Description,
    bundles: Mapping[str, Path],
    expected: Mapping[str, Any],
    tools: Mapping[str, str],
) -> PipelineBundle:
    """Write a bundle; the manifest comes last, so that a torn bundle is none.

    Args:
        folder: Created when absent.
        description: Its paths are left out: what is deployed is the bundles.
        bundles: The folder of each model stage's bundle, by the stage's name; copied below `folder`.
        expected: Latency and accuracy, as JSON.
        tools: Versions of the packages that made it.

    Raises:
        InvalidFileError: If the folder is not writable or the disk is full.
    """
    models = dict[str, str]()
    remove_stale(folder, _stages_before(folder), {stage.name for stage in description.models})
    for stage in description.models:
        _copy(bundles[stage.name], folder / stage.name)
        models[stage.name] = _hash(folder / stage.name / MANIFEST)
    deployed = dataclasses.replace(description, calib="", eval="", folder=Path())
    values = dataclasses.asdict(deployed)
    left_out = ("folder", "stages", *(("check",) if deployed.check == Check() else ()))
    values = {key: value for key, value in values.items() if key not in left_out}  # earlier versions know no check
    stages = [_deployed(dataclasses.asdict(other)) for other in description.stages]
    manifest = {
        "schema": SCHEMA,
        "pipeline": {**values, "stage": stages},
        "models": models,
        "expected": dict(expected),
        "tools": dict(tools),
    }
    text = json.dumps({**manifest, "sha256": seal(manifest)}, indent=2, allow_nan=False)
    write_beside(folder / FILE, text + "\n")
    return PipelineBundle(folder, dataclasses.replace(deployed, folder=folder), dict(expected), dict(tools))


def _deployed(stage: dict[str, Any]) -> dict[str, Any]:
    """Return a stage without paths: its model is the folder of its name."""
    return {**stage, "model": stage["name"] if stage["model"] else "", "recipe": ""}


def _stages_before(folder: Path) -> list[object]:
    """Return the stages whose bundles an earlier pipeline there has, as far as its manifest can be read."""
    try:
        models = read_object(folder / FILE, schema=SCHEMA, remedy=_REMEDY).get("models")
    except InvalidFileError:
        return []
    return [stage for stage in models if (folder / stage / MANIFEST).is_file()] if isinstance(models, dict) else []


def _copy(source: Path, folder: Path) -> None:
    """Put a bundle's files where the pipeline's bundle has them."""
    if source.resolve() == folder.resolve():
        return
    try:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(source, folder)
    except (OSError, shutil.Error) as error:
        raise InvalidFileError(
            f"{folder} cannot be written: {error}", remedy="choose another place, or free disk space"
        ) from error


@dataclass(frozen=True, slots=True)
class _Manifest:
    schema: int
    sha256: str
    """SHA-256 of everything else in it."""
    pipeline: Mapping[str, Any]
    models: Mapping[str, str]
    """The SHA-256 of each model's manifest, by stage."""
    expected: Mapping[str, Any]
    tools: Mapping[str, str]


def read_pipeline(path: Path) -> PipelineBundle:
    """Read a bundle, and check the hashes of its manifest and of each model's.

    Raises:
        InvalidFileError: If it is none, of another schema, leads out of its folder, or is damaged.
    """
    folder = path if (path / FILE).is_file() else path / "bundle"
    file = folder / FILE
    if not file.is_file():
        remedy = "make one with edgeopt optimize PIPELINE.toml"
        raise InvalidFileError(f"{path} is no bundle of a pipeline: it holds no {FILE}", remedy=remedy)
    require_inside(folder, file)
    values = read_object(file, schema=SCHEMA, remedy=_REMEDY)
    if values.get("sha256") != seal(values):
        raise InvalidFileError(f"{file} differs from its own hash", remedy=_REMEDY)
    said = parse_table(_Manifest, values, str(file))
    description = parse_description(said.pipeline, str(file), folder)
    if data := description.calib or description.eval:
        raise InvalidFileError(f"{file} names {short(data)}, and a bundle holds no pictures or labels", remedy=_REMEDY)
    wanted = {model.name for model in description.models}
    if said.models.keys() != wanted:
        raise InvalidFileError(f"{file} has models {', '.join(said.models)}, its stages others", remedy=_REMEDY)
    for stage, expected in said.models.items():
        manifest = folder / stage / MANIFEST
        require_inside(folder, folder / stage)
        require_inside(folder, manifest)
        if _hash(manifest) != expected:
            raise InvalidFileError(f"{manifest} differs from its hash in {FILE}", remedy=_REMEDY)
    named = {f"{stage}/{name}" for stage in wanted for name in parse_bundle(folder / stage).files}
    require_nothing_else(folder, {FILE, *named}, FILE)
    return PipelineBundle(folder, description, said.expected, said.tools)


def _hash(file: Path) -> str:
    return hashlib.sha256(read_file(file, remedy=_REMEDY)).hexdigest()
