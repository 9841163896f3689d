"""Matrix products: with constant weights, in float or on 8-bit integers, and of two computed tensors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.executors.ncnn.conversion.conversion import Conversion
from edgeopt.executors.ncnn.conversion.network import Weight
from edgeopt.executors.ncnn.conversion.ops.quantization import integer_weights, scales_of
from edgeopt.graph.graph import Node, attribute

_MATRIX = 2


def _inner_product(conversion: Conversion, node: Node, bias: NDArray[Any] | None, *, transposed: bool) -> None:
    """Write a product with constant weights, (..., K) by (K, N), or by (N, K) where they are transposed."""
    stored = integer_weights(conversion, node)
    weight = stored.numbers if stored else conversion.numbers(node, 1)
    assert weight is not None
    if weight.ndim != _MATRIX:
        raise conversion.refuse(node, f"by weights of {weight.ndim} axes")
    by_outputs = weight if transposed else weight.T
    outputs, inputs = by_outputs.shape
    rows = math.prod(conversion.shape(node.inputs[0])[:-1])
    dims = (inputs,) if rows == 1 else (rows, inputs)
    blob = conversion.reshaped(node, conversion.blob(node.inputs[0]), conversion.dims(node.inputs[0]), dims)
    parameters: dict[int, Any] = {0: outputs, 1: int(bias is not None), 2: weight.size}
    weights = [Weight(np.ascontiguousarray(by_outputs, np.float32))]
    if bias is not None:
        weights.append(Weight(bias.astype(np.float32), has_tag=False))
    grid = conversion.grid(node.inputs[0])
    scales = scales_of(stored, 1, 0 if transposed else 1) if stored and grid else None
    if stored is not None and grid is not None and scales is not None:
        weights[0] = Weight(np.ascontiguousarray(stored.integers if transposed else stored.integers.T))
        weights += [Weight(scales, has_tag=False), Weight(np.array([1 / grid], np.float32), has_tag=False)]
        parameters[8] = 1
    made = conversion.layer(node, "InnerProduct", [blob], parameters, weights)
    made_dims = (outputs,) if rows == 1 else (rows, outputs)
    conversion.set(node.outputs[0], conversion.reshaped(node, made, made_dims, conversion.dims(node.outputs[0])))


def _has_constant_weights(conversion: Conversion, node: Node) -> bool:
    return conversion.graph.constant(node.inputs[1]) is not None or integer_weights(conversion, node) is not None


def _gemm(conversion: Conversion, node: Node) -> None:
    alpha, beta = attribute(node, "alpha", 1.0), attribute(node, "beta", 1.0)
    if attribute(node, "transA", 0) or alpha != 1 or not _has_constant_weights(conversion, node):
        raise conversion.refuse(node, "with transA, alpha or computed weights")
    bias = conversion.numbers(node, 2)
    outputs = conversion.shape(node.outputs[0])[-1]
    if bias is not None:
        if bias.size not in (1, outputs) or (bias.size > 1 and bias.shape[-1] != outputs):
            raise conversion.refuse(node, "with a bias for each row")
        bias = np.broadcast_to(bias.reshape(-1) * np.float32(beta), (outputs,))
    _inner_product(conversion, node, bias, transposed=bool(attribute(node, "transB", 0)))


def _matmul(conversion: Conversion, node: Node) -> None:
    left, right = (conversion.shape(value) for value in node.inputs)
    if _has_constant_weights(conversion, node) and len(right) == _MATRIX and len(left) > 1:
        _inner_product(conversion, node, None, transposed=False)
        return
    made = conversion.shape(node.outputs[0])
    rank = len(made)
    if rank < _MATRIX or min(len(left), len(right)) < _MATRIX:
        raise conversion.refuse(node, "of a vector")
    shapes = [(*(1,) * (rank - len(shape)), *shape) for shape in (left, right)]
    batch = [shape[:-2] for shape in shapes]
    if batch[0] != batch[1]:
        raise conversion.refuse(node, "of batches of different sizes")
    groups = math.prod(batch[0])
    blobs = []
    for value, shape in zip(node.inputs, shapes, strict=True):
        dims = shape[-2:] if groups == 1 else (groups, *shape[-2:])
        blobs.append(conversion.reshaped(node, conversion.blob(value), conversion.dims(value), dims))
    blob = conversion.layer(node, "MatMul", blobs)
    dims = made[-2:] if groups == 1 else (groups, *made[-2:])
    conversion.set(node.outputs[0], conversion.reshaped(node, blob, dims, conversion.dims(node.outputs[0])))


OPS = {"Gemm": _gemm, "MatMul": _matmul}
