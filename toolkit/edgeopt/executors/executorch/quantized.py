"""The nodes of a model as XNNPACK's partitioner reads them: integers with our own scales, and layers in one op each.

A layer runs on integers where it stands between a DequantizeLinear and a QuantizeLinear, with a Relu or a Clip between
at most, and its weights are stored in integers about 0. Everything else computes in float: its stored constants become
floats before, since what the partitioner does not take is computed by loops without vectors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.ao.quantization.fx._decomposed  # it registers the ops used below
from torch.nn import functional

from edgeopt.errors import ELSEWHERE, UnsupportedError
from edgeopt.executors._conversion.found_grids import FoundProduct
from edgeopt.executors._torch.ops._node import Compute, Node
from edgeopt.executors._torch.ops.convolution import convolved
from edgeopt.executors._torch.plan import NodeStep
from edgeopt.executors.executorch.found_grids import with_found_grids

_QUANTIZE = ("QuantizeLinear", "com.microsoft.QuantizeLinear")
_DEQUANTIZE = ("DequantizeLinear", "com.microsoft.DequantizeLinear")
_LAYERS = {"Conv": 0, "ConvTranspose": 1, "Gemm": 1, "MatMul": 1}
"""Axis of the output channels in a weight as it is stored; of a Gemm with transB it is 0."""
_LIMITS = ("Relu", "Clip")
_MOVES = ("MaxPool", "Concat", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose")
"""Ops that XNNPACK computes on integers with one grid on both sides. ExecuTorch's partitioner hands it such ops between
different grids all the same, and the program ends at its first run (1.5: error 0x1)."""
_DTYPES = {0: torch.uint8, 2: torch.uint8, 3: torch.int8}
"""`output_dtype` of a QuantizeLinear without a zero point -> its type; all other types are refused."""
_SHIFT = 128
"""Between the zero points of the same grid in uint8 and in int8, the only one that XNNPACK's kernels take."""
_Constants = dict[str, torch.Tensor]


def for_xnnpack(
    steps: Sequence[NodeStep],
    constants: Mapping[str, torch.Tensor],
    outputs: Sequence[str],
    products: Mapping[str, FoundProduct],
) -> tuple[list[NodeStep], _Constants, frozenset[str]]:
    """Return steps and constants to trace, and the names of the constants that may be computed with before.

    Args:
        steps: Of the graph.
        constants: By name.
        outputs: Of the model.
        products: As `found_products`.

    Raises:
        UnsupportedError: If an output of the model is integers of a grid.
    """
    known = dict(constants)
    steps, weights = with_found_grids(steps, known, outputs, products)
    rewriting = _Rewriting(steps, known, outputs)
    rewriting.dequantize_what_stays_in_float()
    rewriting.move_on_the_grid_of_results()
    made = rewriting.with_own_dequantizers()
    made = [_computed_so(step, rewriting.constants) for step in made]
    return made, rewriting.constants, frozenset(rewriting.constants.keys() - rewriting.integers - weights)


class _Rewriting:
    """Questions about the steps of a graph, and what changes in them."""

    def __init__(self, steps: Sequence[NodeStep], constants: _Constants, outputs: Sequence[str]) -> None:
        self.steps, self.constants, self.outputs = list(steps), constants, frozenset(outputs)
        self.integers = set[str]()
        """Names of weights that stay integers."""
        self._number()
        self.steps = [self._with_zero(step) for step in self.steps]
        self._number()
        for name in self.outputs:
            maker = self.makers.get(name)
            if maker is not None and maker.node.op in _QUANTIZE:
                raise UnsupportedError(
                    f"executorch is given no {maker.node.op} whose integers leave the model: {name!r}",
                    remedy="export the model with outputs in float",
                )

    def _with_zero(self, step: NodeStep) -> NodeStep:
        """Write down the zero point that a node leaves out: its type is that of the integers."""
        if step.node.op not in (*_QUANTIZE, *_DEQUANTIZE) or (len(step.inputs) > 2 and step.inputs[2]):
            return step
        maker = step if step.node.op in _QUANTIZE else self.makers.get(step.inputs[0])
        if step.inputs[0] in self.constants and maker is not step:
            dtype = self.constants[step.inputs[0]].dtype
        elif maker is not None and len(maker.inputs) > 2 and maker.inputs[2] in self.constants:
            dtype = self.constants[maker.inputs[2]].dtype
        else:
            dtype = _DTYPES.get(maker.node.get("output_dtype", 0) if maker is not None else 0, torch.int16)
        name = f"{step.outputs[0]}\nzero"
        self.constants[name] = torch.zeros((), dtype=dtype)
        return replace(step, inputs=(*step.inputs[:2], name))

    def _number(self) -> None:
        self.makers = {name: step for step in self.steps for name in step.outputs if name}
        self.readers: dict[str, list[NodeStep]] = {}
        for step in self.steps:
            for name in {*step.inputs}:
                self.readers.setdefault(name, []).append(step)

    def dequantize_what_stays_in_float(self) -> None:
        """Make floats of stored integers but the weights of layers on integers; those lie as torch has them."""
        kept = list[NodeStep]()
        for step in self.steps:
            if step.node.op not in _DEQUANTIZE or step.inputs[0] not in self.constants:
                kept.append(step)
                continue
            readers = self.readers.get(step.outputs[0], [])
            if len(readers) == 1 and step.outputs[0] not in self.outputs and self._is_on_integers(readers[0], step):
                self.integers.add(step.inputs[0])
                kept.append(step)
            else:
                values = [self.constants[name] for name in step.inputs if name]
                made = step.compute(step.node, *values)
                assert isinstance(made, torch.Tensor)
                self.constants[step.outputs[0]] = made.to(torch.float32)
        self.steps = kept
        self._number()
        self._turn_weights_of_products()

    def _is_on_integers(self, layer: NodeStep, weight: NodeStep) -> bool:
        if layer.node.op not in _LAYERS or len(layer.inputs) < 2 or layer.inputs[1] != weight.outputs[0]:
            return False
        source = self.makers.get(layer.inputs[0])
        if source is None or not self._is_pair_of_activations(source):
            return False
        bias = layer.inputs[2] if len(layer.inputs) > 2 else ""
        if bias and bias not in self.constants and not self._is_stored(self.makers.get(bias)):
            return False
        return self._is_weight(layer, weight) and self._is_rounded_after(layer)

    def _is_pair_of_activations(self, step: NodeStep) -> bool:
        """Whether a step makes floats of computed integers with one scale."""
        is_dequantizer = step.node.op in _DEQUANTIZE and step.inputs[0] not in self.constants
        return is_dequantizer and bool(self.constants[step.inputs[1]].numel() == 1)

    def _is_stored(self, step: NodeStep | None) -> bool:
        return step is not None and step.node.op in _DEQUANTIZE and step.inputs[0] in self.constants

    def _is_weight(self, layer: NodeStep, weight: NodeStep) -> bool:
        integers, scale = self.constants[weight.inputs[0]], self.constants[weight.inputs[1]]
        zero = self.constants[weight.inputs[2]]
        middle = _SHIFT if integers.dtype is torch.uint8 else 0
        if integers.dtype not in (torch.int8, torch.uint8) or weight.node.get("block_size", 0):
            return False
        if not bool((zero == middle).all()) or integers.ndim not in (2, 4):
            return False
        if layer.node.op in ("Gemm", "MatMul") and not _is_linear(layer.node, integers):
            return False
        if layer.node.op == "ConvTranspose" and layer.node.get("group", 1) != 1 and scale.numel() > 1:
            return False
        axis = weight.node.get("axis", 1) % integers.ndim
        return bool(scale.numel() == 1 or axis == _output_axis(layer))

    def _is_rounded_after(self, layer: NodeStep) -> bool:
        made = layer.outputs[0]
        for _ in range(2):
            readers = self.readers.get(made, [])
            if len(readers) != 1 or made in self.outputs:
                return False
            if readers[0].node.op in _QUANTIZE:
                return bool(self.constants[readers[0].inputs[1]].numel() == 1)
            if readers[0].node.op not in _LIMITS:
                return False
            made = readers[0].outputs[0]
        return False

    def _turn_weights_of_products(self) -> None:
        """Let `linear` compute products with stored weights, whose output channels then come first."""
        for place, step in enumerate(self.steps):
            if step.node.op not in ("Gemm", "MatMul") or len(step.inputs) < 2:
                continue
            name = step.inputs[1]
            source = self.makers.get(name)
            held = name if source is None else source.inputs[0]
            known = self.constants if source is None else self.integers
            if held not in known or not _is_linear(step.node, self.constants[held]):
                continue
            if _output_axis(step) == 1:
                turned = f"{held}\n{step.outputs[0]}"  # no name of a model breaks the line
                self.constants[turned] = self.constants[held].t().contiguous()
                held = turned
            if source is None:
                name = held
            else:
                self.integers.add(held)
                node = replace(source.node, attributes={**source.node.attributes, "axis": 0})
                of_weight = next(i for i, other in enumerate(self.steps) if other is source)
                self.steps[of_weight] = replace(source, node=node, inputs=(held, *source.inputs[1:]))
            self.steps[place] = replace(step, compute=_linear, inputs=(step.inputs[0], name, *step.inputs[2:]))
        self._number()

    def move_on_the_grid_of_results(self) -> None:
        """Round what only moves to the grid of its result before it is moved: the same integers come out.

        Rounding to a grid is monotone, so that the largest of rounded numbers is the largest one, rounded.
        """
        made = list[NodeStep]()
        for step in self.steps:
            readers = self.readers.get(step.outputs[0], []) if step.node.op in _MOVES else []
            if len(readers) == 1 and readers[0].node.op in _QUANTIZE and step.outputs[0] not in self.outputs:
                step = self._with_rounded_inputs(step, readers[0], made)
            made.append(step)
        self.steps = made
        self._number()

    def _with_rounded_inputs(self, step: NodeStep, quantizer: NodeStep, made: list[NodeStep]) -> NodeStep:
        """Return a step that moves what was rounded to the grid of a quantizer; what rounds is put into `made`."""
        inputs = list(step.inputs)
        for place in range(len(inputs) if step.node.op == "Concat" else 1):
            source = self.makers.get(inputs[place])
            if source is None or source.node.op not in _DEQUANTIZE or self._have_one_grid(source, quantizer):
                continue
            rounded, real = f"{step.outputs[0]}\nrounded {place}", f"{step.outputs[0]}\nreal {place}"
            made.append(replace(quantizer, inputs=(inputs[place], *quantizer.inputs[1:]), outputs=(rounded,)))
            made.append(replace(source, inputs=(rounded, *quantizer.inputs[1:3]), outputs=(real,)))
            inputs[place] = real
        return replace(step, inputs=tuple(inputs))

    def _have_one_grid(self, first: NodeStep, second: NodeStep) -> bool:
        pairs = zip(first.inputs[1:3], second.inputs[1:3], strict=True)
        return all(torch.equal(self.constants[a], self.constants[b]) for a, b in pairs)

    def with_own_dequantizers(self) -> list[NodeStep]:
        """Return the steps with a dequantizer for each reader: the partitioner takes one into each layer."""
        made, taken = list[NodeStep](), dict[str, int]()
        for step in self.steps:
            inputs = list(step.inputs)
            for place, name in enumerate(inputs):
                source = self.makers.get(name)
                if source is None or source.node.op not in _DEQUANTIZE or step.node.op in _QUANTIZE:
                    continue
                taken[name] = taken.get(name, 0) + 1
                if taken[name] > 1:
                    inputs[place] = f"{name}\n{taken[name]}"
                    made.append(replace(source, outputs=(inputs[place],)))
            made.append(replace(step, inputs=tuple(inputs)))
        return made


def _is_linear(node: Node, weight: torch.Tensor) -> bool:
    if weight.ndim != 2:
        return False
    is_plain = node.get("alpha", 1.0) == node.get("beta", 1.0) == 1.0 and not node.get("transA", 0)
    return node.op == "MatMul" or is_plain


def _output_axis(layer: NodeStep) -> int:
    return 0 if layer.node.op == "Gemm" and layer.node.get("transB", 0) else _LAYERS[layer.node.op]


def _linear(_node: Node, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Any:
    if bias is None or bias.shape == weight.shape[:1]:
        return functional.linear(x, weight, bias)
    return functional.linear(x, weight) + bias


def _computed_so(step: NodeStep, constants: _Constants) -> NodeStep:
    """Return a step with the way of computing it that the partitioner knows."""
    if step.node.op in _QUANTIZE:
        return replace(step, compute=_quantizer(step, constants), inputs=step.inputs[:1])
    if step.node.op in _DEQUANTIZE:
        return replace(step, compute=_dequantizer(step, constants), inputs=step.inputs[:1])
    if step.node.op == "Conv":
        return replace(step, compute=convolved)
    if step.node.op == "Clip":
        return _limited(step, constants)
    if step.node.op == "Mod" and not step.node.get("fmod", 0):
        return replace(step, compute=_remainder)
    return step


def _remainder(_node: Node, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return a Mod whose sign is the divisor's: of whole numbers ExecuTorch 1.5's own has that of what is divided."""
    rest = torch.remainder(a, b)
    return rest if a.is_floating_point() else torch.remainder(rest + b, b)


def _limited(step: NodeStep, constants: _Constants) -> NodeStep:
    """Return a Clip between two numbers as `hardtanh`, which is taken into the layer before it."""
    names = [*step.inputs[1:3], "", ""][:2]
    if step.node.opset < 11:
        limits = [step.node.get("min", None), step.node.get("max", None)]
    elif any(name and name not in constants for name in names):
        return step
    else:
        limits = [float(constants[name].reshape(-1)[0]) if name else None for name in names]
    low, high = limits
    if low is None and high is None:
        return replace(step, compute=lambda _node, x: x, inputs=step.inputs[:1])
    if low is None or high is None or not low < high:
        return replace(step, compute=lambda _node, x: torch.clamp(x, low, high), inputs=step.inputs[:1])
    return replace(step, compute=lambda _node, x: functional.hardtanh(x, low, high), inputs=step.inputs[:1])


def _grid(step: NodeStep, constants: _Constants) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Return scales, zero points in int8, and the axis that they are of.

    Raises:
        UnsupportedError: If the grid is of other integers, computed, or no grid.
    """
    scale = constants.get(step.inputs[1])
    zero = (
        constants.get(step.inputs[2]) if len(step.inputs) > 2 and step.inputs[2] else torch.zeros(1, dtype=torch.uint8)
    )
    if scale is None or zero is None or zero.dtype not in (torch.int8, torch.uint8) or step.node.get("block_size", 0):
        raise UnsupportedError(
            f"executorch is given no {step.node.op} but of one scale to 8-bit integers: {step.node.name!r}",
            remedy=ELSEWHERE,
        )
    if not bool((torch.isfinite(scale) & (scale >= torch.finfo(torch.float32).tiny)).all()):
        raise UnsupportedError(
            f"{step.node.op} {step.node.name!r} has a scale that is not above zero", remedy="quantize the model again"
        )
    middle = _SHIFT if zero.dtype is torch.uint8 else 0
    return scale.reshape(-1), zero.reshape(-1).to(torch.int64) - middle, int(step.node.get("axis", 1))


def _quantizer(step: NodeStep, constants: _Constants) -> Compute:
    scale, zero, _ = _grid(step, constants)
    if scale.numel() > 1:
        raise UnsupportedError(
            f"executorch is given no QuantizeLinear by channels: {step.node.name!r}",
            remedy="quantize activations with one scale",
        )
    step_size, middle = float(scale), int(zero)

    def compute(_node: Node, x: torch.Tensor) -> torch.Tensor:
        op = torch.ops.quantized_decomposed.quantize_per_tensor.default
        made: torch.Tensor = op(x, step_size, middle, -_SHIFT, _SHIFT - 1, torch.int8)
        return made

    return compute


def _dequantizer(step: NodeStep, constants: _Constants) -> Compute:
    scale, zero, axis = _grid(step, constants)
    stored = constants.get(step.inputs[0])
    if stored is not None and stored.dtype is torch.uint8:
        constants[step.inputs[0]] = (stored.to(torch.int16) - _SHIFT).to(torch.int8)

    # made before the recording begins: what is computed within it is a node, and the partitioner wants constants
    scales, zeros = scale.to(torch.float32).contiguous(), zero.expand(scale.shape).contiguous()
    step_size, middle = float(scale[0]), int(zero[0])
    limits = (-_SHIFT, _SHIFT - 1, torch.int8)

    def compute(_node: Node, x: torch.Tensor) -> torch.Tensor:
        ops = torch.ops.quantized_decomposed
        if scales.numel() == 1:
            made: torch.Tensor = ops.dequantize_per_tensor.default(x, step_size, middle, *limits)
            return made
        by_channels: torch.Tensor = ops.dequantize_per_channel.default(x, scales, zeros, axis % x.ndim, *limits)
        return by_channels

    return compute
