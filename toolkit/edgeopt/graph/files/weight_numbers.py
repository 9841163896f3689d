"""Weights that are no numbers: what a training that diverged leaves in a file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, TensorProto, helper, numpy_helper

from edgeopt.errors import InvalidFileError
from edgeopt.graph.files.outside_weights import piece_of, told_bytes
from edgeopt.graph.subgraphs import subgraphs

_FLOATS = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16})
_LAYERS = frozenset(
    {"BatchNormalization", "Conv", "ConvTranspose", "DequantizeLinear", "Einsum", "FusedConv", "FusedMatMul", "GRU"}
    | {"Gemm", "GroupNormalization", "InstanceNormalization", "LSTM", "LayerNormalization", "MatMul", "MatMulNBits"}
    | {"MoE", "PRelu", "QLinearConv", "QLinearMatMul", "QMoE", "RNN", "SimplifiedLayerNormalization"}
    | {"SkipLayerNormalization", "SkipSimplifiedLayerNormalization"}
)
"""Ops whose constants are weights, however many numbers they hold."""
_HAND_ON = frozenset({"Add", "Cast", "Div", "Identity", "Mul", "Reshape", "Sub", "Transpose"})
"""Ops whose constants are weights where they hold several numbers: a bias of a MatMul, or a weight in another type.
One NaN alone may be what Where chooses."""


def require_numbers(proto: ModelProto, where: str, *, of_file: bool = False) -> None:
    """Raise if a weight is NaN; fillings, limits and masks may be. Weights in files of their own are not read.

    Args:
        proto: A whole model.
        where: What the message calls it.
        of_file: Whether weights that lie outside lie in the model's own file, and are read there.

    Raises:
        InvalidFileError: If one is, or its data do not fit its shape; the message names it.
    """
    for tensor in _weights(proto.graph, {}):
        is_outside = tensor.data_location == TensorProto.EXTERNAL
        if is_outside and not of_file:
            continue
        try:
            numbers = _mapped(tensor) if is_outside else numpy_helper.to_array(tensor)
        except ValueError as error:
            raise InvalidFileError(
                f"{where}: weight {tensor.name!r} holds other data than its shape {list(tensor.dims)} says",
                remedy="export the model again, or copy it again: it is damaged",
            ) from error
        numbers = numbers if numbers.dtype.kind == "f" else numbers.astype(np.float32)  # bfloat16 is no type of NumPy
        if numbers.size and np.isnan(numbers.min()):  # NaN is the least of all, and takes no memory to find
            count = int(np.isnan(numbers).sum())
            raise InvalidFileError(
                f"{where}: weight {tensor.name!r} is NaN in {count} of {numbers.size} numbers",
                remedy="export the model again, from a checkpoint of before the training diverged",
            )


def _mapped(tensor: TensorProto) -> NDArray[Any]:
    """Return the numbers of a constant where they lie in a file.

    Raises:
        ValueError: If they are more or fewer than its shape says.
    """
    piece = piece_of(tensor)
    if piece.length != told_bytes(tensor):
        raise ValueError("other data than its shape says")
    numbers = np.memmap(piece.file, np.uint8, "r", piece.offset, (piece.length,))
    return numbers.view(helper.tensor_dtype_to_np_dtype(tensor.data_type)).reshape(tensor.dims)


def _weights(graph: GraphProto, around: dict[str, TensorProto]) -> Iterator[TensorProto]:
    """Yield each float constant that is a weight, in the graph and the graphs inside its nodes.

    Args:
        graph: It may read constants of the graphs around it.
        around: Those, by name.
    """
    known = around | {constant.name: constant for constant in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.output:
            known.update((node.output[0], attribute.t) for attribute in node.attribute if attribute.name == "value")
    seen = set[str]()
    for node in graph.node:
        for name in node.input:
            tensor = known.get(name)
            if tensor is None or name in seen:
                continue
            is_weight = node.op_type in _LAYERS or (node.op_type in _HAND_ON and np.prod(tensor.dims) > 1)
            if is_weight and tensor.data_type in _FLOATS:
                seen.add(name)
                yield tensor
    for inner in subgraphs(graph.node):
        yield from _weights(inner, known)
