"""Pictures of sounds and texts: what was found is seen where it is, whatever letters there are."""

from __future__ import annotations

import numpy as np
import pytest

from edgeopt.graph.sound import Sound
from edgeopt.graph.tensors import Frame
from edgeopt.recipes.drawings.drawing import class_colour
from edgeopt.recipes.drawings.sample_drawing import (
    Mark,
    draw_classes_of_sound,
    draw_classes_of_text,
    draw_spans_of_text,
    draw_stretches_of_sound,
)


def places(drawn: Frame, colour: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of a colour."""
    rows, columns = np.nonzero((drawn == colour).all(axis=2))
    return rows, columns


def tone(seconds: float, begin: float, end: float) -> Sound:
    time = np.arange(round(8000 * seconds)) / 8000
    return Sound((np.sin(time * 3000) * ((time >= begin) & (time < end))).astype(np.float32), 8000)


@pytest.mark.parametrize("height", [160, 320, 480])
def test_a_stretch_is_bright_where_it_is_heard(height: int) -> None:
    shares = np.array([0.1, np.nan, 0.9, 0.8, 0.2, 0.0], np.float32)
    drawn = draw_stretches_of_sound(tone(6, 2, 4), shares, 0.5, "speech", height)
    assert drawn.shape == (height, 2 * height, 3)
    rows, columns = places(drawn, class_colour(1))
    assert rows.min() > height // 2
    assert columns.min() / (2 * height) == pytest.approx(1 / 3, abs=0.02)
    assert columns.max() / (2 * height) == pytest.approx(2 / 3, abs=0.02)
    upper = drawn[: height // 5].max(axis=2) > 100  # the waveform is high in the same stretch alone
    heard = np.nonzero(upper.any(axis=0))[0]
    assert heard.min() / (2 * height) == pytest.approx(1 / 3, abs=0.02)
    assert heard.max() / (2 * height) == pytest.approx(2 / 3, abs=0.02)


def test_bars_are_as_long_as_their_shares() -> None:
    for drawn in (
        draw_classes_of_sound(tone(1, 0, 1), [("rise", 0.8), ("fall", 0.2)], 320),
        draw_classes_of_text("so good", [("good " * 40, 0.8), ("bad", 0.2)], 320),
    ):
        bar = (200, 140, 60)
        rows, columns = places(drawn, bar)
        lengths = [int((columns[rows == row]).max() - columns.min()) for row in (rows.min() + 3, rows.max() - 3)]
        assert lengths[1] / lengths[0] == pytest.approx(0.25, abs=0.02)


def test_spans_are_coloured_by_their_kind() -> None:
    text = "Ann met Bob in Rome"
    marks = [Mark(0, 3, "PER"), Mark(8, 11, "PER"), Mark(15, 19, "LOC")]
    drawn = draw_spans_of_text(text, marks, 320)
    _, people = places(drawn, class_colour(1))  # kinds in their order: LOC, PER
    _, cities = places(drawn, class_colour(0))
    assert people.min() == 8
    assert cities.min() > people.max()
    gaps = np.diff(np.unique(people))
    assert (gaps > 10).sum() == 1  # two people with words between
    assert not len(places(draw_spans_of_text(text, [], 320), class_colour(1))[0])


@pytest.mark.parametrize("text", ["", " ", "word " * 2000, "w" * 5000, "\n\t odd \x00 ÄÖ 你好 🎉"])
def test_no_text_breaks_a_picture(text: str) -> None:
    drawn = draw_spans_of_text(text, [Mark(0, len(text), "X")] if text else [], 320)
    for one in (drawn, draw_classes_of_text(text, [], 320)):
        assert one.shape[0] <= 320
        assert one.shape[1:] == (640, 3)
    assert drawn.shape == draw_spans_of_text(text, [], 320).shape  # two answers to a text stand side by side


def test_silence_and_nothing_are_drawn() -> None:
    silent = Sound(np.zeros(4, np.float32), 8000)
    assert draw_classes_of_sound(silent, [], 320).shape == (320, 640, 3)
    nothing = Sound(np.zeros(0, np.float32), 8000)
    assert draw_stretches_of_sound(nothing, np.zeros(0, np.float32), 0.5, "speech", 320).shape == (320, 640, 3)
