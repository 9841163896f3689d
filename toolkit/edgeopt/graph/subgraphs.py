"""The nodes and constants of a graph and of the graphs inside its nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from onnx import AttributeProto, GraphProto, NodeProto, TensorProto


def subgraphs(nodes: Iterable[NodeProto]) -> Iterator[GraphProto]:
    """Yield the subgraphs of these nodes, but not those inside of them."""
    for attribute in (value for node in nodes for value in node.attribute):
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == AttributeProto.GRAPHS:
            yield from attribute.graphs


def all_nodes(graph: GraphProto) -> Iterator[NodeProto]:
    """Yield the nodes of a graph, and those of subgraphs right behind the node they belong to."""
    for node in graph.node:
        yield node
        for subgraph in subgraphs([node]):
            yield from all_nodes(subgraph)


def stored_tensors(graph: GraphProto) -> Iterator[TensorProto]:
    """Yield the constants of a graph and its subgraphs: initializers, and what Constant nodes hold."""
    yield from graph.initializer
    yield from (constant.values for constant in graph.sparse_initializer)
    yield from tensors_of(graph.node)


def tensors_of(nodes: Iterable[NodeProto]) -> Iterator[TensorProto]:
    """Yield what the attributes of nodes and their subgraphs hold."""
    for attribute in (value for node in nodes for value in node.attribute):
        if attribute.type == AttributeProto.TENSOR:
            yield attribute.t
    for graph in subgraphs(nodes):
        yield from stored_tensors(graph)
