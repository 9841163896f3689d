"""The graph on its way to MNN's converter: nodes are exchanged for such as it reads rightly."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import ELSEWHERE, UnsupportedError
from edgeopt.executors._conversion.reading import GraphReader
from edgeopt.graph.graph import Node, Value


class MnnGraph(GraphReader):
    """A graph that is rewritten in place, every shape known."""

    engine: ClassVar[str] = "MNN"
    remedy: ClassVar[str] = ELSEWHERE

    # Types

    def dtype(self, value: Value) -> str:
        """Return the type of a tensor; float32 where it is not known."""
        dtype = self.graph.dtype(value)
        return "float32" if dtype is None else dtype.name

    def require_type(self, value: Value, types: Collection[str]) -> None:
        """Raise UnsupportedError if an input or an output of the model is of another type."""
        if self.dtype(value) not in types:
            raise UnsupportedError(
                f"MNN is given {' or '.join(sorted(types))}, and {value.name!r} is {self.dtype(value)}",
                remedy=self.remedy,
            )

    def require_types(self, node: Node, types: Collection[str]) -> None:
        """Raise UnsupportedError if a tensor that a node reads or makes is of another type; constants are its own."""
        for value in (*node.inputs, *node.outputs[:1]):
            if value is not None and self.graph.constant(value) is None and self.dtype(value) not in types:
                raise self.refuse(node, f"of {self.dtype(value)}")

    # Rewriting

    def add(
        self,
        node: Node,
        op: str,
        inputs: Sequence[Value | NDArray[Any] | None],
        shape: Sequence[int],
        **attributes: Any,
    ) -> Value:
        """Add a node before another, and return what it makes.

        Args:
            node: The one that is rewritten.
            op: Its op.
            inputs: Tensors; arrays become constants.
            shape: The result's.
            attributes: Of the new node.
        """
        values = [
            self.graph.add_initializer(f"{node.name}_{op}", value) if isinstance(value, np.ndarray) else value
            for value in inputs
        ]
        made = self.graph.insert(op, values, attributes, before=node, name=f"{node.name}_{op}").outputs[0]
        self.graph.set_shape(made, shape)
        made.type = node.outputs[0].type
        return made

    def put(self, node: Node, value: Value) -> None:
        """Let what reads a node's first output read another tensor, and take the node out.

        A tensor that was made for it takes the name of the output, by which MNN calls its operators.
        """
        output, maker = node.outputs[0], self.graph.producer(value)
        if maker is not None and str(maker.name).startswith(f"{node.name}_") and not value.is_graph_output():
            self.graph.replace(output, value, keep_name=True)
            self.graph.remove(node)
            return
        if not self.graph.bypass(node, keep=value):  # an output's name stays with a node
            made = self.add(node, "Identity", [value], self.shape(output))
            self.graph.bypass(node, keep=made)

    def reshaped(self, node: Node, value: Value | None, shape: Sequence[int]) -> Value:
        """Return a tensor in another shape; itself where it has it."""
        assert value is not None
        if self.graph.shape(value) == tuple(shape):
            return value
        constant = self.graph.constant(value)
        if constant is not None:
            return self.graph.add_initializer(f"{node.name}_constant", constant.reshape(tuple(shape)))
        made = self.add(node, "Reshape", [value, np.array(shape, np.int64)], shape)
        made.type = value.type
        return made

    def expanded(self, node: Node, value: Value | None, shape: Sequence[int]) -> Value:
        """Return a tensor repeated along axes of one place up to a shape; itself where it has it."""
        assert value is not None
        constant = self.graph.constant(value)
        if constant is not None:
            if constant.shape == tuple(shape):
                return value
            whole = np.ascontiguousarray(np.broadcast_to(constant, tuple(shape)))
            return self.graph.add_initializer(f"{node.name}_constant", whole)
        own = self.shape(value)
        if own == tuple(shape):
            return value
        value = self.reshaped(node, value, (*(1,) * (len(shape) - len(own)), *own))  # with axes to add MNN errs
        if self.shape(value) == tuple(shape):
            return value
        made = self.add(node, "Expand", [value, np.array(shape, np.int64)], shape)
        made.type = value.type
        return made

    def stored(self, node: Node, place: int) -> NDArray[Any] | None:
        """Return the numbers of a constant input; None where it is computed or left out."""
        return self.constant(node.inputs[place]) if place < len(node.inputs) else None
