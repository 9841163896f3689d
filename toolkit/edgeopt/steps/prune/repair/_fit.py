"""The least squares behind each repair."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
Rows = NDArray[np.float32]
_BLOCK = 1024
"""Rows that are summed in float32."""
_ROUNDS = 4
"""On SqueezeNet with 24 % removed: KL 0.595 without, 0.480 with them."""
Goal = Callable[[Rows, Rows], Rows]
"""(outputs as fitted so far, the dense outputs) -> what to fit next."""


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


def fit(
    rows: Rows, wanted: Rows, begun: Matrix, ridge: float, *, has_bias: bool, goal: Goal | None = None
) -> tuple[Matrix, Matrix]:
    """Return weights (outputs, columns) and a bias (outputs,) that take rows to what is wanted.

    min over V, b of |Y - X V^T - b|^2 / n + ridge * mean variance * |V - begun|^2; with fewer rows than columns by way
    of X X^T.

    Args:
        rows: X, shape (n, columns).
        wanted: Y, shape (n, outputs).
        begun: The weights that the ridge pulls towards.
        ridge: Relative to the mean variance of a column.
        has_bias: Whether there is a bias; if not, it is 0.
        goal: What to fit in place of Y in further rounds, as an activation forgives some errors; None: there are none.
    """
    count, columns = rows.shape
    x_mean = rows.mean(axis=0, dtype=np.float64) if has_bias else np.zeros(columns)
    x = rows - x_mean.astype(np.float32)
    is_wide = columns > count
    inner = _product(x.T, x.T) if is_wide else _product(x, x)
    damping = max(ridge, 1e-10) * max(float(np.trace(inner)) / columns, 1e-30)
    inverse = np.linalg.inv(inner + damping * np.eye(len(inner)))
    target = wanted
    start = x @ begun.T.astype(np.float32)
    for step in range(_ROUNDS + 1):
        y_mean = target.mean(axis=0, dtype=np.float64) if has_bias else np.zeros(target.shape[1])
        residual = target - y_mean.astype(np.float32) - start
        change = (inverse @ residual).T @ x if is_wide else (inverse @ _product(x, residual)).T
        weights = begun + change
        if goal is None or step == _ROUNDS:
            break
        target = goal(x @ weights.T.astype(np.float32) + y_mean.astype(np.float32), wanted)
    return weights, y_mean - weights @ x_mean


def _product(array: Rows, other: Rows) -> Matrix:
    """Return one^T other: float32 inside blocks of rows, float64 between them."""
    total = np.zeros((array.shape[1], other.shape[1]))
    for i in range(0, len(array), _BLOCK):
        total += array[i : i + _BLOCK].T @ other[i : i + _BLOCK]
    return total


def _solve(inner: Matrix, right: Matrix, ridge: float) -> Matrix:
    """Solve with damping; an input that is always 0 gets no weight."""
    damping = max(ridge, 1e-10) * max(float(np.trace(inner)) / max(len(inner), 1), 1e-30)
    return np.asarray(np.linalg.solve(inner + damping * np.eye(len(inner)), right))
