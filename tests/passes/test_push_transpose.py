import pytest
from fixture_models import assert_same, assert_untouched, indices, model, numbers, ops, run_pass

from edgeopt.graph.model import Model

NAME = "push_transpose"


def heads(nodes: str, *, inputs: str = "float[1,2,4,4] x, float[1,2,2,2] z", **constants) -> Model:
    return model(
        f"heads ({inputs}) => (float[a,b,c] y) {{ {nodes} }}", w=numbers(3, 2, 1, 1), v=numbers(4, 2, 1, 1), **constants
    )


SCALE = "{0}b = Conv({0}, w) {0}s = Conv({0}, v) {0}g = Sigmoid({0}s) {0}c = Concat <axis = 1> ({0}b, {0}g)"
ROWS = "{0}r = Reshape({0}c, {0}n)"
BOTH = " ".join((SCALE + " " + ROWS).format(one) for one in "xz") + " all = Concat <axis = 2> (xr, zr)"
SHAPES = {"xn": indices(1, 7, 16), "zn": indices(1, 7, -1)}


def test_a_transpose_behind_the_heads_of_a_detector_moves_up_to_its_convolutions() -> None:
    before = heads(f"{BOTH} y = Transpose <perm = [0,2,1]> (all)", **SHAPES)
    found, after = run_pass(NAME, before)
    assert found == 1 + 2 + 2  # the scales' Concat, two Reshape, two Concat
    producers = {one: node.op_type for node in after.proto.graph.node for one in node.output}
    moved = [node for node in after.proto.graph.node if node.op_type == "Transpose"]
    assert sorted(producers[node.input[0]] for node in moved) == ["Conv", "Conv", "Sigmoid", "Sigmoid"]
    assert {tuple(node.attribute[0].ints) for node in moved} == {(0, 2, 3, 1)}
    assert_same(before, after)


def test_a_transpose_behind_one_reshape_of_a_conv_becomes_channels_last() -> None:
    before = heads("c = Conv(x, w) r = Reshape(c, n) y = Transpose <perm = [0,2,1]> (r)", n=indices(1, 3, 16))
    found, after = run_pass(NAME, before)
    assert (found, ops(after)) == (1, ["Conv", "Transpose", "Reshape"])
    assert_same(before, after)


@pytest.mark.parametrize(
    "nodes",
    [
        "c = Conv(x, w) r = Reshape(c, n) y = Transpose <perm = [2,1,0]> (r)",
        "c = Conv(x, w) r = Reshape(c, n) t = Transpose <perm = [0,2,1]> (r) y = MatMul(t, r)",
        "c = Exp(x) d = Concat <axis = 1> (c, x) r = Reshape(d, m) y = Transpose <perm = [0,2,1]> (r)",
        "c = Conv(x, w) r = Reshape(c, other) y = Transpose <perm = [0,2,1]> (r)",
    ],
    ids=["another order", "read twice", "no convolution", "channels joined"],
)
def test_other_transposes_stay(nodes: str) -> None:
    shapes = {"n": indices(1, 3, 16), "m": indices(1, 4, 16), "other": indices(1, 12, 4)}
    used = {name: value for name, value in shapes.items() if f", {name})" in nodes}
    assert_untouched(NAME, heads(nodes, **used))


def test_one_branch_without_a_convolution_keeps_the_transpose_behind_all() -> None:
    nodes = (
        "c = Conv(x, w) r = Reshape(c, n) e = Exp(k) a = Concat <axis = 2> (r, e) y = Transpose <perm = [0,2,1]> (a)"
    )
    assert_untouched(NAME, heads(nodes, inputs="float[1,2,4,4] x, float[1,3,5] k", n=indices(1, 3, 16)))
