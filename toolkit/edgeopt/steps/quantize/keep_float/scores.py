"""How much a tensor suffers from its grid, from sampled positions alone.

The plain ratio does not see a tensor whose few large channels hide that all others are rounded to nothing;
the normalised one does, and orders tensors as the whole model's agreement does (rank correlation 0.5 against
-0.1 on a detector).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from edgeopt.steps.quantize.grids.affine import Affine

PERFECT_DB = 120.0
_CLEAN = 0.02
"""Noise energy over signal's, up to which a channel surely is its counterpart times one factor."""
_ENOUGH = 32
"""Positions; of a few, any noise is a factor."""
_STEPS = 8
_ALIKE = 1.5
"""Factors of such channels lie closer together unless somebody scaled them."""


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
    result = variance > 1e-12 * max(float(np.square(signal, dtype=np.float64).mean()), 1e-300)
    if not result.any():
        return PERFECT_DB
    return _db(float(np.minimum(energy[result] / variance[result], 1.0).mean()), 1.0)


def is_rescaled(
    signal: NDArray[np.float32], noise: NDArray[np.float32], inside: NDArray[np.bool_], step: float
) -> bool:
    """Whether channels are what they stand for times a factor of their own: then the noise is no error.

    Args:
        signal: Shape (positions, channels).
        noise: The same shape.
        inside: The same shape: where the grid has cut nothing off, which looks like a factor too.
        step: Of the grid; channels of a few steps are left out, as rounding looks like a factor there.
    """
    real, made = (np.where(inside, array, 0.0).astype(np.float64) for array in (signal, signal + noise))
    energy, size = np.square(real).sum(axis=0), np.square(made).sum(axis=0)
    seen = inside.sum(axis=0)
    told = (seen >= _ENOUGH) & (size > seen * np.square(_STEPS * step)) & (energy > 0)
    factors = (real * made).sum(axis=0)[told] / energy[told]
    rest = np.square(made[:, told] - factors * real[:, told]).sum(axis=0)
    clean = np.abs(factors[rest < _CLEAN * size[told]])
    return bool(clean.size > 1 and clean.max() > _ALIKE * clean.min())


def score_db(samples: NDArray[np.float32], affine: Affine) -> float:
    """Return the per-channel-normalised ratio of a tensor on its grid."""
    return channel_sqnr_db(samples, affine.round_trip(samples) - samples)


def rows_score_db(samples: NDArray[np.float32]) -> float:
    """Return the per-channel-normalised ratio of a tensor whose rows have a grid of 256 steps each.

    Args:
        samples: Shape (rows, channels).

    Source: `xnn_f32_qd8_asymmetric_quantization_params` of XNNPACK: from the row's minimum to its maximum, and zero.
    """
    values = samples.astype(np.float64)  # the range of a row may be larger than float32 holds
    low = np.minimum(values.min(axis=1, keepdims=True), 0.0)
    high = np.maximum(values.max(axis=1, keepdims=True), 0.0)
    steps = np.where(high > low, (high - low) / 255, 1.0)
    zero = np.rint(-low / steps)
    made = (np.clip(np.rint(values / steps) + zero, 0, 255) - zero) * steps
    return channel_sqnr_db(samples, (made - values).astype(np.float32))


def plain_score_db(samples: NDArray[np.float32], affine: Affine) -> float:
    """Return the plain ratio of a tensor on its grid."""
    return sqnr_db(samples, affine.round_trip(samples) - samples)


def _db(noise: float, signal: float) -> float:
    if noise <= signal * 10 ** (-PERFECT_DB / 10):
        return PERFECT_DB
    return 10 * math.log10(signal / noise) if signal > 0 else -PERFECT_DB
