"""Largest numbers and means of windows, and of all positions."""

from __future__ import annotations

import numpy as np

from edgeopt.executors._conversion.windows import Windows, counted, lies_in_padding
from edgeopt.executors.litert.conversion.conversion import TfliteConversion, TfliteStep, channels_last
from edgeopt.executors.litert.conversion.grids import any_grids, one_grid
from edgeopt.executors.litert.conversion.ops._windows import padded, padding_of, windows_of


def _windows(conversion: TfliteConversion, step: TfliteStep) -> Windows:
    kernel = step.attribute("kernel_shape", ())
    if len(kernel) != 2 or any(size > 1 for size in step.attribute("dilations", ())):
        raise conversion.refuse(step.node, "over other axes than two, or with holes")
    windows = windows_of(conversion, step, kernel)
    if lies_in_padding(step.node, windows):
        raise conversion.refuse(step.node, "with a window that lies in padding alone")
    return windows


def _pooled(conversion: TfliteConversion, code: str, place: int, windows: Windows, padding: str) -> int:
    shape = conversion.shown(place)
    return conversion.apply(
        code,
        [place],
        (shape[0], *windows.counts, shape[3]),
        padding=padding,
        strideH=windows.strides[0],
        strideW=windows.strides[1],
        filterHeight=windows.kernel[0],
        filterWidth=windows.kernel[1],
    )


def _largest(conversion: TfliteConversion, step: TfliteStep) -> None:
    if len(step.node.outputs) > 1 and step.node.outputs[1].consumers():
        raise conversion.refuse(step.node, "with its indices read")
    windows = _windows(conversion, step)
    place, padding = conversion.tensor(step.inputs[0], channels_last(4)), padding_of(windows)
    if not padding:
        place, padding = padded(conversion, place, windows.pads, -np.inf), "VALID"
    made = _pooled(conversion, "MAX_POOL_2D", place, windows, padding)
    conversion.set(step.outputs[0], made, channels_last(4))


def _mean(conversion: TfliteConversion, step: TfliteStep) -> None:
    """Means over what lies in the picture, or over padding too; LiteRT knows the first alone, and only with SAME."""
    windows = _windows(conversion, step)
    place = conversion.tensor(step.inputs[0], channels_last(4))
    counts_padding = bool(step.attribute("count_include_pad", 0))
    padding = padding_of(windows)
    if padding and (padding == "VALID" or not counts_padding):
        made = _pooled(conversion, "AVERAGE_POOL_2D", place, windows, padding)
    else:
        place = padded(conversion, place, windows.pads)
        made = _pooled(conversion, "AVERAGE_POOL_2D", place, windows, "VALID")
        factor = np.prod(windows.kernel) / counted(step.node, windows, counts_padding=counts_padding)
        if (factor != 1).any():
            table = conversion.network.constant("counts", factor.astype(np.float32)[None, :, :, None])
            made = conversion.apply("MUL", [made, table], conversion.shown(made))
    conversion.set(step.outputs[0], made, channels_last(4))


def _global_mean(conversion: TfliteConversion, step: TfliteStep) -> None:
    _over_positions(conversion, step, "MEAN")


def _global_largest(conversion: TfliteConversion, step: TfliteStep) -> None:
    _over_positions(conversion, step, "REDUCE_MAX")


def _over_positions(conversion: TfliteConversion, step: TfliteStep, code: str) -> None:
    order = conversion.order(step.inputs[0])
    place, shape = conversion.tensor(step.inputs[0], order), conversion.shape(step.inputs[0])
    axes = [i for i, axis in enumerate(order) if axis > 1]
    made = [1 if axis > 1 else shape[axis] for axis in order]
    result = conversion.new(step.outputs[0], order)
    assert list(conversion.shown(result)) == made
    conversion.network.add(code, [place, conversion.integers(axes)], [result], keepDims=True)


OPS = {
    "MaxPool": _largest,
    "AveragePool": _mean,
    "GlobalAveragePool": _global_mean,
    "GlobalMaxPool": _global_largest,
}
ON_INTEGERS = {"MaxPool": one_grid, "GlobalAveragePool": any_grids}
