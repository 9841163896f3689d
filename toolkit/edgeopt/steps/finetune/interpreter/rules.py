"""How each kind of op computes several samples at once: a rule says along which axis its outputs hold them.

A rule raises `Unproven` unless the op treats the places of the axis of samples alike and apart from each other. Shapes
are those of one sample, exactly, so that a constant 1 in a Reshape is no trap.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from edgeopt.executors._torch.ops._node import Node, given, ints
from edgeopt.executors._torch.ops.reductions import reduced_axes

Shape = tuple[int, ...]
_ALL = 2**62
"""As the end of a Slice: all that follows."""


class Unproven(Exception):  # noqa: N818 - no failure: the samples are then computed one by one
    """Nothing is known of how a node treats the axis of the samples."""


@dataclass(frozen=True, slots=True)
class Case:
    """A node, with the shapes that one sample has."""

    node: Node
    shapes: Sequence[Shape | None]
    """Shapes of the inputs; None: left out."""
    axes: Sequence[int | None]
    """Axes of the samples in the inputs; None: the same for all samples, or left out."""
    made: Sequence[Shape]
    known: Sequence[torch.Tensor | None]
    samples: int

    @property
    def shape(self) -> Shape:
        """The shape of the first input."""
        return self.shapes[0] or ()

    @property
    def several(self) -> list[int]:
        """Places of the inputs that hold samples."""
        return [place for place, axis in enumerate(self.axes) if axis is not None]

    def first_alone(self) -> int:
        """Return the axis of the first input, which must be the only one with samples."""
        axis = self.axes[0] if self.axes else None
        if axis is None or self.several != [0]:
            raise Unproven
        return axis


@dataclass(frozen=True, slots=True)
class Ruling:
    """How a node computes all samples."""

    axes: Sequence[int]
    """Axes of the samples, for each output."""
    replaced: Mapping[int, torch.Tensor] = field(default_factory=dict)
    """Constants in the place of inputs."""
    repeats: Mapping[int, int] = field(default_factory=dict)
    """Inputs written once for each sample: place -> axis."""
    shape: Shape | None = None
    """The node is a Reshape to this shape."""


Rule = Callable[[Case], Ruling]


def _elementwise(case: Case) -> Ruling:
    """Places along the axis, counted from the end as broadcasting does, must be the same in all inputs."""
    shapes = [other or () for other in case.shapes]
    ends = {len(shapes[place]) - axis for place in case.several if (axis := case.axes[place]) is not None}
    sizes = {shapes[place][axis] for place in case.several if (axis := case.axes[place]) is not None}
    if len(ends) > 1 or len(sizes) > 1:
        raise Unproven
    end, size, repeats = ends.pop(), sizes.pop(), {}
    axis = len(case.made[0]) - end
    if axis < 0 or case.made[0][axis] != size:
        raise Unproven
    for place, shape in enumerate(shapes):
        if case.axes[place] is None and len(shape) >= end and shape[-end] != 1:
            repeats[place] = len(shape) - end  # as many places as one sample has
    return Ruling([axis] * len(case.made), repeats=repeats)


def _first_axis(case: Case) -> Ruling:
    """The op computes each place of axis 0 by itself."""
    if case.first_alone() != 0:
        raise Unproven
    return Ruling([0] * len(case.made))


def _apart(touched: Callable[[Case], Sequence[int]]) -> Rule:
    """Return the rule of ops that mix or move places of some axes only, and keep all axes."""

    def rule(case: Case) -> Ruling:
        axis = case.first_alone()
        if axis in [number % len(case.shape) for number in touched(case)]:
            raise Unproven
        return Ruling([axis] * len(case.made))

    return rule


def _softmax_axes(case: Case) -> Sequence[int]:
    node, rank = case.node, len(case.shape)
    if node.opset >= 13:
        return [node.get("axis", -1)]
    return range(node.get("axis", 1) % rank, rank)


def _last_axes(case: Case) -> Sequence[int]:
    return range(case.node.get("axis", -1) % len(case.shape), len(case.shape))


def _reduce(case: Case) -> Ruling:
    axis, rank = case.first_alone(), len(case.shape)
    if len(case.shapes) > 1 and case.shapes[1] is not None and case.known[1] is None:
        raise Unproven
    if case.node.op in ("ArgMax", "ArgMin"):
        touched: Sequence[int] = [case.node.get("axis", 0) % rank]
    else:
        touched = reduced_axes(case.node, rank, case.known[1] if len(case.known) > 1 else None)
    if axis in touched:
        raise Unproven
    kept = case.node.get("keepdims", 1)
    return Ruling([axis if kept else axis - sum(number < axis for number in touched)])


def _reshape(case: Case) -> Ruling:
    """Before the samples' axis, a Reshape must leave as many numbers as there were: then the samples stay in a row."""
    axis, made = case.first_alone(), case.made[0]
    before = math.prod(case.shape[:axis])
    places = [place for place in range(len(made)) if math.prod(made[:place]) == before]
    if not places:
        raise Unproven
    sizes = list(made)
    sizes[places[0]] *= case.samples
    return Ruling([places[0]], shape=tuple(sizes))


def _expand(case: Case) -> Ruling:
    axis, made = case.first_alone(), list(case.made[0])
    new = len(made) - (len(case.shape) - axis)
    if made[new] != case.shape[axis]:
        raise Unproven
    made[new] *= case.samples
    return Ruling([new], {1: torch.tensor(made)})


def _tile(case: Case) -> Ruling:
    axis = case.first_alone()
    if ints(_required(case, 1))[axis] != 1:
        raise Unproven
    return Ruling([axis])


def _required(case: Case, place: int) -> torch.Tensor:
    result = case.known[place] if place < len(case.known) else None
    if result is None:
        raise Unproven
    return result


def _transpose(case: Case) -> Ruling:
    order = case.node.get("perm", list(reversed(range(len(case.shape)))))
    return Ruling([order.index(case.first_alone())])


def _concat(case: Case) -> Ruling:
    several = case.several
    axis, rank = case.axes[several[0]], len(case.made[0])
    assert axis is not None
    sizes = {(shape or ())[axis] for shape in case.shapes}
    if len({case.axes[number] for number in several}) > 1 or len(sizes) > 1 or case.node.get("axis", 0) % rank == axis:
        raise Unproven
    return Ruling([axis], repeats={place: axis for place, other in enumerate(case.axes) if other is None})


def _slice(case: Case) -> Ruling:
    axis, rank = case.first_alone(), len(case.shape)
    if case.node.opset < 10:
        where = case.node.get("axes", None) or range(len(case.node.get("starts", [])))
        if axis in [number % rank for number in where]:
            raise Unproven
        return Ruling([axis])
    starts, ends = ints(_required(case, 1)), ints(_required(case, 2))
    where = ints(_optional(case, 3)) or list(range(len(starts)))
    steps = ints(_optional(case, 4)) or [1] * len(starts)
    for place, number in enumerate(where):
        if number % rank == axis:
            if steps[place] != 1 or case.made[0][axis] != case.shape[axis]:
                raise Unproven
            starts[place], ends[place] = 0, _ALL
    return Ruling([axis], {1: torch.tensor(starts), 2: torch.tensor(ends)})


def _optional(case: Case, place: int) -> torch.Tensor | None:
    is_there = place < len(case.shapes) and case.shapes[place] is not None
    return _required(case, place) if is_there else None


def _gather(case: Case) -> Ruling:
    data, indices = case.axes
    axis = case.node.get("axis", 0) % len(case.shape)
    if data is None and indices is not None:
        return Ruling([axis + indices])
    if indices is not None or data is None or data == axis:
        raise Unproven
    return Ruling([data if data < axis else data - 1 + len(case.shapes[1] or ())])


def _pad(case: Case) -> Ruling:
    axis, rank = case.first_alone(), len(case.shape)
    pads = given(case.node, "pads", _optional(case, 1)) or []
    where = [other % rank for other in ints(_optional(case, 3))] or list(range(rank))
    if axis in where:
        place = where.index(axis)
        if pads[place] or pads[place + len(where)]:
            raise Unproven
    return Ruling([axis])


def _resize(case: Case) -> Ruling:
    axis, node = case.first_alone(), case.node
    where = [value % len(case.shape) for value in node.get("axes", range(len(case.shape)))]
    if case.made[0][axis] != case.shape[axis] or node.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise Unproven
    if axis not in where:
        return Ruling([axis])
    if node.get("coordinate_transformation_mode", "") == "tf_crop_and_resize":
        raise Unproven
    sizes = _optional(case, 3)
    if sizes is not None and sizes.numel():
        wanted = ints(sizes)
        wanted[where.index(axis)] *= case.samples
        return Ruling([axis], {3: torch.tensor(wanted)})
    scales = _optional(case, 1 if node.op == "Upsample" or node.opset < 11 else 2)
    factors = node.get("scales", []) if scales is None else scales.reshape(-1).tolist()
    if factors[where.index(axis)] != 1:
        raise Unproven
    return Ruling([axis])


def _matmul(case: Case) -> Ruling:
    """The axis may count matrices, rows of the left or columns of the right; never what is summed over."""
    if len(case.several) == 2:
        left, right = (len(case.shapes[place] or ()) - (case.axes[place] or 0) for place in (0, 1))
        if left < 3 or left != right:
            raise Unproven
        return _elementwise_of_stacks(case)
    place = case.several[0]
    end = len(case.shapes[place] or ()) - (case.axes[place] or 0)
    if end > 2:
        return _elementwise_of_stacks(case)
    if end != (2 if place == 0 else 1) or min(len(shape or ()) for shape in case.shapes) < 2:
        raise Unproven
    return Ruling([len(case.made[0]) - end])


def _elementwise_of_stacks(case: Case) -> Ruling:
    if min(len(shape or ()) for shape in case.shapes) < 2:
        raise Unproven
    whole = [(*(shape or ())[:-2], 1, 1) for shape in case.shapes]
    return _elementwise(replace(case, shapes=whole))


def _gemm(case: Case) -> Ruling:
    if case.axes[0] != 0 or case.axes[1] is not None or case.node.get("transA", 0):
        raise Unproven
    added = case.shapes[2] if len(case.shapes) > 2 else None
    if added is None or (case.axes[2] is None and (len(added) < 2 or added[0] == 1)):
        return Ruling([0])
    if case.axes[2] is None:
        return Ruling([0], repeats={2: 0})
    if case.axes[2] != 0 or len(added) != 2 or added[0] != case.shape[0]:
        raise Unproven
    return Ruling([0])


def _grid_sample(case: Case) -> Ruling:
    if case.axes[0] not in (None, 0) or case.axes[1] not in (None, 0):
        raise Unproven
    return Ruling([0], repeats={place: 0 for place, axis in enumerate(case.axes) if axis is None})


def _one_grid(case: Case) -> Ruling:
    axis = case.first_alone()
    if math.prod(case.shapes[1] or ()) != 1 and axis == case.node.get("axis", 1) % len(case.shape):
        raise Unproven
    return Ruling([axis])


def _einsum(case: Case) -> Ruling:
    terms, _, result = case.node.get("equation", "").replace(" ", "").partition("->")
    letters = {term[axis] for term, axis in zip(terms.split(","), case.axes, strict=True) if axis is not None}
    others = [term for term, axis in zip(terms.split(","), case.axes, strict=True) if axis is None]
    letter = letters.pop()
    if letters or "." in terms or letter not in result or any(letter in term for term in others):
        raise Unproven
    if any(term.count(letter) > 1 for term in terms.split(",")):
        raise Unproven
    return Ruling([result.index(letter)])


def _recurrent(case: Case) -> Ruling:
    first = bool(case.node.get("layout", 0))
    axis = 0 if first else 1
    if case.axes[0] != axis or any(other is not None for other in case.axes[1:4]):
        raise Unproven
    repeats = {}
    for place, states in ((4, 0), (5, axis), (6, axis)):
        if place < len(case.shapes) and case.shapes[place] is not None and case.axes[place] != states:
            if case.axes[place] is not None:
                raise Unproven
            repeats[place] = states
    return Ruling([0 if first else 2, axis, axis][: len(case.made)], repeats=repeats)


_ELEMENTWISE = (
    *("Abs", "Neg", "Sqrt", "Exp", "Log", "Floor", "Ceil", "Reciprocal", "Sign", "Erf", "Sin", "Cos", "Tan", "Asin"),
    *("Acos", "Atan", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh", "IsNaN", "Not", "Round", "IsInf", "Identity", "Cast"),
    *("Add", "Sub", "Mul", "Div", "Mod", "Pow", "Clip", "Where", "Dropout", "And", "Or", "Xor", "Equal", "Less"),
    *("Greater", "LessOrEqual", "GreaterOrEqual", "Min", "Max", "Sum", "Mean", "CastLike", "Relu", "Sigmoid", "Tanh"),
    *("Softplus", "Softsign", "HardSwish", "Mish", "Swish", "LeakyRelu", "PRelu", "Elu", "Celu", "Selu", "Gelu"),
    *("HardSigmoid", "ThresholdedRelu", "Shrink", "com.microsoft.QuickGelu", "com.microsoft.Gelu"),
    *("com.microsoft.BiasGelu", "com.microsoft.FastGelu"),
)
_FIRST_AXIS = (
    *("Conv", "ConvTranspose", "com.microsoft.FusedConv", "MaxPool", "AveragePool", "LpPool", "GlobalAveragePool"),
    *("GlobalMaxPool", "GlobalLpPool", "BatchNormalization", "InstanceNormalization", "GroupNormalization", "LRN"),
    *("DepthToSpace", "SpaceToDepth"),
)
_REDUCED = ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSum", "LogSumExp")
RULES: Mapping[str, Rule] = {
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
    **dict.fromkeys(_FIRST_AXIS, _first_axis),
    **dict.fromkeys((*(f"Reduce{name}" for name in _REDUCED), "ArgMax", "ArgMin"), _reduce),
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax"), _apart(_softmax_axes)),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization"), _apart(_last_axes)),
    **dict.fromkeys(("LpNormalization", "TopK"), _apart(lambda case: [case.node.get("axis", -1)])),
    "MeanVarianceNormalization": _apart(lambda case: case.node.get("axes", [0, 2, 3])),
    "Split": _apart(lambda case: [case.node.get("axis", 0)]),
    **dict.fromkeys(("FakeQuantize", "QuantizeLinear", "DequantizeLinear"), _one_grid),
    **dict.fromkeys(("com.microsoft.QuantizeLinear", "com.microsoft.DequantizeLinear"), _one_grid),
    "CumSum": _apart(lambda case: ints(_required(case, 1))),
    "Trilu": _apart(lambda case: [-1, -2]),
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze"), _reshape),
    "Expand": _expand,
    "Tile": _tile,
    "Transpose": _transpose,
    "Concat": _concat,
    "Slice": _slice,
    "Gather": _gather,
    "Pad": _pad,
    "Resize": _resize,
    "Upsample": _resize,
    "GridSample": _grid_sample,
    "MatMul": _matmul,
    "com.microsoft.FusedMatMul": _matmul,
    "Gemm": _gemm,
    "com.microsoft.FusedGemm": _gemm,
    "Einsum": _einsum,
    "LSTM": _recurrent,
    "GRU": _recurrent,
    "RNN": _recurrent,
}
