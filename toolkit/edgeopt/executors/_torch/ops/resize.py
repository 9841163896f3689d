"""Resize, Upsample and GridSample. One axis after the other, each as a matrix of weights.

Source: ONNX Resize, opsets 10 to 19, and its reference implementation (`onnx/reference/ops/op_resize.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from edgeopt.executors._torch.ops._node import Compute, Node, ints

Array = NDArray[np.float64]

_PLACES: dict[str, Callable[[Array, float, int, int], Array]] = {
    "asymmetric": lambda x, scale, _n, _m: x / scale,
    "half_pixel": lambda x, scale, _n, _m: (x + 0.5) / scale - 0.5,
    "pytorch_half_pixel": lambda x, scale, _n, m: (x + 0.5) / scale - 0.5 if m > 1 else x * 0,
    "align_corners": lambda x, _s, n, m: x * (n - 1) / (m - 1) if m > 1 else x * 0,
    "tf_half_pixel_for_nn": lambda x, scale, _n, _m: (x + 0.5) / scale,
    "half_pixel_symmetric": lambda x, scale, n, m: n / 2 * (1 - m / (scale * n)) + (x + 0.5) / scale - 0.5,
}
_NEAREST: dict[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


@dataclass(frozen=True, slots=True)
class _Axis:
    """How one axis is resized."""

    size: int
    made: int
    scale: float
    mode: str
    places: str
    nearest: str
    cubic: float
    excludes_outside: bool
    antialias: bool
    crop: tuple[float, float] | None
    """Begin and end of the region of `tf_crop_and_resize`, as shares of the axis."""


def _sources(axis: _Axis) -> Array:
    """Return where on the input each output position lies."""
    x = np.arange(axis.made, dtype=np.float64)
    if axis.crop is None:
        return _PLACES[axis.places](x, axis.scale, axis.size, axis.made)
    begin, end = axis.crop
    if axis.made == 1:
        return np.array([0.5 * (begin + end) * (axis.size - 1)])
    return begin * (axis.size - 1) + x * (end - begin) * (axis.size - 1) / (axis.made - 1)


def _kernel(axis: _Axis, distance: Array) -> Array:
    """Return the weight of a pixel at a distance, in pixels."""
    near = np.abs(distance)
    if axis.mode == "linear":
        near = np.minimum(near, 1)
        return 1 - near
    a = axis.cubic
    inner = (a + 2) * near**3 - (a + 3) * near**2 + 1
    outer = a * near**3 - 5 * a * near**2 + 8 * a * near - 4 * a
    weights: Array = np.where(near <= 1, inner, np.where(near < 2, outer, 0))
    return weights


@lru_cache(maxsize=256)
def _weights(axis: _Axis) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Return the matrix (made, size) of one axis, and which positions lie outside of a cropped region."""
    sources = _sources(axis)
    outside = (sources < 0) | (sources > axis.size - 1) if axis.crop else np.zeros(axis.made, np.bool_)
    matrix = np.zeros((axis.made, axis.size))
    rows = np.arange(axis.made)
    if axis.mode == "nearest":
        matrix[rows, np.clip(_NEAREST[axis.nearest](sources), 0, axis.size - 1).astype(int)] = 1
        return matrix.astype(np.float32), outside
    shrink = min(axis.scale, 1.0) if axis.antialias else 1.0
    reach = int(np.ceil((1 if axis.mode == "linear" else 2) / shrink)) + 1
    floor = np.floor(sources)
    taps = [floor + step for step in range(-reach, reach + 2)]
    weights = np.stack([_kernel(axis, (tap - sources) * shrink) for tap in taps])
    if axis.excludes_outside:
        weights *= np.stack([(tap >= 0) & (tap < axis.size) for tap in taps])
    if axis.excludes_outside or axis.antialias:
        weights /= weights.sum(axis=0)
    for tap, weight in zip(taps, weights, strict=True):
        np.add.at(matrix, (rows, np.clip(tap, 0, axis.size - 1).astype(int)), weight)
    return matrix.astype(np.float32), outside


def _resize(
    node: Node,
    x: torch.Tensor,
    roi: torch.Tensor | None = None,
    scales: torch.Tensor | None = None,
    sizes: torch.Tensor | None = None,
) -> torch.Tensor:
    if node.opset < 11:
        roi, scales = None, roi
    axes = [value % x.ndim for value in node.get("axes", range(x.ndim))]
    factors = [float(value) for value in scales.reshape(-1).tolist()] if scales is not None and scales.numel() else None
    if factors is None:
        factors, wanted = _from_sizes(node, [x.shape[other] for other in axes], ints(sizes))
    else:
        wanted = [int(np.floor(x.shape[other] * np.float32(by))) for other, by in zip(axes, factors, strict=True)]
    region = None if roi is None or not roi.numel() else roi.reshape(-1).tolist()
    plan = []
    for place, axis in enumerate(axes):
        crop = None
        if region is not None and node.get("coordinate_transformation_mode", "") == "tf_crop_and_resize":
            crop = (region[place], region[place + len(axes)])
        if wanted[place] != x.shape[axis] or factors[place] != 1 or (crop not in (None, (0.0, 1.0))):
            plan.append((axis, _axis(node, x.shape[axis], wanted[place], factors[place], crop)))
    return _apply(x, plan, node.get("extrapolation_value", 0.0))


def _from_sizes(node: Node, have: list[int], want: list[int]) -> tuple[list[float], list[int]]:
    """Return scales and sizes where sizes are asked for."""
    scales = [new / old for new, old in zip(want, have, strict=True)]
    policy = node.get("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return scales, want
    number = min(scales) if policy == "not_larger" else max(scales)
    return [number] * len(have), [int(np.floor(number * old + 0.5)) for old in have]


def _axis(node: Node, size: int, made: int, scale: float, crop: tuple[float, float] | None) -> _Axis:
    asked = node.get("coordinate_transformation_mode", "half_pixel" if node.opset >= 11 else "asymmetric")
    nearest = node.get("nearest_mode", "round_prefer_floor" if node.opset >= 11 else "floor")
    if crop is None and asked == "tf_crop_and_resize":
        crop = (0.0, 1.0)
    if asked not in _PLACES and crop is None:
        raise node.refuse(f"coordinates {asked}")
    return _Axis(
        *(size, made, scale, node.get("mode", "nearest"), asked, nearest, node.get("cubic_coeff_a", -0.75)),
        *(bool(node.get("exclude_outside", 0)), bool(node.get("antialias", 0)), crop),
    )


def _apply(x: torch.Tensor, plan: list[tuple[int, _Axis]], filling: float) -> torch.Tensor:
    fast = _by_torch(x, plan)
    if fast is not None:
        return fast
    for axis, other in plan:
        matrix, _ = _weights(other)
        if other.mode == "nearest":
            x = x.index_select(axis, torch.from_numpy(matrix.argmax(axis=1)).to(x.device))
        else:
            weights = torch.from_numpy(matrix).to(x.device, x.dtype)
            x = torch.movedim(torch.movedim(x, axis, -1) @ weights.t(), -1, axis)
    for axis, other in plan:
        outside = _weights(other)[1]
        if outside.any():
            mask = torch.from_numpy(outside).to(x.device).reshape([-1 if i == axis else 1 for i in range(x.ndim)])
            x = torch.where(mask, torch.full((), filling, dtype=x.dtype, device=x.device), x)
    return x


def _by_torch(x: torch.Tensor, plan: list[tuple[int, _Axis]]) -> torch.Tensor | None:
    """Return what torch's own kernels make of pictures in the two usual ways; None: it is none of these."""
    if x.ndim != 4 or [axis for axis, _ in plan] != [2, 3]:
        return None
    if any(other.antialias or other.crop or other.scale * other.size != other.made for _, other in plan):
        return None
    made, kinds = [one.made for _, one in plan], {(one.mode, one.places) for _, one in plan}
    if all(other.mode == "nearest" and _repeats(other) for _, other in plan):
        return functional.interpolate(x, size=made, mode="nearest")
    if kinds <= {("linear", "half_pixel"), ("linear", "pytorch_half_pixel")} and min(made) > 1:
        return functional.interpolate(x, size=made, mode="bilinear", align_corners=False)
    if kinds == {("linear", "align_corners")} and min(made) > 1:
        return functional.interpolate(x, size=made, mode="bilinear", align_corners=True)
    return None


def _repeats(axis: _Axis) -> bool:
    """Whether each pixel is repeated as often as the others."""
    chosen = _weights(axis)[0].argmax(axis=1)
    return axis.made % axis.size == 0 and bool((chosen == np.arange(axis.made) // (axis.made // axis.size)).all())


def _upsample(node: Node, x: torch.Tensor, scales: torch.Tensor | None = None) -> torch.Tensor:
    factors = torch.tensor(node.get("scales", [])) if scales is None else scales
    plain = Node(node.op, node.name, {"mode": node.get("mode", "nearest")}, 10, 1)
    return _resize(plain, x, factors)


def _grid_sample(node: Node, x: torch.Tensor, grid: torch.Tensor) -> Any:
    mode = {"linear": "bilinear", "cubic": "bicubic"}.get(node.get("mode", "linear"), node.get("mode", "linear"))
    padding, corners = node.get("padding_mode", "zeros"), bool(node.get("align_corners", 0))
    return functional.grid_sample(x, grid, mode=mode, padding_mode=padding, align_corners=corners)


OPS: dict[str, Compute] = {"Resize": _resize, "Upsample": _upsample, "GridSample": _grid_sample}
