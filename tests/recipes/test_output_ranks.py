"""Outputs without dimensions, and outputs of which not even their number is told, reach every reader of shapes."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from edgeopt.errors import EdgeoptError
from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes import matching
from edgeopt.recipes.drafting.drafted import Facts
from edgeopt.recipes.drafting.drafting import draft_recipe
from edgeopt.recipes.drafting.questions import nobody
from edgeopt.recipes.matching import Interface, recognised
from edgeopt.recipes.outputs.learned import heads_of
from edgeopt.recipes.recipe import Recipe, find_recipe
from edgeopt.recipes.recognise import choose_recipe
from edgeopt.system.disk import assets
from edgeopt.tasks import make_task

PICTURE = TensorSpec("x", "float32", (1, 3, 64, 64))
SCALAR, ROW = TensorSpec("age", "float32", ()), TensorSpec("scores", "float32", (1, 10))
UNRANKED = TensorSpec("y", "float32", (), is_unranked=True)
OUTPUTS = {
    "a scalar": (SCALAR,),
    "a scalar beside scores": (ROW, SCALAR),
    "a scalar before scores": (SCALAR, ROW),
    "three scalars": (SCALAR, SCALAR, SCALAR),
    "unranked": (UNRANKED,),
    "three unranked": (UNRANKED, UNRANKED, UNRANKED),
    "points before a scalar": (TensorSpec("p", "float32", (1, 8, 10)), ROW, SCALAR),
}


@pytest.fixture(autouse=True)
def read_once(monkeypatch):
    """The shipped recipes are read once: here thousands of outputs are matched against them."""
    monkeypatch.setattr(matching, "shipped_recipes", SHIPPED)


SHIPPED = cache(matching.shipped_recipes)
READ = [name for name in assets.model_folders() if find_recipe(name).task != "generation"]


@pytest.mark.parametrize("kind", OUTPUTS)
def test_any_outputs_are_looked_at_and_drafted(kind):
    outputs = OUTPUTS[kind]
    recognised(Interface([PICTURE], outputs, {}))
    for shape in ((1, 3, 64, 64), ("b", 3, "h", "w"), (1, 28, 28, 1), (1, 16000), ()):
        given = TensorSpec("x", "float32", shape)
        drafted = draft_recipe(Facts("net", Path("none/net.onnx"), 17, (given,), outputs, {}), None, nobody)
        assert drafted.recipe.task
    with pytest.raises(EdgeoptError, match="no recipe fits this model"):
        choose_recipe(None, None, [PICTURE], outputs, {})


@pytest.mark.parametrize("name", READ)
def test_no_recipe_stumbles_over_outputs_without_dimensions(name):
    """It says why it does not fit; of an unknown rank the first answer tells."""
    recipe = find_recipe(name)
    channels = 1 if recipe.preprocess.colour == "GREY" else 3
    side = max((*recipe.postprocess.strides, 16)) * 4
    shape = (channels, side, side) if recipe.input.layout == "CHW" else (1, channels, side, side)
    for outputs in OUTPUTS.values():
        told = [TensorSpec(f"y{i}", one.dtype, one.shape, is_unranked=one.is_unranked) for i, one in enumerate(outputs)]
        try:
            choice = choose_recipe(name, None, [TensorSpec("x", "float32", shape)], told, {})
            for evaluating in (False, True):
                task = make_task(choice.recipe, [TensorSpec("x", "float32", shape)], told, evaluating=evaluating)
                heads_of(task)
        except EdgeoptError:
            continue


def test_a_classifier_of_unknown_rank_reads_what_comes():
    recipe: Recipe = choose_recipe("imagenet", None, [PICTURE], [UNRANKED], {}).recipe
    task = make_task(recipe, [PICTURE], [UNRANKED], evaluating=False)
    assert task.postprocess({"y": np.eye(10, dtype=np.float32)[:1]}, None).indices[0] == 0
    with pytest.raises(EdgeoptError, match="one score a class"):
        task.postprocess({"y": np.zeros((1, 4, 4), np.float32)}, None)


def test_every_shipped_recipe_is_matched_against_every_rank():
    for recipe in SHIPPED():
        for match in recipe.match:
            for rank in range(6):
                shape = tuple(range(2, 2 + rank))
                outputs = [TensorSpec(f"y{i}", "float32", shape) for i in range(len(match.outputs))]
                recognised(Interface([PICTURE], outputs, {}))
