"""Every order in which exporters write GELU becomes the one that ONNX Runtime makes one kernel of."""

import math
import os
from pathlib import Path

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read once, when onnxruntime is first imported

import numpy as np
import onnx
import onnxruntime
import pytest
from fixture_models import (
    GELU,
    GELU_NUMBERS,
    activation,
    assert_same,
    assert_untouched,
    model,
    numbers,
    run_pass,
    scalar,
)

from edgeopt.graph.graph import Array
from edgeopt.graph.model import Model

TANH_NUMBERS: dict[str, Array] = {
    "c": scalar(math.sqrt(2 / math.pi)),
    "d": scalar(0.044715),
    "one": scalar(1),
    "half": scalar(0.5),
    "two": scalar(2),
    "three": scalar(3),
}
POW = "p = Pow(x, three) q = Mul(d, p) r = Add(x, q) u = Mul(c, r)"
SQUARES = "v = Mul(x, d) w = Mul(v, x) r = Add(w, one) z = Mul(x, c) u = Mul(z, r)"
CUBES = "s = Mul(x, x) p = Mul(x, s) q = Mul(d, p) r = Add(x, q) u = Mul(c, r)"
REST = "t = Tanh(u) a = Add(t, one)"
ERF_OTHER = [
    f"{GELU} m = Mul(half, a) y = Mul(x, m)",
    f"{GELU} m = Mul(x, a) y = Div(m, two)",
    "s = Mul(inverse, x) e = Erf(s) a = Add(one, e) m = Mul(x, a) y = Mul(m, half)",
]
ERF_KNOWN = [f"{GELU} m = Mul(a, x) y = Mul(half, m)", f"{GELU} h = Mul(x, half) y = Mul(h, a)"]
TANH_OTHER = [
    f"{POW} {REST} m = Mul(half, a) y = Mul(x, m)",
    f"{CUBES} {REST} m = Mul(x, a) y = Mul(half, m)",
    f"{CUBES} {REST} h = Mul(x, half) y = Mul(h, a)",
    f"{SQUARES} {REST} m = Mul(x, a) y = Div(m, two)",
]
TANH_KNOWN = [f"{SQUARES} {REST} h = Mul(x, half) y = Mul(h, a)"]


def kernels(made: Model, folder: Path) -> list[str]:
    """Return the ops of a model as ONNX Runtime runs it."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(folder / "as_it_runs.onnx")
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.log_severity_level = 3
    onnxruntime.InferenceSession(made.data, options, providers=["CPUExecutionProvider"])
    return [node.op_type for node in onnx.load(folder / "as_it_runs.onnx").graph.node]


@pytest.mark.parametrize("opset", [13, 18, 20])
@pytest.mark.parametrize("nodes", ERF_OTHER)
def test_another_order_with_erf_becomes_the_one_that_runs_as_one_kernel(nodes: str, opset: int, tmp_path: Path) -> None:
    before = activation(nodes, opset=opset, **GELU_NUMBERS)
    assert kernels(before, tmp_path) != ["Gelu"]
    found, after = run_pass("order_gelu", before)
    assert (found, kernels(after, tmp_path)) == (1, ["Gelu"])
    assert_same(before, after)


@pytest.mark.parametrize("nodes", TANH_OTHER)
def test_another_order_with_tanh_becomes_the_one_that_runs_as_one_kernel(nodes: str, tmp_path: Path) -> None:
    before = activation(nodes.replace("y =", "g =") + " y = Neg(g)", **TANH_NUMBERS)  # at an output it is never fused
    assert kernels(before, tmp_path) != ["FastGelu", "Neg"]
    found, after = run_pass("order_gelu", before)
    assert (found, kernels(after, tmp_path)) == (1, ["FastGelu", "Neg"])
    assert_same(before, after)


@pytest.mark.parametrize("nodes", [*ERF_KNOWN, *TANH_KNOWN])
def test_a_known_order_stays(nodes: str, tmp_path: Path) -> None:
    before = activation(nodes.replace("y =", "g =") + " y = Neg(g)", **GELU_NUMBERS | TANH_NUMBERS)
    assert kernels(before, tmp_path) in (["Gelu", "Neg"], ["FastGelu", "Neg"])
    assert_untouched("order_gelu", before)


@pytest.mark.parametrize(
    "nodes",
    [
        f"{POW} {REST} m = Mul(x, a) y = Mul(m, two)",
        f"p = Pow(x, two) q = Mul(d, p) r = Add(x, q) u = Mul(c, r) {REST} m = Mul(x, a) y = Mul(m, half)",
        f"p = Pow(x, three) r = Add(x, p) u = Mul(c, r) {REST} m = Mul(x, a) y = Mul(m, half)",
        f"k = Relu(x) {POW.replace('Pow(x', 'Pow(k')} {REST} m = Mul(x, a) y = Mul(m, half)",
        "t = Tanh(x) a = Add(t, one) m = Mul(half, a) y = Mul(x, m)",
    ],
)
def test_a_tanh_that_is_no_gelu_stays(nodes: str) -> None:
    assert_untouched("order_gelu", activation(nodes, **TANH_NUMBERS))


def test_float16_stays_since_twice_x_would_overflow() -> None:
    halves = {name: value.astype(np.float16) for name, value in GELU_NUMBERS.items()}
    text = f"half (float16[2,8] x) => (float16[2,8] y) {{ {ERF_OTHER[0]} }}"
    assert_untouched("order_gelu", model(text, **halves))


def test_many_units_share_their_numbers() -> None:
    units = "s = Div(x, root) e = Erf(s) a = Add(e, one) h = Mul(half, a) m = Mul(x, h) "
    units += "s2 = Div(m, root) e2 = Erf(s2) a2 = Add(e2, one) h2 = Mul(half, a2) y = Mul(m, h2)"
    found, after = run_pass("order_gelu", activation(units, **GELU_NUMBERS))
    assert (found, len(after.proto.graph.initializer)) == (2, 3)


@pytest.mark.parametrize("name", ["fuse_conv_affine", "order_gelu"])
def test_the_half_of_a_gelu_stays_before_a_convolution(name: str, tmp_path: Path) -> None:
    before = model(
        f"""gelu_conv (float[1,8,4,4] x) => (float[1,8,4,4] y) {{
            {GELU} m = Mul(x, a) h = Mul(m, half) y = Conv(h, w)
        }}""",
        w=numbers(8, 8, 1, 1),
        **GELU_NUMBERS,
    )
    assert_untouched(name, before)
    assert kernels(before, tmp_path) == ["Gelu", "Conv"]
