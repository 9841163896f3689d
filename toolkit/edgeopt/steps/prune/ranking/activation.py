"""By weights times inputs: the energy that a channel adds to what each layer behind it computes.

Channels are taken for uncorrelated: sum over its columns of |w|^2 E[x^2], over the energy of the layer's output.

Source: Sun et al., A Simple and Effective Pruning Approach for Large Language Models (Wanda), ICLR 2024, equation 1,
squared and summed over outputs.
"""

from __future__ import annotations

import numpy as np

from edgeopt.graph.groups import Group
from edgeopt.graph.model import Model
from edgeopt.steps.prune.ranking._ranking import Ranking, by_score
from edgeopt.steps.prune.ranking._readers import readers_of
from edgeopt.steps.prune.statistics import Statistics


def rank(group: Group, model: Model, statistics: Statistics) -> Ranking:
    """Return the ranking."""
    score = np.zeros(group.channels)
    for reader in readers_of(group, statistics):
        energy = np.einsum("ij,ij->j", reader.weights, reader.weights) * np.diag(reader.moments.gram)[:-1]
        mine = reader.unit >= 0
        score += np.bincount(reader.unit[mine], energy[mine], group.channels) / reader.energy
    return by_score(score)
