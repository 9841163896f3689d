"""The app's own functions for a command line: read from a path that the user names, and from nowhere else."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from edgeopt.errors import EdgeoptError, NotFoundError
from edgeopt.runtime.pipelines.description import Description
from edgeopt.runtime.pipelines.pipeline import AppStage


def load_calls(description: Description, code: Path | None) -> Mapping[str, AppStage]:
    """Return the functions that a pipeline calls, by stage; their modules are run, as Python runs a script.

    Args:
        description: Names the functions, `module:function`.
        code: The folder with `module.py`; None: nobody named one.

    Raises:
        EdgeoptError: If nobody named it, a module is not there or fails, or has no such function.
    """
    if not description.calls:
        return {}
    first = description.calls[0]
    if code is None:
        raise EdgeoptError(
            f"stage {first.name} calls {first.call}, and code of an app runs only from a place that you name",
            remedy="pass --code FOLDER, the folder of its module",
        )
    modules: dict[str, ModuleType] = {}
    calls: dict[str, AppStage] = {}
    for stage in description.calls:
        name, _, function = stage.call.partition(":")
        if name not in modules:
            modules[name] = _load(name, code, stage.name)
        known = [key for key, value in vars(modules[name]).items() if callable(value) and not key.startswith("_")]
        if function not in known:
            error = NotFoundError(f"function in {name}", function, known)
            raise EdgeoptError(f"stage {stage.name}: {error.problem}", remedy=error.remedy)
        calls[stage.name] = getattr(modules[name], function)
    return calls


def _load(name: str, code: Path, stage: str) -> ModuleType:
    """Return the module in a folder; modules beside it can be imported by it."""
    file = code.joinpath(*name.split(".")).with_suffix(".py")
    if not file.is_file():
        raise EdgeoptError(
            f"stage {stage}: {file} is not there", remedy="pass --code FOLDER, the folder of the module that it calls"
        )
    spec = spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    if (folder := str(code.resolve())) not in sys.path:
        sys.path.append(folder)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        raise EdgeoptError(f"stage {stage}: {file} fails: {text}", remedy=f"mend it: python {file}") from error
    return module
