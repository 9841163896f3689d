"""Frames of a camera or an address are recorded on the device, and both bundles answer them."""

from __future__ import annotations

from pathlib import Path

import cv2
import pytest
from fixture_bundles import bundle_with_test
from rtsp_server import RtspServer, why_absent

from edgeopt.errors import EdgeoptError
from edgeopt.graph.model import load_model
from edgeopt.recipes.inputs.frames import open_frames
from edgeopt.recipes.recognise import choose_recipe
from edgeopt.runtime.runtime import Runtime
from edgeopt.runtime.selftest import choose_samples
from edgeopt.verbs.rollout import recording
from edgeopt.verbs.rollout.canary import CanaryOptions, prove
from edgeopt.verbs.rollout.recording import is_live, record

DETECTOR = Path(__file__).parents[2] / "models" / "digits_detector"


@pytest.fixture(scope="module")
def detector(tmp_path_factory) -> Path:
    net = load_model(DETECTOR / "model.onnx", "digits")
    recipe = choose_recipe(None, DETECTOR / "model.onnx", net.inputs, net.outputs, net.metadata).recipe
    frames = open_frames(DETECTOR / "calib")
    stored = choose_samples([frames.read(0)], recipe.input.size)
    return bundle_with_test(tmp_path_factory.mktemp("made"), net, recipe, stored, {"model.onnx": net.data}).folder


def test_addresses_and_numbers_are_live_and_files_are_not():
    assert [is_live(text) for text in ("rtsp://door/1", "0", "door.mp4", "0/door.mp4", "C:\\door")] == [1, 1, 0, 0, 0]


@pytest.mark.skipif(bool(why_absent()), reason=why_absent())
def test_frames_of_an_address_are_recorded_and_judge(detector, tmp_path, monkeypatch):
    monkeypatch.setattr(recording, "_MOST_FRAMES", 3)
    monkeypatch.setattr(recording, "_APART_S", 0.1)
    server = RtspServer()
    server.start()
    try:
        with Runtime.load(detector) as runtime:
            record(runtime, server.address, tmp_path, None)
        assert [cv2.imread(str(path)).shape for path in sorted(tmp_path.iterdir())] == [(240, 320, 3)] * 3
        canary = prove(detector, detector, CanaryOptions(frames=server.address, seconds=0.1, budget_ms=1e4))
    finally:
        server.kill()
    assert canary.refused == ""
    assert dict(canary.facts)["answers"].startswith("1.000 agree with the running bundle's on 3 frames")


def test_an_address_that_does_not_answer_is_one_clear_line(detector, tmp_path):
    with Runtime.load(detector) as runtime, pytest.raises(EdgeoptError):
        record(runtime, "http://127.0.0.1:9/nothing.mjpg", tmp_path, None)
