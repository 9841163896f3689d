"""Run a float model over images and watch its tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from edgeopt.errors import EdgeoptError, UnsupportedError
from edgeopt.executors import SessionOptions, Source
from edgeopt.executors._child import EngineAbortError
from edgeopt.executors.onnxruntime import EXECUTOR, MEMORY_PATTERN
from edgeopt.executors.onnxruntime.optimizers import LEVEL, UNOPTIMIZED
from edgeopt.executors.onnxruntime.session import OnnxRuntimeSession
from edgeopt.graph.files.outside_weights import without_outside
from edgeopt.graph.model import Model
from edgeopt.graph.subgraphs import subgraphs
from edgeopt.graph.tensors import Tensors
from edgeopt.steps.quantize.calibration.observation import NEVER, Part, Seen, Spread, draw_block
from edgeopt.steps.quantize.grids.histogram import count_values
from edgeopt.system.processes.time_limit import require_time

_BLOCK = 16
"""Channels that ONNX Runtime computes together, with AVX-512; elsewhere 8 or 1."""
_MOST_FILLED = 1.25


class Watcher:
    """A float model that gives out the tensors to watch."""

    def __init__(
        self,
        model: Model,
        axes: Mapping[str, int],
        groups: Sequence[Sequence[str]],
        *,
        threads: int,
        seed: int,
        plain_layout: bool = False,
        entries: Mapping[str, str] | None = None,
    ) -> None:
        """Open the model, if one session is enough.

        Args:
            model: The float model.
            axes: Tensor name -> its channel axis.
            groups: Names of the tensors that are fetched together. Where there are several, a session is opened for
                each in turn, chunk by chunk: open together, their arenas would hold what grouping saves.
            threads: Of the engine.
            seed: Of the sampled positions.
            plain_layout: Whether the engine leaves the layout of pictures as it is; see `is_narrow`.
            entries: Session entries with which the engine computes what the model says; None: it needs none.
        """
        self.entries = dict(entries or {})
        """Entries of its sessions; those that optimize nothing, once the engine aborted where it optimized."""
        self._model, self._axes, self._groups = model, axes, groups
        self._threads, self._seed, self._plain_layout = threads, seed, plain_layout
        self._session = self._open(groups[0]) if len(groups) == 1 else None

    def watch(self, frames: Sequence[Tensors], first: int, tell: Callable[[], None] | None = None) -> Part:
        """Return what `frames`, one or more, showed.

        Args:
            frames: Model inputs, one image each.
            first: Number of the first image.
            tell: Called after each image.

        Raises:
            UnsupportedError: If an input is NaN.
        """
        seen: dict[str, Seen] = {}
        for position, frame in enumerate(frames):
            _require_numbers(frame, first + position)
            self._see(frame, first + position, seen)
        for number, group in enumerate(self._groups):
            session = self._session or self._open(group)
            for position, frame in enumerate(frames):
                require_time()
                try:
                    values = session.run(frame)
                except EngineAbortError:  # in the child, at the session's first run
                    session = self._reopened(session, group)
                    values = session.run(frame)
                self._see(values, first + position, seen)
                del values  # not held during the next run
                if tell and number == len(self._groups) - 1:
                    tell()
            if session is not self._session:
                session.close()
        spread = reduce(add, (Spread.of(next(iter(frame.values()))) for frame in frames))
        return Part(len(frames), spread, {name: seen[name] for name in self._axes})

    def _open(self, group: Sequence[str]) -> OnnxRuntimeSession:
        source = with_outputs(self._model, group)
        return _open(source, self._threads, self.entries, plain_layout=self._plain_layout)

    def _reopened(self, session: OnnxRuntimeSession, group: Sequence[str]) -> OnnxRuntimeSession:
        """Return a session that optimizes nothing, in place of one on which the engine aborts."""
        session.close()
        self.entries |= UNOPTIMIZED
        opened = self._open(group)
        self._session = opened if session is self._session else None
        return opened

    def _see(self, values: Tensors, image: int, seen: dict[str, Seen]) -> None:
        """Add what one image shows of some tensors."""
        for name, value in values.items():
            if name in self._axes:
                other = _look(channels_apart(value, self._axes[name]), image, self._seed)
                seen[name] = seen[name] + other if name in seen else other

    def close(self) -> None:
        """Free the session."""
        if self._session:
            self._session.close()


def _open(source: Source, threads: int, entries: Mapping[str, str], *, plain_layout: bool) -> OnnxRuntimeSession:
    """Open a session without memory patterns: they are for fixed answers, and here they double the peak."""
    layout = {LEVEL: "extended"} if plain_layout else {}
    own = {MEMORY_PATTERN: "0", **layout, **entries}
    for each in (own, {**own, **UNOPTIMIZED}):  # the optimizer errs more often where inner tensors are read too
        with suppress(EdgeoptError):
            return EXECUTOR.open(source, SessionOptions(threads=threads, entries=each))
    session = EXECUTOR.open(source, SessionOptions(threads=threads))  # says in our words what is wrong with the model
    session.close()
    raise UnsupportedError("ONNX Runtime opens the model, but not to watch its tensors", remedy="pass --skip quantize")


def _require_numbers(frame: Tensors, image: int) -> None:
    for name, value in frame.items():
        if value.dtype.kind == "f" and np.isnan(value).any():
            raise UnsupportedError(
                f"input {name!r} is NaN for calibration image {image + 1}",
                remedy="leave this image out, or mend what makes it",
            )


def _look(rows: NDArray[np.float32], image: int, seed: int) -> Seen:
    """Return what one image shows of a tensor; infinity and NaN, which no grid holds, count as zero and are told."""
    low, high = rows.min(axis=(0, 2)), rows.max(axis=(0, 2))
    infinite, nan = NEVER, NEVER
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        infinite, nan = (image if array.any() else NEVER for array in (np.isinf(rows), np.isnan(rows)))
        rows = np.where(np.isfinite(rows), rows, np.float32(0))
        low, high = rows.min(axis=(0, 2)), rows.max(axis=(0, 2))
    counts = count_values(rows, float(low.min()), float(high.max()))
    return Seen(low, high, counts, draw_block(rows, image, seed), infinite, nan)


def channels_apart(value: NDArray[Any], axis: int) -> NDArray[np.float32]:
    """Return `value` as (outer, channels, inner)."""
    value = np.asarray(value, np.float32)
    if value.ndim == 0 or value.size == 0:
        return np.zeros((1, 1, 1), np.float32) if value.size == 0 else value.reshape(1, 1, 1)
    axis = axis % value.ndim
    outer = math.prod(value.shape[:axis])
    return value.reshape(outer, value.shape[axis], -1)


def with_outputs(model: Model, names: Sequence[str]) -> Source:
    """Return the model with `names` for its only outputs, and only the nodes that they need."""
    proto = _behind(model, names)
    proto.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names)
    return Model(proto, model.name).source


def _behind(model: Model, names: Sequence[str]) -> onnx.ModelProto:
    """Return a copy with the nodes that `names` need, and no outputs yet."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    nodes = _needed(proto.graph, names)
    del proto.graph.node[:], proto.graph.output[:]
    proto.graph.node.extend(nodes)
    return proto


def _needed(graph: onnx.GraphProto, names: Sequence[str]) -> list[onnx.NodeProto]:
    """Return copies of the nodes behind `names`, in their order; what a nested graph reads is needed too."""
    wanted, kept = set(names), list[onnx.NodeProto]()
    for node in reversed(graph.node):
        if wanted & set(node.output):
            wanted.update(_reads(node))
            kept.append(node)
    return [onnx.NodeProto.FromString(node.SerializeToString()) for node in reversed(kept)]


def _reads(node: onnx.NodeProto) -> set[str]:
    reads = set(node.input)
    for graph in subgraphs([node]):
        reads.update(name for value in graph.node for name in _reads(value))
        reads.update(value_info.name for value_info in graph.output)  # a branch may return what the outer graph made
    return reads


def groups_of(sizes: Mapping[str, int], group_bytes: int) -> list[list[str]]:
    """Split tensors, in their order, so that each group's activations fit.

    Args:
        sizes: Tensor to fetch -> its bytes.
        group_bytes: Bytes of activations held at once; a single tensor may be larger.
    """
    groups: list[list[str]] = []
    room = 0
    for name, size in sizes.items():
        if size > room or not groups:
            groups.append([])
            room = group_bytes
        groups[-1].append(name)
        room -= size
    return groups


def is_narrow(shapes: Iterable[tuple[int, ...]]) -> bool:
    """Whether blocks of channels would be filled up so far that the engine had better leave the layout as it is.

    ONNX Runtime computes convolutions on blocks of up to 16 channels. With 8 channels every tensor is twice as large
    so, and the engine slower too; with 16 and more its blocks are faster.
    """
    pictures = [shape for shape in shapes if len(shape) == 4]
    filled = sum(math.prod(shape) // max(1, shape[1]) * -(-shape[1] // _BLOCK) * _BLOCK for shape in pictures)
    return filled > _MOST_FILLED * sum(math.prod(shape) for shape in pictures)


def shapes_of(model: Model, names: Sequence[str], frame: Tensors) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor of `names` for inputs of the shapes of `frame`.

    What ONNX cannot derive, behind an op of another domain for one, is measured by running the model once.
    """
    known = _derived_shapes(model, frame)
    unknown = [name for name in names if name not in known]
    measured = _measured_shapes(model, unknown, frame) if unknown else {}
    return {name: known[name] if name in known else measured[name] for name in names}


def _derived_shapes(model: Model, frame: Tensors) -> dict[str, tuple[int, ...]]:
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    if any(not spec.is_static for spec in model.inputs):
        for value in proto.graph.input:
            if value.name in frame:
                kind = value.type.tensor_type.elem_type
                value.CopyFrom(helper.make_tensor_value_info(value.name, kind, frame[value.name].shape))
        del proto.graph.value_info[:]
    graph = onnx.shape_inference.infer_shapes(without_outside(proto)).graph
    result = {value.name: value.type.tensor_type for value in (*graph.value_info, *graph.output)}
    return {
        name: tuple(int(dim.dim_value) for dim in kind.shape.dim)
        for name, kind in result.items()
        if kind.HasField("shape") and all(dim.HasField("dim_value") for dim in kind.shape.dim)
    }


def _measured_shapes(model: Model, names: Sequence[str], frame: Tensors) -> dict[str, tuple[int, ...]]:
    """Let the engine hand out shapes alone, so that no tensor is held for it."""
    proto = _behind(model, names)
    shapes = [f"{name} (shape)" for name in names]
    made = (helper.make_node("Shape", [name], [shape]) for name, shape in zip(names, shapes, strict=True))
    proto.graph.node.extend(made)
    proto.graph.output.extend(helper.make_tensor_value_info(shape, TensorProto.INT64, None) for shape in shapes)
    session = _open(Model(proto, model.name).source, 1, {}, plain_layout=True)
    arrays = session.run(frame)
    session.close()
    return {name: tuple(arrays[shape].tolist()) for name, shape in zip(names, shapes, strict=True)}
