import numpy as np
import pytest
from fixture_models import (
    assert_same,
    assert_untouched,
    conv_after,
    conv_then,
    model,
    numbers,
    ops,
    run_pass,
    scalar,
)

NAME = "fuse_conv_affine"
PER_CHANNEL = numbers(8, 1, 1, seed=3)


@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("constant", [PER_CHANNEL, PER_CHANNEL[None], scalar(3), scalar(3).reshape(1, 1)])
@pytest.mark.parametrize(
    "node", ["y = Mul(c, s)", "y = Mul(s, c)", "y = Add(c, s)", "y = Sub(c, s)", "y = Sub(s, c)", "y = Div(c, s)"]
)
def test_arithmetic_after_a_conv_disappears_into_it(node: str, constant: np.ndarray, groups: int) -> None:
    before = conv_then(node, groups=groups, s=constant)
    found, after = run_pass(NAME, before)
    assert (found, ops(after)) == (1, ["Conv"])
    assert_same(before, after)


def test_a_chain_after_a_conv_disappears_whole() -> None:
    before = conv_then("m = Mul(c, s) a = Add(m, t) y = Div(a, u)", s=PER_CHANNEL, t=PER_CHANNEL, u=scalar(7))
    found, after = run_pass(NAME, before)
    assert (found, ops(after)) == (3, ["Conv"])
    assert_same(before, after)


def test_a_transposed_conv_is_scaled_along_its_own_channel_axis() -> None:
    before = model(
        """transposed (float[1,4,3,3] x) => (float[1,6,6,6] y) {
            c = ConvTranspose <group = 2, strides = [2,2]> (x, w, b)
            m = Mul(c, s)
            y = Add(m, s)
        }""",
        w=numbers(4, 3, 2, 2),
        b=numbers(6, seed=1),
        s=numbers(6, 1, 1, seed=2),
    )
    found, after = run_pass(NAME, before)
    assert (found, ops(after)) == (2, ["ConvTranspose"])
    assert_same(before, after)


@pytest.mark.parametrize("groups", [1, 2])
def test_normalization_before_an_unpadded_conv_disappears_into_it(groups: int) -> None:
    mean, deviation = numbers(4, 1, 1, seed=4), np.abs(numbers(1, 4, 1, 1, seed=5)) + 1
    before = conv_after("d = Sub(x, m) a = Div(d, s)", groups=groups, m=mean, s=deviation)
    found, after = run_pass(NAME, before)
    assert (found, ops(after)) == (2, ["Conv"])
    assert_same(before, after)


def test_a_constant_minus_the_input_before_an_unpadded_conv_disappears() -> None:
    before = conv_after("a = Sub(m, x)", m=numbers(4, 1, 1))
    found, after = run_pass(NAME, before)
    assert (found, ops(after)) == (1, ["Conv"])
    assert_same(before, after)


def test_a_pure_scale_before_a_padded_conv_disappears_into_it() -> None:
    before = conv_after("a = Mul(x, s)", pad=1, s=numbers(4, 1, 1))
    found, after = run_pass(NAME, before)
    assert (found, ops(after)) == (1, ["Conv"])
    assert_same(before, after)


@pytest.mark.parametrize("node", ["a = Add(x, s)", "a = Sub(x, s)", "a = Sub(s, x)"])
def test_a_shift_before_a_padded_conv_stays_because_padding_is_not_shifted(node: str) -> None:
    assert_untouched(NAME, conv_after(node, pad=1, s=numbers(4, 1, 1)))


@pytest.mark.parametrize(
    "shape", [(6,), (6, 1), (8, 6, 6), (1, 1, 1, 1, 1)], ids=["width", "height", "elements", "five dimensions"]
)
def test_a_constant_that_is_not_per_channel_stays(shape: tuple[int, ...]) -> None:
    before = conv_then("m = Mul(c, s) y = Reshape(m, as)", s=numbers(*shape), **{"as": np.array([1, 8, 6, 6])})
    assert run_pass(NAME, before)[0] == 0


@pytest.mark.parametrize("node", ["y = Div(s, c)", "y = Div(c, z)", "y = Mul(c, c)"])
def test_what_is_not_affine_stays(node: str) -> None:
    assert run_pass(NAME, conv_then(node, s=PER_CHANNEL, z=scalar(0)))[0] == 0


def test_a_constant_that_widens_the_channels_before_a_conv_stays() -> None:
    before = model(
        "widen (float[1,1,4,4] x) => (float[1,2,4,4] y) { a = Mul(x, s) y = Conv(a, w) }",
        s=numbers(3, 1, 1),
        w=numbers(2, 3, 1, 1),
    )
    assert_untouched(NAME, before)


def test_a_conv_that_is_an_output_stays_as_it_is() -> None:
    before = conv_then("y = Mul(c, s)", s=PER_CHANNEL)
    before.proto.graph.output.add().CopyFrom(before.proto.graph.output[0])
    before.proto.graph.output[1].name = "c"
    assert_untouched(NAME, before)


def test_a_value_that_two_convs_read_keeps_its_scale() -> None:
    before = model(
        """fork (float[1,4,4,4] x) => (float[1,2,4,4] y, float[1,2,4,4] z) {
            a = Mul(x, s)
            y = Conv(a, w)
            z = Conv(a, w)
        }""",
        s=numbers(4, 1, 1),
        w=numbers(2, 4, 1, 1),
    )
    assert_untouched(NAME, before)
