"""Small models in ONNX's text form that tests share, and the three questions asked of a pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import numpy_helper, parser
from onnx.reference import ReferenceEvaluator

from edgeopt import passes, plugins
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.graph import Graph
from edgeopt.model import Model
from edgeopt.validity import require_valid

Array = NDArray[Any]


def model(text: str, *, opset: int = 17, ir_version: int = 8, **constants: Array) -> Model:
    """Parse `name (inputs) => (outputs) { nodes }` and store `constants` as initializers."""
    proto = parser.parse_model(f'<ir_version: {ir_version}, opset_import: ["" : {opset}, "com.microsoft" : 1]>\n{text}')
    proto.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
    made = Model(proto, proto.graph.name)
    require_valid(made.proto, proto.graph.name)
    return made


def numbers(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    """Return normally distributed float32 numbers of a fixed seed."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def indices(*values: int) -> NDArray[np.int64]:
    return np.array(values, np.int64)


def scalar(value: float) -> NDArray[np.float32]:
    return np.array(value, np.float32)


def ops(made: Model) -> list[str]:
    """Return the op types in order."""
    return [node.op_type for node in made.proto.graph.node]


def run_pass(name: str, before: Model) -> tuple[int, Model]:
    """Apply one pass until it finds nothing more, on inferred shapes; return its count and the result."""
    function = plugins.load(passes, name).PASS.function
    graph, total = Graph.from_model(before), 0
    for _ in range(10):
        graph.infer_shapes()
        found = function(graph)
        total += found
        if not found:
            break
    else:
        raise AssertionError(f"{name} never comes to rest")
    graph.remove_unused()
    after = graph.to_model()
    require_valid(after.proto, name)
    return total, after


def inputs_of(made: Model, seed: int = 1) -> Mapping[str, Array]:
    random = np.random.default_rng(seed)
    shapes = {one.name: tuple(size if isinstance(size, int) else 2 for size in one.shape) for one in made.inputs}
    return {one.name: np.asarray(random.normal(size=shapes[one.name]) * 3, one.dtype) for one in made.inputs}


def run(made: Model, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
    return EXECUTOR.open(made.data, SessionOptions()).run(inputs)


def run_reference(made: Model, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
    results = ReferenceEvaluator(made.proto).run(None, dict(inputs))
    return dict(zip((one.name for one in made.outputs), results, strict=True))


def assert_same(before: Model, after: Model) -> None:
    """Both have the same inputs and outputs and compute the same, by ONNX Runtime and by onnx's own evaluator."""
    assert [one.name for one in before.inputs] == [one.name for one in after.inputs]
    inputs = inputs_of(before)
    for engine in (run, *(() if _is_beyond_reference(before) else (run_reference,))):
        expected, actual = engine(before, inputs), engine(after, inputs)
        assert list(expected) == list(actual)
        for name, value in expected.items():
            assert actual[name].dtype == value.dtype
            np.testing.assert_allclose(actual[name], value, rtol=1e-4, atol=1e-4, err_msg=f"{engine.__name__} {name}")


def _is_beyond_reference(made: Model) -> bool:
    """onnx's evaluator reshapes the weight of a grouped ConvTranspose wrongly and raises (seen in 1.23)."""
    groups = [
        a.i for n in made.proto.graph.node if n.op_type == "ConvTranspose" for a in n.attribute if a.name == "group"
    ]
    return any(number > 1 for number in groups)


def assert_untouched(name: str, before: Model) -> None:
    """The pass finds nothing here, and the model computes the same afterwards."""
    found, after = run_pass(name, before)
    assert found == 0
    assert ops(after) == ops(before)
    assert_same(before, after)


def _batchnorm(channels: int) -> dict[str, Array]:
    names = ("gamma", "beta", "mean", "var")
    return {n: np.abs(numbers(channels, seed=i)) + 0.1 for i, n in enumerate(names, start=10)}


def conv_batchnorm(*, bias: bool = True, groups: int = 1) -> Model:
    name, last = ("w, b", "b") if bias else ("w", "")
    constants = {"w": numbers(8, 4 // groups, 3, 3), **({"b": numbers(8, seed=2)} if last else {}), **_batchnorm(8)}
    return model(
        f"""conv_batchnorm (float[1,4,6,6] x) => (float[1,8,6,6] y) {{
            c = Conv <group = {groups}, pads = [1,1,1,1]> (x, {name})
            y = BatchNormalization <epsilon = 0.001> (c, gamma, beta, mean, var)
        }}""",
        **constants,
    )


def conv_transpose_batchnorm(*, groups: int = 1) -> Model:
    return model(
        f"""conv_transpose_batchnorm (float[1,4,5,5] x) => (float[1,6,10,10] y) {{
            c = ConvTranspose <group = {groups}, strides = [2,2]> (x, w)
            y = BatchNormalization (c, gamma, beta, mean, var)
        }}""",
        w=numbers(4, 6 // groups, 2, 2),
        **_batchnorm(6),
    )


def conv_then(nodes: str, *, groups: int = 1, **constants: Array) -> Model:
    """A padded Conv with output c, and `nodes` that make y of it."""
    return model(
        f"""conv_then (float[1,4,6,6] x) => (float[1,8,6,6] y) {{
            c = Conv <group = {groups}, pads = [1,1,1,1]> (x, w)
            {nodes}
        }}""",
        w=numbers(8, 4 // groups, 3, 3),
        **constants,
    )


def conv_after(nodes: str, *, pad: int = 0, groups: int = 1, **constants: Array) -> Model:
    """`nodes` that make a of the input x, and a Conv that reads a."""
    size = 4 + 2 * pad
    return model(
        f"""conv_after (float[1,4,6,6] x) => (float[1,8,{size},{size}] y) {{
            {nodes}
            y = Conv <group = {groups}, pads = [{pad},{pad},{pad},{pad}]> (a, w, b)
        }}""",
        w=numbers(8, 4 // groups, 3, 3),
        b=numbers(8, seed=2),
        **constants,
    )


def focus_chained() -> Model:
    """YOLOX's Focus as its exporter writes it: eight Slices, one axis each."""
    nodes = []
    for name, row, column in (
        ("tl", "zero", "zero"),
        ("bl", "one", "zero"),
        ("tr", "zero", "one"),
        ("br", "one", "one"),
    ):
        nodes.append(f"{name}_rows = Slice(x, {row}, end, rows, two)")
        nodes.append(f"{name} = Slice({name}_rows, {column}, end, columns, two)")
    return model(
        f"""focus_chained (float[1,3,8,8] x) => (float[1,5,4,4] y) {{
            {chr(10).join(nodes)}
            s = Concat <axis = 1> (tl, bl, tr, br)
            c = Conv <pads = [1,1,1,1], kernel_shape = [3,3]> (s, w, b)
            y = Relu(c)
        }}""",
        w=numbers(5, 12, 3, 3),
        b=numbers(5, seed=2),
        zero=indices(0),
        one=indices(1),
        two=indices(2),
        rows=indices(2),
        columns=indices(3),
        end=indices(2**63 - 1),
    )


def focus_blocks(*, block: int = 2, stride: int = 1, leave_out: int = 0, order: str = "rows") -> Model:
    """One two-axis Slice for each phase of a block, stacked, and a padded Conv."""
    phases = [(a, b) for a in range(block) for b in range(block)][leave_out:]
    phases = sorted(phases, key=lambda phase: phase[::-1]) if order == "columns" else phases
    nodes = [f"s{a}{b} = Slice(x, start{a}{b}, end, axes, steps)" for a, b in phases]
    channels, size = 2 * len(phases), -(-(12 // block) // stride)
    return model(
        f"""focus_blocks (float[1,2,12,12] x) => (float[1,3,{size},{size}] y) {{
            {chr(10).join(nodes)}
            s = Concat <axis = -3> ({", ".join(f"s{a}{b}" for a, b in phases)})
            y = Conv <pads = [1,1,1,1], strides = [{stride},{stride}]> (s, w)
        }}""",
        w=numbers(3, channels, 3, 3),
        end=indices(12, 12),
        axes=indices(2, -1),
        steps=indices(block, block),
        **{f"start{a}{b}": indices(a, b) for a, b in phases},
    )


def space_to_depth() -> Model:
    return model(
        """space_to_depth (float[1,3,12,12] x) => (float[1,4,4,4] y) {
            s = SpaceToDepth <blocksize = 3> (x)
            y = Conv <pads = [1,1,1,1]> (s, w)
        }""",
        w=numbers(4, 27, 3, 3),
    )


def unshuffle(permutation: str = "0,1,3,5,2,4") -> Model:
    """Space-to-depth as Reshape, Transpose, Reshape, with a block of 2 rows and 3 columns."""
    return model(
        f"""unshuffle (float[1,3,8,12] x) => (float[1,4,4,4] y) {{
            r = Reshape(x, split)
            t = Transpose <perm = [{permutation}]> (r)
            s = Reshape(t, stacked)
            y = Conv <pads = [1,1,1,1]> (s, w)
        }}""",
        w=numbers(4, 18, 3, 3),
        split=indices(1, 3, 4, 2, 4, 3),
        stacked=indices(1, 18, 4, 4),
    )


def activation(nodes: str, *, opset: int = 17, **constants: Array) -> Model:
    """`nodes` that make y of x, both 2x8."""
    return model(f"activation (float[2,8] x) => (float[2,8] y) {{ {nodes} }}", opset=opset, **constants)


def identities() -> Model:
    """One after the other, nodes that hand their input on; a Relu at either end."""
    return model(
        """identities (float[1,2,3,4] x) => (float[1,2,3,4] y) {
            a = Relu(x)
            b = Identity(a)
            c, mask = Dropout(b, ratio)
            d = Cast <to = 1> (c)
            e = Transpose <perm = [0,1,2,3]> (d)
            f = Pad(e, nothing)
            g = Mul(one, f)
            h = Add(g, zeros)
            i = Concat <axis = 1> (h)
            j = Reshape(i, same)
            k = Slice(j, from, to)
            l = Sub(k, zero)
            m = Div(l, one)
            y = Neg(m)
        }""",
        ratio=scalar(0.5),
        nothing=indices(*[0] * 8),
        one=np.ones((1, 1), np.float32),
        zeros=np.zeros((2, 3, 4), np.float32),
        zero=scalar(0),
        same=indices(0, 2, -1, 4),
        **{"from": indices(0, 0), "to": indices(9, 2**63 - 1)},
    )


def shape_chain() -> Model:
    """An upsampling whose sizes are computed from shapes, as exporters write it."""
    return model(
        """shape_chain (float[1,2,4,6] x) => (float[1,2,8,12] y) {
            s = Shape(x)
            h = Gather(s, two)
            w = Gather <axis = 0> (s, three)
            h2 = Mul(h, two)
            w2 = Mul(w, two)
            hv = Unsqueeze(h2, zero)
            wv = Unsqueeze(w2, zero)
            nc = Shape <start = 0, end = -2> (x)
            sizes = Concat <axis = 0> (nc, hv, wv)
            y = Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor">
                (x, , , sizes)
        }""",
        two=np.array(2, np.int64),
        three=np.array(3, np.int64),
        zero=indices(0),
    )


def if_body() -> Model:
    """A branch that reads a value and a constant of the outer graph."""
    return model(
        """if_body (float[2,3] x, bool flag) => (float[2,3] y) {
            a = Identity(x)
            b = Relu(a)
            y = If (flag) <
                then_branch = yes () => (float[2,3] p) { p = Add(b, w) },
                else_branch = no () => (float[2,3] q) { q = Mul(a, w) }
            >
        }""",
        w=numbers(2, 3),
    )


def shared_weight() -> Model:
    """Two Convs with one weight, each with a BatchNormalization of its own."""
    return model(
        """shared_weight (float[1,4,5,5] x) => (float[1,4,5,5] y, float[1,4,5,5] z) {
            c = Conv(x, w)
            y = BatchNormalization(c, gamma, beta, mean, var)
            d = Conv(y, w)
            z = BatchNormalization(d, beta, gamma, mean, var)
        }""",
        w=numbers(4, 4, 1, 1),
        **_batchnorm(4),
    )


SOFT, HARD = "n = Neg(x) e = Exp(n) d = Add(one, e)", "a = Add(x, three) c = Clip(a, zero, six)"
HARD_NUMBERS = {"three": scalar(3), "six": scalar(6), "zero": scalar(0)}

GELU = "s = Div(x, root) e = Erf(s) a = Add(e, one)"
GELU_NUMBERS = {
    "root": scalar(2**0.5),
    "inverse": scalar(0.5**0.5),
    "one": scalar(1),
    "half": scalar(0.5),
    "two": scalar(2),
}
LAYERNORM = "v = ReduceMean AXES (q MORE) e = Add(v, eps) s = Sqrt(e) n = Div(d, s)"


def layernorm(nodes: str, *, opset: int = 17) -> Model:
    """`nodes` that make y of x and of d, which is x without its mean over the last axis."""
    before, after = ("<axes = [-1]>", "") if opset < 18 else ("", ", axes")
    nodes = nodes.replace("AXES", before).replace("MORE", after)
    return model(
        f"""layernorm (float[2,3,8] x) => (float[2,3,8] y) {{
            mean = ReduceMean {before} (x {after})
            d = Sub(x, mean)
            {nodes}
        }}""",
        opset=opset,
        g=numbers(8),
        b=numbers(8, seed=2),
        eps=scalar(1e-3),
        two=scalar(2),
        three=scalar(3),
        axes=indices(-1),
    )


def all_models() -> dict[str, Model]:
    """Return every shape of model above, by a name of its own: what the walk over all passes uses."""
    return {
        "conv_batchnorm": conv_batchnorm(),
        "conv_batchnorm_grouped": conv_batchnorm(bias=False, groups=2),
        "conv_transpose_batchnorm": conv_transpose_batchnorm(groups=2),
        "conv_then_affine": conv_then("m = Mul(c, s) y = Sub(t, m)", s=numbers(8, 1, 1), t=scalar(2)),
        "conv_after_affine": conv_after("d = Sub(x, m) a = Div(d, s)", m=numbers(4, 1, 1), s=scalar(3)),
        "conv_padded_after_affine": conv_after("a = Add(x, m)", pad=1, m=numbers(4, 1, 1)),
        "focus_chained": focus_chained(),
        "focus_blocks": focus_blocks(block=3),
        "space_to_depth": space_to_depth(),
        "unshuffle": unshuffle(),
        "silu": activation(f"{SOFT} y = Div(x, d)", one=scalar(1)),
        "hardswish": activation(f"{HARD} m = Mul(x, c) y = Div(m, six)", **HARD_NUMBERS),
        "identities": identities(),
        "shape_chain": shape_chain(),
        "if_body": if_body(),
        "constants": activation("c = Constant <value_float = 2.0> () d = Neg(c) e = Exp(x) y = Add(x, d)"),
        "pad_conv": conv_after("a = Pad(x, p)", p=indices(0, 0, 0, 0, 0, 0, 0, 0)[:8]),
        "reshapes": activation("a = Reshape(x, s) b = Flatten(a) y = Reshape(b, s)", s=indices(2, 8)),
        "transposes": activation("a = Relu(x) b = Transpose(a) c = Transpose(b) y = Neg(c)"),
        "shared_weight": shared_weight(),
        "gelu": activation(f"{GELU} m = Mul(x, a) y = Mul(m, half)", opset=20, **GELU_NUMBERS),
        "layernorm": layernorm(f"q = Pow(d, two) {LAYERNORM} m = Mul(n, g) y = Add(m, b)"),
        "l2norm": activation("l = ReduceL2 <axes = [1]> (x) y = Div(x, l)"),
        "qlinear_conv": model(
            """qlinear_conv (float[1,4,5,5] x) => (float[1,6,3,3] y) {
                q = QuantizeLinear(x, s, o)
                c = QLinearConv(q, s, o, w, s, o, s, o)
                y = DequantizeLinear(c, s, o)
            }""",
            opset=21,
            s=scalar(0.05),
            o=np.array(3, np.int8),
            w=np.arange(-27, 27).repeat(4).reshape(6, 4, 3, 3).astype(np.int8),
        ),
        "pool_pyramid": model(
            """pools (float[1,2,9,9] x) => (float[1,2,9,9] y) {
                a = MaxPool <kernel_shape = [3,3], pads = [1,1,1,1]> (x)
                b = MaxPool <kernel_shape = [7,7], pads = [3,3,3,3]> (x)
                y = Add(a, b)
            }"""
        ),
        "rows_of_a_conv": model(
            """rows (float[1,2,4,4] x) => (float[1,16,3] y) {
                c = Conv(x, w) r = Reshape(c, n) y = Transpose <perm = [0,2,1]> (r)
            }""",
            w=numbers(3, 2, 1, 1),
            n=indices(1, 3, 16),
        ),
        "gather_from_the_end": activation("a = Gather <axis = 0> (x, i) y = Relu(a)", i=indices(-1, -2)),
    }
