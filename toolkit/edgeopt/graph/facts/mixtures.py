"""Mixtures of experts in a graph: their matrices, and the products that choose experts."""

from __future__ import annotations

from edgeopt.graph.graph import Graph, Node, attribute

SCORES, UP, DOWN = 1, 2, 4
"""Places among the inputs of `MoE` of com.microsoft: (tokens, experts), (experts, 2 * inner, hidden), (experts, hidden,
inner)."""
_OPS = ("MoE", "QMoE")
_DOMAIN = "com.microsoft"
_MOVES = ("Reshape", "Identity", "Softmax", "Cast")


def mixtures(graph: Graph) -> list[Node]:
    """Return the mixtures in float whose experts are constants."""
    nodes = graph.nodes("MoE", domain=_DOMAIN)
    return [node for node in nodes if all(graph.constant(node.inputs[place]) is not None for place in (UP, DOWN))]


def activation_of(node: Node) -> dict[str, int | float | str]:
    """Return the attributes of a mixture that say how many experts a token takes, and what is between their products.

    They are the same of `MoE` and of `QMoE`.
    """
    return {
        "k": attribute(node, "k", 1),
        "activation_type": attribute(node, "activation_type", "relu"),
        "swiglu_fusion": attribute(node, "swiglu_fusion", 0),
        "activation_alpha": attribute(node, "activation_alpha", 1.0),
        "activation_beta": attribute(node, "activation_beta", 0.0),
    }


def routers(graph: Graph) -> frozenset[Node]:
    """Return the products whose outputs choose experts: small, and an error in them exchanges whole experts."""
    result = set[Node]()
    for node in graph.nodes(*_OPS, domain=_DOMAIN):
        maker = graph.producer(node.inputs[SCORES])
        while maker is not None and maker.op_type in _MOVES:
            maker = graph.producer(maker.inputs[0])
        if maker is not None:
            result.add(maker)
    return frozenset(result)
