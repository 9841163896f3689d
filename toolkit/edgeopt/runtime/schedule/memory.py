"""Which models are in memory: who makes room for whom, and what has changed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import psutil

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class MemoryChange:
    """A model that came into memory, or left it."""

    name: str
    is_loaded: bool
    at_s: float
    """Since the scheduler began."""
    memory_mib: float
    """Memory of the model, as given or as seen when it was loaded."""
    reason: str

    def __str__(self) -> str:
        return f"{self.at_s:.1f} s: {self.name} {'loaded' if self.is_loaded else 'unloaded'}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model that is in memory."""

    name: str
    priority: int
    size_bytes: int
    used_ns: int
    """When a frame of it was done last."""
    is_kept: bool
    """Whether it stays whatever happens."""


def who_goes(loaded: Iterable[Loaded], needed_bytes: int, limit_bytes: int, priority: int) -> tuple[str, ...] | None:
    """Return who is unloaded for a model; None where that is not enough.

    The lowest priority goes first, in it the one that was used least recently. Nobody goes who is kept, or of a higher
    priority than the model.

    Args:
        loaded: What is in memory.
        needed_bytes: What the model takes.
        limit_bytes: What all may take together.
        priority: Of the model.
    """
    loaded = tuple(loaded)
    free = limit_bytes - sum(other.size_bytes for other in loaded)
    may_go = [other for other in loaded if not other.is_kept and other.priority <= priority]
    going: list[str] = []
    for one in sorted(may_go, key=lambda one: (one.priority, one.used_ns)):
        if free >= needed_bytes:
            break
        going.append(one.name)
        free += one.size_bytes
    return tuple(going) if free >= needed_bytes else None


def resident_bytes() -> int:
    """Return the memory that this process holds."""
    return int(psutil.Process().memory_info().rss)
