"""A `.mlpackage`: a folder of three files, whose program is written and read by coremltools."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgeopt.errors import InvalidFileError
from edgeopt.executors.coreml.loading import PURPOSE, coremltools, target
from edgeopt.system.declared.optional import require
from edgeopt.system.processes.quiet import quiet_natives, quiet_thread

SUFFIX = ".mlpackage"
_NAMES = "edgeopt.names"
"""Key of the package's metadata: names of the ONNX model, by the package's own."""
_MANIFEST = "Manifest.json"
_WEIGHTS = Path("Data", "com.apple.CoreML", "weights")


@dataclass(frozen=True, slots=True)
class Package:
    """A package in memory."""

    files: Mapping[str, bytes]
    """Contents by path in the folder."""


@dataclass(frozen=True, slots=True)
class ReadPackage:
    """The program of a package, as coremltools reads it back from the file."""

    program: Any
    """A program of MIL; its function `main` has typed operations with all weights."""
    names: Mapping[str, str]
    """Names of the ONNX model, by the package's own."""


def packed(program: Any, precision: Any, names: Mapping[str, str]) -> Package:
    """Return a program as a package.

    Args:
        program: Of MIL.
        precision: What floats are computed in, of coremltools' `precision`.
        names: Names of the ONNX model, by the program's own.
    """
    folder = Path(tempfile.mkdtemp(prefix="edgeopt-coreml-"))
    try:
        with quiet_thread(), quiet_natives():
            model = coremltools().convert(
                program,
                source="milinternal",
                convert_to="mlprogram",
                compute_precision=precision,
                minimum_deployment_target=target(),
                skip_model_load=True,
            )
            model.author = "written by edgeopt"
            model.user_defined_metadata[_NAMES] = json.dumps(dict(names))
            model.save(str(folder / f"model{SUFFIX}"))
        root = folder / f"model{SUFFIX}"
        files = {
            path.relative_to(root).as_posix(): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()
        }
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return Package(files | {_MANIFEST: _without_empty_folders(files)})


def _without_empty_folders(files: Mapping[str, bytes]) -> bytes:
    """Return the package's list of contents without folders that hold nothing: copies of files do not bring them."""
    manifest = json.loads(files[_MANIFEST])
    entries = manifest["itemInfoEntries"]
    for key, entry in [*entries.items()]:
        path = f"Data/{entry['path']}"
        if not any(file == path or file.startswith(f"{path}/") for file in files):
            del entries[key]
    return json.dumps(manifest, indent=4).encode()


def read_package(folder: Path) -> ReadPackage:
    """Read a package that edgeopt wrote.

    Raises:
        InvalidFileError: If it is none, or damaged.
        MissingDependencyError: If coremltools is not installed.
    """
    proto = require("coremltools.converters.mil.frontend.milproto", extra="coreml", purpose=PURPOSE)
    try:
        with quiet_thread(), quiet_natives():
            spec = coremltools().utils.load_spec(str(folder))
            names = json.loads(spec.description.metadata.userDefined.get(_NAMES, "{}"))
            program = proto.load.load(spec, spec.specificationVersion, str(folder / _WEIGHTS))
    except Exception as error:  # of any class: protobuf's, of the part in C++, of a program that is none
        reason = " ".join(str(error).split())[:120]
        raise InvalidFileError(
            f"{folder.name} is no Core ML package of edgeopt: {reason}", remedy="write it again with --emit coreml"
        ) from error
    return ReadPackage(program, names)
