"""A pipeline.toml is read strictly: what is wrong is one line that names the stage and the near name."""

from __future__ import annotations

import pytest
from fixture_pipelines import SHOP, changed, described, without

from edgeopt.errors import InvalidFileError
from edgeopt.runtime.pipelines.description import is_description, read_description


def test_what_a_stage_takes_is_the_stage_before_it():
    takes = {one.name: one.takes for one in described().stages}
    assert takes == {"detect": ("frame",), "crop": (), "recognise": ("crop",), "lookup": ("crop", "recognise")}


def stages(*given: dict[str, object]) -> dict[str, object]:
    return {"name": "p", "stage": list(given)}


MODEL = {"name": "detect", "model": "a.onnx"}


@pytest.mark.parametrize(
    ("values", "problem", "remedy"),
    [
        (changed("lookup", takes=["recognize"]), "stage lookup takes recognize", "did you mean 'recognise'?"),
        (changed("crop", crop="dectect"), "no stage named 'dectect'", "did you mean 'detect'?"),
        (changed("detect", modle="x"), "stage detect: unknown modle", "keys are"),
        ({**SHOP, "budgt": 3}, "unknown budgt", "keys are budget_ms"),
        ({**SHOP, "budget_ms": -1}, "budget_ms is -1", "a number above 0"),
        (changed("lookup", call="shop.find"), "stage lookup: call 'shop.find' is not module:function", "correct"),
        (changed("lookup", name="detect"), "two stages are named detect", "a name of its own"),
        (changed("lookup", name="frame"), "or is 'frame'", "correct"),
        (changed("lookup", name="../up"), "is not lower-case letters", "correct"),
        (changed("recognise", call="a:b"), "it has model and call: give it one of model, crop and call", "correct"),
        (changed("recognise", takes=["crop", "detect"]), "a model takes one answer, not 2", "correct"),
        (changed("detect", most=4), "belong to a stage with a crop", "correct"),
        (changed("detect", takes=["detect"]), "stage detect takes itself: a circle", "stages above it"),
        (changed("detect", takes=["recognise"]), "recognise, which takes it in turn: a circle", "stages above it"),
        (stages(MODEL, {"name": "a", "call": "m:a", "takes": ["b"]}, {"name": "b", "call": "m:b", "takes": ["detect"]}),
         "stage a takes b, which comes after it", "write stage b above it"),
        (stages(MODEL, {"name": "c", "crop": "detect"}, {"name": "d", "crop": "c"}), "crops c, which gives no boxes",
         "detector"),
        (stages(MODEL, {"name": "c", "crop": "frame"}), "crops frame, which gives no boxes", "detector"),
        (stages(), "it has 0 stages", "1 to 32"),
        (stages({"name": "a", "call": "m:a"}), "no stage runs a model", "model ="),
        ({"name": "p", "stage": [3]}, "stage 1 is no table", "[[stage]]"),
        (without(SHOP, "crop"), "no stage named 'crop'", "choose from: detect, frame, recognise"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_one_line(values, problem, remedy):
    with pytest.raises(InvalidFileError) as caught:
        described(values)
    assert caught.value.problem.startswith("pipeline.toml")
    assert problem in caught.value.problem
    assert remedy in caught.value.remedy


def test_paths_are_relative_to_the_file(tmp_path):
    file = tmp_path / "pipeline.toml"
    file.write_text('name = "p"\ncalib = "pictures"\n[[stage]]\nname = "a"\nmodel = "a.onnx"\n', "utf-8")
    found = read_description(file)
    assert found.path_of(found.calib) == tmp_path / "pictures"
    assert is_description(file)
    assert is_description(tmp_path / "absent.TOML")
    assert not is_description(tmp_path / "a.onnx")
