"""Networks with random weights: their layers are what a device is asked for, and some stand for whole models.

Each family writes the layers that its kind of model has, in a width and for a size of picture, so that the layers of
a model which the device never saw lie between some that it did.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from edgeopt.graph.model import Model

_OPSET, _IR = 17, 8
_SEED = 0


@dataclass(frozen=True, slots=True)
class NetworkShape:
    """One network of a family."""

    family: str
    """A name of `FAMILIES`."""
    width: int
    """Channels of its first layer, from which all others follow."""
    size: int
    """Height and width of its picture; of a transformer the number of tokens."""

    @property
    def name(self) -> str:
        """The name of the model."""
        return f"{self.family}-{self.width}-{self.size}"

    def make(self) -> Model:
        """Return the model."""
        return FAMILIES[self.family](self)


class _Net:
    """A graph that grows at its end."""

    def __init__(self, shape: NetworkShape, sizes: tuple[int, ...]) -> None:
        self._nodes, self._constants = list[onnx.NodeProto](), list[onnx.TensorProto]()
        self._chance, self._input, self._name = np.random.default_rng(_SEED), sizes, shape.name
        self.sizes = {"x": sizes}

    def add(self, op: str, inputs: Sequence[str], sizes: tuple[int, ...], **attributes: Any) -> str:
        made = f"t{len(self._nodes)}"
        self._nodes.append(helper.make_node(op, [*inputs], [made], made, **attributes))
        self.sizes[made] = sizes
        return made

    def constant(self, value: NDArray[Any]) -> str:
        name = f"c{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(value, name))
        return name

    def weight(self, *sizes: int) -> str:
        fan = max(int(np.prod(sizes[1:])), 1)
        return self.constant(self._chance.normal(0, fan**-0.5, sizes).astype(np.float32))

    def conv(self, x: str, made: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> str:
        _, read, height, width = self.sizes[x]
        weight, bias = self.weight(made, read // groups, kernel, kernel), self.constant(np.zeros(made, np.float32))
        side = (-(-height // stride), -(-width // stride))
        pads = [kernel // 2] * 4
        shape = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": pads, "group": groups}
        return self.add("Conv", [x, weight, bias], (1, made, *side), **shape)

    def conv_act(self, x: str, made: int, kernel: int = 1, stride: int = 1, groups: int = 1, act: str = "Relu") -> str:
        return self.act(self.conv(x, made, kernel, stride, groups), act)

    def act(self, x: str, act: str) -> str:
        sizes = self.sizes[x]
        if act == "Silu":
            return self.add("Mul", [x, self.add("Sigmoid", [x], sizes)], sizes)
        if act == "Relu6":
            limits = [self.constant(np.array(limit, np.float32)) for limit in (0, 6)]
            return self.add("Clip", [x, *limits], sizes)
        return self.add(act, [x], sizes)

    def join(self, op: str, *inputs: str) -> str:
        return self.add(op, inputs, self.sizes[inputs[0]])

    def concat(self, *inputs: str) -> str:
        batch, _, height, width = self.sizes[inputs[0]]
        channels = sum(self.sizes[name][1] for name in inputs)
        return self.add("Concat", inputs, (batch, channels, height, width), axis=1)

    def pool(self, x: str, kernel: int = 2, stride: int = 2, op: str = "MaxPool") -> str:
        _, channels, height, width = self.sizes[x]
        pads = [(kernel - 1) // 2] * 2 + [kernel // 2] * 2 if kernel > stride else [0] * 4
        side = [(length + pads[0] + pads[2] - kernel) // stride + 1 for length in (height, width)]
        shape = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": pads}
        return self.add(op, [x], (1, channels, *side), **shape)

    def up(self, x: str) -> str:
        _, channels, height, width = self.sizes[x]
        scales = self.constant(np.array([1, 1, 2, 2], np.float32))
        ways = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        return self.add("Resize", [x, "", scales], (1, channels, 2 * height, 2 * width), **ways)

    def transposed(self, x: str, made: int) -> str:
        _, read, height, width = self.sizes[x]
        shape = {"kernel_shape": [2, 2], "strides": [2, 2]}
        return self.add("ConvTranspose", [x, self.weight(read, made, 2, 2)], (1, made, 2 * height, 2 * width), **shape)

    def mean(self, x: str) -> str:
        return self.add("GlobalAveragePool", [x], (*self.sizes[x][:2], 1, 1))

    def classes(self, x: str, count: int = 1000) -> str:
        flat = self.add("Flatten", [self.mean(x)], (1, self.sizes[x][1]))
        return self.linear(flat, count)

    def linear(self, x: str, made: int) -> str:
        *before, read = self.sizes[x]
        return self.add("MatMul", [x, self.weight(read, made)], (*before, made))

    def shifted(self, x: str) -> str:
        sizes = self.sizes[x]
        return self.add("Add", [x, self.constant(np.zeros(sizes[-1], np.float32))], sizes)

    def times(self, x: str, factor: float) -> str:
        return self.add("Mul", [x, self.constant(np.array(factor, np.float32))], self.sizes[x])

    def gelu(self, x: str) -> str:
        erf = self.add("Erf", [self.times(x, 0.5**0.5)], self.sizes[x])
        gate = self.add("Add", [erf, self.constant(np.array(1, np.float32))], self.sizes[x])
        return self.times(self.join("Mul", x, gate), 0.5)

    def norm(self, x: str) -> str:
        sizes = self.sizes[x]
        scale, shift = self.constant(np.ones(sizes[-1], np.float32)), self.constant(np.zeros(sizes[-1], np.float32))
        return self.add("LayerNormalization", [x, scale, shift], sizes, axis=-1)

    def reshape(self, x: str, *sizes: int) -> str:
        return self.add("Reshape", [x, self.constant(np.array(sizes, np.int64))], sizes)

    def transpose(self, x: str, *order: int) -> str:
        return self.add("Transpose", [x], tuple(self.sizes[x][axis] for axis in order), perm=[*order])

    def model(self, *outputs: str) -> Model:
        graph = helper.make_graph(
            self._nodes,
            self._name,
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, self._input)],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, self.sizes[name]) for name in outputs],
            self._constants,
        )
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR)
        return Model(proto, self._name)


def _picture(shape: NetworkShape) -> _Net:
    return _Net(shape, (1, 3, shape.size, shape.size))


def plain(shape: NetworkShape) -> Model:
    """Return 3x3 convolutions and pools, as VGG has them."""
    net, width = _picture(shape), shape.width
    x = net.conv_act("x", width, 3)
    for factor in (1, 2, 4, 8):
        x = net.pool(net.conv_act(net.conv_act(x, factor * width, 3), factor * width, 3))
    return net.model(net.classes(net.conv_act(x, 8 * width, 3)))


def residual(shape: NetworkShape) -> Model:
    """Return blocks of two 3x3 convolutions and a sum, as ResNet-18 has them."""
    net, width = _picture(shape), shape.width
    x = net.pool(net.conv_act("x", width, 7, 2), 3)
    for stage, factor in enumerate((1, 2, 4, 8)):
        for block in range(2):
            stride = 2 if stage and not block else 1
            short = net.conv(x, factor * width, 1, stride) if stride > 1 else x
            deep = net.conv(net.conv_act(x, factor * width, 3, stride), factor * width, 3)
            x = net.act(net.join("Add", deep, short), "Relu")
    return net.model(net.classes(x))


def bottleneck(shape: NetworkShape) -> Model:
    """Return blocks of 1x1, 3x3 and 1x1 convolutions and a sum, as ResNet-50 has them."""
    net, width = _picture(shape), shape.width
    x = net.pool(net.conv_act("x", width, 7, 2), 3)
    for stage, factor in enumerate((1, 2, 4, 8)):
        inner = factor * width
        for block in range(2):
            stride = 2 if stage and not block else 1
            short = x if block else net.conv(x, 4 * inner, 1, stride)
            deep = net.conv(net.conv_act(net.conv_act(x, inner), inner, 3, stride), 4 * inner)
            x = net.act(net.join("Add", deep, short), "Relu")
    return net.model(net.classes(x))


def mobile(shape: NetworkShape) -> Model:
    """Return blocks with a depthwise convolution between two narrow ends, as MobileNetV2 has them."""
    net, width = _picture(shape), shape.width
    x = net.conv_act("x", 2 * width, 3, 2, act="Relu6")
    for made, stride, kernel in ((1, 1, 3), (1.5, 2, 3), (1.5, 1, 3), (2, 2, 5), (4, 2, 3), (4, 1, 3), (6, 1, 5)):
        read = net.sizes[x][1]
        wide, narrow = 6 * read if read < 6 * width else read, int(made * width)
        deep = net.conv_act(x, wide, act="Relu6")
        deep = net.conv(net.conv_act(deep, wide, kernel, stride, wide, act="Relu6"), narrow)
        x = net.join("Add", deep, x) if narrow == read and stride == 1 else deep
    return net.model(net.classes(net.conv_act(x, 40 * width, act="Relu6")))


def excited(shape: NetworkShape) -> Model:
    """Return blocks whose channels are weighed by their means, as MobileNetV3 and EfficientNet have them."""
    net, width = _picture(shape), shape.width
    x = net.conv_act("x", width, 3, 2, act="HardSwish")
    for factor, stride, kernel in ((1, 2, 3), (2, 2, 5), (3, 1, 5), (6, 2, 5)):
        wide = 4 * net.sizes[x][1]
        deep = net.conv_act(net.conv_act(x, wide, act="HardSwish"), wide, kernel, stride, wide, act="HardSwish")
        gate = net.conv_act(net.conv_act(net.mean(deep), wide // 4), wide, act="HardSigmoid")
        x = net.conv(net.join("Mul", deep, gate), factor * width)
    return net.model(net.classes(net.conv_act(x, 16 * width, act="HardSwish")))


def squeezed(shape: NetworkShape) -> Model:
    """Return 1x1 convolutions that fan out into 1x1 and 3x3, as SqueezeNet has them."""
    net, width = _picture(shape), shape.width
    x = net.pool(net.conv_act("x", 4 * width, 3, 2), 3)
    for factor, pools in ((1, False), (1, True), (2, False), (2, True), (3, False), (4, False)):
        thin = net.conv_act(x, factor * width)
        x = net.concat(net.conv_act(thin, 4 * factor * width), net.conv_act(thin, 4 * factor * width, 3))
        x = net.pool(x, 3) if pools else x
    return net.model(net.mean(net.conv_act(x, 1000)))


def detector(shape: NetworkShape) -> Model:
    """Return a detector with SiLU, splits, pools side by side and a pyramid, as YOLO has them."""
    net, width = _picture(shape), shape.width
    x, levels = net.conv_act("x", width, 3, 2, act="Silu"), list[str]()
    for factor in (2, 4, 8, 16):
        levels.append(_split_block(net, net.conv_act(x, factor * width, 3, 2, act="Silu"), act="Silu"))
        x = levels[-1]
    thin = net.conv_act(x, 8 * width, act="Silu")
    top = net.conv_act(net.concat(thin, *(net.pool(thin, kernel, 1) for kernel in (5, 9, 13))), 16 * width, act="Silu")
    middle = _split_block(net, net.concat(net.up(net.conv_act(top, 8 * width, act="Silu")), levels[2]), act="Silu")
    low = _split_block(net, net.concat(net.up(net.conv_act(middle, 4 * width, act="Silu")), levels[1]), act="Silu")
    heads = [net.conv(net.conv_act(end, 4 * width, 3, act="Silu"), 85) for end in (low, middle, top)]
    return net.model(*heads)


def _split_block(net: _Net, x: str, act: str) -> str:
    made = net.sizes[x][1] // 2
    one_way, other_way = net.conv_act(x, made, act=act), net.conv_act(x, made, act=act)
    deep = net.conv_act(net.conv_act(one_way, made, act=act), made, 3, act=act)
    return net.conv_act(net.concat(net.join("Add", deep, one_way), other_way), 2 * made, act=act)


def segmenter(shape: NetworkShape) -> Model:
    """Return a contracting path and an expanding path, as U-Net has them."""
    net, width = _picture(shape), shape.width
    x, levels = "x", list[str]()
    for factor in (1, 2, 4):
        levels.append(net.conv_act(net.conv_act(x, factor * width, 3), factor * width, 3))
        x = net.pool(levels[-1])
    x = net.conv_act(x, 8 * width, 3)
    for factor, level in zip((4, 2, 1), reversed(levels), strict=True):
        x = net.conv_act(net.concat(net.transposed(x, factor * width), level), factor * width, 3)
    return net.model(net.add("Sigmoid", [net.conv(x, 2)], (1, 2, shape.size, shape.size)))


def transformer(shape: NetworkShape) -> Model:
    """Return two layers of attention and products, as BERT and ViT have them."""
    heads, tokens, width = 4, shape.size, shape.width
    net = _Net(shape, (1, tokens, width))
    x = "x"
    for _ in range(2):
        ends = [net.reshape(net.shifted(net.linear(x, width)), 1, tokens, heads, width // heads) for _ in range(3)]
        query, value = net.transpose(ends[0], 0, 2, 1, 3), net.transpose(ends[2], 0, 2, 1, 3)
        key = net.transpose(ends[1], 0, 2, 3, 1)
        scores = net.times(net.add("MatMul", [query, key], (1, heads, tokens, tokens)), 0.125)
        shares = net.add("Softmax", [scores], net.sizes[scores], axis=-1)
        mixed = net.transpose(net.add("MatMul", [shares, value], net.sizes[query]), 0, 2, 1, 3)
        mixed = net.shifted(net.linear(net.reshape(mixed, 1, tokens, width), width))
        x = net.norm(net.join("Add", x, mixed))
        wide = net.gelu(net.shifted(net.linear(x, 4 * width)))
        x = net.norm(net.join("Add", x, net.shifted(net.linear(wide, width))))
    return net.model(x)


FAMILIES: Final[Mapping[str, Callable[[NetworkShape], Model]]] = {
    "plain": plain,
    "residual": residual,
    "bottleneck": bottleneck,
    "mobile": mobile,
    "excited": excited,
    "squeezed": squeezed,
    "detector": detector,
    "segmenter": segmenter,
    "transformer": transformer,
}

_LEARNED_SIZES: Final = (
    *((8, 96), (12, 192), (16, 160), (16, 320), (20, 128)),
    *((24, 128), (32, 224), (36, 64), (48, 160)),
)
_PICTURES: Final = ("plain", "residual", "bottleneck", "mobile", "excited", "squeezed", "detector", "segmenter")
LEARNED: Final = (
    *(
        NetworkShape(family, width, size)
        for family in _PICTURES
        for width, size in (
            (8, 96),
            (12, 192),
            (16, 160),
            (20, 128),
            (24, 128),
            (32, 224),
            (36, 64),
            (48, 160),
            (16, 320),
        )
    ),
    *(NetworkShape("transformer", width, size) for width, size in ((64, 16), (128, 64), (192, 196), (384, 128))),
)
"""Networks whose layers are measured."""
CHECKED: Final = (
    *(
        NetworkShape(family, width, size)
        for family in _PICTURES
        for width, size in ((12, 256), (28, 160), (44, 96), (32, 192))
    ),
    *(NetworkShape("transformer", width, size) for width, size in ((96, 48), (256, 96))),
)
"""Other networks that are measured whole, to see how far predictions are off."""
