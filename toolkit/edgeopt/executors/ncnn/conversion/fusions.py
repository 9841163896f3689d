"""Layers that compute another's activation or hand integers on, and copies where memory is shared."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from edgeopt.executors.ncnn.conversion.network import NcnnLayer, Parameter, Weight, readers_of
from edgeopt.executors.ncnn.file import MAKES_MEMORY

_WEIGHTED = frozenset(
    {
        "Convolution",
        "ConvolutionDepthWise",
        "Convolution1D",
        "ConvolutionDepthWise1D",
        "Deconvolution",
        "DeconvolutionDepthWise",
        "InnerProduct",
    }
)
_ON_INTEGERS = frozenset({"Convolution", "ConvolutionDepthWise"})
"""Layers that read and make integers."""
_TYPE, _NUMBERS, _INTEGERS = 9, 10, 8
_MAKES_INTEGERS = 101
_CHANNELS, _EVEN = 3, 4
"""Dimensions from which a blob has channels; floats of 16 bytes."""


def with_copies(layers: Sequence[NcnnLayer], dims: Mapping[str, Sequence[int]]) -> list[NcnnLayer]:
    """Return the layers with a copy of each input that a layer might write over, or read as its own memory.

    ncnn reads inputs in the caller's memory, and a layer that works in place asks who else holds it: of memory that is
    not its own ncnn cannot say, and the process dies (`*bottom_blob.refcount` in `net.cpp`). Channels of its own begin
    at multiples of 16 bytes, which layers that take several at once rely on (`Concat`, groups of channels).

    Args:
        layers: In their order.
        dims: Dimensions of the blobs of inputs, the outermost first.
    """
    readers = readers_of(layers)
    made: list[NcnnLayer] = []
    for layer in layers:
        made.append(layer)
        if layer.kind != "Input":
            continue
        blob = layer.outputs[0]
        is_even = len(dims[blob]) < _CHANNELS or math.prod(dims[blob][1:]) % _EVEN == 0
        if not is_even or any(other.kind not in MAKES_MEMORY for other in readers.get(blob, ())):
            made[-1] = replace(layer, outputs=(f"{blob}_given",))
            made.append(NcnnLayer("DeepCopy", f"copy_{blob}", (f"{blob}_given",), (blob,)))
    return made


def fused(layers: Sequence[NcnnLayer], outputs: Collection[str]) -> list[NcnnLayer]:
    """Return the layers with activations in the layers before them, and integers between those that take them.

    Args:
        layers: In their order, each blob read any number of times.
        outputs: Blobs that leave the network.
    """
    return _with_integers(_with_activations(layers, outputs), outputs)


def _activation(layer: NcnnLayer) -> tuple[int, tuple[float, ...]] | None:
    """Return ncnn's number of a fused activation and its numbers; None where layers do not compute it."""
    numbers = layer.parameters
    if layer.kind == "ReLU":
        slope = _float(numbers.get(0, 0.0))
        return (2, (slope,)) if slope else (1, ())
    if layer.kind == "Clip":
        return 3, (_float(numbers[0]), _float(numbers[1]))
    if layer.kind == "Sigmoid":
        return 4, ()
    if layer.kind == "Mish":
        return 5, ()
    if layer.kind == "HardSwish":
        return 6, (_float(numbers[0]), _float(numbers[1]))
    return None


def _float(value: Parameter) -> float:
    assert not isinstance(value, tuple)
    return float(value)


def _with_activations(layers: Sequence[NcnnLayer], outputs: Iterable[str]) -> list[NcnnLayer]:
    readers, kept = readers_of(layers), set(outputs)
    taken: set[str] = set()
    made: list[NcnnLayer] = []
    for layer in layers:
        if layer.outputs and layer.outputs[0] in taken:
            continue
        current = layer
        after = readers.get(layer.outputs[0], []) if layer.outputs else []
        activation = _activation(after[0]) if len(after) == 1 else None
        if layer.kind in _WEIGHTED and activation is not None and layer.outputs[0] not in kept:
            kind, numbers = activation
            parameters: dict[int, Parameter] = {**layer.parameters, _TYPE: kind}
            if numbers:
                parameters[_NUMBERS] = numbers
            current = replace(current, parameters=parameters, outputs=after[0].outputs)
            taken.add(after[0].outputs[0])
        made.append(current)
    return made


def _with_integers(layers: Sequence[NcnnLayer], outputs: Iterable[str]) -> list[NcnnLayer]:
    """Let an integer layer make integers where all that read them are integer layers of one scale: the same numbers."""
    readers, kept = readers_of(layers), set(outputs)
    made: list[NcnnLayer] = []
    for layer in layers:
        after = readers.get(layer.outputs[0], []) if layer.outputs else []
        takes = all(other.kind in _ON_INTEGERS and other.is_integer for other in after)
        scales = {float(other.weights[-1].array[0]) for other in after} if takes else set[float]()
        if layer.kind in _ON_INTEGERS and layer.is_integer and len(scales) == 1 and layer.outputs[0] not in kept:
            parameters = {**layer.parameters, _INTEGERS: _MAKES_INTEGERS}
            scale = Weight(np.array([scales.pop()], np.float32), has_tag=False)
            layer = replace(layer, parameters=parameters, weights=(*layer.weights, scale))
        made.append(layer)
    return made
