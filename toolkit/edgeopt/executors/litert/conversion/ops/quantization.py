"""QuantizeLinear and DequantizeLinear where no integer operator stands in for them."""

from __future__ import annotations

import numpy as np

from edgeopt.executors.litert.conversion.conversion import TfliteConversion, TfliteStep
from edgeopt.executors.litert.conversion.grids import tensor_grid


def _quantize(conversion: TfliteConversion, step: TfliteStep) -> None:
    """Write a tensor's integers, if the node before did not make them."""
    made = step.outputs[0]
    others = [node for node in conversion.graph.consumers(made) if node.op_type != "DequantizeLinear"]
    if conversion.graph.dtype(made) == np.uint8 and (others or conversion.graph.is_output(made)):
        raise conversion.refuse(
            step.node, "to uint8 that other nodes than DequantizeLinear read"
        )  # integers are signed here
    if conversion.has(made):
        return
    grid = tensor_grid(conversion, step.node)
    if grid is None:
        raise conversion.refuse(step.node, "by channels, to other than 8 bits, or by a scale that is not above zero")
    conversion.set_grid(made, grid)
    order = conversion.order(step.inputs[0])
    place = conversion.tensor(step.inputs[0], order)
    conversion.network.add("QUANTIZE", [place], [conversion.new(made, order)])


def _dequantize(conversion: TfliteConversion, step: TfliteStep) -> None:
    """Write nothing: the numbers are made where a node reads them, see `TfliteConversion.tensor`."""
    known = conversion.grid(step.node.inputs[0])
    if known is None or known != tensor_grid(conversion, step.node):
        raise conversion.refuse(step.node, "of another grid than the QuantizeLinear before it")


OPS = {"QuantizeLinear": _quantize, "DequantizeLinear": _dequantize}
OTHER_TYPES = dict.fromkeys(OPS, frozenset[str]())
