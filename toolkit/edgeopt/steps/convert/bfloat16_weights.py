"""Store matrices in 16 bits, bfloat16, behind a `Cast`: half the size, and the numbers that an engine in bf16 reads.

An engine without it computes in float32 on the same rounded weights, which it writes out when it opens the file.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper

from edgeopt.graph.files.outside_weights import bytes_of_tensor
from edgeopt.graph.model import Model
from edgeopt.graph.outcome import Outcome

_MATRIX = 2
"""Dimensions of one."""


def store_in_bfloat16(model: Model) -> Outcome:
    """Return the model with the constant float32 matrices of its products in bfloat16, rounded to nearest even."""
    matrices = {tensor.name: tensor for tensor in model.proto.graph.initializer if len(tensor.dims) == _MATRIX}
    read = {
        node.input[1]
        for node in model.proto.graph.node
        if node.op_type in ("MatMul", "Gemm")
        and node.input[1] in matrices
        and matrices[node.input[1]].data_type == TensorProto.FLOAT
    }
    if not read:
        return Outcome(model, {})
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    casts = []
    for tensor in proto.graph.initializer:
        if tensor.name not in read:
            continue
        stored = f"{tensor.name}_bfloat16"
        casts.append(helper.make_node("Cast", [stored], [tensor.name], f"{tensor.name}/widen", to=TensorProto.FLOAT))
        bits = _rounded(np.frombuffer(bytes_of_tensor(tensor), "<f4").reshape(tuple(tensor.dims)))
        made = TensorProto(name=stored, data_type=TensorProto.BFLOAT16, dims=bits.shape, raw_data=bits.tobytes())
        tensor.CopyFrom(made)
    nodes = [*casts, *proto.graph.node]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    return Outcome(Model(proto, model.name), {"matrices in bfloat16": len(casts)})


def _rounded(weights: np.ndarray) -> np.ndarray:
    """Return the upper 16 bits of float32 numbers, rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(weights, "<f4").view("<u4")
    upward = (bits >> np.uint32(16)) & np.uint32(1)
    return ((bits + np.uint32(0x7FFF) + upward) >> np.uint32(16)).astype("<u2")
