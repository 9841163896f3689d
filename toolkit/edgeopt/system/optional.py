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
        raise MissingDependencyError(
            f"{purpose} needs the package {module.split('.')[0]!r} ({error})",
            remedy=f"pip install 'edgeopt[{extra}]'",
        ) from error
