"""Compute what only logits need for the last tokens of a run alone: of a prompt nobody asks for more than one.

Behind the last attention each token goes its own way: output matrix, the last layer's neurons, the last norm, the head.
These nodes get the last rows of what they read; how many says an input that may be left out, and then all get theirs,
so that guesses are verified and texts judged as before. It is named and means what transformers' `logits_to_keep` does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx
from onnx import TensorProto

from edgeopt.executors.onnxruntime.decoder import IDS, LAST, LOGITS, SHARING_OP
from edgeopt.executors.onnxruntime.image_rows import WITH_IMAGES
from edgeopt.graph.graph import Graph, Node, Value, attribute
from edgeopt.graph.model import Model
from edgeopt.graph.outcome import Outcome

_OPSET = 10
"""Opset from which on Slice takes its limits as inputs."""
_FAR = 1 << 62
_TOKENS, _NUMBERS = 1, 2
"""Axes of (batch, tokens, numbers)."""
_ATTENTIONS = (SHARING_OP, "MultiHeadAttention")
"""Their first output is (batch, tokens, numbers), and each token hangs on those before it."""
_TABLES = ("Gather", "GatherBlockQuantized")
_PRODUCTS = ("MatMul", "MatMulNBits", "MatMulInteger", "MatMulIntegerToFloat", "DynamicQuantizeMatMul")
_NORMS = ("SimplifiedLayerNormalization", "RMSNormalization", "LayerNormalization")
_SKIP_NORMS = ("SkipSimplifiedLayerNormalization", "SkipLayerNormalization")
_MEANS = ("ReduceMean", "ReduceSum")
_SHORTLIST = ("TopK", "Unsqueeze", "Squeeze")
"""Along the last axis, as `shortlist.py` has them beside a look-up of rows, their products and where they are put."""
_PAIRS = ("Add", "Sub", "Mul", "Div", "Pow")
_SINGLE = ("Cast", "Identity", "Sigmoid", "Tanh", "Erf", "Relu", "Gelu", "FastGelu", "QuickGelu", "Sqrt", "Reciprocal")
_ROUNDING = ("QuantizeLinear", "DequantizeLinear")
_DYNAMIC = "DynamicQuantizeLinear"


def keep_last_logits(model: Model) -> Outcome:
    """Return the decoder with the input `logits_to_keep`, (1,) int64, 0 where it is not given: all.

    Logits of tokens that are kept are the same, but where a grid for the activations of a run follows: then it is that
    of the rows that are kept.

    Args:
        model: A decoder whose attention is one op a layer.
    """
    if LAST in {value.name for value in model.proto.graph.input}:
        return Outcome(model, {})
    if LAST in {value.name for value in model.proto.graph.initializer}:  # an edit of the graph made a constant of it
        return Outcome(_with_input(model), {"logits of the last tokens": 1})
    graph = Graph.from_model(model)
    behind, rows = _behind(graph)
    edge = [
        value
        for value in dict.fromkeys(value for node in behind for value in node.inputs if value in rows)
        if value is not None and graph.producer(value) not in behind
    ]
    if not edge or graph.opset < _OPSET:
        return Outcome(model, {})
    count, far, axis = (
        graph.add_initializer(name, np.array([number], np.int64))
        for name, number in ((LAST, 0), (f"{LAST}_end", _FAR), (f"{LAST}_axis", _TOKENS))
    )
    start = graph.insert("Neg", [count], name=f"{LAST}_start").outputs[0]
    for value in edge:
        last = graph.insert("Slice", [value, start, far, axis], name=f"{value.name}_last").outputs[0]
        for node in (node for node in graph.consumers(value) if node in behind):
            for place, input_ in enumerate(node.inputs):
                if input_ is value:
                    graph.set_input(node, place, last)
    return Outcome(_with_input(graph.to_model()), {"logits of the last tokens": len(behind)})


def _with_input(model: Model) -> Model:
    """Return the model with the constant as an input that has a default."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    proto.graph.input.append(onnx.helper.make_tensor_value_info(LAST, TensorProto.INT64, [1]))
    return Model(proto, model.name)


def _behind(graph: Graph) -> tuple[set[Node], set[Value]]:
    """Return the nodes that only logits need and that take each token alone, and all values of (batch, tokens, ..)."""
    nodes = graph.nodes()
    fixed, scales, rows = set(graph.initializers), set[Value](), set[Value]()
    apart = set[Node]()
    for node in nodes:
        inputs = [input_ for input_ in node.inputs if input_ is not None]
        if inputs and all(value in fixed for value in inputs):
            fixed.update(node.outputs)
        elif (
            node.op_type in _ATTENTIONS
            or (node.op_type in _TABLES and [value.name for value in inputs[1:2]] == [IDS])
            or (str(node.outputs[0].name).startswith(WITH_IMAGES) and rows.intersection(inputs))
        ):
            rows.add(node.outputs[0])
        elif _takes_each_alone(
            graph, node, [value for value in inputs if value not in fixed and value not in scales], rows
        ):
            apart.add(node)
            rows.add(node.outputs[0])
            if node.op_type == _DYNAMIC:
                scales.update(node.outputs[1:])
            else:
                rows.update(node.outputs[1:])
    behind = set[Node]()
    for node in reversed(nodes):
        kept = [output for output in node.outputs if output.name != LOGITS]
        is_asked = any(graph.is_output(value) for value in kept)
        if node in apart and not is_asked and all(set(graph.consumers(output)) <= behind for output in node.outputs):
            behind.add(node)
    return behind, rows


def _takes_each_alone(graph: Graph, node: Node, values: Sequence[Value], rows: set[Value]) -> bool:
    """Whether each token of what a node makes hangs on the same token alone of what it is given."""
    if not values or not set(values) <= rows:
        return False
    check = _CHECKS.get(node.op_type)
    return check is not None and check(graph, node, values)


def _is_product(_: Graph, node: Node, values: Sequence[Value]) -> bool:
    return [node.inputs[0]] == list(values)


def _is_product_of_rows(graph: Graph, node: Node, values: Sequence[Value]) -> bool:
    """Whether it is a product with a constant, or of rows that were looked up for each token with that token's own."""
    looked_up, own = (graph.producer(input_) for input_ in node.inputs)
    is_apart = looked_up is not None and looked_up.op_type in _TABLES and own is not None and own.op_type == "Unsqueeze"
    is_apart = is_apart and list(node.inputs) == list(values)
    return is_apart or _is_product(graph, node, values)


def _is_look_up(_: Graph, node: Node, values: Sequence[Value]) -> bool:
    return [node.inputs[1]] == list(values)


def _is_last_axis(graph: Graph, node: Node, values: Sequence[Value]) -> bool:
    """Whether a node of a shortlist works along the last axis, which is each token's own."""
    if node.op_type == "TopK":
        return _is_product(graph, node, values) and attribute(node, "axis", -1) == -1
    axes = graph.constant(node.inputs[1])
    return _is_product(graph, node, values) and axes is not None and axes.tolist() == [-1]


def _is_placing(_: Graph, node: Node, values: Sequence[Value]) -> bool:
    return list(node.inputs) == list(values) and attribute(node, "axis", 0) == -1


def _is_norm(_: Graph, node: Node, values: Sequence[Value]) -> bool:
    return [node.inputs[0]] == list(values) and attribute(node, "axis", -1) in (-1, _NUMBERS)


def _is_sum(_: Graph, node: Node, values: Sequence[Value]) -> bool:
    return list(node.inputs[:2]) == list(values)


def _is_mean(graph: Graph, node: Node, values: Sequence[Value]) -> bool:
    axes: Sequence[int] = attribute(node, "axes", ())
    stored = graph.constant(node.inputs[1]) if len(node.inputs) > 1 else None
    result = tuple(stored.ravel().tolist()) if stored is not None else tuple(axes)
    return [node.inputs[0]] == list(values) and result in ((-1,), (_NUMBERS,)) and attribute(node, "keepdims", 1) == 1


def _is_split(graph: Graph, node: Node, values: Sequence[Value]) -> bool:
    """Whether the numbers of each token are put in blocks, or out of them."""
    shape = graph.constant(node.inputs[1])
    is_apart = shape is not None and shape.size > _NUMBERS and not shape[:_NUMBERS].any()
    return [node.inputs[0]] == list(values) and is_apart


def _is_block_sum(graph: Graph, node: Node, values: Sequence[Value]) -> bool:
    """Whether each token's numbers are summed, whole or by blocks."""
    split = graph.producer(node.inputs[0], op="Reshape")
    axes = graph.constant(node.inputs[1]) if len(node.inputs) > 1 else None
    if split is not None and _is_split(graph, split, [split.inputs[0]] if split.inputs[0] else []):
        return [node.inputs[0]] == list(values) and axes is not None and axes.tolist() in ([-1], [_NUMBERS + 1])
    return _is_mean(graph, node, values)


def _is_order(graph: Graph, node: Node, values: Sequence[Value]) -> bool:
    """Whether the numbers of each token are put in another order."""
    is_constant = graph.constant(node.inputs[1]) is not None
    return [node.inputs[0]] == list(values) and is_constant and attribute(node, "axis", 0) in (-1, _NUMBERS)


def _is_pair(graph: Graph, node: Node, values: Sequence[Value]) -> bool:
    """Whether what stands beside it is the same for every token."""
    stored = [graph.constant(input_) for input_ in node.inputs if input_ not in values]
    return all(array is not None and (array.ndim < _NUMBERS or array.shape[-2] == 1) for array in stored)


def _is_single(_: Graph, node: Node, values: Sequence[Value]) -> bool:
    return [node.inputs[0]] == list(values)


def _is_rounding(graph: Graph, node: Node, values: Sequence[Value]) -> bool:
    scale = graph.constant(node.inputs[1])
    return [node.inputs[0]] == list(values) and scale is not None and scale.size == 1


_CHECKS: dict[str, Callable[[Graph, Node, Sequence[Value]], bool]] = {
    **dict.fromkeys(_PRODUCTS, _is_product),
    **dict.fromkeys(_SHORTLIST, _is_last_axis),
    "MatMul": _is_product_of_rows,
    "GatherBlockQuantized": _is_look_up,
    "ScatterElements": _is_placing,
    **dict.fromkeys(_NORMS, _is_norm),
    **dict.fromkeys(_SKIP_NORMS, _is_sum),
    **dict.fromkeys(_MEANS, _is_mean),
    "Reshape": _is_split,
    "ReduceSum": _is_block_sum,
    "Gather": _is_order,
    **dict.fromkeys(_PAIRS, _is_pair),
    **dict.fromkeys((*_SINGLE, _DYNAMIC), _is_single),
    **dict.fromkeys(_ROUNDING, _is_rounding),
}
