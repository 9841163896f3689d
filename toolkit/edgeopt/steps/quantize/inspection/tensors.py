"""The integer tensors that a model says it has, and their grids, whoever wrote it.

It reads Q/DQ pairs, ONNX's integer ops and ONNX Runtime's own, grids that are stored as initializers or as
Constant nodes, in blocks, or found as the model runs. Of subgraphs it reads nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from edgeopt.graph.graph import Array, Graph, Node, Value, attribute
from edgeopt.graph.model import Model

_UNARY = ((0, 1, 2), ("out", 3, 4))
_BINARY = ((0, 1, 2), (3, 4, 5), ("out", 6, 7))
_SLOTS: Mapping[str, tuple[tuple[int | str, int, int], ...]] = {
    "QuantizeLinear": (("out", 1, 2),),
    "DequantizeLinear": ((0, 1, 2),),
    "QLinearConv": _BINARY,
    "QLinearMatMul": _BINARY,
    "QLinearAdd": _BINARY,
    "QLinearMul": _BINARY,
    "QGemm": ((0, 1, 2), (3, 4, 5), ("out", 7, 8)),
    "QLinearWhere": ((1, 2, 3), (4, 5, 6), ("out", 7, 8)),
    "QLinearSigmoid": _UNARY,
    "QLinearLeakyRelu": _UNARY,
    "QLinearSoftmax": _UNARY,
    "QLinearReduceMean": _UNARY,
    "QLinearAveragePool": _UNARY,
    "QLinearGlobalAveragePool": _UNARY,
    "QLinearConcat": (("out", 0, 1),),
    "QAttention": ((0, 3, 6), (1, 4, 7)),
    "MatMulIntegerToFloat": ((0, 2, 4), (1, 3, 5)),
    "DynamicQuantizeMatMul": ((1, 2, 3),),
    "DynamicQuantizeLSTM": ((1, 8, 9), (2, 10, 11)),
    "MatMulInteger": ((0, -1, 2), (1, -1, 3)),
    "ConvInteger": ((0, -1, 2), (1, -1, 3)),
    "MatMulNBits": ((1, 2, 3),),
    "QMoE": ((2, 3, 11), (5, 6, 12)),
    "GatherBlockQuantized": ((0, 2, 3),),
}
"""Op -> (tensor, scale, zero point) by input number, `out` for the first output, -1: the scale is multiplied later."""
_PACKED = ("MatMulNBits", "QMoE", "GatherBlockQuantized")
_STILL_THE_SAME = ("Identity", "Cast")
_MOVES = (*_STILL_THE_SAME, "Transpose", "Reshape", "QuantizeLinear", "DequantizeLinear")


@dataclass(frozen=True, slots=True)
class QuantizedTensor:
    """One tensor that is stored or computed as integers."""

    name: str
    dtype: str
    scales: tuple[float, ...]
    """One, or one a channel; of blocks the smallest and the largest; none of a grid found as the model runs."""
    zero_points: tuple[int, ...]
    """As the scales."""
    is_weight: bool
    granularity: str
    """`per tensor`, how many channels or blocks have a scale of their own, or `at run time`."""
    saturated_ratio: float | None = None
    """Share of values outside the grid; None: not looked at."""
    is_bound: bool = False
    """Whether there are no float values to tell, so that all integers at an end of the grid count; but for zeros that
    are an end because of a Relu."""
    sqnr_db: float | None = None
    channel_sqnr_db: float | None = None
    """The mean over channels of noise over variance: it sees channels that are rounded to nothing."""
    compared_with: str | None = None
    """The float tensor from which the error was measured; None: nothing stands for it."""

    @property
    def is_measurable(self) -> bool:
        """Whether it is an activation on one grid of whole bytes."""
        per_tensor = self.granularity in (PER_TENSOR, RUN_TIME)
        return not self.is_weight and per_tensor and self.dtype in ("uint8", "int8", "uint16", "int16")


PER_TENSOR, RUN_TIME = "per tensor", "at run time"


def read_tensors(model: Model) -> tuple[QuantizedTensor, ...]:
    """Return the integer tensors of a model, in the order of its nodes."""
    graph = Graph.from_model(model)
    quantized_tensors: dict[str, QuantizedTensor] = {}
    for node in graph.nodes():
        for tensor, scale, zero_point in _grids(graph, node):
            if tensor is not None and tensor.name and tensor.name not in quantized_tensors:
                quantized_tensors[tensor.name] = _tensor(graph, node, tensor, scale, zero_point)
    return tuple(quantized_tensors.values())


def _grids(graph: Graph, node: Node) -> Iterator[tuple[Value | None, Value | None, Value | None]]:
    def given(i: int) -> Value | None:
        return node.inputs[i] if 0 <= i < len(node.inputs) else None

    if node.op_type == "DynamicQuantizeLinear":
        yield node.outputs[0], node.outputs[1], node.outputs[2]
    for tensor, scale, zero_point in _SLOTS.get(node.op_type, ()):
        value = node.outputs[0] if isinstance(tensor, str) else given(tensor)
        if scale >= 0 and given(scale) is None:
            continue  # the output of QGemm may be real
        yield value, given(scale) if scale >= 0 else _scale_behind(graph, node, value), given(zero_point)
    if node.op_type == "QLinearConcat":
        for i in range(2, len(node.inputs) - 2, 3):
            yield given(i), given(i + 1), given(i + 2)


def _scale_behind(graph: Graph, node: Node, value: Value | None) -> Value | None:
    """Return the constant that the product of integers is multiplied with, at last: the scale of its weights."""
    made: Value | None = node.outputs[0]
    while made is not None and is_stored(graph, value):
        reader = next((consumer for consumer in graph.consumers(made) if consumer.op_type in ("Cast", "Mul")), None)
        if reader is None:
            return None
        if reader.op_type == "Mul":
            other = next((input_ for input_ in reader.inputs if input_ is not made), None)
            product = graph.producer(other, "Mul")
            sides = [other, *(product.inputs if product is not None else ())]
            if (stored := next((side for side in sides if _number(graph, side) is not None), None)) is not None:
                return stored
        made = reader.outputs[0]
    return None


def is_stored(graph: Graph, value: Value | None) -> bool:
    """Whether a tensor is a constant, or made of constants by rounding and moving alone."""
    if value is None or graph.constant(value) is not None:
        return value is not None
    maker = graph.producer(value)
    return maker is not None and maker.op_type in _MOVES and is_stored(graph, maker.inputs[0])


def _number(graph: Graph, value: Value | None) -> Array | None:
    """Return a constant, also behind an Identity or a Cast."""
    maker = graph.producer(value)
    if maker is not None and maker.op_type in _STILL_THE_SAME:
        return _number(graph, maker.inputs[0])
    return graph.constant(value)


def _tensor(graph: Graph, node: Node, tensor: Value, scale: Value | None, zero_point: Value | None) -> QuantizedTensor:
    scales, zeros = _number(graph, scale), _number(graph, zero_point)
    name, weight = str(tensor.name), is_stored(graph, tensor)
    dtype = _dtype(graph, tensor, zero_point)
    if scales is None:
        of_weight = "scale not found" if weight else RUN_TIME
        return QuantizedTensor(name, dtype, (), (), weight, of_weight)
    if node.op_type in _PACKED:
        return _packed(node, name, dtype, scales, zeros)
    zero_points = (0,) if zeros is None else tuple(int(value) for value in zeros.reshape(-1))
    real = tuple(float(value) for value in scales.reshape(-1))
    block = attribute(node, "block_size", 0)
    if block and len(real) > 1:
        ends = _ends(real), tuple(int(end) for end in _ends(zero_points))
        return QuantizedTensor(name, dtype, *ends, weight, f"{len(real)} blocks of {block}")
    granularity = PER_TENSOR if len(real) == 1 else f"{len(real)} channels"
    return QuantizedTensor(name, dtype, real, zero_points, weight, granularity)


def _dtype(graph: Graph, tensor: Value, zero_point: Value | None) -> str:
    """Return the type of the integers; where the model does not say it, ONNX's default."""
    known = (graph.constant(tensor), graph.constant(zero_point))
    types = (*(array.dtype for array in known if array is not None), graph.dtype(tensor))
    return str(next((type_ for type_ in types if type_ is not None), "uint8"))


def _packed(node: Node, name: str, dtype: str, scales: Array, zeros: Array | None) -> QuantizedTensor:
    """Return a matrix of blocks, several numbers a byte."""
    bits = attribute(node, "expert_weight_bits" if node.op_type == "QMoE" else "bits", 4)
    packed = dtype == "uint8"
    zero_points: tuple[float, ...] = (float(1 << (bits - 1) if packed else 0),)
    if zeros is not None:
        zero_points = _ends(tuple(_unpacked(zeros, bits if packed else 8, _columns(node, scales)).reshape(-1)))
    granularity = f"{scales.size} blocks of {attribute(node, 'block_size', 0)}"
    real, whole = _ends(tuple(scales.reshape(-1))), tuple(int(zero_point) for zero_point in zero_points)
    return QuantizedTensor(name, f"uint{bits}" if packed else dtype, real, whole, True, granularity)


def _columns(node: Node, scales: Array) -> int:
    """Return how many blocks one row of the matrix has."""
    inputs, block = attribute(node, "K", 0), attribute(node, "block_size", 1)
    return -(-inputs // block) if inputs else int(scales.shape[-1])


def _unpacked(values: Array, bits: int, columns: int) -> Array:
    """Return whole numbers of `bits` that were packed into bytes row by row, the lowest first."""
    if bits >= 8 or values.dtype != np.uint8:
        return values
    parts = [values >> shift & ((1 << bits) - 1) for shift in range(0, 8, bits)]
    rows = -(-columns * bits // 8)
    return np.stack(parts, axis=-1).reshape(-1, rows * len(parts))[:, :columns]


def _ends(values: tuple[float, ...]) -> tuple[float, ...]:
    low, high = float(min(values)), float(max(values))
    return (low,) if low == high else (low, high)
