"""Pictures in another size, by the nearest pixels or between them."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from edgeopt.executors.ncnn.conversion.conversion import Conversion
from edgeopt.executors.ncnn.conversion.network import Parameter
from edgeopt.graph.graph import Node, attribute

_MODES = {"nearest": 1, "linear": 2, "cubic": 3}
_PICTURE = 4
_CUBIC = -0.75
"""ncnn's coefficient, and the op's default."""


def _resize(conversion: Conversion, node: Node) -> None:
    before, after = conversion.shape(node.inputs[0]), conversion.shape(node.outputs[0])
    mode = attribute(node, "mode", "nearest")
    place = attribute(
        node, "coordinate_transformation_mode", "half_pixel" if node.op_type == "Resize" else "asymmetric"
    )
    if _is_first(conversion, node):
        place = "asymmetric"
    if len(before) != _PICTURE or before[:2] != after[:2] or before[0] != 1 or attribute(node, "antialias", 0):
        raise conversion.refuse(node, "over other axes than height and width")
    parameters: dict[int, Parameter] = {0: _MODES[mode], 3: after[2], 4: after[3]}
    if mode == "nearest":
        for axis in (2, 3):
            if not _is_floor(conversion, node, axis, place):
                raise conversion.refuse(node, f"of the nearest pixel by {place}")
    elif place == "align_corners":
        parameters[6] = 1
    elif place not in ("half_pixel", "pytorch_half_pixel") or 1 in after[2:]:
        raise conversion.refuse(node, f"in mode {mode} by {place}")
    if mode == "cubic" and (
        attribute(node, "cubic_coeff_a", _CUBIC) != _CUBIC or attribute(node, "exclude_outside", 0)
    ):
        raise conversion.refuse(node, "with another cubic")
    if mode != "nearest" and not _keeps_ratio(conversion, node, before, after):
        raise conversion.refuse(node, "by factors that are not the sizes' own")
    grid = conversion.grid(node.inputs[0]) if mode == "nearest" else None
    conversion.set(node.outputs[0], conversion.layer(node, "Interp", [node.inputs[0]], parameters), grid)


def _is_first(conversion: Conversion, node: Node) -> bool:
    """Whether it is the op of before opset 11: always asymmetric, to the floor, its factors the second input."""
    return node.op_type == "Upsample" or conversion.graph.opset < 11


def _factor(conversion: Conversion, node: Node, axis_count: int, axis: int) -> float | None:
    """Return the factor that is written for an axis; None where sizes are."""
    place = 1 if _is_first(conversion, node) else 2
    scales = conversion.numbers(node, place)
    if scales is None or not scales.size:
        return None
    axes = [named % axis_count for named in attribute(node, "axes", tuple(range(axis_count)))]
    return float(scales.reshape(-1)[axes.index(axis)]) if axis in axes else 1.0


def _keeps_ratio(conversion: Conversion, node: Node, before: tuple[int, ...], after: tuple[int, ...]) -> bool:
    factors = [_factor(conversion, node, len(before), axis) for axis in (2, 3)]
    return all(
        factor is None or math.isclose(factor * before[axis], after[axis], rel_tol=1e-6)
        for axis, factor in zip((2, 3), factors, strict=True)
    )


def _is_floor(conversion: Conversion, node: Node, axis: int, place: str) -> bool:
    """Whether the pixels that ONNX reads are those at the floor of ncnn's position, for one axis."""
    before, after = conversion.shape(node.inputs[0])[axis], conversion.shape(node.outputs[0])[axis]
    factor = _factor(conversion, node, _PICTURE, axis)
    factor = after / before if factor is None else factor
    x = np.arange(after, dtype=np.float64)
    if place == "asymmetric":
        position = x / factor
    elif place in ("half_pixel", "pytorch_half_pixel"):
        position = (x + 0.5) / factor - 0.5
    elif place == "align_corners":
        position = x * (before - 1) / max(after - 1, 1)
    else:
        return False
    read = _rounded(position, attribute(node, "nearest_mode", _default_rounding(conversion, node)))
    theirs = np.floor(x * (before / after))
    return bool((np.clip(read, 0, before - 1) == np.clip(theirs, 0, before - 1)).all())


def _default_rounding(conversion: Conversion, node: Node) -> str:
    return "floor" if _is_first(conversion, node) else "round_prefer_floor"


def _rounded(position: NDArray[np.float64], mode: str) -> NDArray[np.float64]:
    if mode == "floor":
        return np.floor(position)
    if mode == "ceil":
        return np.ceil(position)
    if mode == "round_prefer_ceil":
        return np.floor(position + 0.5)
    return np.ceil(position - 0.5)


OPS = {"Resize": _resize, "Upsample": _resize}
