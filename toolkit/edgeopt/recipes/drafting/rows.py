"""Whether a row of numbers, (1, n), holds a score a class, or coordinates, features or other numbers.

A shape alone does not tell: 136 numbers are 68 points of a face or as many classes. Names, the last operator and the
values that a few pictures give do, more or less.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.outputs.output_shapes import SPREADING

_PLACES = frozenset(
    {"landmark", "landmarks", "lmk", "lmks", "landms", "keypoint", "keypoints", "kpt", "kpts", "kps", "joint", "joints"}
    | {"point", "points", "pts", "coord", "coords", "coordinate", "coordinates", "bbox", "bboxes", "box", "boxes"}
    | {"mesh", "vertices", "uv", "xy", "xyz", "offset", "offsets", "pose", "poses", "regression", "reg", "loc"}
)
_NUMBERS = frozenset(
    {"embedding", "embeddings", "embed", "feature", "features", "feat", "feats", "descriptor", "latent", "vector"}
    | {"age", "angle", "angles", "yaw", "pitch", "roll", "gaze", "steering", "quality", "depth", "params", "param"}
)
_CLASSES = frozenset(
    {"logit", "logits", "class", "classes", "classification", "classifier", "cls", "prob", "probs", "probability"}
    | {"probabilities", "softmax", "softmaxout", "label", "labels", "category", "categories", "tags", "emotion"}
)
_CLASS_COUNTS = frozenset({1000, 1001, 21841, 21843})
"""Numbers of classes of ImageNet."""
_FEATURE_COUNTS = frozenset({64, 128, 192, 256, 320, 384, 512, 768, 1024, 1280, 1536, 2048})
"""Widths of layers that are compared, not read."""
_POINT_COUNTS = frozenset(
    {points * values for points in (17, 21, 33, 68, 98, 106, 133, 194, 468, 478) for values in (2, 3)}
)
"""Numbers of the usual skeletons, hands and faces, in two or three dimensions."""
_LEAST_ROW = 4
"""Numbers; fewer say nothing by their values."""
_LEAST_CURVE = 20
"""Numbers that can show a curve of points."""
_ALONG = 0.7
"""Correlation of each number with the next of its axis: points follow an outline, classes no order."""
_LARGEST_LOGIT = 60.0
_POSITIVE = 0.95
"""Share of numbers above zero: logits are of both signs."""
_UNIT = 1e-3
"""How far a length may be from 1."""


@dataclass(frozen=True, slots=True)
class RowKind:
    """The kind of numbers in a row."""

    are_classes: bool
    is_sure: bool
    why: str
    """Reason, in a clause."""


def row_kind(output: TensorSpec, answers: Sequence[NDArray[Any]], *, has_names: bool) -> RowKind:
    """Return what a row of numbers holds.

    Args:
        output: Of the model, with the operator that makes it.
        answers: What a few pictures gave there, any shape with n numbers; empty: nothing was run.
        has_names: Whether the exporter wrote names of classes.
    """
    count = max((size for size in output.shape if isinstance(size, int)), default=0)
    words = set(re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", output.name).lower()))
    result = words & (_PLACES | _NUMBERS)
    if result and not words & _CLASSES:
        return RowKind(False, True, f"the output is called {sorted(result)[0]}")
    if output.op in (*SPREADING, "QLinearSoftmax"):
        return RowKind(True, True, f"the graph ends in {output.op}")
    if has_names or words & _CLASSES or count in _CLASS_COUNTS:
        return RowKind(True, True, "one score a class")
    if not answers:
        return RowKind(True, True, "one score a class")
    rows = np.stack([np.asarray(answer, np.float64).reshape(-1) for answer in answers])
    if count in _POINT_COUNTS:
        return RowKind(False, False, f"{count} numbers are as many as of points, or of classes")
    if reason := _why_no_scores(rows, is_probable="Sigmoid" in output.op):
        return RowKind(False, False, f"{count} numbers {reason}")
    if count in _FEATURE_COUNTS:
        return RowKind(False, False, f"{count} numbers are as many as of features, or of classes")
    if "Sigmoid" in output.op:
        return RowKind(True, True, f"the graph ends in {output.op}")
    return RowKind(True, False, f"{count} numbers that may be a score a class, or anything else")


def _why_no_scores(rows: NDArray[np.float64], *, is_probable: bool) -> str:
    """Return why rows (pictures, n) look like no scores of classes; empty where they may be some."""
    if not np.isfinite(rows).all() or rows.shape[1] < _LEAST_ROW:
        return ""
    lengths = np.linalg.norm(rows, axis=1)
    if (np.abs(lengths - 1) < _UNIT).all():
        return "of length 1, as features have"
    if rows.shape[1] >= _LEAST_CURVE and rows.shape[1] % 2 == 0:
        ahead = [_correlation(row[:-2], row[2:]) for row in rows]
        if min(ahead) > _ALONG:
            return "that follow an outline, as points do"
    if is_probable:
        return ""
    if np.abs(rows).max() > _LARGEST_LOGIT:
        return f"up to {np.abs(rows).max():.0f}, as logits are not"
    if (rows > 0).mean() >= _POSITIVE and np.abs(rows.mean()) > rows.std():
        return "all above zero, as logits are not"
    return ""


def _correlation(array: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    array, other = array - array.mean(), other - other.mean()
    product = float(np.linalg.norm(array) * np.linalg.norm(other))
    return float(array @ other) / product if product > 0 else 0.0
