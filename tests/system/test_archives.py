"""An .npz or a picture of anyone: what is no plain array or no picture is one line, before memory is asked for."""

from __future__ import annotations

import io
import os
import zipfile

import cv2
import numpy as np
import pytest

from edgeopt.errors import InvalidFileError
from edgeopt.recipes.inputs.frames import open_frames
from edgeopt.recipes.inputs.pictures import read_picture
from edgeopt.recipes.inputs.preprocess import Input, PictureInput, Preprocess, Resize
from edgeopt.system.disk.archives import read_archive


def array(value: object = None, claims: str = "") -> bytes:
    """Return an .npy, whose head may claim another shape."""
    made = io.BytesIO()
    np.save(made, np.zeros((2, 3), np.float32) if value is None else value)
    data = made.getvalue()
    return data.replace(b"(2, 3), }" + b" " * (len(claims) - 6), claims.encode() + b", }") if claims else data


def archive(path, **members: bytes):
    with zipfile.ZipFile(path, "w") as made:
        for name, data in members.items():
            made.writestr(name.replace("_", "."), data)
    return path


def encrypted(path):
    data = bytearray(archive(path, x_npy=array()).read_bytes())
    for mark, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(mark) + at] |= 1
    path.write_bytes(data)


def unknown_compression(path):
    data = bytearray(archive(path, x_npy=array()).read_bytes())
    for mark, at in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        data[data.index(mark) + at] = 77
    path.write_bytes(data)


def bomb(path):
    """64 GiB in 64 MiB would take long to write: the head of the archive tells the same."""
    data = bytearray(archive(path, x_npy=array()).read_bytes())
    at = data.index(b"PK\x01\x02") + 24
    data[at : at + 4] = (2**32 - 2).to_bytes(4, "little")
    at = data.index(b"PK\x03\x04") + 22
    data[at : at + 4] = (2**32 - 2).to_bytes(4, "little")
    path.write_bytes(data)


WRONG = {
    "text": (lambda path: path.write_text("no archive"), "is no .npz: it is no archive"),
    "empty": (lambda path: path.write_bytes(b""), "is no .npz: it is no archive"),
    "one array": (lambda path: path.write_bytes(array()), "is no .npz: it is no archive"),
    "truncated": (lambda path: path.write_bytes(archive(path, x_npy=array()).read_bytes()[:-40]), "it is no archive"),
    "cut array": (lambda path: archive(path, x_npy=array()[:-4]), "claims 24 bytes in"),
    "cut head": (lambda path: archive(path, x_npy=array()[:40]), "an array is damaged"),
    "no array": (lambda path: archive(path, x_txt=b"text"), "'x.txt' is no array"),
    "text as array": (lambda path: archive(path, x_npy=b"text"), "an array is damaged"),
    "pickled": (lambda path: np.savez(path, x=np.array([{}], object)), "claims Python objects"),
    "2.7 PiB": (lambda path: archive(path, x_npy=array(claims="(999999999999, 760)")), "claims 3039999999996960 bytes"),
    "negative": (lambda path: archive(path, x_npy=array(claims="(-2, 3)")), "an array has the shape (-2, 3)"),
    "encrypted": (encrypted, "is encrypted"),
    "compression": (unknown_compression, "an array is damaged"),
    "nothing": (lambda path: np.savez(path), "it holds no array"),
    "no samples": (lambda path: np.savez(path, x=np.zeros((0, 3))), "x holds 0"),
    "scalar": (lambda path: np.savez(path, x=np.float32(3)), "x holds 0"),
    "empty pictures": (lambda path: np.savez(path, images=np.zeros((2, 0, 5, 3), np.uint8)), "images is empty"),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_archive_that_is_none_is_one_line_without_the_advice_to_unpickle(tmp_path, name):
    make, told = WRONG[name]
    make(tmp_path / "a.npz")
    with pytest.raises(InvalidFileError) as caught:
        open_frames(tmp_path / "a.npz")
    assert told in caught.value.problem
    assert "pickle" not in str(caught.value)
    assert "\n" not in caught.value.problem


def test_an_archive_that_unpacks_to_more_than_memory_is_not_loaded(tmp_path, monkeypatch):
    bomb(tmp_path / "a.npz")
    monkeypatch.setattr("edgeopt.system.disk.archives._MOST_SHARE", 1e-3)
    with pytest.raises(InvalidFileError, match="it unpacks to 4095 MiB, more than half"):
        read_archive(tmp_path / "a.npz", remedy="")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize("name", ["a.npz", "a.jpg", "a.mp4"])
def test_a_named_pipe_is_refused_at_once(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(InvalidFileError, match="no regular file"):
        open_frames(tmp_path / name)


@pytest.mark.parametrize("suffix", ["png", "bmp", "webp", "tiff", "jpg", "ppm"])
@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (7, 1), (1, 3000), (5, 6)])
def test_a_picture_with_a_tiny_side_is_a_picture(tmp_path, suffix, shape):
    frame = np.full((*shape, 3), 90, np.uint8)
    cv2.imwrite(str(tmp_path / f"a.{suffix}"), frame)
    assert open_frames(tmp_path).picture(0).shape == frame.shape


@pytest.mark.parametrize("data", [b"", b"GIF89a" + bytes(20), b"BM" + bytes(60), b"P6\n99999 99999\n255\n" + bytes(9)])
def test_what_opencv_raises_for_is_no_picture(tmp_path, data):
    (tmp_path / "a.jpg").write_bytes(data)
    with pytest.raises(InvalidFileError, match="decode"):
        open_frames(tmp_path / "a.jpg")
    with pytest.raises(InvalidFileError, match="decode"):
        read_picture(tmp_path / "a.jpg")


@pytest.mark.parametrize("resize", list(Resize))
@pytest.mark.parametrize("shape", [(1, 1), (1, 100_000), (100_000, 1)])
def test_every_resize_takes_a_picture_of_one_row(resize, shape):
    prepare = PictureInput(Input(size=(32, 32)), Preprocess(resize=resize, crop_from=36), reuse=False)
    tensor, geometry = prepare(np.full((*shape, 3), 90, np.uint8))
    assert tensor.shape == (1, 3, 32, 32)
    assert (geometry.height, geometry.width) == shape
    assert 90 in tensor


def test_a_long_picture_is_cut_where_a_short_one_is():
    frame = np.zeros((40, 4000, 3), np.uint8)
    frame[:, 1990:2010] = 200
    prepare = PictureInput(Input(size=(32, 32)), Preprocess(resize=Resize.CENTRE_CROP, crop_from=40), reuse=False)
    usual, where = prepare(frame)
    cut, geometry = prepare._cut_first(frame)
    np.testing.assert_array_equal(usual[0].transpose(1, 2, 0)[..., ::-1], cut)
    assert geometry == where
