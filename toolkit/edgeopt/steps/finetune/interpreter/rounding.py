"""Steps that keep a quantized model on its grids while the floats behind it are trained, and the way back to integers.

A scale is its first value times a factor, which is the parameter: so one rate of learning fits all scales, and each
stays above zero. A stored constant is floats, rounded anew in every run. The scale of a bias is always the product of
its layer's two, as engines take it to be.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper

from edgeopt.executors._torch.ops._node import Compute, Node, tensor_of
from edgeopt.executors._torch.ops.quantization import along, fake_quantize, on_grid
from edgeopt.executors._torch.plan import NodeStep, Values
from edgeopt.graph.model import Model
from edgeopt.steps.finetune.interpreter.grids import Grids, StoredIntegers, grids_of
from edgeopt.steps.quantize.grids.weights import MOST_OF_TWO

_LEAST, _MOST = 1 / 64, 64.0
"""Least and most of a factor."""
_PAIR, _SHORT_OF_PAIR = MOST_OF_TWO * (1 + 1e-6), MOST_OF_TWO * (1 - 1e-3)
"""Two neighbours of up to 128 steps before rounding, halves to even, have no more behind it; a larger one is made a bit
smaller than that."""


@dataclass(frozen=True, slots=True)
class Rounding:
    """The parts of a model that are trained on grids."""

    grids: Grids = field(default_factory=Grids)
    steps: tuple[NodeStep, ...] = ()
    """Steps that make scales and rounded constants from the parameters."""
    parameters: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """First values of what is trained, by the names of integer constants and scales."""
    frozen: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Further constants, by the names under which the steps read them."""


def parameter_key(name: str) -> str:
    """Return the name under which steps read the parameter of an integer constant or a scale."""
    return f"{name}\nparameter"  # no name of a model breaks the line


def rounding_of(model: Model, wanted: Collection[str]) -> Rounding:
    """Return how the grids of a model are trained.

    Args:
        model: With QuantizeLinear and DequantizeLinear.
        wanted: Names of integer constants and scales of `grids_of(model)`.
    """
    grids = grids_of(model)
    trained = {grids.alike.get(name, name) for name in wanted}
    values = {stored.name: tensor_of(stored) for stored in model.proto.graph.initializer}
    made = _Making(values, grids, trained)
    made.scales()
    for stored in grids.stored:
        made.constant(stored)
    return Rounding(grids, tuple(made.steps), made.parameters, made.frozen)


class _Making:
    """Steps, parameters and constants, as they are added."""

    def __init__(self, values: Values, grids: Grids, trained: Collection[str]) -> None:
        self.values, self.grids, self.trained = values, grids, trained
        self.moving = {name for name, root in grids.alike.items() if root in trained}
        self.steps: list[NodeStep] = []
        self.parameters: Values = {}
        self.frozen: Values = {}

    def scales(self) -> None:
        """Add what makes each scale of its factor, and large enough for the weights that keep pairs."""
        paired: dict[str, list[StoredIntegers]] = {}
        for stored in self.grids.stored:
            if stored.keeps_pairs and (stored.integers in self.trained or stored.scale in self.moving):
                paired.setdefault(stored.scale, []).append(stored)
        for name in dict.fromkeys([*self.grids.alike, *paired]):
            weights = paired.get(name, [])
            if name in self.moving:
                root = self.grids.alike[name]
                self.parameters.setdefault(root, torch.ones_like(self.values[root]))
                self._freeze(f"{name}\nfirst", self.values[name])
                made = f"{name}\nfree" if weights else name
                self._add("scale", _scaled, [parameter_key(root), f"{name}\nfirst"], made)
            elif weights:
                self._freeze(made := f"{name}\nfree", self.values[name])
            if weights:
                axes = [stored.output_axis for stored in weights]
                sources = [parameter_key(stored.integers) for stored in weights]
                self._add("least scale", _large_enough(axes), [made, *sources], name)

    def constant(self, stored: StoredIntegers) -> None:
        """Add what rounds a stored constant, if it or its scale is trained."""
        moved = {stored.scale, *stored.factors} & self.moving or any(
            step.outputs == (stored.scale,) for step in self.steps
        )
        if stored.integers not in self.trained and not moved:
            return
        real = floats_of(stored, self.values[stored.integers], self.values[stored.scale])
        if stored.integers in self.trained:
            self.parameters[stored.integers] = real
        else:
            self._freeze(parameter_key(stored.integers), real)
        if stored.factors:
            self._add("scale of a bias", _product, stored.factors, stored.scale)

        def rounded(_node: Node, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
            step = along(scale, stored.axis, x)
            return on_grid(x, step if step.ndim else step.reshape([1] * x.ndim), stored.low, stored.high)

        self._add("rounded constant", rounded, [parameter_key(stored.integers), stored.scale], stored.made)

    def _freeze(self, key: str, value: torch.Tensor) -> None:
        self.frozen[key] = value

    def _add(self, op: str, compute: Compute, inputs: Sequence[str], made: str) -> None:
        self.steps.append(NodeStep(Node(op, made, {}, 0, 1), compute, tuple(inputs), (made,)))


def floats_of(stored: StoredIntegers, integers: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return what stored integers stand for."""
    real = (integers.to(torch.float64) - stored.zero) * along(scale.to(torch.float64), stored.axis, integers)
    return real.to(scale.dtype)


def integers_of(stored: StoredIntegers, real: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return the integers to which floats are rounded in a run."""
    steps = (real / along(scale, stored.axis, real)).round().to(torch.float64)
    dtype: torch.dtype = getattr(torch, stored.dtype)
    return (steps.clamp(stored.low, stored.high) + stored.zero).to(dtype)


def _scaled(_node: Node, factor: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
    return first * factor.clamp(_LEAST, _MOST)


def _product(_node: Node, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return (x * weight).detach()


def _large_enough(axes: Sequence[int]) -> Compute:
    """Return what raises a scale until the neighbours of weights saturate no 16 bits."""

    def compute(_node: Node, scale: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        for weight, axis in zip(weights, axes, strict=True):
            pairs = _largest_pairs(weight.detach(), axis)
            pairs = pairs.reshape(scale.shape) if scale.numel() > 1 else pairs.max()
            scale = torch.where(pairs > _PAIR * scale, pairs / _SHORT_OF_PAIR, scale)
        return scale

    return compute


def _largest_pairs(weight: torch.Tensor, axis: int) -> torch.Tensor:
    """Return the largest sum of two neighbours of one sign of each output channel.

    Source: the same as in `edgeopt.steps.quantize.grids.weights`, in torch.
    """
    rows = weight.movedim(axis, 0)
    last = rows.movedim(1 if axis == 0 else -1, -1) if rows.ndim > 1 else rows[:, None]
    return torch.maximum(_pair_sums(last), _pair_sums(last.reshape(len(last), -1)))


def _pair_sums(rows: torch.Tensor) -> torch.Tensor:
    even = torch.nn.functional.pad(rows, (0, rows.shape[-1] % 2))
    sums = [
        (value[..., ::2] + value[..., 1::2]).reshape(len(rows), -1).amax(1) for value in (even.relu(), (-even).relu())
    ]
    return torch.maximum(*sums)


def with_pairs_joined(steps: Sequence[NodeStep], values: Mapping[str, torch.Tensor]) -> list[NodeStep]:
    """Return the steps with each QuantizeLinear and the one DequantizeLinear behind it as one.

    Args:
        steps: Of a graph.
        values: Its constants by name.
    """
    readers: dict[str, list[NodeStep]] = {}
    for step in steps:
        for name in step.inputs:
            readers.setdefault(name, []).append(step)
    joined, gone = dict[str, NodeStep](), set[str]()
    for step in steps:
        behind = readers.get(step.outputs[0], [])
        is_pair = (
            step.node.op.endswith("QuantizeLinear") and len(behind) == 1 and behind[0].inputs[1:] == step.inputs[1:]
        )
        if is_pair and behind[0].node.op.endswith("DequantizeLinear") and _is_single(step, values):
            joined[behind[0].outputs[0]] = NodeStep(
                Node("FakeQuantize", step.node.name, step.node.attributes, step.node.opset, 1),
                *(fake_quantize, step.inputs, behind[0].outputs),
            )
            gone.add(step.outputs[0])
    return [joined.get(other.outputs[0], other) for other in steps if other.outputs[0] not in gone]


def _is_single(step: NodeStep, values: Mapping[str, torch.Tensor]) -> bool:
    scale = values.get(step.inputs[1])
    return scale is not None and scale.numel() == 1


def store(rounding: Rounding, proto: onnx.ModelProto, parameters: Mapping[str, torch.Tensor], made: Values) -> None:
    """Write scales and integers into a model, in place; what did not change keeps its bytes.

    Args:
        rounding: What is trained.
        proto: A copy of the model.
        parameters: As they are now, by the names of integer constants and scales.
        made: What the steps made of them: scales.
    """
    tensors = {constant.name: constant for constant in proto.graph.initializer}
    before = {
        name: tensor_of(tensors[name]) for stored in rounding.grids.stored for name in (stored.integers, stored.scale)
    }
    scales = [step.outputs[0] for step in rounding.steps if step.outputs[0] in tensors]
    for name in dict.fromkeys(scales):
        write(tensors[name], made[name])
    written = {step.outputs[0] for step in rounding.steps}
    for other in rounding.grids.stored:
        if other.made not in written:
            continue
        first = floats_of(other, before[other.integers], before[other.scale])
        real = parameters.get(other.integers, rounding.frozen.get(parameter_key(other.integers), first)).detach().cpu()
        scale = made.get(other.scale, before[other.scale]).detach().cpu()
        if not (torch.equal(real, first) and torch.equal(scale, before[other.scale])):
            write(tensors[other.integers], integers_of(other, real, scale))


def write(tensor: onnx.TensorProto, value: torch.Tensor) -> None:
    """Write numbers into a stored constant in its own type; the same numbers leave its bytes as they are."""
    old = tensor_of(tensor)
    new = value.detach().to("cpu", old.dtype).reshape(old.shape)
    if not torch.equal(old, new):
        array: np.ndarray[Any, Any] = new.contiguous().numpy()
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
