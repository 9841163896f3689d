"""Pictures in another size, each result a weighted sum of rows and columns at the places that Apple documents."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeopt.executors.coreml.reading.reading import MilOp, MilReading, as_array


def places_between(mode: str, before: int, after: int) -> NDArray[np.float64]:
    """Return the places of a row that the pixels of the result lie at."""
    i = np.arange(after, dtype=np.float64)
    if mode in ("STRICT_ALIGN_CORNERS", "ALIGN_CORNERS"):
        if after == 1:
            return np.full(1, (before - 1) / 2 if mode == "ALIGN_CORNERS" else 0.0)
        places = i * (before - 1) / (after - 1)
    elif mode == "DEFAULT":
        places = i * ((before - before / after) / (after - 1) if after > 1 else 0.0)
    elif mode == "UNALIGN_CORNERS":
        spacing = before / after
        places = i * spacing + 0.5 * spacing - 0.5
    else:
        raise ValueError(mode)
    return np.clip(places, 0, before - 1)


def _weights(places: NDArray[np.float64], before: int) -> NDArray[np.float32]:
    """Return for each pixel of the result how much of each pixel of a row it holds."""
    low = np.floor(places).astype(np.int64)
    high, share = np.minimum(low + 1, before - 1), places - low
    table = np.zeros((len(places), before))
    rows = np.arange(len(places))
    table[rows, low] += 1 - share
    table[rows, high] += share
    return as_array(table)


def _between(reading: MilReading, op: MilOp) -> str:
    return _weighted(reading, op, str(op.number("sampling_mode")))


def _upsampled(reading: MilReading, op: MilOp) -> str:
    """Read a resize by factors, which are found anew from the sizes."""
    if op.number("align_corners"):
        return _weighted(reading, op, "STRICT_ALIGN_CORNERS")
    is_between = not op.has("half_pixel_centers") or op.number("half_pixel_centers")
    return _weighted(reading, op, "UNALIGN_CORNERS" if is_between else "DEFAULT")


def _weighted(reading: MilReading, op: MilOp, mode: str) -> str:
    sizes = zip(op.shape("x")[-2:], op.made_shape[-2:], strict=True)
    try:
        rows, columns = (_weights(places_between(mode, before, after), before) for before, after in sizes)
    except ValueError as error:
        raise op.refuse(f"in mode {error}") from error
    tall = reading.add("MatMul", [reading.const(rows), op.tensor("x")])
    made: str = reading.add("MatMul", [tall, reading.const(np.ascontiguousarray(columns.T))])
    return made


def _repeated(reading: MilReading, op: MilOp) -> str:
    made = op.tensor("x")
    for axis, key in ((-2, "scale_factor_height"), (-1, "scale_factor_width")):
        after, factor = op.made_shape[axis], float(op.number(key))
        places = np.floor(np.arange(after) / factor).astype(np.int64)
        made = reading.add("Gather", [made, reading.const(places)], axis=len(op.shape("x")) + axis)
    return made


def _at_places(reading: MilReading, op: MilOp) -> str:
    beyond = {"constant": "zeros", "border": "border"}.get(str(op.number("padding_mode")))
    mode = {"bilinear": "linear", "nearest": "nearest"}.get(str(op.number("sampling_mode")))
    is_plain = op.number("coordinates_mode") == "normalized_minus_one_to_one" and op.number("padding_value") == 0
    if beyond is None or mode is None or not is_plain:
        raise op.refuse("in this mode")
    made: str = reading.add(
        "GridSample",
        [op.tensor("x"), op.tensor("coordinates")],
        mode=mode,
        padding_mode=beyond,
        align_corners=int(bool(op.number("align_corners"))),
    )
    return made


OPS = {
    "resize_bilinear": _between,
    "upsample_bilinear": _upsampled,
    "upsample_nearest_neighbor": _repeated,
    "resample": _at_places,
}
