"""An order of removal."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Ranking:
    """The channels of a group, the least important first."""

    order: NDArray[np.int64]
    """Shape (channels,)."""
    error: NDArray[np.float64]
    """Shape (channels + 1,), from 0, never falling: what removing the first of the order costs, by how many.

    In units of the way; those of one way can be compared between groups."""

    def kept(self, count: int) -> NDArray[np.int64]:
        """Return the sorted channels that stay when `count` do."""
        return np.sort(self.order[len(self.order) - count :])


def by_score(score: NDArray[np.float64]) -> Ranking:
    """Return the ranking of channels whose errors add up; ties go by number."""
    order = np.argsort(score, kind="stable")
    return Ranking(order.astype(np.int64), np.concatenate([[0.0], np.cumsum(score[order])]))
