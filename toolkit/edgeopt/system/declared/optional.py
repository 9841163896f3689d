"""Optional packages are imported where they are used, and a missing one names its extra."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from edgeopt.errors import MissingDependencyError

_TORCH = (
    "on Linux that brings gigabytes of CUDA, unless a CPU build of torch is there first: "
    "pip install torch --index-url https://download.pytorch.org/whl/cpu"
)
_BEFORE: Mapping[str, str] = {
    "export": _TORCH,
    "train": _TORCH,
    "executorch": "a CPU build of torch first (docs/engines.md)",
}
"""Extra -> advice for before it is installed."""


NOT_INSTALLED = "is not installed"
"""How the reason ends where a package is simply not there; one that is broken has another."""


def how_to_install(extra: str) -> str:
    """Return the command that brings an extra of edgeopt, and what to know before, in one line."""
    known = _BEFORE.get(extra)
    return f"pip install 'edgeopt[{extra}]'" + (f"; {known}" if known else "")


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
        why = NOT_INSTALLED if is_absent else f"cannot be imported ({error})"
        problem = f"{package} {why}: {purpose} needs it"
        raise MissingDependencyError(problem, remedy=how_to_install(extra)) from error


def require_torch(purpose: str) -> Any:
    """Import torch, or say what to install.

    Args:
        purpose: What needs it, such as `training`.

    Raises:
        MissingDependencyError: If torch is not installed.
    """
    return require("torch", extra="train", purpose=purpose)
