"""Boxes that cannot be where the labels say: corners, fractions, turned pictures, boxes outside."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import cv2
import numpy as np
import pytest

from edgeopt.errors import InvalidFileError
from edgeopt.measurement.accuracy.evaluate import open_labelled

WIDTH, HEIGHT = 160, 96


def jpeg(orientation: int = 1) -> bytes:
    """A picture that is stored 160 wide and 96 high, with the orientation of EXIF before it."""
    data = cv2.imencode(".jpg", np.full((HEIGHT, WIDTH, 3), 90, np.uint8))[1].tobytes()
    entry = struct.pack(">HHIHH", 0x0112, 3, 1, orientation, 0)
    exif = b"Exif\0\0MM\0*" + struct.pack(">IH", 8, 1) + entry + struct.pack(">I", 0)
    return data[:2] + b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif + data[2:]


def good_boxes() -> list[list[float]]:
    rng = np.random.default_rng(0)
    sides = rng.uniform(8, 30, (24, 2))
    return np.concatenate([rng.uniform(0, 1, (24, 2)) * ([WIDTH, HEIGHT] - sides), sides], axis=1).tolist()


def write(folder: Path, boxes, *, orientation: int = 1, size=(WIDTH, HEIGHT), image_id=lambda i: i % 4 + 1) -> Path:
    """Four pictures with the boxes spread over them."""
    images = []
    for i in range(4):
        (folder / f"{i}.jpg").write_bytes(jpeg(orientation))
        shape = {"width": size[0], "height": size[1]} if size else {}
        images.append({"id": i + 1, "file_name": f"{i}.jpg", **shape})
    truths = [
        {"id": i + 1, "image_id": image_id(i), "category_id": 1, "bbox": [float(one) for one in box]}
        for i, box in enumerate(boxes)
    ]
    labels = {"images": images, "annotations": truths, "categories": [{"id": 1, "name": "thing"}]}
    (folder / "labels.json").write_text(json.dumps(labels))
    return folder / "labels.json"


def test_boxes_in_their_pictures_are_taken_without_a_word(tmp_path):
    assert open_labelled(write(tmp_path, good_boxes())).notes == ()
    over_the_border = [*good_boxes(), [-1, -1, WIDTH + 2, HEIGHT + 2]]
    assert open_labelled(write(tmp_path, over_the_border, size=None)).notes == ()


def test_corners_are_refused_with_what_to_store(tmp_path):
    corners = [[left, top, left + width, top + height] for left, top, width, height in good_boxes()]
    with pytest.raises(InvalidFileError, match=r"labels.json: boxes are corners: \d+ of 24 boxes leave") as refused:
        open_labelled(write(tmp_path, corners))
    assert "width is right - left" in refused.value.remedy


def test_fractions_are_refused(tmp_path):
    fractions = (np.array(good_boxes()) / [WIDTH, HEIGHT, WIDTH, HEIGHT]).tolist()
    with pytest.raises(InvalidFileError, match="fractions of the picture") as refused:
        open_labelled(write(tmp_path, fractions))
    assert "store pixels" in refused.value.remedy


def test_boxes_far_outside_are_refused_and_a_few_are_told(tmp_path):
    far = [[left + 500, top, width, height] for left, top, width, height in good_boxes()]
    with pytest.raises(InvalidFileError, match=r"24 of 24 boxes leave their picture, for example \[5.*\(160x96\)"):
        open_labelled(write(tmp_path, far))
    (note,) = open_labelled(write(tmp_path, [*good_boxes(), far[0]])).notes
    assert "1 of 25 boxes leave their picture" in note.detail


def test_labels_without_a_box_on_these_pictures_are_refused(tmp_path):
    labels = write(tmp_path, good_boxes()[:1], image_id=lambda i: 1)
    (tmp_path / "0.jpg").unlink()
    with pytest.raises(InvalidFileError, match="no box is on any of the 3 pictures"):
        open_labelled(labels)


def test_pictures_that_exif_turns_under_labels_that_are_not_turned_are_told(tmp_path):
    (note,) = open_labelled(write(tmp_path, [[2, 2, 20, 20]] * 8, orientation=6)).notes
    assert "4 of 4 labelled pictures turned: 0.jpg is 96x160, the labels say 160x96" in note.detail
    assert "EXIF" in note.hint
    assert open_labelled(write(tmp_path, [[2, 2, 20, 20]] * 8, orientation=6, size=(HEIGHT, WIDTH))).notes == ()


def test_boxes_of_unturned_pictures_that_leave_the_turned_ones_are_refused(tmp_path):
    wide = [[WIDTH - 40, top, 30, 20] for top in range(0, 70, 3)]
    with pytest.raises(InvalidFileError, match="boxes are of turned pictures"):
        open_labelled(write(tmp_path, wide, orientation=6, size=None))


def test_labels_of_pictures_in_another_size_are_told(tmp_path):
    (note,) = open_labelled(write(tmp_path, [[2, 2, 20, 20]] * 8, size=(WIDTH * 2, HEIGHT * 2))).notes
    assert "4 of 4 labelled pictures of another size: 0.jpg is 160x96, the labels say 320x192" in note.detail
