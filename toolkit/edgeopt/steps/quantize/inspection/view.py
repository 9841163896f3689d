"""The integers of a quantized model: scale, zero point, saturation and error of each tensor.

Errors are those of whole tensors, as they come out: with a float model beside it, all rounding before included.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from edgeopt.errors import EdgeoptError, Note, NoteKind, UnsupportedError
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.graph.graph import Graph
from edgeopt.graph.model import Model, find_model, load_model
from edgeopt.graph.tensors import Tensors
from edgeopt.measurement.accuracy.evaluate import model_inputs
from edgeopt.recipes.inputs.feeding import fed
from edgeopt.recipes.inputs.frames import Frames, open_frames
from edgeopt.recipes.recognise import choose_recipe
from edgeopt.report.facts import WorkloadFacts
from edgeopt.steps.fuse import fuse
from edgeopt.steps.quantize.inspection.match_float import (
    NO_LIMITS,
    Counterpart,
    Values,
    counterpart,
    natural_limits,
    own_counterpart,
)
from edgeopt.steps.quantize.inspection.tensors import QuantizedTensor, read_tensors
from edgeopt.steps.quantize.keep_float.scores import channel_sqnr_db, is_rescaled, sqnr_db
from edgeopt.steps.simplify import simplify
from edgeopt.system.text import plural
from edgeopt.tasks import make_task

_PICTURES = 8
_POSITIONS = 4096
"""Positions of each picture and tensor: enough for a share of 0.1 %."""
_CHECKED_PICTURES = 2
_CHANNELS_LAST = ("MatMulIntegerToFloat", "NhwcMaxPool")
_MOST_NAMED = 4
_Rows = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedView(WorkloadFacts):
    """All integer tensors of a model, the worst first."""

    model: str
    """Name of the model."""
    tensors: tuple[QuantizedTensor, ...]
    """Type, scale and zero point of each; with pictures its error too."""
    pictures: int = 0
    """Number of pictures on which the errors were measured."""


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
        UnsupportedError: If nothing in the model is quantized, or the float model takes other inputs.
        EdgeoptError: If a file cannot be read.
    """
    path = find_model(model)
    loaded = load_model(path)
    tensors = read_tensors(loaded)
    if not tensors:
        raise UnsupportedError(
            f"{loaded.name} holds no integer tensors", remedy="make an INT8 model first: edgeopt quantize"
        )
    if not calib:
        return QuantizedView(model=loaded.name, tensors=tensors)
    frames = open_frames(Path(calib)).spread(pictures)
    original = _original(against, loaded) if against else None
    inputs = _inputs(loaded, path, recipe, frames)
    measured = measure_tensors(loaded, tensors, inputs, original)
    notes = tuple(_unmatched(measured, original)) if original is not None else ()
    worst_first = tuple(sorted(measured, key=_badness))
    return QuantizedView(model=loaded.name, tensors=worst_first, pictures=len(frames), notes=notes)


def _original(against: str, model: Model) -> Model:
    """Return the float model, which must take what the quantized one takes."""
    original = load_model(find_model(against))
    wanted, given = (", ".join(sorted(spec.name for spec in other.inputs)) for other in (original, model))
    if wanted != given:
        raise UnsupportedError(
            f"{original.name} takes {wanted}, {model.name} takes {given}",
            remedy="give --float the model that this one was made from",
        )
    return original


def _inputs(model: Model, path: Path, recipe: str | None, frames: Frames) -> list[Tensors]:
    chosen = choose_recipe(recipe, path, model.inputs, model.outputs, model.metadata, frames.shapes).recipe
    task = make_task(chosen, model.inputs, model.outputs, evaluating=True)
    return list(model_inputs(task, fed(frames, chosen, model.inputs)))


def _badness(tensor: QuantizedTensor) -> tuple[bool, float, float]:
    """Order by the normalised error, those without one by saturation, weights last."""
    worst = math.inf if tensor.channel_sqnr_db is None else tensor.channel_sqnr_db
    return tensor.is_weight, worst, -(tensor.saturated_ratio or 0.0)


def _unmatched(tensors: Sequence[QuantizedTensor], original: Model) -> Iterator[Note]:
    names = [tensor.name for tensor in tensors if tensor.is_measurable and tensor.compared_with is None]
    if names:
        more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        text = f"no error of {plural(len(names), 'tensor')}: {original.name} has none of that name, shape and scale"
        yield Note(NoteKind.WARNING, text, ", ".join(names[:_MOST_NAMED]) + more)


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
    values = Values(Graph.from_model(model))
    made = [tensor for tensor in tensors if tensor.is_measurable and values.graph.producer(values.by_name[tensor.name])]
    grids = {tensor.name: names for tensor in made if not tensor.scales and (names := _grid_outputs(values, tensor))}
    looked = [tensor for tensor in made if tensor.scales or tensor.name in grids]
    own = {tensor.name: own_counterpart(values, tensor) for tensor in looked}
    wanted = {other.name for other in own.values() if other} | {name for pair in grids.values() for name in pair}
    integers = _Samples(model, {*(tensor.name for tensor in looked), *wanted})
    floats = [] if original is None else _float_models(original, values, looked, inputs)
    pairs = {tensor.name: _Pairs(tensor, _is_last(values, tensor.name)) for tensor in looked}
    for frame in inputs:
        seen = integers.of(frame)
        references = [samples.of(frame) for _, samples in floats]
        for quantized_tensor in looked:
            grid = [np.asarray(seen[name]) for name in grids.get(quantized_tensor.name, ())]
            pair = pairs[quantized_tensor.name].at(seen[quantized_tensor.name], grid)
            if (beside := own[quantized_tensor.name]) is not None:
                pair.add_own(beside, seen[beside.name])
            for i, ((matches, _), reference) in enumerate(zip(floats, references, strict=True)):
                if (match := matches.get(quantized_tensor.name)) is not None and match.name in reference:
                    pair.add(match, reference[match.name], i)
    for samples in (integers, *(samples for _, samples in floats)):
        samples.close()
    return [
        pairs[quantized_tensor.name].result(beside=original is not None)
        if quantized_tensor.name in pairs
        else quantized_tensor
        for quantized_tensor in tensors
    ]


def _grid_outputs(values: Values, tensor: QuantizedTensor) -> tuple[str, ...]:
    """Return the names of scale and zero point that a node finds as the model runs."""
    maker = values.graph.producer(values.by_name[tensor.name])
    result = maker is not None and maker.op_type == "DynamicQuantizeLinear"
    return tuple(str(value.name) for value in maker.outputs[1:3]) if maker is not None and result else ()


def _float_models(
    original: Model, values: Values, looked: Sequence[QuantizedTensor], inputs: Sequence[Tensors]
) -> list[tuple[Mapping[str, Counterpart], _Samples]]:
    """Return what stands for each tensor in the original and, where that lacks one, in what was made of it first."""
    matches = _matches(original, values, looked)
    float_models = [(matches, _Samples(original, {match.name for match in matches.values()}))]
    if len(matches) < len(looked) and (prepared := _prepared(original, inputs[:_CHECKED_PICTURES])) is not None:
        matches = _matches(prepared, values, looked)
        float_models.append((matches, _Samples(prepared, {match.name for match in matches.values()})))
    return float_models


def _matches(floats: Model, values: Values, looked: Sequence[QuantizedTensor]) -> Mapping[str, Counterpart]:
    known = Values(Graph.from_model(floats))
    counterparts = {tensor.name: counterpart(values, known, tensor.name) for tensor in looked}
    return {name: match for name, match in counterparts.items() if match is not None}


def _prepared(original: Model, inputs: Sequence[Tensors]) -> Model | None:
    """Return the float model as the steps before quantization leave it; None where they cannot run."""
    shapes = {name: tuple(np.shape(value)) for name, value in inputs[0].items()}
    try:
        return fuse(simplify(original, shapes, inputs).model, inputs).model
    except EdgeoptError:
        return None


def _is_last(values: Values, name: str) -> bool:
    """Whether a node beside the tensor says that its channels are last."""
    value = values.by_name[name]
    around = [*values.graph.consumers(value), *([maker] if (maker := values.graph.producer(value)) else [])]
    return any(node.op_type in _CHANNELS_LAST or "channels_last" in node.attributes for node in around)


@dataclass(slots=True)
class _Candidate:
    """Sampled positions of a float tensor, and how far the integers lie from them."""

    name: str
    signal: list[_Rows] = field(default_factory=list)
    noise: list[_Rows] = field(default_factory=list)
    inside: list[NDArray[np.bool_]] = field(default_factory=list)
    """Whether the integer is at neither end of its grid."""
    outside: list[float] = field(default_factory=list)
    """Outside of each picture, the share of values beyond the grid."""


class _Pairs:
    """One integer tensor beside its float counterparts, picture by picture."""

    def __init__(self, tensor: QuantizedTensor, is_last: bool) -> None:
        self._tensor, self._is_last = tensor, is_last
        self._info = np.iinfo(tensor.dtype)
        self._own: _Candidate | None = None
        self._beside: dict[tuple[int, bool], _Candidate] = {}
        self._at_ends: list[float] = []

    def at(self, whole: NDArray[Any], grid: Sequence[NDArray[Any]]) -> _Pairs:
        """Take the integers of one picture, and their grid if it is found as the model runs."""
        tensor, info = self._tensor, self._info
        self._scale = np.float32(grid[0] if grid else tensor.scales[0])
        self._zero = int(grid[1] if grid else tensor.zero_points[0])
        self._whole = whole
        rows = _rows(whole, last=self._is_last)
        low, high = natural_limits(tensor) if tensor.scales else NO_LIMITS
        ends = [end for end, limit in ((info.min, low), (info.max, high)) if math.isinf(limit)]
        self._at_ends.append(float(np.isin(rows, ends).mean()))
        return self

    def add_own(self, match: Counterpart, real: NDArray[Any]) -> None:
        """Take the float tensor of which the model itself makes the integers."""
        self._own = self._own or _Candidate(match.name)
        self._compare(self._own, match, real, last=self._is_last)

    def add(self, match: Counterpart, real: NDArray[Any], number: int) -> None:
        """Take a tensor of a float model, in each layout in which it fits."""
        for moved in (False, True) if real.ndim > 3 else (False,):
            like = np.moveaxis(real, 1, -1) if moved else real
            if like.shape == self._whole.shape:
                candidate = self._beside.setdefault((number, moved), _Candidate(match.name))
                self._compare(candidate, match, like, last=moved)

    def _compare(self, candidate: _Candidate, match: Counterpart, real: NDArray[Any], *, last: bool) -> None:
        info, scale, zero = self._info, self._scale, self._zero
        signal = np.clip(_rows(real, last=last).astype(np.float32), *match.limits)
        steps = _rows(self._whole, last=last)
        whole = np.clip((steps.astype(np.float32) - zero) * scale, *match.later)
        low, high = (info.min - zero - 0.5) * scale, (info.max - zero + 0.5) * scale
        candidate.signal.append(signal)
        candidate.noise.append(whole - signal)
        candidate.inside.append((steps > info.min) & (steps < info.max))
        candidate.outside.append(float(((signal < low) | (signal > high)).mean()))

    def result(self, *, beside: bool) -> QuantizedTensor:
        """Return the tensor with what was seen, compared with a float model or with what the model itself rounds."""
        candidates = list(self._beside.values()) if beside else [self._own] if self._own else []
        scored = [(each, self._scored(each)) for each in candidates]
        # Where names and shapes leave a choice, such as a layout of equal sides, the integers stand for the nearest.
        fitting = [(tensor.sqnr_db or 0.0, each, tensor) for each, tensor in scored if tensor is not None]
        _, nearest, quantized_tensor = max(fitting, key=lambda each: each[0], default=(0.0, None, self._tensor))
        real = self._own or nearest
        shares = real.outside if real else self._at_ends
        return (
            replace(quantized_tensor, saturated_ratio=sum(shares) / len(shares), is_bound=real is None)
            if shares
            else quantized_tensor
        )

    def _scored(self, candidate: _Candidate) -> QuantizedTensor | None:
        signal, noise = np.concatenate(candidate.signal), np.concatenate(candidate.noise)
        if is_rescaled(signal, noise, np.concatenate(candidate.inside), float(self._scale)):
            return None
        return replace(
            self._tensor,
            sqnr_db=sqnr_db(signal, noise),
            channel_sqnr_db=channel_sqnr_db(signal, noise),
            compared_with=candidate.name,
        )


def _rows(value: NDArray[Any], *, last: bool) -> NDArray[Any]:
    """Return (positions, channels), at most _POSITIONS of them, evenly spread."""
    if value.ndim > 3 and not last:
        value = np.moveaxis(value, 1, -1)
    *places, channels = value.shape or (1,)
    count = math.prod(places)
    taken = np.linspace(0, count - 1, min(count, _POSITIONS)).astype(np.int64)
    spread: NDArray[Any] = value[np.unravel_index(taken, places)] if places else value
    return spread.reshape(-1, channels)


class _Samples:
    """A model that also returns named tensors of its inside; it has no value for a tensor that it does not make."""

    def __init__(self, model: Model, names: set[str]) -> None:
        proto = onnx.ModelProto()
        proto.CopyFrom(model.proto)
        made = {name for node in proto.graph.node for name in node.output}
        present = {value_info.name for value_info in proto.graph.output}
        proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in sorted((names & made) - present))
        self._session = EXECUTOR.open(Model(proto, model.name).source, SessionOptions())

    def of(self, inputs: Tensors) -> dict[str, NDArray[Any]]:
        """Return the values for one input, inputs included."""
        return {**self._session.run(inputs), **inputs}

    def close(self) -> None:
        """Free the memory of the session."""
        self._session.close()
