"""By the weights alone: the sum of magnitudes of what makes a channel, over the mean of all channels.

Source: Li et al., Pruning Filters for Efficient ConvNets, ICLR 2017, section 3.1.
"""

from __future__ import annotations

import numpy as np

from edgeopt.graph.groups import ChannelUse, Group
from edgeopt.graph.model import Model
from edgeopt.steps.prune.network.weights import Array, constants_of
from edgeopt.steps.prune.ranking._ranking import Ranking, by_score
from edgeopt.steps.prune.statistics import Statistics


def rank(group: Group, model: Model, statistics: Statistics | None) -> Ranking:
    """Return the ranking; where no stored matrix makes the channels, by the weights that read them."""
    constants = statistics.constants if statistics is not None else constants_of(model)
    makers = [use for use in group.producers if constants[use.tensor].ndim > 1]
    return by_score(
        sum((_share(group, use, constants[use.tensor]) for use in makers or group.consumers), np.zeros(group.channels))
    )


def _share(group: Group, use: ChannelUse, weight: Array) -> Array:
    sums = np.abs(np.moveaxis(weight, use.axis, 0).astype(np.float64)).reshape(weight.shape[use.axis], -1).sum(axis=1)
    mine = use.channels >= 0
    score = np.bincount(use.channels[mine], sums[mine], group.channels)
    return score / max(float(score.mean()), 1e-300)
