"""The deployable runtime: a bundle in, answers out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgeopt.runtime.runtime import Runtime

__all__ = ["Runtime"]


def __getattr__(name: str) -> Any:
    """Import the class when it is first used: options of commands lie in this folder too, and load no engine."""
    if name != "Runtime":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from edgeopt.runtime.runtime import Runtime

    return Runtime
