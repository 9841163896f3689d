"""Pictures in another size: nearest pixels and what lies between pixels."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from edgeopt.executors.litert.conversion.conversion import TfliteConversion, TfliteStep, channels_last
from edgeopt.executors.litert.conversion.grids import one_grid


def _resize(conversion: TfliteConversion, step: TfliteStep) -> None:
    before, after = conversion.shape(step.node.inputs[0]), conversion.shape(step.node.outputs[0])
    if len(before) != 4 or before[:2] != after[:2]:
        raise conversion.refuse(step.node, "over other axes than height and width")
    mode = step.attribute("mode", "nearest")
    place = conversion.tensor(step.inputs[0], channels_last(4))
    if mode == "nearest":
        made = _nearest(conversion, step, place)
    elif mode == "linear":
        made = _between(conversion, step, place)
    else:
        raise conversion.refuse(step.node, f"in mode {mode}")
    conversion.set(step.outputs[0], made, channels_last(4))


def _factors(conversion: TfliteConversion, step: TfliteStep) -> tuple[float, float]:
    """Return the scales of height and width as the node says them, which positions are computed with."""
    before, after = conversion.shape(step.node.inputs[0])[2:], conversion.shape(step.node.outputs[0])[2:]
    place = 1 if step.node.op_type == "Upsample" or conversion.graph.opset < 11 else 2
    scales = conversion.numbers(step.node, place)
    if conversion.graph.opset < 9:
        scales = np.array(step.attribute("scales", ()), np.float32)
    if scales is not None and scales.size == 4:
        return float(scales[2]), float(scales[3])
    return after[0] / before[0], after[1] / before[1]


def _places(step: TfliteStep, before: int, after: int, factor: float, default: str) -> NDArray[np.float64]:
    """Return the place in the picture that each pixel of the result is read at."""
    x = np.arange(after, dtype=np.float64)
    mode = step.attribute("coordinate_transformation_mode", default)
    if mode == "asymmetric":
        return x / factor
    if mode == "align_corners":
        return x * (before - 1) / max(after - 1, 1)
    if mode == "half_pixel_symmetric":
        shift = (1 - after / (factor * before)) * before / 2
        return shift + (x + 0.5) / factor - 0.5
    if mode == "pytorch_half_pixel" and after == 1:
        return np.zeros(1)
    if mode in ("half_pixel", "pytorch_half_pixel"):
        return (x + 0.5) / factor - 0.5
    raise ValueError(mode)


def _positions(conversion: TfliteConversion, step: TfliteStep) -> list[NDArray[np.float64]]:
    before, after = conversion.shape(step.node.inputs[0])[2:], conversion.shape(step.node.outputs[0])[2:]
    default = "asymmetric" if conversion.graph.opset < 11 else "half_pixel"
    factors = _factors(conversion, step)
    try:
        return [_places(step, *row, default) for row in zip(before, after, factors, strict=True)]
    except ValueError as error:
        raise conversion.refuse(step.node, f"with coordinates of {error}") from error


def _nearest(conversion: TfliteConversion, step: TfliteStep, place: int) -> int:
    """Write whole repetitions as a resize, all else as rows and columns that are taken by their numbers."""
    default = "floor" if conversion.graph.opset < 11 else "round_prefer_floor"
    rounding = step.attribute("nearest_mode", default)
    sizes = conversion.shape(step.node.inputs[0])[2:]
    reads = []
    for position, size in zip(_positions(conversion, step), sizes, strict=True):
        rounded = {
            "floor": np.floor(position),
            "ceil": np.ceil(position),
            "round_prefer_ceil": np.floor(position + 0.5),
        }.get(rounding, np.ceil(position - 0.5))
        reads.append(np.clip(rounded, 0, size - 1).astype(np.int32))
    wanted = [len(read) for read in reads]
    shape = conversion.shown(place)
    repeats = all(
        after % size == 0 and (read == np.arange(after) // (after // size)).all()
        for read, size, after in zip(reads, sizes, wanted, strict=True)
    )
    if repeats:
        made = (shape[0], *wanted, shape[3])
        return conversion.apply("RESIZE_NEAREST_NEIGHBOR", [place, conversion.integers(wanted)], made)
    for axis, read in enumerate(reads, 1):
        numbers = conversion.network.constant("places", read)
        made = tuple(len(read) if i == axis else size for i, size in enumerate(conversion.shown(place)))
        place = conversion.apply("GATHER", [place, numbers], made, axis=axis)
    return place


def _between(conversion: TfliteConversion, step: TfliteStep, place: int) -> int:
    if step.attribute("antialias", 0) or step.is_integer:
        raise conversion.refuse(step.node, "with antialias, or on integers")
    before, wanted = conversion.shape(step.node.inputs[0])[2:], conversion.shape(step.node.outputs[0])[2:]
    named = _positions(conversion, step)
    for options in ({"halfPixelCenters": True}, {"alignCorners": True}, {}):
        theirs = [_theirs(size, after, options) for size, after in zip(before, wanted, strict=True)]
        limits = [np.clip(position, 0, size - 1) for position, size in zip(named, before, strict=True)]
        if all(
            np.allclose(a, np.clip(b, 0, size - 1), atol=1e-6)
            for a, b, size in zip(limits, theirs, before, strict=True)
        ):
            shape = conversion.shown(place)
            made = (shape[0], *wanted, shape[3])
            return conversion.apply("RESIZE_BILINEAR", [place, conversion.integers(wanted)], made, **options)
    mode = step.attribute("coordinate_transformation_mode", "half_pixel")
    raise conversion.refuse(step.node, f"with coordinates of {mode} between these sizes")


def _theirs(before: int, after: int, options: Mapping[str, bool]) -> NDArray[np.float64]:
    """Return the places that LiteRT reads at, by its own options."""
    x = np.arange(after, dtype=np.float64)
    if "alignCorners" in options and after > 1:
        return x * (before - 1) / (after - 1)
    return (x + 0.5) * before / after - 0.5 if "halfPixelCenters" in options else x * before / after


OPS = {"Resize": _resize, "Upsample": _resize}
ON_INTEGERS = {"Resize": one_grid}
