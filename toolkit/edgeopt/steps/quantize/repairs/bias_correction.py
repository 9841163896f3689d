"""Take the mean error of a layer out of its bias.

Integers shift the mean of each output channel by E[w x - q(w) q(x)] = sum(w E[x]) - sum(q(w) E[q(x)]), summed
over input channels and taps; adding it to the bias restores the mean exactly, but for the picture's border.

Source: Nagel et al., Data-free quantization through weight equalization and bias correction, ICCV 2019,
section 4.2.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from edgeopt.graph.graph import Node, attribute
from edgeopt.steps.quantize.repairs import IntegerLayer, Search, Setting, WeightRepair


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
        array.reshape(*array.shape[:2], -1).sum(axis=2, dtype=np.float64) for array in (weight, quantized)
    )
    out, per_group = taps.shape
    group = np.repeat(np.arange(groups), out // groups)
    channels = group[:, None] * per_group + np.arange(per_group)
    shift: NDArray[np.float64] = (taps * mean[channels] - quantized_taps * quantized_mean[channels]).sum(axis=1)
    return shift.astype(np.float32)


class BiasCorrection(WeightRepair):
    """Biases of convolutions are corrected in every variant."""

    order: ClassVar[int] = 20
    is_always_made: ClassVar[bool] = True

    def told(self, setting: Setting) -> str:
        """Return nothing: every variant has it."""
        return ""

    def settings(self, search: Search) -> Iterator[Setting]:
        """Yield nothing, as no variant is without it."""
        yield from ()

    def concerns(self, node: Node) -> bool:
        """Return whether it is a convolution."""
        return bool(node.op_type == "Conv")

    def repair(self, layer: IntegerLayer, setting: Setting) -> IntegerLayer:
        """Return the layer with the mean error of its integers taken out of its bias."""
        if layer.bias is None:
            return layer
        means = layer.samples.mean(axis=0), layer.inputs.mean(axis=0)
        shift = mean_shift(layer.weight, layer.quantized.real, *means, attribute(layer.node, "group", 1))
        return replace(layer, bias=layer.bias + shift)


REPAIR = BiasCorrection()
