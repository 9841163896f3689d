"""Watch the tensors of a model while images stream through it. It chooses no scale.

One pass; memory grows with the number of tensors, never with the number of images: a histogram, the extremes
of each channel and a fixed number of sampled positions for each tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from edgeopt.environment import physical_cores
from edgeopt.errors import EdgeoptError, UnsupportedError
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR, OnnxRuntimeSession
from edgeopt.model import Model
from edgeopt.quantization.histogram import Histogram, count_values
from edgeopt.tensors import Tensors

GROUP_BYTES = 256 << 20
"""Activations of one image that are held at once; a larger model runs once for each group of tensors."""
_BLOCKS, _POSITIONS = 16, 64
"""Samples kept of a tensor: blocks (one an image) of positions."""
_ALIKE_VALUES = 256


@dataclass(frozen=True, slots=True)
class Observation:
    """What one pass saw of one tensor."""

    low: NDArray[np.float32]
    """Minimum of each channel."""
    high: NDArray[np.float32]
    """Maximum of each channel."""
    histogram: Histogram
    samples: NDArray[np.float32]
    """Sampled positions, shape (positions, channels)."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """What one pass saw of all tensors."""

    observations: Mapping[str, Observation]
    images: int
    spread_ratio: float
    """Spread between images over the spread inside them, both of the first input: near 0 when all are alike."""


class _Watch:
    """Collects the observation of one tensor."""

    def __init__(self, name: str, axis: int, seed: int) -> None:
        self._name, self._axis, self._seed = name, axis, seed
        self._blocks: list[NDArray[np.float32]] = []
        self._low: NDArray[np.float32] | None = None
        self._high: NDArray[np.float32] | None = None
        self._histogram: Histogram | None = None

    def see(self, value: NDArray[Any], image: int) -> None:
        """Take in the tensor's value for one image."""
        rows = _channels_apart(value, self._axis)
        low, high = rows.min(axis=(0, 2)), rows.max(axis=(0, 2))
        smallest, largest = float(low.min()), float(high.max())
        if not (math.isfinite(smallest) and math.isfinite(largest)):
            raise UnsupportedError(
                f"tensor {self._name!r} is {'infinite' if math.isinf(smallest + largest) else 'NaN'} "
                f"for calibration image {image + 1}",
                remedy="look at that image and at the weights before this tensor, or leave INT8 out: --skip quantize",
            )
        counted = count_values(rows, smallest, largest)
        self._histogram = counted if self._histogram is None else self._histogram + counted
        self._low = low if self._low is None else np.minimum(self._low, low)
        self._high = high if self._high is None else np.maximum(self._high, high)
        self._sample(rows, image)

    def _sample(self, rows: NDArray[np.float32], image: int) -> None:
        """Keep one block of positions for each of _BLOCKS images, all images equally likely (Vitter's algorithm R)."""
        chance = np.random.default_rng((self._seed, image))
        slot = image if image < _BLOCKS else int(chance.integers(image + 1))
        if slot >= _BLOCKS:
            return
        positions = chance.integers(rows.shape[0] * rows.shape[2], size=_POSITIONS)
        block = rows[positions // rows.shape[2], :, positions % rows.shape[2]].copy()
        self._blocks[slot : slot + 1] = [block]

    def observation(self) -> Observation:
        """Return what was seen."""
        assert self._low is not None
        assert self._high is not None
        assert self._histogram is not None
        return Observation(self._low, self._high, self._histogram, np.concatenate(self._blocks))


def _channels_apart(value: NDArray[Any], axis: int) -> NDArray[np.float32]:
    """Return `value` as (outer, channels, inner)."""
    value = np.asarray(value, np.float32)
    if value.ndim == 0 or value.size == 0:
        return np.zeros((1, 1, 1), np.float32) if value.size == 0 else value.reshape(1, 1, 1)
    axis = axis % value.ndim
    outer = math.prod(value.shape[:axis])
    return value.reshape(outer, value.shape[axis], -1)


class _Alike:
    """Spread of a few fixed values between images (Welford), against the spread inside one image."""

    def __init__(self) -> None:
        self._count, self._inside = 0, 0.0
        self._mean: NDArray[np.float64] = np.zeros(0)
        self._squares: NDArray[np.float64] = np.zeros(0)

    def see(self, value: NDArray[Any]) -> None:
        few = np.ravel(value)[:: max(1, value.size // _ALIKE_VALUES)].astype(np.float64)
        if self._count == 0:
            self._mean, self._squares = np.zeros_like(few), np.zeros_like(few)
        if few.shape != self._mean.shape:
            return
        self._count += 1
        delta = few - self._mean
        self._mean += delta / self._count
        self._squares += delta * (few - self._mean)
        self._inside += float(few.std())

    def ratio(self) -> float:
        if self._count < 2 or self._inside == 0:
            return 0.0 if self._count >= 2 else math.inf
        between = math.sqrt(float((self._squares / (self._count - 1)).mean()))
        return between / (self._inside / self._count)


def calibrate(
    model: Model,
    frames: Iterable[Tensors],
    axes: Mapping[str, int],
    *,
    group_bytes: int = GROUP_BYTES,
    threads: int = 0,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Calibration:
    """Run the float model over `frames` once and watch the tensors named in `axes`.

    Args:
        model: The float model.
        frames: Model inputs, one image each; read once, never kept.
        axes: Tensor name -> its channel axis. Model inputs may be among them.
        group_bytes: Bytes of activations held at once; a single tensor may be larger.
        threads: Of the engine; 0: all physical cores.
        seed: Of the sampled positions.
        progress: Called with the number of images done.

    Raises:
        EdgeoptError: If there are no images.
        UnsupportedError: If a tensor is NaN or infinite for an image.
    """
    inputs = {spec.name for spec in model.inputs}
    watches = {name: _Watch(name, axis, seed) for name, axis in axes.items()}
    groups = _groups(model, [name for name in axes if name not in inputs], group_bytes)
    options = SessionOptions(threads=threads or physical_cores())
    sessions = [EXECUTOR.open(with_outputs(model, group), options) for group in groups]
    alike, images = _Alike(), 0
    try:
        for frame in frames:
            _see_frame(frame, sessions, watches, images)
            alike.see(next(iter(frame.values())))
            images += 1
            if progress:
                progress(images)
    finally:
        for session in sessions:
            session.close()
    if images == 0:
        raise EdgeoptError("there are no calibration images", remedy="give a folder of images with --calib")
    return Calibration({name: watch.observation() for name, watch in watches.items()}, images, alike.ratio())


def _see_frame(frame: Tensors, sessions: list[OnnxRuntimeSession], watches: Mapping[str, _Watch], image: int) -> None:
    for name in watches.keys() & frame.keys():
        watches[name].see(frame[name], image)
    for session in sessions:
        seen = session.run(frame)
        for name, value in seen.items():
            if name in watches:
                watches[name].see(value, image)


def with_outputs(model: Model, names: Iterable[str]) -> bytes:
    """Return the serialized model with more outputs; those it has already stay."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    present = {value.name for value in proto.graph.output}
    proto.graph.output.extend(
        helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names if name not in present
    )
    data: bytes = proto.SerializeToString()
    return data


def _groups(model: Model, names: list[str], group_bytes: int) -> list[list[str]]:
    """Split `names`, in their order, so that each group's activations fit."""
    inferred = onnx.shape_inference.infer_shapes(model.proto)
    values = [*inferred.graph.value_info, *inferred.graph.output]
    sizes = {value.name: _size_bytes(value) for value in values}
    groups: list[list[str]] = []
    room = 0
    for name in names:
        size = sizes.get(name, 0)
        if size > room or not groups:
            groups.append([])
            room = group_bytes
        groups[-1].append(name)
        room -= size
    return groups


def _size_bytes(value: onnx.ValueInfoProto) -> int:
    """Return the bytes of one float tensor; a free dimension counts as 1."""
    return 4 * math.prod(max(1, int(dim.dim_value)) for dim in value.type.tensor_type.shape.dim)
