"""Convolutions and their transposes, over lines and pictures, in float or on 8-bit integers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from edgeopt.executors._conversion.windows import Windows
from edgeopt.executors.litert.conversion.conversion import TfliteConversion, TfliteStep, channels_last
from edgeopt.executors.litert.conversion.grids import any_grids, bias_steps, stored_weights
from edgeopt.executors.litert.conversion.network import Grid
from edgeopt.executors.litert.conversion.ops._windows import padded, padding_of, windows_of

_PICTURE, _LINE = 2, 1


def weight_and_bias(
    conversion: TfliteConversion,
    step: TfliteStep,
    order: tuple[int, ...],
    channel: int,
    shape: tuple[int, ...],
    axis: int,
) -> list[int]:
    """Write the weights of a step, and its bias, zeros where it has none; return their places.

    Args:
        conversion: The conversion.
        step: Its second input holds weights, its third a bias or nothing.
        order: For each axis as it is stored, the axis of the model's weights.
        channel: Axis of output channels of the model's weights.
        shape: Of the weights as they are stored.
        axis: Of output channels in `shape`.
    """
    name = str(step.node.inputs[1].name if step.node.inputs[1] is not None else step.node.name)
    bias = conversion.numbers(step.node, 2)
    bias = np.zeros(shape[axis], np.float32) if bias is None else bias.astype(np.float32).reshape(-1)
    if bias.size != shape[axis]:
        raise conversion.refuse(step.node, f"with a bias of {bias.size} for {shape[axis]} channels")
    if not step.is_integer:
        weight = conversion.numbers(step.node, 1)
        assert weight is not None
        numbers = weight.transpose(order).reshape(shape).astype(np.float32)
        return [conversion.network.constant(name, numbers), conversion.network.constant(f"{name}_bias", bias)]
    stored, source = stored_weights(conversion, step.node.inputs[1]), conversion.grid(step.inputs[0])
    assert stored is not None
    assert source is not None
    if stored.scale.size > 1 and stored.axis != channel:
        raise conversion.refuse(step.node, "with scales of another axis than output channels")
    scale = np.broadcast_to(stored.scale, (shape[axis],))
    steps = bias_steps(bias, source, scale)
    if steps is None:
        raise conversion.refuse(step.node, "with a bias above 32 bits of its steps")
    zeros = (0,) * shape[axis]
    integers = stored.integers.transpose(order).reshape(shape)
    products = tuple(float(np.float32(source.scale[0]) * number) for number in scale)
    return [
        conversion.network.constant(name, integers, Grid(tuple(map(float, scale)), zeros, axis)),
        conversion.network.constant(f"{name}_bias", steps, Grid(products, zeros)),
    ]


def _as_picture(conversion: TfliteConversion, step: TfliteStep, axes: int) -> int:
    """Return the input as a picture with its channels last; a line is a picture of one row."""
    place = conversion.tensor(step.inputs[0], channels_last(axes + 2))
    shape = conversion.shown(place)
    return place if axes == _PICTURE else conversion.reshaped(place, (shape[0], 1, *shape[1:]))


def _wide(windows: Windows) -> Windows:
    """Return windows over a picture; those over a line are of one row."""
    if len(windows.kernel) == _PICTURE:
        return windows
    return Windows(
        (1, *windows.kernel),
        (1, *windows.strides),
        (1, *windows.dilations),
        (0, *windows.before),
        (0, *windows.behind),
        (1, *windows.sizes),
        (1, *windows.counts),
    )


def _hand_on(conversion: TfliteConversion, step: TfliteStep, place: int, axes: int) -> None:
    """Let a picture carry the step's output; a line lies in its one row."""
    order = channels_last(axes + 2)
    if axes == _LINE:
        shape = conversion.shown(place)
        place = conversion.reshaped(place, (shape[0], *shape[2:]))
    conversion.set(step.outputs[0], place, order)


def _result(conversion: TfliteConversion, step: TfliteStep, source: int, shape: tuple[int, ...]) -> int:
    """Add the tensor that the operator makes, on the grid of the step's output."""
    grid = conversion.grid(step.outputs[0])
    dtype = "int8" if step.is_integer else conversion.network.tensors[source].dtype
    return conversion.network.tensor(str(step.outputs[0].name), shape, dtype, grid)


def _convolution(conversion: TfliteConversion, step: TfliteStep) -> None:
    weight = conversion.shape(step.node.inputs[1])
    kernel, axes = weight[2:], len(weight) - 2
    if axes not in (_LINE, _PICTURE):
        raise conversion.refuse(step.node, f"over {axes} axes")
    windows = _wide(windows_of(conversion, step, kernel))
    place = _as_picture(conversion, step, axes)
    padding = padding_of(windows)
    if not padding:
        place, padding = padded(conversion, place, windows.pads), "VALID"
    group, channels = step.attribute("group", 1), conversion.shown(place)[-1]
    if weight[1] * group != channels or step.attribute("kernel_shape", kernel) != kernel or weight[0] % group:
        raise conversion.refuse(step.node, "whose groups or kernel are not those of its weights")
    is_of_each = group == channels and group > 1
    height, width = windows.kernel
    space = tuple(range(2, axes + 2))
    if is_of_each:
        places = weight_and_bias(conversion, step, (1, *space, 0), 0, (1, height, width, weight[0]), 3)
    else:
        places = weight_and_bias(conversion, step, (0, *space, 1), 0, (weight[0], height, width, weight[1]), 0)
    made = _result(conversion, step, place, (conversion.shown(place)[0], *windows.counts, weight[0]))
    options: dict[str, Any] = {
        "padding": padding,
        "strideH": windows.strides[0],
        "strideW": windows.strides[1],
        "dilationHFactor": windows.dilations[0],
        "dilationWFactor": windows.dilations[1],
        "fusedActivationFunction": step.activation,
    }
    if is_of_each:
        options["depthMultiplier"] = weight[0] // group
    conversion.network.add("DEPTHWISE_CONV_2D" if is_of_each else "CONV_2D", [place, *places], [made], **options)
    _hand_on(conversion, step, made, axes)


def _transposed(conversion: TfliteConversion, step: TfliteStep) -> None:
    """Write a transposed convolution; of groups one a group, as LiteRT has none of groups."""
    weight, group = conversion.shape(step.node.inputs[1]), step.attribute("group", 1)
    kernel, axes = weight[2:], len(weight) - 2
    if axes != _PICTURE or any(size > 1 for size in step.attribute("dilations", (1,) * axes)):
        raise conversion.refuse(step.node, "over lines, or with holes")
    if step.attribute("output_shape", ()) or step.attribute("auto_pad", "NOTSET") not in ("NOTSET", "", "VALID"):
        raise conversion.refuse(step.node, "with output_shape or auto_pad")
    place = conversion.tensor(step.inputs[0], channels_last(4))
    if group == 1:
        places = weight_and_bias(conversion, step, (1, 2, 3, 0), 1, (weight[1], *kernel, weight[0]), 0)
        made = _spread(conversion, step, place, places, kernel)
    else:
        made = _spread_groups(conversion, step, place, group)
    conversion.set(step.outputs[0], made, channels_last(4))


def _spread_groups(conversion: TfliteConversion, step: TfliteStep, place: int, group: int) -> int:
    """Return the results of all groups, behind one another along the channels. Raises UnsupportedError on integers."""
    weight, bias = conversion.numbers(step.node, 1), conversion.numbers(step.node, 2)
    if step.is_integer or weight is None:
        raise conversion.refuse(step.node, "in groups on integers")
    if bias is None:
        bias = np.zeros(weight.shape[1] * group, np.float32)
    if weight.shape[0] % group or bias.size != weight.shape[1] * group:
        raise conversion.refuse(step.node, f"with a bias of {bias.size}, or channels that are no multiple of {group}")
    shape, name = conversion.shown(place), str(step.outputs[0].name)
    axis = conversion.network.constant("axis", np.array(3, np.int32))
    parts = [conversion.network.like(place, f"{name}_part{i}", (*shape[:3], shape[3] // group)) for i in range(group)]
    conversion.network.add("SPLIT", [axis, place], parts, numSplits=group)
    made = []
    for i, (part, rows, row) in enumerate(zip(parts, np.split(weight, group), np.split(bias, group), strict=True)):
        tables = (rows.transpose(1, 2, 3, 0), row.reshape(-1))
        places = [
            conversion.network.constant(f"{name}_group{i}_{table.ndim}", table.astype(np.float32)) for table in tables
        ]
        made.append(_spread(conversion, step, part, places, weight.shape[2:]))
    whole = (*conversion.shown(made[0])[:3], weight.shape[1] * group)
    return conversion.apply("CONCATENATION", made, whole, axis=3)


def _spread(
    conversion: TfliteConversion, step: TfliteStep, place: int, places: Sequence[int], kernel: Sequence[int]
) -> int:
    """Return what a transposed convolution makes of a picture; padding that LiteRT has no word for is cut off.

    Args:
        conversion: The conversion.
        step: The transposed convolution.
        place: The picture, channels last.
        places: Its weights, output channels first, and its bias.
        kernel: Height and width of its windows.
    """
    strides, pads = step.attribute("strides", (1, 1)), step.attribute("pads", (0,) * 4)
    sizes, wanted = conversion.shown(place)[1:3], conversion.shape(step.node.outputs[0])[2:]
    full = [(size - 1) * stride + width for size, stride, width in zip(sizes, strides, kernel, strict=True)]
    cut = [max(have - want, 0) for have, want in zip(full, wanted, strict=True)]
    is_same = all(
        have >= want and before == total // 2 and -(-want // stride) == size
        for have, want, before, total, stride, size in zip(full, wanted, pads, cut, strides, sizes, strict=False)
    )
    count, channels = conversion.shown(place)[0], conversion.shown(places[0])[0]
    is_whole = is_same or full == list(wanted)
    ends = [max(have, before + want) for have, before, want in zip(full, pads, wanted, strict=False)]
    if not is_whole and ends != full:
        raise conversion.refuse(step.node, "with output_padding beyond its windows")
    shape = (count, *(wanted if is_whole else full), channels)
    made = _result(conversion, step, place, shape)
    conversion.network.add(
        "TRANSPOSE_CONV",
        [conversion.integers(shape), places[0], place, places[1]],
        [made],
        padding="SAME" if is_same else "VALID",
        strideH=strides[0],
        strideW=strides[1],
        fusedActivationFunction=step.activation,
    )
    if is_whole:
        return made
    begins, extents = conversion.integers([0, *pads[:2], 0]), conversion.integers([count, *wanted, channels])
    return conversion.apply("SLICE", [made, begins, extents], (count, *wanted, channels))


OPS = {"Conv": _convolution, "ConvTranspose": _transposed}
ON_INTEGERS = {"Conv": any_grids, "ConvTranspose": any_grids}
