"""Run a float model over images and watch its tensors. It adds nothing up beyond the images it is given."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from edgeopt.errors import UnsupportedError
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR, OnnxRuntimeSession
from edgeopt.extras import require
from edgeopt.model import Model
from edgeopt.quantization.histogram import count_values
from edgeopt.quantization.observation import Part, Seen, Spread, draw_block
from edgeopt.tensors import Tensors


class Watcher:
    """A float model that gives out the tensors to watch."""

    def __init__(
        self, model: Model, axes: Mapping[str, int], groups: Sequence[Sequence[str]], *, threads: int, seed: int
    ) -> None:
        """Open the model, if one session is enough.

        Args:
            model: The float model.
            axes: Tensor name -> its channel axis.
            groups: Names of the tensors that are fetched together. Where there are several, a session is opened for
                each in turn, chunk by chunk: open together, their arenas would hold what grouping saves.
            threads: Of the engine.
            seed: Of the sampled positions.
        """
        self._model, self._axes, self._groups = model, axes, groups
        self._threads, self._seed = threads, seed
        self._session = self._open(groups[0]) if len(groups) == 1 else None

    def watch(self, frames: Sequence[Tensors], first: int, tell: Callable[[], None] | None = None) -> Part:
        """Return what `frames`, one or more, showed.

        Args:
            frames: Model inputs, one image each.
            first: Number of the first image.
            tell: Called after each image.

        Raises:
            UnsupportedError: If a tensor is NaN or infinite for an image.
        """
        seen: list[dict[str, Seen]] = [{} for _ in frames]
        for position, frame in enumerate(frames):
            self._see(frame, first + position, seen[position])
        for number, group in enumerate(self._groups):
            session = self._session or self._open(group)
            for position, frame in enumerate(frames):
                self._see(session.run(frame), first + position, seen[position])  # not held during the next run
                if tell and number == len(self._groups) - 1:
                    tell()
            if session is not self._session:
                session.close()
        parts = [self._part(frame, one) for frame, one in zip(frames, seen, strict=True)]
        return reduce(add, parts)

    def _open(self, group: Sequence[str]) -> OnnxRuntimeSession:
        return _open(with_outputs(self._model, group), self._threads)

    def _see(self, values: Tensors, image: int, seen: dict[str, Seen]) -> None:
        for name, value in values.items():
            if name in self._axes and name not in seen:
                seen[name] = _look(name, channels_apart(value, self._axes[name]), image, self._seed)

    def _part(self, frame: Tensors, seen: Mapping[str, Seen]) -> Part:
        return Part(1, Spread.of(next(iter(frame.values()))), {name: seen[name] for name in self._axes})

    def close(self) -> None:
        """Free the session."""
        if self._session:
            self._session.close()


def _open(data: bytes, threads: int) -> OnnxRuntimeSession:
    """Open a session without memory patterns: they are for fixed answers, and here they double the peak."""
    ort = require("onnxruntime", extra="cpu", purpose="calibrating a model")
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    options.enable_mem_pattern = False
    try:
        return OnnxRuntimeSession(ort.InferenceSession(data, options, providers=["CPUExecutionProvider"]))
    except Exception:
        EXECUTOR.open(data, SessionOptions(threads=threads)).close()  # says in our words what is wrong with the model
        raise


def _look(name: str, rows: NDArray[np.float32], image: int, seed: int) -> Seen:
    low, high = rows.min(axis=(0, 2)), rows.max(axis=(0, 2))
    smallest, largest = float(low.min()), float(high.max())
    if not (math.isfinite(smallest) and math.isfinite(largest)):
        raise UnsupportedError(
            f"tensor {name!r} is {'infinite' if math.isinf(smallest + largest) else 'NaN'} "
            f"for calibration image {image + 1}",
            remedy="look at that image and at the weights before this tensor, or leave INT8 out: --skip quantize",
        )
    return Seen(low, high, count_values(rows, smallest, largest), draw_block(rows, image, seed))


def channels_apart(value: NDArray[Any], axis: int) -> NDArray[np.float32]:
    """Return `value` as (outer, channels, inner)."""
    value = np.asarray(value, np.float32)
    if value.ndim == 0 or value.size == 0:
        return np.zeros((1, 1, 1), np.float32) if value.size == 0 else value.reshape(1, 1, 1)
    axis = axis % value.ndim
    outer = math.prod(value.shape[:axis])
    return value.reshape(outer, value.shape[axis], -1)


def with_outputs(model: Model, names: Sequence[str]) -> bytes:
    """Return the serialized model with `names` for its only outputs, and only the nodes that they need."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    nodes = _needed(proto.graph, names)
    del proto.graph.node[:], proto.graph.output[:]
    proto.graph.node.extend(nodes)
    proto.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names)
    data: bytes = proto.SerializeToString()
    return data


def _needed(graph: onnx.GraphProto, names: Sequence[str]) -> list[onnx.NodeProto]:
    """Return copies of the nodes behind `names`, in their order; what a nested graph reads is needed too."""
    wanted, kept = set(names), list[onnx.NodeProto]()
    for node in reversed(graph.node):
        if wanted & set(node.output):
            wanted.update(_reads(node))
            kept.append(node)
    return [onnx.NodeProto.FromString(node.SerializeToString()) for node in reversed(kept)]


def _reads(node: onnx.NodeProto) -> set[str]:
    inner = (inside for attribute in node.attribute for inside in (attribute.g, *attribute.graphs))
    return {*node.input, *(name for graph in inner for one in graph.node for name in _reads(one))}


def groups_of(model: Model, names: Sequence[str], frame: Tensors, group_bytes: int) -> list[list[str]]:
    """Split `names`, in their order, so that each group's activations fit.

    Args:
        model: The float model.
        names: Tensors to fetch.
        frame: One input, for the sizes that the model leaves free.
        group_bytes: Bytes of activations held at once; a single tensor may be larger.
    """
    sizes = _sizes_bytes(model, frame)
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


def _sizes_bytes(model: Model, frame: Tensors) -> dict[str, int]:
    """Return the bytes of each float tensor for inputs of the shapes of `frame`; a dimension unknown even then is 1."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    if any(not spec.is_static for spec in model.inputs):
        for value in proto.graph.input:
            if value.name in frame:
                kind = value.type.tensor_type.elem_type
                value.CopyFrom(helper.make_tensor_value_info(value.name, kind, frame[value.name].shape))
        del proto.graph.value_info[:]
    graph = onnx.shape_inference.infer_shapes(proto).graph
    return {value.name: _size_bytes(value) for value in (*graph.value_info, *graph.output)}


def _size_bytes(value: onnx.ValueInfoProto) -> int:
    return 4 * math.prod(max(1, int(dim.dim_value)) for dim in value.type.tensor_type.shape.dim)
