"""Pictures of numbers: curves and maps show what the outputs hold, whatever that is."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from edgeopt.graph.sound import Sound
from edgeopt.graph.tensors import Frame, Tensors, TensorSpec
from edgeopt.recipes.drawings.drawing import class_colour
from edgeopt.recipes.drawings.sample_drawing import draw_vector_of_picture, draw_vector_of_sound, draw_vector_of_text
from edgeopt.recipes.drawings.tensor_drawing import DrawnOutput, draw_tensors, vector_strip
from edgeopt.recipes.recipe import find_recipe
from edgeopt.tasks.tensors import TASK

ROWS, WIDTH, CURVE = 320, 640, (200, 180, 120)
DARKEST, BRIGHTEST = vector_strip(np.array([-1, 1], np.float32), 2, 1)[0].tolist()


def drawn(*values: np.ndarray) -> Frame:
    return draw_tensors([DrawnOutput("y", one) for one in values], ROWS, WIDTH)


def places(picture: Frame, colour: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    rows, columns = np.nonzero((picture == colour).all(axis=2))
    return rows, columns


@pytest.mark.parametrize("count", [300, 5000])
def test_a_vector_is_a_curve_with_a_gap_where_it_is_lost(count: int) -> None:
    values = np.linspace(-1, 1, count, dtype=np.float32)
    values[count // 3 : count // 2] = np.nan
    is_curve = np.abs(drawn(values[None]).astype(int) - CURVE).max(axis=2) < 60
    columns = np.nonzero(is_curve[40:].any(axis=0))[0]
    heights = [np.nonzero(is_curve[40:, one])[0].mean() for one in columns]
    assert np.all(np.diff(heights) < 2)
    assert heights[0] - heights[-1] > 200
    gap = np.diff(columns).argmax()
    assert (columns[gap] - 8) / 624 == pytest.approx(1 / 3, abs=0.02)
    assert (columns[gap + 1] - 8) / 624 == pytest.approx(1 / 2, abs=0.02)


@pytest.mark.parametrize("is_channels_last", [False, True])
def test_maps_lie_side_by_side_from_dark_to_bright(is_channels_last: bool) -> None:
    maps = np.full((1, 3, 8, 8), 0.5)
    maps[0, 0, 0, 0], maps[0, 2, 7, 7], maps[0, 1, 4, 4] = 0, 1, np.inf
    picture = drawn(np.moveaxis(maps, 1, 3) if is_channels_last else maps)
    (dark, _), (bright, right) = places(picture, tuple(DARKEST)), places(picture, tuple(BRIGHTEST))
    lost, middle = places(picture, class_colour(0))
    assert 0 < dark.min() < lost.min() < bright.max()
    assert places(picture, tuple(DARKEST))[1].max() < middle.min() <= middle.max() < right.min()


def test_many_outputs_are_counted_and_the_layout_is_that_of_the_shapes() -> None:
    vectors = [np.arange(5.0) + i for i in range(6)]
    assert np.array_equal(drawn(*vectors[:4]), drawn(*[one * 3 for one in vectors[:4]]))
    assert drawn(*vectors).any(axis=2).all()
    assert not np.array_equal(drawn(*vectors), drawn(*vectors[:5]))  # "and 2 more outputs"


@pytest.mark.parametrize(
    "value",
    [
        np.zeros((0, 3), np.float32),
        np.float32(3),
        np.full((4, 4), np.nan),
        np.array([1e308, -1e308, 0.0]),
        np.array([2**63 - 1, -(2**63)], np.int64),
        np.array([True, False]),
        np.array(["a", "b"], object),
        np.full((2, 3), 7, np.uint8),
        np.zeros((2, 40_000), np.float16),
        np.zeros((40_000, 2), np.float32),
        np.zeros((1, 2, 3, 4, 5, 6), np.float32),
        np.zeros((3000, 3, 3), np.float32),
    ],
    ids=lambda value: f"{value.dtype}-{value.shape}",
)
@pytest.mark.parametrize("rows", [24, 96, ROWS])
def test_no_output_breaks_a_picture(value: np.ndarray, rows: int) -> None:
    with warnings.catch_warnings(action="error"):
        picture = draw_tensors([DrawnOutput("y", np.asarray(value))] * 4, rows, WIDTH)
    assert picture.shape == (rows, WIDTH, 3)


def test_outputs_are_beside_a_picture_below_a_sound_and_alone_for_arrays() -> None:
    task = TASK(find_recipe("tensors"), (TensorSpec("x", "float32", (1, 3)),), (), False)
    answer: Tensors = {"y": np.arange(8, dtype=np.float32)}
    frame = np.full((100, 150, 3), 200, np.uint8)
    beside = task.draw(frame, answer, 320)
    assert beside.shape == (320, 480 + 640, 3)
    assert (beside[:, :480] == 200).all()
    alone = task.draw({"x": np.zeros((1, 3), np.float32)}, answer, 320)
    assert np.array_equal(alone, beside[:, 480:])
    sound = Sound(np.ones(80, np.float32), 8000)
    assert task.draw(sound, answer, 320).shape == alone.shape


def test_vectors_are_alike_where_their_strips_are() -> None:
    one, other = np.array([0.6, -0.8], np.float32), np.array([-0.8, 0.6], np.float32)
    sound, frame = Sound(np.ones(80, np.float32), 8000), np.zeros((320, 320, 3), np.uint8)
    for first, same, second in (
        [draw_vector_of_text("so good", vector, 320) for vector in (one, one, other)],
        [draw_vector_of_sound(sound, vector, 320) for vector in (one, one, other)],
        [draw_vector_of_picture(frame, vector, 320) for vector in (one, one, other)],
    ):
        assert np.array_equal(first, same)
        assert np.array_equal(first[:-25], second[:-25])
        assert np.array_equal(first[-25:], second[-25:, ::-1])
        assert not np.array_equal(first[-25:], second[-25:])
