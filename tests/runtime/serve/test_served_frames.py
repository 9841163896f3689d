"""Pictures over HTTP: the answer of the runtime as JSON, and pictures that are none."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import cv2
import numpy as np
import pytest
from fixture_bundles import packed
from served import serving, until

from edgeopt.errors import EdgeoptError, UnsupportedError
from edgeopt.graph.model import find_model, load_model
from edgeopt.recipes.inputs.frames import open_frames
from edgeopt.recipes.recognise import choose_recipe
from edgeopt.runtime.bundle import write_bundle
from edgeopt.runtime.runtime import Runtime
from edgeopt.runtime.serve.limits import Limits
from edgeopt.runtime.serve.routes.pictures import size_of
from edgeopt.system.declared.target import find_target

DIGITS = find_model("digits_detector")
CPU = find_target("cpu-x86-vnni")
PNG = {"Content-Type": "image/png"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    net = load_model(DIGITS)
    recipe = choose_recipe(None, DIGITS, net.inputs, net.outputs, net.metadata).recipe
    place = tmp_path_factory.mktemp("digits")
    return write_bundle(place, [packed("m.onnx", "fp32", DIGITS.read_bytes(), CPU, 1)], CPU, recipe, {}, {}).folder


@pytest.fixture(scope="module")
def frame() -> np.ndarray:
    return open_frames(DIGITS.parent / "calib").picture(0)


@pytest.fixture(scope="module")
def server(folder):
    with serving(str(folder)) as running:
        yield running


def as_png(frame: np.ndarray) -> bytes:
    return cv2.imencode(".png", frame)[1].tobytes()


def test_a_picture_gets_the_answer_that_the_runtime_gives(server, folder, frame):
    with Runtime.load(folder) as runtime:
        expected = runtime.task.as_json(runtime.predict(frame))
    status, headers, data = server.ask("POST", "/v1/frames", as_png(frame), PNG)
    found = json.loads(data)
    assert status == 200
    assert headers["server-timing"].startswith("queue;dur=")
    assert found["model"] == "digits_detector"
    assert found["picture"] == {"height": frame.shape[0], "width": frame.shape[1]}
    assert found["answer"] == json.loads(json.dumps(expected))
    assert {"queue_ms", "decode_ms", "preprocess_ms", "execute_ms"} <= found["edgeopt"].keys()
    form = (
        b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.png"\r\n\r\n'
        + as_png(frame)
        + b"\r\n--x--\r\n"
    )
    status, _, data = server.ask("POST", "/v1/frames", form, {"Content-Type": "multipart/form-data; boundary=x"})
    assert status == 200
    assert json.loads(data)["answer"] == found["answer"]


def test_what_is_no_picture_is_refused_and_the_next_one_is_answered(server, frame):
    bomb = as_png(np.zeros((8, 8, 3), np.uint8))
    bomb = bomb[:16] + (60_000).to_bytes(4, "big") * 2 + bomb[24:]
    for body, kind, status, told in (
        (b"", "image/png", 400, "no picture"),
        (b"GIF89a", "image/gif", 400, "no picture"),
        (as_png(frame)[:60], "image/png", 400, "no picture"),
        (bomb, "image/png", 413, "60000x60000 pixels"),
        (as_png(frame), "text/plain", 415, "send image/*"),
        (b"--x--", "multipart/form-data; boundary=x", 400, "the form holds no file"),
        (b"nothing", "multipart/form-data", 400, "the form"),
        (b" " * (9 << 20), "image/png", 413, "more than 8388608 bytes"),
    ):
        found, _, data = server.ask("POST", "/v1/frames", body, {"Content-Type": kind})
        assert found == status, (kind, data)
        assert told in json.loads(data)["error"]["message"]
    assert server.ask("POST", "/v1/frames", as_png(frame), PNG)[0] == 200
    assert server.ask("POST", "/v1/completions", b"{}", PNG)[0] == 404


def test_pictures_that_are_none_are_counted_once(folder, frame):
    with serving(str(folder)) as server:
        for body in (b"", as_png(frame)[:60], as_png(frame)):
            server.ask("POST", "/v1/frames", body, PNG)
        assert server.metric('edgeopt_refused_total{status="400"}') == 2
        assert server.metric('edgeopt_frames_total{outcome="failed"}') == 0
    assert str(server.result[0]) == "digits_detector: 1 answer, 2 refused"


def test_large_pictures_are_taken_one_at_a_time_and_others_are_answered_meanwhile(folder, frame):
    large = as_png(np.zeros((3200, 3200, 3), np.uint8))
    finished = list[str]()

    def ask(name: str, body: bytes) -> int:
        status = server.ask("POST", "/v1/frames", body, PNG)[0]
        finished.append(name)
        return status

    with serving(str(folder), Limits(slots=2)) as server, ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(ask, "large", large) for _ in range(6)]
        until(lambda: server.json("/healthz")["running"] == 1)
        assert ask("small", as_png(frame)) == 200
        assert server.json("/healthz")["running"] <= 1
        assert [one.result() for one in asked] == [200] * 6
    assert finished.index("small") < 5


def test_a_picture_is_bounded_by_what_it_would_take(folder):
    done, progressive = cv2.imencode(".jpg", np.zeros((64, 64, 3), np.uint8), [cv2.IMWRITE_JPEG_PROGRESSIVE, 1])
    assert done
    whole = progressive.tobytes()
    bomb = whole[:-2] + b"\xff\xda\x00\x08\x01\x01\x00\x00\x3f\x00\x00" * 500 + whole[-2:]
    segments = b"\xff\xd8" + b"\xff\xe1\x00\x02" * 100_000 + whole[2:]
    with serving(str(folder), Limits(picture_pixels=64 * 64)) as server:
        for body, status, told in (
            (whole, 200, ""),
            (bomb, 413, "the JPEG has 5"),
            (segments, 400, "no picture"),
            (as_png(np.zeros((65, 64, 3), np.uint8)), 413, "64x65 pixels, more than 4096, the limit of this server"),
        ):
            found, _, data = server.ask("POST", "/v1/frames", body, {"Content-Type": "image/png"})
            assert found == status, data
            assert told in data.decode()


def test_each_request_is_a_line_of_the_access_log_without_its_secrets(folder, frame, tmp_path):
    file = tmp_path / "access.log"
    with serving(str(folder), key="s3cret", access_log=str(file)) as server:
        allowed = {**PNG, "Authorization": "Bearer s3cret"}
        server.ask("POST", "/v1/frames?api_key=s3cret", as_png(frame), allowed)
        server.ask("POST", "/v1/frames", b"secret picture", {**PNG, "Authorization": "Bearer wr0ng"})
        until(lambda: file.read_text("utf-8").count("\n") == 2)
        file.rename(tmp_path / "access.log.1")  # as logs are rotated
        server.ask("GET", "/v1/models%0aforged" + "x" * 300, None, allowed)
    first = (tmp_path / "access.log.1").read_text("utf-8")
    lines = [json.loads(line) for line in (first + file.read_text("utf-8")).splitlines()]
    assert [(line["method"], line["path"][:17], line["status"]) for line in lines] == [
        ("POST", "/v1/frames", 200),
        ("POST", "/v1/frames", 401),
        ("GET", "/v1/models\nforged", 404),
    ]
    for line in lines:
        assert list(line) == ["time", "client", "method", "path", "status", "ms"]
        assert line["client"] == "127.0.0.1"
        assert line["ms"] > 0
        assert datetime.fromisoformat(line["time"]).tzinfo == UTC
        assert len(line["path"]) <= 200
    assert not any(secret in first for secret in ("s3cret", "wr0ng", "secret"))


def test_an_access_log_that_cannot_be_written_is_refused_before_the_model_opens(folder, tmp_path):
    with (
        pytest.raises(EdgeoptError, match="cannot be written: Is a directory"),
        serving(str(folder), access_log=str(tmp_path)),
    ):
        pass


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".bmp", ".webp"])
def test_the_size_of_a_picture_is_known_before_it_is_decoded(suffix):
    chance = np.random.default_rng(0)
    for shape in ((1, 1, 3), (37, 211, 3), (300, 5, 3)):
        done, data = cv2.imencode(suffix, chance.integers(0, 255, shape, dtype=np.uint8))
        assert done
        assert size_of(data.tobytes()) == shape[:2]
        for end in range(0, min(len(data), 40), 3):
            size_of(data.tobytes()[:end])  # whatever is cut off, nothing breaks
    lossless = cv2.imencode(".webp", np.zeros((9, 70, 3), np.uint8), [cv2.IMWRITE_WEBP_QUALITY, 101])[1]
    assert size_of(lossless.tobytes()) == (9, 70)


def test_a_model_of_tensors_is_refused_by_name(tmp_path):
    with pytest.raises(UnsupportedError, match="takes no pictures"), serving(str(of_tensors(tmp_path))):
        pass


def of_tensors(place: Path) -> Path:
    from dataclasses import replace

    from edgeopt.recipes.recipe import Input

    net = load_model(DIGITS)
    recipe = choose_recipe(None, DIGITS, net.inputs, net.outputs, net.metadata).recipe
    bare = replace(recipe, task="tensors", input=Input())
    return write_bundle(place, [packed("m.onnx", "fp32", DIGITS.read_bytes(), CPU, 1)], CPU, bare, {}, {}).folder
