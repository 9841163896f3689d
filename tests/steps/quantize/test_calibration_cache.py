from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_nets import frames, mobile, residual
from test_calibration_processes import assert_same

from edgeopt.errors import InvalidFileError
from edgeopt.graph.model import Model
from edgeopt.steps.quantize.calibration.calibrate import CHUNK_IMAGES, calibrate
from edgeopt.steps.quantize.calibration.watching import Watcher

AXES = {"x": 1, "relu_1": 1}
IMAGES = 3 * CHUNK_IMAGES


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the chunks that were really computed."""
    numbers: list[int] = []
    watch = Watcher.watch

    def counted(self: Watcher, images: Any, first: int, tell: Any = None) -> Any:
        numbers.append(first)
        return watch(self, images, first, tell)

    monkeypatch.setattr(Watcher, "watch", counted)
    return numbers


def test_the_second_time_nothing_is_computed_and_the_result_is_the_same(tmp_path: Path, computed: list[int]) -> None:
    model, done = residual(), list[int]()
    first = calibrate(model, frames(model, IMAGES), AXES, cache=tmp_path)
    assert len(computed) == 3
    second = calibrate(model, frames(model, IMAGES), AXES, cache=tmp_path, progress=done.append)
    assert len(computed) == 3
    assert done[-1] == IMAGES
    assert second.notes == ()
    assert_same(first, second)
    assert_same(first, calibrate(model, frames(model, IMAGES), AXES))


def test_an_interrupt_keeps_what_was_finished(tmp_path: Path, computed: list[int]) -> None:
    model = residual()

    def interrupted() -> Iterator[dict[str, np.ndarray[Any, Any]]]:
        for i, frame in enumerate(frames(model, IMAGES)):
            if i == 2 * CHUNK_IMAGES + 1:
                raise KeyboardInterrupt
            yield frame

    with pytest.raises(KeyboardInterrupt):
        calibrate(model, interrupted(), AXES, cache=tmp_path)
    assert computed == [0, CHUNK_IMAGES]
    resumed = calibrate(model, frames(model, IMAGES), AXES, cache=tmp_path)
    assert computed == [0, CHUNK_IMAGES, 2 * CHUNK_IMAGES]
    assert_same(resumed, calibrate(model, frames(model, IMAGES), AXES))


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty"])
def test_a_damaged_entry_is_computed_again_and_said(tmp_path: Path, computed: list[int], damage: str) -> None:
    model = residual()
    whole = calibrate(model, frames(model, IMAGES), AXES, cache=tmp_path)
    entry = sorted(tmp_path.iterdir())[0]
    data = entry.read_bytes()
    entry.write_bytes({"cut": data[:-9], "flipped": data[:500] + b"\xff\x00" + data[502:], "empty": b""}[damage])
    computed.clear()
    again = calibrate(model, frames(model, IMAGES), AXES, cache=tmp_path)
    assert len(computed) == 1
    assert_same(whole, again)
    assert "1 damaged calibration chunk in" in again.notes[0].detail
    assert calibrate(model, frames(model, IMAGES), AXES, cache=tmp_path).notes == ()


def test_another_model_other_images_and_another_seed_share_no_entry(tmp_path: Path, computed: list[int]) -> None:
    model, other = residual(), Model(residual().proto, "renamed")
    other.proto.graph.initializer[0].raw_data = bytes(len(other.proto.graph.initializer[0].raw_data))
    calibrate(model, frames(model, CHUNK_IMAGES), AXES, cache=tmp_path)
    calibrate(model, frames(model, CHUNK_IMAGES, 2), AXES, cache=tmp_path)
    calibrate(model, frames(model, CHUNK_IMAGES), AXES, cache=tmp_path, seed=1)
    calibrate(model, frames(model, CHUNK_IMAGES), {"x": 1}, cache=tmp_path)
    calibrate(other, frames(model, CHUNK_IMAGES), AXES, cache=tmp_path)
    calibrate(mobile(), frames(model, CHUNK_IMAGES), {"x": 1}, cache=tmp_path)
    assert len(computed) == 6
    assert len(list(tmp_path.iterdir())) == 6


def test_more_images_cost_only_the_new_ones(tmp_path: Path, computed: list[int]) -> None:
    model = residual()
    calibrate(model, frames(model, 2 * CHUNK_IMAGES), AXES, cache=tmp_path)
    calibrate(model, frames(model, 3 * CHUNK_IMAGES), AXES, cache=tmp_path)
    assert computed == [0, CHUNK_IMAGES, 2 * CHUNK_IMAGES]


def test_other_processes_fill_the_same_cache(tmp_path: Path, computed: list[int]) -> None:
    model = residual()
    calibrate(model, frames(model, IMAGES), AXES, cache=tmp_path, processes=2)
    computed.clear()
    calibrate(model, frames(model, IMAGES), AXES, cache=tmp_path, processes=1)
    assert computed == []


def test_a_cache_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    model = residual()
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InvalidFileError, match="cannot be written"):
        calibrate(model, frames(model, 1), AXES, cache=tmp_path / "file")
