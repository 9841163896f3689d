"""Frames from every kind of source."""

from __future__ import annotations

import wave

import cv2
import numpy as np
import pytest
from headless_videos import SHADE_STEP, write_cut, write_piped

from edgeopt.errors import InvalidFileError
from edgeopt.recipes.inputs.frames import open_frames
from edgeopt.recipes.inputs.made_up import synthetic_frames


def picture(seed: int = 0, height: int = 24, width: int = 32) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def test_a_folder_is_read_in_the_order_of_its_names(tmp_path):
    for i in (2, 0, 1):
        cv2.imwrite(str(tmp_path / f"{i}.png"), picture(i))
    (tmp_path / "notes.txt").write_text("no picture")
    frames = open_frames(tmp_path)
    assert frames.names == ("0.png", "1.png", "2.png")
    np.testing.assert_array_equal(frames.read(1), picture(1))


def test_a_folder_of_folders_is_read_one_level_deep(tmp_path):
    for name in ("cat/0", "cat/1", "dog/0", ".hidden/0", "deep/er/0"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(tmp_path / f"{name}.png"), picture(len(name)))
    frames = open_frames(tmp_path)
    assert frames.names == ("cat/0.png", "cat/1.png", "dog/0.png")
    np.testing.assert_array_equal(frames.read(2), picture(5))
    cv2.imwrite(str(tmp_path / "top.png"), picture(9))
    assert open_frames(tmp_path).names == ("top.png",)


def test_sounds_in_folders_are_read_too(tmp_path):
    (tmp_path / "yes").mkdir()
    with wave.open(str(tmp_path / "yes" / "0.wav"), "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", ""))
        file.writeframes(np.arange(800, dtype=np.int16).tobytes())
    (tmp_path / "empty").mkdir()
    assert open_frames(tmp_path).names == ("yes/0.wav",)
    with pytest.raises(InvalidFileError, match="holds no picture, nor do its folders"):
        open_frames(tmp_path / "empty")


def test_a_single_picture_is_a_source(tmp_path):
    cv2.imwrite(str(tmp_path / "one.png"), picture(5))
    np.testing.assert_array_equal(next(iter(open_frames(tmp_path / "one.png"))), picture(5))


def test_a_video_is_read_in_any_order(tmp_path):
    path = tmp_path / "clip.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"MJPG"), 10, (32, 24))
    for level in range(0, 250, 25):
        writer.write(np.full((24, 32, 3), level, np.uint8))
    writer.release()
    frames = open_frames(path)
    assert len(frames) == 10
    for i in (0, 1, 2, 7, 3, 9):
        assert abs(float(frames.read(i).mean()) - 25 * i) < 6
    assert len(frames.spread(4)) == 4


def test_a_file_that_is_no_video(tmp_path):
    (tmp_path / "clip.mp4").write_bytes(b"no video")
    with pytest.raises(InvalidFileError, match="does not decode as a video"):
        open_frames(tmp_path / "clip.mp4")


def test_pictures_in_an_npz_are_rgb(tmp_path):
    np.savez(tmp_path / "frames.npz", images=np.stack([picture(1), picture(2)]))
    frames = open_frames(tmp_path / "frames.npz")
    assert frames.tensors is None
    np.testing.assert_array_equal(frames.read(1)[..., ::-1], picture(2))


def test_tensors_in_an_npz_are_given_by_name_one_sample_at_a_time(tmp_path):
    np.savez(tmp_path / "inputs.npz", ids=np.arange(6).reshape(3, 2), mask=np.ones((3, 4), np.float32))
    frames = open_frames(tmp_path / "inputs.npz")
    assert len(frames) == 3
    assert frames.tensors(2)["ids"].tolist() == [[4, 5]]
    assert frames.read(2)["mask"].tolist() == [[1, 1, 1, 1]]
    assert frames.shapes == {"ids": (1, 2), "mask": (1, 4)}
    with pytest.raises(InvalidFileError, match="holds tensors"):
        frames.picture(0)


def test_arrays_of_different_lengths_are_refused(tmp_path):
    np.savez(tmp_path / "inputs.npz", a=np.ones(3), b=np.ones(4))
    with pytest.raises(InvalidFileError, match="same number of samples"):
        open_frames(tmp_path / "inputs.npz")


def test_a_nan_in_an_npz_is_refused_with_its_name(tmp_path):
    np.savez(tmp_path / "inputs.npz", a=np.array([[np.nan]], np.float32))
    with pytest.raises(InvalidFileError, match="a holds NaN"):
        open_frames(tmp_path / "inputs.npz")


def test_a_torn_npz_is_refused(tmp_path):
    (tmp_path / "inputs.npz").write_bytes(b"PK no archive")
    with pytest.raises(InvalidFileError, match=r"is no \.npz"):
        open_frames(tmp_path / "inputs.npz")


def test_a_spread_keeps_the_first_and_the_last():
    assert synthetic_frames((8, 8), 100).spread(3).names == ("synthetic[0]", "synthetic[50]", "synthetic[99]")


def test_synthetic_pictures_are_the_same_each_time():
    np.testing.assert_array_equal(synthetic_frames((16, 16)).read(3), synthetic_frames((16, 16)).read(3))


def test_a_picture_that_goes_bad_later_is_an_error_with_its_name(tmp_path):
    cv2.imwrite(str(tmp_path / "a.png"), picture())
    frames = open_frames(tmp_path)
    (tmp_path / "a.png").write_bytes(b"torn")
    with pytest.raises(InvalidFileError, match=r"a\.png does not decode"):
        frames.read(0)


@pytest.mark.parametrize(("write", "least", "most"), [(write_piped, 40, 40), (write_cut, 10, 25)])
def test_the_frames_of_a_video_are_counted_where_its_header_does_not_know(write, least, most, tmp_path):
    frames = open_frames(write(tmp_path / "video", 40))
    assert least <= len(frames) <= most
    for index in (len(frames) - 1, 3, 4):
        assert abs(frames.read(index).mean() - SHADE_STEP * index) < 6
