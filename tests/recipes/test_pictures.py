"""A folder of pictures is read whole, or what is left out of it is counted; few bits in 16 are no black picture."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from edgeopt.errors import InvalidFileError
from edgeopt.recipes.inputs.frames import open_frames
from edgeopt.recipes.inputs.pictures import _PGM, PICTURES, decode_picture, read_picture

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 12345\n"


def picture(seed: int = 0, most: int = 256, dtype: type = np.uint8) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, most, (24, 32, 3)).astype(dtype)


def encoded(suffix: str, frame: np.ndarray) -> bytes:
    done, data = cv2.imencode(suffix, frame)
    if not done:
        pytest.skip(f"this OpenCV writes no {suffix}")
    return bytes(data)


@pytest.mark.parametrize("suffix", sorted(PICTURES - {".jfif"}))
def test_every_suffix_of_a_picture_is_read(tmp_path, suffix):
    try:
        data = encoded(suffix, picture()[..., 0] if suffix in (".pgm", ".pbm") else picture())
    except cv2.error:
        pytest.skip(f"this OpenCV writes no {suffix}")
    (tmp_path / "a.png").write_bytes(encoded(".png", picture()))
    (tmp_path / f"b{suffix.upper()}").write_bytes(data)
    frames = open_frames(tmp_path)
    assert (len(frames), frames.notes) == (2, ())
    assert frames.picture(1).shape == (24, 32, 3)


def test_a_jfif_and_a_picture_without_a_suffix_are_read(tmp_path):
    for name in ("a.jfif", "b.JPE", "c", "d.picture", "e.avif"):
        (tmp_path / name).write_bytes(encoded(".jpg", picture()))
    for name in ("README", "labels.txt", "x.bin"):
        (tmp_path / name).write_text("no picture")
    frames = open_frames(tmp_path)
    assert frames.names == ("a.jfif", "b.JPE", "c", "d.picture", "e.avif")
    assert frames.notes == ()
    assert len(open_frames(tmp_path / "c")) == 1


def test_what_is_not_read_of_a_folder_is_counted(tmp_path):
    (tmp_path / "a.png").write_bytes(encoded(".png", picture()))
    for name in ("b.heic", "c.HEIC", "d.mp4", "labels.json"):
        (tmp_path / name).write_bytes(b"0")
    (tmp_path / "gone.jpg").symlink_to("nowhere")
    (tmp_path / "torn.jpg").write_bytes(b"0")
    (tmp_path / "large.jpg").write_bytes(LFS)
    (tmp_path / "more").mkdir()
    for i in range(3):
        (tmp_path / "more" / f"{i}.png").write_bytes(encoded(".png", picture()))
    frames = open_frames(tmp_path)
    assert frames.names == ("a.png",)
    details = [note.detail for note in frames.notes]
    assert [text.replace(f" {tmp_path}", " HERE") for text in details] == [
        "3 files in HERE left out, not read among pictures: 2 .heic, 1 .mp4",
        "1 picture in HERE left out, links to nothing: gone.jpg",
        "3 pictures in folders of HERE left out: those in the folder itself are read",
        "2 pictures in HERE left out, not decodable: large.jpg, torn.jpg",
    ]
    assert frames.notes[-1].hint == "1 pointer of Git LFS: git lfs pull"


def test_a_folder_of_pointers_is_told_its_cure(tmp_path):
    for i in range(3):
        (tmp_path / f"{i}.jpg").write_bytes(LFS)
    with pytest.raises(InvalidFileError, match=r"3 pictures in .* are pointers of Git LFS") as caught:
        open_frames(tmp_path)
    assert caught.value.remedy == "git lfs pull, in their repository"
    for name in ("clip.mp4", "fed.npz", "a.jpg"):
        (tmp_path / name).write_bytes(LFS)
        with pytest.raises(InvalidFileError, match="of Git LFS"):
            open_frames(tmp_path / name)


def test_folders_of_a_split_are_read_where_nothing_lies_above_them(tmp_path):
    for name in ("train/cat/0", "train/dog/1", "val/cat/2"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"{name}.png").write_bytes(encoded(".png", picture()))
    assert open_frames(tmp_path).names == ("train/cat/0.png", "train/dog/1.png", "val/cat/2.png")


@pytest.mark.parametrize("suffix", [".png", ".tif"])
@pytest.mark.parametrize("bits", [8, 10, 12, 14])
def test_few_bits_in_16_are_scaled_by_what_a_whole_folder_holds(tmp_path, suffix, bits):
    bright, dark = picture(0, 1 << bits, np.uint16), picture(1, 1 << (bits - 3), np.uint16)
    bright[0, 0] = (1 << bits) - 1
    for name, frame in (("a", bright), ("b", dark)):
        (tmp_path / f"{name}{suffix}").write_bytes(encoded(suffix, frame))
    (tmp_path / "c.png").write_bytes(encoded(".png", picture(2)))
    frames = open_frames(tmp_path)
    np.testing.assert_array_equal(frames.picture(0), bright >> (bits - 8))
    np.testing.assert_array_equal(frames.picture(1), dark >> (bits - 8))
    np.testing.assert_array_equal(frames.picture(2), picture(2))
    (note,) = frames.notes
    told = f"2 pictures in {tmp_path} of 16 bits with numbers up to {(1 << bits) - 1} read as {bits}-bit"
    assert note.detail == told


def test_a_head_of_spaces_takes_no_time():
    """Tried in every way, forty spaces would take for ever."""
    for gap in (b" " * 5000, b"#\n" * 5000, b" #\n " * 5000):
        assert _PGM.match(b"P5" + gap + b"x") is None
        told = _PGM.match(b"P5" + gap + b"32" + gap + b"24" + gap + b"4095\n")
        assert told is not None
        assert told[1] == b"4095"


def test_the_head_of_a_pgm_tells_the_largest_number(tmp_path):
    dark = picture(0, 200, np.uint16)[..., 0]
    (tmp_path / "a.pgm").write_bytes(b"P5\n# of a camera\n32 24\n4095\n" + dark.astype(">u2").tobytes())
    np.testing.assert_array_equal(open_frames(tmp_path).picture(0)[..., 0], dark >> 4)


def test_numbers_of_16_bits_are_read_as_before(tmp_path):
    frame = picture(0, 1 << 16, np.uint16)
    (tmp_path / "a.png").write_bytes(encoded(".png", frame))
    frames = open_frames(tmp_path)
    np.testing.assert_array_equal(frames.picture(0), frame >> 8)
    assert frames.notes == ()


def test_a_picture_by_itself_is_scaled_by_what_it_holds(tmp_path):
    frame = picture(0, 4096, np.uint16)
    data = encoded(".png", frame)
    (tmp_path / "a.png").write_bytes(data)
    np.testing.assert_array_equal(read_picture(tmp_path / "a.png"), frame >> 4)
    np.testing.assert_array_equal(decode_picture(data), frame >> 4)
    black = np.zeros((4, 4, 3), np.uint16)
    np.testing.assert_array_equal(decode_picture(encoded(".png", black)), black)
