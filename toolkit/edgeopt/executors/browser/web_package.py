"""Where onnxruntime-web lies: the npm package that an app's page loads, so that its own version is measured."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from edgeopt.errors import Missing

NAME = "onnxruntime-web"
FOLDER_VARIABLE = "EDGEOPT_ONNXRUNTIME_WEB"
REMEDY = f"npm install {NAME}"
ENGINES = {"wasm": "ort.wasm.min.mjs", "webgpu": "ort.webgpu.min.mjs"}
"""The module to import, by provider. The first loads 14 MB of WebAssembly, the second 27 MB."""
_NPM_SECONDS = 20


@dataclass(frozen=True, slots=True)
class WebPackage:
    """An installed onnxruntime-web."""

    folder: Path
    version: str

    @property
    def files(self) -> Path:
        """The folder of its modules and of WebAssembly."""
        return self.folder / "dist"


def find_package() -> WebPackage | Missing:
    """Return the package that an app of this folder would load, or why there is none.

    `EDGEOPT_ONNXRUNTIME_WEB` comes first, then `node_modules` here and above, then npm's global packages.
    """
    if named := os.environ.get(FOLDER_VARIABLE):
        return _read(Path(named)) or Missing(f"{FOLDER_VARIABLE}={named} is no {NAME}", REMEDY)
    here = Path.cwd()
    for above in (here, *here.parents):
        if package := _read(above / "node_modules" / NAME):
            return package
    if (everywhere := _global_packages()) and (package := _read(everywhere / NAME)):
        return package
    return Missing(f"{NAME} is in no node_modules of this folder or one above it", REMEDY)


def _read(folder: Path) -> WebPackage | None:
    """Return the package in a folder, or None where it lacks what a page loads."""
    try:
        version = json.loads((folder / "package.json").read_text(encoding="utf-8"))["version"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    package = WebPackage(folder.resolve(), str(version))
    return package if all((package.files / engine).is_file() for engine in ENGINES.values()) else None


@cache
def _global_packages() -> Path | None:
    """Return the folder of npm's global packages; asking npm takes a third of a second."""
    npm = shutil.which("npm")
    if npm is None:
        return None
    try:
        answer = subprocess.run([npm, "root", "-g"], capture_output=True, text=True, timeout=_NPM_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return Path(answer.stdout.strip()) if answer.stdout.strip() else None
