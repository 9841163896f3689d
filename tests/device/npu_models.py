"""Small models that NPUs are known to trip over, in ONNX's text form."""

from __future__ import annotations

import numpy as np
from onnx import numpy_helper, parser

from edgeopt.graph.files.validity import require_valid
from edgeopt.graph.model import Model
from edgeopt.graph.tensors import Tensors


def parse(text: str, *, opset: int = 17, **constants: np.ndarray) -> Model:
    """Return `name (inputs) => (outputs) { nodes }` with `constants` as initializers."""
    proto = parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]>\n{text}')
    proto.graph.initializer.extend(numpy_helper.from_array(one, name) for name, one in constants.items())
    model = Model(proto, proto.graph.name)
    require_valid(model.proto, proto.graph.name)
    return model


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def spread(*shape: int, seed: int = 0) -> np.ndarray:
    """Return weights that keep the variance of what they multiply."""
    return numbers(*shape, seed=seed) / np.float32(np.sqrt(np.prod(shape[1:]) if len(shape) > 2 else shape[0]))


def scalar(value: float) -> np.ndarray:
    return np.array(value, np.float32)


def frames(model: Model, count: int = 8) -> list[Tensors]:
    """Return inputs of a fixed seed; free dimensions are 1."""
    random = np.random.default_rng(7)
    shapes = {one.name: tuple(size if isinstance(size, int) else 1 for size in one.shape) for one in model.inputs}
    return [
        {one.name: np.asarray(random.normal(size=shapes[one.name]), one.dtype) for one in model.inputs}
        for _ in range(count)
    ]


def conv_relu() -> Model:
    return parse(
        """conv_relu (float[1,3,16,16] x) => (float[1,8,16,16] y) {
            c = Conv <pads = [1,1,1,1]> (x, w, b)
            y = Relu(c)
        }""",
        w=spread(8, 3, 3, 3),
        b=numbers(8, seed=1),
    )


def bare_erf() -> Model:
    """An Erf that belongs to no GELU: nothing can be done for it."""
    return parse(
        """bare_erf (float[1,8,6,6] x) => (float[1,8,6,6] y) {
            first = Conv(x, w)
            bad = Erf(first)
            y = Conv(bad, v)
        }""",
        w=spread(8, 8, 1, 1),
        v=spread(8, 8, 1, 1, seed=1),
    )


def gelu_erf() -> Model:
    return parse(
        """gelu_erf (float[1,8,6,6] x) => (float[1,8,6,6] y) {
            c = Conv(x, w)
            s = Div(c, root)
            e = Erf(s)
            a = Add(e, one)
            m = Mul(c, a)
            y = Mul(m, half)
        }""",
        w=spread(8, 8, 1, 1),
        root=scalar(2**0.5),
        one=scalar(1),
        half=scalar(0.5),
    )


def dynamic_batch() -> Model:
    return parse(
        "dynamic_batch (float[n,3,16,16] x) => (float[n,8,14,14] y) { y = Conv(x, w) }",
        w=spread(8, 3, 3, 3),
    )


def suppression() -> Model:
    """Boxes and scores from convolutions, then NonMaxSuppression without a limit: it selects nothing by default."""
    return parse(
        """suppression (float[1,4,16] b, float[1,2,16] s) => (int64[k,3] kept) {
            r = Relu(b)
            t = Transpose <perm = [0,2,1]> (r)
            p = Sigmoid(s)
            kept = NonMaxSuppression(t, p)
        }""",
    )


def double() -> Model:
    return parse(
        """double_precision (double[1,3,16,16] x) => (double[1,8,14,14] y) {
            c = Conv(x, w)
            y = Relu(c)
        }""",
        w=spread(8, 3, 3, 3).astype(np.float64),
    )


def recurrent() -> Model:
    """An LSTM of 8 steps over 6 features, hidden size 5."""
    return parse(
        """recurrent (float[8,1,6] x) => (float[8,1,5] y) {
            all, last, cell = LSTM <hidden_size = 5> (x, w, r, b)
            y = Squeeze(all, one)
        }""",
        w=spread(1, 20, 6),
        r=spread(1, 20, 5, seed=1),
        b=numbers(1, 40, seed=2) * np.float32(0.1),
        one=np.array([1], np.int64),
    )


def transformer() -> Model:
    """One encoder block: 4 heads of 8 over 16 tokens, layer normalisation and GELU written out, as exporters do."""
    layernorm = """
        {p}m = ReduceMean <axes = [-1]> ({x}) {p}d = Sub({x}, {p}m) {p}q = Pow({p}d, two)
        {p}v = ReduceMean <axes = [-1]> ({p}q) {p}e = Add({p}v, eps) {p}s = Sqrt({p}e)
        {p}n = Div({p}d, {p}s) {p}g = Mul({p}n, gamma) {p}o = Add({p}g, beta)"""
    heads = """
        {p}l = MatMul(ao, w{p}) {p}b = Add({p}l, bias{p}) {p}r = Reshape({p}b, split)
        {p}h = Transpose <perm = [0,2,{order}]> ({p}r)"""
    text = f"""transformer (float[1,16,32] x) => (float[1,16,32] y) {{
        {layernorm.format(p="a", x="x")}
        {heads.format(p="q", order="1,3")} {heads.format(p="k", order="3,1")} {heads.format(p="z", order="1,3")}
        raw = MatMul(qh, kh)
        scaled = Mul(raw, factor)
        attention = Softmax <axis = -1> (scaled)
        mixed = MatMul(attention, zh)
        back = Transpose <perm = [0,2,1,3]> (mixed)
        joined = Reshape(back, join)
        projected = MatMul(joined, wo)
        first = Add(x, projected)
        {layernorm.format(p="c", x="first")}
        up = MatMul(co, wu)
        upb = Add(up, biasu)
        s = Div(upb, root) e = Erf(s) t = Add(e, one) m = Mul(upb, t) gelu = Mul(m, half)
        down = MatMul(gelu, wd)
        y = Add(first, down)
    }}"""
    weights = {f"w{p}": spread(32, 32, seed=i) for i, p in enumerate("qkz")}
    biases = {f"bias{p}": numbers(32, seed=9 + i) * np.float32(0.1) for i, p in enumerate("qkz")}
    return parse(
        text,
        **weights,
        **biases,
        wo=spread(32, 32, seed=4),
        wu=spread(32, 64, seed=5),
        wd=spread(64, 32, seed=6),
        biasu=numbers(64, seed=8) * np.float32(0.1),
        gamma=np.ones(32, np.float32) + numbers(32, seed=20) * np.float32(0.1),
        beta=numbers(32, seed=21) * np.float32(0.1),
        factor=scalar(8**-0.5),
        two=scalar(2),
        eps=scalar(1e-5),
        root=scalar(2**0.5),
        one=scalar(1),
        half=scalar(0.5),
        split=np.array([1, 16, 4, 8], np.int64),
        join=np.array([1, 16, 32], np.int64),
    )
