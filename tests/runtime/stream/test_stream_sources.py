"""Real sources: a video, pictures, HLS from a web server, RTSP from a server that dies, stalls and comes back."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import cv2
import numpy as np
import pytest
from fixture_bundles import packed
from headless_videos import write_cut, write_piped
from rtsp_server import RtspServer, why_absent

from edgeopt.errors import EdgeoptError, UnavailableError
from edgeopt.graph.model import find_model, load_model
from edgeopt.recipes.recognise import choose_recipe
from edgeopt.runtime.bundle import write_bundle
from edgeopt.runtime.runtime import Runtime
from edgeopt.runtime.stream import EventKind, Stream
from edgeopt.runtime.stream.sources import _capture
from edgeopt.system.declared.target import find_target

DIGITS = find_model("digits_detector")
CPU = find_target("cpu-x86-vnni")
NO_RTSP = why_absent()


@pytest.fixture(scope="module")
def runtime(tmp_path_factory) -> Iterator[Runtime]:
    net = load_model(DIGITS)
    recipe = choose_recipe(None, DIGITS, net.inputs, net.outputs, net.metadata).recipe
    models = [packed("model.onnx", "fp32", DIGITS.read_bytes(), CPU, 1)]
    folder = write_bundle(tmp_path_factory.mktemp("digits"), models, CPU, recipe, {}, {}).folder
    with Runtime.load(folder) as opened:
        yield opened


@pytest.fixture(scope="module")
def video(tmp_path_factory) -> Path:
    """Sixty frames at 60 a second, each of them brighter than the one before."""
    path = tmp_path_factory.mktemp("video") / "brighter.mp4"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"mp4v"), 60, (160, 120))
    for shade in range(60):
        writer.write(np.full((120, 160, 3), 4 * shade, np.uint8))
    writer.release()
    return path


def threads() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name.startswith("edgeopt")]


def test_no_frame_of_a_video_is_lost_where_no_rate_is_asked_for(runtime, video):
    with Stream(runtime, video, fps=None) as stream:
        assert stream.source.count == 60
        results = list(stream)
    assert [one.name for one in results] == [f"brighter#{k}" for k in range(60)]
    shades = [int(one.frame.mean()) for one in results]
    assert shades == sorted(shades)
    assert (stream.stats().served, stream.stats().dropped) == (60, 0)
    assert threads() == []


def test_a_video_at_a_rate_takes_its_time(runtime, video):
    with Stream(runtime, str(video), fps=120, budget_ms=10_000, queue="fifo") as stream:
        assert len(list(stream)) == 60
    assert stream.stats().answers_per_s <= 120 * 1.05
    assert list(stream) == []


def test_a_video_comes_at_its_own_rate_unless_another_is_asked_for(runtime, tmp_path):
    path = tmp_path / "slow.mp4"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"mp4v"), 15, (160, 120))
    for _ in range(3):
        writer.write(np.zeros((120, 160, 3), np.uint8))
    writer.release()
    rates = {}
    for asked in ("usual", "own", 60, None):
        with Stream(runtime, path, fps=asked) as stream:
            rates[asked] = stream._capture.fps
    assert rates == {"usual": 15, "own": 15, 60: 60, None: None}
    with Stream(runtime, path) as stream:
        assert stream._capture.fps == 15
    for others in (iter([]), DIGITS.parent / "calib"):
        with Stream(runtime, others) as stream:
            assert stream._capture.fps == 30


def test_a_folder_of_pictures_gives_the_answers_of_predict(runtime):
    results = list(Stream(runtime, DIGITS.parent / "calib", fps=None))
    assert len(results) >= 30
    for one in results[:10]:
        assert np.array_equal(one.answer.boxes, runtime.predict(one.frame).boxes)
        assert one.name.endswith((".png", ".jpg"))


def test_a_frame_that_the_app_fills_again_is_the_streams_own(runtime):
    frame = np.zeros((120, 160, 3), np.uint8)

    def refilled() -> Iterator[np.ndarray]:
        for shade in range(20):
            frame[:] = shade
            yield frame

    results = list(Stream(runtime, refilled(), fps=None, queue="fifo"))
    assert [int(one.frame[0, 0, 0]) for one in results] == list(range(20))


@pytest.fixture
def web(tmp_path) -> Iterator[tuple[Path, str]]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield tmp_path, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_video_whose_header_tells_no_length_ends_all_the_same(runtime, web):
    folder, address = web
    video = write_piped(folder / "piped", 12)
    with Stream(runtime, video, fps=None) as stream:
        assert (stream.source.count, stream.source.is_live) == (None, False)
        assert len(list(stream)) == 12
    assert not stream.stats().events
    with Stream(runtime, f"{address}/{video.name}", budget_ms=1000, queue="fifo") as stream:
        assert len(list(stream)) == 12, "it is not played again from its start"
    assert not stream.stats().events


def test_a_video_that_was_cut_off_is_told_of(runtime, tmp_path):
    with Stream(runtime, write_cut(tmp_path / "cut", 40), fps=None) as stream:
        count = len(list(stream))
    (event,) = stream.stats().events
    assert event.kind is EventKind.ENDED
    assert event.reason.endswith(f"cut.avi ended after {count} frames, and its header tells of 40")


@pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="no HLS: apt-get install ffmpeg")
def test_hls_comes_at_the_times_that_are_written_on_its_frames(runtime, video, web):
    folder, address = web
    command = ["ffmpeg", "-loglevel", "error", "-i", str(video), "-c:v", "mpeg2video", "-r", "30", "-hls_time", "0.5"]
    subprocess.run([*command, "-hls_list_size", "0", str(folder / "live.m3u8")], check=True, timeout=60)
    capture, count = cv2.VideoCapture(str(folder / "live.m3u8")), 0
    while capture.read()[0]:
        count += 1
    with Stream(runtime, f"{address}/live.m3u8", budget_ms=1000, queue="fifo") as stream:
        results = list(stream)
    stats = stream.stats()
    assert stats.fed == stats.served == len(results) == count
    assert stats.answers_per_s <= 33  # a server on the same machine hands them over at once
    assert [one.name for one in results][:2] == [f"{address}/live.m3u8#0", f"{address}/live.m3u8#1"]
    with pytest.raises(EdgeoptError, match="does not open as a video"):
        Stream(runtime, f"{address}/nothing.m3u8")


@pytest.fixture
def server() -> Iterator[RtspServer]:
    made = RtspServer()
    made.start()
    yield made
    made.kill()


@pytest.mark.skipif(NO_RTSP != "", reason=NO_RTSP)
def test_rtsp_that_dies_comes_back_and_the_gap_is_told(runtime, server):
    with Stream(runtime, server.address, budget_ms=1000) as stream:
        before = [next(stream) for _ in range(10)]
        server.kill()
        restart = threading.Timer(1.0, server.start)
        restart.start()
        after = []
        while not stream.stats().gaps or len(after) < 10:
            after.append(next(stream))
        restart.join()
    stats = stream.stats()
    assert stats.gaps == 1
    assert stats.gap_s >= 1
    (event,) = (one for one in stats.events if one.kind is EventKind.GAP)
    assert event.reason.startswith(f"{server.address} was away for {stats.gap_s:.1f} s, opened again at attempt")
    indices = [one.index for one in before + after]
    assert indices == sorted(set(indices))
    assert stats.fed == stats.served + stats.dropped + stats.failed
    assert threads() == []


@pytest.mark.skipif(NO_RTSP != "", reason=NO_RTSP)
def test_rtsp_that_stalls_for_good_ends_in_one_error_and_the_process_goes_on(runtime, server, monkeypatch):
    monkeypatch.setattr(_capture, "_READ_MS", 500)
    monkeypatch.setattr(_capture, "_OPEN_MS", 500)
    stream = Stream(runtime, server.address, give_up_s=1)
    next(stream)
    assert server.process is not None
    os.kill(server.process.pid, signal.SIGSTOP)
    with pytest.raises(UnavailableError, match=r"has given no frame for \d+ s, after \d+ before") as caught:
        list(stream)
    assert "look after the camera" in caught.value.remedy
    assert threads() == []
    assert runtime.predict(np.zeros((64, 64, 3), np.uint8)) is not None
