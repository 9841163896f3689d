"""A recipe is read or refused in one line, whatever stands in it; and it reads a model's outputs or is refused."""

from __future__ import annotations

import contextlib
import random
import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edgeopt import tasks
from edgeopt.errors import EdgeoptError, InvalidFileError, UnsupportedError
from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.heads._shapes import count_cells
from edgeopt.recipes.inputs.preprocess import Geometry
from edgeopt.recipes.recipe import Boxes, Scores, find_recipe, read_recipe
from edgeopt.recipes.recognise import choose_recipe
from edgeopt.system.declared import registry
from edgeopt.system.disk import assets

SHIPPED = {name: (folder / "recipe.toml").read_text("utf-8") for name, folder in assets.model_folders().items()}
ODD = ["-1", "0", "1000000", "9" * 5000, "[]", "[[]]", "[" * 2000, '""', '"nope"', "nan", "inf", "1e400", "true", "{}"]
SIZE = (64, 96)
CELLS = count_cells(SIZE, (8, 16, 32))


def read(folder, text):
    path = folder / "recipe.toml"
    path.write_text(text)
    return read_recipe(path)


@pytest.mark.parametrize(
    ("table", "line", "told"),
    [
        ("input", "size = [1000000, 1000000]", "size is 1000000"),
        ("input", "size = [0, 8]", "size is 0"),
        ("input", "shapes = { x = [65536, 65536] }", "shapes of x"),
        ("input", "fixed = { batch = -1 }", "fixed is -1"),
        ("preprocess", "crop_from = 1000000", "crop_from is 1000000"),
        ("preprocess", "std = [1e-30]", "std is 1e-30"),
        ("postprocess", "strides = [8, 8, 8]", "strides are"),
        ("postprocess", "strides = [0]", "strides is 0"),
        ("postprocess", "strides = [8, 16]\nanchors = [[10, 13]]", "1 lists of anchors for 2 strides"),
        ("postprocess", "strides = [8]\nanchors = [[10]]", "pairs"),
        ("postprocess", "iou_threshold = -1", "iou_threshold is -1"),
        ("postprocess", "score_threshold = 7", "score_threshold is 7"),
        ("postprocess", "max_detections = -1", "max_detections is -1"),
        ("postprocess", "top = -1", "top is -1"),
        ("evaluation", "max_drop = 99", "max_drop is 99"),
        ("evaluation", "max_detections = 0", "max_detections is 0"),
        ("match", 'outputs = [["0*cells"]]', "match term '0"),
    ],
)
def test_a_number_that_no_recipe_means_is_refused_in_one_line(tmp_path, table, line, told):
    needed = {"postprocess": 'decoder = "yolox"', "evaluation": 'metric = "AP"'}
    head = 'name = "n"\ntask = "detection"\ndescription = "d"\nlicense = "l"\nsource = "s"\n'
    tables = "".join(f"[{name}]\n{must}\n{line if name == table else ''}\n" for name, must in needed.items())
    other = "" if table in needed else f"[[match]]\n{line}\n" if table == "match" else f"[{table}]\n{line}\n"
    with pytest.raises(InvalidFileError) as refused:
        read(tmp_path, head + tables + other)
    assert told in refused.value.problem
    assert "\n" not in refused.value.problem


def mutated(text: str, seed: int) -> str:
    """Return a recipe with one value, line or letter replaced."""
    chance = random.Random(seed)
    lines = text.splitlines()
    at = chance.randrange(len(lines))
    key, equals, _ = lines[at].partition(" = ")
    changes = [
        lambda: f"{key} = {chance.choice(ODD)}" if equals else chance.choice(ODD),
        lambda: "",
        lambda: f"{lines[at]}\n{lines[chance.randrange(len(lines))]}",
        lambda: lines[at][: chance.randrange(len(lines[at]) + 1)] + chr(chance.randrange(1, 0x3000)),
    ]
    lines[at] = chance.choice(changes)()
    return "\n".join(lines)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(sorted(SHIPPED)), st.integers(0, 2**32))
def test_a_recipe_with_anything_in_it_is_read_or_refused(tmp_path, name, seed):
    text = mutated(SHIPPED[name].replace("../yolox/", ""), seed)
    with contextlib.suppress(EdgeoptError):
        assert read(tmp_path, text).folder == tmp_path


def test_a_recipe_beside_a_model_reads_nothing_outside_its_folder(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret.txt").write_text("a\n")
    (folder / "recipe.toml").write_text(SHIPPED["imagenet"].replace("source =", 'labels = "../secret.txt"\nsource ='))
    specs = [TensorSpec("x", "float32", (1, 3, 8, 8))], [TensorSpec("y", "float32", (1, 2))]
    with pytest.raises(InvalidFileError, match="outside the recipe's folder"):
        choose_recipe(None, folder / "model.onnx", *specs, {})
    assert choose_recipe(str(folder / "recipe.toml"), None, *specs, {}).recipe.class_names == ("a",)


READABLE = {
    "yolox": [(1, CELLS, 85)],
    "yolov8": [(1, 84, CELLS)],
    "yolov5": [(1, 3 * CELLS, 85)],
    "yolov5_heads": [(1, 3, 8, 12, 85), (1, 3, 4, 6, 85), (1, 3, 2, 3, 85)],
    "yolov10": [(1, 30, 6)],
    "ultraface": [(1, 40, 2), (1, 40, 4)],
    "imagenet": [(1, 1000)],
    "imagenet_caffe": [(1, 1000, 1, 1)],
}


def outputs_of(shapes):
    return [TensorSpec(f"o{i}", "float32", tuple(shape)) for i, shape in enumerate(shapes)]


@pytest.mark.parametrize("name", READABLE)
@pytest.mark.parametrize("shapes", READABLE.values(), ids=READABLE)
def test_a_recipe_for_other_outputs_is_refused_before_work_begins(name, shapes):
    fits = dict.fromkeys(("imagenet", "imagenet_caffe"), ("imagenet", "imagenet_caffe")) | {
        "yolox": ("yolox", "yolov5")
    }
    own = next(key for key, value in READABLE.items() if value == shapes)
    inputs = [TensorSpec("x", "float32", (1, 3, *SIZE))]
    if name in fits.get(own, (own,)):
        assert choose_recipe(name, None, inputs, outputs_of(shapes), {}).recipe.name == name
        return
    with pytest.raises(UnsupportedError, match="does not fit this model"):
        choose_recipe(name, None, inputs, outputs_of(shapes), {})


@pytest.mark.parametrize("strides", [(8,), (8, 16, 64), (4, 8, 16, 32), (16,)])
def test_strides_that_do_not_make_the_models_cells_are_refused(strides):
    recipe = find_recipe("yolox").with_size(*SIZE)
    recipe = replace(recipe, class_names=(), postprocess=replace(recipe.postprocess, strides=strides))
    inputs = [TensorSpec("x", "float32", (1, 3, *SIZE))]
    with pytest.raises(UnsupportedError, match=f"{count_cells(SIZE, strides)} cells"):
        registry.load(tasks, "detection").TASK(recipe, inputs, outputs_of([(1, CELLS, 85)]), True)


@pytest.mark.parametrize("shape", [(1,), (1, 1), (1, 3549, 85), (1, 2, 8, 8), (2, 1000)])
def test_a_classifier_of_no_scores_is_refused(shape):
    inputs = [TensorSpec("x", "float32", (1, 3, *SIZE))]
    with pytest.raises(UnsupportedError, match="class"):
        choose_recipe("imagenet", None, inputs, outputs_of([shape]), {})


def test_a_decoder_that_no_classifier_has_is_refused():
    recipe = find_recipe("imagenet").with_size(*SIZE)
    recipe = replace(recipe, postprocess=replace(recipe.postprocess, decoder="nope"))
    with pytest.raises(EdgeoptError, match="no decoder of task classification named 'nope'"):
        registry.load(tasks, "classification").TASK(
            recipe, [TensorSpec("x", "float32", (1, 3, 8, 8))], outputs_of([(1, 9)]), False
        )


anything = st.floats(width=32, allow_nan=True, allow_infinity=True)
rows = st.sampled_from(
    [shape for shapes in READABLE.values() for shape in shapes] + [(4,), (1,), (1, 0, 6), (1, 0, 85)]
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_output_is_answered_or_refused(data):
    name = data.draw(st.sampled_from(sorted(READABLE)))
    recipe = replace(find_recipe(name).with_size(*SIZE), class_names=())
    own = data.draw(st.booleans())
    shapes = READABLE[name] if own else data.draw(st.lists(rows | hnp.array_shapes(min_dims=0), min_size=1, max_size=3))
    numbers = replace(
        recipe.postprocess, boxes=data.draw(st.sampled_from(Boxes)), scores=data.draw(st.sampled_from(Scores))
    )
    free = outputs_of([(None, *(shape[1:] if own else [None] * (len(shape) - 1))) for shape in shapes])
    values = {f"o{i}": drawn(data, shape) for i, shape in enumerate(shapes)}
    answer = answered(replace(recipe, postprocess=numbers), free, values)
    if answer is None:
        assert not own or (name == "yolov5" and numbers.boxes is Boxes.CELLS)
        return
    assert np.isfinite(answer.scores).all()
    assert len(answer) <= 300
    if hasattr(answer, "boxes"):
        assert (answer.boxes >= 0).all()
        assert (answer.boxes <= [SIZE[1], SIZE[0]] * 2).all()
        assert (answer.classes >= 0).all()


def answered(recipe, outputs, values):
    """Return the answer, None where it is refused."""
    with warnings.catch_warnings(action="error"), contextlib.suppress(EdgeoptError):
        task = registry.load(tasks, recipe.task).TASK(
            recipe, [TensorSpec("x", "float32", (1, 3, *SIZE))], outputs, True
        )
        return task.postprocess(values, Geometry.of_input(SIZE))
    return None


def drawn(data, shape):
    """Return normal numbers with a few odd ones among them."""
    chance = np.random.default_rng(data.draw(st.integers(0, 99)))
    values = (chance.normal(size=shape) * data.draw(st.sampled_from([1, 50, 1e37]))).astype(np.float32)
    odd = data.draw(st.lists(anything, max_size=4))
    if values.size and odd:
        flat = values.reshape(-1)
        flat[chance.integers(0, flat.size, len(odd))] = odd
    return values
