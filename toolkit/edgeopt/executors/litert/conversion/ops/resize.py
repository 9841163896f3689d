"""Pictures in another size: nearest pixels and what lies between pixels."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from edgeopt.executors._conversion.resizing import is_repetition, nearest_places, positions_of
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


def _positions(conversion: TfliteConversion, step: TfliteStep) -> list[NDArray[np.float64]]:
    before, after = conversion.shape(step.node.inputs[0])[2:], conversion.shape(step.node.outputs[0])[2:]
    try:
        return positions_of(conversion.graph, step.node, before, after)
    except ValueError as error:
        raise conversion.refuse(step.node, f"with coordinates of {error}") from error


def _nearest(conversion: TfliteConversion, step: TfliteStep, place: int) -> int:
    """Write whole repetitions as a resize, all else as rows and columns that are taken by their numbers."""
    sizes = conversion.shape(step.node.inputs[0])[2:]
    reads = nearest_places(conversion.graph, step.node, _positions(conversion, step), sizes)
    wanted = [len(read) for read in reads]
    shape = conversion.shown(place)
    if is_repetition(reads, sizes):
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
