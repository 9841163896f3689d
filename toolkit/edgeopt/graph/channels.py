"""Scale and shift of a convolution's channels, in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def per_channel(constant: NDArray[Any], rank: int, channels: int) -> NDArray[np.float64] | None:
    """Return a constant as one number a channel, where it broadcasts over all other axes.

    Args:
        constant: Any shape; it meets a tensor of `rank` dimensions whose axis 1 has `channels` entries.
        rank: At least 2.
        channels: At least 1.

    Returns:
        Shape (channels,), or None if it varies along another axis, would add a dimension, or is not finite.
    """
    if constant.ndim > rank or not np.isfinite(constant).all():
        return None
    shape = (1,) * (rank - constant.ndim) + constant.shape
    if any(size != 1 for axis, size in enumerate(shape) if axis != 1) or shape[1] not in (1, channels):
        return None
    return np.broadcast_to(constant.astype(np.float64).reshape(-1), (channels,))


def out_channels(weight: NDArray[Any], groups: int, *, transposed: bool) -> int:
    """Return how many channels a convolution makes.

    Args:
        weight: (out, in / groups, *kernel), or for ConvTranspose (in, out / groups, *kernel).
        groups: The attribute `group`.
        transposed: Whether it is a ConvTranspose.
    """
    return int(weight.shape[1] * groups if transposed else weight.shape[0])


def scale_outputs(
    weight: NDArray[Any], scale: NDArray[np.float64], groups: int, *, transposed: bool
) -> NDArray[np.float64]:
    """Return the weight of a convolution whose output channels are multiplied by `scale`.

    Args:
        weight: (out, in / groups, *kernel), or for ConvTranspose (in, out / groups, *kernel).
        scale: Shape (out,).
        groups: The attribute `group`.
        transposed: Whether it is a ConvTranspose.

    Source: ONNX Conv-11 and ConvTranspose-11: output channels of group i are i * out / groups and up.
    """
    kernel = (1,) * (weight.ndim - 2)
    if not transposed:
        return weight.astype(np.float64) * scale.reshape(-1, 1, *kernel)
    grouped = weight.astype(np.float64).reshape(groups, -1, *weight.shape[1:])
    scaled: NDArray[np.float64] = grouped * scale.reshape(groups, 1, -1, *kernel)
    return scaled.reshape(weight.shape)


def scale_inputs(weight: NDArray[Any], scale: NDArray[np.float64], groups: int) -> NDArray[np.float64]:
    """Return the weight of a Conv whose input channels are multiplied by `scale` first.

    Args:
        weight: (out, in / groups, *kernel).
        scale: Shape (in,).
        groups: The attribute `group`.
    """
    grouped = weight.astype(np.float64).reshape(groups, -1, *weight.shape[1:])
    scaled: NDArray[np.float64] = grouped * scale.reshape(groups, 1, -1, *(1,) * (weight.ndim - 2))
    return scaled.reshape(weight.shape)


def shift_inputs(weight: NDArray[Any], shift: NDArray[np.float64], groups: int) -> NDArray[np.float64]:
    """Return what a constant `shift` of each input channel adds to the outputs, where nothing is padded.

    Args:
        weight: (out, in / groups, *kernel).
        shift: Shape (in,).
        groups: The attribute `group`.

    Returns:
        Shape (out,).
    """
    kernel_sums = weight.astype(np.float64).reshape(groups, weight.shape[0] // groups, weight.shape[1], -1).sum(-1)
    sums: NDArray[np.float64] = (kernel_sums * shift.reshape(groups, 1, -1)).sum(-1)
    return sums.reshape(-1)
