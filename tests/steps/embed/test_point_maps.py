"""Maps of points inside the model: the pose is the task's, with ties, borders, damaged numbers and nothing sure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnxruntime as ort
import pytest
from figures import POINTS as OF_RODS
from figures import rod
from fixture_models import model as written
from fixture_models import numbers as normal
from fixture_models import scalar

from edgeopt.errors import UnsupportedError
from edgeopt.graph.model import Model, load_model
from edgeopt.recipes.embedded import BOXES, CLASSES, POINTS, SCORES, Embedded
from edgeopt.recipes.inputs.preprocess import Geometry, Input, Preprocess, Resize
from edgeopt.recipes.recipe import Boxes, Centres, Recipe, Scores, find_recipe
from edgeopt.recipes.scoring.keypoints import Keypoints
from edgeopt.steps.embed_postprocess import EMBEDDED, POINT_MAPS, embed_postprocess
from edgeopt.steps.embed_preprocess import embed_preprocess
from edgeopt.tasks import make_task
from edgeopt.tasks.keypoints.decoders import DECODERS
from edgeopt.tasks.keypoints.poses import Poses

SIZE, CELLS, COUNT = (60, 100), (16, 24), 9
"""Sizes of the input, of a map, of points; a cell is no whole number of pixels."""
KEYPOINTS = Path(__file__).parents[2] / "trained" / "keypoints.onnx"


def test_every_decoder_of_poses_is_compared_or_refused() -> None:
    assert DECODERS.keys() - EMBEDDED.keys() - POINT_MAPS.keys() == {"poses"}  # ends in suppression already


def raw(decoder: str) -> list[np.ndarray]:
    chance = np.random.default_rng(5)
    shapes = [(COUNT, *CELLS)] if decoder == "heatmaps" else [(COUNT, 150), (COUNT, 77)]
    return [chance.uniform(0.1, 0.9, (1, *shape)).astype(np.float32) for shape in shapes]


def tied(maps: list[np.ndarray]) -> None:
    for one in maps:
        one[:] = np.round(one * 3) / 4


def level(maps: list[np.ndarray]) -> None:
    """Equal neighbours on one side, or on both, of the highest place; whole maps of one number."""
    for one in maps:
        one[:] = 0.5
        one[:, 1:4, 7] = 0.7
        one[:, 3] = 0.25


def at_the_border(maps: list[np.ndarray]) -> None:
    for one in maps:
        flat = one.reshape(COUNT, -1)
        last, wide = flat.shape[1] - 1, one.shape[-1]
        places = (0, 1, wide - 1, wide, wide + 1, last, last - 1, last - wide + 1, last - wide)
        flat[np.arange(COUNT), np.clip(places, 0, last)] = 1.0


def out_of_range(maps: list[np.ndarray]) -> None:
    for one in maps:
        one[:] = one * 9 - 3


def negative(maps: list[np.ndarray]) -> None:
    for one in maps:
        one[:, ::2] -= 2


def infinite(maps: list[np.ndarray]) -> None:
    for one in maps:
        one[0, 1].flat[3] = np.inf
        one[0, 2].flat[0] = -np.inf
        one[0, 4] = -np.inf
        one[0, 5].flat[0] = np.inf


def damaged(maps: list[np.ndarray]) -> None:
    maps[-1][0, 3].flat[11] = np.nan


def damaged_at_first(maps: list[np.ndarray]) -> None:
    maps[-1][0, 3].flat[0] = np.nan


def lost(maps: list[np.ndarray]) -> None:
    for one in maps:
        one[:] = np.nan


def empty(maps: list[np.ndarray]) -> None:
    for one in maps:
        one[:] = 0


HABITS = (tied, level, at_the_border, out_of_range, negative, infinite, damaged, damaged_at_first, lost, empty)


def recipe_of(decoder: str, **numbers: Any) -> Recipe:
    recipe = find_recipe("hrnet" if decoder == "heatmaps" else "rtmpose").with_size(*SIZE)
    return replace(recipe, postprocess=replace(recipe.postprocess, **numbers))


def passing_through(values: Sequence[np.ndarray], opset: int, kind: str = "float") -> Model:
    """Return a model whose outputs are its inputs."""
    ends = [
        ", ".join(f"{kind}[{','.join(map(str, one.shape))}] {name}{i}" for i, one in enumerate(values))
        for name in ("in", "out")
    ]
    nodes = "\n".join(f"out{i} = Identity(in{i})" for i in range(len(values)))
    return written(f"g ({ends[0]}) => ({ends[1]}) {{ {nodes} }}", opset=opset)


def opened(model: Model) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(model.data, options, providers=["CPUExecutionProvider"])


def check(recipe: Recipe, values: Sequence[np.ndarray], opset: int = 17) -> Poses:
    """Compare an embedded decoder with the task's; return the task's answer."""
    model = passing_through(values, opset)
    task = make_task(recipe, model.inputs, model.outputs, evaluating=False)
    fed = {f"out{i}": one for i, one in enumerate(values)}
    wanted = task.postprocess(fed, Geometry(1.0, 1.0, 0.0, 0.0, 10**6, 10**6))
    made = embed_postprocess(model, recipe)
    assert made.opset == opset
    found = opened(made).run([BOXES, SCORES, CLASSES, POINTS], {f"in{i}": one for i, one in enumerate(values)})
    for one, other in zip(found, (wanted.boxes, wanted.scores, wanted.classes, wanted.points), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
    np.testing.assert_array_equal(found[0], wanted.boxes)
    np.testing.assert_array_equal(found[3][..., :2], wanted.points[..., :2])
    np.testing.assert_allclose(found[3][..., 2], wanted.points[..., 2], atol=1e-6)
    np.testing.assert_allclose(found[1], wanted.scores, atol=1e-6)
    np.testing.assert_array_equal(found[2], wanted.classes)
    return wanted


@pytest.mark.parametrize("habit", HABITS)
@pytest.mark.parametrize("scores", [Scores.USUAL, Scores.LOGITS])
@pytest.mark.parametrize("decoder", POINT_MAPS)
def test_an_embedded_decoder_gives_the_tasks_pose(decoder: str, scores: Scores, habit: Any) -> None:
    values = raw(decoder)
    habit(values)
    count = len(check(recipe_of(decoder, scores=scores), values))
    is_nothing = habit in (damaged_at_first, lost) or (habit is damaged and decoder == "simcc")
    assert count == int(not is_nothing and not (habit is empty and scores is Scores.USUAL))


@pytest.mark.parametrize("opset", [13, 18, 21])
@pytest.mark.parametrize("decoder", POINT_MAPS)
def test_it_is_written_in_the_models_opset(decoder: str, opset: int) -> None:
    assert len(check(recipe_of(decoder), raw(decoder), opset)) == 1


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (9, 1), (2, 2), (3, 3)])
def test_maps_of_few_cells_have_no_neighbours_to_move_to(shape: tuple[int, int]) -> None:
    maps = np.random.default_rng(2).uniform(0.3, 0.9, (1, 40, *shape)).astype(np.float32)
    assert len(check(recipe_of("heatmaps"), [maps])) == 1


@pytest.mark.parametrize("decoder", POINT_MAPS)
def test_the_recipes_numbers_count(decoder: str) -> None:
    """Where a cell's place is, how sure a pose must be; a unit of boxes is no unit of maps, nor a detector's points."""
    maps = raw(decoder)
    least = float(check(recipe_of(decoder), maps).scores[0])
    assert len(check(recipe_of(decoder, score_threshold=least + 0.01), maps)) == 0
    moved = check(recipe_of(decoder, centres=Centres.MIDDLE, boxes=Boxes.RELATIVE), maps)
    recipe = replace(recipe_of(decoder), keypoints=Keypoints(values=2, names=tuple("abc")))
    usual = check(recipe, maps)
    assert np.array_equal(moved.points, usual.points) == (decoder == "simcc")


@pytest.mark.parametrize("decoder", POINT_MAPS)
def test_half_precision_is_read_in_float32(decoder: str) -> None:
    values = [one.astype(np.float16) for one in raw(decoder)]
    wanted = check(recipe_of(decoder), [one.astype(np.float32) for one in values])
    made = embed_postprocess(passing_through(values, 17, "float16"), recipe_of(decoder))
    found = opened(made).run([POINTS], {f"in{i}": one for i, one in enumerate(values)})[0]
    np.testing.assert_allclose(found, wanted.points, atol=1e-6)


def test_maps_of_a_free_size_are_refused() -> None:
    model = written("g (float[1,9,h,w] in0) => (float[1,9,h,w] out0) { out0 = Identity(in0) }")
    with pytest.raises(UnsupportedError, match=r"dimension 2 of output .* is free"):
        embed_postprocess(model, recipe_of("heatmaps"))


def network(name: str) -> tuple[Model, Recipe]:
    """Return a graph with maps as the shipped recipe's family has them, or the trained one, and its recipe."""
    if name == "trained":
        recipe, model = find_recipe("hrnet"), load_model(KEYPOINTS)
        numbers = replace(recipe.postprocess, centres=Centres.MIDDLE)
        keypoints, plain = Keypoints(names=OF_RODS), Preprocess(resize=Resize.STRETCH, scale=1 / 255)
        recipe = replace(recipe, postprocess=numbers, preprocess=plain, keypoints=keypoints, class_names=("rod",))
        return model, replace(recipe, input=Input(model.inputs[0].name, (64, 64)))
    recipe = find_recipe("rtmpose" if name == "rtmpose" else "hrnet").with_size(64, 48)
    weights = {"w": normal(17, 3, 8, 8) / 16}
    if name == "hrnet on integers":  # of few steps, so that many places are equally high
        ends = "(float[1,3,64,48] x) => (float[1,17,16,12] maps)"
        body = """xq = QuantizeLinear(x, xs, zero) xd = DequantizeLinear(xq, xs, zero)
            wd = DequantizeLinear(wq, ws, zero)
            sums = Conv<strides=[4,4], pads=[2,2,2,2]>(xd, wd)
            mq = QuantizeLinear(sums, ms, zero) maps = DequantizeLinear(mq, ms, zero)"""
        steps = {"xs": scalar(0.02), "ws": scalar(0.01), "ms": scalar(0.4), "zero": np.array(0, np.int8)}
        integers = np.clip(np.rint(weights["w"] / 0.01), -127, 127).astype(np.int8)
        return written(f"g {ends} {{ {body} }}", wq=integers, **steps), recipe
    if name == "hrnet":
        ends = "(float[1,3,64,48] x) => (float[1,17,16,12] maps)"
        return written(f"g {ends} {{ maps = Conv<strides=[4,4], pads=[2,2,2,2]>(x, w) }}", **weights), recipe
    ends = "(float[1,3,64,48] x) => (float[1,17,96] simcc_x, float[1,17,128] simcc_y)"
    body = """maps = Conv<strides=[4,4], pads=[2,2,2,2]>(x, w)
        columns = ReduceMax<axes=[2], keepdims=0>(maps)
        lines = ReduceMax<axes=[3], keepdims=0>(maps)
        simcc_x = MatMul(columns, wide)
        simcc_y = MatMul(lines, high)"""
    mixed = {"wide": normal(12, 96, seed=1), "high": normal(16, 128, seed=2)}
    return written(f"g {ends} {{ {body} }}", **weights, **mixed), recipe


def answers_of(model: Model, recipe: Recipe, frames: Sequence[np.ndarray]) -> list[Poses]:
    task = make_task(recipe, model.inputs, model.outputs, evaluating=False)
    session, answers = opened(model), []
    names = [one.name for one in session.get_outputs()]
    for frame in frames:
        inputs, geometry = task.preprocess(frame)
        answers.append(task.postprocess(dict(zip(names, session.run(None, dict(inputs)), strict=True)), geometry))
    return answers


@pytest.mark.parametrize("parts", [(Embedded.POSTPROCESS,), (Embedded.PREPROCESS, Embedded.POSTPROCESS)])
@pytest.mark.parametrize("name", ["hrnet", "hrnet on integers", "rtmpose", "trained"])
def test_a_networks_pose_is_the_tasks_in_the_frame(name: str, parts: tuple[Embedded, ...]) -> None:
    """With the frame embedded its resize is fed to both alike; `parts` end in the postprocessing."""
    model, recipe = network(name)
    fed = embed_preprocess(model, recipe) if len(parts) == 2 else model
    inside = embed_postprocess(fed, recipe)
    assert [one.name for one in inside.outputs] == [BOXES, SCORES, CLASSES, POINTS]
    frames = [cv2.resize(rod(i)[0], (70 + 31 * i, 150 - 20 * i)) for i in range(4)]
    wanted_ones = answers_of(fed, recipe.with_embedded(*parts[:-1]), frames)
    for found, wanted in zip(answers_of(inside, recipe.with_embedded(*parts), frames), wanted_ones, strict=True):
        assert len(found) == len(wanted) == 1
        np.testing.assert_allclose(found.points, wanted.points, rtol=1e-6, atol=1e-4)
        np.testing.assert_allclose(found.boxes, wanted.boxes, rtol=1e-6, atol=1e-4)
        np.testing.assert_allclose(found.scores, wanted.scores, atol=1e-6)
