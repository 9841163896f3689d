"""Take the mean error of a layer out of its bias.

Integers shift the mean of each output channel by E[w x - q(w) q(x)] = sum(w E[x]) - sum(q(w) E[q(x)]), summed
over input channels and taps; adding it to the bias restores the mean exactly, but for the picture's border.

Source: Nagel et al., Data-free quantization through weight equalization and bias correction, ICCV 2019,
section 4.2.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def mean_shift(
    weight: NDArray[Any], quantized: NDArray[Any], mean: NDArray[Any], quantized_mean: NDArray[Any], groups: int = 1
) -> NDArray[np.float32]:
    """Return what to add to the bias of a convolution or a matrix product.

    Args:
        weight: Shape (out, in / groups, ...).
        quantized: The weight as the integers stand for it, same shape.
        mean: Mean of each input channel in float.
        quantized_mean: Mean of each input channel as the integer layer sees it.
        groups: Groups of the convolution.
    """
    taps, quantized_taps = (
        one.reshape(*one.shape[:2], -1).sum(axis=2, dtype=np.float64) for one in (weight, quantized)
    )
    out, per_group = taps.shape
    group = np.repeat(np.arange(groups), out // groups)
    channels = group[:, None] * per_group + np.arange(per_group)
    shift: NDArray[np.float64] = (taps * mean[channels] - quantized_taps * quantized_mean[channels]).sum(axis=1)
    return shift.astype(np.float32)
