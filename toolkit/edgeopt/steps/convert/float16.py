"""Write a model in 16-bit floats, for engines that compute in them, with float32 where 16 bits do not reach.

Three kinds of nodes stay float32: ops on ONNX Runtime's own block list, nodes around tensors or constants beyond
the largest float16, and nodes with subgraphs. A Cast stands only on a border between the two types, once for each
tensor; inputs and outputs of the model keep theirs. ONNX Runtime's converter is not used for the rest: of two blocked
nodes that read one tensor it makes an invalid graph, and it casts to float16 and back between blocked neighbours,
which makes infinity of what they were blocked for (1.31).
Source of the block list: onnxruntime.transformers.float16, DEFAULT_OP_BLOCK_LIST and ALWAYS_FLOAT_INPUTS.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from edgeopt.errors import Note, NoteKind
from edgeopt.executors.onnxruntime import ARITHMETIC_KEY
from edgeopt.executors.onnxruntime.transformer_tools import transformer_tools
from edgeopt.graph.graph import Graph, Node, Value, attribute
from edgeopt.graph.model import Model
from edgeopt.graph.outcome import Outcome
from edgeopt.graph.tensors import Tensors
from edgeopt.steps.quantize.calibration.calibrate import calibrate
from edgeopt.steps.quantize.patterns import channel_axis, name_of
from edgeopt.system.text import plural

LARGEST = 65504.0
"""Largest of float16: (2 - 2^-10) 2^15."""
_SMALLEST = 2.0**-24
_MARGIN = 4.0
"""Other pictures may reach further than those that were watched."""
_MAKERS = ("Constant", "ConstantOfShape", "EyeLike", "RandomNormal", "RandomUniform", "Multinomial", "Bernoulli")
"""Their type is an attribute; they stay as they are and are cast behind."""
_OF_INTEGERS = ("Linear", "Integer", "NBits")
"""Parts of the names of ops whose scales are float32."""


def make_float16(model: Model, frames: Iterable[Tensors]) -> Outcome:
    """Return the model in float16, its inputs and outputs as they were.

    Args:
        model: A float32 model with fixed shapes.
        frames: Real model inputs: what exceeds 16 bits on them stays float32.

    Raises:
        UnsupportedError: If a tensor is NaN or infinite for a frame.
        EdgeoptError: If there are no frames.
    """
    graph = Graph.from_model(model)
    graph.infer_shapes()
    with transformer_tools("float16") as (tool,):
        blocked: set[str] = {*tool.DEFAULT_OP_BLOCK_LIST, *_MAKERS}
        always: dict[str, Sequence[int]] = dict(tool.ALWAYS_FLOAT_INPUTS)
    wide = _wide_nodes(graph, model, frames)
    narrow = {node for node in graph.nodes() if node not in wide and _can_be_narrow(graph, node, blocked)}
    values = _narrow(graph, narrow, always)
    made = graph.to_model()
    for info in made.proto.graph.value_info:
        if info.name in {name_of(value) for value in values}:
            info.type.tensor_type.elem_type = TensorProto.FLOAT16
    onnx.helper.set_model_props(made.proto, {**model.metadata, ARITHMETIC_KEY: "fp16"})
    detail = f"{plural(len(wide), 'node')} in float32: values beyond {LARGEST / _MARGIN:.0f} leave float16 no room"
    notes = (Note(NoteKind.CHOICE, detail, ", ".join(str(node.name) for node in wide[:4])),) if wide else ()
    return Outcome(made, {"nodes in float16": len(narrow)}, notes)


def _can_be_narrow(graph: Graph, node: Node, blocked: Set[str]) -> bool:
    types = [graph.dtype(output) for output in node.outputs]
    captured = any(graph.is_output(output) and output not in graph.outputs for output in node.outputs)
    captured |= any(reader.graph is not node.graph for output in node.outputs for reader in graph.consumers(output))
    subgraphs = any(
        other.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS) for other in _attributes(node)
    )
    of_integers = any(part in node.op_type for part in _OF_INTEGERS)
    return None not in types and not (captured or subgraphs or of_integers or node.op_type in blocked)


def _attributes(node: Node) -> list[Any]:
    return list(node.attributes.values())


def _wide_nodes(graph: Graph, model: Model, frames: Iterable[Tensors]) -> list[Node]:
    """Return the nodes that read or make a number beyond float16."""
    floats = [output for node in graph.nodes() for output in node.outputs if graph.dtype(output) == np.float32]
    axes = {name_of(input_): channel_axis(graph, input_) for input_ in (*graph.inputs, *floats) if graph.rank(input_)}
    seen = calibrate(model, frames, axes).observations
    large = {
        name
        for name, observation in seen.items()
        if max(-observation.low.min(), observation.high.max()) > LARGEST / _MARGIN
    }

    def is_wide(value: Value | None) -> bool:
        numbers = graph.constant(value) if value is not None and name_of(value) not in large else None
        beyond = numbers is not None and numbers.dtype == np.float32 and (np.abs(numbers) > LARGEST).any()
        return value is not None and (name_of(value) in large or bool(beyond))

    return [node for node in graph.nodes() if any(map(is_wide, (*node.inputs, *node.outputs)))]


def _narrow(graph: Graph, narrow: Set[Node], always: Mapping[str, Sequence[int]]) -> list[Value]:
    """Give each node the type that it computes in, in place; return the values that are float16 now."""
    nodes = graph.nodes()
    made = [output for node in nodes if node in narrow for output in node.outputs if graph.dtype(output) == np.float32]
    borders = _Borders(graph, set(made))
    readers = [
        (node, i, input_, node in narrow and i not in always.get(node.op_type, ()))
        for node in nodes
        for i, input_ in enumerate(node.inputs)
        if input_ is not None and graph.dtype(input_) == np.float32
    ]
    for value in [output for output in graph.outputs if output in borders.narrow]:
        borders.hand_out(value)
    for node, i, value, is_narrow in readers:
        graph.set_input(node, i, borders.narrowed(value) if is_narrow else borders.widened(value))
    for node in narrow:
        if node.op_type == "Cast" and attribute(node, "to", 0) == TensorProto.FLOAT:
            graph.set_attribute(node, "to", int(TensorProto.FLOAT16))
    graph.remove_unused()
    return [*made, *borders.cast]


@dataclass(slots=True)
class _Borders:
    """Both types of each tensor, the other one made when it is first asked for."""

    graph: Graph
    narrow: set[Value]
    """Values that a node makes in float16."""
    cast: list[Value] = field(default_factory=list)
    """Further values in float16."""
    _down: dict[Value, Value] = field(default_factory=dict)
    _up: dict[Value, Value] = field(default_factory=dict)

    def narrowed(self, value: Value) -> Value:
        """Return a value in float16."""
        if value in self.narrow:
            return value
        if value not in self._down:
            numbers = self.graph.constant(value)
            if numbers is not None:
                self._down[value] = self.graph.add_initializer(f"{value.name}_fp16", as_float16(numbers))
            else:
                self._down[value] = self._cast(value, TensorProto.FLOAT16)
                self.cast.append(self._down[value])
        return self._down[value]

    def widened(self, value: Value) -> Value:
        """Return a value in float32."""
        if value not in self.narrow:
            return value
        if value not in self._up:
            self._up[value] = self._cast(value, TensorProto.FLOAT)
        return self._up[value]

    def hand_out(self, value: Value) -> None:
        """Let the model return a float16 value in float32, under its name."""
        up = self._cast(value, TensorProto.FLOAT)
        self._up[value] = up
        self.graph.replace(value, up)
        node = self.graph.producer(up)
        assert node is not None
        self.graph.set_input(node, 0, value)

    def _cast(self, value: Value, to: int) -> Value:
        return self.graph.insert("Cast", [value], {"to": int(to)}, name=f"{value.name}_cast").outputs[0]


def as_float16(numbers: NDArray[Any]) -> NDArray[np.float16]:
    """Return numbers in float16; what would become zero becomes the smallest number: nothing may divide by zero."""
    small = (np.abs(numbers) < _SMALLEST) & (numbers != 0)
    return np.where(small, np.copysign(_SMALLEST, numbers), numbers).astype(np.float16)
