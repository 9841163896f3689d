"""JPEG files decoded at a part of their size: never too small, upright, and told in pixels of the whole picture."""

from __future__ import annotations

import struct
from dataclasses import replace

import cv2
import numpy as np
import pytest

from edgeopt.graph.tensors import ReducedPicture
from edgeopt.recipes.inputs.frames import open_frames
from edgeopt.recipes.inputs.jpeg import ReducedDecoding, read_jpeg_head, reduction_of
from edgeopt.recipes.inputs.pictures import decode_picture, decode_sample
from edgeopt.recipes.inputs.preprocess import Anchor, Decode, Input, PictureInput, Preprocess, Resize, scaled_size
from edgeopt.recipes.recipe import find_recipe, read_recipe
from edgeopt.recipes.recipe_text import recipe_text

LETTERBOX = Preprocess(resize=Resize.LETTERBOX, anchor=Anchor.CENTRE)
STRETCH, LINE = Preprocess(), Preprocess(resize=Resize.LINE)
CROP = Preprocess(resize=Resize.CENTRE_CROP, crop_from=256)


def smooth(height: int, width: int) -> np.ndarray:
    """Return a picture without details that a smaller one loses: each channel says where a pixel lies."""
    y, x = np.mgrid[:height, :width]
    return np.stack([200 * x / width, 200 * y / height, np.full((height, width), 90.0)], -1).round().astype(np.uint8)


def jpeg(frame: np.ndarray, orientation: int = 1, order: str = ">", *flags: int) -> bytes:
    data = bytes(cv2.imencode(".jpg", frame, [cv2.IMWRITE_JPEG_QUALITY, 98, *flags])[1])
    if orientation == 1:
        return data
    mark = b"MM\0*" if order == ">" else b"II*\0"
    tag = struct.pack(order + "HHIHH", 0x0112, 3, 1, orientation, 0)
    exif = b"Exif\0\0" + mark + struct.pack(order + "IH", 8, 1) + tag + struct.pack(order + "I", 0)
    return data[:2] + b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif + data[2:]


@pytest.mark.parametrize(
    ("size", "preprocess", "frame", "factor"),
    [
        ((320, 320), LETTERBOX, (480, 640), 2),
        ((320, 320), LETTERBOX, (427, 640), 2),
        ((320, 320), LETTERBOX, (375, 500), 1),
        ((320, 320), LETTERBOX, (477, 637), 1),  # 319 columns would be enlarged
        ((320, 320), LETTERBOX, (479, 639), 2),  # 320 columns, of which the last lies half outside
        ((320, 320), LETTERBOX, (1280, 960), 4),
        ((224, 224), CROP, (480, 640), 1),  # 240 rows, and 256 are wanted
        ((224, 224), CROP, (512, 683), 2),
        ((224, 224), CROP, (3000, 4000), 8),
        ((224, 224), replace(CROP, crop_from=0), (480, 640), 2),
        ((160, 160), STRETCH, (320, 1280), 2),
        ((48, 320), LINE, (96, 640), 2),
        ((48, 320), LINE, (96, 10_000), 2),
        ((320, 320), STRETCH, (0, 640), 1),  # a JPEG may tell its rows later
    ],
)
def test_the_smallest_size_that_need_not_be_enlarged(size, preprocess, frame, factor):
    assert reduction_of(size, preprocess, frame) == factor
    if factor > 1:
        target = scaled_size(size, preprocess, frame)
        assert all(-(-a // factor) >= b for a, b in zip(frame, target, strict=True))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("order", "<>")
def test_a_turned_picture_is_upright_and_lies_where_the_whole_one_does(orientation, order):
    """Sides are odd: of pictures that are turned or mirrored the first column or row is the one that is half empty."""
    noise = np.random.default_rng(0).integers(0, 256, (483, 641, 3)).astype(np.uint8)
    data = jpeg(cv2.GaussianBlur(noise, (0, 0), 1.5), orientation, order)
    head, whole = read_jpeg_head(data), decode_picture(data)
    assert (head.orientation, head.size) == (orientation, whole.shape[:2])
    made = decode_sample(data, ReducedDecoding((161, 161), STRETCH))
    assert isinstance(made, ReducedPicture)
    assert (made.height, made.width, made.factor) == (*whole.shape[:2], 2)
    errors = {}
    for top in (made.top - 1, made.top, made.top + 1):
        for left in (made.left - 1, made.left, made.left + 1):
            inner = whole[8 - top : 400 - top, 8 - left : 400 - left].astype(np.float64)
            squares = inner.reshape(196, 2, 196, 2, 3).mean((1, 3))
            errors[top, left] = np.abs(squares - made.pixels[4:200, 4:200]).mean()
    assert min(errors, key=errors.__getitem__) == (made.top, made.left)


@pytest.mark.parametrize("preprocess", [LETTERBOX, replace(LETTERBOX, anchor=Anchor.TOP_LEFT), STRETCH, CROP, LINE])
@pytest.mark.parametrize("shape", [(640, 960), (641, 963), (1283, 1921), (2051, 2063)])
@pytest.mark.parametrize("orientation", [1, 3])
def test_the_input_shows_the_same_and_tells_the_same_places(preprocess, shape, orientation):
    data = jpeg(smooth(*shape), orientation)
    size = (48, 320) if preprocess.resize is Resize.LINE else (224, 224)
    whole, made = decode_picture(data), decode_sample(data, ReducedDecoding(size, preprocess))
    assert isinstance(made, ReducedPicture)
    feed = PictureInput(Input(size=size), preprocess, reuse=False)
    (tensor, place), (other, found) = feed(made), feed(whole)
    assert (found.height, found.width) == (place.height, place.width) == whole.shape[:2]
    inner = np.s_[..., 8:-8, 8:-8]
    assert np.abs(tensor - other)[inner].mean() < 1.5
    box = np.array([[30.5, 40.0, 200.0, 40.0 + size[0] / 2]], np.float32)
    assert np.abs(place.to_frame(box) - found.to_frame(box)).max() <= 1.01 * made.factor  # a pixel of the smaller one
    # the picture itself says where its pixels lie: its red is the row, its blue the column
    y, x = size[0] // 2, 20 if preprocess.resize is Resize.LINE else size[1] // 2
    shown = feed(made)[0][0, :, y, x]
    (row,) = place.points_to_frame(np.array([[x + 0.5, y + 0.5]], np.float32))
    wanted = whole[min(int(row[1]), whole.shape[0] - 1), min(int(row[0]), whole.shape[1] - 1)]
    assert np.abs(shown[::-1] - wanted).max() <= 2.0


def test_other_files_and_arrays_stay_whole(tmp_path):
    decoding, frame = ReducedDecoding((64, 64), STRETCH), smooth(480, 640)
    grey, deep = frame[..., 0], (frame.astype(np.uint16) << 8)
    for name, data in {
        "a.png": cv2.imencode(".png", frame)[1],
        "b.jpg": cv2.imencode(".jpg", grey)[1],
        "c.webp": cv2.imencode(".webp", frame)[1],
        "d.png": cv2.imencode(".png", deep)[1],
        "e.jpg": cv2.imencode(".jpg", frame[:120, :100])[1],
    }.items():
        (tmp_path / name).write_bytes(bytes(data))
    frames = open_frames(tmp_path)
    reduced = frames.decoded_by(decoding)
    for i in range(len(frames)):
        np.testing.assert_array_equal(reduced.read(i), frames.read(i))
    (tmp_path / "f.jpg").write_bytes(jpeg(frame))
    reduced = open_frames(tmp_path).decoded_by(decoding).select([5])
    assert reduced.read(0).pixels.shape == (120, 160, 3)  # 60 rows of an eighth would be enlarged
    assert open_frames(tmp_path).decoded_by(None).read(5).shape == (480, 640, 3)


def test_a_damaged_head_is_decoded_as_ever():
    data, decoding = jpeg(smooth(480, 640), 6), ReducedDecoding((64, 64), STRETCH)
    for end in range(0, 200, 7):
        assert decode_sample(data[:end], decoding) is None
    assert read_jpeg_head(b"\xff\xd8" + b"\xff\xc4\x00\x02" * 2000) is None
    assert read_jpeg_head(b"\x89PNG") is None
    for at in range(6, 40):  # a byte of Exif is another one: the picture is one all the same
        torn = data[:at] + b"\xff" + data[at + 1 :]
        sample, whole = decode_sample(torn, decoding), decode_picture(torn)
        assert (sample is None) == (whole is None)
        if isinstance(sample, ReducedPicture):
            assert (sample.height, sample.width) == whole.shape[:2]


@pytest.mark.parametrize("orientation", [1, 6])
def test_enlarged_it_has_the_size_of_the_whole(orientation):
    data = jpeg(smooth(483, 641), orientation)
    made, whole = decode_sample(data, ReducedDecoding((96, 96), STRETCH)), decode_picture(data)
    assert made.enlarged().shape == whole.shape
    assert np.abs(made.enlarged()[8:-8, 8:-8].astype(int) - whole[8:-8, 8:-8]).mean() < 2.0
    assert ReducedPicture(whole, 1, *whole.shape[:2]).enlarged() is whole


def test_a_recipe_says_it_and_is_written_with_it(tmp_path):
    recipe = find_recipe("yolox")
    reduced = replace(recipe, preprocess=replace(recipe.preprocess, decode=Decode.REDUCED))
    text = recipe_text(reduced, name="mine", labels="")
    assert 'decode = "reduced"' in text
    assert "decode =" not in recipe_text(recipe, name="mine", labels="")
    (tmp_path / "recipe.toml").write_text(text)
    assert read_recipe(tmp_path / "recipe.toml").preprocess == reduced.preprocess
