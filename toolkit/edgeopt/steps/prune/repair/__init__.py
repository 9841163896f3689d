"""Repair of a pruned model in closed form: what is left of each layer's inputs makes up for what is gone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeopt.graph.groups import ChannelGroups
from edgeopt.graph.model import Model
from edgeopt.graph.tensors import Tensors
from edgeopt.steps.prune.repair.local import repair_local
from edgeopt.steps.prune.repair.sequential import affordable, collect_targets, repair_sequential
from edgeopt.steps.prune.statistics import Looks, Statistics

__all__ = ["Repaired", "affordable", "collect_targets", "repair", "repair_local", "repair_sequential"]


@dataclass(frozen=True, slots=True)
class Repaired:
    """The best of the repairs that were tried."""

    model: Model
    how: str
    """`none`, `local` or `sequential`."""
    losses: Mapping[str, float]
    """Losses of all that were tried."""
    models: Mapping[str, Model]
    """The same."""


def repair(
    dense: Model,
    pruned: Model,
    groups: ChannelGroups,
    keep: Mapping[str, NDArray[np.int64]],
    statistics: Statistics,
    batches: Sequence[Tensors],
    loss: Callable[[Model], float],
    *,
    targets: Mapping[str, NDArray[np.float32]] | None = None,
    looks: Looks = Looks(),  # noqa: B008, frozen
) -> Repaired:
    """Repair locally, then from there sequentially, and return what loses least; the pruned model where neither helps.

    Args:
        dense: Before channels were removed.
        pruned: After.
        groups: Of the dense model.
        keep: Sorted kept channels by the group's name.
        statistics: Of the dense model.
        batches: Model inputs, one picture each, for the sequential repair; none: it is left out.
        loss: Of a model, on pictures that neither `statistics` nor `batches` hold; NaN counts as the worst.
        targets: What `collect_targets` gave for `batches`; None: the dense model runs once more.
        looks: At which positions of layers' outputs the sequential one looks.
    """
    local = repair_local(dense, pruned, groups, keep, statistics)
    tried = {"none": pruned, "local": local}
    if batches:
        tried["sequential"] = repair_sequential(dense, local, groups, keep, batches, targets=targets, looks=looks)
    losses = {name: loss(model) for name, model in tried.items()}
    how = min(losses, key=lambda name: np.inf if np.isnan(losses[name]) else losses[name])
    return Repaired(tried[how], how, losses, tried)
