"""The keypoints of COCO's annotations, checked when a task asks for them."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

from edgeopt.errors import InvalidFileError
from edgeopt.recipes.labels import require_right
from edgeopt.recipes.labels.boxes import BoxLabels
from edgeopt.system.text import short

_OF_BOX = 0.53
"""Area of a person over that of the box: where a file tells none. Source: MMPose, `CocoDataset`."""
_MOST_AREA = 2.0**48
_REMEDY = "write keypoints as [x, y, v, ...] in pixels, v: 0 not labelled, 1 hidden, 2 seen; area in square pixels"


def poses_of(labels: BoxLabels, points: int) -> dict[str, Any]:
    """Return images, categories and the annotations that have keypoints, with what pycocotools reads of them.

    Args:
        labels: As read.
        points: Of the model's poses.

    Raises:
        InvalidFileError: If none has keypoints, or some are wrong or of another number.
    """
    pairs = list(zip(labels.coco["annotations"], labels.beside, strict=True))
    parts = [(i, box, one) for i, (box, one) in enumerate(pairs) if one.get("keypoints") is not None]
    if not parts:
        raise InvalidFileError(f"{labels.source} holds no keypoints", remedy=_REMEDY)
    wrong = [f"annotations[{i}]: {why}" for i, _, one in parts if (why := _why_wrong(one["keypoints"], points))]
    require_right(labels.source, wrong, _REMEDY)
    return {**labels.coco, "annotations": [_pose(box, one) for _, box, one in parts]}


def _why_wrong(values: Any, points: int) -> str:
    if not isinstance(values, list) or not all(type(value) in (int, float) and isfinite(value) for value in values):
        return f"keypoints are {short(values)}, no list of numbers"
    if len(values) != 3 * points:
        return f"keypoints are {len(values)} numbers, not 3 for each of the model's {points} points"
    return "" if set(values[2::3]) <= {0, 1, 2} else "the third number of a keypoint is 0, 1 or 2"


def _pose(box: Mapping[str, Any], told: Mapping[str, Any]) -> dict[str, Any]:
    values, area = told["keypoints"], told.get("area")
    is_area = isinstance(area, int | float) and 0 < area <= _MOST_AREA
    numbers = {"keypoints": values, "num_keypoints": sum(value > 0 for value in values[2::3])}
    return {**box, **numbers, "area": area if is_area else _OF_BOX * box["area"]}
