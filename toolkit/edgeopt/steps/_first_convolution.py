"""Normalisation that moves into the first convolution of a model: its input channels are turned and scaled once.

A convolution pads with 0, and a border of a normalised picture is 0: a mean moves into its bias only where it pads
nothing. Weights in integers keep their values and may change places.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from edgeopt.graph.model import Model
from edgeopt.graph.subgraphs import all_nodes

_TO_PLANES = [0, 3, 1, 2]
_WEIGHT, _BIAS, _SCALE = "preprocess/weight", "preprocess/bias", "preprocess/quantization_scale"


@dataclass(frozen=True, slots=True)
class Normalisation:
    """The arithmetic on pixels before a model: channel j becomes pixels[order[j]] * gain[j] + bias[j]."""

    order: NDArray[np.int64]
    gain: NDArray[np.float32]
    bias: NDArray[np.float32]

    @property
    def moves_channels(self) -> bool:
        """Whether channels change places."""
        return not np.array_equal(self.order, np.arange(len(self.order)))


@dataclass(slots=True)
class _Reader:
    """The convolution behind an input, and what lies between."""

    convolution: onnx.NodeProto
    quantizer: onnx.NodeProto | None

    @property
    def nodes(self) -> list[onnx.NodeProto]:
        """The nodes that may be changed."""
        return [self.convolution, *([self.quantizer] if self.quantizer is not None else [])]


def fold_normalisation(
    model: Model, name: str, wanted: Normalisation, *, is_planar: bool, has_border: bool
) -> tuple[Model, Normalisation]:
    """Return the model with as much of the normalisation as moves exactly, and what is left in front of it.

    Args:
        model: It is not changed.
        name: The input that takes pictures.
        wanted: Of pixels in the frame's order.
        is_planar: Whether channels stand before height and width.
        has_border: Whether something behind the normalisation writes zeros beside the picture.
    """
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    reader = _reader(proto, name, is_planar)
    if reader is None:
        return model, wanted
    stored = {constant.name: constant for constant in proto.graph.initializer}
    if reader.quantizer is not None and not _is_single(stored.get(reader.quantizer.input[1])):
        return model, wanted
    before = {value_info for node in reader.nodes for value_info in node.input}
    left = _fold_into_weights(proto, reader, stored, wanted, has_border)
    if reader.quantizer is not None:
        left = _fold_into_scale(proto, reader.quantizer, stored, left)
    _drop_unused(proto, before - {value_info for node in reader.nodes for value_info in node.input})
    return Model(proto, model.name), left


def _reader(proto: onnx.ModelProto, name: str, is_planar: bool) -> _Reader | None:
    """Return the convolution that alone reads an input; None where something else does, or does too."""
    outputs = {value_info.name for value_info in proto.graph.output}
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in all_nodes(proto.graph):
        for value in node.input:
            readers.setdefault(value, []).append(node)
    own = {id(node) for node in proto.graph.node}
    quantizer = None
    while True:
        nodes = readers.get(name, [])
        if len(nodes) != 1 or name in outputs or id(nodes[0]) not in own or nodes[0].domain not in ("", "ai.onnx"):
            return None
        node = nodes[0]
        if node.op_type == "Conv":
            is_first = list(node.input).index(name) == 0
            return _Reader(node, quantizer) if is_planar and is_first and _attribute(node, "group", 1) == 1 else None
        if node.op_type == "Transpose" and not is_planar and _attribute(node, "perm", []) == _TO_PLANES:
            is_planar = True
        elif node.op_type == "QuantizeLinear" and quantizer is None:
            quantizer = node
        elif node.op_type not in ("DequantizeLinear", "Identity"):
            return None
        name = node.output[0]


def _attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    return next(
        (helper.get_attribute_value(attribute) for attribute in node.attribute if attribute.name == name), default
    )


def _fold_into_weights(
    proto: onnx.ModelProto,
    reader: _Reader,
    stored: Mapping[str, onnx.TensorProto],
    wanted: Normalisation,
    has_border: bool,
) -> Normalisation:
    """Change the convolution, and return what stays in front."""
    node, kept = reader.convolution, stored.get(reader.convolution.input[1])
    integers = None
    if kept is None:
        integers = _integer_weights(proto, node.input[1], stored)
        kept = stored[integers.input[0]] if integers else None
    if kept is None or kept.data_location == TensorProto.EXTERNAL:
        return wanted
    weights, back = numpy_helper.to_array(kept), np.argsort(wanted.order)
    if weights.ndim != 4 or weights.shape[1] != len(back):
        return wanted
    left = Normalisation(np.arange(len(back)), wanted.gain[back], wanted.bias[back])
    scales = integers is None and weights.dtype == np.float32 and reader.quantizer is None
    if not scales and not wanted.moves_channels:
        return wanted
    turned = weights[:, back]
    if scales:
        scaled = turned.astype(np.float64) * left.gain.reshape(1, -1, 1, 1)
        shift = np.einsum("oikl,i->o", turned.astype(np.float64), left.bias.astype(np.float64))
        if not has_border and _pads_nothing(node) and _takes_bias(node, stored):
            if np.any(shift != 0):
                _add_bias(proto, node, stored, shift)
            left = replace(left, bias=np.zeros_like(left.bias))
        else:
            left = replace(left, bias=(left.bias.astype(np.float64) / left.gain).astype(np.float32))
        turned, left = scaled.astype(np.float32), replace(left, gain=np.ones_like(left.gain))
    proto.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(turned), _WEIGHT))
    if integers is None:
        node.input[1] = _WEIGHT
    else:  # of its own, where several layers share them
        own = onnx.NodeProto()
        own.CopyFrom(integers)
        own.name, own.input[0], own.output[0] = f"{_WEIGHT}_in_float", _WEIGHT, f"{_WEIGHT}_in_float"
        proto.graph.node.insert(0, own)
        node.input[1] = own.output[0]
    return left


def _integer_weights(
    proto: onnx.ModelProto, name: str, stored: Mapping[str, onnx.TensorProto]
) -> onnx.NodeProto | None:
    """Return the node that makes weights of stored integers, with one scale for all or for each output channel."""
    maker = next((node for node in proto.graph.node if name in node.output), None)
    if (
        maker is None
        or maker.op_type != "DequantizeLinear"
        or any(value_info and value_info not in stored for value_info in maker.input)
    ):
        return None
    is_by_output = _attribute(maker, "axis", 1) == 0 and not _attribute(maker, "block_size", 0)
    return maker if is_by_output or _is_single(stored[maker.input[1]]) else None


def _is_single(scale: onnx.TensorProto | None) -> bool:
    """Whether a stored tensor holds one number."""
    return scale is not None and math.prod(scale.dims) == 1


def _pads_nothing(node: onnx.NodeProto) -> bool:
    return _attribute(node, "auto_pad", b"NOTSET") in (b"NOTSET", b"VALID") and not any(_attribute(node, "pads", ()))


def _takes_bias(node: onnx.NodeProto, stored: Mapping[str, onnx.TensorProto]) -> bool:
    if len(node.input) < 3 or not node.input[2]:
        return True
    bias = stored.get(node.input[2])
    return bias is not None and bias.data_type == TensorProto.FLOAT and bias.data_location != TensorProto.EXTERNAL


def _add_bias(
    proto: onnx.ModelProto, node: onnx.NodeProto, stored: Mapping[str, onnx.TensorProto], shift: NDArray[np.float64]
) -> None:
    has_one = len(node.input) > 2 and bool(node.input[2])
    bias = shift + (numpy_helper.to_array(stored[node.input[2]]) if has_one else 0.0)
    proto.graph.initializer.append(numpy_helper.from_array(bias.astype(np.float32), _BIAS))
    del node.input[2:]
    node.input.append(_BIAS)


def _fold_into_scale(
    proto: onnx.ModelProto,
    quantizer: onnx.NodeProto,
    stored: Mapping[str, onnx.TensorProto],
    left: Normalisation,
) -> Normalisation:
    """Change the scale by which pixels become integers, where all channels have one gain and no bias."""
    scale = stored.get(quantizer.input[1])
    if np.any(left.bias != 0) or np.any(left.gain != left.gain[0]) or left.gain[0] <= 0 or left.gain[0] == 1:
        return left
    if scale is None or scale.data_type != TensorProto.FLOAT:
        return left
    made = numpy_helper.to_array(scale).astype(np.float64) / left.gain[0]
    proto.graph.initializer.append(numpy_helper.from_array(made.astype(np.float32), _SCALE))
    quantizer.input[1] = _SCALE
    return replace(left, gain=np.ones_like(left.gain))


def _drop_unused(proto: onnx.ModelProto, replaced: Set[str]) -> None:
    """Leave out tensors that only what was changed read before."""
    graph = proto.graph
    used = {one for node in all_nodes(graph) for one in node.input} | {one.name for one in graph.output}
    for node in [value for value in graph.node if value.output[0] in replaced - used]:
        graph.node.remove(node)
        replaced = replaced | {*node.input}
    used = {value_info for node in all_nodes(graph) for value_info in node.input}
    listed = {value_info.name for value_info in graph.input}
    for one in [one for one in graph.initializer if one.name in replaced - used - listed]:
        graph.initializer.remove(one)
