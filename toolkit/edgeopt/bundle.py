"""The folder that is deployed: model, fallbacks, manifest, labels. Reading checks every hash. It runs nothing."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgeopt.errors import InvalidFileError
from edgeopt.files import write_beside
from edgeopt.recipe import Recipe
from edgeopt.tables import parse_table
from edgeopt.target import Target

SCHEMA = 1
MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class Artefact:
    """One model file of a bundle."""

    file: str
    sha256: str
    precision: str
    """Precision scheme, for example `w8a8`."""
    size_bytes: int
    executor: str = ""
    """What runs it; empty: the target's executor, providers and options."""
    providers: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Bundle:
    """What a device app embeds. `artefacts` are in the order in which they are tried."""

    folder: Path
    artefacts: tuple[Artefact, ...]
    target: Target
    recipe: Recipe
    expected: Mapping[str, Any]
    """Accuracy and latency as measured when the bundle was made, and where."""
    tools: Mapping[str, str]

    @property
    def model(self) -> Path:
        """Path of the first artefact."""
        return self.folder / self.artefacts[0].file


def is_bundle(path: Path) -> bool:
    """Return whether a folder is a bundle, or the output folder that holds one."""
    return (path / MANIFEST).is_file() or (path / "bundle" / MANIFEST).is_file()


def write_bundle(
    folder: Path,
    models: Mapping[str, tuple[str, bytes]],
    target: Target,
    recipe: Recipe,
    expected: Mapping[str, Any],
    tools: Mapping[str, str],
    engines: Mapping[str, Target] | None = None,
) -> Bundle:
    """Write a bundle; the manifest comes last, so that a torn bundle is none.

    Args:
        folder: Created when absent.
        models: File name to precision scheme and serialized model, the preferred one first.
        target: The device profile.
        recipe: Bound to the model.
        expected: Accuracy and latency, as JSON.
        tools: Versions of the packages that made it.
        engines: File name to the profile whose engine runs it; what is absent runs on the target's.

    Raises:
        InvalidFileError: If the folder is not writable or the disk is full.
    """
    artefacts = []
    for file, (precision, data) in models.items():
        write_beside(folder / file, data)
        engine = (engines or {}).get(file, target)
        how = engine.executor, engine.providers, engine.options
        artefacts.append(Artefact(file, hashlib.sha256(data).hexdigest(), precision, len(data), *how))
    if recipe.class_names:
        write_beside(folder / "labels.txt", "\n".join(recipe.class_names) + "\n")
    deployed = dataclasses.replace(recipe, folder=Path(), labels="", model="", match=())
    manifest = {
        "schema": SCHEMA,
        "artefacts": [dataclasses.asdict(one) for one in artefacts],
        "target": dataclasses.asdict(target),
        "recipe": {key: value for key, value in dataclasses.asdict(deployed).items() if key != "folder"},
        "expected": dict(expected),
        "tools": dict(tools),
    }
    write_beside(folder / MANIFEST, json.dumps(manifest, indent=2, allow_nan=False) + "\n")
    return Bundle(folder, tuple(artefacts), target, deployed, dict(expected), dict(tools))


def read_bundle(path: Path) -> Bundle:
    """Read a bundle and check the hash of every artefact.

    Raises:
        InvalidFileError: If it is no bundle, of a newer schema, or a file differs from its hash.
    """
    folder = path if (path / MANIFEST).is_file() else path / "bundle"
    manifest = _read_manifest(folder / MANIFEST)
    where = str(folder / MANIFEST)
    try:
        artefacts = tuple(parse_table(Artefact, one, f"{where}: artefacts") for one in manifest["artefacts"])
        target = parse_table(Target, manifest["target"], f"{where}: target")
        recipe = parse_table(Recipe, manifest["recipe"], f"{where}: recipe")
        expected, tools = manifest["expected"], manifest["tools"]
    except (KeyError, TypeError) as error:
        raise InvalidFileError(f"{where} lacks {error}", remedy="make it again with edgeopt optimize") from error
    if not artefacts:
        raise InvalidFileError(f"{where} names no model", remedy="make the bundle again with edgeopt optimize")
    for artefact in artefacts:
        _check_hash(folder / artefact.file, artefact.sha256)
    return Bundle(folder, artefacts, target, recipe, expected, tools)


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise InvalidFileError(
            f"{path.parent} is no bundle: {error.strerror} ({MANIFEST})", remedy="make one with edgeopt optimize"
        ) from error
    except ValueError as error:
        raise InvalidFileError(f"{path} is not JSON: {error}", remedy="copy the bundle again") from error
    if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA:
        found = manifest.get("schema") if isinstance(manifest, dict) else None
        raise InvalidFileError(
            f"{path} has schema {found}, this edgeopt reads {SCHEMA}", remedy="update edgeopt, or make the bundle again"
        )
    return manifest


def _check_hash(path: Path, sha256: str) -> None:
    try:
        found = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise InvalidFileError(f"{path} cannot be read: {error.strerror}", remedy="copy the bundle again") from error
    if found != sha256:
        raise InvalidFileError(f"{path} differs from its hash in {MANIFEST}", remedy="copy the bundle again")
