"""The cost of each cut alone: cut, repair locally, and judge on held-out pictures; only where it matters."""

from __future__ import annotations

import math
from collections.abc import Callable
from time import monotonic

from edgeopt.graph.groups import first_empty
from edgeopt.graph.model import Model
from edgeopt.steps.prune.costs import Cut
from edgeopt.steps.prune.dense import Dense

HOPELESS = 0.5
"""Loss, where 1 is everything, from which a cut is hopeless: it is never chosen, and no more of its group is tried."""


class Sensitivity:
    """Losses of single cuts of a model, each judged once."""

    def __init__(
        self,
        dense: Dense,
        loss: Callable[[Model], float],
        *,
        progress: Callable[[int], None] | None = None,
        ends_at_s: float = math.inf,
    ) -> None:
        """Take a model.

        Args:
            dense: What is cut.
            loss: Of a model against the dense one, 0 none to 1 everything, on pictures that repairs never see.
            progress: Hears how many cuts are judged.
            ends_at_s: On the monotonic clock: what is asked for later counts as hopeless.
        """
        self._dense, self._loss, self._progress, self._ends_at_s = dense, loss, progress, ends_at_s
        self._known: dict[Cut, float] = {}
        self._judged = 0

    @property
    def known(self) -> dict[Cut, float]:
        """The losses so far; infinite where hopeless."""
        return dict(self._known)

    def __call__(self, cut: Cut) -> float:
        """Return what a cut loses alone; infinite where it is hopeless."""
        if cut not in self._known:
            self._known[cut] = self._judge(cut)
        return self._known[cut]

    def _judge(self, cut: Cut) -> float:
        wider = [other for other, lost in self._known.items() if other.group == cut.group and not math.isfinite(lost)]
        is_beyond = cut.group and any(other.keep > cut.keep for other in wider)
        if is_beyond or monotonic() > self._ends_at_s:
            return math.inf
        kept = self._dense.kept({cut.group: cut.keep} if cut.group else {})
        if first_empty(self._dense.groups, kept):
            return math.inf
        lost = self._loss(self._dense.cut(kept, [cut.block] if cut.block else []))
        self._judged += 1
        if self._progress:
            self._progress(self._judged)
        return lost if lost < HOPELESS else math.inf
