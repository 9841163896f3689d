"""`edgeopt recipe`: a file that `optimize` takes, a picture with its answer, and questions on a terminal alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper

from edgeopt.cli import cli
from edgeopt.recipes.recipe import find_recipe, read_recipe

OWN = find_recipe("digits_detector")


def classifier(path: Path) -> Path:
    """Ten classes of pictures of any size, which differ with the order of colours."""
    weight = np.random.default_rng(0).normal(size=(10, 3, 3, 3)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["images", "weight"], ["features"]),
            helper.make_node("GlobalAveragePool", ["features"], ["pooled"]),
            helper.make_node("Flatten", ["pooled"], ["scores"]),
            helper.make_node("Softmax", ["scores"], ["shares"]),
        ],
        "classifier",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ("n", 3, "h", "w"))],
        [helper.make_tensor_value_info("shares", TensorProto.FLOAT, ("n", 10))],
        [onnx.numpy_helper.from_array(weight, "weight")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


@pytest.fixture
def picture(tmp_path):
    path = tmp_path / "shown.png"
    cv2.imwrite(str(path), np.random.default_rng(1).integers(0, 256, (40, 50, 3), np.uint8))
    return path


def run(*arguments: object, **how: object):
    return CliRunner().invoke(cli, [str(one) for one in arguments], **how)


def test_the_recipe_is_written_beside_the_model_and_optimize_takes_it(tmp_path, picture):
    model = classifier(tmp_path / "net.onnx")
    shown = run("recipe", model, "--picture", picture, input="2\n2\n")  # no terminal: nothing is asked
    assert shown.exit_code == 0, shown.output
    for told in (
        "Answers to shown.png",
        "(as written)",
        "BGR, ",
        "class ",
        "not known  input.size",
        "--calib PICTURES",
    ):
        assert told in shown.output
    assert "> " not in shown.output
    written = read_recipe(tmp_path / "recipe.toml", stays_inside=True)
    assert (written.task, written.input.size, written.postprocess.decoder) == (
        "classification",
        (224, 224),
        "probabilities",
    )
    assert cv2.imread(str(tmp_path / "recipe.answer.png")).shape[0] > 40
    planned = run("optimize", model, "-t", "cpu", "-r", tmp_path / "recipe.toml", "--dry-run")
    assert planned.exit_code == 0, planned.output


def test_the_shipped_detector_is_drafted_from_its_own_recipe_and_shows_its_picture(tmp_path):
    told = run("recipe", "digits_detector", "-o", tmp_path / "d.toml", "--json")
    assert told.exit_code == 0, told.output
    found, read = json.loads(told.stdout), read_recipe(tmp_path / "d.toml")
    assert found["not_known"] == []
    assert found["readings"][0]["reading"] == "RGB, 0 to 1 (as written)"
    assert (read.preprocess, read.postprocess, read.class_names) == (OWN.preprocess, OWN.postprocess, OWN.class_names)


def test_a_file_that_exists_is_never_written_over(tmp_path):
    model = classifier(tmp_path / "net.onnx")
    (tmp_path / "recipe.toml").write_text("years of work")
    shown = run("recipe", model)
    assert shown.exit_code == 1
    assert "exists, and is not written over" in shown.output
    assert (tmp_path / "recipe.toml").read_text() == "years of work"


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (("nowhere.onnx",), "no model file or shipped model"),
        (("digits_detector", "--picture", "nowhere.jpg"), "does not exist"),
        (("digits_detector", "-r", "yolov8"), "does not fit this model"),
        (("digits_detector", "-r", "yolx"), "did you mean 'yolox'"),
    ],
)
def test_what_is_wrong_is_one_line_and_leaves_nothing(wrong, told, tmp_path):
    shown = run("recipe", *wrong, "-o", tmp_path / "mine.toml")
    assert shown.exit_code == 1
    assert told in shown.output
    assert not list(tmp_path.iterdir())


def test_a_picture_that_the_model_cannot_take_is_a_warning_and_the_recipe_is_written(tmp_path, picture):
    graph = helper.make_graph(
        [helper.make_node("Identity", ["words"], ["same"])],
        "g",
        [helper.make_tensor_value_info("words", TensorProto.INT64, ("n", "length"))],
        [helper.make_tensor_value_info("same", TensorProto.INT64, ("n", "length"))],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "t.onnx")
    said = " ".join(run("inspect", tmp_path / "t.onnx").output.split())
    assert f"edgeopt recipe {tmp_path / 't.onnx'} writes one" in said
    shown = run("recipe", tmp_path / "t.onnx", "--picture", picture)
    assert shown.exit_code == 0, shown.output
    assert "warning" in shown.output
    assert "--calib INPUTS.npz" in shown.output
    assert read_recipe(tmp_path / "recipe.toml").input.shapes == {"words": (1, 128)}


def test_a_model_of_texts_is_calibrated_on_texts_and_is_shown_no_picture(tmp_path):
    table = numpy_helper.from_array(np.ones((10, 8), np.float32), "table")
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "input_ids"], ["last_hidden_state"])],
        "g",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ("n", "length"))],
        [helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, ("n", "length", 8))],
        [table],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "t.onnx")
    (tmp_path / "tokenizer.json").write_text("{}", "utf-8")
    shown = run("recipe", tmp_path / "t.onnx").output
    assert "--calib TEXTS.txt" in shown
    assert "--picture" not in shown


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo terminal")
@pytest.mark.parametrize("asks", [True, False])
def test_on_a_terminal_it_asks_unless_yes_and_takes_what_is_typed(asks, tmp_path):
    import pty

    model = classifier(tmp_path / "net.onnx")
    mother, daughter = pty.openpty()
    os.write(mother, b"64x32\nnonsense\n2\n1\n?\n?\n")
    code = "import sys; from edgeopt.__main__ import main; main()"
    command = [sys.executable, "-c", code, "recipe", str(model), *([] if asks else ["--yes"])]
    done = subprocess.run(command, stdin=daughter, capture_output=True, text=True, timeout=60, check=False)
    os.close(mother)
    os.close(daughter)
    assert done.returncode == 0, done.stderr
    read, text = read_recipe(tmp_path / "recipe.toml"), (tmp_path / "recipe.toml").read_text()
    if not asks:
        assert done.stderr == ""
        assert read.input.size == (224, 224)
        return
    assert "'nonsense' is no answer: type a number from 1 to 2, or ?" in done.stderr
    assert (read.input.size, read.preprocess.colour) == ((64, 32), "BGR")
    assert text.count("as answered") == 3
    assert "# labels: not known: " in text


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo terminal")
def test_the_end_of_the_input_is_an_interrupt_that_leaves_nothing(tmp_path):
    import pty

    model = classifier(tmp_path / "net.onnx")
    mother, daughter = pty.openpty()
    os.write(mother, b"\x04")
    done = subprocess.run(
        [sys.executable, "-m", "edgeopt", "recipe", str(model)],
        stdin=daughter,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    os.close(mother)
    os.close(daughter)
    assert done.returncode == 130
    assert done.stderr.endswith("interrupted: nothing was written\n")
    assert [one.name for one in tmp_path.iterdir()] == ["net.onnx"]


def test_a_model_without_inputs_is_refused_in_one_line(tmp_path):
    graph = helper.make_graph(
        [helper.make_node("Identity", ["one"], ["y"])],
        "constant",
        [],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 4))],
        [onnx.numpy_helper.from_array(np.ones((1, 4), np.float32), "one")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), str(tmp_path / "net.onnx"))
    shown = run("recipe", tmp_path / "net.onnx")
    assert shown.exit_code == 1
    assert "takes no input" in shown.output
    assert [one.name for one in tmp_path.iterdir()] == ["net.onnx"]


def test_a_row_of_a_free_length_is_looked_at_in_a_run(tmp_path):
    """As ddddocr's exporter writes it: (steps, 1, scores) come out of a graph that promises (1, n)."""
    weight = np.random.default_rng(0).normal(size=(12, 1, 64, 8)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["line", "weight"], ["columns"], strides=[64, 8]),
            helper.make_node("Transpose", ["columns"], ["turned"], perm=[3, 0, 1, 2]),
            helper.make_node("Shape", ["turned"], ["sizes"]),
            helper.make_node("Slice", ["sizes", "zero", "three"], ["shape"]),
            helper.make_node("Reshape", ["turned", "shape"], ["scores"]),
        ],
        "line",
        [helper.make_tensor_value_info("line", TensorProto.FLOAT, (1, 1, 64, "width"))],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, (1, "n"))],
        [onnx.numpy_helper.from_array(weight, "weight")]
        + [onnx.numpy_helper.from_array(np.array([n]), name) for name, n in (("zero", 0), ("three", 3))],
    )
    path = tmp_path / "line.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    shown = run("recipe", path, "--yes")
    assert shown.exit_code == 0, shown.output
    written = read_recipe(tmp_path / "recipe.toml")
    assert (written.task, len(written.alphabet.symbols)) == ("ocr", 11)
    assert "alphabet.file" in shown.output
