"""Which tensors of a student have a counterpart in its teacher, and which of the teacher's channels it kept.

A tensor keeps its name when channels are cut out of it or when the node that makes it is replaced. Which channels were
kept is not asked of whoever cut them, so that a model pruned by another tool is healed too: kept channels stay in their
order, so they are the rising choice of the teacher's channels that correlates best with the student's.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from edgeopt.graph.model import Model

_WEIGHTED = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
_MOST = 48
"""Tensors compared; more cost time and teach nothing new."""
_LEAST_ALIKE = 0.3
"""Correlation below which a channel has no counterpart."""
_POSITIONS = 4096
"""Values of a channel on which channels are compared."""


@dataclass(frozen=True, slots=True)
class Feature:
    """A tensor of both models."""

    name: str
    axis: int
    """Axis of the channels; -1: both have the same shape, and all is compared."""
    mine: NDArray[np.int64]
    """Channels of the student."""
    theirs: NDArray[np.int64]
    """The teacher's channels that they were."""
    gain: NDArray[np.float32] | None = None
    """Factors of the student's channels before they are compared; None: they are compared as they are."""
    offset: NDArray[np.float32] | None = None
    """Summand of the student's channels after that; None: nothing is added."""


def shared_tensors(student: Model, teacher: Model) -> tuple[str, ...]:
    """Return the tensors, in the student's order, that both models have by name and that layers with weights read.

    What the last of these layers make is among them: a map of classes before it is pooled tells more than the classes.

    Args:
        student: Made of the teacher.
        teacher: The dense model.
    """
    constants = {constant.name for constant in student.proto.graph.initializer}
    given = {value_info.name for value_info in student.proto.graph.input}
    theirs = {name for node in teacher.proto.graph.node for name in node.output if name}
    made = [name for node in student.proto.graph.node for name in node.output if name]
    weighted = [node for node in student.proto.graph.node if node.op_type in _WEIGHTED]
    rounded = _rounded(student)
    named = {rounded.get(name, name) for node in weighted for name in node.input}
    read = named - constants - given
    result = [name for name in made if name in read | _last_made(student) and name in theirs]
    if len(result) <= _MOST:
        return tuple(result)
    return tuple(result[int(i)] for i in np.linspace(0, len(result) - 1, _MOST).round())


def _rounded(model: Model) -> dict[str, str]:
    """Return what pairs of QuantizeLinear and DequantizeLinear make -> what they were made of."""
    made = {node.output[0]: node for node in model.proto.graph.node if node.op_type == "DequantizeLinear"}
    integers = {node.output[0]: node.input[0] for node in model.proto.graph.node if node.op_type == "QuantizeLinear"}
    return {name: integers[node.input[0]] for name, node in made.items() if node.input[0] in integers}


def _last_made(model: Model) -> set[str]:
    """Return what layers with weights make that no other layer with weights depends on."""
    needed, last = set[str](), set[str]()
    for node in reversed(model.proto.graph.node):
        is_weighted = node.op_type in _WEIGHTED
        is_needed = any(name in needed for name in node.output)
        if is_weighted and not is_needed:
            last.update(name for name in node.output if name)
        if is_weighted or is_needed:
            needed.update(name for name in node.input if name)
    return last


def match(mine: NDArray[np.float32], theirs: NDArray[np.float32], name: str) -> Feature | None:
    """Return how a student's tensor corresponds to its teacher's; None where it does not.

    Args:
        mine: The student's values for some pictures.
        theirs: The teacher's for the same ones.
        name: Of the tensor.
    """
    if mine.ndim != theirs.ndim or mine.ndim < 2:
        return None
    differing = [axis for axis, sizes in enumerate(zip(mine.shape, theirs.shape, strict=True)) if sizes[0] != sizes[1]]
    if not differing:
        everything = np.arange(0)
        return Feature(name, -1, everything, everything)
    axis = differing[0]
    if len(differing) > 1 or axis not in (1, mine.ndim - 1) or mine.shape[axis] > theirs.shape[axis]:
        return None
    alike = _correlations(_by_channel(mine, axis), _by_channel(theirs, axis))
    kept = rising_choice(alike)
    sure = np.flatnonzero(alike[np.arange(len(kept)), kept] >= _LEAST_ALIKE)
    return Feature(name, axis, sure, kept[sure]) if len(sure) else None


def rising_choice(scores: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return for each row a column, each to the right of the one before, so that the sum of their scores is largest.

    Args:
        scores: (rows, columns), no fewer columns than rows.
    """
    rows, columns = scores.shape
    best = np.full((rows + 1, columns + 1), -np.inf)
    best[0] = 0.0
    for i in range(rows):
        best[i + 1, 1:] = np.maximum.accumulate(best[i, :-1] + scores[i])
    chosen, column = np.empty(rows, np.int64), columns
    for i in range(rows, 0, -1):
        column = int(np.argmax(best[i, : column + 1] == best[i, column]))  # where the best sum is reached first
        chosen[i - 1] = column - 1
        column -= 1
    return chosen


def _by_channel(values: NDArray[np.float32], axis: int) -> NDArray[np.float64]:
    rows = np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1)
    stride = max(rows.shape[1] // _POSITIONS, 1) | 1  # odd: an even one could meet the same column of every row
    return rows[:, ::stride].astype(np.float64)


def _correlations(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return (channels, channels) of the cosines between channels; 0 where one is silent."""
    units = [array / np.maximum(np.linalg.norm(array, axis=1, keepdims=True), 1e-12) for array in (a, b)]
    return np.asarray(units[0] @ units[1].T, np.float64)


def features_of(
    names: Sequence[str],
    mine: Mapping[str, NDArray[np.float32]],
    theirs: Mapping[str, NDArray[np.float32]],
    scaled: Container[str] = (),
) -> tuple[Feature, ...]:
    """Return the tensors that can be compared, of those named.

    Args:
        names: Of `shared_tensors`.
        mine: The student's values by name.
        theirs: The teacher's.
        scaled: Tensors that are compared up to a gain and an offset for each channel.
    """
    features = [match(mine[name], theirs[name], name) for name in names]
    known = [feature for feature in features if feature is not None]
    return tuple(
        _aligned(feature, mine[feature.name], theirs[feature.name]) if feature.name in scaled else feature
        for feature in known
    )


def _aligned(feature: Feature, mine: NDArray[np.float32], theirs: NDArray[np.float32]) -> Feature:
    """Return the feature with the gain and the offset that bring the student's channels closest to the teacher's."""
    axis = feature.axis if feature.axis >= 0 else 1 if mine.ndim == 4 else mine.ndim - 1
    a, b = (np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1).astype(np.float64) for array in (mine, theirs))
    if feature.axis >= 0:
        a, b = a[feature.mine], b[feature.theirs]
    mean, their_mean = a.mean(1, keepdims=True), b.mean(1, keepdims=True)
    power = np.square(a - mean).mean(1, keepdims=True)
    common = ((a - mean) * (b - their_mean)).mean(1, keepdims=True)
    gain = np.where(power > 0, common / np.maximum(power, 1e-12), 1.0)
    shape = [-1 if i == axis else 1 for i in range(mine.ndim)]
    offset = their_mean - gain * mean
    return replace(
        feature, gain=gain.reshape(shape).astype(np.float32), offset=offset.reshape(shape).astype(np.float32)
    )
