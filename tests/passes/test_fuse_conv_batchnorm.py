import numpy as np
import pytest
from fixture_models import (
    assert_same,
    assert_untouched,
    conv_batchnorm,
    conv_transpose_batchnorm,
    model,
    numbers,
    ops,
    run,
    run_pass,
    shared_weight,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

NAME = "fuse_conv_batchnorm"


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_conv_and_batchnorm_become_one_conv_with_the_same_output(bias: bool, groups: int) -> None:
    before = conv_batchnorm(bias=bias, groups=groups)
    found, after = run_pass(NAME, before)
    assert (found, ops(after)) == (1, ["Conv"])
    assert len(after.proto.graph.initializer) == 2, "the parameters of the batch normalization are gone"
    assert_same(before, after)


@pytest.mark.parametrize("groups", [1, 2])
def test_batchnorm_after_a_transposed_conv_is_folded_along_its_own_channel_axis(groups: int) -> None:
    before = conv_transpose_batchnorm(groups=groups)
    found, after = run_pass(NAME, before)
    assert (found, ops(after)) == (1, ["ConvTranspose"])
    assert_same(before, after)


def test_convs_that_share_a_weight_each_get_their_own() -> None:
    before = shared_weight()
    found, after = run_pass(NAME, before)
    assert (found, ops(after)) == (2, ["Conv", "Conv"])
    assert len({node.input[1] for node in after.proto.graph.node}) == 2
    assert_same(before, after)


def test_a_conv_that_something_else_reads_keeps_its_batchnorm() -> None:
    before = conv_batchnorm()
    before.proto.graph.node.add(op_type="Relu", input=["c"], output=["other"])
    before.proto.graph.output.add().CopyFrom(before.proto.graph.output[0])
    before.proto.graph.output[1].name = "other"
    assert_untouched(NAME, before)


def test_a_conv_that_is_an_output_keeps_its_batchnorm() -> None:
    before = conv_batchnorm()
    before.proto.graph.output.add().CopyFrom(before.proto.graph.output[0])
    before.proto.graph.output[1].name = "c"
    assert_untouched(NAME, before)


def test_batchnorm_in_training_mode_stays() -> None:
    before = conv_batchnorm()
    before.proto.graph.node[1].attribute.add(name="training_mode", type=2, i=1)
    before.proto.graph.node[1].output.extend(["running_mean", "running_var"])
    found, _ = run_pass(NAME, before)
    assert found == 0


def test_a_weight_that_is_computed_stays() -> None:
    parameters = {name: np.abs(numbers(8, seed=i)) for i, name in enumerate(("g", "s", "m", "v"))}
    before = model(
        """computed (float[1,4,6,6] x, float[8,4,3,3] w) => (float[1,8,4,4] y) {
            c = Conv(x, w)
            y = BatchNormalization(c, g, s, m, v)
        }""",
        **parameters,
    )
    assert_untouched(NAME, before)


def test_a_variance_that_makes_the_scale_infinite_stays() -> None:
    before = conv_batchnorm()
    for attribute in before.proto.graph.node[1].attribute:
        attribute.f = 0.0
    for tensor in before.proto.graph.initializer:
        if tensor.name == "var":
            tensor.raw_data = bytes(4 * 8)
    assert run_pass(NAME, before)[0] == 0


channel = hnp.arrays(np.float32, 8, elements=st.floats(-4, 4, width=32))
spread = hnp.arrays(np.float32, 8, elements=st.floats(0.125, 16, width=32))


@settings(max_examples=25, deadline=None)
@given(gamma=channel, beta=channel, mean=channel, var=spread, groups=st.sampled_from([1, 2, 4]))
def test_folding_is_exact_for_any_statistics(gamma, beta, mean, var, groups) -> None:
    before = conv_batchnorm(groups=groups)
    for tensor in before.proto.graph.initializer:
        if tensor.name in (named := {"gamma": gamma, "beta": beta, "mean": mean, "var": var}):
            tensor.raw_data = named[tensor.name].tobytes()
    x = {"x": numbers(1, 4, 6, 6, seed=5)}
    expected, actual = run(before, x)["y"], run(run_pass(NAME, before)[1], x)["y"]
    assert np.abs(expected - actual).max() <= 1e-5 * max(1.0, np.abs(expected).max())
