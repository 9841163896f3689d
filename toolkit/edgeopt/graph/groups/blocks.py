"""Residual blocks y = x + f(x): what is left without f is y = x, in the same shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgeopt.errors import EdgeoptError
from edgeopt.graph.files.validity import require_valid
from edgeopt.graph.graph import Graph, Node, Value
from edgeopt.graph.model import Model


@dataclass(frozen=True, slots=True)
class Block:
    """A part of a graph that adds something to its only input."""

    name: str
    """The sum, y."""
    input: str
    """The tensor to which the block adds, x."""
    nodes: tuple[str, ...]
    """The nodes that fall away, by their first output, the sum last."""


def removable_blocks(model: Model) -> tuple[Block, ...]:
    """Return the residual blocks in the order of the graph; of blocks inside each other, all.

    Nothing but the sum reads what a block computes, nothing but x enters it, and x and y have one shape.
    """
    graph = Graph.from_model(model)
    graph.infer_shapes()
    order = {node: i for i, node in enumerate(graph.nodes())}
    blocks = []
    for node in graph.nodes("Add", "Sum"):
        for skip, added in (node.inputs, reversed(node.inputs)) if len(node.inputs) == 2 else ():
            inside = _inside(graph, node, skip, added, order) if skip is not None and added is not None else None
            if inside is not None and skip is not None:
                names = [_name(other) for other in sorted((*inside, node), key=order.__getitem__)]
                blocks.append(Block(_name(node), skip.name or "", tuple(names)))
                break
    return tuple(blocks)


def _inside(graph: Graph, total: Node, skip: Value, added: Value, order: Mapping[Node, int]) -> list[Node] | None:
    """Return the nodes between x and the sum, or None where they are no block."""
    shape = graph.shape(skip)
    if shape is None or shape != graph.shape(total.outputs[0]) or graph.is_output(total.outputs[0]):
        return None
    maker = graph.producer(skip)
    first = order[maker] if maker is not None else -1
    inside: dict[Node, None] = {}
    waiting, reads_skip = [added], False
    while waiting:
        value = waiting.pop()
        if value is skip:
            reads_skip = True
            continue
        node = graph.producer(value)
        if graph.constant(value) is not None or node in inside:
            continue
        if node is None or order[node] <= first or _has_subgraph(node):
            return None
        inside[node] = None
        waiting.extend(input_ for input_ in node.inputs if input_ is not None)
    if not reads_skip or added is skip:
        return None
    nodes = [*inside]
    return (
        nodes
        if all(_is_private(graph, value, {total, *inside}) for other in nodes for value in other.outputs)
        else None
    )


def _is_private(graph: Graph, value: Value, nodes: set[Node]) -> bool:
    return not graph.is_output(value) and all(reader in nodes for reader in graph.consumers(value))


def _has_subgraph(node: Node) -> bool:
    return node.op_type in ("If", "Loop", "Scan", "SequenceMap")


def _name(node: Node) -> str:
    return node.outputs[0].name or ""


def remove_block(model: Model, block: Block) -> Model:
    """Return the model in which what reads y reads x.

    Raises:
        EdgeoptError: If the model has no such block.
        InvalidFileError: If onnx's checker refuses the result.
    """
    graph = Graph.from_model(model)
    value, skip = graph.value(block.name), graph.value(block.input)
    if value is None or skip is None or not graph.replace(value, skip):
        raise EdgeoptError(
            f"{model.name} has no block from {block.input!r} to {block.name!r}",
            remedy="look for the blocks of the model that is pruned",
        )
    graph.remove_unused()
    made = graph.to_model()
    require_valid(made.proto, f"{model.name} without {block.name!r}")
    return made
