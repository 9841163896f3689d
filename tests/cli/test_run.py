"""`edgeopt run` as a user meets it: every source, a page, a video, JSON, a full disk, Ctrl-C, a wrong argument."""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import cv2
import numpy as np
import onnx
import pytest
from chromium import chromium_page
from click.testing import CliRunner, Result
from fixture_bundles import packed
from rtsp_server import RtspServer, why_absent

from edgeopt.cli import cli
from edgeopt.cli._live_line import live_line
from edgeopt.graph.model import find_model, load_model
from edgeopt.recipes.recognise import choose_recipe
from edgeopt.runtime.bundle import write_bundle
from edgeopt.system.declared.target import find_target

DIGITS = find_model("digits_detector")
CPU = find_target("cpu-x86-vnni")
PICTURES = DIGITS.parent / "calib"
NO_RTSP = why_absent()


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Path:
    net = load_model(DIGITS)
    recipe = choose_recipe(None, DIGITS, net.inputs, net.outputs, net.metadata).recipe
    models = [packed("model.onnx", "fp32", DIGITS.read_bytes(), CPU, 1)]
    return write_bundle(tmp_path_factory.mktemp("digits") / "bundle", models, CPU, recipe, {}, {}).folder


@pytest.fixture(scope="module")
def video(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("video") / "digits.mp4"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"mp4v"), 30, (240, 240))
    frames = sorted(PICTURES.glob("*.jpg"))[:10]
    for k in range(40):
        writer.write(cv2.resize(cv2.imread(str(frames[k % 10])), (240, 240)))
    writer.release()
    return path


def ran(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["run", *map(str, arguments)])


def frames_of(path: Path) -> int:
    capture, count = cv2.VideoCapture(str(path)), 0
    while capture.read()[0]:
        count += 1
    return count


def test_a_folder_is_answered_line_by_line_and_a_verdict_comes_last(bundle):
    shown = ran(bundle, PICTURES, "--limit", 3)
    assert shown.exit_code == 0, shown.output
    lines = shown.stdout.splitlines()
    assert [line.split(":")[0] for line in lines[:3]] == [path.name for path in sorted(PICTURES.glob("*.jpg"))[:3]]
    assert lines[3] == ""
    assert re.fullmatch(r"DONE +3 frames answered, p50 [\d.]+ ms, p99 [\d.]+ ms", lines[-1])
    assert shown.stderr == ""


def test_a_video_loses_no_frame_and_its_json_is_lines(bundle, video, tmp_path):
    shown = ran(bundle, video, "--json", "--save", tmp_path / "out.mp4")
    assert shown.exit_code == 0, shown.output
    rows = [json.loads(line) for line in shown.stdout.splitlines()]
    assert [row["index"] for row in rows] == list(range(40))
    assert rows[7].keys() == {"frame", "index", "age_ms", "latency_ms", "missed", "artefact", "detections"}
    assert rows[7]["frame"] == "digits#7"
    assert "40 fed: 40 served;" in shown.stderr
    assert f"saved      40 frames in {tmp_path / 'out.mp4'}" in shown.stderr
    assert frames_of(tmp_path / "out.mp4") == 40
    assert cv2.VideoCapture(str(tmp_path / "out.mp4")).read()[1].shape == (320, 320, 3)


@pytest.mark.parametrize(("budget", "code", "word"), [("10s", 3, "NOT DECIDED"), ("1us", 2, "FAIL")])
def test_a_budget_is_a_gate(bundle, video, budget, code, word):
    shown = ran(bundle, video, "--budget", budget, "--no-degrade")
    assert shown.exit_code == code, shown.output
    verdict, *after = shown.stdout.splitlines()[-1 if code == 3 else -2 :]
    assert verdict.startswith(f"{word} ")
    proof = r" of 40 frames over [\d.]+ ms; at (most|least) [\d.]+% miss, 1% allowed; confidence 95%"
    proof += r"(; \d+ more would decide)?"
    assert re.search(f"{proof}$", verdict)
    assert after == ([] if code == 3 else [f"next       edgeopt bench {bundle} --budget 1us"])
    assert ran(bundle, video, "--budget", "10s", "--max-miss", "50%").exit_code == 0


def test_a_video_of_which_frames_were_lost_stands_still_for_them(bundle, video, tmp_path):
    """At 1000 frames a second most machines lose some, and none is late."""
    shown = ran(bundle, video, "--fps", 1000, "--budget", "10s", "--save", tmp_path / "out.avi")
    counts = re.search(r"(\d+) fed: (\d+) served(?:, (\d+) dropped)?; 0 of", shown.stdout)
    assert counts, shown.stdout
    fed, served, dropped = (int(one or 0) for one in counts.groups())
    assert fed == served + dropped == 40
    assert re.search(r" of \d+ frames over 10000 ms or lost; ", shown.stdout)
    assert served <= frames_of(tmp_path / "out.avi") <= 40
    assert "queue      latest" in shown.stdout


def test_a_video_is_saved_into_a_folder_that_is_made_for_it(bundle, video, tmp_path):
    shown = ran(bundle, video, "--limit", 3, "--save", tmp_path / "new" / "drawn.avi")
    assert shown.exit_code == 0, shown.stderr
    assert frames_of(tmp_path / "new" / "drawn.avi") == 3


def test_pictures_are_saved_under_their_names_and_never_over_the_source(bundle, tmp_path):
    for name in ("a.png", "a.jpg", "b.png"):
        cv2.imwrite(str(tmp_path / name), np.full((60, 80, 3), 128, np.uint8))
    assert ran(bundle, tmp_path, "--save", tmp_path / "drawn").exit_code == 0
    assert sorted(path.name for path in (tmp_path / "drawn").iterdir()) == ["a.jpg.png", "a.png.png", "b.png"]
    refused = ran(bundle, tmp_path, "--save", tmp_path)
    assert refused.exit_code == 1
    assert "holds the pictures themselves" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "nowhere does not exist"),
        (["nowhere.mp4"], "nowhere.mp4 does not exist"),
        ([PICTURES, "--queue", "lifo"], "'lifo' is not a queue"),
        ([PICTURES, "--save", "x.webm"], "x.webm is no video that can be written"),
        ([PICTURES, "--save", "/proc/x.mp4"], "/proc/x.mp4 cannot be written"),
        ([PICTURES, "--save", "/proc/x"], "cannot be written"),
        ([PICTURES, "--fps", "nan"], "nan is no finite number"),
        ([PICTURES, "--fps", "0"], "0.0 is not in the range"),
        ([PICTURES, "--fps", "1e-300"], "1e-300 is not in the range"),
        ([PICTURES, "--budget", "banana"], "'banana' is not a duration"),
        ([PICTURES, "--limit", "0"], "0 is not in the range"),
        (["97"], "camera 97 does not open"),
        (["ftp://x/y"], "'ftp://x/y' is no source of frames"),
        (["rtsp://name:secret@127.0.0.1:9/x"], "rtsp://127.0.0.1:9/x does not open as a video"),
        ([], "Missing argument 'SOURCE'"),
    ],
)
def test_a_wrong_argument_is_one_line(bundle, arguments, said):
    shown = ran(bundle, *arguments)
    assert shown.exit_code == 1
    assert said in shown.stderr
    assert len([line for line in shown.stderr.splitlines() if line.lower().startswith("error: ")]) == 1
    assert "Traceback" not in shown.stderr
    assert "secret" not in shown.output


def started(*arguments: object, **settings: object) -> subprocess.Popen[str]:
    # a shell that starts jobs in the background hands on SIGINT as ignored
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "from edgeopt.__main__ import main; main()"
    )
    command = [sys.executable, "-c", code, "run", *map(str, arguments)]
    settings.setdefault("env", {**os.environ})  # readline, which pytest loads, puts COLUMNS into the environment of C
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **settings)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit on the size of a file")
def test_a_full_disk_is_one_error_and_what_was_saved_plays(bundle, video, tmp_path):
    """A limit on the size of files is met like the end of a disk."""
    import resource

    frames = sorted(PICTURES.glob("*.jpg"))
    wide = tmp_path / "wide.avi"
    writer = cv2.VideoWriter(str(wide), cv2.VideoWriter.fourcc(*"MJPG"), 30, (640, 480))
    for k in range(120):
        writer.write(cv2.resize(cv2.imread(str(frames[k % 30])), (640, 480)))
    writer.release()
    limit = 3 << 20
    process = started(
        bundle,
        wide,
        "--save",
        tmp_path / "out.avi",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1, out + err
    said = re.search(r"error: (\d+) frames in .*out\.avi: there is no room for more\n  -> free disk space", err)
    assert said, err
    assert frames_of(tmp_path / "out.avi") == int(said[1]) > 5
    assert f"saved      {said[1]} frames" in out
    small = 3000
    process = started(
        bundle,
        PICTURES,
        "--save",
        tmp_path / "drawn",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (small, small)),
    )
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "cannot be written: File too large" in err
    assert list((tmp_path / "drawn").glob("*.png")) == []


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_a_service_that_is_stopped_end_with_the_summary(bundle, video, tmp_path, how):
    process = started(bundle, video, "--fps", 1, "--json", "--save", tmp_path / "out.mp4")
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["index"] == 0
    process.send_signal(how)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "answered until it was interrupted" in err
    assert frames_of(tmp_path / "out.mp4") >= 1
    assert "Traceback" not in err


def test_a_line_follows_the_stream_on_a_terminal_of_80_columns(bundle, video):
    leader, follower = pytest.importorskip("pty").openpty()
    command = [sys.executable, "-m", "edgeopt", "run", str(bundle), str(video), "--fps", "40", "--no-degrade"]
    environment = os.environ | {"COLUMNS": "80", "LINES": "24"}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=follower, env=environment)
    os.close(follower)
    shown = b""
    while process.poll() is None or select.select([leader], [], [], 0)[0]:
        try:
            shown += os.read(leader, 4096) if select.select([leader], [], [], 0.1)[0] else b""
        except OSError:
            break
    os.close(leader)
    assert process.wait() == 0
    lines = [line for line in shown.decode().split("\r") if re.match(r"\d+/40 ", line)]
    assert lines, shown
    assert all(len(line) < 80 for line in lines)
    assert re.match(r"\d+/40  .*p50 [\d.]+ p99 [\d.]+ ms  .*missed.*\[.+[]>]", lines[-1]), lines


@pytest.mark.parametrize("width", [10, 39, 79, 200])
def test_the_line_leaves_out_what_does_not_fit(bundle, width):
    from edgeopt.runtime.runtime import Runtime
    from edgeopt.runtime.stream import Stream

    with Runtime.load(bundle) as runtime, Stream(runtime, PICTURES, fps=None) as stream:
        assert live_line(stream.stats(), None, width) == "waiting for the first frame"[:width]
        for _ in range(3):
            next(stream)
        line = live_line(stream.stats(), 10**6, width)
    assert len(line) <= width
    assert line[1:].startswith("/1000000"[: len(line) - 1])
    assert width == 39 or ("[" in line) == (width > 10)  # at 39 columns the digits of the times decide
    assert width < 79 or "missed  [" in line


def read_until(stream: object, wanted: bytes, seconds: float = 20) -> bytes:
    seen, until = b"", time.monotonic() + seconds
    while wanted not in seen and time.monotonic() < until:
        seen += stream.read1(65536)  # type: ignore[attr-defined]
    return seen


def test_a_page_of_this_machine_shows_the_stream(bundle, video):
    process = started(bundle, video, "--fps", 5, "--view")
    assert process.stderr is not None
    address = re.fullmatch(r"view: http://127\.0\.0\.1:(\d+)/\n", process.stderr.readline())
    assert address
    port = int(address[1])
    page = HTTPConnection("127.0.0.1", port, timeout=10)
    page.request("GET", "/")
    text = page.getresponse().read().decode()
    assert '<img src="/frames"' in text
    assert "http" not in text.replace("<!doctype html>", ""), "the page loads nothing from elsewhere"
    frames = HTTPConnection("127.0.0.1", port, timeout=10)
    frames.request("GET", "/frames")
    answer = frames.getresponse()
    assert answer.headers["Content-Type"].startswith("multipart/x-mixed-replace; boundary=")
    seen = read_until(answer, b"\xff\xd9\r\n--edgeopt-frame")
    jpeg = seen[seen.index(b"\xff\xd8") : seen.index(b"\xff\xd9\r\n--") + 2]
    assert cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR).shape == (320, 320, 3)
    page.request("GET", "/figures.json")
    figures = json.loads(page.getresponse().read())
    assert figures["served"] >= 1
    assert figures["source"] == str(video)
    for host, path, code in (("127.0.0.1", "/../secret", 404), ("evil.example", "/", 403)):
        page.request("GET", path, headers={"Host": f"{host}:{port}"})
        refused = page.getresponse()
        refused.read()
        assert refused.status == code
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "saved" not in out
    assert f"view       http://127.0.0.1:{port}/ was opened 1 time" in out
    with pytest.raises(OSError):
        HTTPConnection("127.0.0.1", port, timeout=2).connect()


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no browser: apt-get install chromium")
def test_a_browser_shows_the_page(bundle, video, tmp_path):
    process = started(bundle, video, "--fps", 4, "--view")
    assert process.stderr is not None
    address = process.stderr.readline().split()[1]
    with chromium_page(tmp_path) as page:
        page.open(address)
        page.wait_for("(document.querySelector('img') || {}).naturalWidth > 0")
        page.wait_for(
            "document.querySelectorAll('dd').length === 7 && document.querySelectorAll('#bar span').length > 2"
        )
        assert page.value("document.title") == "edgeopt run"
        assert page.value("document.querySelector('h1').textContent") == f"{bundle.name} on {video}"
        told = page.value("document.getElementById('legend').textContent")
        assert "execute " in told
        assert told.endswith("the whole bar is the budget of 33.3 ms")
        assert page.console == []
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 0


@pytest.fixture
def server() -> Iterator[RtspServer]:
    made = RtspServer()
    made.start()
    yield made
    made.kill()


@pytest.mark.skipif(NO_RTSP != "", reason=NO_RTSP)
def test_rtsp_runs_headless(bundle, server, tmp_path):
    shown = ran(bundle, server.address, "--limit", 10, "--json", "--save", tmp_path / "drawn")
    assert shown.exit_code == 0, shown.output
    assert len(shown.stdout.splitlines()) == 10
    assert len(list((tmp_path / "drawn").glob("*.png"))) == 10


def test_a_model_runs_as_it_is_where_its_recipe_is_known(bundle, tmp_path):
    """Shipped, beside the model or named: the answers are those of its bundle."""
    told = ran(bundle, PICTURES, "--limit", 2, "--json").stdout.splitlines()
    answers = [json.loads(line)["detections"] for line in told]
    for model in (DIGITS, "digits_detector"):
        shown = ran(model, PICTURES, "--limit", 2, "--json")
        assert shown.exit_code == 0, shown.output
        assert [json.loads(line)["detections"] for line in shown.stdout.splitlines()] == answers
    alone = shutil.copy(DIGITS, tmp_path / "alone.onnx")
    named = ran(alone, PICTURES, "--recipe", "digits_detector", "--limit", 2, "--json")
    assert [json.loads(line)["detections"] for line in named.stdout.splitlines()] == answers
    arrays = tmp_path / "x.npz"
    spec = load_model(DIGITS).inputs[0]
    np.savez(arrays, **{spec.name: np.zeros((2, *spec.shape[1:]), np.float32)})
    fed = ran(alone, arrays, "--recipe", "tensors", "--json")
    assert len(fed.stdout.splitlines()) == 2, fed.output


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["alone.onnx", "."], "write one: edgeopt recipe alone.onnx"),
        (["nowhere.onnx", "."], "no model file or shipped model named 'nowhere.onnx'"),
        (["alone.onnx", ".", "--code", "."], "--code is for a pipeline"),
        (["bundle", ".", "--recipe", "tensors"], "bundle is a bundle, which brings its own -> leave --recipe out"),
        (["bundle", ".", "--target", "cpu"], "bundle is a bundle, which brings its own -> leave --target out"),
    ],
)
def test_a_model_without_a_recipe_and_options_of_another_are_refused(arguments, told, bundle, tmp_path, monkeypatch):
    body = "(float[1, 3, 8, 8] x) => (float[1, 5] y) { m = GlobalAveragePool(x) f = Flatten(m) y = MatMul(f, w) }"
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> net {body}')
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((3, 5), np.float32), "w"))
    onnx.save(proto, str(tmp_path / "alone.onnx"))
    shutil.copytree(bundle, tmp_path / "bundle")
    monkeypatch.chdir(tmp_path)
    shown = ran(*arguments)
    assert shown.exit_code == 1, shown.output
    assert told in " ".join(shown.stderr.split())
