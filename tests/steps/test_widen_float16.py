"""A float16 model on a processor without float16: float32 inside, the same types outside, and INT8 of its layers."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from fixture_models import model, numbers, ops, run

from edgeopt.steps._widen_float16 import widen_float16
from edgeopt.steps.quantize.api import is_quantizable
from edgeopt.steps.simplify import simplify
from edgeopt.system.declared.target import find_target

RULES = find_target("cpu-x86-vnni").int8


def half(nodes: str, kind: str = "float16"):
    weights = numbers(8, 8).astype(np.float16)
    return model(f"half_precision ({kind}[2,8] x) => ({kind}[2,8] y) {{ {nodes} }}", w=weights)


@pytest.mark.parametrize(
    ("nodes", "kind", "casts"),
    [
        ("c = MatMul(x, w) y = Relu(c)", "float16", 2),
        ("h = Cast <to = 10> (x) c = MatMul(h, w) r = Relu(c) y = Cast <to = 1> (r)", "float", 2),
        # 16384: the bits of 2.0
        ("c = Constant <value = float16[1] {16384}> () m = MatMul(x, w) y = Mul(m, c)", "float16", 2),
        ("y = MatMul(x, w) unused = Relu(y)", "float16", 2),
    ],
)
def test_weights_and_what_is_computed_with_them_become_float32(nodes, kind, casts):
    before = half(nodes, kind)
    outcome = widen_float16(before)
    assert outcome.changes == {"widen_float16": 1}
    assert "1 weight in float16 became float32" in outcome.notes[0].detail
    assert [one.dtype for one in outcome.model.inputs] == [one.dtype for one in before.inputs]
    assert [one.dtype for one in outcome.model.outputs] == [one.dtype for one in before.outputs]
    assert ops(outcome.model).count("Cast") == casts
    x = numbers(2, 8).astype(before.inputs[0].dtype)
    after = run(outcome.model, {"x": x})["y"]
    assert after.dtype == x.dtype
    np.testing.assert_allclose(after, run(before, {"x": x})["y"], rtol=1e-2, atol=1e-2)


def test_float32_weights_behind_casts_become_float32_without_them():
    before = model(
        "cast_weights (float[2,8] x) => (float[2,8] y) { h = Cast <to = 10> (x) v = Cast <to = 10> (w) "
        "c = MatMul(h, v) r = Relu(c) y = Cast <to = 1> (r) }",
        w=numbers(8, 8),
    )
    outcome = simplify(before, {}, float16=False)
    assert outcome.changes["widen_float16"] == 1
    assert ops(outcome.model) == ["MatMul", "Relu"]
    assert "widen_float16" not in simplify(before, {}).changes


def test_branches_read_the_widened_input():
    before = half(
        "s = ReduceSum <keepdims = 0> (x) zero = Constant <value = float16 {0}> () asked = Greater(s, zero) "
        "y = If (asked) <then_branch = a () => (float16[2,8] p) { p = MatMul(x, w) }, "
        "else_branch = b () => (float16[2,8] q) { q = Neg(x) }>"
    )
    outcome = widen_float16(before)
    assert outcome.changes == {"widen_float16": 1}
    for sign in (1, -1):
        x = (sign * np.abs(numbers(2, 8))).astype(np.float16)
        expected = run(before, {"x": x})["y"]
        np.testing.assert_allclose(run(outcome.model, {"x": x})["y"], expected, rtol=1e-2, atol=1e-2)


def test_bfloat16_weights_behind_casts_become_float32():
    weights = numbers(8, 8).astype(ml_dtypes.bfloat16)
    text = "brain (float[2,8] x) => (float[2,8] y) { v = Cast <to = 1> (w) c = MatMul(x, v) y = Relu(c) }"
    before = model(text, w=weights)
    outcome = simplify(before, {}, float16=False)
    assert "1 weight in bfloat16 became float32" in outcome.notes[0].detail
    assert ops(outcome.model) == ["MatMul", "Relu"]
    np.testing.assert_allclose(run(outcome.model, {"x": numbers(2, 8)})["y"], run(before, {"x": numbers(2, 8)})["y"])
    assert is_quantizable(outcome.model, RULES)
    assert not is_quantizable(before, RULES)


def test_a_model_without_float16_weights_stays():
    before = model("plain (float[2,8] x) => (float[2,8] y) { y = MatMul(x, w) }", w=numbers(8, 8))
    assert widen_float16(before).model is before


def test_a_layer_runs_on_integers_behind_simplify_alone_where_the_processor_has_no_float16():
    before = half("c = MatMul(x, w) y = Relu(c)")
    assert not is_quantizable(before, RULES)
    assert not is_quantizable(simplify(before, {}).model, RULES)
    assert is_quantizable(simplify(before, {}, float16=False).model, RULES)
