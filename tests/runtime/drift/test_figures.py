"""Figures of frames move with what they are named for, and with nothing else."""

from __future__ import annotations

import math

import cv2
import numpy as np
import pytest

from edgeopt.graph.tensors import TensorSpec
from edgeopt.runtime.drift.figures import FigureReader, reader_of

SPECS = (TensorSpec("x", "float32", (1, 3, 96, 128)),)


@pytest.fixture
def picture() -> np.ndarray:
    """Return (96, 128, 3) a picture with soft shapes, 0 to 1."""
    generator = np.random.default_rng(1)
    coarse = generator.random((8, 10, 3), np.float32)
    return np.clip(cv2.resize(coarse, (128, 96), interpolation=cv2.INTER_CUBIC), 0, 1)


def figures(picture: np.ndarray, span: float = 1.0) -> dict[str, float]:
    tensor = np.ascontiguousarray(picture.transpose(2, 0, 1)[None], np.float32)
    return FigureReader("x", 1, span, {}).of_inputs({"x": tensor})


def test_layouts_and_types_read_alike(picture):
    whole = np.round(picture * 255)
    expected = figures(whole, 255.0)
    for tensor, axis in (
        (whole[None].astype(np.float32), -1),
        (whole.astype(np.uint8), -1),
        (whole.transpose(2, 0, 1)[None].astype(np.float16), 1),
    ):
        reader = FigureReader("x", axis, 255.0, {})
        assert reader.of_inputs({"x": tensor}) == pytest.approx(expected, rel=1e-3, abs=1e-3)


def test_a_blurred_picture_is_less_sharp_and_as_bright(picture):
    generator = np.random.default_rng(2)
    textured = picture + generator.normal(0, 0.05, picture.shape).astype(np.float32)
    before, after = figures(textured), figures(cv2.GaussianBlur(textured, (9, 9), 0))
    assert after["sharpness"] < before["sharpness"] - 1
    assert after["brightness"] == pytest.approx(before["brightness"], rel=0.03)


def test_motion_in_any_direction_is_less_sharp(picture):
    generator = np.random.default_rng(2)
    textured = picture + generator.normal(0, 0.05, picture.shape).astype(np.float32)
    for kernel in (np.full((1, 9), 1 / 9, np.float32), np.full((9, 1), 1 / 9, np.float32)):
        assert figures(cv2.filter2D(textured, -1, kernel))["sharpness"] < figures(textured)["sharpness"] - 0.5


def test_noise_is_grain(picture):
    generator = np.random.default_rng(3)
    noisy = picture + generator.normal(0, 0.1, picture.shape).astype(np.float32)
    assert figures(noisy)["grain"] > figures(picture)["grain"] + 1


def test_dark_fog_and_colours(picture):
    usual, dark, fog = figures(picture), figures(picture * 0.3), figures(picture * 0.4 + 0.5)
    assert dark["brightness"] < usual["brightness"]
    assert dark["brightest"] < usual["brightest"]
    assert fog["darkest"] > usual["darkest"]
    assert fog["contrast"] < usual["contrast"]
    assert figures(picture * np.array([0.5, 1, 1], np.float32))["tint"] > usual["tint"]
    assert figures(picture.mean(axis=2, keepdims=True).repeat(3, 2))["saturation"] == pytest.approx(0, abs=1e-6)


def test_the_colour_of_edges_is_that_of_the_light_and_not_of_a_surface(picture):
    warm = picture * np.array([0.8, 1.0, 1.25], np.float32)
    painted = picture + np.array([0.0, 0.0, 0.5], np.float32)
    usual = figures(picture)
    assert figures(warm)["edge_tint"] == pytest.approx(usual["edge_tint"] + math.log(1.25 / 0.8), abs=0.02)
    assert figures(painted)["edge_tint"] == pytest.approx(usual["edge_tint"], abs=0.02)
    assert figures(painted)["tint"] > usual["tint"] + 0.4


@pytest.mark.parametrize("side", [16, 17, 20, 33, 100, 1000])
def test_pictures_of_any_size_have_all_figures(side):
    square = np.random.default_rng(side).random((side, side, 3), np.float32)
    known = set(figures(np.random.default_rng(0).random((96, 128, 3), np.float32)))
    assert set(figures(square)) == known
    assert all(map(math.isfinite, figures(square).values()))


def test_edges_are_not_read(picture):
    padded = picture.copy()
    padded[:20] = padded[-20:] = 0.45
    assert figures(padded) == figures(picture)


def test_a_flat_picture_has_finite_figures():
    assert all(map(math.isfinite, figures(np.zeros((96, 128, 3), np.float32)).values()))


def test_a_grey_picture_has_no_colours():
    tensor = np.random.default_rng(0).random((1, 1, 64, 64), np.float32)
    found = reader_of((TensorSpec("x", "float32", (1, 1, 64, 64)),), {"x": tensor}, "", {})
    assert found.channels == 1
    assert not {"tint", "edge_tint"} & set(found.of_inputs({"x": tensor}))


def test_what_is_no_picture_has_level_spread_and_roughness():
    generator = np.random.default_rng(4)
    sound = np.cumsum(generator.normal(size=(1, 16000)), axis=1).astype(np.float32)
    reader = reader_of((TensorSpec("x", "float32", (1, 16000)),), {"x": sound}, "", {})
    quiet, loud = reader.of_inputs({"x": sound}), reader.of_inputs({"x": sound * 4})
    assert set(quiet) == {"length", "level", "spread", "roughness"}
    assert loud["spread"] == pytest.approx(4 * quiet["spread"], rel=1e-3)
    assert loud["roughness"] == pytest.approx(quiet["roughness"], rel=1e-3)
    hiss = reader.of_inputs({"x": generator.normal(size=(1, 16000)).astype(np.float32)})
    assert hiss["roughness"] > 5 * quiet["roughness"]
    assert math.isnan(reader.of_inputs({"x": np.zeros((1, 100), np.float32)})["roughness"])


def test_texts_have_no_figures():
    words = {"x": np.array(["a", "b"], object)}
    assert reader_of((TensorSpec("x", "string", (2,)),), words, "", {}).of_inputs(words) == {}


def test_numbers_beyond_what_quantizers_hold_are_counted():
    reader = FigureReader("x", None, 1.0, {"x": (-1.0, 2.0), "y": (0.0, 1.0), "z": (-1.0, 1.0)})
    values = np.array([[-3, -1, 0, 2, 2.5, 9, 0.5, 1]], np.float32)
    assert reader.of_inputs({"x": values})["beyond"] == 3 / 8
    inside = np.array([0, 0, 0.2, 0.4], np.float32)
    assert reader.of_outputs({"y": inside}) == {"saturated": 0.0}  # zero is what an empty place holds
    assert reader.of_outputs({"y": inside, "z": np.array([-1, 0.5, 1, 1], np.float32)}) == {"saturated": 0.75}
    assert reader.of_outputs({"other": inside}) == {}
