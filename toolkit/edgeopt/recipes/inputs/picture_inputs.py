"""Whether an input of a model may be a picture, by its shape and by what comes out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.drafting.readings import are_features
from edgeopt.recipes.inputs.preprocess import PICTURE_TYPES, Layout

_LARGEST_BANDS = 128
"""Largest bands of a window of sound as bands and frames; larger ones are pictures."""


def may_be_picture(tensor: TensorSpec) -> bool:
    """Whether an input has type and shape of a picture: four dimensions, 1 or 3 channels."""
    if len(tensor.shape) != 4 or tensor.dtype not in PICTURE_TYPES:
        return False
    batch, first, _, last = tensor.shape
    return (batch == 1 or not isinstance(batch, int)) and (first in (1, 3) or last in (1, 3))


def fixed_batch(tensor: TensorSpec) -> int:
    """Return how many pictures an input of four dimensions takes at once, if it is fixed above 1; otherwise 0."""
    batch = tensor.shape[0] if len(tensor.shape) == 4 else 1
    return batch if isinstance(batch, int) and batch > 1 else 0


def are_bands(tensor: TensorSpec, outputs: Sequence[TensorSpec]) -> bool:
    """Whether what looks like a small grey picture is rather frames of mel bands: no square, and features come out."""
    sides = [size for size in tensor.shape[1:] if size != 1]
    is_small = len(sides) == 2 and all(isinstance(side, int) and side <= _LARGEST_BANDS for side in sides)
    return is_small and sides[0] != sides[1] and len(outputs) == 1 and are_features(outputs[0])


def picture_layout(tensor: TensorSpec) -> Layout:
    """Return where the channels of a picture lie."""
    return Layout.NHWC if tensor.shape[3] in (1, 3) and tensor.shape[1] not in (1, 3) else Layout.NCHW


def plane_of(shape: Sequence[Any], layout: Layout) -> Sequence[Any]:
    """Return height and width of a shape."""
    return [shape[axis] for axis in layout.plane]
