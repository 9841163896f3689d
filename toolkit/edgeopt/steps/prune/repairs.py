"""The repair of points: local and sequential, the better on held-out pictures, as long as the second may still win."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeopt.graph.groups import keep_channels
from edgeopt.graph.model import Model
from edgeopt.graph.tensors import Tensors
from edgeopt.steps.prune.dense import Dense
from edgeopt.steps.prune.repair import collect_targets, repair, repair_local, repair_sequential

_BEHIND, _MUCH_GONE = 1.3, 0.1
"""Loss of the sequential repair over the local one's, where so large a share of the channels is gone: it loses at small
cuts and wins at large ones, and so far behind there it never leads again."""


@dataclass(frozen=True, slots=True)
class Mended:
    """A pruned model."""

    model: Model
    """What is given away: where the sequential repair won, fitted once more on the pictures that judged it too."""
    judged: Model
    """The same before that: its loss on those pictures is honest."""
    how: str
    """The repair; empty: none."""


class Repairs:
    """Called with the channels that stay, it returns the pruned model, mended."""

    def __init__(
        self,
        dense: Dense,
        loss: Callable[[Model], float],
        fitted: Sequence[Tensors],
        judged: Sequence[Tensors] = (),
    ) -> None:
        """Take what is pruned.

        Args:
            dense: With statistics; without them nothing is mended.
            loss: Of a model, on pictures that are not fitted on.
            fitted: Pictures that the sequential repair runs on.
            judged: Those of the loss: they choose the repair, and are fitted on when the choice is made.
        """
        self._dense, self._loss, self._fitted, self._judged = dense, loss, [*fitted], [*judged]
        self._targets: Mapping[str, NDArray[np.float32]] | None = None

    def __call__(self, kept: Mapping[str, NDArray[np.int64]]) -> Mended:
        """Return the dense model with some channels kept.

        Args:
            kept: Sorted channels that stay, of each group that loses any.
        """
        dense = self._dense
        if not kept:
            return Mended(dense.model, dense.model, "")
        pruned = keep_channels(dense.model, dense.groups, kept)
        if dense.statistics is None:
            return Mended(pruned, pruned, "")
        if self._fitted and self._targets is None:
            self._targets = collect_targets(dense.model, iter([*self._fitted, *self._judged]))
        found = repair(
            dense.model,
            pruned,
            dense.groups,
            kept,
            dense.statistics,
            self._fitted,
            self._loss,
            targets=self._first(),
        )
        gone = sum(dense.groups[name].channels - len(left) for name, left in kept.items())
        is_much = gone > _MUCH_GONE * sum(one.channels for one in dense.free)
        if is_much and found.losses.get("sequential", 0.0) > _BEHIND * found.losses["local"]:
            self._fitted = []
        if found.how != "sequential" or not self._judged:
            return Mended(found.model, found.model, found.how)
        local = repair_local(dense.model, pruned, dense.groups, kept, dense.statistics)
        seen = [*self._fitted, *self._judged]
        again = repair_sequential(dense.model, local, dense.groups, kept, seen, targets=self._targets)
        return Mended(again, found.model, found.how)

    def _first(self) -> Mapping[str, NDArray[np.float32]] | None:
        """Return the targets of the pictures that are fitted on before the choice: the first of all."""
        if self._targets is None or not self._fitted:
            return None
        whole = len(self._fitted) + len(self._judged)
        return {name: rows[: len(rows) // whole * len(self._fitted)] for name, rows in self._targets.items()}
