"""Holding an engine to the fast cores of a processor that has several kinds, where the system can.

What is wished is a word, which a bundle keeps; which logical cores that means is asked on the device, when a model is
opened there: a device of the same family may number its cores in another way. Linux alone tells kinds of core and holds
threads to some: macOS has no call for it, and on Windows no kinds are told.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from edgeopt.system.machine.core_kinds import fast_processors
from edgeopt.system.machine.threads import allowed_cores
from edgeopt.system.text import plural

FAST = "fast"
"""An engine's threads run on cores of the fastest kind only."""
CORES = ("", FAST)
"""Values of a target's `cores`: no wish, or the fast cores."""
_set_affinity: Any = getattr(os, "sched_setaffinity", None)
"""Linux only; elsewhere engines keep their numbers of threads, and the system places them."""


def require_cores(cores: str) -> None:
    """Raise ValueError unless it is a wish for cores that there is."""
    if cores not in CORES:
        raise ValueError(f"cores is {cores[:40]!r}, not {FAST!r}, or empty for all")


def held_processors(cores: str, threads: int) -> tuple[int, ...]:
    """Return the logical cores that an engine is held to on this machine; none: wherever the system likes.

    Args:
        cores: The wish.
        threads: Of the engine; more than there are fast logical cores would wait for each other, and are not held.
    """
    if cores != FAST or _set_affinity is None:
        return ()
    fast = fast_processors(allowed_cores())
    return fast if threads <= len(fast) else ()


def intervals(processors: Sequence[int], first: int = 0) -> str:
    """Return logical cores in one text, such as `4-7` or `0,2`.

    Args:
        processors: Their numbers, the least first.
        first: What the first of all is called: 0, or 1 where an engine counts from one.
    """
    parts: list[tuple[int, int]] = []
    for number in (each + first for each in processors):
        if parts and number == parts[-1][1] + 1:
            parts[-1] = (parts[-1][0], number)
        else:
            parts.append((number, number))
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in parts)


def threads_in_words(threads: int, cores: str) -> str:
    """Return how a report tells the threads of an engine: `4 threads held to the fast cores`."""
    return plural(threads, "thread") + (" held to the fast cores" if cores == FAST else "")


@contextmanager
def held_to(cores: Sequence[int] | None) -> Iterator[None]:
    """Hold this thread, and the threads that it starts, to some cores.

    Args:
        cores: Their numbers; None or none: wherever the system likes.
    """
    if not cores or _set_affinity is None:
        yield
        return
    before = getattr(os, "sched_getaffinity")(0)  # noqa: B009  (Linux only)
    try:
        _set_affinity(0, cores)
    except OSError:  # they were switched off, or taken from the container, since they were named
        yield
        return
    try:
        yield
    finally:
        _set_affinity(0, before)
