"""Pictures of a camera that stands still: answers that repeat are right there, and wrong where anything gets them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from fixture_models import model as small_model

from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.measurement.accuracy.misreading import Misreading, find_misreading
from edgeopt.recipes.inputs.made_up import synthetic_frames
from edgeopt.recipes.inputs.preprocess import Colour, Preprocess, Resize
from edgeopt.recipes.recipe import Recipe
from edgeopt.recipes.recognise import choose_recipe

SIDE, PAGES = 96, 12
WHITE, INK, STAIN = 235, 30, (30, 30, 235)
READER = small_model(
    "ink (float[1,3,96,96] x) => (float[1,1,96,96] y) { l = Conv(x, w, b) y = Sigmoid(l) }",
    w=np.array([-6, 0, 0], np.float32).reshape(1, 3, 1, 1),
    b=np.array([-2], np.float32),
)
"""Text is where the first channel is dark, in ImageNet's numbers; RGB, so a red stain is none; read as BGR, it is."""


def page(index: int) -> np.ndarray:
    """Return a page with two lines in their places, and a red stain that lies elsewhere each time."""
    picture = np.full((SIDE, SIDE, 3), WHITE, np.uint8)
    picture[10:26, 8:80] = picture[40:56, 8:60] = INK
    rng = np.random.default_rng(index)
    left, top = rng.integers(4, 60), rng.integers(62, 76)
    picture[top : top + 12, left : left + 24] = STAIN
    return picture


def read(preprocess: Preprocess | None = None) -> tuple[Recipe, Misreading | None]:
    """Return the recipe of DBNet, and what is wrong with it on these pages without labels."""
    recipe = choose_recipe("dbnet", None, READER.inputs, READER.outputs, {}).recipe
    told = preprocess or replace(recipe.preprocess, colour=Colour.RGB)
    recipe = replace(recipe, preprocess=told)
    frames = replace(synthetic_frames((SIDE, SIDE), PAGES), read=page)
    session = EXECUTOR.open(READER.data, SessionOptions(threads=1))
    return recipe, find_misreading(recipe, READER.inputs, READER.outputs, session, frames, None)


def test_text_in_the_same_places_is_no_misreading():
    _, found = read()
    assert found is None, found.problem


def test_the_same_answer_to_anything_still_is_one():
    recipe, _ = read()
    _, found = read(replace(recipe.preprocess, scale=1e-6))  # black, whatever is on the page
    assert found.is_certain
    assert found.better.preprocess.scale > 1e-3


SIDES = np.zeros((12, 2), np.float32)
SIDES[[0, 2], 0], SIDES[[1, 3], 0] = -3, 3
SIDES[:, 1] = -SIDES[:, 0]
SORTER = small_model(
    """sides (float[1,3,32,32] x) => (float[1,2] y) {
        m = AveragePool <kernel_shape: ints = [16, 16], strides: ints = [16, 16]> (x) f = Flatten(m) y = MatMul(f, w)
    }""",
    w=SIDES,
)
"""Class 0 is a first channel that is darker on the left, class 1 one that is darker on the right."""


def part(index: int) -> np.ndarray:
    """Return a dark part on the left, as always; on every second picture something red and larger on the right."""
    picture = np.full((32, 32, 3), WHITE, np.uint8)
    picture[8:24, 2:10] = INK
    if index % 2:
        picture[:, 16:] = STAIN
    return picture


def sorted_by(black: bool) -> Misreading | None:
    recipe = choose_recipe("imagenet", None, SORTER.inputs, SORTER.outputs, {}).recipe
    if black:
        recipe = replace(recipe, preprocess=replace(recipe.preprocess, scale=1e-6))
    recipe = replace(recipe, preprocess=replace(recipe.preprocess, resize=Resize.STRETCH, crop_from=0))
    frames = replace(synthetic_frames((32, 32), PAGES), read=part)
    session = EXECUTOR.open(SORTER.data, SessionOptions(threads=1))
    return find_misreading(recipe, SORTER.inputs, SORTER.outputs, session, frames, None)


def test_one_class_on_all_pictures_is_no_misreading():
    found = sorted_by(black=False)
    assert found is None, found.problem


def test_one_class_on_anything_is_one():
    found = sorted_by(black=True)
    assert found.is_certain
    assert found.better.preprocess.scale > 1e-3
