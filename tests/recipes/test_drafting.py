"""A recipe that is drafted reads back as it is, feeds its model, and marks what nobody told."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from edgeopt.errors import EdgeoptError, UnsupportedError
from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.drafting.drafted import Facts
from edgeopt.recipes.drafting.drafting import draft_recipe
from edgeopt.recipes.drafting.questions import (
    RecipeQuestion,
    about_alphabet,
    about_labels,
    about_size,
    about_values,
    nobody,
)
from edgeopt.recipes.inputs.preprocess import Colour, Layout, Resize
from edgeopt.recipes.recipe import Recipe, find_recipe, read_recipe
from edgeopt.recipes.recipe_text import recipe_text
from edgeopt.recipes.recognise import choose_recipe
from edgeopt.system.disk import assets
from edgeopt.tasks import make_task

TABLES = ("input", "preprocess", "postprocess", "evaluation", "check")
ULTRALYTICS = {"names": "{0: 'cat', 1: 'dog'}", "stride": "32", "task": "detect", "imgsz": "[320, 320]"}


def facts(*outputs: tuple, size=(1, 3, 640, 640), dtype="float32", metadata=None, op="", first=()) -> Facts:
    specs = tuple(TensorSpec(f"y{i}", "float32", shape, op) for i, shape in enumerate(outputs))
    given = TensorSpec("x", dtype, size)
    return Facts("net", Path("nowhere") / "net.onnx", 17, (given,), specs, metadata or {}, first)


def read_back(of: Facts, folder: Path, ask=nobody) -> Recipe:
    """Write the draft as the command does, read it, and bind it to the model: what `optimize -r` does first."""
    found, path = draft_recipe(of, None, ask), folder / "mine.toml"
    labels = "names.txt" if found.recipe.class_names else ""
    (folder / "names.txt").write_text("\n".join(found.recipe.class_names))
    path.write_text(found.text(of, labels), "utf-8")
    read = choose_recipe(str(path), None, of.inputs, of.outputs, of.metadata).recipe
    for table in TABLES:
        assert getattr(read, table) == getattr(found.recipe, table), table
    assert read.class_names == found.recipe.class_names
    return read


@pytest.mark.parametrize("name", assets.model_folders())
def test_every_shipped_recipe_is_written_with_comments_and_reads_back(name, tmp_path):
    shipped = find_recipe(name)
    keys = [f"{table}.{one.name}" for table in TABLES for one in fields(getattr(shipped, table))]
    comments = dict.fromkeys((*keys, "task", "license", "labels"), 'a "comment"\nthat\x00 must not end # the line')
    text = recipe_text(shipped, name=name, labels="names.txt", head=["a\nb"], comments=comments)
    (tmp_path / "names.txt").write_text("\n".join(shipped.class_names))
    (tmp_path / "mine.toml").write_text(text, "utf-8")
    read = read_recipe(tmp_path / "mine.toml")
    paths = {key: getattr(read.evaluation, key) for key in ("labels", "calib")}
    assert read.evaluation == replace(shipped.evaluation, **paths)
    for table in TABLES:
        if table != "evaluation":
            assert getattr(read, table) == getattr(shipped, table), table
    assert (read.task, read.class_names) == (shipped.task, shipped.class_names)
    assert text.count(r"\n") >= len(TABLES)


CELLS = 80 * 80 + 40 * 40 + 20 * 20
KINDS = {
    "yolox": facts((1, CELLS, 85)),
    "yolov8": facts((1, 84, CELLS)),
    "yolov5": facts((1, 3 * CELLS, 85)),
    "yolov5_heads": facts((1, 3, 80, 80, 85), (1, 3, 40, 40, 85), (1, 3, 20, 20, 85)),
    "yolov10": facts((1, 300, 6)),
    "ultraface": facts((1, 4420, 2), (1, 4420, 4)),
    "imagenet": facts((1, 1000), size=(1, 3, 224, 224)),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_model_of_each_kind_gets_that_kinds_decoder(name, tmp_path):
    read, shipped = read_back(KINDS[name], tmp_path), find_recipe(name)
    assert (read.task, read.postprocess.decoder) == (shipped.task, shipped.postprocess.decoder)
    assert read.preprocess == shipped.preprocess
    told = (tmp_path / "mine.toml").read_text()
    assert f'colour = "{shipped.preprocess.colour}"' in told
    assert told.count("# not known: ") >= 4  # colour, resize, scale, labels: no shape tells them


def test_what_ultralytics_writes_is_known_and_nothing_is_asked(tmp_path):
    of = facts(
        (1, 6, 40 * 40 + 20 * 20 + 10 * 10), size=("b", 3, "h", "w"), metadata={**ULTRALYTICS, "license": "AGPL"}
    )
    read = read_back(of, tmp_path, ask=lambda question: pytest.fail(question.text))
    assert (read.class_names, read.input.size, read.license) == (("cat", "dog"), (320, 320), "AGPL")
    assert "not known" not in (tmp_path / "mine.toml").read_text()


def test_the_largest_stride_of_the_metadata_is_taken(tmp_path):
    cells = 80 * 80 + 40 * 40 + 20 * 20 + 10 * 10
    of = facts((1, 6, cells), metadata={**ULTRALYTICS, "stride": "64", "imgsz": "[640, 640]"})
    assert read_back(of, tmp_path).postprocess.strides == (8, 16, 32, 64)


@pytest.mark.parametrize(
    ("op", "decoder"), [("Softmax", "probabilities"), ("Sigmoid", "probabilities"), ("Gemm", "logits")]
)
def test_the_graph_tells_probabilities_from_logits(op, decoder, tmp_path):
    assert read_back(facts((1, 10), size=(1, 3, 64, 64), op=op), tmp_path).postprocess.decoder == decoder


def test_one_channel_is_grey_and_a_thumbnail_is_not_cropped(tmp_path):
    read = read_back(facts(("b", 10), size=("b", 1, 28, 28)), tmp_path)
    assert (read.preprocess.colour, read.preprocess.resize) == (Colour.GREY, Resize.STRETCH)


def test_one_channel_of_unequal_sides_may_be_bands_of_a_sound(tmp_path):
    of = facts((1, 2048), size=(1, 1, 149, 64))
    of = replace(of, outputs=(replace(of.outputs[0], name="feature_output"),))
    found = draft_recipe(of, None, nobody)
    assert found.recipe.task == "tensors"
    assert "preprocess.colour" in found.not_known


def test_channels_that_come_last_and_bytes_are_seen(tmp_path):
    read = read_back(facts((1, 1000), size=(1, 224, 224, 3), dtype="uint8"), tmp_path)
    assert (read.input.layout, read.input.dtype, read.preprocess.scale) == (Layout.NHWC, "uint8", 1.0)
    assert read.preprocess.mean == (0.0,)
    signed = read_back(facts((1, 1000), size=(1, 224, 224, 3), dtype="int8"), tmp_path)
    assert (signed.preprocess.scale, signed.preprocess.mean) == (1.0, (128.0,))


def test_a_batch_that_is_fixed_is_told_and_pictures_are_refused(tmp_path):
    of = facts((4, 1000), size=(4, 3, 224, 224))
    found = draft_recipe(of, None, nobody)
    assert found.recipe.task == "tensors"
    assert "takes 4 pictures at once" in found.text(of, "")
    with pytest.raises(UnsupportedError, match="takes 4 pictures at once, and one is fed at a time"):
        choose_recipe("imagenet", None, of.inputs, of.outputs, of.metadata)


def test_a_graph_that_begins_with_a_subtraction_gets_the_picture_as_it_is(tmp_path):
    assert read_back(facts((1, 10), size=(1, 3, 64, 64), first=("Sub",)), tmp_path).preprocess.scale == 1.0
    assert read_back(facts((1, 10), size=(1, 3, 64, 64), first=("Conv",)), tmp_path).preprocess.scale == 1 / 255


def test_what_is_answered_is_written_and_no_guess(tmp_path):
    names = tmp_path / "given.txt"
    names.write_text("cat\ndog\n")
    typed = iter(("96x64", "2", "3", "1/255 0.4,0.5,0.6 0.2", str(names)))
    read = read_back(
        facts((1, 2), size=("b", 3, "h", "w")), tmp_path, ask=lambda question: question.answer(next(typed))
    )
    assert read.input.size == (96, 64)
    assert (read.preprocess.colour, read.preprocess.mean) == (Colour.BGR, (0.6, 0.5, 0.4))  # asked for as RGB
    assert read.class_names == ("cat", "dog")
    assert "not known" not in (tmp_path / "mine.toml").read_text()


@pytest.mark.parametrize(
    ("output", "op", "task", "decoder"),
    [
        ((1, 21, 160, 160), "Conv", "segmentation", "argmax"),
        ((1, 1, 640, 640), "Sigmoid", "segmentation", "argmax"),
        ((1, 1, 640, 640), "Relu", "image", "none"),
        ((1, 640, 640), "Relu", "image", "none"),
        ((1, 3, 1280, 1280), "Conv", "image", "none"),
        ((1, 2048, 20, 20), "Relu", "tensors", "none"),
        ((1, 21, 160, 80), "Conv", "tensors", "none"),
    ],
)
def test_a_map_is_taken_for_classes_of_pixels_or_a_picture_and_marked_as_a_guess(output, op, task, decoder, tmp_path):
    read = read_back(facts(output, op=op), tmp_path)
    assert (read.task, read.postprocess.decoder) == (task, decoder)
    if task != "tensors":
        assert "Guesses, to be checked: " in (tmp_path / "mine.toml").read_text()
        assert f'task = "{task}"' in (tmp_path / "mine.toml").read_text()
        assert "task" in draft_recipe(facts(output, op=op), None, nobody).not_known
    made = make_task(read, facts(output).inputs, facts(output).outputs, evaluating=True)
    assert made.preprocess(np.zeros((20, 30, 3), np.uint8))[0]["x"].shape == (1, 3, 640, 640)


def test_a_map_of_whole_numbers_holds_classes(tmp_path):
    of = facts((1, 640, 640))
    of = replace(of, outputs=(replace(of.outputs[0], dtype="int64"),))
    assert read_back(of, tmp_path).postprocess.decoder == "class_map"


def test_scores_step_by_step_are_text_where_the_dictionary_is_known(tmp_path):
    names = tmp_path / "dict.txt"
    names.write_text("\n".join("0123456789") + "\n")
    of = facts(("b", "t", 11), size=("b", 3, 48, "w"), op="Softmax")
    answer = {"Which characters": str(names), "Which size": "48x320"}

    def ask(question: RecipeQuestion):
        return next((question.answer(told) for start, told in answer.items() if question.text.startswith(start)), None)

    found = draft_recipe(of, None, ask)
    assert (found.recipe.task, found.recipe.preprocess.resize) == ("ocr", Resize.LINE)
    assert found.recipe.alphabet.symbols == tuple("0123456789")
    assert 'file = "made.txt"' in found.text(of, "", "made.txt")
    with pytest.raises(EdgeoptError, match="holds 10 characters, the model has 20 scores"):
        about_alphabet(20).answer(str(names))
    told = replace(of, metadata={"character": "\n".join("0123456789")})
    read = read_back(replace(told, outputs=(replace(of.outputs[0], op="Softmax"),)), tmp_path, ask=nobody)
    assert (read.task, read.input.size) == ("ocr", (48, 320))
    assert "# file: from the metadata" in (tmp_path / "mine.toml").read_text()


@pytest.mark.parametrize(
    ("output", "op", "size", "task"),
    [
        (("b", "t", 97), "Softmax", ("b", 3, 48, "w"), "ocr"),
        (("b", "t", 97), "Softmax", ("b", 3, "h", "w"), "ocr"),
        (("b", "t", 4401), "Add", ("b", 3, 48, "w"), "ocr"),
        ((20, "b", 37), "Add", ("b", 3, 60, 160), "ocr"),  # steps first, as recurrent layers write them
        ((25, 1, 37), "Add", (1, 1, 32, 100), "ocr"),
        ((1, 40, 97), "Softmax", (1, 3, 48, 320), "ocr"),
        ((1, CELLS, 112), "Sigmoid", (1, 3, 640, 640), "detection"),  # NanoDet: cells of the strides 8, 16, 32
        ((1, 315, 97), "Concat", (1, 3, 48, 320), "tensors"),  # 240 + 60 + 15 cells: rows of the area, not the width
        ((1, 40, 97), "Add", (1, 3, 320, 320), "tensors"),
        ((1, 4401), "Softmax", (1, 3, 48, 320), "classification"),
        ((1, 1000, 1, 1), "GlobalAveragePool", (1, 3, 224, 224), "classification"),
        ((1, 1, 1, 96), "Conv", (1, 76, 32, 1), "tensors"),
    ],
)
def test_recognisers_detectors_classifiers_and_features_are_told_apart(output, op, size, task, tmp_path):
    of = facts(output, size=size, op=op)
    found = draft_recipe(of, None, nobody)
    assert found.recipe.task == task
    if task == "ocr":
        assert found.recipe.alphabet.symbols[0] == "[1]"
        assert {"alphabet.file", "alphabet.blank"} <= {*found.not_known}
        made = make_task(found.recipe, of.inputs, of.outputs, evaluating=True)
        scores = np.eye(output[2], dtype=np.float32)[[3, 3, 0, 3, 5]]
        shape = (5, 1, -1) if output[0] != "b" and output[1] in ("b", 1) else (1, 5, -1)
        assert made.postprocess({"y0": scores.reshape(shape)}).text == "[3][3][5]"


def test_what_is_shaped_as_a_detector_and_gives_no_scores_is_no_detector():
    """Fifteen classes and an angle, or one class and five points, have the shape of sixteen classes."""
    rng, of = np.random.default_rng(0), facts((1, 20, CELLS))
    scores = rng.uniform(0, 1, (1, 20, CELLS)).astype(np.float32)
    turned = scores.copy()
    turned[:, -1] = rng.uniform(-0.7, 2.3, CELLS)
    found = draft_recipe(replace(of, answers=(scores, scores)), None, nobody)
    assert (found.recipe.task, "task" in found.not_known) == ("detection", False)
    found = draft_recipe(replace(of, answers=(scores, turned)), None, nobody)
    assert (found.recipe.task, "task" in found.not_known) == ("tensors", True)
    assert re.search(r"-0\.\d+ to 2\.\d+ where scores of 20 - 4 classes would be 0 to 1", found.comments["task"])


@pytest.mark.parametrize(("width", "decoder"), [(57, "end_to_end_pose"), (84, "rtdetr")])
def test_rows_of_poses_are_the_first_guess_where_their_numbers_fit(width, decoder):
    found = draft_recipe(facts((1, 300, width)), None, nobody)
    assert (found.recipe.postprocess.decoder, "task" in found.not_known) == (decoder, True)


def test_a_row_of_a_free_length_is_classes_by_a_guess_alone():
    assert "task" in draft_recipe(facts((1, "n"), size=(1, 3, 48, "w"), op="Reshape"), None, nobody).not_known


def test_bands_of_a_sound_are_taken_for_no_picture():
    found = draft_recipe(facts((1, 1, 1, 96), size=(1, 76, 32, 1), op="Conv"), None, nobody)
    assert "bands of a sound" in found.comments["task"]
    assert found.recipe.input.size == ()


def test_ids_of_free_lengths_get_shapes_that_agree(tmp_path):
    ids, mask = (TensorSpec(name, "int64", ("b", "n")) for name in ("ids", "mask"))
    of = replace(facts(("b", "n", 8)), inputs=(ids, mask))
    asked: list[RecipeQuestion] = []
    read = read_back(of, tmp_path, ask=lambda question: asked.append(question))
    assert read.input.shapes == {"ids": (1, 128), "mask": (1, 128)}
    assert len(asked) == 1  # the same name is asked once
    assert read.task == "tensors"


@pytest.mark.parametrize("task", ["obb", "depth"])
def test_a_task_that_no_recipe_reads_is_told_and_its_outputs_taken_as_they_are(task, tmp_path):
    if any(match.metadata.get("task") == task for name in assets.model_folders() for match in find_recipe(name).match):
        pytest.skip(f"a recipe reads {task}")
    read = read_back(facts((1, 6, CELLS), metadata={**ULTRALYTICS, "task": task}), tmp_path)
    assert read.task == "tensors"
    assert re.search(f"the exporter says '{task}'.*, which no recipe reads", (tmp_path / "mine.toml").read_text())


@pytest.mark.parametrize(
    ("question", "typed"),
    [
        (about_size("x", (1, 1)), "12"),
        (about_size("x", (1, 1)), "1x99999"),
        (about_size("x", (1, 1)), "x"),
        (about_values((1.0, (0.0,), (1.0,))), "1/0 1 1"),
        (about_values((1.0, (0.0,), (1.0,))), "1 1"),
        (about_values((1.0, (0.0,), (1.0,))), "1 1,2 1"),
        (about_values((1.0, (0.0,), (1.0,))), "nan 0 1"),
        (about_values((1.0, (0.0,), (1.0,))), "1 0 0"),
        (about_labels(3), "nowhere.txt"),
    ],
)
def test_what_is_no_answer_is_refused_in_one_line(question, typed):
    with pytest.raises(EdgeoptError) as refused:
        question.answer(typed)
    assert "\n" not in refused.value.problem
