"""Matrix products: with weights in float or integers, and of two tensors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from edgeopt.executors.litert.conversion.conversion import TfliteConversion, TfliteStep
from edgeopt.executors.litert.conversion.grids import any_grids
from edgeopt.executors.litert.conversion.ops.convolution import weight_and_bias
from edgeopt.graph.graph import Value


def _product(conversion: TfliteConversion, step: TfliteStep) -> None:
    left, right = (conversion.shape(value) for value in step.node.inputs[:2])
    if conversion.constant(step.node.inputs[1]) is not None and len(right) == 2 and len(left) > 1:
        _with_weights(conversion, step, is_transposed=False)
        return
    if len(left) < 2 or len(right) < 2 or step.is_integer:
        raise conversion.refuse(step.node, "of a vector")
    places = [conversion.tensor(value, tuple(range(len(conversion.shape(value))))) for value in step.inputs[:2]]
    order = tuple(range(len(conversion.shape(step.outputs[0]))))
    conversion.network.add("BATCH_MATMUL", places, [conversion.new(step.outputs[0], order)])


def _with_weights(conversion: TfliteConversion, step: TfliteStep, *, is_transposed: bool) -> None:
    """Write rows times weights, which LiteRT stores with their outputs first."""
    weight = conversion.shape(step.node.inputs[1])
    outputs, inputs = weight if is_transposed else weight[::-1]
    stored = (0, 1) if is_transposed else (1, 0)
    places = weight_and_bias(conversion, step, stored, 0 if is_transposed else 1, (outputs, inputs), 0)
    write_rows(conversion, step, step.inputs[0], places)


def write_rows(
    conversion: TfliteConversion, step: TfliteStep, rows: Value | None, places: list[int], **options: Any
) -> None:
    """Write the FULLY_CONNECTED of a step, which takes rows as one table.

    Args:
        conversion: The conversion.
        step: What it computes.
        rows: What is multiplied, its last axis with the weights'.
        places: Weights with their outputs first, and the bias.
        options: Of the operator, beyond those that all have.
    """
    assert rows is not None
    shape, (outputs, inputs) = conversion.shape(rows), conversion.shown(places[0])
    known = conversion.order(rows)
    last = len(shape) - 1
    order = known if known[-1] == last else tuple(range(len(shape)))
    table = (math.prod(shape[:-1]), inputs)
    flat = conversion.reshaped(conversion.tensor(rows, order), table)
    made = conversion.network.tensor(
        str(step.outputs[0].name),
        (table[0], outputs),
        "int8" if step.is_integer else "float32",
        conversion.grid(step.outputs[0]),
    )
    options = {"fusedActivationFunction": step.activation, "keepNumDims": False, **options}
    conversion.network.add("FULLY_CONNECTED", [flat, *places], [made], **options)
    wanted = [*(shape[axis] for axis in order[:-1]), outputs]
    conversion.set(step.outputs[0], conversion.reshaped(made, wanted), order)


def _gemm(conversion: TfliteConversion, step: TfliteStep) -> None:
    alpha, beta = step.attribute("alpha", 1.0), step.attribute("beta", 1.0)
    weight = conversion.constant(step.node.inputs[1])
    bias = conversion.constant(step.node.inputs[2]) if len(step.node.inputs) > 2 else None
    has_computed = len(step.node.inputs) > 2 and step.node.inputs[2] is not None and bias is None
    columns = conversion.shape(step.node.outputs[0])[-1]
    is_row = bias is None or (bias.size == columns and bias.shape[-1:] == (columns,))
    is_plain = weight is not None and alpha == 1 and (beta == 1 or bias is None) and not step.attribute("transA", 0)
    if is_plain and is_row and not has_computed:
        _with_weights(conversion, step, is_transposed=bool(step.attribute("transB", 0)))
        return
    if step.is_integer:
        raise conversion.refuse(step.node, "on integers with factors")
    places = []
    for value, name in zip(step.inputs[:2], ("transA", "transB"), strict=True):
        places.append(conversion.tensor(value, (1, 0) if step.attribute(name, 0) else (0, 1)))
    shape = conversion.shape(step.node.outputs[0])
    made = conversion.apply("BATCH_MATMUL", places, shape)
    if alpha != 1:
        made = conversion.apply("MUL", [made, conversion.number(alpha)], shape)
    if len(step.inputs) > 2 and step.inputs[2] is not None:
        rank = len(conversion.shape(step.inputs[2]))
        if bias is None:
            added = conversion.tensor(step.inputs[2], tuple(range(rank)))
            added = (
                added
                if beta == 1
                else conversion.apply("MUL", [added, conversion.number(beta)], conversion.shown(added))
            )
        else:
            added = conversion.network.constant(f"{step.node.name}_bias", (bias * beta).astype(np.float32))
        made = conversion.apply("ADD", [made, added], shape)
    conversion.set(step.outputs[0], made, (0, 1))


OPS = {"MatMul": _product, "Gemm": _gemm}
ON_INTEGERS = {"MatMul": any_grids, "Gemm": any_grids}
