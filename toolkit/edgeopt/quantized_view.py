"""The integers of a quantized model: scale, zero point, saturation and error of each tensor. It changes nothing.

It reads Q/DQ pairs and integer ops (QLinearConv and its kin), whoever wrote them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from edgeopt import plugins, tasks
from edgeopt.errors import UnsupportedError
from edgeopt.evaluate import model_inputs
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.frames import Frames, open_frames
from edgeopt.model import Model, find_model, load_model
from edgeopt.quantization.scores import channel_sqnr_db, sqnr_db
from edgeopt.recognise import choose_recipe
from edgeopt.tensors import Tensors

_PICTURES = 8
_POSITIONS = 4096
"""Of each picture and tensor: enough for a share of 0.1 %."""
_UNARY = ((0, 1, 2), ("out", 3, 4))
_BINARY = ((0, 1, 2), (3, 4, 5), ("out", 6, 7))
_SLOTS: Mapping[str, tuple[tuple[int | str, int, int], ...]] = {
    "QuantizeLinear": (("out", 1, 2),),
    "DequantizeLinear": ((0, 1, 2),),
    "QLinearConv": _BINARY,
    "QLinearMatMul": _BINARY,
    "QLinearAdd": _BINARY,
    "QLinearMul": _BINARY,
    "QGemm": ((0, 1, 2), (3, 4, 5), ("out", 7, 8)),
    "QLinearSigmoid": _UNARY,
    "QLinearLeakyRelu": _UNARY,
    "QLinearSoftmax": _UNARY,
    "QLinearAveragePool": _UNARY,
    "QLinearGlobalAveragePool": _UNARY,
    "QLinearConcat": (("out", 0, 1),),
    "MatMulIntegerToFloat": ((0, 2, 4), (1, 3, 5)),
}
"""Op -> (tensor, scale, zero point) by input number, `out` for the first output."""
_MADE = re.compile(r"_(QLinear\w+?|quantize|MatMulIntegerToFloat|Concat)(_\d+)?_output_\d+$")
"""What the integer form appends to the name of the float tensor that it stands for."""
_MADE_FLOAT = re.compile(r"_(transpose|QuickGelu|Add|Mul|Sigmoid|MatMulIntegerToFloat|dequantize)(_\d+)?_output_\d+$")
"""The same for float tensors between integer ops."""


@dataclass(frozen=True, slots=True)
class QuantizedTensor:
    """One tensor that is stored or computed as integers."""

    name: str
    dtype: str
    scales: tuple[float, ...]
    """One, or one a channel."""
    zero_points: tuple[int, ...]
    is_weight: bool
    saturated_ratio: float | None = None
    """Share of values outside the grid or, of integers without float values, at its ends; None: not looked at."""
    sqnr_db: float | None = None
    channel_sqnr_db: float | None = None
    """The mean over channels of noise over variance: it sees channels that are rounded to nothing."""

    @property
    def granularity(self) -> str:
        """`per tensor`, or how many channels have a scale of their own."""
        return "per tensor" if len(self.scales) == 1 else f"{len(self.scales)} channels"


@dataclass(frozen=True, slots=True)
class QuantizedView:
    """All integer tensors of a model, the worst first."""

    model: str
    tensors: tuple[QuantizedTensor, ...]
    pictures: int = 0
    """On how many the errors were measured."""


def view_quantized(
    model: str, *, calib: str = "", against: str = "", recipe: str | None = None, pictures: int = _PICTURES
) -> QuantizedView:
    """Return the integer tensors of a model.

    Args:
        model: Path of an ONNX file.
        calib: Pictures on which saturation and error are measured; empty: they are not.
        against: The float model that it was made from, for integers that have no float value in the model itself.
        recipe: How the model is fed; None: read from the model.
        pictures: At most so many of them.

    Raises:
        UnsupportedError: If nothing in the model is quantized.
        EdgeoptError: If a file cannot be read.
    """
    path = find_model(model)
    loaded = load_model(path)
    found = read_tensors(loaded)
    if not found:
        raise UnsupportedError(
            f"{loaded.name} holds no integer tensors", remedy="make an INT8 model first: edgeopt quantize"
        )
    if not calib:
        return QuantizedView(loaded.name, found)
    frames = open_frames(Path(calib)).spread(pictures)
    original = load_model(find_model(against)) if against else None
    inputs = _inputs(loaded, path, recipe, frames)
    measured = measure_tensors(loaded, found, inputs, original)
    return QuantizedView(loaded.name, tuple(sorted(measured, key=_badness)), len(frames))


def _inputs(model: Model, path: Path, recipe: str | None, frames: Frames) -> list[Tensors]:
    chosen = choose_recipe(recipe, path, model.inputs, model.outputs, model.metadata).recipe
    task = plugins.load(tasks, chosen.task).TASK(chosen, model.inputs, model.outputs, True)
    return list(model_inputs(task, frames))


def _badness(one: QuantizedTensor) -> tuple[bool, float, float]:
    """Order by the normalised error, those without one by saturation, weights last."""
    worst = math.inf if one.channel_sqnr_db is None else one.channel_sqnr_db
    return one.is_weight, worst, -(one.saturated_ratio or 0.0)


def read_tensors(model: Model) -> tuple[QuantizedTensor, ...]:
    """Return the integer tensors whose scale is stored in the model, in the order of its nodes."""
    constants = {one.name: one for one in model.proto.graph.initializer}
    found: dict[str, QuantizedTensor] = {}
    for node in model.proto.graph.node:
        for tensor, scale, zero_point in _grids(node):
            if tensor in found or scale not in constants:
                continue
            scales = numpy_helper.to_array(constants[scale]).reshape(-1)
            zeros = numpy_helper.to_array(constants[zero_point]) if zero_point in constants else np.zeros(1, np.uint8)
            found[tensor] = QuantizedTensor(
                tensor,
                str(zeros.dtype),
                tuple(float(one) for one in scales),
                tuple(int(one) for one in zeros.reshape(-1)),
                tensor in constants,
            )
    return tuple(found.values())


def _grids(node: onnx.NodeProto) -> Iterator[tuple[str, str, str]]:
    for tensor, scale, zero_point in _SLOTS.get(node.op_type, ()):
        if scale < len(node.input):
            name = node.output[0] if isinstance(tensor, str) else node.input[tensor]
            yield name, node.input[scale], node.input[zero_point] if zero_point < len(node.input) else ""
    if node.op_type == "QLinearConcat":
        for i in range(2, len(node.input) - 2, 3):
            yield node.input[i], node.input[i + 1], node.input[i + 2]


def measure_tensors(
    model: Model, tensors: Sequence[QuantizedTensor], inputs: Sequence[Tensors], original: Model | None
) -> list[QuantizedTensor]:
    """Return the tensors with saturation and error; weights as they are.

    Args:
        model: The quantized model.
        tensors: Of `read_tensors`.
        inputs: Model inputs, one picture each.
        original: The float model; None: errors only where the model itself rounds a float tensor.
    """
    sources = {node.output[0]: node.input[0] for node in model.proto.graph.node if node.op_type == "QuantizeLinear"}
    looked = [one for one in tensors if not one.is_weight and len(one.scales) == 1]
    integers = _Samples(model, {one.name: one.dtype for one in looked}, inputs)
    real = _Samples(model, {sources[one.name]: "float32" for one in looked if one.name in sources}, inputs)
    floats = {one.name: sources.get(one.name, "") for one in looked}
    elsewhere = None
    if original is not None:
        floats = {one.name: _MADE.sub("", sources.get(one.name, one.name)) for one in looked}
        floats = {name: _MADE_FLOAT.sub("", source) for name, source in floats.items()}
        elsewhere = _Samples(original, dict.fromkeys(floats.values(), "float32"), inputs)
    last = _is_channels_last(model)
    values = elsewhere or real
    moves = last and elsewhere is not None

    def measured(one: QuantizedTensor) -> QuantizedTensor:
        whole, reals = integers.of(one.name), values.of(floats[one.name])
        return _measured(one, whole, [_like(real, moves=moves) for real in reals], last=last)

    return [measured(one) if one in looked else one for one in tensors]


def _measured(
    one: QuantizedTensor, integers: list[NDArray[Any]], reals: list[NDArray[Any]], *, last: bool
) -> QuantizedTensor:
    info = np.iinfo(one.dtype)
    pairs = [*zip(integers, reals, strict=False)]
    if not integers:
        return one
    if not pairs or any(whole.shape != real.shape for whole, real in pairs):
        ends = [(value == info.min) | (value == info.max) for value in integers]
        return replace(one, saturated_ratio=float(np.mean([end.mean() for end in ends])))
    scale, zero = one.scales[0], one.zero_points[0]
    low, high = ((end - zero) * scale for end in (info.min, info.max))
    signal = np.concatenate([_rows(real, last=last) for _, real in pairs])
    noise = np.concatenate([_rows((whole.astype(np.float32) - zero) * scale, last=last) for whole, _ in pairs]) - signal
    outside = (signal < low - scale / 2) | (signal > high + scale / 2)
    return replace(
        one,
        saturated_ratio=float(outside.mean()),
        sqnr_db=sqnr_db(signal, noise),
        channel_sqnr_db=channel_sqnr_db(signal, noise),
    )


def _like(real: NDArray[Any], *, moves: bool) -> NDArray[Any]:
    """Return the value of a channels-first float model as a channels-last integer model has it."""
    return np.moveaxis(real, 1, -1) if moves and real.ndim > 3 else real


def _rows(value: NDArray[Any], *, last: bool) -> NDArray[np.float32]:
    """Return (positions, channels), at most _POSITIONS of them, evenly spread."""
    if value.ndim > 2 and not (last or value.ndim == 3):
        value = np.moveaxis(value, 1, -1)
    rows = value.reshape(-1, value.shape[-1] if value.ndim else 1).astype(np.float32)
    return rows[:: max(1, len(rows) // _POSITIONS)]


def _is_channels_last(model: Model) -> bool:
    return any(
        node.op_type == "MatMulIntegerToFloat" or any(one.name == "channels_last" and one.i for one in node.attribute)
        for node in model.proto.graph.node
    )


class _Samples:
    """Values of named tensors of a model for all inputs; a tensor that it does not have has none."""

    def __init__(self, model: Model, dtypes: Mapping[str, str], inputs: Sequence[Tensors]) -> None:
        proto = onnx.ModelProto()
        proto.CopyFrom(model.proto)
        made = {name for node in proto.graph.node for name in node.output}
        present = {one.name for one in proto.graph.output}
        kinds = {name: helper.np_dtype_to_tensor_dtype(np.dtype(kind)) for name, kind in dtypes.items()}
        proto.graph.output.extend(
            helper.make_tensor_value_info(name, kind, None)
            for name, kind in kinds.items()
            if name in made and name not in present
        )
        session = EXECUTOR.open(proto.SerializeToString(), SessionOptions())
        self._runs = [{**session.run(one), **one} for one in inputs]
        session.close()

    def of(self, name: str) -> list[NDArray[Any]]:
        """Return the values of one tensor, one an input."""
        return [np.asarray(run[name]) for run in self._runs if name in run]
