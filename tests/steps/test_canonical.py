import logging

import numpy as np
import onnx
import pytest
from fixture_models import activation, assert_same, identities, model, numbers, ops, run, scalar
from onnx import helper

from edgeopt.errors import NotFoundError, UnsupportedError
from edgeopt.graph.model import Model
from edgeopt.steps._canonical import fix_shapes, inline_functions, slim, upgrade_opset


def free() -> Model:
    return model("free (float[batch,3,h,8] image) => (float[batch,3,h,8] y) { a = Relu(image) y = Neg(a) }")


def test_free_dimensions_take_the_given_shape_and_pass_it_on() -> None:
    after = fix_shapes(free(), {"image": (1, 3, 4, 8)})
    assert after.inputs[0].shape == (1, 3, 4, 8)
    assert after.outputs[0].shape == (1, 3, 4, 8)
    assert {info.name for info in after.proto.graph.value_info} == {"a"}


def test_a_free_dimension_that_nothing_fixes_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match=r"input 'image' is free in dimension 0.*\n  -> write the size into"):
        fix_shapes(free(), {})


def test_a_shape_against_the_model_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"input 'image' is .* in the model, not \[1, 3, 4, 9\]"):
        fix_shapes(free(), {"image": (1, 3, 4, 9)})
    with pytest.raises(UnsupportedError, match="not \\[1, 3\\]"):
        fix_shapes(free(), {"image": (1, 3)})


def test_a_shape_for_no_input_is_refused_with_a_guess() -> None:
    with pytest.raises(NotFoundError, match="no input named 'images'\n  -> did you mean 'image'"):
        fix_shapes(free(), {"images": (1, 3, 4, 8)})


def test_an_input_without_any_shape_is_refused_unless_given() -> None:
    before = free()
    before.proto.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(UnsupportedError, match="free in every dimension"):
        fix_shapes(before, {})
    assert fix_shapes(before, {"image": (1, 3, 4, 8)}).outputs[0].shape == (1, 3, 4, 8)


def softmax_of_opset_7() -> Model:
    """Softmax over all axes from 1 on, Dropout and BatchNormalization as opset 7 has them, IR version 3."""
    before = model(
        """old (float[2,3,2,2] x) => (float[2,3,2,2] y) {
            n = BatchNormalization <epsilon = 0.001> (x, p, p, p, p)
            d = Dropout <ratio = 0.5> (n)
            y = Softmax <axis = 1> (d)
        }""",
        opset=7,
        p=np.abs(numbers(3)) + 0.5,
    )
    before.proto.ir_version = 3
    before.proto.graph.input.append(helper.make_tensor_value_info("p", onnx.TensorProto.FLOAT, [3]))
    before.proto.metadata_props.add(key="names", value="cat, dog")
    before.proto.producer_name = "exporter"
    return Model(before.proto, "old")


def test_an_old_model_reaches_opset_17_with_the_same_output_and_metadata() -> None:
    before = softmax_of_opset_7()
    after = upgrade_opset(before, 17)
    assert (after.opset, after.metadata, after.proto.producer_name) == (17, {"names": "cat, dog"}, "exporter")
    assert after.proto.ir_version >= 8
    x = {"x": numbers(2, 3, 2, 2)}
    np.testing.assert_allclose(run(after, x)["y"], run(before, x)["y"], rtol=1e-5)


def test_a_model_that_the_converter_cannot_take_is_refused() -> None:
    before = activation("y = Upsample <height_scale = 1.0, width_scale = 1.0> (x)", opset=1)
    with pytest.raises(ValueError, match=r"^Upsample in opset 1 supports only 4D"):
        upgrade_opset(before, 17)


def test_an_op_that_onnx_never_took_up_is_named_as_the_reason_against_an_upgrade() -> None:
    before = activation("a = ScaledTanh <alpha = 0.5, beta = 0.1> (x) b = ParametricSoftplus(a) y = Relu(b)", opset=9)
    with pytest.raises(ValueError, match=r"^ONNX has no ParametricSoftplus and no ScaledTanh$"):
        upgrade_opset(before, 17)


def with_function() -> Model:
    before = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
        outer (float[2,8] x) => (float[2,8] y) { a = local.twice(x) y = Neg(a) }
        <domain: "local", opset_import: ["" : 17]>
        twice (p) => (q) { q = Add(p, p) }"""
    )
    return Model(before, "outer")


def test_local_functions_are_written_out() -> None:
    before = with_function()
    after = inline_functions(before)
    assert ops(after) == ["Add", "Neg"]
    assert_same(before, after)
    assert inline_functions(after) is after


def test_onnxslim_removes_what_is_the_same_and_prints_nothing(capfd, caplog) -> None:
    before = activation("a = Relu(x) b = Relu(x) c = Mul(a, b) d = Identity(c) y = Neg(d)")
    fingerprint = before.fingerprint
    with caplog.at_level(logging.WARNING):
        after = slim(before)
    assert ops(after) == ["Relu", "Mul", "Neg"]
    assert_same(before, after)
    assert capfd.readouterr() == ("", "")
    assert caplog.text == ""
    assert Model(before.proto, "").fingerprint == fingerprint


def test_onnxslim_leaves_the_fusions_to_the_passes() -> None:
    before = model(
        "conv (float[1,2,4,4] x) => (float[1,2,4,4] y) { c = Conv(x, w) m = Mul(c, s) g = Sigmoid(m) y = Mul(m, g) }",
        w=numbers(2, 2, 1, 1),
        s=numbers(2, 1, 1),
    )
    assert ops(slim(before)) == ["Conv", "Mul", "Sigmoid", "Mul"]


def test_onnxslim_folds_small_constants_only_when_asked() -> None:
    before = activation("a = Exp(p) y = Add(x, a)", p=scalar(2))
    assert ops(slim(before)) == ["Add"]
    assert ops(slim(before, fold=False)) == ["Exp", "Add"]
    large = model(
        "large (float[99,99] x) => (float[99,99] y) { a = Expand(p, s) y = Add(x, a) }",
        p=scalar(2),
        s=np.array([99, 99]),
    )
    assert ops(slim(large)) == ["Expand", "Add"]


def test_a_model_that_onnxslim_robs_of_an_input_is_refused() -> None:
    before = model("spare (float[2] x, float[2] unused) => (float[2] y) { y = Relu(x) }")
    with pytest.raises(ValueError, match="inputs or outputs"):
        slim(before)


def test_slimming_keeps_every_number() -> None:
    before = identities()
    assert_same(before, slim(before))
