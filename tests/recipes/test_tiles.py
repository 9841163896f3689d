"""Pictures of prompts are cut as the processor of their model cuts them, to the byte."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from seeing_models import LONGEST, ROWS, SIDE, TABLE, picture

from edgeopt.recipes.inputs.pillow_resize import Resample, resized
from edgeopt.recipes.inputs.seen.table import ImageTable
from edgeopt.recipes.inputs.seen.tiles import grid_of, marks_of, tiles_of

PILLOW = {"lanczos": "LANCZOS", "bicubic": "BICUBIC", "bilinear": "BILINEAR"}
SIZES = ((37, 91, 64, 64), (480, 640, 384, 512), (64, 64, 200, 31), (3, 1, 7, 9), (64, 64, 64, 32))
OF_PILLOW = {
    "lanczos": "151904fc24d7673e",
    "bicubic": "8f95042da8a0dec1",
    "bilinear": "ec55c9810d06151e",
}
"""The first digits of the SHA-256 of what Pillow 11.3 makes of `noise`, in all sizes."""


def noise(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(height).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.mark.parametrize("resample", Resample)
def test_a_picture_is_resized_as_pillow_does(resample):
    made = hashlib.sha256()
    for height, width, *size in SIZES:
        made.update(resized(noise(height, width), *size, resample).tobytes())
    assert made.hexdigest()[:16] == OF_PILLOW[resample]


@pytest.mark.parametrize("resample", Resample)
def test_the_pillow_that_is_installed_agrees(resample):
    image = pytest.importorskip("PIL.Image")
    for height, width, *size in SIZES:
        frame = noise(height, width)
        theirs = image.fromarray(frame).resize(size[::-1], getattr(image, PILLOW[resample]))
        assert np.array_equal(np.asarray(theirs), resized(frame, *size, resample)), (height, width, size)


def test_the_whole_picture_is_the_last_tile_and_marks_name_each_part():
    tiles = tiles_of(picture(1, 60, 120), TABLE)
    assert tiles.grid == (1, 2)
    assert tiles.pixels.shape == (3, SIDE, SIDE, 3)
    assert LONGEST == 2 * SIDE
    run = "<image>" * ROWS
    whole = f"<fake_token_around_image><global-img>{run}<fake_token_around_image>"
    parts = "".join(f"<fake_token_around_image><row_1_col_{i}>{run}" for i in (1, 2))
    assert marks_of((1, 2), TABLE) == f"{parts}\n\n{whole}"
    assert marks_of((0, 0), TABLE) == whole


@pytest.mark.parametrize("size", [(1, 5000), (5000, 1), (1, 1)])
def test_no_picture_is_too_narrow(size):
    tiles = tiles_of(np.zeros((*size, 3), np.uint8), TABLE)
    assert tiles.grid == grid_of(*size, TABLE)
    assert tiles.pixels.shape[1:] == (SIDE, SIDE, 3)


def test_a_table_says_what_it_lacks():
    with pytest.raises(ValueError, match="needs token, rows, tile and longest"):
        ImageTable(encoder="image_encoder.onnx")
    with pytest.raises(ValueError, match="more than 262144 rows"):
        ImageTable(encoder="image_encoder.onnx", token="<image>", rows=64, tile=1, longest=4096)
    with pytest.raises(ValueError, match="3 values"):
        ImageTable(mean=(0.5,))
