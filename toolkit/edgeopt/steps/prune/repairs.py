"""The repair of points: local and sequential, the better on held-out pictures, as long as the second may still win."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from edgeopt.graph.groups import keep_channels
from edgeopt.graph.model import Model
from edgeopt.graph.tensors import Tensors
from edgeopt.steps.prune.dense import Dense
from edgeopt.steps.prune.repair import collect_targets, repair

_BEHIND = 1.3
"""Loss of the sequential repair over the local one's. The more is gone, the closer its fit follows the pictures: once
so far behind, it never leads again."""


class Repairs:
    """Called with the channels that stay, it returns the pruned model and how it was mended."""

    def __init__(self, dense: Dense, loss: Callable[[Model], float], fitted: Sequence[Tensors]) -> None:
        """Take what is pruned.

        Args:
            dense: With statistics; without them nothing is mended.
            loss: Of a model, on pictures that are not fitted on.
            fitted: Pictures that the sequential repair runs on.
        """
        self._dense, self._loss, self._fitted = dense, loss, fitted
        self._targets: Mapping[str, NDArray[np.float32]] | None = None

    def __call__(self, kept: Mapping[str, NDArray[np.int64]]) -> tuple[Model, str]:
        """Return the dense model with some channels kept, and the name of the repair; empty where nothing was mended.

        Args:
            kept: Sorted channels that stay, of each group that loses any.
        """
        dense = self._dense
        if not kept:
            return dense.model, ""
        pruned = keep_channels(dense.model, dense.groups, kept)
        if dense.statistics is None:
            return pruned, ""
        if self._fitted and self._targets is None:
            self._targets = collect_targets(dense.model, iter(self._fitted))
        found = repair(
            dense.model,
            pruned,
            dense.groups,
            kept,
            dense.statistics,
            self._fitted,
            self._loss,
            targets=self._targets,
        )
        if found.losses.get("sequential", 0.0) > _BEHIND * found.losses["local"]:
            self._fitted = ()
        return found.model, found.how
