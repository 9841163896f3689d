"""Models from which no channels can be taken, each with what to do about it."""

from __future__ import annotations

from onnx import TensorProto

from edgeopt.errors import UnsupportedError
from edgeopt.graph.groups.tracing import LEAST_OPSET
from edgeopt.graph.model import Model
from edgeopt.graph.subgraphs import all_nodes, stored_tensors

_QUANTIZED = frozenset(
    {"ConvInteger", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "MatMulNBits", "QuantizeLinear"}
)
_SHOWN = 3


def require_prunable(model: Model) -> None:
    """Raise unless channels can be taken out of a model.

    Raises:
        UnsupportedError: If it is quantized already, has weights in float16 or more than 2 GB, its opset is too old,
            or its input's channels are not fixed.
    """
    quantized = [node for node in all_nodes(model.proto.graph) if _is_quantized(node.op_type)]
    if quantized:
        raise UnsupportedError(
            f"{model.name} is quantized already: {quantized[0].op_type} {quantized[0].output[0]!r}",
            remedy="prune the float model first, and quantize what comes out",
        )
    if model.opset < LEAST_OPSET:
        raise UnsupportedError(
            f"{model.name} is of opset {model.opset}: channels are followed from opset {LEAST_OPSET}",
            remedy="let the step simplify raise it first, or export the model again",
        )
    halves = [
        stored_tensor.name
        for stored_tensor in stored_tensors(model.proto.graph)
        if stored_tensor.data_type == TensorProto.FLOAT16
    ]
    if halves:
        raise UnsupportedError(
            f"{model.name} has weights in float16 ({', '.join(halves[:_SHOWN])}), "
            "and layers are timed and repaired in float32",
            remedy="prune the float32 model; a target without float16 makes one itself",
        )
    outside = [
        stored_tensor.name
        for stored_tensor in stored_tensors(model.proto.graph)
        if stored_tensor.data_location == TensorProto.EXTERNAL
    ]
    if outside:
        raise UnsupportedError(
            f"{model.name} has more than 2 GB: {', '.join(outside[:_SHOWN])} stay in files, "
            "and pruning holds all weights",
            remedy="prune a smaller form of it",
        )
    for spec in model.inputs:
        pictures = len(spec.shape) in (4, 5) and "float" in spec.dtype
        if pictures and not isinstance(spec.shape[1], int):
            sizes = "x".join(str(size) if isinstance(size, int) else "1" for size in (1, 3, *spec.shape[2:]))
            raise UnsupportedError(
                f"{model.name}: the number of channels of input {spec.name!r} is not fixed",
                remedy=f"fix the shape of the input, for example --shape {spec.name}={sizes}",
            )


def _is_quantized(op: str) -> bool:
    return op in _QUANTIZED or op.startswith("QLinear")
