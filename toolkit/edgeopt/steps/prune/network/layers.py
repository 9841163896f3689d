"""The layers that weigh their inputs, each as one matrix: convolutions, Gemm, and MatMul with a constant.

Whatever the op, an output row is y[g] = W[g] x[g] + b[g] for each of its groups g: x holds all taps of each input
channel, column = channel * taps + tap, and W has the shape (groups, outputs, channels, taps).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, helper

from edgeopt.graph.model import Model

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class ConvolutionWindow:
    """How a convolution walks over its input; one number for each dimension of space."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    """Pads of the beginnings; of a transposed convolution: what is cut off there. Empty where `auto_pad` says it."""
    auto_pad: str
    is_transposed: bool

    def begins(self, size: Sequence[int], out: Sequence[int]) -> tuple[int, ...]:
        """Return the pads of the beginnings for an input and an output of these sizes."""
        if self.pads:
            return self.pads
        totals = []
        for number, made, kernel, stride, dilation in zip(
            size, out, self.kernel, self.strides, self.dilations, strict=True
        ):
            reach = dilation * (kernel - 1) + 1
            total = (number - 1) * stride + reach - made if self.is_transposed else (made - 1) * stride + reach - number
            totals.append(max(total, 0))
        return tuple(-(-other // 2) if self.auto_pad == "SAME_LOWER" else other // 2 for other in totals)

    def sources(self, positions: Array, size: Sequence[int], out: Sequence[int]) -> Array:
        """Return, for each output position (flat) and tap, the flat input position; the number of them: outside.

        Args:
            positions: Flat positions in the output, shape (n,).
            size: Of the input's space.
            out: Of the output's.
        """
        begins, inside, flat = (
            self.begins(size, out),
            np.ones((len(positions), 1), bool),
            np.zeros((len(positions), 1), int),
        )
        for i, place in enumerate(np.unravel_index(positions, tuple(out))):
            taps = np.arange(self.kernel[i]) * self.dilations[i]
            if self.is_transposed:
                at = place[:, None] + begins[i] - taps
                valid = at % self.strides[i] == 0
                at = at // self.strides[i]
            else:
                at = place[:, None] * self.strides[i] + taps - begins[i]
                valid = np.ones(at.shape, bool)
            valid &= (at >= 0) & (at < size[i])
            flat = (flat[:, :, None] * size[i] + at[:, None]).reshape(len(positions), -1)
            inside = (inside[:, :, None] & valid[:, None]).reshape(len(positions), -1)
        return np.where(inside, flat, math.prod(size))


@dataclass(frozen=True, slots=True)
class Layer:
    """A node that weighs its input with a constant."""

    name: str
    """Name of its first output."""
    op: str
    source: str
    """The activation that it reads."""
    weight: str
    bias: str | None
    """The constant that is added; empty: none, but one can be; None: none can be."""
    bias_node: str
    """First output of the node that adds it."""
    groups: int
    window: ConvolutionWindow | None
    """None: a matrix."""
    is_rows: bool = False
    """Whether, of a matrix, its rows make the outputs (Gemm with transB)."""
    scale: float = 1.0
    """Factor of the product (Gemm's alpha)."""
    bias_scale: float = 1.0
    is_left: bool = False
    """Whether, of a matrix, it stands before the activation, whose columns it then weighs."""

    @property
    def input_axis(self) -> int:
        """The axis of the weight along which input channels lie; of a grouped convolution: those of one group."""
        if self.window is not None:
            return 0 if self.window.is_transposed else 1
        return 1 if self.is_rows else 0

    @property
    def output_axis(self) -> int:
        """The axis of the weight along which outputs lie."""
        return 1 - self.input_axis

    @property
    def key(self) -> str:
        """The same for layers that read the same rows."""
        return f"{self.source}|{self.groups}|{self.window}"

    def matrix(self, weight: Array) -> NDArray[np.float64]:
        """Return the weight as (groups, outputs, channels, taps)."""
        if self.window is None:
            return (self.scale * (weight if self.is_rows else weight.T).astype(np.float64))[None, :, :, None]
        first, second = weight.shape[:2]
        split = weight.astype(np.float64).reshape(self.groups, first // self.groups, second, -1)
        return split.swapaxes(1, 2) if self.window.is_transposed else split

    def constant(self, matrix: NDArray[np.float64], like: Array) -> Array:
        """Return a matrix as the weight is stored, in the kernel and the type of `like`."""
        if self.window is None:
            flat = matrix[0, :, :, 0] / self.scale
            return np.ascontiguousarray(flat if self.is_rows else flat.T).astype(like.dtype)
        split = matrix.swapaxes(1, 2) if self.window.is_transposed else matrix
        shape = (split.shape[0] * split.shape[1], split.shape[2], *like.shape[2:])
        return np.ascontiguousarray(split.reshape(shape)).astype(like.dtype)

    def bias_of(self, constants: Mapping[str, Array]) -> NDArray[np.float64]:
        """Return what is added to the product, shape (outputs,); zeros where nothing is."""
        if self.bias:
            return self.bias_scale * constants[self.bias].astype(np.float64).ravel()
        matrix = self.matrix(constants[self.weight])
        return np.zeros(matrix.shape[0] * matrix.shape[1])

    def positions(self, output_shape: Sequence[int], most: int, picture: int, place: Array | None = None) -> Array:
        """Return sampled positions of the output, sorted: all where there are no more than `most`.

        They hang on the name of what the layer reads, its window and the number of the picture: in a pruned model they
        are the dense one's.

        Args:
            output_shape: Of the whole output.
            most: How many.
            picture: Its number.
            place: (rows, columns) how much of the answer lies where: as many positions more are drawn by it, some of
                them more than once; None: there are none.
        """
        outputs = 1 if self.window is not None else len(output_shape) - (2 if self.is_left else 1)
        total = math.prod(output_shape) // output_shape[outputs]
        chance = np.random.default_rng([crc32(f"{self.source}|{self.window}".encode()), picture])
        evenly = np.arange(total) if total <= most else chance.choice(total, most, replace=False, shuffle=False)
        shares = _shares(place, output_shape) if place is not None and self.window is not None else None
        if shares is None:
            return np.sort(evenly)
        return np.sort(np.concatenate([evenly, chance.choice(total, len(evenly), p=shares)]))

    def rows(self, value: Array, output_shape: Sequence[int], positions: Array) -> NDArray[np.float32]:
        """Return what the outputs at some positions are made of, shape (groups, n, channels, taps).

        Args:
            value: The whole input.
            output_shape: Of the whole output.
            positions: Flat, over batch and space; over all but the last dimension of a matrix.
        """
        if self.window is None:
            return self.outputs(value, positions)[None, :, :, None]
        batch, channels, size, out = value.shape[0], value.shape[1], value.shape[2:], output_shape[2:]
        image, place = np.divmod(positions, math.prod(out))
        sources = self.window.sources(place, size, out)
        flat = value.reshape(batch, channels, -1)
        if (sources == math.prod(size)).any():
            flat = np.concatenate([flat, np.zeros((batch, channels, 1), flat.dtype)], axis=2)
        result = flat[0][:, sources] if batch == 1 else flat[image[:, None], :, sources].transpose(2, 0, 1)
        return result.reshape(self.groups, channels // self.groups, *sources.shape).swapaxes(1, 2)

    def outputs(self, value: Array, positions: Array) -> NDArray[np.float32]:
        """Return the outputs at some positions, shape (n, outputs)."""
        if self.window is None:
            turned = value.swapaxes(-1, -2) if self.is_left else value
            return np.ascontiguousarray(turned.reshape(-1, turned.shape[-1])[positions])
        image, place = np.divmod(positions, math.prod(value.shape[2:]))
        flat = value.reshape(*value.shape[:2], -1)
        return np.ascontiguousarray(flat[0][:, place].T if len(flat) == 1 else flat[image, :, place])


def _shares(place: Array, output_shape: Sequence[int]) -> NDArray[np.float64] | None:
    """Return how much of the answer lies at each position of a map, 1 in all; None where the output is no map."""
    if len(output_shape) != 4 or output_shape[0] != 1:
        return None
    array = place if place.any() else np.ones_like(place)
    for axis, size in enumerate(output_shape[2:]):
        given = array.shape[axis]
        if size < given:
            array = np.add.reduceat(array, np.arange(size) * given // size, axis=axis)
        else:
            array = np.take(array, np.arange(size) * given // size, axis=axis)
    return np.asarray(array / array.sum(), np.float64).ravel()


def layers_of(model: Model, constants: Mapping[str, Array]) -> tuple[Layer, ...]:
    """Return the layers of the main graph, in their order; what is none of these forms is left out.

    Args:
        model: Nodes in topological order.
        constants: As `constants_of` gives them.
    """
    nodes = model.proto.graph.node
    adders = _adders(nodes, {value_info.name for value_info in model.proto.graph.output})
    made = (_layer(node, constants, adders) for node in nodes)
    return tuple(layer for layer in made if layer is not None)


def _adders(nodes: Sequence[NodeProto], outputs: set[str]) -> dict[str, NodeProto]:
    """Return the Add that alone reads a tensor, by the tensor's name."""
    readers: dict[str, list[NodeProto]] = {}
    for node in nodes:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    return {
        name: reader[0]
        for name, reader in readers.items()
        if len(reader) == 1 and reader[0].op_type == "Add" and name not in outputs
    }


def _layer(node: NodeProto, constants: Mapping[str, Array], adders: Mapping[str, NodeProto]) -> Layer | None:
    if node.domain not in ("", "ai.onnx") or len(node.input) < 2:
        return None
    places = [i for i, name in enumerate(node.input[:2]) if name in constants]
    if len(places) != 1 or (places == [0] and node.op_type != "MatMul"):
        return None
    source, weight = str(node.input[1 - places[0]]), constants[node.input[places[0]]]
    if weight.dtype.kind != "f":
        return None
    name, stored, values = str(node.output[0]), str(node.input[places[0]]), _attributes(node)
    if node.op_type in ("Conv", "ConvTranspose") and weight.ndim > 2:
        window = _window(values, weight.shape[2:], is_transposed=node.op_type == "ConvTranspose")
        bias = _bias_input(node, constants)
        return Layer(name, node.op_type, source, stored, bias, name, values.get("group", 1), window)
    if weight.ndim != 2:
        return None
    if node.op_type == "Gemm" and not values.get("transA", 0):
        is_rows, scales = bool(values.get("transB", 0)), (values.get("alpha", 1.0), values.get("beta", 1.0))
        bias = _bias_input(node, constants)
        if bias and (constants[bias].size != weight.shape[0 if is_rows else 1] or not scales[1]):
            bias = None
        return Layer(name, "Gemm", source, stored, bias, name, 1, None, is_rows, *scales)
    if node.op_type == "MatMul" and places == [0]:
        return Layer(name, "MatMul", source, stored, None, "", 1, None, is_rows=True, is_left=True)
    if node.op_type == "MatMul":
        adder = adders.get(name)
        added = (
            next((value_info for value_info in adder.input if value_info in constants), None)
            if adder is not None
            else None
        )
        if adder is None or added is None or not _is_bias(constants[added], weight.shape[1]):
            return Layer(name, "MatMul", source, stored, None, "", 1, None)
        return Layer(name, "MatMul", source, stored, added, adder.output[0], 1, None)
    return None


def _attributes(node: NodeProto) -> dict[str, Any]:
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}


def _is_bias(value: Array, size: int) -> bool:
    return value.ndim > 0 and value.size == value.shape[-1] == size


def _bias_input(node: NodeProto, constants: Mapping[str, Array]) -> str | None:
    """Return the constant at the third input; empty: there is none; None: it is computed."""
    name = str(node.input[2]) if len(node.input) > 2 else ""
    return name if not name or name in constants else None


def _window(values: Mapping[str, Any], kernel: Sequence[int], *, is_transposed: bool) -> ConvolutionWindow:
    ones = (1,) * len(kernel)
    strides, dilations = (tuple(values.get(name, ones)) for name in ("strides", "dilations"))
    auto_pad = values.get("auto_pad", b"NOTSET").decode()
    pads = tuple(values.get("pads", (0,) * 2 * len(kernel)))[: len(kernel)]
    if auto_pad.startswith("SAME") or values.get("output_shape"):
        pads = ()
    return ConvolutionWindow(tuple(kernel), strides, dilations, pads, auto_pad, is_transposed)
