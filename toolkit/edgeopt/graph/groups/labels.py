"""Labels of channels, tied to each other and pinned; which of them are one is worked out once, at the end."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeopt.graph.groups.types import Channels

FIXED = -1
"""The label of an entry that always stays."""


class ChannelLabels:
    """Labels in blocks, one block for the channels that one node makes."""

    def __init__(self) -> None:
        self.makers: list[str] = []
        """The output that first holds the channels, by block."""
        self.pinned: list[tuple[Channels, str]] = []
        self._blocks: list[NDArray[np.int64]] = []
        self._count = 0
        self._ties: list[tuple[Channels, Channels]] = []

    def fresh(self, maker: str, count: int) -> Channels:
        """Return labels that nothing else has."""
        made = np.arange(self._count, self._count + count, dtype=np.int32)
        self._blocks.append(np.full(count, len(self.makers)))
        self.makers.append(maker)
        self._count += count
        return made

    def tie(self, array: Channels, other: Channels, reason: str) -> bool:
        """Let entries of both be removed together; what meets a fixed entry is pinned. Return whether any was."""
        mixed = (array == FIXED) != (other == FIXED)
        if mixed.any():
            self.pin(np.where(array == FIXED, other, array)[mixed], reason)
        both = (array != FIXED) & (other != FIXED) & (array != other)
        if both.any():
            self._ties.append((array[both], other[both]))
        return bool(mixed.any())

    def pin(self, labels: Channels, reason: str) -> bool:
        """Let entries stay, and return whether there were any."""
        result = labels[labels != FIXED]
        if result.size:
            self.pinned.append((result, reason))
        return bool(result.size)

    @property
    def count(self) -> int:
        """How many there are."""
        return self._count

    @property
    def blocks(self) -> NDArray[np.int64]:
        """The block of every label."""
        return np.concatenate(self._blocks) if self._blocks else np.zeros(0, np.int64)

    def roots(self) -> NDArray[np.int64]:
        """Return the smallest label that each is tied to."""
        return components(self._count, self._ties)


def components(count: int, ties: list[tuple[Channels, Channels]]) -> NDArray[np.int64]:
    """Return, for numbers below `count`, the smallest that each is tied to, directly or through others."""
    root = np.arange(count)
    if not ties:
        return root
    array, other = (np.concatenate([tie[side] for tie in ties]) for side in (0, 1))
    while True:
        low = np.minimum(root[array], root[other])
        hooked = root.copy()
        np.minimum.at(hooked, root[array], low)
        np.minimum.at(hooked, root[other], low)
        while not np.array_equal(hooked, hooked[hooked]):
            hooked = hooked[hooked]
        if np.array_equal(hooked, root):
            return root
        root = hooked
