"""How many channels a group may keep, and which: always multiples of the step, in every tensor that holds them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeopt.graph.groups import Group

_MOST_LEVELS = 8
"""Most levels of one group: a finer choice costs time and changes little."""


@dataclass(frozen=True, slots=True)
class Removal:
    """The order in which a group loses its channels, some at a time."""

    order: NDArray[np.int64]
    """The first to go first."""
    levels: tuple[int, ...]
    """Numbers of channels that may stay, the most first."""

    def kept(self, count: int) -> NDArray[np.int64]:
        """Return the sorted channels that stay when `count` do."""
        return np.sort(self.order[len(self.order) - count :])


def removal(group: Group, ranked: NDArray[np.int64], step: int) -> Removal:
    """Return how a group's channels go: in parts after each of which every tensor that holds them is on the step.

    Channels of one part lie in the same tensors: behind a Split each of its outputs loses whole steps, and keeps one.

    Args:
        group: One of whose channels some can go.
        ranked: Its channels, the least important first.
        step: Entries of a tensor that belong together.
    """
    unit = step_in_channels(group, step)
    place = np.argsort(ranked, kind="stable")
    parts = list[NDArray[np.int64]]()
    for alike in _alike(group):
        mine = alike[np.argsort(place[alike], kind="stable")]
        first = len(mine) % unit or unit
        cuts = range(first, len(mine), unit)
        parts += np.split(mine, [*cuts])[: len(cuts)]  # the last part stays
    parts.sort(key=lambda array: (float(place[array].mean()), int(array[0])))
    gone = np.concatenate([*parts, np.empty(0, np.int64)]).astype(np.int64)
    rest = ranked[~np.isin(ranked, gone)]
    counts = [group.channels - int(one) for one in np.cumsum([len(one) for one in parts])]
    stride = max(1, math.ceil(len(counts) / _MOST_LEVELS))
    chosen = tuple(sorted({*counts[::stride], *counts[-1:]}, reverse=True))
    return Removal(np.concatenate([gone, rest]), chosen)


def _alike(group: Group) -> list[NDArray[np.int64]]:
    """Return the channels in sets that lie in the same tensors."""
    columns = [np.isin(np.arange(group.channels), use.channels) for use in group.tensors]
    table = np.stack(columns, axis=1) if columns else np.ones((group.channels, 1), bool)
    _, number = np.unique(table, axis=0, return_inverse=True)
    result = number.reshape(-1)
    return [np.flatnonzero(result == other) for other in range(int(result.max()) + 1)]


def step_in_channels(group: Group, step: int) -> int:
    """Return how many of a group's channels fill the step: one attention head may hold several steps."""
    widths = list[int]()
    for use in (*group.producers, *group.tensors):
        mine = use.channels[use.channels >= 0]
        if mine.size:
            widths.append(int(mine.size) // len(np.unique(mine)))
    return step // math.gcd(step, min(widths, default=1) or 1)
