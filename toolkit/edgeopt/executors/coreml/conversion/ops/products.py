"""Matrix products: with weights, and of two tensors."""

from __future__ import annotations

import numpy as np

from edgeopt.executors.coreml.conversion.conversion import MilConversion
from edgeopt.graph.graph import Node, attribute

_MOST_AXES_OF_LINEAR = 3


_CHANNELS_LAST = (0, 2, 3, 1)


def _product(conversion: MilConversion, node: Node) -> None:
    """Write a product; rows that lie behind a Transpose of pictures are a convolution of 1x1 before it."""
    left, right = (conversion.shape(value) for value in node.inputs[:2])
    if len(left) < 2 or len(right) < 2:
        raise conversion.refuse(node, "of a vector")
    is_weight = len(right) == 2 and conversion.constant(node.inputs[1]) is not None
    turned = conversion.turned(node.inputs[0])
    if is_weight and turned is not None and turned[1] == _CHANNELS_LAST:
        made = conversion.mb.conv(x=turned[0], weight=conversion.weight(node, 1, (1, 0), more=2), pad_type="valid")
        conversion.order = turned[1]
        conversion.set(node.outputs[0], made)
        return
    x = conversion.var(node.inputs[0])
    if is_weight and len(left) <= _MOST_AXES_OF_LINEAR:
        made = conversion.mb.linear(x=x, weight=conversion.weight(node, 1, (1, 0)))
    else:
        made = conversion.mb.matmul(x=x, y=conversion.weight(node, 1))
    conversion.set(node.outputs[0], made)


def _gemm(conversion: MilConversion, node: Node) -> None:
    mb = conversion.mb
    alpha, beta = attribute(node, "alpha", 1.0), attribute(node, "beta", 1.0)
    turns = bool(attribute(node, "transB", 0))
    x = conversion.var(node.inputs[0])
    if attribute(node, "transA", 0):
        x = mb.transpose(x=x, perm=(1, 0))
    bias = conversion.constant(node.inputs[2]) if len(node.inputs) > 2 else None
    columns = conversion.shape(node.outputs[0])[-1]
    is_row = bias is not None and bias.size == columns and bias.shape[-1:] == (columns,)
    if conversion.constant(node.inputs[1]) is not None and alpha == 1:
        added = {"bias": (bias * beta).astype(np.float32).reshape(-1)} if bias is not None and is_row else {}
        made = mb.linear(x=x, weight=conversion.weight(node, 1, None if turns else (1, 0)), **added)
        if is_row:
            conversion.set(node.outputs[0], made)
            return
    else:
        made = mb.matmul(x=x, y=conversion.weight(node, 1), transpose_y=turns)
    if alpha != 1:
        made = mb.mul(x=made, y=np.float32(alpha))
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        if bias is not None:
            added_var = conversion.constant_var((bias * beta).astype(np.float32))
        else:
            added_var = conversion.var(node.inputs[2])
            added_var = added_var if beta == 1 else mb.mul(x=added_var, y=np.float32(beta))
        made = mb.add(x=made, y=added_var)
    conversion.set(node.outputs[0], made)


OPS = {"MatMul": _product, "Gemm": _gemm}
