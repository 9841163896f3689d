"""Where a training stands, beside its weights."""

from __future__ import annotations

import math
from dataclasses import dataclass

PATIENCE = 4
"""Checks in a row without a better loss, after which training returns to the best weights, with half the rate."""
MOST_RETURNS = 3
"""Returns in a row without a better loss; the next one ends training."""


@dataclass(frozen=True, slots=True)
class HeldOutCheck:
    """The verdict of held-out pictures on the averaged weights."""

    step: int
    seconds: float
    loss: float
    """Loss on the pictures that decide when training ends."""
    learned: float
    """Mean loss of the batches since the last check."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a training stands, beside its weights."""

    step: int = 0
    steps: int = 0
    """Steps in all; 0: not known yet."""
    every: int = 0
    """Steps between two checks."""
    seconds: float = 0.0
    """Spent so far, over all runs."""
    rate: float = 0.0
    """Rate of `RATES`; 0: not known yet."""
    best: float = math.inf
    since_best: int = 0
    """Checks since the best one, or the last return to it."""
    returns: int = 0
    """Since the best check."""
    share: float = 1.0
    """Share of the rate, after all returns."""
    curve: tuple[HeldOutCheck, ...] = ()

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do."""
        return bool(self.steps) and (self.step >= self.steps or (self.is_stuck and self.returns >= MOST_RETURNS))

    @property
    def is_stuck(self) -> bool:
        """Whether the last checks were no better than the best one."""
        return self.since_best >= PATIENCE
