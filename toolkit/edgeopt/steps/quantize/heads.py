"""Tell the prediction layers that read features from the layers behind them, which decode."""

from __future__ import annotations

from edgeopt.graph.graph import Graph, Node, Value
from edgeopt.steps.quantize.activations import SIMPLE
from edgeopt.steps.quantize.patterns import (
    SAME_GRID,
    WEIGHTED,
    downstream,
    has_weights,
    head_tail,
    predictions,
    silu_sigmoid,
)

_ACTIVATIONS = (*SIMPLE, "Clip", "LeakyRelu", "HardSigmoid")


def feature_readers(graph: Graph) -> set[Node]:
    """Return the prediction layers of a many-headed model, without its decoder's layers.

    Rounding what a decoder reads would move boxes. Its layers read shares of a Softmax (the expected distance of
    distribution focal loss), or lie behind a prediction layer. Where only activations lie between, that one was the
    last feature layer, and those behind it are predictions too small to count as features.
    """
    behind = downstream(predictions(graph))
    weighted = [node for node in head_tail(graph) if node.op_type in WEIGHTED and has_weights(graph, node)]
    return {
        node
        for node in weighted
        if not _reads_shares(graph, node) and (node not in behind or _reads_features(graph, node))
    }


def _reads_shares(graph: Graph, node: Node) -> bool:
    """Whether a layer reads what a Softmax makes, moved or not."""
    maker = graph.producer(node.inputs[0])
    while maker is not None and maker.op_type in SAME_GRID:
        maker = graph.producer(maker.inputs[0])
    return maker is not None and maker.op_type == "Softmax"


def _reads_features(graph: Graph, node: Node) -> bool:
    """Whether nothing but an activation lies between a layer and the one before it."""
    source: Value | None = node.inputs[0]
    while (maker := graph.producer(source)) is not None and maker.op_type not in WEIGHTED:
        gate = silu_sigmoid(graph, maker)
        if gate is None and maker.op_type not in _ACTIVATIONS:
            return False
        source = (gate or maker).inputs[0]
    return maker is not None
