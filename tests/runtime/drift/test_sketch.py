"""A sketch is plain numbers in a file, and a damaged one is refused in one line."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from edgeopt.errors import InvalidFileError
from edgeopt.runtime.drift.figures import FigureReader
from edgeopt.runtime.drift.sketch import read_sketch, sketch_of, surprise, write_sketch

READER = FigureReader("x", 1, 2.0, {"x": (-1.0, 1.0)})


def looks(count: int, seed: int = 0) -> list[tuple[dict[str, float], tuple[int, ...]]]:
    generator = np.random.default_rng(seed)
    return [
        ({"brightness": float(generator.normal()), "grain": math.nan if i % 2 else 1.0 * i}, (i % 5, i % 3))
        for i in range(count)
    ]


def test_a_sketch_survives_its_file(tmp_path):
    sketch = sketch_of("model.onnx", "field", READER, looks(70))
    assert sketch is not None
    write_sketch(tmp_path / "site.json", sketch)
    assert read_sketch(tmp_path / "site.json") == sketch
    assert len(sketch.values["brightness"]) == 70
    assert len(sketch.values["grain"]) == 35  # NaN says nothing
    assert sketch.classes["0"] == sum((i % 5, i % 3).count(0) for i in range(3, 70, 4))


def test_few_frames_are_no_sketch_and_rare_figures_are_left_out():
    assert sketch_of("m", "field", READER, looks(31)) is None
    sketch = sketch_of("m", "field", READER, looks(40))
    assert sketch is not None
    assert set(sketch.values) == {"brightness"}, "grain and classes are known of 20 frames only"


def test_frames_whose_surprise_is_ranked_are_not_counted():
    """Each frame names a class of its own: none is rarer than another, here or in the field."""
    frames = [({"brightness": float(i)}, (i,)) for i in range(64)]
    sketch = sketch_of("m", "field", READER, frames)
    assert sketch is not None
    assert set(sketch.classes) == {str(i) for i in range(3, 64, 4)}
    counts = {int(index): count for index, count in sketch.classes.items()}
    assert set(sketch.values["surprise"]) == {surprise((99,), counts)} == {0.0}
    assert surprise((3, 3), counts) == pytest.approx(-math.log(2))
    assert math.isnan(surprise((), counts))


def test_usual_frames_of_the_field_are_as_surprising_as_those_of_the_sketch():
    """Classes are of very different frequencies, and a frame names one to four of them."""
    generator = np.random.default_rng(3)
    shares = 1 / np.arange(1, 81)
    means = []
    for _ in range(150):
        drawn = [
            (
                {"brightness": 0.0},
                tuple(generator.choice(80, generator.integers(1, 5), p=shares / shares.sum()).tolist()),
            )
            for _ in range(128 + 60)
        ]
        sketch = sketch_of("m", "field", READER, drawn[:128])
        assert sketch is not None
        values, counts = sketch.values["surprise"], {int(index): count for index, count in sketch.classes.items()}
        field = [surprise(classes, counts) for _, classes in drawn[128:]]
        sides = [np.searchsorted(values, field, side) for side in ("left", "right")]
        below = (sides[0] + sides[1]) / 2 / len(values)
        means.append(np.mean(below))
    assert np.mean(means) == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda values: values.update(schema=3), "schema"),
        (lambda values: values["values"]["brightness"].reverse(), "ascending"),
        (lambda values: values["values"].update(brightness=[1.0] * 31), "31 values"),
        (lambda values: values.update(frames=9), "frames"),
        (lambda values: values["reader"].update(span=0.0), "span"),
        (lambda values: values["reader"].pop("name"), "name"),
        (lambda values: values.update(classes={"1": 0}), "classes"),
        (lambda values: values.update(more=1), "more"),
    ],
)
def test_a_damaged_sketch_is_refused(tmp_path, change, says):
    sketch = sketch_of("model.onnx", "field", READER, looks(70))
    assert sketch is not None
    path = tmp_path / "site.json"
    write_sketch(path, sketch)
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))
    with pytest.raises(InvalidFileError, match=says):
        read_sketch(path)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"schema": 1}', "NaN"])
def test_what_is_no_sketch_is_refused(tmp_path, text):
    path = tmp_path / "site.json"
    path.write_text(text)
    with pytest.raises(InvalidFileError):
        read_sketch(path)
