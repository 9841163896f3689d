"""How many threads an engine gets where nothing is measured, and the cores that this process may use."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from edgeopt.errors import EdgeoptError
from edgeopt.system.machine.core_kinds import fast_cores, fastest_first
from edgeopt.system.machine.place import current_place, machine_in_words
from edgeopt.system.text import plural

DEFAULT_THREADS = "fast cores"
"""Threads of an engine where nobody says, in the words of the help: the physical cores, of several kinds the
fastest."""


def engine_threads(asked: int, preferred: int = 0, workers: int = 1) -> int:
    """Return how many threads an engine gets.

    Args:
        asked: What a person or a file asks for; 0: nothing.
        preferred: What the profile of a device says, of which this machine gives what it has; 0: nothing.
        workers: How many such engines share the fast cores, where neither says.

    Raises:
        EdgeoptError: If more is asked for than there are logical cores: threads that spin for each other's cores hang
            a machine.
    """
    most = logical_cores()
    if not 0 <= asked <= most:
        raise EdgeoptError(
            f"{asked} threads on {_machine()} of {plural(most, 'logical core')}",
            remedy=f"ask for --threads 1 to {most}, or leave it out",
        )
    return asked or min(preferred, most) or max(1, usual_threads() // workers)


def _machine() -> str:
    return "a machine" if current_place() is None else machine_in_words()


def usual_threads() -> int:
    """Return how many threads an engine gets alone: one for each physical core of the fastest kind, at least one."""
    if (place := current_place()) is not None:
        return max(1, int(place.usual_threads))
    physical = physical_cores()
    return min(fast_cores(allowed_cores()), physical) or physical


def usable_cores() -> tuple[int, ...]:
    """Return the numbers of the logical cores that this process may use, those of the fastest kind first."""
    return fastest_first(allowed_cores())


def allowed_cores() -> Collection[int]:
    """Return the numbers of the logical cores that this thread may use."""
    read = getattr(os, "sched_getaffinity", None)
    return read(0) if read else range(os.cpu_count() or 1)


def physical_cores() -> int:
    """Return how many cores this process may use: physical, within affinity and quota, at least one."""
    import psutil

    logical = logical_cores()
    physical = min(psutil.cpu_count(logical=False) or logical, logical)
    quota = cpu_quota()
    return max(1, min(physical, int(quota)) if quota else physical)


def logical_cores() -> int:
    """Return how many threads this process may run at once: what its affinity leaves of the logical cores."""
    if (place := current_place()) is not None:
        return max(1, int(place.logical_cores))
    return len(allowed_cores())


def cpu_quota() -> float:
    """Return the container's limit in cores; 0.0 when there is none."""
    try:
        allowed, period = Path("/sys/fs/cgroup/cpu.max").read_text("ascii").split()
        return 0.0 if allowed == "max" else int(allowed) / int(period)
    except (OSError, ValueError):
        return 0.0
