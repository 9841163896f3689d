"""Which constants of a model are weights: those that training changes unless it is told otherwise.

Of a quantized model they are the integers of its weights and biases, and the scales of its grids.

Limits of a Clip, scales of a Resize, frozen statistics, decoding grids and other numbers that say what is computed are
none.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from edgeopt.executors._torch.ops._node import op_name
from edgeopt.graph.model import Model
from edgeopt.steps.finetune.interpreter.grids import grids_of

_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE, onnx.TensorProto.BFLOAT16)
_WEIGHTS: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(("Conv", "ConvTranspose", "com.microsoft.FusedConv"), (1, 2)),
    **dict.fromkeys(("Gemm", "com.microsoft.FusedGemm"), (0, 1, 2)),
    **dict.fromkeys(("MatMul", "com.microsoft.FusedMatMul"), (0, 1)),
    **dict.fromkeys(("BatchNormalization", "InstanceNormalization", "LayerNormalization"), (1, 2)),
    **dict.fromkeys(("GroupNormalization", "RMSNormalization"), (1, 2)),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), (1, 2, 3)),
    **dict.fromkeys(("PRelu", "com.microsoft.BiasGelu", "com.microsoft.FastGelu"), (1,)),
    "Gather": (0,),
}
_CHANNELS_FROM_END = {"Conv": 3, "ConvTranspose": 3, "MatMul": 1, "Gemm": 1}
"""Where the channels lie in what a weighted op makes, counted from the last axis; of pictures."""


def stored_floats(proto: onnx.ModelProto) -> dict[str, onnx.TensorProto]:
    """Return the float constants by name, initializers and Constant nodes alike; they may be written into."""
    result = {constant.name: constant for constant in proto.graph.initializer}
    for node in proto.graph.node:
        if node.op_type == "Constant" and node.output:
            held = [
                attribute.t for attribute in node.attribute if attribute.name == "value" and attribute.HasField("t")
            ]
            result |= dict.fromkeys(node.output[:1], held[0]) if held else {}
    return {name: value for name, value in result.items() if value.data_type in _FLOATS}


def weights_of(model: Model) -> tuple[str, ...]:
    """Return the names of the float constants that are weights, biases and factors of norms; then grids' scales."""
    grids = grids_of(model)
    stored = {one.made: one for one in grids.stored}
    floats = stored_floats(model.proto)
    makers = {name: node for node in model.proto.graph.node for name in node.output}
    result: dict[str, None] = {}
    for node in model.proto.graph.node:
        for place in _WEIGHTS.get(op_name(node), ()):
            name = node.input[place] if place < len(node.input) else ""
            if name in floats or name in stored:
                result[stored[name].integers if name in stored else name] = None
        if node.op_type in ("Add", "Mul") and len(node.input) == 2:
            for constant, other in (node.input, reversed(node.input)):
                if constant in floats and other in makers and _is_for_channels(floats[constant], makers[other]):
                    result[constant] = None
    of_constants = {one.scale for one in grids.stored if one.integers not in result}
    return (*result, *dict.fromkeys(root for name, root in grids.alike.items() if name not in of_constants))


def _is_for_channels(constant: onnx.TensorProto, maker: onnx.NodeProto) -> bool:
    """Whether a constant has one number for each channel that a weighted op makes."""
    place = _CHANNELS_FROM_END.get(maker.op_type)
    if place is None or place > len(constant.dims):
        return False
    others = [size for axis, size in enumerate(constant.dims) if axis != len(constant.dims) - place]
    return constant.dims[-place] > 1 and all(other == 1 for other in others)
