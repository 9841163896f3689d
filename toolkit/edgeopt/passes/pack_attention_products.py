"""Make one product of the three that give an attention's queries, keys and values.

    x * Q + a, x * K + b, x * V + c   ->   x * [Q K V] + [a b c], which GroupQueryAttention takes as it is

One large product loads its input once, and where activations are rounded to 8 bits they are rounded once.
Source: com.microsoft.GroupQueryAttention of ONNX Runtime: packed queries, keys and values.
"""

from __future__ import annotations

import numpy as np

from edgeopt.executors.onnxruntime.decoder import SHARING_OP
from edgeopt.graph.graph import Array, Graph, Node, Value
from edgeopt.passes import Pass, Phase
from edgeopt.passes._decoder import MICROSOFT


def pack_attention_products(graph: Graph) -> int:
    """Return how many attentions read one product in place of three."""
    packed = sum(_pack(graph, node) for node in graph.nodes(SHARING_OP, domain=MICROSOFT))
    if packed:
        graph.remove_unused()
    return packed


def _pack(graph: Graph, attention: Node) -> bool:
    products = [_product(graph, input_) for input_ in attention.inputs[:3]]
    found = [product for product in products if product is not None]
    if len(found) < len(products) or len({entry[0] for entry in found}) != 1 or found[0][1].dtype != np.float32:
        return False
    (x, *_), name = found[0], f"{attention.name}_qkv"
    weight = graph.add_initializer(f"{name}_weight", np.concatenate([entry[1] for entry in found], axis=1))
    made = graph.insert("MatMul", [x, weight], before=attention, name=name).outputs[0]
    biases = [entry[2] for entry in found]
    if any(array is not None for array in biases):
        whole = [np.zeros(entry[1].shape[1], np.float32) if entry[2] is None else entry[2] for entry in found]
        bias = graph.add_initializer(f"{name}_bias", np.concatenate(whole))
        made = graph.insert("Add", [made, bias], before=attention, name=f"{name}_biased").outputs[0]
    for place, value in enumerate((made, None, None)):
        graph.set_input(attention, place, value)
    return True


def _product(graph: Graph, value: Value | None) -> tuple[Value, Array, Array | None] | None:
    """Return x, the matrix and the bias of a value that nothing else reads."""
    node, bias = graph.sole_producer(value), None
    if node is not None and node.op_type == "Add" and not node.domain:
        split = graph.split(node)
        if split is None or split[1].ndim != 1:
            return None
        node, bias = graph.sole_producer(split[0]), np.asarray(split[1], np.float32)
    if node is None or node.op_type != "MatMul" or node.domain or node.inputs[0] is None:
        return None
    weight = graph.constant(node.inputs[1])
    return (node.inputs[0], weight, bias) if weight is not None and weight.ndim == 2 else None


PASS = Pass(pack_attention_products, Phase.DECODER)
