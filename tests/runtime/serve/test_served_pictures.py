"""Pictures in conversations over HTTP: they come as data, within limits, and OpenAI's own client sends them."""

from __future__ import annotations

import base64
import struct
import zlib

import cv2
import numpy as np
import pytest
from seeing_models import picture, write_exported
from served import serving

from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.opening import open_language_model
from edgeopt.runtime.serve.limits import Limits

PATH = "/v1/chat/completions"
LIMITS = Limits(picture_pixels=40_000, slots=2)


def url_of(data: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def png(seed: int, height: int = 90, width: int = 120) -> bytes:
    return cv2.imencode(".png", picture(seed, height, width))[1].tobytes()


def part(url: str, **more: str) -> dict:
    return {"type": "image_url", "image_url": {"url": url, **more}}


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return write_exported(tmp_path_factory.mktemp("seeing"))


@pytest.fixture(scope="module")
def served(file):
    with serving(str(file), LIMITS) as running:
        yield running


def body(*parts: dict, text: str = "What is this?", **more: object) -> dict:
    said = [*parts, {"type": "text", "text": text}]
    fields = {"max_tokens": 6, "temperature": 0, "ignore_eos": True, **more}
    return {"model": "seeing", "messages": [{"role": "user", "content": said}], **fields}


def test_openais_client_asks_about_pictures(served, file):
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"{served.address}/v1", api_key="none")
    fields = {"model": "seeing", "max_tokens": 6, "temperature": 0, "extra_body": {"ignore_eos": True}}
    said = [part(url_of(png(1))), part(url_of(png(2)), detail="auto"), {"type": "text", "text": "What is this?"}]
    answer = client.chat.completions.create(messages=[{"role": "user", "content": said}], **fields)
    with open_language_model(file, 1)[0] as model:
        asked = AnswerOptions(most_tokens=6, ends=False)
        expected = model.generate("What is this?", asked, [picture(1), picture(2)])
        text = expected.text()
        count = expected.account.prompt_tokens
    assert answer.choices[0].message.content == text
    assert answer.usage.prompt_tokens == count
    assert answer.model_extra["edgeopt"]["encoded"] == 2
    again = client.chat.completions.create(messages=[{"role": "user", "content": said[1:]}], **fields)
    assert again.model_extra["edgeopt"]["encoded"] == 0  # the same picture, at another place
    parts = client.chat.completions.create(messages=[{"role": "user", "content": said}], stream=True, **fields)
    assert "".join(each.choices[0].delta.content or "" for each in parts if each.choices) == text


def test_the_same_picture_is_a_prefix_and_another_is_not(served):
    first = served.json(PATH, body(part(url_of(png(5)))))
    again = served.json(PATH, body(part(url_of(png(5)))))
    other = served.json(PATH, body(part(url_of(png(6)))))
    times = [each["edgeopt"] for each in (first, again)]
    assert all(0 < each["vision_ms"] + each["prefill_ms"] <= each["ttft_ms"] for each in times)
    assert "vision_ms" not in served.json(PATH, body())["edgeopt"]
    held = [each["usage"]["prompt_tokens_details"]["cached_tokens"] for each in (first, again, other)]
    assert held[1] == first["usage"]["prompt_tokens"] - 1
    assert held[2] < 10
    assert first["choices"][0]["message"]["content"] == again["choices"][0]["message"]["content"]


def test_a_conversation_goes_on_behind_its_picture(served):
    ask = body(part(url_of(png(5))))
    said = served.json(PATH, ask)["choices"][0]["message"]
    more = [*ask["messages"], said, {"role": "user", "content": "And what else?"}]
    usage = served.json(PATH, {**ask, "messages": more})["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] > 20  # the rows of the picture among them


def bomb(side: int) -> bytes:
    """Return a PNG of few bytes and many pixels."""
    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", head), (b"IDAT", zlib.compress(bytes(3 * side + 1) * 4)), (b"IEND", b"")]
    framed = (struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(framed)


@pytest.mark.parametrize(
    ("parts", "status", "words"),
    [
        ([part("https://example.org/cat.png")], 400, "image_url: this server fetches nothing: send the picture itself"),
        ([part("file:///etc/passwd")], 400, "fetches nothing"),
        ([part("data:image/png;base64,AAAA")], 400, "it is no picture: send a PNG, JPEG, WebP or BMP"),
        ([part("data:image/png;base64,?")], 400, "it is no base64"),
        ([part(url_of(png(1)), detail="low")], 400, "detail: 'low' is not done here"),
        ([part(url_of(bomb(20_000)))], 413, "20000x20000 pixels, more than 40000"),
        ([part(url_of(png(i))) for i in range(5)], 413, "more than 7600"),
        ([part(url_of(png(1)[:-40]))], 400, "picture 1 of 1 does not decode"),
        ([part(url_of(png(i, 24, 32))) for i in range(30)], 400, "30 pictures take"),
        ([{"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}], 400, "no sounds, videos or files"),
        ([{"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AA"}}], 400, "no sounds, videos or files"),
        ([{"type": "image_url", "image_url": 5}], 400, "an object such as"),
    ],
)
def test_what_is_not_taken_is_refused_in_one_sentence(served, parts, status, words):
    code, _, data = served.ask("POST", PATH, body(*parts))
    assert code == status, data
    assert words.encode() in data, data


def test_words_are_no_pictures(served):
    code, _, data = served.ask("POST", PATH, body(part(url_of(png(1))), text="a <image> b"))
    assert code == 400
    assert b"holds '<image>'" in data
    system = {"role": "system", "content": [part(url_of(png(1)))]}
    code, _, data = served.ask("POST", PATH, {**body(), "messages": [system]})
    assert code == 400
    assert b"pictures belong to what the user says" in data


def test_a_model_that_sees_nothing_refuses_pictures():
    with serving("tiny_lm") as running:
        code, _, data = running.ask("POST", PATH, {**body(part(url_of(png(1)))), "model": "tiny_lm"})
    assert code == 400
    assert b"this model reads no pictures or sounds" in data


def test_a_text_of_the_system_stands_before_pictures(file, tmp_path):
    system = tmp_path / "system.txt"
    system.write_text("Answer shortly.", "utf-8")
    from edgeopt.running.writing import Prompting

    with serving(str(file), LIMITS, prompting=Prompting(system=system, prefixes=tmp_path / "prefixes")) as running:
        usage = running.json(PATH, body(part(url_of(png(1)))))["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] > 5


def test_noise_of_many_pixels_within_the_limit_is_seen(served):
    noise = np.random.default_rng(0).integers(0, 256, (199, 200, 3), dtype=np.uint8)
    data = cv2.imencode(".jpg", noise)[1].tobytes()
    assert served.json(PATH, body(part(url_of(data, "jpeg"))))["usage"]["completion_tokens"] == 6
