"""Matrix products on integers whose input grids are found as the model runs: LiteRT's dynamic range.

    MatMulIntegerToFloat(DynamicQuantizeLinear(x), weights, bias)  ->  FULLY_CONNECTED(x, weights, bias)

with weights in int8 and everything else in float. LiteRT finds a grid for each row of x, where ONNX has one for the
whole tensor: its numbers are at least as near to float's. XNNPACK has fast kernels for it (qd8).
Source: `FULLY_CONNECTED` version 12 of TensorFlow Lite (`op_version.cc`).
"""

from __future__ import annotations

import numpy as np

from edgeopt.executors._conversion.found_grids import TABLES, found_product
from edgeopt.executors.litert.conversion.conversion import TfliteConversion, TfliteStep
from edgeopt.executors.litert.conversion.network import Grid
from edgeopt.executors.litert.conversion.ops.products import write_rows


def _grid(conversion: TfliteConversion, step: TfliteStep) -> None:
    """Write nothing: LiteRT's product finds the grid of what it reads."""
    del conversion, step


def _product(conversion: TfliteConversion, step: TfliteStep) -> None:
    """Write a product on integers, which reads floats. Raises UnsupportedError."""
    product = found_product(conversion.graph, step.node)
    if product is None:
        raise conversion.refuse(step.node, f"but of a DynamicQuantizeLinear and {TABLES}")
    columns = product.weights.shape[1]
    bias = np.zeros(columns, np.float32) if product.bias is None else product.bias
    grid = Grid(tuple(map(float, product.scale)), (0,) * columns)
    name = str(step.node.name)
    places = [
        conversion.network.constant(f"{name}_weight", np.ascontiguousarray(product.weights.T), grid),
        conversion.network.constant(f"{name}_bias", bias),
    ]
    write_rows(conversion, step, product.rows, places, asymmetricQuantizeInputs=True)


OPS = {"DynamicQuantizeLinear": _grid, "com.microsoft.MatMulIntegerToFloat": _product}
OTHER_TYPES = dict.fromkeys(OPS, frozenset[str]())
