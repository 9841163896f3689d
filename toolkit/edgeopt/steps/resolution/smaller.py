"""A model for another input size: what follows from the size is written anew where that is proven, else refused.

Convolutions, pooling and elementwise ops hold for any size. A Reshape, Resize or Slice holds sizes as numbers, each
of which is found in the shapes around it, or not at all; weights and constants of the input's own size are refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from edgeopt.errors import UnsupportedError
from edgeopt.graph.graph import Array, Graph, Node, Value, attribute
from edgeopt.graph.model import Model
from edgeopt.recipes.inputs.preprocess import Layout

Size = tuple[int, int]
"""Height and width in pixels."""
Shape = tuple[int, ...]
_TO_THE_END = np.iinfo(np.int64).max
_LARGEST_LOCAL = 3
"""A pooling window of this size or less is one of a place, also where it happens to cover the whole picture."""

_OF_ANY_SIZE = frozenset(
    {"Abs", "Add", "And", "AveragePool", "BatchNormalization", "Cast", "Ceil", "Celu", "Clip", "Concat", "Constant"}
    | {"Conv", "ConvTranspose", "Cos", "DepthToSpace", "DequantizeLinear", "Div", "Dropout", "Elu", "Equal", "Erf"}
    | {"Exp", "Flatten", "Floor", "Gather", "Gelu", "Gemm", "GlobalAveragePool", "GlobalMaxPool", "Greater"}
    | {
        "GroupNormalization",
        "HardSigmoid",
        "HardSwish",
        "Identity",
        "InstanceNormalization",
        "LRN",
        "LayerNormalization",
    }
    | {"LeakyRelu", "Less", "Log", "LogSoftmax", "LpPool", "MatMul", "Max", "MaxPool", "Mean", "Min", "Mish", "Mul"}
    | {"Neg", "Not", "Or", "PRelu", "Pad", "Pow", "QuantizeLinear", "Reciprocal", "ReduceL2", "ReduceMax", "ReduceMean"}
    | {"ReduceMin", "ReduceSum", "Relu", "Reshape", "Resize", "Round", "Selu", "Sigmoid", "Sign", "Sin", "Slice"}
    | {"Softmax", "Softplus", "Softsign", "SpaceToDepth", "Split", "Sqrt", "Squeeze", "Sub", "Sum", "Swish", "Tanh"}
    | {"ThresholdedRelu", "Transpose", "Unsqueeze", "Upsample", "Where"}
)
_BROADCASTING = frozenset(
    {"Add", "And", "Div", "Equal", "Greater", "Less", "Max", "Mean", "Min", "Mul", "Or", "PRelu", "Pow", "Sub", "Sum"}
    | {"Where", "Concat"}
)


@dataclass
class _Work:
    graph: Graph
    before: dict[str, Shape]
    """Shapes at the old size, by value."""
    is_stale: bool = field(default=True)

    def old(self, value: Value | None) -> Shape | None:
        return self.before.get(str(value.name)) if value is not None else None

    def new(self, value: Value | None) -> Shape | None:
        """Return the shape at the new size."""
        if self.is_stale:
            _forget_shapes(self.graph)
            self.graph.infer_shapes()
            self.is_stale = False
        return self.graph.shape(value)

    def changed_axes(self, value: Value | None) -> tuple[int, ...]:
        """Return the axes whose size is another one now."""
        old, new = self.old(value), self.new(value)
        if old is None or new is None or len(old) != len(new):
            return ()
        return tuple(i for i, (a, b) in enumerate(zip(old, new, strict=True)) if a != b)

    def write(self, node: Node, place: int, numbers: Sequence[int]) -> None:
        self.graph.set_input(node, place, np.array(numbers, np.int64))
        self.is_stale = True


def with_input_size(model: Model, tensor: str, layout: Layout, size: Size) -> Model:
    """Return a model with the same weights for pictures of another size.

    Args:
        model: With fixed shapes; it is not changed.
        tensor: The input that takes the picture; empty: the only one.
        layout: Of that input.
        size: Height and width.

    Raises:
        UnsupportedError: If a node's constant or weights hold for the old size only, or nobody knows: it is named.
    """
    graph = Graph.from_model(model)
    graph.infer_shapes()
    values = [*graph.inputs, *(output for node in graph.nodes() for output in node.outputs)]
    before = {str(other.name): shape for other in values if (shape := graph.shape(other)) is not None}
    picture = next(input_ for input_ in graph.inputs if not tensor or input_.name == tensor)
    if (shape := before.get(str(picture.name))) is None or len(shape) != len(layout):
        raise UnsupportedError(f"input {picture.name} has no fixed shape", remedy="do not skip the step simplify")
    sides = dict(zip(layout.plane, size, strict=True))
    graph.set_shape(picture, tuple(sides.get(axis, mine) for axis, mine in enumerate(shape)))
    work = _Work(graph, before)
    for node in graph.nodes():
        _adapt(work, node)
    for node in graph.nodes():
        for value in node.outputs:
            if work.old(value) is not None and ((found := work.new(value)) is None or min(found, default=1) < 1):
                raise _refused(node, "it holds for its own input size only")
    return graph.to_model()


def _forget_shapes(graph: Graph) -> None:
    for node in graph.nodes():
        if node.op_type != "Constant":
            for value in node.outputs:
                value.shape = None


def _adapt(work: _Work, node: Node) -> None:
    """Write anew what a node holds of the size.

    Raises:
        UnsupportedError: If that is not known, or weights depend on it.
    """
    changed = [(input_, work.changed_axes(input_)) for input_ in node.inputs]
    if not any(axes for _, axes in changed):
        return
    if node.op_type not in _OF_ANY_SIZE or node.domain not in ("", "ai.onnx"):
        raise _refused(node, "nobody knows what it makes of another size")
    if node.op_type in _BROADCASTING:
        _require_no_constant_of_size(work, node)
    if node.op_type in _HANDLERS:
        _HANDLERS[node.op_type](work, node)


def _refused(node: Node, why: str) -> UnsupportedError:
    text = f"{node.op_type} {node.name} keeps the input size: {why}"
    return UnsupportedError(text, remedy="export the model at the size wanted")


def _require_no_constant_of_size(work: _Work, node: Node) -> None:
    """Raise where a constant lies along an axis that changes: a grid, anchors, an embedding of places."""
    for value, axes in ((input_, work.changed_axes(input_)) for input_ in node.inputs):
        old = work.old(value)
        for constant in (work.graph.constant(input_) for input_ in node.inputs):
            if old is None or constant is None:
                continue
            places = [axis - len(old) for axis in axes if len(old) - axis <= constant.ndim]
            own = attribute(node, "axis", 0) if node.op_type == "Concat" else None
            if any(constant.shape[i] > 1 for i in places if own is None or i != own % len(old) - len(old)):
                raise _refused(node, f"its constant of shape {'x'.join(map(str, constant.shape))} belongs to it")


def _reshape(work: _Work, node: Node) -> None:
    """Find each number of the target shape in the input's: a number is a product of neighbouring sizes."""
    old, new = work.old(node.inputs[0]), work.new(node.inputs[0])
    target = work.old(node.outputs[0])
    if old is None or new is None or target is None or work.graph.constant(node.inputs[1]) is None:
        raise _refused(node, "its target shape is not known")
    found = matched_sizes(old, new, target)
    if found is None:
        raise _refused(node, f"what {'x'.join(map(str, target))} is at another size is ambiguous")
    work.write(node, 1, found)


def matched_sizes(old: Shape, new: Shape, target: Shape) -> Shape | None:
    """Return the target of a Reshape for another input shape; None where that is ambiguous.

    Both shapes are cut into the shortest runs of equal product. A run that does not change keeps its numbers; of one
    that does, sizes other than 1 must become one number, or one number stay one.

    Args:
        old: Input shape at the old size.
        new: Input shape at the new size.
        target: Output shape at the old size.
    """
    made, i, j = list[int](), 0, 0
    while i < len(old) or j < len(target):
        first_i, first_j = i, j
        left, right = math.prod(old[i : i + 1]), math.prod(target[j : j + 1])
        i, j = min(i + 1, len(old)), min(j + 1, len(target))
        while left != right:
            if left < right and i < len(old):
                left, i = left * old[i], i + 1
            elif right < left and j < len(target):
                right, j = right * target[j], j + 1
            else:
                return None
        mine, theirs, wanted = old[first_i:i], new[first_i:i], target[first_j:j]
        if mine == theirs:
            made += wanted
        elif sum(size != 1 for size in wanted) == 1:
            made += [size if size == 1 else math.prod(theirs) for size in wanted]
        else:
            return None
    return tuple(made)


def _resize(work: _Work, node: Node) -> None:
    """Write sizes anew that are a whole multiple, or a whole part, of what comes in; scales hold as they are."""
    sizes = work.graph.constant(node.inputs[3]) if len(node.inputs) > 3 else None
    if sizes is None and len(node.inputs) > 3 and node.inputs[3] is not None:
        raise _refused(node, "its sizes are computed")
    if sizes is None:
        return
    old, new = work.old(node.inputs[0]), work.new(node.inputs[0])
    if old is None or new is None or len(sizes) != len(old):
        raise _refused(node, "its sizes are not those of all axes")
    made = [_scaled(*each) for each in zip(old, new, map(int, sizes), strict=True)]
    if any(one is None for one in made):
        raise _refused(node, f"its sizes {'x'.join(map(str, sizes.tolist()))} are no whole multiple of its input's")
    work.write(node, 3, [one for one in made if one is not None])


def _scaled(old: int, new: int, size: int) -> int | None:
    if old == new:
        return size
    if size % old == 0:
        return new * (size // old)
    return new // (old // size) if old % size == 0 and new % (old // size) == 0 else None


def _slice(work: _Work, node: Node) -> None:
    """Let cuts that reach the end of an axis reach it at any size; cuts at a place of their own are refused."""
    axes = work.changed_axes(node.inputs[0])
    old = work.old(node.inputs[0])
    arrays = [work.graph.constant(input_) for input_ in node.inputs[1:]]
    if old is None or any(array is None for array in arrays):
        raise _refused(node, "its cuts are computed")
    starts, ends, *others = [array for array in arrays if array is not None]
    along = [int(other) % len(old) for other in others[0]] if others else list(range(len(starts)))
    steps = others[1].tolist() if len(others) > 1 else [1] * len(starts)
    made = [int(end) for end in ends]
    for i, axis in enumerate(along):
        if axis in axes:
            if not (0 <= starts[i] < steps[i] and ends[i] >= old[axis]):
                raise _refused(node, f"it cuts from {starts[i]} to {ends[i]}")
            made[i] = _TO_THE_END
    work.write(node, 2, made)


def _pool(work: _Work, node: Node) -> None:
    """Let a window over the whole picture, a mean or maximum of all of it, stay that."""
    old, new = work.old(node.inputs[0]), work.new(node.inputs[0])
    window: tuple[int, ...] = attribute(node, "kernel_shape", ())
    if old is None or new is None or any(attribute(node, "pads", (0,))):
        return
    places = list(zip(window, old[2:], new[2:], strict=True))
    if all(size == whole > _LARGEST_LOCAL for size, whole, _ in places):
        work.graph.set_attribute(node, "kernel_shape", [now for *_, now in places])
        work.is_stale = True


def _product(work: _Work, node: Node) -> None:
    """Refuse weights whose rows are places of the picture."""
    axes = work.changed_axes(node.inputs[0])
    rank = len(work.old(node.inputs[0]) or ())
    is_turned = node.op_type == "Gemm" and attribute(node, "transA", 0)
    summed = 0 if is_turned else rank - 1
    constants: list[Array | None] = [work.graph.constant(input_) for input_ in node.inputs[1:2]]
    if summed in axes and constants[0] is not None:
        raise _refused(node, f"its weights {'x'.join(map(str, constants[0].shape))} have a row for each place")


def _along_one_axis(work: _Work, node: Node) -> None:
    """Refuse numbers along an axis that changes: places of a Gather, parts of a Split."""
    rank = len(work.old(node.inputs[0]) or ()) or 1
    if attribute(node, "axis", 0) % rank in work.changed_axes(node.inputs[0]):
        raise _refused(node, "it names places along an axis that becomes shorter")


_HANDLERS: dict[str, Callable[[_Work, Node], None]] = {
    "Reshape": _reshape,
    "Resize": _resize,
    "Slice": _slice,
    "AveragePool": _pool,
    "MaxPool": _pool,
    "LpPool": _pool,
    "Gemm": _product,
    "MatMul": _product,
    "Gather": _along_one_axis,
    "Split": _along_one_axis,
}
