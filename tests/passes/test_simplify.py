"""The passes of the phase `simplify`."""

import numpy as np
import pytest
from fixture_models import (
    activation,
    assert_same,
    assert_untouched,
    identities,
    if_body,
    indices,
    inputs_of,
    model,
    numbers,
    ops,
    run,
    run_pass,
    scalar,
    shape_chain,
)

from edgeopt.graph.model import Model
from edgeopt.steps.simplify import simplify


def initializers(made: Model) -> dict[str, list[int]]:
    return {one.name: list(one.dims) for one in made.proto.graph.initializer}


def test_twelve_kinds_of_identity_disappear() -> None:
    before = identities()
    found, after = run_pass("remove_identity", before)
    assert (found, ops(after)) == (12, ["Relu", "Neg"])
    assert_same(before, after)


def test_an_identity_between_input_and_output_stays_because_both_names_are_needed() -> None:
    assert_untouched("remove_identity", activation("y = Identity(x)"))


def test_an_identity_that_is_an_output_hands_its_name_on() -> None:
    before = activation("a = Relu(x) y = Identity(a)")
    found, after = run_pass("remove_identity", before)
    assert (found, ops(after), after.proto.graph.node[0].output[0]) == (1, ["Relu"], "y")
    assert_same(before, after)


def test_an_identity_of_what_is_an_output_itself_stays() -> None:
    before = model("twice (float[3] x) => (float[3] a, float[3] y) { a = Relu(x) y = Identity(a) }")
    assert_untouched("remove_identity", before)


def test_an_identity_that_only_a_branch_reads_is_bypassed_inside_the_branch_too() -> None:
    before = if_body()
    found, after = run_pass("remove_identity", before)
    assert (found, ops(after)) == (1, ["Relu", "If"])
    assert_same(before, after)


@pytest.mark.parametrize(
    "nodes",
    [
        "y = Sub(zero, x)",
        "y = Div(one, x)",
        "y = Mul(x, zero)",
        "m = Add(x, wide) y = ReduceSum <keepdims = 0> (m, axis)",
        "t = Transpose(x) y = Transpose(t)",
        "y = Slice(x, last, before, ax, back)",
        "y = Pad(x, crop)",
        "h = Cast <to = 11> (x) y = Cast <to = 1> (h)",
        "y, mask = Dropout(x, half, train)",
    ],
)
def test_what_changes_values_or_shape_stays(nodes: str) -> None:
    constants = {"wide": np.zeros((2, 1, 8), np.float32), "axis": indices(0), "crop": indices(0, 1, 0, -1)}
    slicing = {"last": indices(-1), "before": indices(-(2**62)), "ax": indices(1), "back": indices(-1)}
    dropout = {"half": scalar(0.5), "train": np.array(True)}
    before = activation(nodes, **constants, **slicing, **dropout, zero=scalar(0), one=scalar(1))
    assert run_pass("remove_identity", before)[0] == 0


def test_a_chain_of_reshapes_becomes_one() -> None:
    before = model(
        """chain (float[2,1,3,4] x) => (float[2,12,1] y) {
            a = Squeeze(x, one)
            b = Flatten(a)
            c = Unsqueeze(b, two)
            y = Reshape(c, to)
        }""",
        one=indices(1),
        two=indices(2),
        to=indices(0, -1, 1),
    )
    found, after = run_pass("merge_reshapes", before)
    assert (found, ops(after)) == (3, ["Reshape"])
    assert_same(before, after)


def test_a_reshape_that_something_else_reads_stays() -> None:
    before = model(
        "fork (float[2,6] x) => (float[12] y, float[3,4] z) { a = Reshape(x, f) y = Relu(a) z = Reshape(a, t) }",
        f=indices(12),
        t=indices(3, 4),
    )
    assert_untouched("merge_reshapes", before)


@pytest.mark.parametrize(
    ("first", "second", "left"),
    [("2,0,1", "1,2,0", ["Relu", "Neg"]), ("2,0,1", "2,0,1", ["Relu", "Transpose", "Neg"])],
)
def test_two_transposes_become_one_or_none(first: str, second: str, left: list[str]) -> None:
    shape = "3,4,2" if left == ["Relu", "Transpose", "Neg"] else "2,3,4"
    before = model(
        f"""pair (float[2,3,4] x) => (float[{shape}] y) {{
            a = Relu(x)
            b = Transpose <perm = [{first}]> (a)
            c = Transpose <perm = [{second}]> (b)
            y = Neg(c)
        }}"""
    )
    found, after = run_pass("merge_transposes", before)
    assert (found, ops(after)) == (1, left)
    assert_same(before, after)


def test_transposes_that_reverse_twice_without_saying_so_disappear() -> None:
    before = activation("a = Relu(x) b = Transpose(a) c = Transpose(b) y = Neg(c)")
    found, after = run_pass("merge_transposes", before)
    assert (found, ops(after)) == (1, ["Relu", "Neg"])
    assert_same(before, after)


def test_a_lone_transpose_stays() -> None:
    assert_untouched("merge_transposes", model("lone (float[2,3] x) => (float[3,2] y) { y = Transpose(x) }"))


def test_equal_constants_are_stored_once() -> None:
    same = numbers(1, 8)
    before = activation("a = Mul(x, p) b = Add(a, q) c = Sub(b, r) y = Div(c, p)", p=same, q=same, r=same * 2)
    found, after = run_pass("deduplicate_initializers", before)
    assert (found, sorted(initializers(after))) == (1, ["p", "r"])
    assert_same(before, after)


def test_equal_bytes_of_another_type_or_shape_stay() -> None:
    before = activation(
        "a = Add(x, p) b = Add(a, q) c = Reshape(b, i) y = Reshape(c, s)",
        p=np.zeros((1, 8), np.float32),
        q=np.zeros((2, 8), np.float32)[:1, :1],
        i=indices(4, 4),
        s=indices(2, 8),
    )
    assert_untouched("deduplicate_initializers", before)


def test_what_no_output_needs_disappears() -> None:
    before = activation("a = Mul(x, p) dead = Exp(a) deader = Add(dead, q) y = Neg(a)", p=scalar(2), q=scalar(3))
    found, after = run_pass("remove_unused", before)
    assert (found, ops(after), list(initializers(after))) == (3, ["Mul", "Neg"], ["p"])
    assert_same(before, after)


def test_where_all_is_needed_nothing_disappears() -> None:
    assert_untouched("remove_unused", if_body())


def test_a_chain_of_shapes_before_a_resize_becomes_constant_sizes() -> None:
    before = shape_chain()
    found, static = run_pass("make_shape_static", before)
    folded, after = run_pass("fold_constants", static)
    assert (found, ops(after)) == (2, ["Resize"])
    assert folded == 7
    assert_same(before, after)


def test_the_shape_of_a_free_input_stays() -> None:
    before = model("free (float[n,3] x) => (int64[2] y) { a = Relu(x) s = Shape(a) y = Neg(s) }")
    assert_untouched("make_shape_static", before)


def test_the_number_of_elements_becomes_a_constant() -> None:
    before = model("size (float[2,3] x) => (int64 y) { s = Size(x) y = Neg(s) }")
    found, after = run_pass("make_shape_static", before)
    assert (found, ops(after)) == (1, ["Neg"])
    assert_same(before, after)


def test_a_resize_with_computed_sizes_gets_them_from_its_output() -> None:
    before = shape_chain()
    found, after = run_pass("make_resize_static", before)
    resize = after.proto.graph.node[-1]
    assert found == 1
    assert resize.input[3] in initializers(after)
    assert_same(before, after)


def test_a_resize_with_constant_scales_stays() -> None:
    before = model(
        'plain (float[1,1,2,2] x) => (float[1,1,4,4] y) { y = Resize <mode = "nearest"> (x, , s) }',
        s=np.array([1, 1, 2, 2], np.float32),
    )
    assert_untouched("make_resize_static", before)


def test_bounds_of_a_slice_are_counted_from_zero_and_stay_inside() -> None:
    before = model(
        "cut (float[4,9] x) => (float[3,3] y) { y = Slice(x, s, e, a, n) }",
        s=indices(-7, -3),
        e=indices(2**63 - 1, 2**62),
        a=indices(-1, 0),
        n=indices(3, 1),
    )
    found, after = run_pass("make_slice_static", before)
    values = {one.name: np.frombuffer(one.raw_data, np.int64).tolist() for one in after.proto.graph.initializer}
    assert found == 1
    assert [values[name] for name in after.proto.graph.node[0].input[1:]] == [[2, 1], [9, 4], [1, 0], [3, 1]]
    assert_same(before, after)


@pytest.mark.parametrize("shape", ["8", "n"])
def test_a_slice_backwards_or_of_a_free_dimension_stays(shape: str) -> None:
    step, start, end = (-1, -1, -(2**62)) if shape == "8" else (1, -3, 2**62)
    before = model(
        f"cut (float[{shape}] x) => (float[m] y) {{ y = Slice(x, s, e, a, n) }}",
        s=indices(start),
        e=indices(end),
        a=indices(0),
        n=indices(step),
    )
    assert run_pass("make_slice_static", before)[0] == 0


def test_nodes_that_read_only_constants_are_computed() -> None:
    before = activation(
        """c = Constant <value_floats = [1.0, 2.0, 3.0, 4.0]> ()
        d = Mul(c, two)
        e = Concat <axis = 0> (d, c)
        y = Add(x, e)""",
        two=scalar(2),
    )
    found, after = run_pass("fold_constants", before)
    assert (found, ops(after)) == (3, ["Add"])
    assert_same(before, after)


def test_folding_never_makes_the_file_larger() -> None:
    before = activation(
        "t = Expand(one, large) s = ReduceSum <keepdims = 0> (t) y = Add(x, s)", one=scalar(1), large=indices(99, 99)
    )
    assert_untouched("fold_constants", before)


def test_a_large_constant_that_takes_the_place_of_another_is_folded() -> None:
    before = model("swap (float[2,40] x) => (float[2,30] y) { t = Transpose(w) y = MatMul(x, t) }", w=numbers(30, 40))
    found, after = run_pass("fold_constants", before)
    assert (found, ops(after)) == (1, ["MatMul"])
    assert_same(before, after)


def test_a_large_constant_that_is_needed_as_it_is_too_is_not_folded() -> None:
    before = model(
        "both (float[2,40] x) => (float[2,40] y) { t = Transpose(w) h = MatMul(x, t) y = MatMul(h, w) }",
        w=numbers(30, 40),
    )
    assert_untouched("fold_constants", before)


def test_quantized_weights_and_random_numbers_stay_as_they_are() -> None:
    before = activation(
        "w = DequantizeLinear(q, s) r = RandomNormalLike <seed = 1.0> (p) a = Add(x, w) b = Add(a, r) y = Sub(b, r)",
        q=np.ones((1, 8), np.int8),
        s=scalar(0.5),
        p=numbers(1, 8),
    )
    found, after = run_pass("fold_constants", before)
    assert (found, ops(after)) == (0, ops(before))
    np.testing.assert_allclose(run(after, inputs_of(before))["y"], inputs_of(before)["x"] + 0.5, atol=1e-5)


def test_a_constant_that_is_an_output_stays_a_node() -> None:
    before = model("given (float[2] x) => (float[2] y, float[2] z) { y = Relu(x) z = Neg(w) }", w=numbers(2))
    assert_untouched("fold_constants", before)


@pytest.mark.parametrize("opset", [7, 9, 11, 12])
def test_a_small_model_gets_the_opset_that_int8_needs_though_its_file_grows(opset: int) -> None:
    """Limits of a Clip become constants, which is more than 1 % of so small a file."""
    text = (
        "relu6 (float[1,3,8,8] x) => (float[1,4,8,8] y) "
        "{ c = Conv <pads = [1,1,1,1]> (x, w) y = Clip <min = 0.0, max = 6.0> (c) }"
        if opset < 11
        else "relu (float[1,3,8,8] x) => (float[1,4,8,8] y) { c = Conv <pads = [1,1,1,1]> (x, w) y = Relu(c) }"
    )
    before = model(text, opset=opset, w=numbers(4, 3, 3, 3))
    after = simplify(before, {}).model
    assert after.opset >= 13
    assert_same(before, after)


def test_a_small_model_without_layers_for_integers_keeps_its_opset_where_its_file_would_grow() -> None:
    before = model("relu6 (float[2] x) => (float[2] y) { y = Clip <min = 0.0, max = 6.0> (x) }", opset=9)
    assert simplify(before, {}).model is before
