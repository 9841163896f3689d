"""The repair of points: local and sequential, the better on held-out pictures; both, where neither is far behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeopt.graph.groups import keep_channels
from edgeopt.graph.model import Model
from edgeopt.graph.tensors import Tensors
from edgeopt.steps.prune.dense import Dense
from edgeopt.steps.prune.repair import Repaired, affordable, collect_targets, repair, repair_sequential
from edgeopt.steps.prune.statistics import Looks

_BEHIND, _MUCH_GONE = 1.3, 0.1
"""A loss over the better repair's: as the loss stands in for the metric, what lies less far behind is judged as well.
Where so large a share of the channels is gone, a sequential repair beyond it never leads again."""


@dataclass(frozen=True, slots=True)
class Mended:
    """A pruned model."""

    model: Model
    """The model to hand out: where the sequential repair won, it is fitted once more on the pictures that judged it
    too."""
    judged: Model
    """The same before that: its loss on those pictures is honest."""
    how: str
    """The repair; empty: none."""


class Repairs:
    """Called with the channels that stay, it returns the pruned model, mended, the better way first."""

    def __init__(
        self,
        dense: Dense,
        loss: Callable[[Model], float],
        fitted: Sequence[Tensors],
        judged: Sequence[Tensors] = (),
        looks: Looks = Looks(),  # noqa: B008, frozen
    ) -> None:
        """Take what is pruned.

        Args:
            dense: With statistics; without them nothing is mended.
            loss: Of a model, on pictures that are not fitted on.
            fitted: Pictures that the sequential repair runs on.
            judged: Those of the loss: they choose the repair, and are fitted on when the choice is made.
            looks: At which positions of layers' outputs, first of the fitted pictures, then of the judged.
        """
        self._dense, self._loss, self._fitted, self._judged = dense, loss, [*fitted], [*judged]
        self._looks = looks
        self._targets: Mapping[str, NDArray[np.float32]] | None = None

    def __call__(self, kept: Mapping[str, NDArray[np.int64]]) -> Iterator[Mended]:
        """Yield the dense model with some channels kept, mended in one or two ways.

        Args:
            kept: Sorted channels that stay, of each group that loses any.
        """
        dense = self._dense
        if not kept:
            yield Mended(dense.model, dense.model, "")
            return
        pruned = keep_channels(dense.model, dense.groups, kept)
        if dense.statistics is None:
            yield Mended(pruned, pruned, "")
            return
        if self._fitted and self._targets is None:
            seen = [*self._fitted, *self._judged]
            self._looks = affordable(dense.model, len(seen), self._looks)
            self._targets = collect_targets(dense.model, iter(seen), looks=self._looks)
        fitted = self._fitted
        repaired = repair(
            dense.model,
            pruned,
            dense.groups,
            kept,
            dense.statistics,
            fitted,
            self._loss,
            targets=self._first(),
            looks=self._looks,
        )
        gone = sum(dense.groups[name].channels - len(left) for name, left in kept.items())
        is_much = gone > _MUCH_GONE * sum(group.channels for group in dense.free)
        if is_much and repaired.losses.get("sequential", 0.0) > _BEHIND * repaired.losses["local"]:
            self._fitted = []
        least = repaired.losses[repaired.how]
        yield self._mended(repaired, repaired.how, kept, fitted)
        for how in sorted(repaired.models.keys() - {repaired.how, "none"}):
            if repaired.losses[how] < _BEHIND * least:
                yield self._mended(repaired, how, kept, fitted)

    def _mended(
        self, repaired: Repaired, how: str, kept: Mapping[str, NDArray[np.int64]], fitted: Sequence[Tensors]
    ) -> Mended:
        if how != "sequential" or not self._judged:
            return Mended(repaired.models[how], repaired.models[how], how)
        dense, seen, local = self._dense, [*fitted, *self._judged], repaired.models["local"]
        again = repair_sequential(
            dense.model, local, dense.groups, kept, seen, targets=self._targets, looks=self._looks
        )
        return Mended(again, repaired.models[how], how)

    def _first(self) -> Mapping[str, NDArray[np.float32]] | None:
        """Return the targets of the pictures that are fitted on before the choice: the first of all."""
        if self._targets is None or not self._fitted:
            return None
        whole = len(self._fitted) + len(self._judged)
        return {name: rows[: len(rows) // whole * len(self._fitted)] for name, rows in self._targets.items()}
