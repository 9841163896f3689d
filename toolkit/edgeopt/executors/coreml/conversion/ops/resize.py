"""Pictures in another size: nearest pixels, what lies between pixels, and pixels at computed places."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeopt.executors._conversion.resizing import is_repetition, nearest_places, positions_of
from edgeopt.executors.coreml.conversion.conversion import MilConversion
from edgeopt.graph.graph import Node, attribute

_BEYOND = {"zeros": "constant", "border": "border"}
"""MIL's words for what lies beyond a picture; its reflection is about other places than ONNX's."""


def _resize(conversion: MilConversion, node: Node) -> None:
    before, after = conversion.shape(node.inputs[0]), conversion.shape(node.outputs[0])
    if len(before) != 4 or before[:2] != after[:2]:
        raise conversion.refuse(node, "over other axes than height and width")
    mode = attribute(node, "mode", "nearest")
    if mode not in ("nearest", "linear"):
        raise conversion.refuse(node, f"in mode {mode}")
    try:
        positions = positions_of(conversion.graph, node, before[2:], after[2:])
    except ValueError as error:
        raise conversion.refuse(node, f"with coordinates of {error}") from error
    (_nearest if mode == "nearest" else _between)(conversion, node, positions)


def _nearest(conversion: MilConversion, node: Node, positions: list[NDArray[np.float64]]) -> None:
    """Write whole repetitions as a resize, all else as rows and columns that are taken by their numbers."""
    sizes, made = conversion.shape(node.inputs[0])[2:], conversion.var(node.inputs[0])
    reads = nearest_places(conversion.graph, node, positions, sizes)
    if is_repetition(reads, sizes):
        height, width = (len(read) // size for read, size in zip(reads, sizes, strict=True))
        if (height, width) != (1, 1):
            made = conversion.mb.upsample_nearest_neighbor(
                x=made, scale_factor_height=np.float32(height), scale_factor_width=np.float32(width)
            )
    else:
        for axis, read in enumerate(reads, 2):
            made = conversion.mb.gather(x=made, indices=read, axis=axis, validate_indices=False)
    conversion.set(node.outputs[0], made)


def _between(conversion: MilConversion, node: Node, positions: list[NDArray[np.float64]]) -> None:
    if attribute(node, "antialias", 0):
        raise conversion.refuse(node, "with antialias")
    before, after = conversion.shape(node.inputs[0])[2:], conversion.shape(node.outputs[0])[2:]
    for mode in ("UNALIGN_CORNERS", "STRICT_ALIGN_CORNERS", "DEFAULT"):
        pairs = zip(positions, before, after, strict=True)
        if all(np.allclose(np.clip(x, 0, size - 1), _theirs(mode, size, to), atol=1e-6) for x, size, to in pairs):
            made = conversion.mb.resize_bilinear(
                x=conversion.var(node.inputs[0]),
                target_size_height=after[0],
                target_size_width=after[1],
                sampling_mode=mode,
            )
            conversion.set(node.outputs[0], made)
            return
    named = attribute(node, "coordinate_transformation_mode", "half_pixel")
    raise conversion.refuse(node, f"with coordinates of {named} between these sizes")


def _theirs(mode: str, before: int, after: int) -> NDArray[np.float64]:
    """Return the places that Core ML reads at; source: the notes of `resize_bilinear` in coremltools."""
    x = np.arange(after, dtype=np.float64)
    if mode == "UNALIGN_CORNERS":
        places = (x + 0.5) * before / after - 0.5
    elif mode == "DEFAULT":
        places = x * before / after
    elif after == 1:
        return np.full(1, np.nan)  # no place is said
    else:
        places = x * (before - 1) / (after - 1)
    return np.clip(places, 0, before - 1)


def _at_places(conversion: MilConversion, node: Node) -> None:
    mode, beyond = attribute(node, "mode", "linear"), attribute(node, "padding_mode", "zeros")
    modes = {"linear": "bilinear", "bilinear": "bilinear", "nearest": "nearest"}
    if mode not in modes or beyond not in _BEYOND or len(conversion.shape(node.inputs[0])) != 4:
        raise conversion.refuse(node, f"in mode {mode}, with {beyond} beyond the picture, or of volumes")
    made = conversion.mb.resample(
        x=conversion.var(node.inputs[0]),
        coordinates=conversion.var(node.inputs[1]),
        sampling_mode=modes[mode],
        padding_mode=_BEYOND[beyond],
        padding_value=np.float32(0),
        coordinates_mode="normalized_minus_one_to_one",
        align_corners=bool(attribute(node, "align_corners", 0)),
    )
    conversion.set(node.outputs[0], made)


OPS = {"Resize": _resize, "Upsample": _resize, "GridSample": _at_places}
