"""Small networks of several families, with realistic weight statistics, built in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.model import Model
from edgeopt.target import Int8Rules, find_target

HERE = Int8Rules(reduce_range=find_target("cpu").rules_here.reduce_range)
"""Rules by which this processor's kernels compute what a file says: without VNNI, 8-bit weights saturate 16 bits."""


def largest_pair(rows: np.ndarray[Any, Any]) -> int:
    """The largest sum of two neighbours of one sign along the last axis; what is left over has none."""
    wide = rows.astype(int)
    even = np.concatenate([wide, np.zeros((*wide.shape[:-1], wide.shape[-1] % 2), int)], axis=-1)
    return max(int((one[..., ::2].clip(0) + one[..., 1::2].clip(0)).max()) for one in (even, -even))


class Net:
    """Nodes and weights in the order they are added."""

    def __init__(self, size: int = 32, channels: int = 3, seed: int = 0) -> None:
        self.chance = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, np.ndarray[Any, Any]] = {}
        self.size, self.channels, self.seed = size, channels, seed

    def constant(self, name: str, value: Any) -> str:
        self.weights[name] = np.asarray(value)
        return name

    def op(self, op: str, *inputs: str, **attributes: Any) -> str:
        made = f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [made], name=f"node_{made}", **attributes))
        return made

    def conv(self, x: str, fan: int, out: int, kernel: int = 1, *, stride: int = 1, depthwise: bool = False) -> str:
        shape = (out, 1 if depthwise else fan, kernel, kernel)
        spread = np.exp(self.chance.normal(0, 0.5, (out, 1, 1, 1)))  # channels differ, as after folding a norm
        weight = self.chance.normal(0, np.sqrt(2 / (shape[1] * kernel**2)), shape) * spread
        number = len(self.nodes)
        w = self.constant(f"w{number}", weight.astype(np.float32))
        b = self.constant(f"b{number}", self.chance.normal(0, 0.1, out).astype(np.float32))
        pads, groups = [kernel // 2] * 4, fan if depthwise else 1
        return self.op("Conv", x, w, b, kernel_shape=[kernel] * 2, pads=pads, strides=[stride] * 2, group=groups)

    def silu(self, x: str) -> str:
        return self.op("Mul", x, self.op("Sigmoid", x))

    def relu6(self, x: str) -> str:
        low, high = self.constant("zero", np.float32(0)), self.constant("six", np.float32(6))
        return self.op("Clip", x, low, high)

    def model(self, *outputs: str, name: str = "net") -> Model:
        graph = helper.make_graph(
            self.nodes,
            name,
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, self.channels, self.size, self.size])],
            [helper.make_tensor_value_info(one, TensorProto.FLOAT, None) for one in outputs],
            [numpy_helper.from_array(value, key) for key, value in self.weights.items()],
        )
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        return Model(onnx.shape_inference.infer_shapes(made), name)


def frames(model: Model, count: int = 4, seed: int = 1) -> Iterator[dict[str, np.ndarray[Any, Any]]]:
    """Smooth random pictures: blobs of colour with noise."""
    chance = np.random.default_rng(seed)
    shape = tuple(int(size or 1) for size in model.inputs[0].shape)
    for _ in range(count):
        coarse = chance.normal(0, 1, (1, shape[1], shape[2] // 4, shape[3] // 4))
        picture = coarse.repeat(4, axis=2).repeat(4, axis=3) + chance.normal(0, 0.2, shape)
        yield {model.inputs[0].name: picture.astype(np.float32)}


def answers(model: Model, source: Model, seed: int = 5) -> np.ndarray[Any, Any]:
    """All outputs of a model for three pictures, which `source` saw in calibration only if the seed is 1."""
    session = EXECUTOR.open(model.data, SessionOptions())
    rows = [value.ravel() for frame in frames(source, 3, seed) for value in session.run(frame).values()]
    session.close()
    return np.concatenate(rows)


def sqnr_db(model: Model, source: Model) -> float:
    """How far a model's error lies below the answers of what it was made of."""
    expected, actual = answers(source, source), answers(model, source)
    return float(10 * np.log10(np.square(expected).sum() / max(np.square(expected - actual).sum(), 1e-12)))


def residual() -> Model:
    net = Net()
    x = net.op("Relu", net.conv("x", 3, 16, 3))
    for _ in range(2):
        y = net.op("Relu", net.conv(x, 16, 16, 3))
        x = net.op("Relu", net.op("Add", x, net.conv(y, 16, 16, 3)))
    x = net.op("Relu", net.conv(net.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]), 16, 32, 3))
    pooled = net.op("Flatten", net.op("GlobalAveragePool", x))
    w = net.constant("fc_w", net.chance.normal(0, 0.2, (10, 32)).astype(np.float32))
    return net.model(
        net.op("Gemm", pooled, w, net.constant("fc_b", np.zeros(10, np.float32)), transB=1), name="residual"
    )


def residual_batchnorm() -> Model:
    """A residual network as it is trained: each convolution without a bias, batch normalization behind it."""
    net = Net()

    def block(x: str, fan: int, out: int, stride: int = 1) -> str:
        y = net.conv(x, fan, out, 3, stride=stride)
        del net.nodes[-1].input[2]
        rng, number = net.chance, len(net.nodes)
        numbers = {
            "gain": np.exp(rng.normal(0, 0.3, out)),
            "shift": rng.normal(0, 0.2, out),
            "mean": rng.normal(0, 0.5, out),
            "variance": np.exp(rng.normal(0, 0.7, out)),
        }
        names = [net.constant(f"{name}{number}", value.astype(np.float32)) for name, value in numbers.items()]
        return net.op("BatchNormalization", y, *names)

    x = net.op("Relu", block("x", 3, 16))
    x = net.op("Relu", net.op("Add", x, block(net.op("Relu", block(x, 16, 16)), 16, 16)))
    shortcut = block(x, 16, 32, stride=2)
    x = net.op("Relu", net.op("Add", shortcut, block(x, 16, 32, stride=2)))
    return net.model(net.conv(net.op("GlobalAveragePool", x), 32, 10), name="residual_batchnorm")


def mobile() -> Model:
    net = Net()
    x = net.relu6(net.conv("x", 3, 16, 3, stride=2))
    for _ in range(2):
        y = net.relu6(net.conv(x, 16, 48))
        y = net.relu6(net.conv(y, 48, 48, 3, depthwise=True))
        x = net.op("Add", x, net.conv(y, 48, 16))
    return net.model(net.conv(x, 16, 8), name="mobile")


def squeeze_excite() -> Model:
    net = Net()
    x = net.op("HardSwish", net.conv("x", 3, 16, 3))
    gate = net.op("Relu", net.conv(net.op("GlobalAveragePool", x), 16, 8))
    x = net.op("Mul", x, net.op("HardSigmoid", net.conv(gate, 8, 16), alpha=1 / 6))
    x = net.op("HardSwish", net.conv(x, 16, 24))
    return net.model(net.conv(x, 24, 8), name="squeeze_excite")


def detector() -> Model:
    net = Net(size=64)
    x = net.silu(net.conv("x", 3, 16, 3, stride=2))
    fine = net.silu(net.conv(net.silu(net.conv(x, 16, 16, 3, depthwise=True)), 16, 32))
    coarse = net.silu(net.conv(fine, 32, 32, 3, stride=2))
    pools = [net.op("MaxPool", coarse, kernel_shape=[k, k], pads=[k // 2] * 4, strides=[1, 1]) for k in (3, 5)]
    coarse = net.silu(net.conv(net.op("Concat", coarse, *pools, axis=1), 96, 32))
    scales = net.constant("scales", np.array([1, 1, 2, 2], np.float32))
    large = net.op(
        "Resize", coarse, "", scales, mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"
    )
    fine = net.silu(net.conv(net.op("Concat", fine, large, axis=1), 64, 32))
    rows = []
    for features, side in ((fine, 32), (coarse, 16)):
        boxes, scores = net.conv(features, 32, 4), net.op("Sigmoid", net.conv(features, 32, 5))
        shape = net.constant(f"shape{side}", np.array([1, 9, side * side]))
        rows.append(net.op("Reshape", net.op("Concat", boxes, scores, axis=1), shape))
    return net.model(net.op("Transpose", net.op("Concat", *rows, axis=2), perm=[0, 2, 1]), name="detector")


def u_net() -> Model:
    net = Net()
    first = net.op("LeakyRelu", net.conv("x", 3, 16, 3), alpha=0.1)
    low = net.op("AveragePool", first, kernel_shape=[2, 2], strides=[2, 2])
    low = net.op("LeakyRelu", net.conv(low, 16, 32, 3), alpha=0.1)
    w = net.constant("up_w", net.chance.normal(0, 0.2, (32, 16, 2, 2)).astype(np.float32))
    high = net.op("ConvTranspose", low, w, kernel_shape=[2, 2], strides=[2, 2])
    return net.model(net.conv(net.op("Concat", first, high, axis=1), 32, 4, 3), name="u_net")


def vision_transformer() -> Model:
    net, width, tokens, heads = Net(), 32, 64, 4

    def matrix(x: str, fan: int, out: int) -> str:
        number = len(net.nodes)
        weight = net.constant(f"w{number}", net.chance.normal(0, fan**-0.5, (fan, out)).astype(np.float32))
        bias = net.constant(f"b{number}", net.chance.normal(0, 0.1, out).astype(np.float32))
        return net.op("Add", net.op("MatMul", x, weight), bias)

    def norm(x: str) -> str:
        number = len(net.nodes)
        gain = net.constant(f"gain{number}", np.exp(net.chance.normal(0, 0.3, width)).astype(np.float32))
        return net.op("LayerNormalization", x, gain, axis=-1)

    def split_heads(x: str, perm: list[int]) -> str:
        return net.op("Transpose", net.op("Reshape", x, "apart"), perm=perm)

    net.constant("apart", np.array([1, tokens, heads, width // heads]))
    net.constant("together", np.array([1, tokens, width]))
    net.constant("divisor", np.float32((width // heads) ** 0.5))
    patches = net.op(
        "Conv",
        "x",
        net.constant("patch_w", net.chance.normal(0, 0.2, (width, 3, 4, 4)).astype(np.float32)),
        strides=[4, 4],
    )
    x = net.op(
        "Transpose", net.op("Reshape", patches, net.constant("rows", np.array([1, width, tokens]))), perm=[0, 2, 1]
    )
    for _ in range(2):
        y = norm(x)
        queries, keys = (
            split_heads(matrix(y, width, width), [0, 2, 1, 3]),
            split_heads(matrix(y, width, width), [0, 2, 3, 1]),
        )
        weights = net.op("Softmax", net.op("Div", net.op("MatMul", queries, keys), "divisor"), axis=-1)
        mixed = net.op("MatMul", weights, split_heads(matrix(y, width, width), [0, 2, 1, 3]))
        mixed = net.op("Reshape", net.op("Transpose", mixed, perm=[0, 2, 1, 3]), "together")
        x = net.op("Add", x, matrix(mixed, width, width))
        x = net.op("Add", x, matrix(net.op("Relu", matrix(norm(x), width, 4 * width)), 4 * width, width))
    return net.model(matrix(net.op("ReduceMean", norm(x), axes=[1], keepdims=0), width, 10), name="vision_transformer")


ALL = {one.__name__: one for one in (residual, mobile, squeeze_excite, detector, u_net, vision_transformer)}
