import pytest
from fixture_models import (
    HARD,
    HARD_NUMBERS,
    SOFT,
    activation,
    assert_same,
    assert_untouched,
    ops,
    run_pass,
    scalar,
)

ONE = {"one": scalar(1)}


@pytest.mark.parametrize("exponent", ["n = Neg(x) e = Exp(n)", "n = Mul(x, minus) e = Exp(n)"])
@pytest.mark.parametrize("sum_", ["d = Add(one, e)", "d = Add(e, one)"])
def test_x_over_one_plus_exp_becomes_the_pair_that_engines_recognise(exponent: str, sum_: str) -> None:
    before = activation(f"{exponent} {sum_} y = Div(x, d)", **ONE, minus=scalar(-1))
    found, after = run_pass("fuse_silu", before)
    assert (found, ops(after)) == (1, ["Sigmoid", "Mul"])
    assert_same(before, after)


@pytest.mark.parametrize("quotient", ["s = Div(one, d) y = Mul(x, s)", "s = Reciprocal(d) y = Mul(s, x)"])
def test_one_over_one_plus_exp_becomes_sigmoid(quotient: str) -> None:
    before = activation(f"{SOFT} {quotient}", **ONE)
    found, after = run_pass("fuse_silu", before)
    assert (found, ops(after)) == (1, ["Sigmoid", "Mul"])
    assert_same(before, after)


@pytest.mark.parametrize(
    "nodes",
    [
        "s = Sigmoid(x) y = Mul(x, s)",
        "s = Sigmoid(x) y = Mul(s, x)",
        "e = Exp(x) d = Add(one, e) y = Div(x, d)",
        "n = Neg(x) e = Exp(n) d = Add(two, e) y = Div(x, d)",
        f"{SOFT} y = Div(d, x)",
        f"{SOFT} y = Div(two, d)",
    ],
)
def test_silu_in_its_usual_form_and_what_only_looks_like_it_stay(nodes: str) -> None:
    assert_untouched("fuse_silu", activation(nodes, **ONE, two=scalar(2)))


@pytest.mark.parametrize(
    "nodes",
    [
        f"{HARD} m = Mul(x, c) y = Div(m, six)",
        f"{HARD} m = Mul(c, x) y = Mul(m, sixth)",
        f"{HARD} h = Div(c, six) y = Mul(x, h)",
        f"{HARD} h = Mul(sixth, c) y = Mul(h, x)",
        "h = HardSigmoid <alpha = 0.16666667, beta = 0.5> (x) y = Mul(h, x)",
    ],
)
def test_every_way_of_writing_hard_swish_becomes_hardswish(nodes: str) -> None:
    before = activation(nodes, **HARD_NUMBERS, sixth=scalar(1 / 6))
    found, after = run_pass("fuse_hardswish", before)
    assert found >= 1
    assert ops(after) == ["HardSwish"]
    assert_same(before, after)


def test_a_clipped_sum_over_its_top_becomes_hardsigmoid() -> None:
    before = activation(f"{HARD} y = Div(c, six)", three=scalar(1.5), six=scalar(4), zero=scalar(0))
    found, after = run_pass("fuse_hardswish", before)
    assert (found, ops(after)) == (1, ["HardSigmoid"])
    assert_same(before, after)


def test_before_opset_14_hard_swish_stays_a_product() -> None:
    before = activation(f"{HARD} h = Div(c, six) y = Mul(x, h)", opset=13, **HARD_NUMBERS)
    found, after = run_pass("fuse_hardswish", before)
    assert (found, ops(after)) == (1, ["HardSigmoid", "Mul"])
    assert_same(before, after)


@pytest.mark.parametrize(
    "nodes",
    [
        f"{HARD} y = Div(c, three)",
        f"{HARD} m = Mul(x, c) y = Div(m, three)",
        "a = Add(x, six) c = Clip(a, zero, six) m = Mul(x, c) y = Div(m, six)",
        "h = HardSigmoid <alpha = 0.2, beta = 0.5> (x) y = Mul(h, x)",
        f"{HARD} r = Relu(x) m = Mul(r, c) y = Div(m, six)",
    ],
)
def test_what_only_looks_like_hard_swish_stays(nodes: str) -> None:
    assert_untouched("fuse_hardswish", activation(nodes, **HARD_NUMBERS))
