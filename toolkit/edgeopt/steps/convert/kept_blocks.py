"""Matrices that a model came with in blocks of integers: whether inputs are rounded, and the floats they stand for.

    MatMulNBits(x, integers, scale, zero)                                ->  MatMul(x, W)
    MatMulNBits(x, ...) + MatMul(ReduceSum(Reshape(x)), low)             ->  MatMul(x, W), low added to each block of W
    GatherBlockQuantized(Reshape(integers), ids, scale, zero)            ->  Gather(W, ids)
    Cast(Gather(half, ids)), MatMul(x, Transpose(Cast(half)))            ->  Gather(W, ids), MatMul(x, W)

The floats are what other forms are made of: rounding them again loses more, which judging tells.
"""

from __future__ import annotations

import math

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from edgeopt.graph.graph import Graph, Node, Value, attribute
from edgeopt.graph.model import Model
from edgeopt.graph.outcome import Outcome
from edgeopt.steps.convert.blocks import INT8_ACTIVATIONS, Blocks

_PRODUCT, _TABLE, _LEVEL = "MatMulNBits", "GatherBlockQuantized", "accuracy_level"
_MICROSOFT, _BITS = "com.microsoft", (4, 8)
_USUAL_BITS = 4
"""`bits` of a product that does not say them."""
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
        if node.op_type != _PRODUCT or (values["bits"].i if "bits" in values else _USUAL_BITS) not in of_bits:
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
    sizes = dict[int, int]()
    for node in model.proto.graph.node:
        if node.op_type == _PRODUCT:
            values = {stored.name: stored.i for stored in node.attribute}
            bits = values.get("bits", _USUAL_BITS)
            sizes[bits] = sizes.get(bits, 0) + values["K"] * values["N"]
    return max(sizes, key=lambda bits: sizes[bits], default=0)


def bytes_in_floats(model: Model) -> int:
    """Return about the bytes of the graph that `in_floats` makes; 0: it leaves the model as it is."""
    if not bits_of_blocks(model):
        return 0
    sizes = {stored.name: math.prod(stored.dims) for stored in model.proto.graph.initializer}
    packed = {stored.name for stored in model.proto.graph.initializer if stored.data_type == TensorProto.UINT8}
    halves = {
        stored.name for stored in model.proto.graph.initializer
        if stored.data_type in (TensorProto.FLOAT16, TensorProto.BFLOAT16)
    }  # fmt: skip
    count = int(sum(4 * sizes[name] for name in sizes if name not in halves and name not in packed))
    for node in model.proto.graph.node:
        values = {stored.name: stored.i for stored in node.attribute}
        if node.op_type == _PRODUCT:
            count += 4 * values["K"] * values["N"]
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
    if not count:
        return Outcome(model, {})
    _widen(graph)
    graph.remove_unused()
    return Outcome(graph.to_model(), {"matrices in floats": count})


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


def _blocks(graph: Graph, node: Node, stored: Value | None) -> Blocks | None:
    """Return the blocks that a node reads; None where they are no constants, or their zeros are floats."""
    bits, block = attribute(node, "bits", _USUAL_BITS), attribute(node, "block_size", 128)
    data, scale = graph.constant(stored), graph.constant(node.inputs[2])
    zero_value = node.inputs[3] if len(node.inputs) > 3 else None
    zero = graph.constant(zero_value)
    if data is None or scale is None or data.dtype != np.uint8 or (zero_value is not None and zero is None):
        return None
    if bits not in _BITS or scale.dtype != np.float32 or (zero is not None and zero.dtype != np.uint8):
        return None
    rows = len(data)
    integers = _apart(data.reshape(rows, -1), bits).reshape(rows, -1, block)
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
