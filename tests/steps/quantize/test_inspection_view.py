from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from encoders import encoder
from onnx import helper
from small_nets import HERE, Net, detector, frames, mobile, residual, residual_batchnorm, sqnr_db, vision_transformer

from edgeopt.cli import cli
from edgeopt.errors import UnsupportedError
from edgeopt.graph.model import Model, find_model, load_model, save_model
from edgeopt.steps.convert.weight_only import make_weight_only
from edgeopt.steps.fuse import fuse
from edgeopt.steps.quantize.api import Form, open_graph, quantize
from edgeopt.steps.quantize.calibration.findings import study
from edgeopt.steps.quantize.inspection.tensors import QuantizedTensor, read_tensors
from edgeopt.steps.quantize.inspection.view import measure_tensors, view_quantized
from edgeopt.steps.quantize.repairs.equalization import equalize
from edgeopt.system.declared.target import Int8Rules


@pytest.fixture(scope="module", params=[Form.QDQ, Form.NHWC])
def made(request: pytest.FixtureRequest) -> Model:
    model = detector()
    return quantize(model, frames(model), HERE, form=request.param).model


def test_every_weight_has_a_scale_a_channel_and_every_activation_one(made: Model) -> None:
    tensors = read_tensors(made)
    weights = [one for one in tensors if one.is_weight and one.dtype == "int8"]
    activations = [one for one in tensors if not one.is_weight]
    assert len(weights) >= 6
    assert {one.granularity for one in activations} == {"per tensor"}
    assert all(one.granularity.endswith("channels") for one in weights)
    assert all(scale > 0 for one in tensors for scale in one.scales)
    assert {one.dtype for one in activations} == {"uint8"}


def test_errors_on_pictures_are_those_of_a_good_grid(made: Model) -> None:
    model = detector()
    measured = measure_tensors(made, read_tensors(made), list(frames(model, 3)), None)
    scored = [one for one in measured if one.sqnr_db is not None]
    assert len(scored) >= 5
    assert all(8 < one.sqnr_db <= 120 for one in scored)  # grids chosen behind a SiLU clip below it
    assert all(one.saturated_ratio < 0.15 for one in scored)


def test_a_grid_that_is_too_small_saturates_and_comes_first(made: Model) -> None:
    model, spoilt = detector(), Model(made.proto.__class__.FromString(made.data), "spoilt")
    first = next(node for node in spoilt.proto.graph.node if node.op_type == "QuantizeLinear")
    name = first.input[1]
    scale = next(one for one in spoilt.proto.graph.initializer if one.name == name)
    value = np.frombuffer(scale.raw_data, np.float32)
    scale.raw_data = (value / 20).astype(np.float32).tobytes()
    inputs = list(frames(model, 2))
    before, after = (
        {one.name: one for one in measure_tensors(each, read_tensors(each), inputs, None)}[first.output[0]]
        for each in (made, spoilt)
    )
    assert before.saturated_ratio < 0.05 < 0.3 < after.saturated_ratio
    assert after.sqnr_db < 10 < before.sqnr_db


def test_integers_between_integers_are_compared_with_the_float_model() -> None:
    model = detector()
    made = quantize(model, frames(model), HERE, form=Form.NHWC).model
    inputs = list(frames(model, 2))
    alone = measure_tensors(made, read_tensors(made), inputs, None)
    beside = measure_tensors(made, read_tensors(made), inputs, model)
    convolved = [one.name for one in alone if "_QLinearConv_output" in one.name]
    assert convolved
    told = {one.name: one for one in beside}
    assert all(one.sqnr_db is None for one in alone if one.name in convolved)
    assert all(told[name].sqnr_db is not None and told[name].sqnr_db > 10 for name in convolved)


def _activations(model: Model, source: Model, against: Model | None) -> list[QuantizedTensor]:
    tensors = measure_tensors(model, read_tensors(model), list(frames(source, 2)), against)
    return [one for one in tensors if not one.is_weight]


@pytest.mark.parametrize("form", [Form.QDQ, Form.NHWC])
@pytest.mark.parametrize("make", [residual, mobile])
def test_a_relu_that_the_grid_replaces_is_no_error_of_a_good_model(make: Callable[[], Model], form: Form) -> None:
    model = make()
    made = quantize(model, frames(model), HERE, form=form).model
    assert sqnr_db(made, model) > 25
    beside, alone = (_activations(made, model, against) for against in (model, None))
    assert all(one.sqnr_db is not None and one.sqnr_db > 20 for one in beside)
    assert all(one.saturated_ratio < 0.01 for one in (*beside, *alone))  # the zeros that a Relu makes are inside
    assert all(one.sqnr_db is None or one.sqnr_db > 30 for one in alone)


def test_a_relu_that_the_integer_model_forgets_is_an_error() -> None:
    net = Net()
    first = net.conv("x", 3, 8, 3)
    model = net.model(net.conv(net.op("Relu", first), 8, 4))
    made = quantize(model, frames(model), Int8Rules(ops=("Conv",))).model
    broken = onnx.ModelProto()
    broken.CopyFrom(made.proto)
    relu = next(node for node in broken.graph.node if node.op_type == "Relu")
    reader = next(node for node in broken.graph.node if relu.output[0] in node.input)
    reader.input[0], reader.name = relu.input[0], "of negative numbers too"
    broken.graph.node.remove(relu)
    for one in broken.graph.initializer:
        if one.name == reader.input[2]:
            one.raw_data = np.uint8(128).tobytes()
    told = {one.name: one for one in _activations(Model(broken, "broken"), model, model)}
    assert told[reader.output[0]].sqnr_db < 8


@pytest.mark.parametrize("form", [Form.QDQ, Form.NHWC])
def test_integers_are_compared_with_a_float_model_whose_normalisations_are_not_folded_yet(form: Form) -> None:
    original = residual_batchnorm()
    folded = fuse(original, list(frames(original, 1))).model
    assert "BatchNormalization" not in folded.op_counts
    made = quantize(folded, frames(folded), HERE, form=form).model
    told = _activations(made, original, original)
    assert all(one.sqnr_db is not None and one.sqnr_db > 20 for one in told)


def test_a_tensor_that_the_original_has_only_after_it_was_prepared_is_found_there() -> None:
    net = Net()
    x = net.conv("x", 3, 8, 3)
    root, half, one = (net.constant(name, np.float32(n)) for name, n in (("root", 2**0.5), ("half", 0.5), ("one", 1)))
    erf = net.op("Add", net.op("Erf", net.op("Div", x, root)), one)
    x = net.op("Mul", net.op("Mul", x, half), erf)
    model = net.model(net.conv(net.op("Relu", net.conv(x, 8, 8)), 8, 4))
    made = quantize(fuse(model).model, frames(model), HERE).model
    renamed = onnx.ModelProto.FromString(made.data.replace(b"conv_0", b"Conv_0"))  # what no original knows
    told = _activations(Model(renamed, "renamed"), model, model)
    assert [one.compared_with for one in told if "Conv_0" in one.name] == [None]
    assert all(one.sqnr_db > 20 for one in told if "Conv_0" not in one.name)


def test_a_tensor_scaled_channel_by_channel_has_no_score_rather_than_a_wrong_one() -> None:
    model = residual()
    graph = open_graph(model)
    findings = study(model, graph, frames(model), HERE)
    assert equalize(graph, findings.calibration.observations) == 2
    made = quantize(graph.to_model(), frames(model), HERE, form=Form.NHWC).model
    told = _activations(made, model, model)
    scaled = [one for one in told if one.sqnr_db is None]
    assert [one.name for one in scaled] == ["conv_2_QLinearConv_output_0", "conv_7_QLinearConv_output_0"]
    assert all(one.compared_with is None and one.saturated_ratio < 0.01 for one in scaled)
    assert all(one.sqnr_db > 20 for one in told if one not in scaled)


def _by_onnxruntime(model: Model, form: str, folder: Path) -> Model:
    from onnxruntime import quantization as tool

    class Reader(tool.CalibrationDataReader):
        def __init__(self) -> None:
            self.left = frames(model)

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.left, None)

    save_model(model, folder / "float.onnx")
    files = folder / "float.onnx", folder / "int8.onnx"
    kept = {"per_channel": True, "reduce_range": HERE.reduce_range}
    if form == "dynamic":
        tool.quantize_dynamic(*files, **kept)
    else:
        tool.quantize_static(*files, Reader(), quant_format=tool.QuantFormat[form], **kept)
    return load_model(files[1])


@pytest.mark.parametrize("form", ["QDQ", "QOperator", "dynamic"])
@pytest.mark.parametrize("make", [residual_batchnorm, mobile, vision_transformer])
def test_models_of_onnx_runtimes_own_quantizer_are_read(make: Callable[[], Model], form: str, tmp_path: Path) -> None:
    model = make()
    made = _by_onnxruntime(model, form, tmp_path)
    weights = [one for one in read_tensors(made) if one.is_weight and one.dtype in ("int8", "uint8")]
    products = [node.input[1] for node in model.proto.graph.node if node.op_type in ("Conv", "MatMul")]
    stored = {one.name for one in model.proto.graph.initializer} & set(products)
    assert {f"{name}_quantized" for name in stored} <= {one.name for one in weights}
    assert all(one.scales for one in weights)
    told = _activations(made, model, model)
    assert len(told) >= 5
    assert all(one.sqnr_db is not None and one.sqnr_db > 18 for one in told)
    assert {one.granularity for one in told} == {"at run time" if form == "dynamic" else "per tensor"}
    assert all(one.saturated_ratio < 0.1 for one in told)


def test_grids_in_constant_nodes_are_read_like_those_in_initializers(made: Model) -> None:
    proto = onnx.ModelProto()
    proto.CopyFrom(made.proto)
    moved = [one for one in proto.graph.initializer if "scale" in one.name or "zero_point" in one.name]
    constants = [helper.make_node("Constant", [], [one.name], value=one) for one in moved]
    for one in moved:
        proto.graph.initializer.remove(one)
    nodes = [*constants, *proto.graph.node]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    assert read_tensors(Model(proto, "constants")) == read_tensors(made)


def test_matrices_in_blocks_are_shown_with_the_range_of_their_scales(tmp_path: Path) -> None:
    save_model(make_weight_only(encoder(side=2, patch=8, depth=1), 4).model, tmp_path / "w4.onnx")
    tensors = view_quantized(str(tmp_path / "w4.onnx")).tensors
    assert len(tensors) >= 6
    assert all(one.is_weight and one.dtype == "uint4" and one.zero_points == (8,) for one in tensors)
    assert all(one.granularity.endswith("blocks of 32") and one.scales[0] < one.scales[1] for one in tensors)


def test_zero_points_of_four_bits_are_unpacked() -> None:
    text = """<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]> net (float[1,40] x) => (float[1,2] y)
    <float[2,2] s = {0.5, 1.5, 2, 1}, uint8[2,1] z = {117, 166}> {
        y = com.microsoft.MatMulNBits <K = 40, N = 2, bits = 4, block_size = 32> (x, w, s, z)
    }"""
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros((2, 2, 16), np.uint8), "w"))
    (one,) = read_tensors(Model(proto, "net"))
    assert (one.dtype, one.scales, one.zero_points) == ("uint4", (0.5, 2.0), (5, 10))
    assert one.granularity == "4 blocks of 32"


def test_embeddings_in_blocks_are_read() -> None:
    text = """<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]> net (int64[1] i) => (float[1,32] y)
    <float[2,2] s = {0.5, 0.25, 2, 1}> {
        y = com.microsoft.GatherBlockQuantized <bits = 8, block_size = 16, quantize_axis = 1> (w, i, s)
    }"""
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros((2, 32), np.uint8), "w"))
    (one,) = read_tensors(Model(proto, "net"))
    assert (one.dtype, one.scales, one.zero_points, one.is_weight) == ("uint8", (0.25, 2.0), (128,), True)
    assert one.granularity == "4 blocks of 16"


def test_a_float_model_of_other_inputs_is_refused(digits: Path, tmp_path: Path) -> None:
    from edgeopt.recipes.recipe import find_recipe

    save_model(residual(), tmp_path / "other.onnx")
    calib = str(find_recipe("digits_detector").folder / "calib")
    with pytest.raises(UnsupportedError, match="other takes x, digits takes images") as caught:
        view_quantized(str(digits), calib=calib, against=str(tmp_path / "other.onnx"), recipe="digits_detector")
    assert "--float" in caught.value.remedy


def test_a_weight_that_the_model_itself_rounds_is_a_weight() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> net (float[1,2] x) => (float[1,2] y)
    <float[2,2] w = {1, 2, 3, 4}, float[2] s = {0.1, 0.2}, int8[2] z = {0, 0}, int32[2] b = {1, 2}, float t = {0.5}> {
        a = QuantizeLinear <axis = 1> (w, s, z) c = DequantizeLinear <axis = 1> (a, s, z) d = DequantizeLinear (b, t)
        e = MatMul (x, c) y = Add (e, d) }"""
    made = {one.name: one for one in read_tensors(Model(onnx.parser.parse_model(text), "net"))}
    assert made["a"].is_weight
    assert (made["a"].dtype, made["a"].granularity) == ("int8", "2 channels")
    assert (made["b"].dtype, made["b"].zero_points, made["b"].is_weight) == ("int32", (0,), True)


def test_a_float_model_is_refused_with_the_remedy() -> None:
    with pytest.raises(UnsupportedError, match="holds no integer tensors") as caught:
        view_quantized("digits_detector")
    assert "edgeopt quantize" in caught.value.remedy


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from edgeopt.measurement.accuracy.evaluate import model_inputs
    from edgeopt.recipes.inputs.frames import open_frames
    from edgeopt.recipes.recipe import find_recipe
    from edgeopt.recipes.recognise import choose_recipe
    from edgeopt.steps.fuse import fuse
    from edgeopt.steps.simplify import simplify
    from edgeopt.tasks.detection import TASK

    path = find_model("digits_detector")
    model = load_model(path)
    recipe = choose_recipe(None, path, model.inputs, model.outputs, model.metadata).recipe
    pictures = open_frames(find_recipe("digits_detector").folder / "calib").spread(4)
    inputs = list(model_inputs(TASK(recipe, model.inputs, model.outputs, True), pictures))
    ready = fuse(simplify(model, {}, inputs).model, inputs).model
    out = tmp_path_factory.mktemp("view") / "digits.onnx"
    save_model(quantize(ready, inputs, HERE).model, out)
    return out


def test_the_command_shows_the_worst_tensor_first(digits: Path) -> None:
    from edgeopt.recipes.recipe import find_recipe

    calib = str(find_recipe("digits_detector").folder / "calib")
    shown = CliRunner().invoke(
        cli, ["inspect", str(digits), "--quantized", "--calib", calib, "-r", "digits_detector", "--json"]
    )
    assert shown.exit_code == 0, shown.output
    told = json.loads(shown.output)
    scores = [one["channel_sqnr_db"] for one in told["tensors"] if one["channel_sqnr_db"] is not None]
    assert scores == sorted(scores)
    assert len(scores) > 3
    assert told["pictures"] == 8


def test_the_command_shows_grids_without_pictures(digits: Path) -> None:
    shown = CliRunner().invoke(cli, ["inspect", str(digits), "--quantized"])
    assert shown.exit_code == 0
    assert "per tensor" in shown.output
    rows = [line.split() for line in shown.output.splitlines() if line.endswith(" weight") and "channels" in line]
    low, high = map(float, rows[0][2].split(".."))
    assert 0 < low < high
    assert "channels" in shown.output
    assert "  weight\n" in shown.output


def test_the_command_compares_with_the_model_as_it_was_shipped(digits: Path) -> None:
    from edgeopt.recipes.recipe import find_recipe

    calib = str(find_recipe("digits_detector").folder / "calib")
    arguments = ["inspect", str(digits), "--quantized", "--calib", calib, "-r", "digits_detector", "--float"]
    shown = CliRunner().invoke(cli, [*arguments, "digits_detector", "--json"])
    told = json.loads(shown.output)
    activations = [one for one in told["tensors"] if not one["is_weight"]]
    assert len(activations) > 40
    assert all(one["sqnr_db"] > 15 for one in activations)
    assert told["notes"] == []


def test_what_stands_for_nothing_in_the_float_model_is_named(tmp_path: Path, digits: Path) -> None:
    from edgeopt.recipes.recipe import find_recipe

    proto = load_model(digits).proto
    first = next(node for node in proto.graph.node if node.op_type == "QuantizeLinear" and "Add" in node.input[0])
    unheard = {first.input[0]: "unheard", first.output[0]: "unheard of"}
    reader = next(node for node in proto.graph.node if first.output[0] in node.input)
    unheard[reader.output[0]] = "unheard of as well"
    for node in proto.graph.node:
        node.input[:] = [unheard.get(name, name) for name in node.input]
        node.output[:] = [unheard.get(name, name) for name in node.output]
    save_model(Model(proto, "odd"), tmp_path / "odd.onnx")
    calib = str(find_recipe("digits_detector").folder / "calib")
    arguments = ["inspect", str(tmp_path / "odd.onnx"), "--quantized", "--calib", calib, "-r", "digits_detector"]
    shown = CliRunner().invoke(cli, [*arguments, "--float", "digits_detector"])
    assert shown.exit_code == 0, shown.output
    assert "warning    no error of 1 tensor: " in shown.output
    assert "(unheard of)" in shown.output.splitlines()[-1]


def test_pictures_without_quantized_are_a_usage_error() -> None:
    shown = CliRunner().invoke(cli, ["inspect", "digits_detector", "--calib", "somewhere"])
    assert shown.exit_code == 1
    assert "belong to --quantized" in shown.output
