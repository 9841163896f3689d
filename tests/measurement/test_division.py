"""Labels that prove steer nothing: one set is divided, what lies in both is left to the proof."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np

from edgeopt.measurement.accuracy.division import divide, why_too_few, without
from edgeopt.measurement.accuracy.evaluate import LabelledFrames, open_labelled
from edgeopt.recipes.inputs.frames import open_frames


def labelled(folder: Path, count: int) -> LabelledFrames:
    folder.mkdir(exist_ok=True)
    for i in range(count):
        cv2.imwrite(str(folder / f"{i:03}.png"), np.full((4, 4, 3), i, np.uint8))
    rows = "".join(f"{i:03}.png,{i % 7}\n" for i in range(count))
    (folder / "labels.csv").write_text(f"file,class_index\n{rows}")
    return open_labelled(folder / "labels.csv")


def test_one_set_is_divided_at_random_and_always_alike(tmp_path: Path) -> None:
    whole = labelled(tmp_path / "val", 80)
    found = divide(whole)
    assert found.is_apart
    search, proving = set(found.search.names), set(found.proving.frames.names)
    assert not search & proving
    assert search | proving == set(whole.frames.names)
    assert len(search) == 20
    assert found.proving.labels.files == found.proving.frames.names
    assert sorted(search) != list(whole.frames.names[:20])
    assert divide(whole).search.names == found.search.names
    assert "20 of 80 labelled pictures steer the search, the other 60 prove" in found.notes[0].detail


def test_a_set_that_is_too_small_proves_nothing(tmp_path: Path) -> None:
    found = divide(labelled(tmp_path / "val", 12))
    assert not found.is_apart
    assert "prove nothing" in found.notes[0].detail


def test_pictures_that_prove_do_not_calibrate(tmp_path: Path) -> None:
    whole = labelled(tmp_path / "val", 10)
    others = tmp_path / "others"
    others.mkdir()
    for i in range(5):
        cv2.imwrite(str(others / f"{i}.png"), np.zeros((4, 4, 3), np.uint8))
    (others / "same.png").symlink_to(tmp_path / "val" / "003.png")
    assert without(open_frames(tmp_path / "val"), whole) is None
    kept = without(open_frames(others), whole)
    assert kept is not None
    assert kept.names == tuple(f"{i}.png" for i in range(5))


def test_too_few_labels_are_told_with_the_number_that_would_do() -> None:
    assert why_too_few(64, 0.01) == "64 labelled samples cannot prove a drop of at most 0.01: it takes 299 at least"
    assert why_too_few(299, 0.01) == ""
    assert why_too_few(10_000, 0.0) == "no number of labelled samples proves that nothing at all is lost"
