"""How much of a model's outputs another one loses, without labels: smooth where answers do not change yet."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgeopt.graph.tensors import Tensors

_LEAST_SHARE = 1e-8


def relative_error(outputs: Sequence[Tensors], reference: Sequence[Tensors]) -> float:
    """Return the mean over float outputs of squared error over squared signal; infinite where one is not finite.

    Args:
        outputs: By name, picture by picture.
        reference: The same of the model that is compared with.
    """
    errors = []
    for name in sorted(reference[0]) if reference else ():
        wrong = whole = 0.0
        for found, expected in zip(outputs, reference, strict=True):
            wanted = np.asarray(expected[name])
            if wanted.dtype.kind != "f" or not np.isfinite(wanted).all():
                continue
            given = np.asarray(found[name])
            if given.shape != wanted.shape or not np.isfinite(given).all():
                return math.inf
            wrong += float(np.square(given.astype(np.float64) - wanted).sum())
            whole += float(np.square(wanted.astype(np.float64)).sum())
        if whole > 0:
            errors.append(wrong / whole)
    return float(np.mean(errors)) if errors else 0.0


def divergence(found: NDArray[np.float64], expected: NDArray[np.float64]) -> float:
    """Return the mean Kullback-Leibler divergence of rows of probabilities, in nats; infinite where one is NaN.

    Args:
        found: (pictures, classes).
        expected: The same of the model that is compared with.
    """
    if not np.isfinite(found).all():
        return math.inf
    p, q = np.clip(expected, _LEAST_SHARE, 1.0), np.clip(found, _LEAST_SHARE, 1.0)
    p, q = p / p.sum(axis=1, keepdims=True), q / q.sum(axis=1, keepdims=True)
    return float((p * np.log(p / q)).sum(axis=1).mean())
