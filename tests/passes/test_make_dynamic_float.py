from pathlib import Path

import numpy as np
import onnx
import pytest
from fixture_models import assert_same, assert_untouched, dynamic_conv, inputs_of, model, numbers, ops, run, run_pass
from onnx import numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

from edgeopt.graph.model import Model, load_model, save_model

NAME = "make_dynamic_float"


def small_cnn() -> Model:
    """Two convolutions, one of them grouped, with biases, and a product."""
    return model(
        """cnn (float[1,4,12,12] x) => (float[1,5] y) {
            a = Conv <pads = [1,1,1,1], strides = [2,2]> (x, w, b)
            r = Relu(a)
            c = Conv <group = 2> (r, v, d)
            g = GlobalAveragePool(c)
            f = Flatten(g)
            y = MatMul(f, m)
        }""",
        w=numbers(8, 4, 3, 3) * 0.2,
        b=numbers(8, seed=1),
        v=numbers(8, 4, 3, 3, seed=2) * 0.2,
        d=numbers(8, seed=3),
        m=numbers(8, 5, seed=4),
    )


def with_weights_of(rounded: Model, before: Model) -> Model:
    """Return a float model with the numbers that the integer weights of another stand for, layer for layer."""
    stored = {one.name: numpy_helper.to_array(one) for one in rounded.proto.graph.initializer}
    after = onnx.ModelProto.FromString(before.data)
    for one in after.graph.initializer:
        if f"{one.name}_quantized" in stored and one.name in ("w", "v"):
            offset = stored[f"{one.name}_zero_point"].astype(np.float32)
            real = (stored[f"{one.name}_quantized"].astype(np.float32) - offset) * stored[f"{one.name}_scale"]
            one.CopyFrom(numpy_helper.from_array(real.astype(np.float32), one.name))
    return Model(after, "weights")


@pytest.mark.parametrize("kind", [QuantType.QInt8, QuantType.QUInt8])
def test_convolutions_of_onnxruntime_s_tool_compute_with_the_numbers_of_their_weights(kind, tmp_path: Path) -> None:
    float_model = small_cnn()
    save_model(float_model, tmp_path / "float.onnx")
    quantize_dynamic(tmp_path / "float.onnx", tmp_path / "int8.onnx", weight_type=kind)
    before = load_model(tmp_path / "int8.onnx")
    found, after = run_pass(NAME, before)
    assert (found, after.op_counts["Conv"], after.op_counts["MatMulInteger"]) == (2, 2, 1)
    assert "ConvInteger" not in after.op_counts
    inputs = inputs_of(float_model)
    expected = run(with_weights_of(before, float_model), inputs)["y"]  # the product behind still rounds
    assert np.abs(run(after, inputs)["y"] - expected).max() < 0.02 * np.abs(expected).max()
    assert np.abs(run(after, inputs)["y"] - run(float_model, inputs)["y"]).max() < 0.05 * np.abs(expected).max()


def test_without_other_rounding_the_numbers_are_exactly_those_of_the_weights(tmp_path: Path) -> None:
    float_model = model(
        "one (float[1,4,8,8] x) => (float[1,6,6,6] y) { y = Conv(x, w, b) }", w=numbers(6, 4, 3, 3), b=numbers(6)
    )
    save_model(float_model, tmp_path / "float.onnx")
    quantize_dynamic(tmp_path / "float.onnx", tmp_path / "int8.onnx", weight_type=QuantType.QUInt8)
    before = load_model(tmp_path / "int8.onnx")
    inputs, after = inputs_of(float_model), run_pass(NAME, before)[1]
    expected = run(with_weights_of(before, float_model), inputs)["y"]
    np.testing.assert_allclose(run(after, inputs)["y"], expected, rtol=1e-5, atol=1e-5)


def test_products_stay_because_integers_are_faster_there(tmp_path: Path) -> None:
    save_model(model("p (float[2,8] x) => (float[2,5] y) { y = MatMul(x, w) }", w=numbers(8, 5)), tmp_path / "p.onnx")
    quantize_dynamic(tmp_path / "p.onnx", tmp_path / "q.onnx")
    assert run_pass(NAME, load_model(tmp_path / "q.onnx"))[0] == 0


def test_a_scale_for_each_channel_scales_that_channel_s_weights() -> None:
    before = dynamic_conv(scale=np.abs(numbers(1, 6, 1, 1)) + 0.01)
    found, after = run_pass(NAME, before)
    assert (found, ops(after)) == (1, ["Sign", "Relu", "Conv", "Add"])
    assert_same(before, after)


ROUNDED = """e = Mul(ds, ws)
            u = Div(b, e)
            v = Floor(u)
            n = Cast <to = 6> (v)
            t = Add(c, n)"""
"""A bias in the steps of the sums, as older versions of the tool write it."""


def test_a_bias_that_was_rounded_to_the_steps_of_the_sums_is_added_as_it_was() -> None:
    found, after = run_pass(NAME, dynamic_conv(bias=ROUNDED))
    assert (found, ops(after)) == (1, ["Sign", "Relu", "Conv", "Add", "Add"])
    bare = dynamic_conv()
    inputs = inputs_of(bare)
    expected = run(bare, inputs)["y"] + numbers(6, 1, 1)
    np.testing.assert_allclose(run(after, inputs)["y"], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "other",
    [
        {"scale": np.full((4, 4), 0.1, np.float32)},
        {"bias": "t = Add(c, c)"},
        {"bias": ROUNDED.replace("Mul(ds, ws)", "Add(ds, ws)")},
    ],
    ids=["a scale for each pixel", "no bias", "another step"],
)
def test_other_forms_stay(other) -> None:
    assert_untouched(NAME, dynamic_conv(**other))
