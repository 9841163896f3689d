"""The least squares behind each repair."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]


def make_up(weights: Matrix, moments: Matrix, kept: NDArray[np.integer[Any]], ridge: float) -> Matrix:
    """Return weights of the kept columns that come closest to all columns' output.

    min over V of E|W x - V x_K|^2 + ridge * mean variance * |V - W_K|^2: V = W_K + W_R S_RK inv(S_KK + ridge).

    Args:
        weights: W, shape (outputs, columns).
        moments: S = E[x x^T], shape (columns, columns); of centred x where there is a bias.
        kept: K, sorted; R is the others.
        ridge: Relative to the mean variance of a kept column.
    """
    removed = np.setdiff1d(np.arange(weights.shape[1]), kept)
    inner = moments[np.ix_(kept, kept)]
    lost = moments[np.ix_(kept, removed)] @ weights[:, removed].T
    return weights[:, kept] + _solve(inner, lost, ridge).T


def fit(rows: Matrix, residual: Matrix, ridge: float) -> Matrix:
    """Return the change of weights, shape (outputs, columns), that takes a residual best.

    min over V of |R - X V^T|^2 / n + ridge * mean variance * |V|^2; with fewer rows than columns by way of X X^T.

    Args:
        rows: X, shape (n, columns).
        residual: R, shape (n, outputs).
        ridge: Relative to the mean square of a column.
    """
    count, columns = rows.shape
    if count >= columns:
        return _solve(rows.T @ rows / count, rows.T @ residual / count, ridge).T
    inner = rows @ rows.T
    damping = ridge * max(float(np.trace(inner)) / columns, 1e-30)
    return np.linalg.solve(inner + damping * np.eye(count), residual).T @ rows


def _solve(inner: Matrix, right: Matrix, ridge: float) -> Matrix:
    """Solve with damping; an input that is always 0 gets no weight."""
    damping = max(ridge, 1e-10) * max(float(np.trace(inner)) / max(len(inner), 1), 1e-30)
    return np.asarray(np.linalg.solve(inner + damping * np.eye(len(inner)), right))
