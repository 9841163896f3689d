"""A model in a device's own words: float32, fixed shapes, the rewrites its target asks for and no others."""

from __future__ import annotations

import numpy as np
import pytest
from fixture_models import GELU, GELU_NUMBERS, activation, adapt, model, numbers, ops, run

from edgeopt.errors import NotFoundError, StepError
from edgeopt.steps._float32 import make_float32
from edgeopt.steps.fuse import fuse
from edgeopt.system.declared.target import find_target

V73 = find_target("qualcomm-htp-v73")
CPU = find_target("cpu-x86-vnni")


def gelu():
    return activation(f"{GELU} m = Mul(x, a) y = Mul(m, half)", opset=20, **GELU_NUMBERS)


def double(nodes: str = "c = MatMul(x, w) y = Relu(c)"):
    return model(
        f"double_precision (double[2,8] x) => (double[2,8] y) {{ {nodes} }}", w=numbers(8, 8).astype(np.float64)
    )


def test_a_target_gets_the_rewrites_it_asks_for():
    outcome = fuse(gelu(), rewrites=V73.rewrites)
    assert outcome.changes == {"fuse_gelu": 1}
    assert ops(outcome.model) == ["Gelu"]


def test_a_target_that_asks_for_none_gets_the_model_as_it_is():
    before = gelu()
    assert fuse(before, rewrites=CPU.rewrites).model is before


def test_a_rewrite_that_does_not_exist_is_named():
    with pytest.raises(NotFoundError, match="did you mean 'fuse_gelu'"):
        fuse(gelu(), rewrites=("fuse_gelo",))


def test_float64_becomes_float32_from_input_to_output():
    before = double()
    outcome = make_float32(before)
    assert {one.dtype for one in (*outcome.model.inputs, *outcome.model.outputs)} == {"float32"}
    assert outcome.changes == {"make_float32": 3}
    assert "float64" in outcome.notes[0].detail
    x = np.random.default_rng(0).normal(size=(2, 8))
    expected = run(before, {"x": x})["y"]
    np.testing.assert_allclose(run(outcome.model, {"x": x.astype(np.float32)})["y"], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "nodes",
    [
        "f = Cast <to = 1> (x) d = Cast <to = 11> (f) y = Relu(d)",
        "c = Constant <value = double[1] {2.0}> () y = Mul(x, c)",
    ],
)
def test_casts_and_constants_follow(nodes):
    outcome = make_float32(double(nodes))
    assert run(outcome.model, {"x": np.ones((2, 8), np.float32)})["y"].dtype == np.float32


def test_a_model_without_float64_comes_back_as_it_is():
    before = gelu()
    assert make_float32(before).model is before


def test_a_model_that_needs_the_digits_is_refused():
    needs = model(
        "digits (double[2,8] x) => (double[2,8] y) { a = Add(x, large) y = Sub(a, large) }",
        large=np.array(1e12, np.float64),
    )
    with pytest.raises(StepError, match="cannot run in float32"):
        make_float32(needs)


def test_all_together_gives_what_the_device_wants():
    before = model(
        f"free (double[n,8] x) => (double[n,8] y) {{ {GELU} m = Mul(x, a) y = Mul(m, half) }}",
        **{name: number.astype(np.float64) for name, number in GELU_NUMBERS.items()},
    )
    inputs = [{"x": np.random.default_rng(1).normal(size=(1, 8))}]
    outcome = adapt(before, V73, {"x": (1, 8)}, inputs)
    assert ops(outcome.model) == ["Gelu"]
    assert outcome.model.inputs[0].shape == (1, 8)
    assert outcome.model.opset == 21
