"""By what is lost after the rest has made up for it: the blockwise Optimal Brain Surgeon.

For a layer with weights W and inputs of covariance S, removing the columns q costs, at best,

    error(q) = tr(W_q inv(H_qq) W_q^T)        with H = inv(S + damping)

and the best weights of the others are W - W_q inv(H_qq) H_q. Then both W and H are those of the smaller layer:
H - H_q^T inv(H_qq) H_q. The channel with the least error over all layers that read it goes, and so on. A layer's error
counts over the variance of its output. Biases follow the means, so covariances count, not second moments.

Source: Kurtic et al., ZipLM, NeurIPS 2023, equations 2 and 3; Hassibi and Stork, NIPS 1992.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeopt.graph.groups import Group
from edgeopt.graph.model import Model
from edgeopt.steps.prune.ranking._ranking import Ranking
from edgeopt.steps.prune.ranking._readers import GroupReader, readers_of
from edgeopt.steps.prune.statistics import Statistics
from edgeopt.system.processes.time_limit import require_time

_DAMPING = 1e-6
"""Damping of the mean variance of a column."""


class _Layer:
    """One layer while channels leave it."""

    def __init__(self, reader: GroupReader, channels: int) -> None:
        # A channel with fewer columns than others gets columns that nothing weighs and nothing is correlated with.
        columns = [np.flatnonzero(reader.unit == unit) for unit in range(channels)]
        self.most = max(map(len, columns))
        size = reader.weights.shape[1]
        self.blocks = np.array([[*column, *range(size + len(column), size + self.most)] for column in columns], np.intp)
        covariance = reader.moments.covariance
        damping = _DAMPING * max(float(np.trace(covariance)) / size, 1e-30)
        self.inverse = np.eye(size + self.most)
        self.inverse[:size, :size] = np.linalg.inv(covariance + damping * np.eye(size))
        self.weights = np.zeros((len(reader.weights), size + self.most))
        self.weights[:, :size] = reader.weights
        self.size, self.energy = size, reader.energy

    def errors(self, units: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return what removing each of these channels next would cost."""
        blocks = self.blocks[units]
        if self.most == 1:
            column = blocks[:, 0]
            weights = self.weights[:, column]
            costs = np.einsum("ij,ij->j", weights, weights) / self.inverse[column, column]
            return np.asarray(costs / self.energy)
        inner = np.linalg.inv(self.inverse[blocks[:, :, None], blocks[:, None, :]])
        weights = self.weights[:, blocks].transpose(1, 2, 0)
        return np.asarray(np.einsum("uij,uij->u", inner, weights @ weights.swapaxes(1, 2))) / self.energy

    def remove(self, unit: int) -> None:
        """Take a channel out, and let the others make up for it."""
        block = self.blocks[unit]
        rows = self.inverse[block]
        shares = np.linalg.solve(self.inverse[np.ix_(block, block)], rows)
        self.weights -= self.weights[:, block] @ shares
        self.inverse -= rows.T @ shares
        self.weights[:, block] = 0.0
        self.inverse[range(self.size, len(self.inverse)), range(self.size, len(self.inverse))] = 1.0


def rank(group: Group, model: Model, statistics: Statistics) -> Ranking:
    """Return the ranking; of channels that cost the same, the one of the smallest number goes first."""
    layers = [_Layer(reader, group.channels) for reader in readers_of(group, statistics)]
    left = np.arange(group.channels)
    order, error = list[int](), [0.0]
    while left.size:
        require_time()
        costs = sum((layer.errors(left) for layer in layers), np.zeros(left.size))
        costs = np.maximum(costs, 0.0)
        place = _first_least(costs)
        order.append(int(left[place]))
        error.append(error[-1] + float(costs[place]))
        for other in layers:
            other.remove(order[-1])
        left = np.delete(left, place)
    return Ranking(np.array(order, np.int64), np.array(error))


def _first_least(costs: NDArray[np.float64]) -> int:
    """Return the first of the least, where what differs by rounding alone is equal."""
    least = float(costs.min())
    return int(np.flatnonzero(costs <= least * (1 + 1e-9) + 1e-12)[0])
