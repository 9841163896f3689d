"""Weights as integers with one scale for each output channel.

Without VNNI, x86 adds the products of two neighbours in 16 bits (vpmaddubsw): 255 * 127 twice saturates. Neighbours
whose integers of one sign add up to at most 128 never do, whatever the activations. That costs a channel the steps
that its own worst two neighbours need, a fifth of them in most; a bit less for all would cost half.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import UnsupportedError
from edgeopt.steps.quantize.grids.affine import SMALLEST_SCALE, next_power_of_two

MOST = 127
"""Largest magnitude of an integer: -128 could overflow."""
MOST_OF_TWO = 128
"""Largest sum of two neighbours of one sign: 255 * 128 is below 2^15, 255 * 129 is not."""
_ELEMENTS = 1 << 20
"""Elements of a weight that are looked at together: in double precision all of them would be several copies of a large
one."""


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """Integers around zero, and the scale of each channel: value = scale * integer."""

    values: NDArray[np.int8]
    scale: NDArray[np.float32]
    """One number a channel; shape (1,) for one scale in all."""
    axis: int

    @property
    def real(self) -> NDArray[np.float32]:
        """The weights that the integers stand for."""
        real: NDArray[np.float32] = self.values.astype(np.float32) * along(self.scale, self.axis, self.values.ndim)
        return real


def along(channels: NDArray[Any], axis: int, rank: int) -> NDArray[Any]:
    """Return one value a channel in the shape that broadcasts along `axis` of an array of `rank` dimensions."""
    return channels.reshape([channels.size if i == axis else 1 for i in range(rank)])


def choose_scale(
    weight: NDArray[Any], axis: int, *, reduce_range: bool = False, per_channel: bool = True
) -> NDArray[np.float32]:
    """Return the symmetric INT8 scale of each channel.

    Args:
        weight: Any shape; channels along `axis`, e.g. (out, in, kh, kw) with axis 0.
        axis: The channel axis, counted from 0.
        reduce_range: Take larger steps where the products of two neighbours would saturate 16 bits.
        per_channel: Whether each channel has its own scale; otherwise all share one.

    Returns:
        Shape (channels,) or (1,): the value of one integer step, always a normal number above zero.

    Raises:
        ValueError: If `weight` holds NaN or infinity.

    Source: ONNX QuantizeLinear, opset 13; range [-127, 127] so that -128 cannot overflow.
    """
    others = tuple(i for i in range(weight.ndim) if i != axis) if per_channel else None
    largest = np.zeros(1)
    if weight.size:  # both ends, as their magnitudes would be a second copy
        low, high = (np.asarray(one(axis=others), np.float64) for one in (weight.min, weight.max))
        largest = np.atleast_1d(np.maximum(-low, high))
    if not np.isfinite(largest).all():
        raise ValueError(f"the weight holds {what_is_not_finite(weight)}")
    if reduce_range and weight.size:  # two roundings may add one step, hence MOST
        pairs = _largest_pairs(weight, axis)
        largest = np.maximum(largest, pairs if per_channel else pairs.max())
    scale = (largest / MOST).astype(np.float32)
    return np.where(largest == 0, np.float32(1), np.maximum(scale, np.float32(SMALLEST_SCALE)))


def quantize_weight(
    name: str,
    weight: NDArray[Any],
    axis: int,
    *,
    reduce_range: bool = False,
    per_channel: bool = True,
    power_of_two: bool = False,
    smallest: NDArray[Any] | None = None,
) -> QuantizedWeight:
    """Return `weight` rounded to the nearest integers.

    Args:
        name: Of the initializer, for the error.
        weight: Any shape; channels along `axis`.
        axis: The channel axis, counted from 0.
        reduce_range: See `choose_scale`.
        per_channel: See `choose_scale`.
        power_of_two: Only scales that are powers of two, each the one of two neighbours that loses least.
        smallest: Lower limit of the scale of each channel, e.g. so that a bias fits in 32 bits.

    Raises:
        UnsupportedError: If the weight holds NaN or infinity.
    """
    if not np.isfinite(weight).all():
        raise not_finite(name, weight)
    scale = choose_scale(weight, axis, reduce_range=reduce_range, per_channel=per_channel)
    least = np.maximum(SMALLEST_SCALE if smallest is None else smallest, np.float32(SMALLEST_SCALE), dtype=np.float32)
    least = least if per_channel else least.max(keepdims=True)
    least = np.maximum(least, scale) if reduce_range else least
    scale = np.maximum(scale, least)
    if not power_of_two:
        return _rounded(weight, scale, axis)
    above = _rounded(weight, next_power_of_two(scale), axis)
    below = _rounded(weight, above.scale / np.float32(2), axis)
    is_fit = (_squared_error(weight, below) < _squared_error(weight, above)) & (below.scale >= least)
    return _rounded(weight, np.where(is_fit, below.scale, above.scale), axis)


def _largest_pairs(weight: NDArray[Any], axis: int) -> NDArray[np.float64]:
    """Return the largest sum of two neighbours of one sign in each channel, some channels after others.

    Kernels pair input channels of one position, and where those are odd in number some go on to the next position;
    both orders count.

    Args:
        weight: Of a convolution (out, in, ...) with axis 0, of a matrix with either axis, or a stack of them (..., in,
            out).
        axis: Of the output channels.
    """
    rows = np.moveaxis(weight, axis, 0)
    inputs = 1 if axis == 0 else rows.ndim - 1
    last = np.moveaxis(rows, inputs, -1) if rows.ndim > 1 else rows[:, None]
    few = max(1, _ELEMENTS * len(last) // last.size)
    return np.concatenate([_pairs_of(last[i : i + few]) for i in range(0, len(last), few)])


def _pairs_of(channels: NDArray[Any]) -> NDArray[np.float64]:
    numbers = np.asarray(channels, np.float64)
    return np.maximum(_pair_sums(numbers), _pair_sums(numbers.reshape(len(numbers), -1)))


def _pair_sums(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    even = np.concatenate([rows, np.zeros((*rows.shape[:-1], rows.shape[-1] % 2))], axis=-1)
    signs = (np.maximum(even, 0), np.maximum(-even, 0))
    sums = [(sign[..., ::2] + sign[..., 1::2]).reshape(len(rows), -1).max(axis=1, initial=0) for sign in signs]
    return np.asarray(np.maximum(*sums))


def what_is_not_finite(numbers: NDArray[Any]) -> str:
    """Return `NaN`, `infinity` or both, as they occur; empty where all is finite."""
    words = {"NaN": np.isnan(numbers), "infinity": np.isinf(numbers)}
    return " and ".join(word for word, where in words.items() if where.any())


def not_finite(name: str, numbers: NDArray[Any]) -> UnsupportedError:
    """Return the error that names a stored constant with numbers that no grid holds."""
    return UnsupportedError(
        f"constant {name!r} holds {what_is_not_finite(numbers)}",
        remedy="export the model again from a checkpoint whose weights are finite",
    )


def _rounded(weight: NDArray[Any], scale: NDArray[np.float32], axis: int) -> QuantizedWeight:
    steps = np.asarray(weight, np.float32) / along(scale, axis, weight.ndim)
    np.clip(np.rint(steps, out=steps), -MOST, MOST, out=steps)
    return QuantizedWeight(steps.astype(np.int8), scale, axis)


def _squared_error(weight: NDArray[Any], quantized: QuantizedWeight) -> NDArray[np.float64]:
    """Return the squared error for each scale."""
    others = tuple(i for i in range(weight.ndim) if i != quantized.axis or quantized.scale.size == 1)
    error: NDArray[np.float64] = np.square(weight - quantized.real, dtype=np.float64).sum(axis=others)
    return np.atleast_1d(error)


def smallest_scale_for_bias(bias: NDArray[Any], input_scale: float) -> NDArray[np.float32]:
    """Return the weight scale of each channel below which the bias would not fit in 32 bits.

    A bias is stored as INT32 in steps of input_scale * weight_scale, so a channel of all but zero weights
    with a bias would overflow.
    """
    return (np.abs(np.asarray(bias, np.float64)) / (input_scale * 2.0**30)).astype(np.float32)


def quantize_bias(bias: NDArray[Any], input_scale: float, weight_scale: NDArray[np.float32]) -> NDArray[np.int32]:
    """Return the bias in steps of input_scale * weight_scale."""
    steps = np.rint(np.asarray(bias, np.float64) / (float(input_scale) * weight_scale.astype(np.float64)))
    limits = np.iinfo(np.int32)
    return np.clip(steps, limits.min, limits.max).astype(np.int32)
