"""Which model runs on which cores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


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
