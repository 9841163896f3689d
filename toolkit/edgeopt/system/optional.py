"""Optional packages are imported where they are used, and a missing one names its extra."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from edgeopt.errors import MissingDependencyError


def require(module: str, *, extra: str, purpose: str) -> Any:
    """Import `module`, or say which extra brings it.

    Raises:
        MissingDependencyError: If the module is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        package = module.split(".")[0]
        is_absent = isinstance(error, ModuleNotFoundError) and error.name == package
        why = "is not installed" if is_absent else f"cannot be imported ({error})"
        raise MissingDependencyError(
            f"{package} {why}, which {purpose} needs", remedy=f"pip install 'edgeopt[{extra}]'"
        ) from error
