"""Graphs that suppress boxes themselves: columns that a name or a width tells, outputs with a count; UltraFace."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import onnx
import pytest
from click.testing import CliRunner

from edgeopt.cli import cli
from edgeopt.errors import EdgeoptError
from edgeopt.graph.model import load_model
from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.drafting.drafted import Facts
from edgeopt.recipes.drafting.drafting import draft_recipe
from edgeopt.recipes.drafting.questions import nobody
from edgeopt.recipes.inputs.preprocess import Geometry
from edgeopt.recipes.outputs.columns import columns_in_name
from edgeopt.recipes.recipe import Recipe
from edgeopt.recipes.recognise import choose_recipe
from edgeopt.tasks import make_task

SIZE = (64, 96)
PICTURE = TensorSpec("images", "float32", (1, 3, *SIZE))
BOX, SCORE, LABEL = (10.0, 20.0, 40.0, 50.0), 0.75, 3
FIRST = {"left": 10.0, "top": 20.0, "right": 40.0, "bottom": 50.0, "x": 25.0, "y": 35.0, "width": 30.0, "height": 30.0}
FIRST |= {"class": 3.0, "score": 0.75, "batch": 0.0}
NAMES = {
    "batchno_classid_score_x1y1x2y2": ("batch", "class", "score", "left", "top", "right", "bottom"),
    "batch_id, x0, y0, x1, y1, class, score": ("batch", "left", "top", "right", "bottom", "class", "score"),
    "label_xyxy_score": ("class", "left", "top", "right", "bottom", "score"),
    "BatchNo_ClassId_Score_y1x1y2x2": ("batch", "class", "score", "top", "left", "bottom", "right"),
    "score_classid_cxcywh": ("score", "class", "x", "y", "width", "height"),
}


def chosen(*outputs: TensorSpec, picture: TensorSpec = PICTURE, asked: str | None = None) -> Recipe:
    return choose_recipe(asked, None, [picture], outputs, {}).recipe


def only_box(recipe: Recipe, outputs: list[TensorSpec], arrays: dict[str, np.ndarray]) -> None:
    """The recipe finds the one box, in the pixels of the input."""
    task = make_task(recipe, [PICTURE], outputs, evaluating=False)
    found = task.postprocess(arrays, Geometry.of_input(SIZE))
    np.testing.assert_allclose(found.boxes, [BOX], atol=1e-3)
    np.testing.assert_allclose(found.scores, [SCORE])
    assert found.classes.tolist() == [LABEL]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("before", [(), (1,), (1, 1)])
def test_a_name_tells_the_columns(name, before):
    told = NAMES[name]
    assert columns_in_name(name) == told
    output = TensorSpec(name, "float32", (*before, "n", len(told)))
    row = np.array([FIRST[column] for column in told], np.float32)
    rows = np.stack([row, np.where(np.array(told) == "score", 0.1, row)])  # the second is not sure
    only_box(chosen(output), [output], {name: rows.reshape(*before, 2, len(told)).astype(np.float32)})


@pytest.mark.parametrize(
    "name", ["output", "boxes", "scores", "batchno_classid_x1y1x2y2_landms", "score_score_xyxy", "classid_x1y1x2y2"]
)
def test_other_names_tell_none(name):
    assert columns_in_name(name) == ()


@pytest.mark.parametrize(
    ("shape", "op"), [(("n", 7), "Concat"), ((None, 7), ""), ((100, 7), "NonMaxSuppression"), (("n", 6), "")]
)
def test_rows_of_a_free_number_are_yolov7s_or_ultralytics(shape, op):
    output = TensorSpec("output", "float32", shape, op=op)
    row = {7: [0, *BOX, LABEL, SCORE], 6: [*BOX, SCORE, LABEL]}[shape[1]]
    others = {7: [[1, *BOX, LABEL, 0.9], [0, *BOX, -1, 0.9]], 6: [[*BOX, 0.9, -1], [0] * 6]}[shape[1]]
    recipe = chosen(output)
    assert recipe.name == "detection_rows"
    only_box(recipe, [output], {"output": np.array([row, *others], np.float32)})
    nothing = make_task(recipe, [PICTURE], [output], evaluating=True)
    assert len(nothing.postprocess({"output": np.zeros((0, shape[1]), np.float32)}, Geometry.of_input(SIZE))) == 0


@pytest.mark.parametrize(("shape", "name"), [((1, 300, 6), "yolov10"), (("n", 6), "detection_rows")])
def test_ultralytics_rows_are_read_with_a_batch_or_without(shape, name):
    """Its metadata say that suppression is inside, and bring the names."""
    told = {"names": "{0: 'a', 1: 'b', 2: 'c', 3: 'd'}", "stride": "32", "task": "detect", "args": "{'nms': True}"}
    output = TensorSpec("output0", "float32", shape)
    recipe = choose_recipe(None, None, [PICTURE], [output], told).recipe
    assert (recipe.name, recipe.class_names) == (name, ("a", "b", "c", "d"))
    rows = np.array([[*BOX, SCORE, LABEL]], np.float32)
    only_box(recipe, [output], {"output0": rows[None] if len(shape) == 3 else rows})


@pytest.mark.parametrize("op", ["Gemm", "Softmax"])
@pytest.mark.parametrize("batch", ["b", None, 1])
def test_six_or_seven_classes_are_no_rows(op, batch):
    picture = TensorSpec("x", "float32", (batch, 3, *SIZE))
    for count in (6, 7):
        with pytest.raises(EdgeoptError, match="no recipe fits") as refused:
            chosen(TensorSpec("output", "float32", (batch, count), op=op), picture=picture)
        assert "detection_rows" not in refused.value.remedy


@pytest.mark.parametrize("batch", [1, "batch"])
def test_outputs_that_tell_boxes_scores_classes_and_their_number_apart(batch):
    shapes = {"num_dets": (batch, 1), "det_boxes": (batch, 4, 4), "det_scores": (batch, 4), "det_classes": (batch, 4)}
    outputs = [
        TensorSpec(name, "int32" if name in ("num_dets", "det_classes") else "float32", shape)
        for name, shape in shapes.items()
    ]
    arrays = {
        "num_dets": np.array([[1]], np.int32),
        "det_boxes": np.tile(np.float32(BOX), (1, 4, 1)),
        "det_scores": np.array([[SCORE, 0.9, 0.9, 0.9]], np.float32),  # beyond the number lies what was there before
        "det_classes": np.full((1, 4), LABEL, np.int32),
    }
    recipe = chosen(*outputs)
    assert recipe.name == "yolo_end2end"
    only_box(recipe, outputs, arrays)
    only_box(chosen(*reversed(outputs)), [*reversed(outputs)], arrays)


@pytest.mark.parametrize("batch", [(), (1,), ("batch",)])
@pytest.mark.parametrize("masks", [False, True])
def test_boxes_with_a_score_behind_and_their_classes_are_mmdeploys(batch, masks):
    """Rows that MMDeploy fills up with have class -1; masks are named as unread."""
    outputs = [TensorSpec("dets", "float32", (*batch, "n", 5)), TensorSpec("labels", "int64", (*batch, "n"))]
    rows = np.array([[*BOX, SCORE], [*BOX, 0.9], [0, 0, 0, 0, 0]], np.float32)
    arrays = {"dets": rows, "labels": np.array([LABEL, -1, -1])}
    if masks and batch:
        outputs.append(TensorSpec("masks", "float32", (*batch, "n", 28, 28)))
        arrays["masks"] = np.zeros((3, 28, 28), np.float32)
    arrays = {name: array[None] if batch else array for name, array in arrays.items()}
    choice = choose_recipe(None, None, [PICTURE], outputs, {})
    assert choice.recipe.name == "mmdeploy"
    assert any("not read: masks" in note.detail for note in choice.notes) == (len(outputs) == 3)
    only_box(choice.recipe, outputs, arrays)
    if not (masks and batch):
        only_box(chosen(*reversed(outputs)), [*reversed(outputs)], arrays)


def test_boxes_with_a_score_of_other_names_are_a_guess():
    """`dets` and `labels` are MMDeploy's words; the same shapes may hold turned boxes."""
    outputs = (TensorSpec("a", "float32", ("n", 5)), TensorSpec("b", "int64", ("n",)))
    with pytest.raises(EdgeoptError, match="no recipe fits"):
        chosen(*outputs)
    found = draft_recipe(Facts("net", Path("net.onnx"), 17, (PICTURE,), outputs, {}), None, nobody)
    assert (found.recipe.postprocess.decoder, "task" in found.not_known) == ("scored_boxes", True)


def test_the_ssd_of_mlperf_numbers_its_classes_from_one():
    shapes = {"bboxes": (1, "nbox", 4), "labels": (1, "nbox"), "scores": (1, "nbox")}
    outputs = [TensorSpec(n, "int64" if n == "labels" else "float32", shape) for n, shape in shapes.items()]
    recipe = chosen(*outputs)
    assert recipe.name == "ssd_mlperf"
    boxes = np.array([BOX], np.float32)[None] / np.array([SIZE[1], SIZE[0]] * 2, np.float32)
    only_box(
        recipe, outputs, {"bboxes": boxes, "labels": np.array([[LABEL + 1]]), "scores": np.array([[SCORE]], np.float32)}
    )


@pytest.mark.parametrize("order", [("scores", "classes"), ("classes", "scores")])
def test_classes_that_are_no_whole_numbers_are_told_by_the_names(order):
    """TensorRT's plugin BatchedNMS gives scores before classes, both floats."""
    shapes = {"num_detections": (1, 1), "nmsed_boxes": (1, 2, 4), **{f"nmsed_{name}": (1, 2) for name in order}}
    outputs = [TensorSpec(n, "int32" if n == "num_detections" else "float32", shape) for n, shape in shapes.items()]
    arrays = {
        "num_detections": np.array([[1]], np.int32),
        "nmsed_boxes": np.tile(np.float32(BOX), (1, 2, 1)),
        "nmsed_scores": np.array([[SCORE, 0.9]], np.float32),
        "nmsed_classes": np.array([[LABEL, LABEL]], np.float32),
    }
    recipe = chosen(*outputs)
    assert recipe.name == "yolo_end2end"
    only_box(recipe, outputs, arrays)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_a_plugins_names_are_a_guess_and_the_picture_tells_whose(layout):
    """TensorFlow's detectors take NHWC; EfficientNMS behind a YOLO has the same names, and other boxes."""
    told = [
        ("num_detections", "int32", (1, 1)),
        ("detection_boxes", "float32", (1, 9, 4)),
        ("detection_scores", "float32", (1, 9)),
        ("detection_classes", "int32", (1, 9)),
    ]
    outputs = tuple(TensorSpec(name, dtype, shape) for name, dtype, shape in told)
    picture = PICTURE if layout == "NCHW" else TensorSpec("images", "float32", (1, *SIZE, 3))
    found = draft_recipe(Facts("net", Path("net.onnx"), 17, (picture,), outputs, {}), None, nobody)
    assert found.recipe.postprocess.decoder == ("detections" if layout == "NCHW" else "detections_yx")
    assert {"task", "postprocess.background"} <= {*found.not_known}


@pytest.mark.parametrize("classes", [2, 3, 6])
@pytest.mark.parametrize(("op", "is_named"), [("Softmax", True), ("Conv", True), ("", False), ("Softmax", False)])
def test_ultraface_of_several_classes_has_its_background_first(classes, op, is_named):
    picture = TensorSpec("input", "float32", (1, 3, 240, 320))
    names = ("scores", "boxes") if is_named else ("a", "b")
    outputs = [
        TensorSpec(names[0], "float32", (1, 4420, classes), op=op),
        TensorSpec(names[1], "float32", (1, 4420, 4)),
    ]
    recipe = chosen(*outputs, picture=picture)
    assert recipe.name == "ultraface"
    logits = np.zeros((1, 4420, classes), np.float32)
    logits[..., 0], logits[0, 7, 0], logits[0, 7, -1] = 9, 0, 9
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    boxes = np.tile(np.float32([0.25, 0.25, 0.5, 0.75]), (1, 4420, 1))
    task = make_task(recipe, [picture], outputs, evaluating=False)
    given = {names[0]: logits if op == "Conv" else shares.astype(np.float32), names[1]: boxes}
    found = task.postprocess(given, Geometry.of_input((240, 320)))
    assert found.classes.tolist() == [classes - 2]
    np.testing.assert_allclose(found.boxes, [[80, 60, 160, 180]])
    assert 0.99 < found.scores[0] <= 1


def test_a_graph_with_suppression_inside_goes_from_recipe_to_answers(tmp_path):
    """Boxes and scores are stored; NonMaxSuppression keeps two of three, and YOLOv7's seven columns come out."""
    proto = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        end2end (float[1, 3, 64, 64] images) => (float[n, 7] output)
        <float[1, 3, 4] boxes = {10, 10, 30, 30, 11, 11, 31, 31, 40, 40, 60, 60},
         float[1, 1, 3] scores = {0.9, 0.8, 0.7}, int64[1] most = {10}, float[1] iou = {0.5}, float[1] least = {0.25},
         int64[1] first = {0}, int64[1] third = {2}, int64[1] whole = {-1}, float zero = {0}> {
        mean = ReduceMean <keepdims = 0> (images)
        none = Mul(mean, zero)
        sure = Add(scores, none)
        kept = NonMaxSuppression(boxes, sure, most, iou, least)
        batch = Gather <axis = 1> (kept, first)
        picture = Cast <to = 1> (batch)
        indices = Gather <axis = 1> (kept, third)
        index = Reshape(indices, whole)
        all = Squeeze(boxes, first)
        box = Gather <axis = 0> (all, index)
        flat = Squeeze(sure, first)
        columns = Transpose(flat)
        score = Gather <axis = 0> (columns, index)
        label = Gather <axis = 1> (kept, first)
        category = Cast <to = 1> (label)
        output = Concat <axis = 1> (picture, box, category, score)
        }""")
    model, picture = tmp_path / "end2end.onnx", tmp_path / "a.png"
    onnx.save(proto, str(model))
    cv2.imwrite(str(picture), np.full((64, 64, 3), 90, np.uint8))
    assert load_model(model).outputs[0].op == "NonMaxSuppression"
    answered = CliRunner().invoke(cli, ["run", str(model), str(picture), "--json"])
    assert answered.exit_code == 0, answered.output
    told = json.loads(answered.stdout)["detections"]
    assert [one["box"] for one in told] == [[10, 10, 30, 30], [40, 40, 60, 60]]
    assert [one["score"] for one in told] == [0.9, 0.7]
    drafted = CliRunner().invoke(cli, ["recipe", str(model), "-o", str(Path(tmp_path) / "r.toml"), "--json"])
    assert json.loads(drafted.stdout)["decoder"] == "columns"
    again = CliRunner().invoke(cli, ["run", str(model), str(picture), "-r", str(tmp_path / "r.toml"), "--json"])
    assert json.loads(again.stdout)["detections"] == told
