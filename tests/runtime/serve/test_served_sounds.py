"""Sounds over HTTP become texts, and texts the answers of an encoder with a decoder."""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from exported_pairs import EXPECTED, TONE, unpacked
from served import serving

from edgeopt.errors import EdgeoptError
from edgeopt.graph.sound import Sound
from edgeopt.recipes.inputs.wav_files import write_wav
from edgeopt.running import serving_pairs
from edgeopt.runtime.decoding.encoder_decoder import EncoderDecoder, open_encoder_decoder
from edgeopt.runtime.decoding.generation import AnswerOptions, Long
from edgeopt.runtime.serve.limits import Limits
from edgeopt.verbs.serve import served

PLACE = "/v1/audio/transcriptions"
LIMITS = Limits(answer_tokens=6, slots=2)
EDGE = "edge-of-a-form"
KIND = {"Content-Type": f"multipart/form-data; boundary={EDGE}"}


def form(files: list[bytes], **fields: str) -> bytes:
    parts = [(f'name="{name}"', value.encode()) for name, value in fields.items()]
    parts += [('name="file"; filename="sound.wav"', one) for one in files]
    head = f"--{EDGE}\r\nContent-Disposition: form-data; "
    rows = [f"{head}{named}\r\n\r\n".encode() + data + b"\r\n" for named, data in parts]
    return b"".join(rows) + f"--{EDGE}--\r\n".encode()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return unpacked("whisper", tmp_path_factory.mktemp("served") / "whisper")


@pytest.fixture(scope="module")
def server(folder):
    with serving(str(folder), LIMITS) as running:
        yield running


@pytest.fixture(scope="module")
def wav(tmp_path_factory) -> bytes:
    file = tmp_path_factory.mktemp("wav") / "tone.wav"
    write_wav(file, TONE)
    return file.read_bytes()


def text_of(folder: Path, sound: Sound) -> str:
    with open_encoder_decoder(folder, 1) as model:
        return model.generate(sound, AnswerOptions(most_tokens=6, long=Long.WINDOWS)).text().strip()


def test_a_sound_gets_the_text_that_run_writes(server, folder, wav):
    expected = text_of(folder, TONE)
    status, headers, data = server.ask("POST", PLACE, form([wav], model="whisper"), KIND)
    assert status == 200, data
    told = json.loads(data)
    assert told["text"] == expected
    assert told["usage"] == {"type": "duration", "seconds": 2}
    assert told["edgeopt"]["listen_ms"] > 0
    assert (told["edgeopt"]["windows"], told["edgeopt"]["ended_by"]) == (1, "length")
    assert headers["server-timing"].startswith("queue;dur=")
    status, headers, data = server.ask("POST", PLACE, form([wav], response_format="text"), KIND)
    assert headers["content-type"].startswith("text/plain")
    assert data.decode() == f"{expected}\n"
    assert server.metric('edgeopt_tokens_total{kind="output"}') >= 12


def test_the_model_is_opened_once_at_the_start(folder, monkeypatch, wav):
    opened = list[EncoderDecoder]()
    monkeypatch.setattr(
        serving_pairs, "open_encoder_decoder", lambda *given: opened.append(open_encoder_decoder(*given)) or opened[-1]
    )
    with serving(str(folder), LIMITS) as running:
        assert running.ask("POST", PLACE, form([wav]), KIND)[0] == 200
    assert len(opened) == 1


def test_a_long_sound_is_heard_in_windows(server, folder, tmp_path):
    noise = (0.1 * np.random.default_rng(0).standard_normal(40 * 16000)).astype(np.float32)
    sent = Sound(np.asarray(np.rint(noise * 32768) / 32768, np.float32), 16000)
    write_wav(tmp_path / "long.wav", sent)
    told = json.loads(server.ask("POST", PLACE, form([(tmp_path / "long.wav").read_bytes()]), KIND)[2])
    assert told["edgeopt"]["windows"] == 2
    assert told["text"] == text_of(folder, sent)


def test_few_bytes_do_not_become_hours_of_sound(server):
    head = struct.pack("<IHHIIHH", 16, 1, 1, 1000, 1000, 1, 8)
    data = bytes(1_100_000)
    slow = b"RIFF" + bytes(4) + b"WAVEfmt " + head + b"data" + struct.pack("<I", len(data)) + data
    status, _, said = server.ask("POST", PLACE, form([slow]), KIND)
    assert (status, json.loads(said)["error"]["code"]) == (413, "sound_too_long")
    assert "1100 s, more than 1049 s" in json.loads(said)["error"]["message"]


def test_openais_client_transcribes(server, wav):
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0)
    found = client.audio.transcriptions.create(model="whisper", file=("tone.wav", wav))
    assert found.text
    with pytest.raises(openai.BadRequestError, match="language: the model knows no language"):
        client.audio.transcriptions.create(model="whisper", file=("tone.wav", wav), language="zu")


@pytest.mark.parametrize(
    ("body", "status", "told"),
    [
        (form([]), 400, "holds no file"),
        (form([b"no wav"]), 400, "it is no WAV"),
        (form([b"RIFF"], model="other"), 404, "no model named 'other'"),
        (form([b"RIFF"], response_format="srt"), 400, "response_format"),
        (form([b"RIFF"], temperature="hot"), 400, "temperature"),
        (form([b"RIFF"], response_format="verbose_json"), 400, "this model writes no times"),
        (form([b"RIFF"], stream="perhaps"), 400, "stream: send true or false"),
        (form([b"RIFF"], **{"include[]": "logprobs"}), 400, "include[]: this server does not do that"),
        (b"--nothing", 400, "the form"),
    ],
)
def test_what_is_no_request_is_refused_in_a_line(server, body, status, told):
    found, _, data = server.ask("POST", PLACE, body, KIND)
    assert found == status
    assert told in json.loads(data)["error"]["message"]


def test_a_rate_that_nothing_resamples_is_the_sounds_fault_and_the_model_stays(server, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "soxr", None)
    write_wav(tmp_path / "slow.wav", Sound(TONE.samples, 8000))
    before = server.metric("edgeopt_loads_total")
    status, _, data = server.ask("POST", PLACE, form([(tmp_path / "slow.wav").read_bytes()]), KIND)
    assert (status, json.loads(data)["error"]["code"]) == (400, "invalid_sound")
    assert "send a WAV of 16000 Hz" in json.loads(data)["error"]["message"]
    write_wav(tmp_path / "right.wav", TONE)
    assert server.ask("POST", PLACE, form([(tmp_path / "right.wav").read_bytes()]), KIND)[0] == 200
    assert server.metric("edgeopt_loads_total") == before


def test_a_text_is_answered_as_a_completion(tmp_path):
    folder = unpacked("t5", tmp_path / "t5")
    text = "import os and the brown fox"
    with open_encoder_decoder(folder, 1) as model:
        expected = model.generate(text, AnswerOptions(most_tokens=6)).text()
    assert len(EXPECTED["t5"]["text"]) > 6
    with serving(str(folder), LIMITS) as running:
        wanted = {"model": "t5", "prompt": text, "max_tokens": 6, "temperature": 0}
        assert running.json("/v1/completions", wanted)["choices"][0]["text"] == expected
        assert running.json("/v1/completions", {**wanted, "echo": True})["choices"][0]["text"] == text + expected
        status, _, data = running.ask("POST", "/v1/completions", {**wanted, "echo": True, "logprobs": 1})
        assert status == 400
        assert b"echo: tokens of the prompt have no logprobs with an encoder" in data
        assert running.ask("POST", "/v1/chat/completions", {})[0] == 404
        assert running.ask("POST", PLACE, form([b"x"]), KIND)[0] == 404
        status, _, data = running.ask("POST", "/v1/completions", {**wanted, "prompt": "x" * 3000})
        assert status == 400
        assert b"context_length_exceeded" in data


def test_what_only_language_models_have_is_refused(folder):
    with pytest.raises(EdgeoptError, match="--guesses is not for encoders with decoders so far"):
        served((str(folder),), ({"guesses": 2},))
