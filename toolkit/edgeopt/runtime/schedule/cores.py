"""Which model runs on which cores, and holding a thread to them where the system can."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

_set_affinity: Any = getattr(os, "sched_setaffinity", None)
"""Linux only; elsewhere models keep their numbers of threads, and the system places them."""


def assign_cores(threads: Mapping[str, int], cores: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """Return the cores of each model. Models with the same cores take turns, others run at the same time.

    In the order given, a model gets cores of its own while enough are left for the widest of the rest; the rest share
    what remains.

    Args:
        threads: Of each model, the most important first.
        cores: The best first.
    """
    result: dict[str, tuple[int, ...]] = {}
    left, names = list(cores), list(threads)
    for place, name in enumerate(names):
        rest = max((threads[other] for other in names[place + 1 :]), default=0)
        if threads[name] + rest > len(left):
            return result | dict.fromkeys(names[place:], tuple(left))
        result[name], left = tuple(left[: threads[name]]), left[threads[name] :]
    return result


@contextmanager
def held_to(cores: Sequence[int] | None) -> Iterator[None]:
    """Hold this thread, and the threads that it starts, to some cores.

    Args:
        cores: Their numbers; None: wherever the system likes.
    """
    if cores is None or _set_affinity is None:
        yield
        return
    before = getattr(os, "sched_getaffinity")(0)  # noqa: B009  (Linux only)
    _set_affinity(0, cores)
    try:
        yield
    finally:
        _set_affinity(0, before)
