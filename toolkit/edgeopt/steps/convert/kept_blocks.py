"""Matrices that a model came with in blocks of integers: whether inputs are rounded, and the floats they stand for.

    MatMulNBits(x, integers, scale, zero)                                ->  MatMul(x, W)
    MatMulNBits(x, ...) + MatMul(ReduceSum(Reshape(x)), low)             ->  MatMul(x, W), low added to each block of W
    GatherBlockQuantized(Reshape(integers), ids, scale, zero)            ->  Gather(W, ids)
    QMoE(x, scores, integers, scale, zero)                               ->  MoE(x, scores, W)
    Cast(Gather(half, ids)), MatMul(x, Transpose(Cast(half)))            ->  Gather(W, ids), MatMul(x, W)

The floats are what other forms are made of: rounding them again loses more, which judging tells.
"""

from __future__ import annotations

import math

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from edgeopt.graph.facts.mixtures import activation_of
from edgeopt.graph.graph import Graph, Node, Value, attribute
from edgeopt.graph.model import Model
from edgeopt.graph.outcome import Outcome
from edgeopt.steps.convert.blocks import INT8_ACTIVATIONS, Blocks
from edgeopt.steps.convert.shortlist import drop_shortlist

_PRODUCT, _TABLE, _LEVEL = "MatMulNBits", "GatherBlockQuantized", "accuracy_level"
_EXPERTS, _ZEROS = "QMoE", {2: 11, 5: 12}
"""Places of the integers of `QMoE`, a scale behind each, and where the zeros of each lie."""
_WRITTEN_AGAIN = (0, 1, *(place for first in _ZEROS for place in (first, first + 1)), *_ZEROS.values())
"""Inputs of `QMoE` that a mixture in floats takes over; biases and a third matrix are none of them."""
_SHARES = 14
"""Place of the shares of experts in `QMoE`; where they are those of the scores, `MoE` makes the same of the scores."""
_MICROSOFT, _BITS = "com.microsoft", (4, 8)
_USUAL_BITS, _USUAL_BLOCK = 4, 128
"""`bits` of a product that does not say them, and `block_size` of a table."""
MOST_IN_FLOATS = 1_900_000_000
"""Bytes of matrices in floats: a graph of 2 GB is not held in one piece."""
_HALVES = ("float16", "bfloat16")
_SCALE, _ORDER, _BIAS = 2, 4, 5
"""Places of inputs of `MatMulNBits`."""


def round_inputs(model: Model, *, of_bits: tuple[int, ...] = (4, 8)) -> Outcome:
    """Return the model with what its products in blocks read rounded to 8 bits as it comes; the matrices stay.

    Args:
        model: With matrices in blocks.
        of_bits: Bits of the matrices that are meant.
    """
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    count = 0
    for node in proto.graph.node:
        values = {stored.name: stored for stored in node.attribute}
        if node.op_type not in (_PRODUCT, _EXPERTS) or _bits(node) not in of_bits:
            continue
        if _LEVEL not in values:
            node.attribute.append(onnx.helper.make_attribute(_LEVEL, INT8_ACTIVATIONS))
            count += 1
        elif values[_LEVEL].i != INT8_ACTIVATIONS:
            values[_LEVEL].i = INT8_ACTIVATIONS
            count += 1
    return Outcome(Model(proto, model.name), {"products of rounded inputs": count}) if count else Outcome(model, {})


def bits_of_blocks(model: Model) -> int:
    """Return the bits of most weights that products read in blocks; 0: there is none."""
    sizes, scales = dict[int, int](), _sizes(model)
    for node in model.proto.graph.node:
        values = {stored.name: stored.i for stored in node.attribute}
        if node.op_type in (_PRODUCT, _EXPERTS):
            bits = _bits(node)
            sizes[bits] = sizes.get(bits, 0) + _weights(node, values, scales)
    return max(sizes, key=lambda bits: sizes[bits], default=0)


def _bits_named(op: str) -> str:
    return "expert_weight_bits" if op == _EXPERTS else "bits"


def _bits(node: onnx.NodeProto) -> int:
    name = _bits_named(node.op_type)
    return next((stored.i for stored in node.attribute if stored.name == name), _USUAL_BITS)


def _sizes(model: Model) -> dict[str, int]:
    return {stored.name: math.prod(stored.dims) for stored in model.proto.graph.initializer}


def _weights(node: onnx.NodeProto, values: dict[str, int], sizes: dict[str, int]) -> int:
    """Return how many weights a node reads in blocks."""
    if node.op_type == _PRODUCT:
        return values["K"] * values["N"]
    if block := values.get("block_size", 0):
        return block * sum(sizes.get(node.input[place + 1], 0) for place in _ZEROS)
    return 8 // _bits(node) * sum(sizes.get(node.input[place], 0) for place in _ZEROS)  # a scale a row


def bytes_in_floats(model: Model) -> int:
    """Return about the bytes of the graph that `in_floats` makes; 0: it leaves the model as it is."""
    if not bits_of_blocks(model):
        return 0
    sizes = _sizes(model)
    packed = {stored.name for stored in model.proto.graph.initializer if stored.data_type == TensorProto.UINT8}
    halves = {
        stored.name for stored in model.proto.graph.initializer
        if stored.data_type in (TensorProto.FLOAT16, TensorProto.BFLOAT16)
    }  # fmt: skip
    count = int(sum(4 * sizes[name] for name in sizes if name not in halves and name not in packed))
    for node in model.proto.graph.node:
        values = {stored.name: stored.i for stored in node.attribute}
        if node.op_type in (_PRODUCT, _EXPERTS):
            count += 4 * _weights(node, values, sizes)
        elif node.op_type == _TABLE and len(node.input) > _SCALE:
            count += 4 * sizes.get(node.input[_SCALE], 0) * values.get("block_size", 0)
        else:
            count += sum(4 * sizes[name] for name in node.input if name in halves)
    return count


def in_floats(model: Model) -> Outcome:
    """Return the model with its matrices and tables in blocks as the floats that they stand for.

    Args:
        model: Blocks whose zeros are floats, or whose inputs are in another order by `g_idx`, stay.
    """
    graph = Graph.from_model(model)
    if drop_shortlist(graph):  # other forms have a head of their own
        graph.remove_unused()
    made, count = dict[tuple[str, bool], Value](), 0
    for node in graph.nodes(_PRODUCT, domain=_MICROSOFT):
        blocks = _blocks(graph, node, node.inputs[1])
        if blocks is None or (len(node.inputs) > _ORDER and node.inputs[_ORDER] is not None):
            continue
        _to_product(graph, node, blocks, made)
        count += 1
    for node in graph.nodes(_TABLE, domain=_MICROSOFT):
        flat = graph.producer(node.inputs[0], op="Reshape")
        stored = flat.inputs[0] if flat else node.inputs[0]
        blocks = _blocks(graph, node, stored)
        if blocks is None or stored is None:
            continue
        rows = blocks.real(blocks.integers.shape[1] * blocks.block)
        table = graph.add_initializer(f"{stored.name}_floats", rows)
        new = graph.insert("Gather", [table, node.inputs[1]], {"axis": 0}, name=f"{node.name}_Gather")
        graph.replace(node.outputs[0], new.outputs[0])
        count += 1
    for node in graph.nodes(_EXPERTS, domain=_MICROSOFT):
        count += _to_experts(graph, node)
    if not count:
        return Outcome(model, {})
    _widen(graph)
    graph.remove_unused()
    return Outcome(graph.to_model(), {"matrices in floats": count})


def experts_in_floats(model: Model, bits: int) -> Model:
    """Return the model with experts in blocks of so many bits as the floats that they stand for."""
    graph = Graph.from_model(model)
    nodes = [
        node for node in graph.nodes(_EXPERTS, domain=_MICROSOFT) if attribute(node, "expert_weight_bits", 4) == bits
    ]
    if not sum(_to_experts(graph, node) for node in nodes):
        return model
    graph.remove_unused()
    return graph.to_model()


def _widen(graph: Graph) -> None:
    """Write constants in 16 bits as floats, where nodes cast and turn them as the engine does at its start."""
    for cast in graph.nodes("Cast"):
        table = graph.producer(cast.inputs[0], op="Gather")
        rows = graph.constant(table.inputs[0] if table else cast.inputs[0])
        if rows is None or attribute(cast, "to", 0) != TensorProto.FLOAT or str(rows.dtype) not in _HALVES:
            continue
        wide = graph.add_initializer(f"{cast.name}_floats", rows.astype(np.float32))
        if table is None:
            graph.replace(cast.outputs[0], wide)
        else:
            new = graph.insert("Gather", [wide, table.inputs[1]], {"axis": 0}, name=f"{cast.name}_Gather")
            graph.replace(cast.outputs[0], new.outputs[0])
    for turn in graph.nodes("Transpose"):
        rows = graph.constant(turn.inputs[0])
        if rows is not None and rows.ndim == 2 and tuple(attribute(turn, "perm", (1, 0))) == (1, 0):
            columns = graph.add_initializer(f"{turn.name}_columns", np.ascontiguousarray(rows.T))
            graph.replace(turn.outputs[0], columns)


def _to_experts(graph: Graph, node: Node) -> int:
    """Write a mixture in floats in place of one in blocks; return how many matrices it has, 0: it stays."""
    shares = graph.producer(_input(node, _SHARES), op="Softmax")
    again = _WRITTEN_AGAIN if shares is None or shares.inputs[0] is not node.inputs[1] else (*_WRITTEN_AGAIN, _SHARES)
    if any(value is not None and place not in again for place, value in enumerate(node.inputs)):
        return 0
    made, experts = list[Value](), 0
    for place, zeros in _ZEROS.items():
        data = graph.constant(node.inputs[place])
        blocks = _blocks_of(graph, node, node.inputs[place], node.inputs[place + 1], _input(node, zeros))
        if data is None or blocks is None:
            return 0
        rows = blocks.real(blocks.integers.shape[1] * blocks.block)
        experts = len(data)
        made.append(graph.add_initializer(f"{node.name}_{place}_floats", rows.reshape(*data.shape[:2], -1)))
    attributes: dict[str, int | float | str] = {
        **activation_of(node),
        "normalize_routing_weights": attribute(node, "normalize_routing_weights", 0),
    }
    inputs = [*node.inputs[:2], made[0], None, made[1]]
    new = graph.insert("MoE", inputs, attributes, domain=_MICROSOFT, name=f"{node.name}_MoE")
    graph.replace(node.outputs[0], new.outputs[0])
    return 2 * experts


def _input(node: Node, place: int) -> Value | None:
    return node.inputs[place] if len(node.inputs) > place else None


def _blocks(graph: Graph, node: Node, stored: Value | None) -> Blocks | None:
    """Return the blocks that a node reads; None where they are no constants, or their zeros are floats."""
    return _blocks_of(graph, node, stored, node.inputs[2], _input(node, 3))


def _blocks_of(
    graph: Graph, node: Node, stored: Value | None, scales: Value | None, zero_value: Value | None
) -> Blocks | None:
    bits = attribute(node, _bits_named(node.op_type), _USUAL_BITS)
    block = attribute(node, "block_size", 0 if node.op_type == _EXPERTS else _USUAL_BLOCK)
    if not block:  # a scale a row is no block
        return None
    data, scale, zero = graph.constant(stored), graph.constant(scales), graph.constant(zero_value)
    if data is None or scale is None or data.dtype != np.uint8 or (zero_value is not None and zero is None):
        return None
    if bits not in _BITS or scale.dtype != np.float32 or (zero is not None and zero.dtype != np.uint8):
        return None
    rows = math.prod(data.shape[:2]) if node.op_type == _EXPERTS else len(data)
    numbers = _apart(data.reshape(rows, -1), bits)
    if numbers.shape[1] % block:
        return None
    integers = numbers.reshape(rows, -1, block)
    scale = scale.reshape(rows, -1)
    zeros = None if zero is None else _apart(zero.reshape(rows, -1), bits)[:, : scale.shape[1]]
    if integers.shape[1] != scale.shape[1] or (zeros is not None and zeros.shape != scale.shape):
        return None
    return Blocks(integers, scale, zeros, bits)


def _apart(packed: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Return the integers of (rows, bytes), the first of a byte in its low half."""
    if bits == 8:
        return packed
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(len(packed), -1)


def _to_product(graph: Graph, node: Node, blocks: Blocks, made: dict[tuple[str, bool], Value]) -> None:
    """Write a product in floats in place of one in blocks, with what another product adds to each block."""
    inputs, last = attribute(node, "K", 0), node.outputs[0]
    low, total = _low_beside(graph, node)
    if total is not None:
        last = total.outputs[0]
    key = str(node.inputs[1].name) if node.inputs[1] else "", low is not None
    if key not in made:
        rows = blocks.real(inputs)
        if low is not None:
            rows = rows + np.repeat(low.T, blocks.block, axis=1)[:, :inputs]
        made[key] = graph.add_initializer(f"{key[0]}_floats", np.ascontiguousarray(rows.T))
    new = graph.insert("MatMul", [node.inputs[0], made[key]], name=f"{node.name}_MatMul")
    bias = node.inputs[_BIAS] if len(node.inputs) > _BIAS else None
    if bias is not None:
        new = graph.insert("Add", [new.outputs[0], bias], name=f"{node.name}_Add")
    graph.replace(last, new.outputs[0], keep_name=graph.is_output(last))


def _low_beside(graph: Graph, node: Node) -> tuple[NDArray[np.float32] | None, Node | None]:
    """Return what is added to each weight of a block, (blocks, outputs), and the node that adds; None: nothing is."""
    total = graph.sole_consumer(node.outputs[0], op="Add")
    other = next((value for value in total.inputs if value is not node.outputs[0]), None) if total else None
    rest = graph.sole_producer(other, op="MatMul")
    sums = graph.producer(rest.inputs[0], op="ReduceSum") if rest else None
    apart = graph.producer(sums.inputs[0], op="Reshape") if sums else None
    if rest is None or apart is None or apart.inputs[0] is not node.inputs[0]:
        return None, None
    low, shape = graph.constant(rest.inputs[1]), graph.constant(apart.inputs[1])
    is_by_block = shape is not None and shape.tolist()[-1] == attribute(node, "block_size", 0)
    return (low, total) if low is not None and is_by_block else (None, None)
