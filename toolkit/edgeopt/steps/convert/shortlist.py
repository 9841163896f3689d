"""Make the logits of a large vocabulary in 4 bits, and those of the likeliest tokens again from the table in 8 bits.

The head of a small model reads more than any other matrix with each token. Where it is the table of tokens too, that
table lies in the file in 8 bits already: a head in 4 bits finds the likeliest tokens, whose rows are looked up there.
"""

from __future__ import annotations

import numpy as np

from edgeopt.executors.onnxruntime.decoder import IDS, LOGITS
from edgeopt.graph.graph import Graph, Node, attribute
from edgeopt.graph.model import Model
from edgeopt.graph.outcome import Outcome
from edgeopt.steps.convert.tables import BITS

LIKELIEST = 64
"""Tokens whose logits are computed again: with 49,152 tokens of 576 numbers all of it takes 0.15 ms."""
_MICROSOFT = "com.microsoft"
_TABLE, _BLOCKS = "GatherBlockQuantized", "MatMulNBits"
_SIZES = ("K", "N", "bits", "block_size", "accuracy_level")
_OPSET = 13
"""Opset from which on Squeeze and Unsqueeze take their axes as inputs."""
_MOST_INPUTS = 4
"""Inputs of a product in blocks that has neither an order of its inputs nor a bias."""


def tied_head(model: Model) -> int:
    """Return how many weights the table of tokens has that is the head of a decoder too; 0: its head is another matrix.

    Args:
        model: A decoder in floats.
    """
    graph = Graph.from_model(model)
    head, table = graph.producer(graph.value(LOGITS), op="MatMul"), _looks_up(graph, "Gather")
    weight = graph.constant(head.inputs[1]) if head is not None else None
    rows = graph.constant(table.inputs[0]) if table is not None else None
    if weight is None or rows is None or rows.T.shape != weight.shape or not np.array_equal(rows.T, weight):
        return 0
    return int(rows.size)


def make_shortlist(model: Model, count: int = LIKELIEST) -> Outcome:
    """Return a decoder whose `count` likeliest logits come from its table; as it is where its head is none of blocks.

    Args:
        model: With a tied head in blocks of 4 bits, and its table in blocks of 8.
        count: Tokens of the shortlist.
    """
    graph = Graph.from_model(model)
    logits = graph.value(LOGITS)
    head, table = graph.producer(logits), _looks_up(graph, _TABLE, _MICROSOFT)
    is_plain = head is not None and head.op_type == _BLOCKS and len(head.inputs) <= _MOST_INPUTS
    if logits is None or head is None or table is None or not is_plain:
        return Outcome(model, {})
    if graph.opset < _OPSET or attribute(table, "bits", 4) != BITS or attribute(head, "N", 0) <= count:
        return Outcome(model, {})
    most = graph.add_initializer("shortlist_count", np.array([count], np.int64))
    last = graph.add_initializer("shortlist_axis", np.array([-1], np.int64))
    own = {name: attribute(head, name, 0) for name in _SIZES}
    first = graph.insert(_BLOCKS, head.inputs, own, domain=_MICROSOFT, name=f"{head.name}_all").outputs[0]
    likeliest = graph.insert("TopK", [first, most], {"axis": -1, "sorted": 0}, outputs=2, name="shortlist").outputs[1]
    own = {name: each.value for name, each in table.attributes.items()}
    rows = graph.insert(
        _TABLE, [table.inputs[0], likeliest, *table.inputs[2:]], own, domain=_MICROSOFT, name="shortlist_rows"
    ).outputs[0]
    column = graph.insert("Unsqueeze", [head.inputs[0], last], name="shortlist_state").outputs[0]
    product = graph.insert("MatMul", [rows, column], name="shortlist_products").outputs[0]
    better = graph.insert("Squeeze", [product, last], name="shortlist_logits").outputs[0]
    made = graph.insert("ScatterElements", [first, likeliest, better], {"axis": -1}, name="shortlist_placed")
    graph.replace(logits, made.outputs[0])
    graph.remove_unused()
    return Outcome(graph.to_model(), {"logits computed again": count})


def drop_shortlist(graph: Graph) -> bool:
    """Let the head alone make the logits again, as before `make_shortlist`; return whether there was a shortlist."""
    logits = graph.value(LOGITS)
    placed = graph.producer(logits, op="ScatterElements")
    if logits is None or placed is None or placed.inputs[0] is None:
        return False
    list_ = graph.producer(placed.inputs[1], op="TopK")
    return list_ is not None and list_.inputs[0] is placed.inputs[0] and graph.replace(logits, placed.inputs[0])


def _looks_up(graph: Graph, op: str, domain: str = "") -> Node | None:
    """Return the node that looks the tokens of a text up in a table."""
    nodes = graph.nodes(op, domain=domain)
    return next((node for node in nodes if (ids := node.inputs[1]) is not None and ids.name == IDS), None)
