"""Outputs in reserved memory: the same numbers, in the same place each time, and errors in the same words."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fixture_models import model, numbers

from edgeopt.errors import UnsupportedError
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.graph.model import Model
from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.recipe import find_recipe
from edgeopt.tasks import make_task

TWO = "net (float[2,3] x, int64[1] i) => (float[2,3] y, float[1,3] z) { y = Relu(x) z = Gather(x, i) }"
GIVEN = {"x": numbers(2, 3), "i": np.array([1])}


def opened(net: Model):
    session = EXECUTOR.open(net.data, SessionOptions())
    return session, session.beside(reuse=True)


def test_the_numbers_are_the_same_and_lie_where_they_lay():
    plain, reused = opened(model(TWO))
    first = reused.run(GIVEN)
    assert all(np.array_equal(first[name], value) for name, value in plain.run(GIVEN).items())
    kept = {name: value.copy() for name, value in first.items()}
    other = {"x": GIVEN["x"][:, ::-1], "i": np.array([0])}
    assert not other["x"].flags["C_CONTIGUOUS"]
    second = reused.run(other)
    assert all(second[name] is first[name] for name in first)
    assert all(np.array_equal(second[name], value) for name, value in plain.run(other).items())
    assert not np.array_equal(kept["y"], second["y"])
    given = {"x": GIVEN["x"].copy(), "i": np.array([0])}
    reused.run(given)
    given["x"][...] = 7
    assert np.array_equal(reused.run(given)["y"], np.full((2, 3), 7)), "a buffer that is filled again is read again"


def test_sessions_beside_each_other_share_no_memory():
    _, one = opened(model(TWO))
    other = one.beside(reuse=True)
    found, again = one.run(GIVEN), other.run({**GIVEN, "x": GIVEN["x"] + 1})
    assert not any(np.shares_memory(found[name], again[name]) for name in found)
    other.close()
    assert np.array_equal(one.run(GIVEN)["y"], np.maximum(GIVEN["x"], 0))


@pytest.mark.parametrize(
    ("given", "error", "told"),
    [
        ({"x": GIVEN["x"]}, ValueError, "inputs are x, not i, x"),
        ({**GIVEN, "more": GIVEN["x"]}, ValueError, "inputs are i, more, x"),
        ({**GIVEN, "i": np.array([9])}, UnsupportedError, "does not run the model on these inputs: .*idx=9"),
        ({**GIVEN, "x": GIVEN["x"].astype(np.float64)}, UnsupportedError, "double"),
        ({**GIVEN, "x": numbers(5, 3)}, UnsupportedError, "(?i)invalid dimensions"),
    ],
)
def test_what_is_wrong_is_told_in_the_engines_words_and_the_next_frame_runs(given, error, told):
    _, reused = opened(model(TWO))
    first = reused.run(GIVEN)
    with pytest.raises(error, match=told):
        reused.run(given)
    assert np.array_equal(reused.run(GIVEN)["y"], np.maximum(GIVEN["x"], 0))
    assert reused.run(GIVEN)["y"] is first["y"], "a wrong frame costs the memory nothing"


def test_shapes_that_are_free_or_not_as_declared_get_new_memory():
    plain, reused = opened(model("net (float[n,3] x) => (float[n,3] y) { y = Relu(x) }"))
    assert reused is plain
    counted = model("net (float[4] x) => (int64[1,2] y) { y = NonZero(x) }")
    plain, reused = opened(counted)
    if reused is plain:
        return  # the engine found out that the declared shape is none
    for values in ([1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 0]):
        given = {"x": np.array(values, np.float32)}
        assert np.array_equal(reused.run(given)["y"], plain.run(given)["y"])


@pytest.mark.parametrize(("recipe", "shape"), [("imagenet", (1, 10)), ("tensors", (1, 10))])
def test_a_task_says_whether_its_answers_show_the_outputs(recipe, shape):
    specs = (TensorSpec("x", "float32", (1, 3, 8, 8)),), (TensorSpec("y", "float32", shape),)
    found = find_recipe(recipe)
    sized = found if recipe == "tensors" else replace(found, input=replace(found.input, size=(8, 8)))
    task = make_task(sized, *specs, evaluating=False)
    outputs = {"y": numbers(*shape)}
    answer = task.postprocess(outputs, None)
    parts = answer.values() if recipe == "tensors" else (answer.indices, answer.scores)
    assert task.holds_outputs is any(np.shares_memory(one, outputs["y"]) for one in parts)
