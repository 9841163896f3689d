"""Frame to tensor: the same numbers as the obvious way, in every mode."""

from __future__ import annotations

import math

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeopt.recipes.inputs.preprocess import Anchor, Colour, Geometry, Input, Layout, PictureInput, Preprocess, Resize


def picture(height: int = 30, width: int = 50, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def obvious(frame: np.ndarray, how: Preprocess, layout: Layout) -> np.ndarray:
    """The way a tutorial writes it, for a frame that already has the model's size."""
    code = {Colour.RGB: cv2.COLOR_BGR2RGB, Colour.GREY: cv2.COLOR_BGR2GRAY}.get(how.colour)
    pixels = frame if code is None else cv2.cvtColor(frame, code)
    values = pixels.reshape(*frame.shape[:2], -1).astype(np.float64) * how.scale
    values = (values - np.array(how.mean)) / np.array(how.std)
    planes = values if layout is Layout.NHWC else values.transpose(2, 0, 1)
    return (planes if layout is Layout.CHW else planes[None]).astype(np.float32)


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("colour", Colour)
def test_normalisation_equals_the_obvious_way(colour, layout):
    channels = 1 if colour is Colour.GREY else 3
    how = Preprocess(colour=colour, scale=1 / 255, mean=(0.4, 0.5, 0.6)[:channels], std=(0.2, 0.3, 0.4)[:channels])
    frame = picture(24, 40)
    made, _ = PictureInput(Input(size=(24, 40), layout=layout), how, reuse=False)(frame)
    np.testing.assert_allclose(made, obvious(frame, how, layout), rtol=1e-5, atol=1e-6)


def test_pixels_that_need_no_arithmetic_stay_whole_numbers():
    frame = picture(16, 16)
    made, _ = PictureInput(Input(size=(16, 16)), Preprocess(colour=Colour.BGR), reuse=False)(frame)
    np.testing.assert_array_equal(made[0], frame.transpose(2, 0, 1))


def test_bytes_above_what_int8_holds_are_cut_and_do_not_turn_negative():
    frame = np.full((16, 16, 3), 200, np.uint8)
    made, _ = PictureInput(Input(size=(16, 16), dtype="int8"), Preprocess(colour=Colour.BGR), reuse=False)(frame)
    assert (made == 127).all()


def test_an_integer_input_is_rounded_and_clipped():
    how = Preprocess(colour=Colour.BGR, mean=(128.0,))
    made, _ = PictureInput(Input(size=(16, 16), dtype="int8"), how, reuse=False)(picture(16, 16))
    assert made.dtype == np.int8
    np.testing.assert_array_equal(made[0], (picture(16, 16).astype(int) - 128).transpose(2, 0, 1))


@pytest.mark.parametrize("anchor", Anchor)
def test_a_letterbox_keeps_the_shape_and_pads_with_grey(anchor):
    how = Preprocess(colour=Colour.BGR, resize=Resize.LETTERBOX, anchor=anchor, pad=114)
    made, geometry = PictureInput(Input(size=(64, 64)), how, reuse=False)(np.full((20, 40, 3), 200, np.uint8))
    rows = np.flatnonzero((made[0, 0] == 200).all(axis=1))
    assert len(rows) == 32
    assert rows[0] == (16 if anchor is Anchor.CENTRE else 0)
    assert ((made == 200) | (made == 114)).all()
    assert geometry.scale_x == geometry.scale_y == 1.6


def test_the_border_is_grey_again_after_a_frame_of_another_shape():
    how = Preprocess(colour=Colour.BGR, resize=Resize.LETTERBOX)
    made = PictureInput(Input(size=(32, 32)), how, reuse=True)
    made(np.full((32, 32, 3), 7, np.uint8))
    tensor, _ = made(np.full((16, 32, 3), 9, np.uint8))
    assert set(np.unique(tensor)) == {9.0, 114.0}


def test_a_centre_crop_takes_the_middle():
    frame = np.zeros((40, 80, 3), np.uint8)
    frame[10:30, 30:50] = 255
    how = Preprocess(colour=Colour.BGR, resize=Resize.CENTRE_CROP, crop_from=40)
    made, _ = PictureInput(Input(size=(20, 20)), how, reuse=False)(frame)
    assert (made == 255).all()


def paddleocr(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """`resize_norm_img` of PaddleOCR, for a batch that is no wider than the input."""
    ratio = image.shape[1] / float(image.shape[0])
    resized_width = width if math.ceil(height * ratio) > width else math.ceil(height * ratio)
    resized = cv2.resize(image, (resized_width, height)).astype("float32").transpose((2, 0, 1)) / 255
    padding = np.zeros((3, height, width), dtype=np.float32)
    padding[:, :, 0:resized_width] = (resized - 0.5) / 0.5
    return padding


@pytest.mark.parametrize("size", [(30, 90), (48, 321), (17, 400), (60, 9)])
@pytest.mark.parametrize("layout", Layout)
def test_a_line_is_prepared_as_paddleocr_does(size, layout):
    how = Preprocess(colour=Colour.BGR, resize=Resize.LINE, scale=1 / 255, mean=(0.5,), std=(0.5,))
    made = PictureInput(Input(size=(48, 320), layout=layout), how, reuse=True)
    made(picture(48, 320, seed=1))  # what was there before does not shine through
    tensor, geometry = made(picture(*size))
    planar = {Layout.NCHW: tensor[0], Layout.CHW: tensor}.get(layout, np.moveaxis(tensor[0], -1, 0))
    np.testing.assert_allclose(planar, paddleocr(picture(*size), 48, 320), atol=1e-5)
    assert geometry.scale_y == 48 / size[0]


def test_a_reused_tensor_is_the_same_array_and_a_fresh_one_is_not():
    frame = picture(16, 16)
    shared = PictureInput(Input(size=(16, 16)), Preprocess(), reuse=True)
    fresh = PictureInput(Input(size=(16, 16)), Preprocess(), reuse=False)
    assert shared(frame)[0] is shared(frame)[0]
    assert fresh(frame)[0] is not fresh(frame)[0]


@settings(max_examples=60, deadline=None)
@given(
    height=st.integers(8, 400),
    width=st.integers(8, 400),
    resize=st.sampled_from(Resize),
    anchor=st.sampled_from(Anchor),
)
def test_a_box_of_the_frame_comes_back_from_the_input(height, width, resize, anchor):
    how = Preprocess(resize=resize, anchor=anchor)
    _, geometry = PictureInput(Input(size=(64, 96)), how, reuse=False)(picture(height, width))
    box = np.array([[width * 0.25, height * 0.25, width * 0.75, height * 0.75]], np.float32)
    scale = np.array([geometry.scale_x, geometry.scale_y] * 2)
    inside = (box * scale + [geometry.offset_x, geometry.offset_y] * 2).astype(np.float32)
    np.testing.assert_allclose(geometry.to_frame(inside), box, rtol=1e-4, atol=1e-3)


def test_boxes_are_clipped_to_the_frame():
    geometry = Geometry(1.0, 1.0, 0.0, 0.0, 30, 20)
    found = geometry.to_frame(np.array([[-5, -5, 50, 50]], np.float32))
    np.testing.assert_array_equal(found, [[0, 0, 30, 20]])
