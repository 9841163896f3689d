"""The graph that a converter reads: shapes, constants, and the refusal of nodes that its engine lacks."""

from __future__ import annotations

from typing import Any, ClassVar

from numpy.typing import NDArray

from edgeopt.errors import UnsupportedError
from edgeopt.executors._conversion.dequantized import dequantized
from edgeopt.graph.graph import Graph, Node, Value, op_name


class GraphReader:
    """A graph on its way into an engine's file, every shape known."""

    engine: ClassVar[str]
    """The engine, as messages call it."""
    remedy: ClassVar[str]
    """Advice where it lacks something."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def shape(self, value: Value | None) -> tuple[int, ...]:
        """Return the shape of a tensor.

        Raises:
            UnsupportedError: If it is not known before the model runs.
        """
        constant = self.graph.constant(value)
        shape = constant.shape if constant is not None else self.graph.shape(value)
        if shape is None or 0 in shape:
            raise UnsupportedError(
                f"{self.engine}'s files are written with every shape in numbers, and "
                f"{value.name if value else ''!r} has none",
                remedy="export the model with fixed shapes, or give a recipe that names the size",
            )
        return tuple(int(size) for size in shape)

    def constant(self, value: Value | None) -> NDArray[Any] | None:
        """Return the numbers of a constant, of one that is stored in integers too; None where it is computed."""
        array = self.graph.constant(value)
        return dequantized(self.graph, value) if array is None else array

    def numbers(self, node: Node, place: int) -> NDArray[Any] | None:
        """Return the numbers of an input that must be constant; None where it is left out.

        Raises:
            UnsupportedError: If it is computed.
        """
        value = node.inputs[place] if place < len(node.inputs) else None
        if value is None:
            return None
        array = self.constant(value)
        if array is None:
            raise self.refuse(node, f"with its input {place} computed")
        return array

    def refuse(self, node: Node, how: str) -> UnsupportedError:
        """Return the error for a node that the engine lacks, or lacks in this form."""
        reason = f"{self.engine} has no {op_name(node)}{f' {how}' if how else ''} ({node.name})"
        return UnsupportedError(reason, remedy=self.remedy_for(node))

    def remedy_for(self, node: Node) -> str:
        """Return the advice where the engine lacks a node."""
        del node
        return self.remedy
