"""An ONNX model written as a network of ncnn, layer by layer, with our own scales where it holds integers.

Rules of ncnn's blobs: one picture at a time, so a leading 1 of a shape is left out; up to four dimensions, so larger
tensors lie flat; float32 between layers, whatever the layers compute in. A model that cannot be written so is refused
with the node at fault, and nothing is believed: callers compare numbers.
"""

from __future__ import annotations

from edgeopt.executors._conversion.folding import fold, join_gelus
from edgeopt.executors.ncnn.conversion.conversion import Conversion, fused, with_copies
from edgeopt.executors.ncnn.conversion.network import text_of, weights_of, with_splits, without_unread
from edgeopt.executors.ncnn.conversion.ops import known_ops
from edgeopt.executors.ncnn.file import NcnnFile, NcnnPort
from edgeopt.graph.graph import Graph, op_name
from edgeopt.graph.model import Model


def to_ncnn(model: Model) -> NcnnFile:
    """Return a model as ncnn loads it.

    Args:
        model: Every shape known, one picture, float32 outputs; inputs too, or pictures in uint8 whose first nodes make
            floats of them; pairs of QuantizeLinear and DequantizeLinear
            on int8 without a zero point become integer layers with these very scales.

    Raises:
        UnsupportedError: If ncnn lacks a node, a type or a shape; it names the first.
    """
    graph = Graph.from_model(model)
    fold(graph)
    join_gelus(graph)
    conversion, ops = Conversion(graph), known_ops()
    for node in graph.nodes():
        name = op_name(node)
        if name == "Constant" or node in conversion.written:
            continue
        if name not in ops:
            raise conversion.refuse(node, "")
        ops[name](conversion, node)
    for value in graph.outputs:
        conversion.require_float(value)
    outputs = {f"out{i}": conversion.blob(value) for i, value in enumerate(graph.outputs)}
    layers = fused(without_unread(conversion.network.layers, outputs.values()), outputs.values())
    dims = {
        blob: conversion.pictures.get(value) or conversion.dims(value)
        for blob, value in zip(conversion.inputs, graph.inputs, strict=True)
    }
    layers = with_splits(with_copies(layers, dims), outputs)
    given = [layer.outputs[0] for layer in layers if layer.kind == "Input"]
    made = [
        NcnnPort(str(value.name), blob, conversion.shape(value), conversion.dims(value))
        for value, blob in zip(graph.outputs, outputs, strict=True)
    ]
    ports = [
        NcnnPort(
            str(value.name), blob, conversion.shape(value), dims[whole],
            "uint8" if value in conversion.pictures else "float32",
        )
        for value, blob, whole in zip(graph.inputs, given, conversion.inputs, strict=True)
    ]  # fmt: skip
    return NcnnFile(text_of(layers), weights_of(layers), tuple(ports), tuple(made))
