from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parent / "quantization"))
from small_nets import detector, frames

from edgeopt.cli import cli
from edgeopt.errors import UnsupportedError
from edgeopt.model import Model, find_model, load_model, save_model
from edgeopt.quantization.quantize import Form, quantize
from edgeopt.quantized_view import measure_tensors, read_tensors, view_quantized
from edgeopt.target import Int8Rules


@pytest.fixture(scope="module", params=[Form.QDQ, Form.NHWC])
def made(request: pytest.FixtureRequest) -> Model:
    model = detector()
    return quantize(model, frames(model), Int8Rules(), form=request.param).model


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
    made = quantize(model, frames(model), Int8Rules(), form=Form.NHWC).model
    inputs = list(frames(model, 2))
    alone = measure_tensors(made, read_tensors(made), inputs, None)
    beside = measure_tensors(made, read_tensors(made), inputs, model)
    convolved = [one.name for one in alone if "_QLinearConv_output" in one.name]
    assert convolved
    told = {one.name: one for one in beside}
    assert all(one.sqnr_db is None for one in alone if one.name in convolved)
    assert all(told[name].sqnr_db is not None and told[name].sqnr_db > 10 for name in convolved)


def test_a_float_model_is_refused_with_the_remedy() -> None:
    with pytest.raises(UnsupportedError, match="holds no integer tensors") as caught:
        view_quantized("digits_detector")
    assert "edgeopt quantize" in caught.value.remedy


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from edgeopt.evaluate import model_inputs
    from edgeopt.frames import open_frames
    from edgeopt.recipe import find_recipe
    from edgeopt.recognise import choose_recipe
    from edgeopt.rewrite import fuse, simplify
    from edgeopt.tasks.detection import TASK

    path = find_model("digits_detector")
    model = load_model(path)
    recipe = choose_recipe(None, path, model.inputs, model.outputs, model.metadata).recipe
    pictures = open_frames(find_recipe("digits_detector").folder / "calib").spread(4)
    inputs = list(model_inputs(TASK(recipe, model.inputs, model.outputs, True), pictures))
    ready = fuse(simplify(model, {}, inputs).model, inputs).model
    out = tmp_path_factory.mktemp("view") / "digits.onnx"
    save_model(quantize(ready, inputs, Int8Rules()).model, out)
    return out


def test_the_command_shows_the_worst_tensor_first(digits: Path) -> None:
    from edgeopt.recipe import find_recipe

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
    assert "channels" in shown.output
    assert "(weight)" in shown.output


def test_pictures_without_quantized_are_a_usage_error() -> None:
    shown = CliRunner().invoke(cli, ["inspect", "digits_detector", "--calib", "somewhere"])
    assert shown.exit_code == 1
    assert "belong to --quantized" in shown.output
