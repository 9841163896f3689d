"""Helpers of passes for decoders: inputs by name, and the parts of the graph for a text of some length."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir

from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.executors.onnxruntime.decoder import IDS, MASK, PAST, POSITIONS
from edgeopt.graph.graph import Array, Graph, Node, Value, attribute
from edgeopt.graph.model import Model

MICROSOFT = "com.microsoft"
CONTEXT_KEY = "edgeopt.context"
"""Metadata of a decoder: the tokens that its positions reach."""
_CONTEXT = 2048
"""Where the model does not say it."""
_RANK = 4
_HEADS_FIRST = (0, 2, 1, 3)


def context_of(graph: Graph) -> int:
    """Return the tokens that positions reach."""
    return int(graph.metadata.get(CONTEXT_KEY, _CONTEXT))


def input_of(graph: Graph, name: str) -> Value | None:
    """Return the input of this name."""
    return next((input_ for input_ in graph.inputs if input_.name == name), None)


def computed(graph: Graph, value: Value, count: int, past: int) -> tuple[Array, frozenset[str]] | None:
    """Return what a value is for one text, and the inputs that it hangs on.

    Args:
        graph: Of a decoder.
        value: A part of it that is computed from tokens, mask, positions and the shapes of the cache.
        count: Tokens of the run.
        past: Tokens before them.

    Returns:
        None where the part needs another input, or does not run alone.
    """
    part = part_of(graph, value)
    if part is None:
        return None
    arrays = {
        IDS: np.zeros((1, count), np.int64),
        MASK: np.ones((1, past + count), np.int64),
        POSITIONS: np.arange(past, past + count, dtype=np.int64)[None],
    }
    feeds = dict[str, Array]()
    for spec in part.inputs:
        if PAST.fullmatch(spec.name) and len(spec.shape) == _RANK:
            heads, head = (side if isinstance(side, int) else 1 for side in (spec.shape[1], spec.shape[3]))
            feeds[spec.name] = np.zeros((1, heads, past, head), spec.dtype)
        elif spec.name in arrays:
            feeds[spec.name] = arrays[spec.name].astype(spec.dtype)
        else:
            return None
    try:
        session = EXECUTOR.open(part.data, SessionOptions(threads=1))
        try:
            result = session.run(feeds)
        finally:
            session.close()
    except Exception:  # whatever the engine says: a part that does not run alone is left as it is
        return None
    return next(iter(result.values())), frozenset(feeds)


def swaps_heads(node: Node) -> bool:
    """Whether a Transpose changes places of tokens and heads in (batch, tokens, heads, head)."""
    order: tuple[int, ...] = attribute(node, "perm", ())
    return order == _HEADS_FIRST


def width_of(value: Value | None) -> int | None:
    """Return the numbers of the last axis where they are known."""
    width = value.shape[-1] if value is not None and value.shape is not None else None
    return width if isinstance(width, int) else None


def split_heads(graph: Graph, value: Value, head: int) -> tuple[Value, int] | None:
    """Return (batch, tokens, heads * head) from which (batch, heads, tokens, head) is made, and the heads.

    Where numbers are changed between the split and the transposition, as norms of single heads do, what comes out of
    them is joined again.
    """
    swap = graph.producer(value, "Transpose")
    if swap is None or not swaps_heads(swap) or swap.inputs[0] is None:
        return None
    apart = swap.inputs[0]
    node, joined = graph.producer(apart, "Reshape"), apart
    while node is None:  # a norm of each head, whose first input leads to the split
        inner = graph.producer(joined)
        if inner is None or not inner.inputs or inner.inputs[0] is None:
            return None
        joined = _main_input(graph, inner)
        node = graph.producer(joined, "Reshape")
        if graph.rank(joined) not in (None, _RANK):
            return None
    flat = node.inputs[0]
    width = width_of(flat)
    if flat is None or width is None or graph.rank(flat) != _RANK - 1 or width % head:
        return None
    if node.outputs[0] is apart:
        return flat, width // head
    shape = graph.add_initializer(f"{apart.name}_joined_shape", np.array([0, 0, width], np.int64))
    return graph.insert("Reshape", [apart, shape], before=swap).outputs[0], width // head


def _main_input(graph: Graph, node: Node) -> Value:
    """Return the first input that is no constant; of a product of two, the one that leads back further is either."""
    inputs = [input_ for input_ in node.inputs if input_ is not None and graph.constant(input_) is None]
    return inputs[0] if inputs else next(input_ for input_ in node.inputs if input_ is not None)


def scalar(graph: Graph, node: Node | None, *ops: str) -> tuple[Value, float] | None:
    """Return the variable input of a product or quotient with one number, and the factor."""
    if node is None or node.op_type not in ops:
        return None
    result = graph.split_scalar(node)
    if result is None or (node.op_type == "Div" and result[2] == 0) or not result[1]:
        return None
    return result[0], 1 / result[1] if node.op_type == "Div" else result[1]


# The part of a graph that one value is computed from, as a model of its own.

_IR_VERSION = 10


def part_of(graph: Graph, value: Value) -> Model | None:
    """Return a model whose output is `value`, and whose inputs are those of the graph that it hangs on.

    None where a subgraph is among what computes it, or where it is no output of a node.
    """
    found, seen, waiting = set[Node](), set[Value](), [value]
    while waiting:
        other = waiting.pop()
        if other in seen:
            continue
        seen.add(other)
        node = graph.producer(other)
        if node is None:
            continue
        if any(each.type is ir.AttributeType.GRAPH for each in node.attributes.values()):
            return None
        found.add(node)
        waiting += [input_ for input_ in node.inputs if input_ is not None]
    if graph.producer(value) is None:
        return None
    nodes = [ir.to_proto(node) for node in graph.nodes() if node in found]
    stored = [
        ir.to_proto(initializer.const_value)
        for initializer in graph.initializers
        if initializer in seen and initializer.const_value is not None
    ]
    infos = [ir.to_proto(input_) for input_ in graph.inputs if input_ in seen]
    made = onnx.helper.make_graph(nodes, "part", infos, [onnx.ValueInfoProto(name=str(value.name))], stored)
    domains = {node.domain or "" for node in found} - {""}
    imports = {"": graph.opset, **dict.fromkeys(domains, 1)}
    opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in imports.items()]
    return Model(onnx.helper.make_model(made, opset_imports=opsets, ir_version=_IR_VERSION), "part")
