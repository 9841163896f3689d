"""The passes of the phase `device`: the same function in the words that an NPU's compiler knows."""

import numpy as np
import pytest
from fixture_models import (
    GELU,
    GELU_NUMBERS,
    LAYERNORM,
    activation,
    assert_same,
    assert_untouched,
    indices,
    layernorm,
    model,
    numbers,
    ops,
    run_pass,
    scalar,
)

from edgeopt.graph.graph import Graph, attribute


@pytest.mark.parametrize(
    "nodes",
    [
        f"{GELU} m = Mul(x, a) y = Mul(m, half)",
        f"{GELU} m = Mul(a, x) y = Mul(half, m)",
        f"{GELU} m = Mul(x, a) y = Div(m, two)",
        f"{GELU} h = Mul(x, half) y = Mul(h, a)",
        f"{GELU} h = Div(x, two) y = Mul(a, h)",
        f"{GELU} m = Mul(a, half) y = Mul(x, m)",
        "s = Mul(x, inverse) e = Erf(s) a = Add(one, e) m = Mul(x, a) y = Mul(m, half)",
    ],
)
def test_every_way_of_writing_gelu_with_erf_becomes_gelu(nodes: str) -> None:
    before = activation(nodes, opset=20, **GELU_NUMBERS)
    found, after = run_pass("fuse_gelu", before)
    assert (found, ops(after)) == (1, ["Gelu"])
    assert_same(before, after)


@pytest.mark.parametrize(
    "nodes",
    [
        "y = Erf(x)",
        f"{GELU} y = Mul(x, a)",
        f"{GELU} m = Mul(x, a) y = Mul(m, two)",
        f"{GELU} r = Relu(x) m = Mul(r, a) y = Mul(m, half)",
        "s = Div(x, two) e = Erf(s) a = Add(e, one) m = Mul(x, a) y = Mul(m, half)",
        "s = Div(x, root) e = Erf(s) a = Add(e, two) m = Mul(x, a) y = Mul(m, half)",
    ],
)
def test_an_erf_that_is_no_gelu_stays(nodes: str) -> None:
    assert_untouched("fuse_gelu", activation(nodes, opset=20, **GELU_NUMBERS))


def test_before_opset_20_there_is_no_gelu() -> None:
    assert_untouched("fuse_gelu", activation(f"{GELU} m = Mul(x, a) y = Mul(m, half)", **GELU_NUMBERS))


@pytest.mark.parametrize("opset", [17, 21])
@pytest.mark.parametrize("square", ["q = Pow(d, two)", "q = Mul(d, d)"])
@pytest.mark.parametrize("affine", ["m = Mul(n, g) y = Add(m, b)", "m = Mul(g, n) y = Add(b, m)", "y = Relu(n)"])
def test_a_decomposed_layer_normalisation_becomes_one_node(opset: int, square: str, affine: str) -> None:
    before = layernorm(f"{square} {LAYERNORM} {affine}", opset=opset)
    found, after = run_pass("fuse_layernorm", before)
    assert (found, ops(after)) == (1, ["LayerNormalization", *(["Relu"] if "Relu" in affine else [])])
    assert_same(before, after)


def test_a_bias_that_adds_an_axis_stays_behind_the_layer_normalisation() -> None:
    before = model(
        f"""layernorm (float[2,3,8] x) => (float[1,2,3,8] y) {{
            mean = ReduceMean <axes = [-1]> (x) d = Sub(x, mean) q = Mul(d, d)
            {LAYERNORM.replace("AXES", "<axes = [-1]>").replace("MORE", "")}
            m = Mul(n, g) y = Add(m, b)
        }}""",
        opset=17,
        g=numbers(8),
        b=numbers(1, 1, 1, 8, seed=2),
        eps=scalar(1e-3),
    )
    found, after = run_pass("fuse_layernorm", before)
    assert (found, ops(after)) == (1, ["LayerNormalization", "Add"])
    assert_same(before, after)


def test_epsilon_and_axis_of_a_layer_normalisation_are_kept() -> None:
    _, after = run_pass("fuse_layernorm", layernorm(f"q = Mul(d, d) {LAYERNORM} y = Mul(n, g)"))
    (node,) = Graph.from_model(after).nodes("LayerNormalization")
    assert attribute(node, "axis", 0) == -1
    assert attribute(node, "epsilon", 0.0) == pytest.approx(1e-3)


@pytest.mark.parametrize(
    "nodes",
    [
        f"q = Mul(d, x) {LAYERNORM} y = Mul(n, g)",
        f"q = Pow(d, three) {LAYERNORM} y = Mul(n, g)",
        "q = Mul(d, d) v = ReduceMean <axes = [1]> (q) e = Add(v, eps) s = Sqrt(e) n = Div(d, s) y = Mul(n, g)",
        "q = Mul(d, d) v = ReduceMean <axes = [-1]> (q) e = Add(v, eps) s = Sqrt(e) n = Div(x, s) y = Mul(n, g)",
    ],
)
def test_what_only_looks_like_a_layer_normalisation_stays(nodes: str) -> None:
    assert_untouched("fuse_layernorm", layernorm(nodes))


@pytest.mark.parametrize(
    "nodes",
    [
        "l = ReduceL2 <axes = [-1]> (x) y = Div(x, l)",
        "l = ReduceL2 <axes = [1]> (x) c = Clip(l, tiny) y = Div(x, c)",
        "l = ReduceL2 <axes = [1]> (x) c = Max(l, tiny) y = Div(x, c)",
        "l = ReduceL2 <axes = [1]> (x) c = Clip(l, tiny) e = Expand(c, shape) y = Div(x, e)",
    ],
)
def test_a_division_by_the_length_becomes_lpnormalization(nodes: str) -> None:
    before = activation(nodes, tiny=scalar(1e-12), shape=indices(2, 8))
    found, after = run_pass("fuse_l2norm", before)
    assert (found, ops(after)) == (1, ["LpNormalization"])
    assert_same(before, after)


def test_from_opset_18_on_the_axes_are_an_input() -> None:
    before = activation("l = ReduceL2(x, axes) y = Div(x, l)", opset=18, axes=indices(1))
    found, after = run_pass("fuse_l2norm", before)
    assert (found, ops(after)) == (1, ["LpNormalization"])
    assert_same(before, after)


@pytest.mark.parametrize(
    "nodes",
    [
        "l = ReduceL2 <axes = [0, 1]> (x) y = Div(x, l)",
        "l = ReduceL2 <axes = [1]> (x) c = Clip(l, large) y = Div(x, c)",
        "r = Relu(x) l = ReduceL2 <axes = [1]> (r) y = Div(x, l)",
        "l = ReduceL1 <axes = [1]> (x) y = Div(x, l)",
    ],
)
def test_what_only_looks_like_a_division_by_the_length_stays(nodes: str) -> None:
    assert_untouched("fuse_l2norm", activation(nodes, large=scalar(3)))


@pytest.mark.parametrize(("axis", "given", "wanted"), [(0, (-1, 0, -2), [1, 0, 0]), (1, (-8, -1, 3), [0, 7, 3])])
def test_indices_from_the_end_are_counted_from_the_front(axis: int, given: tuple[int, ...], wanted: list[int]) -> None:
    shape = "3,8" if axis == 0 else "2,3"
    before = model(
        f"gather (float[2,8] x) => (float[{shape}] y) {{ y = Gather <axis = {axis}> (x, i) }}", i=indices(*given)
    )
    found, after = run_pass("make_gather_positive", before)
    (node,) = Graph.from_model(after).nodes("Gather")
    positive = Graph.from_model(after).constant(node.inputs[1])
    assert found == 1
    np.testing.assert_array_equal(positive, wanted)
    assert_same(before, after)


def test_indices_of_an_axis_of_unknown_length_and_indices_that_are_computed_stay() -> None:
    free = model("gather (float[n,8] x) => (float[1,8] y) { y = Gather(x, i) }", i=indices(-1))
    computed = model("gather (float[2,8] x, int64[3] i) => (float[3,8] y) { y = Gather(x, i) }")
    for before in (free, computed):
        assert run_pass("make_gather_positive", before)[0] == 0
    assert_untouched(
        "make_gather_positive", model("gather (float[2,8] x) => (float[2,8] y) { y = Gather(x, i) }", i=indices(1, 0))
    )
