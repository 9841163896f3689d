"""How much a tensor suffers from its grid, from sampled positions alone. It runs no model.

The plain ratio does not see a tensor whose few large channels hide that all others are rounded to nothing;
the normalised one does, and orders tensors as the whole model's agreement does (rank correlation 0.5 against
-0.1 on a detector).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from edgeopt.quantization.affine import Affine

PERFECT_DB = 120.0


def sqnr_db(signal: NDArray[np.float32], noise: NDArray[np.float32]) -> float:
    """Return 10 log10 of the signal's energy over the noise's, at most PERFECT_DB."""
    return _db(float(np.square(noise, dtype=np.float64).sum()), float(np.square(signal, dtype=np.float64).sum()))


def channel_sqnr_db(signal: NDArray[np.float32], noise: NDArray[np.float32]) -> float:
    """Return -10 log10 of the mean over channels of noise energy over variance.

    A channel cannot lose more than all it says, so its share is at most 1. Constant channels say nothing and
    are left out.

    Args:
        signal: Shape (positions, channels).
        noise: The same shape.
    """
    variance = np.var(signal, axis=0, dtype=np.float64)
    energy = np.square(noise, dtype=np.float64).mean(axis=0)
    told = variance > 1e-12 * max(float(np.square(signal, dtype=np.float64).mean()), 1e-300)
    if not told.any():
        return PERFECT_DB
    return _db(float(np.minimum(energy[told] / variance[told], 1.0).mean()), 1.0)


def score_db(samples: NDArray[np.float32], affine: Affine) -> float:
    """Return the per-channel-normalised ratio of a tensor on its grid."""
    return channel_sqnr_db(samples, affine.round_trip(samples) - samples)


def plain_score_db(samples: NDArray[np.float32], affine: Affine) -> float:
    """Return the plain ratio of a tensor on its grid."""
    return sqnr_db(samples, affine.round_trip(samples) - samples)


def _db(noise: float, signal: float) -> float:
    if noise <= signal * 10 ** (-PERFECT_DB / 10):
        return PERFECT_DB
    return 10 * math.log10(signal / noise) if signal > 0 else -PERFECT_DB
