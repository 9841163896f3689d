"""The levels a stream may go down: all frames, every second one, lighter models of the bundle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edgeopt.runtime.runtime import Runtime

FULL = "full"


@dataclass(frozen=True, slots=True)
class Rung:
    """What frames are run with at one level."""

    name: str
    runtime: Runtime
    keep_every: int = 1
    """One frame of so many is run."""


@dataclass(frozen=True, slots=True)
class Level:
    """A rung that may have to be opened first."""

    name: str
    open: Callable[[], Runtime]
    keep_every: int = 1


def levels_of(runtime: Runtime) -> tuple[Level, ...]:
    """Return the levels of a bundle, full quality first.

    Args:
        runtime: What runs at level 0.
    """
    lighter = [
        Level(f"lighter model {one.file}", lambda one=one: runtime.with_artefact(one))  # type: ignore[misc]
        for one in runtime.bundle.lighter
        if one != runtime.artefact
    ]
    return Level(FULL, lambda: runtime), Level("every 2nd frame", lambda: runtime, keep_every=2), *lighter
