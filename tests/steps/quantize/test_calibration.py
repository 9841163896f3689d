from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from small_nets import frames, residual

from edgeopt.errors import EdgeoptError, UnsupportedError
from edgeopt.steps.quantize.api import open_graph, quantize
from edgeopt.steps.quantize.calibration.calibrate import calibrate
from edgeopt.steps.quantize.calibration.findings import NO_GRID_DB, study
from edgeopt.system.declared.target import Int8Rules

AXES = {"x": 1, "relu_1": 1, "add_5": 1}


def test_extremes_are_those_of_all_images_channel_by_channel() -> None:
    model = residual()
    images = [frame["x"] for frame in frames(model, 5)]
    seen = calibrate(model, frames(model, 5), AXES).observations["x"]
    np.testing.assert_array_equal(seen.low, np.concatenate(images).min(axis=(0, 2, 3)))
    np.testing.assert_array_equal(seen.high, np.concatenate(images).max(axis=(0, 2, 3)))
    assert seen.histogram.total == sum(image.size for image in images)
    assert seen.histogram.low == seen.low.min()


def test_running_in_groups_changes_nothing() -> None:
    model = residual()
    whole, split = (calibrate(model, frames(model), AXES, group_bytes=size) for size in (1 << 30, 1))
    for name in AXES:
        one, other = whole.observations[name], split.observations[name]
        np.testing.assert_allclose(one.low, other.low, atol=1e-5)
        np.testing.assert_allclose(one.samples, other.samples, atol=1e-5)


def test_samples_are_positions_that_were_there() -> None:
    model = residual()
    seen = calibrate(model, frames(model, 3), AXES).observations["x"]
    there = {tuple(row) for frame in frames(model, 3) for row in frame["x"][0].reshape(3, -1).T}
    assert {tuple(row) for row in seen.samples} <= there
    assert seen.samples.shape == (192, 3)


def test_the_same_seed_samples_the_same_positions() -> None:
    model = residual()
    one, same, other = (
        calibrate(model, frames(model), AXES, seed=seed).observations["x"].samples for seed in (3, 3, 4)
    )
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)


def test_memory_does_not_grow_with_the_number_of_images() -> None:
    model = residual()
    peaks, kept = [], []
    for count in (40, 200):
        tracemalloc.start()
        made = calibrate(model, frames(model, count), AXES)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        kept.append({name: one.samples.shape for name, one in made.observations.items()})
    assert kept[0] == kept[1]
    assert peaks[1] < 1.1 * peaks[0]


def test_progress_counts_the_images() -> None:
    model, done = residual(), []
    assert calibrate(model, frames(model, 3), AXES, progress=done.append).images == 3
    assert done == [1, 2, 3]


def test_no_images_are_refused() -> None:
    with pytest.raises(EdgeoptError, match="no calibration images"):
        calibrate(residual(), [], AXES)


def test_an_input_of_nan_names_the_input_and_the_image() -> None:
    model = residual()
    images = list(frames(model, 2))
    images[1]["x"][0, 0, 0, 0] = np.nan
    with pytest.raises(UnsupportedError, match="input 'x' is NaN for calibration image 2"):
        quantize(model, images, Int8Rules())


def test_infinity_is_kept_out_of_grids_and_told_with_its_first_image() -> None:
    model = residual()
    images = list(frames(model, 3))
    finite = calibrate(model, [images[0], images[2]], {"x": 1}).observations["x"]
    images[1]["x"][:] = -np.inf
    seen = calibrate(model, images, {"x": 1}).observations["x"]
    assert seen.why_no_grid == "is infinite for calibration image 2"
    assert finite.why_no_grid == ""
    np.testing.assert_array_equal(seen.high, finite.high)
    assert np.isfinite(seen.samples).all()
    findings = study(model, open_graph(model), images, Int8Rules())
    assert findings.scores_db["x"] == NO_GRID_DB
    assert any("'x' is infinite for calibration image 2" in note.detail for note in findings.notes)


def test_images_all_alike_are_warned_of_with_evidence() -> None:
    model = residual()
    image = next(frames(model))
    outcome = quantize(model, [image] * 4, Int8Rules())
    warning = next(note for note in outcome.notes if note.kind == "warning")
    assert warning.detail == "the 4 calibration images are alike"
    assert warning.more.startswith("they differ by 0.00% of the spread")


def test_a_single_image_is_warned_of() -> None:
    model = residual()
    (warning,) = study(model, open_graph(model), frames(model, 1), Int8Rules()).notes
    assert warning.kind == "warning"
    assert "there was 1 calibration image" in warning.detail


def test_images_of_one_colour_each_are_alike_only_if_it_is_the_same() -> None:
    model = residual()
    black, white = ({"x": np.full((1, 3, 32, 32), value, np.float32)} for value in (0, 1))
    for images, warned in (([black, white], False), ([white, white], True)):
        notes = study(model, open_graph(model), images, Int8Rules()).notes
        assert ["alike" in note.detail for note in notes] == [True] * warned


def test_different_images_are_not_warned_of() -> None:
    model = residual()
    findings = study(model, open_graph(model), frames(model), Int8Rules())
    assert findings.notes == ()
    assert findings.calibration.spread_ratio > 0.3


def test_whole_numbers_of_a_picture_keep_their_own_grid() -> None:
    model = residual()
    pictures = [{"x": np.clip(np.rint(frame["x"] * 60 + 100), 0, 255).astype(np.float32)} for frame in frames(model)]
    affine = study(model, open_graph(model), pictures, Int8Rules()).affines["x"]
    assert (affine.scale, affine.zero_point) == (1.0, 0)
