"""A row of numbers is a score a class, or it is points, features, an angle: names, operators and values tell."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from small_nets import Net

from edgeopt.graph.model import Model, load_model, save_model
from edgeopt.graph.tensors import TensorSpec
from edgeopt.measurement.opening.given import open_given
from edgeopt.measurement.opening.subject import open_subject
from edgeopt.measurement.pipelines.given import write_original
from edgeopt.recipes.drafting.rows import row_kind
from edgeopt.recipes.inputs.preprocess import Preprocess
from edgeopt.recipes.recipe import Recipe, find_recipe
from edgeopt.recipes.recognise import choose_recipe
from edgeopt.verbs.recipe import draft

CHANCE = np.random.default_rng(0)
SIDE = 112


def regression(*rows: tuple[str, np.ndarray], op: str = "") -> Model:
    """A small network whose outputs lie about these numbers, and follow the picture a little."""
    net = Net(size=SIDE)
    features = net.op("Flatten", net.op("GlobalAveragePool", net.op("Relu", net.conv("x", 3, 8, 3, stride=4))))
    outputs = []
    for name, numbers in rows:
        weight = net.constant(f"w_{name}", CHANCE.normal(0, 0.05 * numbers.std(), (8, len(numbers))).astype(np.float32))
        made = net.op("Gemm", features, weight, net.constant(f"b_{name}", numbers.astype(np.float32)))
        made = made if op else name
        net.nodes[-1].output[0] = made
        if op:
            net.nodes.append(onnx.helper.make_node(op, [made], [name]))
        outputs.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, (1, len(numbers))))
    model = net.model(rows[0][0])
    del model.proto.graph.output[:]
    model.proto.graph.output.extend(outputs)
    return Model(model.proto, "net")


FACE = np.stack([50 + 30 * np.cos(np.arange(60) / 9), 60 + 30 * np.sin(np.arange(60) / 9)], axis=1).ravel()
PIXELS, SHARES = CHANCE.uniform(10, 100, 10), CHANCE.uniform(0.1, 0.9, 10)
LOGITS = CHANCE.normal(0, 2, 10)
GUESSED = {
    "68 points": ("output", CHANCE.normal(0, 0.3, 136), ""),
    "106 points": ("fc1", CHANCE.normal(0, 0.3, 212), ""),
    "a mesh": ("output", CHANCE.normal(0, 1, 1404), ""),
    "five points in pixels": ("output", PIXELS, ""),
    "five points in shares of the picture": ("output", SHARES, ""),
    "an outline of a number of points that nobody knows": ("output", FACE / 100 - 0.5, ""),
    "an outline behind a sigmoid": ("output", FACE / 20 - 2, "Sigmoid"),
    "a face as a vector": ("output", CHANCE.normal(0, 1, 512), ""),
}
NAMED = ("landmarks", "keypoints_2d", "bbox", "faceCoords", "embedding", "head_yaw")
CLASSES = {"logits": LOGITS, "class_scores": LOGITS, "probs": LOGITS}


def drafted(model: Model, folder: Path) -> tuple[Recipe, tuple[str, ...]]:
    save_model(model, folder / "net.onnx")
    made = draft(str(folder / "net.onnx"))
    return made.recipe, made.not_known


@pytest.mark.parametrize("kind", GUESSED)
def test_numbers_that_are_rather_no_scores_are_read_as_they_are_and_told_as_a_guess(kind, tmp_path):
    name, numbers, op = GUESSED[kind]
    recipe, not_known = drafted(regression((name, numbers), op=op), tmp_path)
    assert recipe.task == "tensors"
    assert "task" in not_known
    assert recipe.guesses == not_known


@pytest.mark.parametrize("name", NAMED)
def test_a_name_of_places_or_features_is_believed(name, tmp_path):
    recipe, not_known = drafted(regression((name, LOGITS)), tmp_path)
    assert recipe.task == "tensors"
    assert "task" not in not_known


@pytest.mark.parametrize("name", CLASSES)
def test_a_name_of_classes_is_believed(name, tmp_path):
    recipe, not_known = drafted(regression((name, CLASSES[name])), tmp_path)
    assert (recipe.task, recipe.postprocess.decoder) == ("classification", "logits")
    assert "task" not in not_known


def test_what_looks_like_logits_is_a_classifier_by_a_guess(tmp_path):
    recipe, not_known = drafted(regression(("output", LOGITS)), tmp_path)
    assert recipe.task == "classification"
    assert "task" in not_known


@pytest.mark.parametrize("op", ["Softmax", "Sigmoid"])
def test_probabilities_are_classes(op, tmp_path):
    recipe, not_known = drafted(regression(("output", LOGITS), op=op), tmp_path)
    assert (recipe.task, recipe.postprocess.decoder) == ("classification", "probabilities")
    assert "task" not in not_known


def test_a_row_of_length_one_is_a_feature():
    rows = [row / np.linalg.norm(row) for row in CHANCE.normal(size=(4, 90))]
    kind = row_kind(TensorSpec("output", "float32", (1, 90), op="Div"), rows, has_names=False)
    assert (kind.are_classes, kind.is_sure) == (False, False)
    assert "length 1" in kind.why


@pytest.mark.parametrize("count", [1000, 1001, 21841])
def test_the_classes_of_imagenet_are_known_by_their_number(count):
    output = TensorSpec("output", "float32", (1, count), op="Gemm")
    kind = row_kind(output, [*CHANCE.normal(3, 1, (4, count))], has_names=False)
    assert (kind.are_classes, kind.is_sure) == (True, True)


def test_several_heads_are_read_as_they_are_and_none_is_left_out_without_a_word(tmp_path):
    model = regression(("expression", CHANCE.normal(size=7)), ("gender", CHANCE.normal(size=2)))
    recipe, not_known = drafted(model, tmp_path)
    assert recipe.task == "tensors"
    assert "task" in not_known
    choice = choose_recipe("imagenet", None, model.inputs, model.outputs, {})
    assert [str(note.kind) for note in choice.notes] == ["warning"]
    assert "reads output expression float32 1x7 alone; not read: gender float32 1x2" in choice.notes[0].detail


@pytest.mark.parametrize(
    ("recipe", "op", "decoder"),
    [
        ("imagenet", "Softmax", "probabilities"),
        ("imagenet", "Gemm", "logits"),
        ("yolov8_classify", "Gemm", "logits"),
        ("yolov8_classify", "Softmax", "probabilities"),
        ("imagenet", "Mul", "logits"),
        ("yolov8_classify", "Mul", "probabilities"),
    ],
)
def test_scores_are_read_as_the_graph_ends(recipe, op, decoder):
    outputs = [TensorSpec("y", "float32", (1, 10), op=op)]
    choice = choose_recipe(recipe, None, [TensorSpec("x", "float32", (1, 3, 64, 64))], outputs, {})
    assert choice.recipe.postprocess.decoder == decoder
    assert bool(choice.notes) is (find_recipe(recipe).postprocess.decoder != decoder)


def test_guesses_are_told_until_they_are_taken_out(tmp_path):
    recipe, not_known = drafted(regression(("logits", LOGITS)), tmp_path)
    model = load_model(tmp_path / "net.onnx")

    def told() -> list[str]:
        choice = choose_recipe(None, tmp_path / "net.onnx", model.inputs, model.outputs, {})
        assert choice.recipe.preprocess == recipe.preprocess != Preprocess()
        return [note.detail for note in choice.notes]

    assert told() == [f"guesses in recipe 'net', which nobody checked: {', '.join(not_known)}"]
    path = tmp_path / "recipe.toml"
    again = draft(str(tmp_path / "net.onnx"), tmp_path / "again.toml", recipe=str(path))
    assert set(again.not_known) == set(not_known)
    lines = path.read_text().splitlines()
    path.write_text("\n".join('guesses = ["labels"]' if line.startswith("guesses") else line for line in lines))
    assert told() == ["guesses in recipe 'net', which nobody checked: labels"]
    path.write_text("\n".join(line for line in lines if not line.startswith("guesses")))
    assert told() == []


def test_a_bundle_tells_guesses_to_who_measures_it(tmp_path):
    """`run` told them, and `bench`, `compare` and `check` did not."""
    _, not_known = drafted(regression(("logits", LOGITS)), tmp_path)
    write_original(tmp_path / "bundle", open_given(str(tmp_path / "net.onnx"), "cpu", None), threads=1)
    subject = open_subject(str(tmp_path / "bundle"), target="cpu", recipe=None, threads=1)
    subject.session.close()
    told = f"guesses in recipe 'net', which nobody checked: {', '.join(not_known)}"
    assert [note.detail for note in subject.notes if "guesses" in note.detail] == [told]
