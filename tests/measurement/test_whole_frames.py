"""A whole frame is timed with reading, preprocess and postprocess, in this process and in a fresh one alike."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from edgeopt.executors import SessionOptions
from edgeopt.executors.null import Script
from edgeopt.graph.sound import Sound
from edgeopt.graph.tensors import TensorSpec
from edgeopt.measurement.fresh_process.turns import Runnable, feed_of, run_fresh
from edgeopt.measurement.turns.interleaved import Pace, take_turns
from edgeopt.recipes.inputs.audio import Audio
from edgeopt.recipes.inputs.frames import Frames, open_frames
from edgeopt.recipes.inputs.made_up import synthetic_frames
from edgeopt.recipes.inputs.timed import is_read, readers_of
from edgeopt.recipes.inputs.wav_files import write_wav
from edgeopt.recipes.recipe import find_recipe
from edgeopt.recipes.sources.sound import windows_of
from edgeopt.runtime.opening import Opening

RECIPE = find_recipe("imagenet").with_size(32, 32)
INPUTS = (TensorSpec("x", "float32", (1, 3, 32, 32)),)
OUTPUTS = (TensorSpec("y", "float32", (1, 10)),)
PACE = Pace(0.0, most_legs=1, block_seconds=0.01, least_rounds=3)


def runnable(folder: Path, name: str, execute_us: int) -> Runnable:
    """Return a classifier that takes this long."""
    path = folder / f"{name}.json"
    answer = {"y": np.zeros((1, 10), np.float32)}
    path.write_bytes(Script(INPUTS, (answer,), (execute_us * 1000,)).to_bytes())
    return Runnable(Opening("null", SessionOptions()), path, RECIPE, INPUTS, OUTPUTS)


@pytest.fixture
def models(tmp_path) -> dict[str, Runnable]:
    """Return two models below a millisecond, one three times as fast as the other."""
    return {"original": runnable(tmp_path, "original", 900), "lighter": runnable(tmp_path, "lighter", 300)}


def large_pictures(folder: Path) -> Frames:
    """Return pictures that take tens of milliseconds to decode and to shrink."""
    folder.mkdir()
    noise = np.random.default_rng(0).integers(0, 256, (900, 1200, 3), np.uint8)
    for name in ("a.png", "b.png"):
        cv2.imwrite(str(folder / name), noise)
    return open_frames(folder)


def large_sounds(folder: Path) -> Frames:
    folder.mkdir()
    for name in ("a.wav", "b.wav"):
        write_wav(folder / name, Sound(np.zeros(48_000, np.float32), 16_000))
    return open_frames(folder)


@pytest.mark.parametrize("is_fresh", [False, True])
def test_reading_and_preprocess_are_in_the_ratio_of_a_model_below_a_millisecond(models, tmp_path, is_fresh):
    """They are nearly all of the frame, so that a model three times as fast changes next to nothing."""
    frames = large_pictures(tmp_path / "pictures")
    if is_fresh:
        turns = run_fresh(models, feed_of(frames), PACE, workers=1, seed=0)
    else:
        turns = take_turns({name: one.open for name, one in models.items()}, frames, PACE)
    for label in models:
        rows = turns.samples[label]
        assert rows.stages == ("load", "preprocess", "upload", "execute", "download", "postprocess")
        assert (rows.overhead_ns >= 0).all()
        assert (rows.stage("load") > 200_000).all()  # a megapixel is decoded each time
    assert turns.ratio("lighter", "frame").speedup < 2  # by execution alone it is 3


def test_frames_of_files_are_read_by_name_in_a_fresh_process(tmp_path):
    for frames in (large_pictures(tmp_path / "pictures"), large_sounds(tmp_path / "sounds")):
        feed = feed_of(frames)
        assert feed.samples == ()
        assert feed.frames().names == frames.names
        assert is_read(feed.frames())
    sound = open_frames(tmp_path / "sounds/a.wav")
    assert feed_of(sound).samples == ()
    assert feed_of(sound).frames().names == ("a.wav",)


def test_what_lies_in_memory_is_neither_drawn_nor_cut_while_frames_are_timed(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.zeros((3, 4), np.float32))
    audio = Audio(rate_hz=16_000, samples=512, hop=512, context=64)
    windows = windows_of(large_sounds(tmp_path / "sounds"), audio)
    for frames in (synthetic_frames((32, 32)), open_frames(tmp_path / "x.npz"), windows):
        here, there = readers_of(frames), readers_of(feed_of(frames).frames())
        assert here[0]() is here[0]()
        assert there[0]() is there[0]()
    assert not is_read(feed_of(windows).frames())


def test_fresh_processes_of_optimize_import_no_onnx():
    names = ", ".join(f"edgeopt.measurement.fresh_process.{name}" for name in ("turns", "answers", "child"))
    asked = f"import sys, {names}; sys.exit('onnx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", asked], check=False).returncode == 0
