"""The only place that edits a graph, over onnx-ir.

A graph is a working copy: the model it came from is never touched. Subgraphs of If and Loop are left as
they are, but what they use of the outer graph counts as used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypeVar, cast

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx.shape_inference import InferenceError
from onnx_ir.passes.common import DeduplicateHashedInitializersPass, RemoveUnusedNodesPass

from edgeopt.graph.files.large_constants import let_go, stored
from edgeopt.graph.model import Model

Node: TypeAlias = ir.Node
Value: TypeAlias = ir.Value
Array: TypeAlias = NDArray[Any]
AttributeValue: TypeAlias = int | float | str | Sequence[int] | Sequence[float] | Sequence[str]
T = TypeVar("T")

_SHAPE_NUMBERS = 1024
"""A constant with more numbers holds weights, no shape."""
_DEFAULT_DOMAIN = ("", "ai.onnx")
_IR_VERSION_OF_FREE_INITIALIZERS = 4  # before it, every initializer had to be listed as an input


def attribute(node: Node, name: str, default: T) -> T:
    """Return an attribute of a node, lists as tuples, or `default` where it is not written."""
    result = node.attributes.get(name)
    if result is None or result.is_ref():
        return default
    return cast("T", tuple(result.value) if isinstance(result.value, (list, tuple)) else result.value)


def op_name(node: Node) -> str:
    """Return the name of a node's op; that of another domain than ONNX's as `domain.name`."""
    return node.op_type if node.domain in _DEFAULT_DOMAIN else f"{node.domain}.{node.op_type}"


class Graph:
    """A model's main graph, ready to be edited."""

    def __init__(self, model: ir.Model, name: str) -> None:
        self._model = model
        self._graph = model.graph
        self._name = name
        for value in [input_ for input_ in self._graph.inputs if input_.name in self._graph.initializers]:
            self._graph.inputs.remove(value)
        self._names = self._used_names()
        self._mapped: ir.ExternalTensor | None = None
        for node in self._graph:
            node.name = node.name or self.fresh_name(node.op_type)

    @classmethod
    def from_model(cls, model: Model) -> Graph:
        """Return a copy of the model's graph; initializers listed as inputs (IR below 4) are no inputs."""
        proto = onnx.ModelProto()
        proto.CopyFrom(model.proto)
        return cls(ir.from_proto(proto), model.name)

    def copy(self) -> Graph:
        """Return a copy to edit apart, with names alike; stored constants are shared, as nothing changes them."""
        return Graph(self._model.clone(), self._name)

    def to_model(self, name: str | None = None) -> Model:
        """Return the graph as a model, its nodes in topological order."""
        self._graph.sort()
        for node in ir.traversal.RecursiveGraphIterator(self._graph):
            if node.domain not in _DEFAULT_DOMAIN:
                self._graph.opset_imports.setdefault(node.domain, 1)
        self._model.ir_version = max(self._model.ir_version, _IR_VERSION_OF_FREE_INITIALIZERS)
        proto = ir.to_proto(self._model)
        shapes = [info for info in proto.graph.value_info if info.name not in self._graph.initializers]
        del proto.graph.value_info[:]  # of constants it would only say again what they say
        proto.graph.value_info.extend(shapes)
        return Model(proto, self._name if name is None else name)

    # What is there

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The inputs that a caller must give."""
        return tuple(self._graph.inputs)

    @property
    def outputs(self) -> tuple[Value, ...]:
        """The outputs that a run returns."""
        return tuple(self._graph.outputs)

    @property
    def initializers(self) -> tuple[Value, ...]:
        """All stored constants, used or not."""
        return tuple(self._graph.initializers.values())

    @property
    def opset(self) -> int:
        """Version of the default operator set."""
        return max((v for d, v in self._graph.opset_imports.items() if d in _DEFAULT_DOMAIN), default=1)

    @property
    def metadata(self) -> dict[str, str]:
        """Notes of a model's maker, kept in its file; they may be added to."""
        return self._model.metadata_props

    def nodes(self, *ops: str, domain: str = "") -> list[Node]:
        """Return the nodes of these ops of one domain, in order; without ops, every node of every domain.

        The list is a snapshot: the graph may be edited while it is walked. A node that was removed meanwhile
        has `graph` None.
        """
        return [n for n in self._graph if not ops or (n.op_type in ops and _domain(n) == domain)]

    def value(self, name: str) -> Value | None:
        """Return the input, initializer or node output of this name."""
        if name in self._graph.initializers:
            return self._graph.initializers[name]
        outputs = (value for node in self._graph for value in node.outputs)
        return next((input_ for input_ in (*self._graph.inputs, *outputs) if input_.name == name), None)

    def producer(self, value: Value | None, op: str | None = None) -> Node | None:
        """Return the node of the main graph that makes `value`, if it is an `op` of the default domain."""
        node = value.producer() if value is not None else None
        if node is None or node.graph is not self._graph:
            return None
        return node if op is None or (node.op_type == op and _domain(node) == "") else None

    def consumers(self, value: Value) -> list[Node]:
        """Return the nodes that read `value`, each once, nodes of subgraphs included."""
        return list(value.consumers())

    def is_output(self, value: Value) -> bool:
        """Whether a run returns this value (or a subgraph hands it out)."""
        return value.is_graph_output()

    def is_read_inside(self, value: Value) -> bool:
        """Whether a subgraph, a branch of If or a body of Loop or Scan, reads this value of the main graph."""
        handed_out = value.is_graph_output() and all(output is not value for output in self._graph.outputs)
        return handed_out or any(node.graph is not self._graph for node in value.consumers())

    def is_used_once(self, value: Value) -> bool:
        """Whether exactly one node input reads `value` and no output is made of it."""
        return len(value.uses()) == 1 and not value.is_graph_output()

    def sole_producer(self, value: Value | None, op: str | None = None) -> Node | None:
        """Return the node that makes `value`, if `value` is read in one place only and is no output."""
        return self.producer(value, op) if value is not None and self.is_used_once(value) else None

    def sole_consumer(self, value: Value, op: str | None = None) -> Node | None:
        """Return the node that reads `value`, if no other does and it is no output."""
        if not self.is_used_once(value):
            return None
        node = value.consumers()[0]
        matches = op is None or (node.op_type == op and _domain(node) == "")
        return node if matches and node.graph is self._graph else None

    def constant(self, value: Value | None) -> Array | None:
        """Return the numbers of an initializer or a Constant node, otherwise None. Do not write into them."""
        if value is None:
            return None
        if value.is_initializer() and not value.is_graph_input():
            return None if value.const_value is None else self._numbers(value.const_value)
        node = self.producer(value, "Constant")
        return _constant_of_node(node) if node is not None else None

    def _numbers(self, stored: ir.TensorProtocol) -> Array:
        """Return the numbers of a constant; of those that lie in files, the pages of one at a time stay in memory."""
        before = self._mapped
        if isinstance(stored, ir.ExternalTensor) and stored is not before:
            if before is not None:
                let_go(before.raw)
            self._mapped = stored
        return stored.numpy()

    def constants(self, values: Iterable[Value | None]) -> list[Array] | None:
        """Return the numbers behind all `values`, or None if any of them is not constant."""
        arrays = [self.constant(value) for value in values]
        return None if any(array is None for array in arrays) else cast("list[Array]", arrays)

    def split(self, node: Node) -> tuple[Value, Array, int] | None:
        """Return the variable input, the constant, and the constant's place of a two-input node.

        None if the node has other inputs, or if both or neither is constant.
        """
        if len(node.inputs) != 2:
            return None
        left, right = (self.constant(value) for value in node.inputs)
        if left is None and right is not None and node.inputs[0] is not None:
            return node.inputs[0], right, 1
        if right is None and left is not None and node.inputs[1] is not None:
            return node.inputs[1], left, 0
        return None

    def split_scalar(self, node: Node) -> tuple[Value, float, int] | None:
        """Return what `split` does, if the constant is one number that adds no dimension."""
        found = self.split(node)
        if found is None or found[1].size != 1 or found[1].dtype.kind not in "fiu":
            return None
        value, constant, place = found
        if constant.ndim > 0 and constant.ndim > (self.rank(value) or 0):
            return None
        return value, float(constant.reshape(())), place

    def shape(self, value: Value | None) -> tuple[int, ...] | None:
        """Return the shape, or None unless every dimension is a number."""
        if value is None or value.shape is None or not value.shape.is_static():
            return None
        return tuple(cast("tuple[int, ...]", value.shape.dims))

    def rank(self, value: Value | None) -> int | None:
        """Return the number of dimensions, or None if it is not known."""
        return value.shape.rank() if value is not None and value.shape is not None else None

    def dtype(self, value: Value | None) -> np.dtype[Any] | None:
        """Return the element type in NumPy's words, or None if it is not known."""
        if value is None or not isinstance(value.type, ir.TensorType):
            return None
        return np.dtype(value.type.dtype.numpy())

    # Edits

    def fresh_name(self, wanted: str) -> str:
        """Return `wanted`, or `wanted_1`, `wanted_2`, … when the name is taken; the name is then taken."""
        name, number = wanted, 0
        while name in self._names:
            number += 1
            name = f"{wanted}_{number}"
        self._names.add(name)
        return name

    def add_initializer(self, name: str, array: Array) -> Value:
        """Store a constant under `name`, or a name close to it, and return its value."""
        value = Value(name=self.fresh_name(name))
        self.set_constant(value, array)
        self._graph.register_initializer(value)
        return value

    def add_view(self, name: str, value: Value, shape: Sequence[int]) -> Value | None:
        """Store a constant with the numbers of another, at the same place of a file; None: they lie in the graph."""
        numbers = value.const_value
        if not isinstance(numbers, ir.ExternalTensor):
            return None
        view = Value(name=self.fresh_name(name))
        view.const_value = ir.ExternalTensor(
            numbers.path, numbers.offset, numbers.length, numbers.dtype, shape=ir.Shape(shape), name=str(view.name)
        )
        view.shape, view.type = ir.Shape(shape), ir.TensorType(numbers.dtype)
        self._graph.register_initializer(view)
        return view

    def set_input(self, node: Node, index: int, new: Array | Value | None) -> None:
        """Make `new` the node's input at `index`, which may be one past the end or an omitted one.

        An array becomes an initializer of its own, so other readers of the old value keep theirs.
        """
        if index >= len(node.inputs):
            node.resize_inputs(index + 1)
        if isinstance(new, np.ndarray):
            old = node.inputs[index]
            new = self.add_initializer((old.name if old is not None else None) or f"{node.name}_{index}", new)
        node.replace_input_with(index, new)

    def set_constant(self, value: Value, array: Array) -> None:
        """Store other numbers under the name of an initializer, for all that read it."""
        value.const_value = stored(array, str(value.name))
        value.shape, value.type = ir.Shape(array.shape), ir.TensorType(value.const_value.dtype)

    def set_attribute(self, node: Node, name: str, value: AttributeValue | None) -> None:
        """Write an attribute; None removes it."""
        if value is None:
            node.attributes.pop(name, None)
        else:
            node.attributes.add(ir.convenience.convert_attribute(name, value))

    def insert(
        self,
        op: str,
        inputs: Sequence[Value | None],
        attributes: Mapping[str, AttributeValue] | None = None,
        *,
        domain: str = "",
        outputs: int | Sequence[str] = 1,
        before: Node | None = None,
        after: Node | None = None,
        name: str = "",
    ) -> Node:
        """Add a node and return it; its values are `node.outputs`.

        Args:
            op: The op's type.
            inputs: Values, None where an optional input is left out.
            attributes: Numbers, texts, or lists of them.
            domain: Operator set; it is imported in version 1 unless the model has it.
            outputs: How many, or their wished names; a name that is taken gets a number.
            before: Place it right before this node.
            after: Place it right after this node; with neither, at the end (`to_model` sorts).
            name: Name of the node; empty: the op's.
        """
        node_name = self.fresh_name(name or op)
        wished = [f"{node_name}_output_{i}" for i in range(outputs)] if isinstance(outputs, int) else outputs
        values = [Value(name=self.fresh_name(base)) for base in wished]
        node = ir.node(op, inputs, dict(attributes or {}), domain=domain, outputs=values, name=node_name)
        if before is not None:
            self._graph.insert_before(before, node)
        elif after is not None:
            self._graph.insert_after(after, node)
        else:
            self._graph.append(node)
        return node

    def replace(self, value: Value, by: Value, *, keep_name: bool = False) -> bool:
        """Let everything that reads `value` read `by`; outputs keep their names.

        Args:
            value: What is read now.
            by: What shall be.
            keep_name: Let `by` take name, type and shape of `value` also where that is no output.

        Returns:
            False, with nothing changed, where an output would lose its name: `value` is an output, and `by`
            is an input, a constant, an output itself, or a value of another graph.
        """
        if value is by:
            return False
        if value.is_graph_output():
            if by.producer() is None or by.is_graph_output() or by.graph is not value.graph:
                return False
            self._move_output(value, by)
        elif keep_name:
            self._move_name(value, by)
        value.replace_all_uses_with(by)
        return True

    def bypass(self, node: Node, keep: Node | Value | None = None) -> bool:
        """Take out a node with one used output; its readers read `keep` instead.

        Args:
            node: The node to remove.
            keep: A node (its first output) or a value; None: the node's first input.

        Returns:
            False, with nothing changed, where `replace` refuses, or where another output is used.
        """
        by = keep.outputs[0] if isinstance(keep, Node) else keep if keep is not None else node.inputs[0]
        others_used = any(output.uses() or output.is_graph_output() for output in node.outputs[1:])
        if by is None or others_used or not self.replace(node.outputs[0], by):
            return False
        self.remove(node)
        return True

    def remove(self, node: Node) -> None:
        """Remove a node that nothing reads.

        Raises:
            ValueError: If something does.
        """
        self._graph.remove(node, safe=True)

    def drop_input(self, value: Value) -> bool:
        """Ask a caller no longer for an input that nothing reads; return whether that could be."""
        if value.uses() or value.is_graph_output() or value not in self._graph.inputs:
            return False
        self._graph.inputs.remove(value)
        return True

    def drop_output(self, value: Value) -> None:
        """Give an output no longer; what made it stays until `remove_unused`."""
        self._graph.outputs.remove(value)

    def remove_unused(self) -> int:
        """Remove nodes and constants that no output needs, and return how many."""
        before = len(self._graph) + len(self._graph.initializers)
        RemoveUnusedNodesPass()(self._model)
        return before - len(self._graph) - len(self._graph.initializers)

    def deduplicate_initializers(self) -> int:
        """Let equal constants be one, in subgraphs too, and return how many were stored once more."""
        before = self._count_initializers()
        DeduplicateHashedInitializersPass()(self._model)
        return before - self._count_initializers()

    def _count_initializers(self) -> int:
        return sum(len(graph.initializers) for graph in self._model.graphs())

    def set_shape(self, value: Value, shape: Sequence[int | str | None]) -> None:
        """Write the shape of a value, most useful for an input; `infer_shapes` carries it on."""
        value.shape = ir.Shape(shape)

    def infer_shapes(self) -> None:
        """Derive the shapes and types of all values; what ONNX cannot derive stays as it was."""
        self._graph.sort()
        try:
            inferred = onnx.shape_inference.infer_shapes(ir.to_proto(self._without_weights()), data_prop=True).graph
        except (InferenceError, ValueError):  # a foreign op: shapes are a help, not a need
            return
        found = {info.name: info for info in (*inferred.value_info, *inferred.output)}
        for value in (value for node in self._graph for value in node.outputs):
            if value.name in found:
                ir.serde.deserialize_value_info_proto(found[value.name], value)

    def _without_weights(self) -> ir.Model:
        """Return a copy with inputs in the place of large constants: no shape hangs on their numbers."""
        light = self._model.clone()
        for value in [*light.graph.initializers.values()]:
            stored = value.const_value
            if stored is not None and stored.size > _SHAPE_NUMBERS and not value.is_graph_input():
                del light.graph.initializers[str(value.name)]
                value.shape, value.type = ir.Shape([*stored.shape]), ir.TensorType(stored.dtype)
                value.const_value = None
                light.graph.inputs.append(value)
        return light

    def _move_name(self, value: Value, by: Value) -> None:
        name = value.name
        value.name = self.fresh_name(f"{name}_replaced")
        by.name, by.type, by.shape = name, value.type, value.shape

    def _move_output(self, value: Value, by: Value) -> None:
        outputs = cast("ir.Graph", value.graph).outputs
        self._move_name(value, by)
        for i, output in enumerate(outputs):
            if output is value:
                outputs[i] = by

    def _used_names(self) -> set[str]:
        names = {value.name for value in (*self._graph.inputs, *self._graph.initializers.values())}
        for node in ir.traversal.RecursiveGraphIterator(self._graph):
            names |= {node.name, *(input_.name for input_ in (*node.inputs, *node.outputs) if input_ is not None)}
        return {name for name in names if name}


def _domain(node: Node) -> str:
    return "" if node.domain in _DEFAULT_DOMAIN else node.domain


def _constant_of_node(node: Node) -> Array | None:
    kind: Literal["value", "value_int", "value_ints", "value_float", "value_floats"]
    for kind in ("value", "value_int", "value_ints", "value_float", "value_floats"):
        result = node.attributes.get(kind)
        if result is not None and not result.is_ref():
            if kind == "value":
                return result.as_tensor().numpy()
            return np.array(result.value, np.float32 if "float" in kind else np.int64)
    return None
