"""Pictures of any grid over HTTP: answers as without a server; what an attacker sends is refused in one sentence."""

from __future__ import annotations

import base64
import struct
import sys
import zlib

import cv2
import numpy as np
import pytest
from qwen_models import photo, write_qwen_folder
from served import serving

from edgeopt.export.export import export
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.opening import open_language_model
from edgeopt.runtime.serve.limits import Limits

PATH = "/v1/chat/completions"
LIMITS = Limits(picture_pixels=400_000, slots=2)
MANY = Limits(picture_pixels=400_000, slots=2, body_bytes=64 << 20)
_MOST_GROWTH_KIB = 200 << 10


def png(frame: np.ndarray) -> bytes:
    return cv2.imencode(".png", frame)[1].tobytes()


def part(data: bytes | str) -> dict:
    url = data if isinstance(data, str) else f"data:image/png;base64,{base64.b64encode(data).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


def body(*parts: dict, text: str = "What is this?", **more: object) -> dict:
    said = [*parts, {"type": "text", "text": text}]
    fields = {"max_tokens": 6, "temperature": 0, "ignore_eos": True, **more}
    return {"model": "net", "messages": [{"role": "user", "content": said}], **fields}


def chunked(width: int, height: int, rows: bytes) -> bytes:
    """Return a PNG whose head tells of any size."""
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows)),
        (b"IEND", b""),
    ]
    framed = (struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(framed)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    pytest.importorskip("jinja2")
    folder = tmp_path_factory.mktemp("qwen")
    write_qwen_folder(folder / "net", "qwen2_5_vl")
    return export(f"hf:{folder / 'net'}", out=folder / "out" / "model.onnx").file


@pytest.fixture(scope="module")
def served(file):
    with serving(str(file), MANY) as running:
        yield running


def test_a_conversation_about_pictures_goes_on_as_without_a_server(served, file):
    frames = [photo(1, 90, 120), photo(2, 200, 60)]
    ask = body(*[part(png(frame)) for frame in frames])
    first = served.json(PATH, ask)
    with open_language_model(file, 1)[0] as model:
        answer = model.generate("What is this?", AnswerOptions(most_tokens=6, ends=False), frames)
        assert first["choices"][0]["message"]["content"] == answer.text()
        assert first["usage"]["prompt_tokens"] == answer.account.prompt_tokens
    said = first["choices"][0]["message"]
    later = {"role": "user", "content": [part(png(photo(3, 64, 64))), {"type": "text", "text": "And this?"}]}
    whole = {**ask, "messages": [*ask["messages"], said, later]}
    second = served.json(PATH, whole)
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] > 60
    again = served.json(PATH, whole)
    assert again["choices"][0]["message"] == second["choices"][0]["message"]
    assert again["edgeopt"]["vision_ms"] < first["edgeopt"]["vision_ms"]


SMALL = png(photo(0, 20, 20))
ATTACKS = {
    "no data": (["data:image/png;base64,"], 400, "it is no picture"),
    "no base64": (["data:image/png;base64,@@@@"], 400, "it is no base64"),
    "half base64": (["data:image/png;base64,AAA"], 400, "it is no base64"),
    "a word": (["data:"], 400, "fetches nothing"),
    "text": (["data:text/plain;base64,aGk="], 400, "fetches nothing"),
    "half a picture": ([SMALL, SMALL[:60]], 400, "picture 2 of 2 does not decode"),
    "a bomb": ([chunked(30_000, 30_000, bytes(1000))], 413, "30000x30000 pixels, more than 400000"),
    "no pixels": ([chunked(0, 0, b"")], 400, "picture 1 of 1 does not decode"),
    "no height": ([chunked(300, 0, b"")], 400, "does not decode"),
    "a lie": ([chunked(600, 600, bytes(10))], 400, "does not decode"),
    "a line": ([png(photo(0, 1, 900))], 400, "one side more than 200 times as long as the other"),
    "too many for all": ([png(photo(0, 600, 600))] * 2, 413, "more than 40000"),
    "too many rows": ([SMALL] * 200, 400, "the prompt has more than 512 tokens"),
    "ten thousand": ([SMALL] * 10_000, 400, "more than 500 pictures"),
    "a video": ([], 400, "holds '<|video_pad|>'"),
}


def most_kib() -> int:
    """Return the most memory that this process ever had; 0 on Windows, which has no such count."""
    if sys.platform == "win32":
        return 0
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most >> 10 if sys.platform == "darwin" else most


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attacker_hears_one_sentence_and_takes_no_memory(served, name):
    parts, status, words = ATTACKS[name]
    before = most_kib()
    text = "a <|video_pad|> b" if name == "a video" else "what"
    code, _, data = served.ask("POST", PATH, body(*[part(each) for each in parts], text=text))
    assert code == status, data
    assert words.encode() in data, data
    assert data.count(b"\n") < 3
    assert most_kib() - before < _MOST_GROWTH_KIB  # a picture of 30000 x 30000 pixels has 2.7 GB
    assert served.json(PATH, body(part(SMALL), max_tokens=1))["usage"]["completion_tokens"] == 1
