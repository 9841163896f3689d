"""OpenAI's client transcribes and translates: segments, subtitles and streams are those of `transcribe`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from time import sleep

import numpy as np
import pytest
from served import serving, until
from speech_pairs import HEARD, chirps, speech_model
from voice_net import voice_net

from edgeopt.errors import EdgeoptError, UnavailableError
from edgeopt.graph.sound import Sound
from edgeopt.recipes.inputs.wav_files import decode_wav, write_wav
from edgeopt.running.serving import ServeOptions
from edgeopt.running.serving_pairs import hosted_pair
from edgeopt.running.transcribing import opened_voice
from edgeopt.runtime.decoding.encoder_decoder import open_encoder_decoder
from edgeopt.runtime.runtime import Runtime
from edgeopt.runtime.serve.limits import Limits
from edgeopt.verbs.serve import served

openai = pytest.importorskip("openai")
pytestmark = pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")  # later clients call translations so
EXACT = {"language": "en"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return speech_model(tmp_path_factory.mktemp("served") / "speech")


@pytest.fixture(scope="module")
def server(folder):
    with serving(str(folder), Limits(slots=2)) as running:
        yield running


@pytest.fixture(scope="module")
def audio(server):
    return openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0).audio


@pytest.fixture(scope="module")
def wav(tmp_path_factory) -> tuple[str, bytes]:
    file = tmp_path_factory.mktemp("wav") / "long.wav"
    write_wav(file, chirps(65))
    return "long.wav", file.read_bytes()


@pytest.fixture(scope="module")
def expected(folder, wav):
    with open_encoder_decoder(folder, 1) as model:
        return list(model.transcribe(decode_wav(wav[1], "it"), **EXACT))


def test_verbose_json_has_the_segments_of_transformers(audio, wav, expected):
    answer = audio.transcriptions.create(
        model="speech", file=wav, **EXACT, response_format="verbose_json", timestamp_granularities=["segment"]
    )
    assert [token for segment in answer.segments for token in segment.tokens] == HEARD["english"]["tokens"]
    assert [(each.start, each.end) for each in answer.segments] == [
        (round(each.start_s, 3), round(each.end_s, 3)) for each in expected
    ]
    assert answer.text == "".join(each.text for each in expected).strip()
    assert (answer.language, answer.duration) == ("english", 65.0)
    first = answer.segments[0]
    assert first.seek == 0
    assert answer.segments[-1].seek > 3000
    assert -5 < first.avg_logprob < 0 < first.no_speech_prob < 1
    assert first.compression_ratio > 0


def test_a_translation_and_a_prompt_change_what_is_heard(audio, wav, folder):
    with open_encoder_decoder(folder, 1) as model:
        sound = decode_wav(wav[1], "it")
        translated = model.transcribe(sound, task="translate").text()
        prompted = model.transcribe(sound, language="en", prompt="hello there").text()
    assert audio.translations.create(model="speech", file=wav).text == translated
    verbose = audio.translations.create(model="speech", file=wav, response_format="verbose_json")
    assert verbose.text == translated
    answer = audio.transcriptions.create(model="speech", file=wav, language="English", prompt="hello there")
    assert answer.text == prompted != translated
    with pytest.raises(openai.BadRequestError, match="which is no text"):
        audio.transcriptions.create(model="speech", file=wav, prompt="<|nospeech|>")
    assert audio.translations.create(model="speech", file=wav).text == translated  # the model stays


def test_subtitles_number_and_time_each_segment(audio, wav, expected):
    srt = audio.transcriptions.create(model="speech", file=wav, **EXACT, response_format="srt")
    vtt = audio.transcriptions.create(model="speech", file=wav, **EXACT, response_format="vtt")
    blocks = srt.strip().split("\n\n")
    assert len(blocks) == len(expected)
    assert blocks[0].splitlines()[:2] == ["1", "00:00:00,940 --> 00:00:13,020"]
    assert vtt.startswith("WEBVTT\n\n00:00.940 --> 00:13.020\n")
    assert audio.transcriptions.create(model="speech", file=wav, **EXACT, response_format="text").endswith("\n")


def test_a_stream_brings_a_segment_at_a_time_and_all_at_last(audio, wav, expected):
    events = list(audio.transcriptions.create(model="speech", file=wav, **EXACT, stream=True))
    assert [event.type for event in events[:-1]] == ["transcript.text.delta"] * (len(events) - 1)
    assert "".join(event.delta for event in events[:-1]) == "".join(each.text for each in expected)
    assert events[-1].type == "transcript.text.done"
    assert events[-1].text == "".join(each.text for each in expected).strip()
    assert events[-1].usage.seconds == 65


def test_a_client_that_leaves_a_stream_ends_it(audio, server, wav):
    with audio.transcriptions.create(model="speech", file=wav, **EXACT, stream=True) as stream:
        next(iter(stream))
    until(lambda: server.json("/healthz")["running"] == 0)
    assert audio.transcriptions.create(model="speech", file=wav, **EXACT).text


def test_beside_another_model_the_field_model_picks_it(folder, wav):
    with serving("tiny_lm", Limits(slots=1), beside=(str(folder),)) as running:
        client = openai.OpenAI(base_url=f"{running.address}/v1", api_key="none", max_retries=0)
        assert client.audio.translations.create(model="speech", file=wav).text
        with pytest.raises(openai.BadRequestError, match="does not answer /v1/audio/transcriptions"):
            client.audio.transcriptions.create(model="tiny_lm", file=wav)


def test_words_of_a_model_that_does_not_time_them_are_refused(audio, wav):
    asked = {"response_format": "verbose_json", "timestamp_granularities": ["word"]}
    with pytest.raises(openai.BadRequestError, match=r"tells no times of words.*--word-times") as raised:
        audio.transcriptions.create(model="speech", file=wav, **asked)
    assert raised.value.param == "timestamp_granularities[]"


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        (
            {"response_format": "verbose_json", "timestamp_granularities": ["word", "sentence"]},
            "send word, segment or both",
        ),
        ({"timestamp_granularities": ["segment"]}, "send response_format verbose_json"),
        ({"response_format": "srt", "stream": True}, "stream: send response_format json or text"),
        ({"response_format": "diarized_json"}, "send json, text, srt, vtt or verbose_json"),
        ({"include": ["logprobs"]}, "include"),
        ({"chunking_strategy": "auto"}, "chunking_strategy: this server skips no silence, .* --voice-activity"),
        ({"chunking_strategy": {"type": "server_vad"}}, "chunking_strategy: this server skips no silence"),
        ({"chunking_strategy": {"type": "server_vad", "threshold": 0.5}}, "threshold]: this server does not do that"),
        ({"chunking_strategy": "later"}, "chunking_strategy: send auto or"),
        ({"language": "klingon"}, "knows no language 'klingon'"),
        ({"temperature": 1.5}, "temperature: send a number from 0 to 1"),
    ],
)
def test_what_is_not_done_is_refused_by_name(audio, fields, why):
    with pytest.raises(openai.BadRequestError, match=why.replace("[", r"\[")):
        audio.transcriptions.create(model="speech", file=("x.wav", b"RIFF"), **fields)


def test_silence_is_skipped_where_a_detector_stands_in_front(folder, tmp_path):
    quiet, hum = np.zeros(20 * 16000, np.float32), 0.2 * np.sin(np.arange(6 * 16000))
    loud = chirps(6, seed=5).samples + hum.astype(np.float32)
    sound = Sound(np.concatenate([quiet, loud, quiet]).astype(np.float32), 16000)
    write_wav(tmp_path / "paused.wav", sound)
    write_wav(tmp_path / "silent.wav", Sound(quiet, 16000))
    paused, silent = (("s.wav", (tmp_path / f"{name}.wav").read_bytes()) for name in ("paused", "silent"))
    detector = voice_net(tmp_path / "voice")
    with opened_voice(str(detector), 1) as voice, open_encoder_decoder(folder, 1) as model:
        heard = decode_wav(paused[1], "it")
        expected = list(model.transcribe(heard, **EXACT, times=True, voice=voice))
        assert expected
        assert "".join(each.text for each in expected) != model.transcribe(heard, **EXACT, times=True).text()
    with serving(str(folder), Limits(slots=2), voice=str(detector)) as running:
        assert "without its silence" in running.told[0]
        audio = openai.OpenAI(base_url=f"{running.address}/v1", api_key="none", max_retries=0).audio
        asked = {"model": "speech", **EXACT, "response_format": "verbose_json"}
        for strategy in ({}, {"chunking_strategy": "auto"}, {"chunking_strategy": {"type": "server_vad"}}):
            answer = audio.transcriptions.create(file=paused, **asked, **strategy)
            assert answer.text == "".join(each.text for each in expected).strip()
            assert [each.start for each in answer.segments] == [round(each.start_s, 3) for each in expected]
            assert all(each.start >= 19.5 for each in answer.segments)
        assert audio.transcriptions.create(file=silent, **asked).text == ""


def test_a_detector_is_for_models_that_hear(folder):
    with pytest.raises(EdgeoptError, match="--voice-activity is for models that hear, and tiny_lm reads texts"):
        served(("tiny_lm",), ({"voice_activity": "x"},))
    with pytest.raises(EdgeoptError, match="tiny_lm"):
        served((str(folder),), ({"voice_activity": "tiny_lm", "port": 0},))


def test_a_translation_takes_no_language(audio):
    with pytest.raises(openai.BadRequestError, match="language: this server does not do that"):
        audio.translations.create(model="speech", file=("x.wav", b"RIFF"), extra_body={"language": "de"})


def test_a_sound_that_takes_too_long_or_is_too_large_is_refused(folder, wav):
    with serving(str(folder), Limits(seconds=0.001)) as running:
        client = openai.OpenAI(base_url=f"{running.address}/v1", api_key="none", max_retries=0)
        with pytest.raises(openai.APIStatusError) as refused:
            client.audio.transcriptions.create(model="speech", file=wav)
        assert refused.value.status_code == 503
    with serving(str(folder), Limits(body_bytes=1 << 20)) as running:
        client = openai.OpenAI(base_url=f"{running.address}/v1", api_key="none", max_retries=0)
        with pytest.raises(openai.APIStatusError) as refused:
            client.audio.transcriptions.create(model="speech", file=wav)
        assert refused.value.status_code == 413


@pytest.fixture(scope="module")
def detector(tmp_path_factory) -> Path:
    return voice_net(tmp_path_factory.mktemp("detector") / "voice")


def test_a_detector_that_breaks_is_not_the_fault_of_the_speech_model(folder, detector, wav, monkeypatch):
    predict = Runtime.predict

    def broken(self, *values, **options):
        if self.bundle.recipe.task == "voice_activity":
            raise UnavailableError("the detector is gone", remedy="start it anew")
        return predict(self, *values, **options)

    with serving(str(folder), Limits(slots=1), voice=str(detector)) as running:
        audio = openai.OpenAI(base_url=f"{running.address}/v1", api_key="none", max_retries=0).audio
        asked = {"model": "speech", **EXACT, "file": wav}
        said = audio.transcriptions.create(**asked).text
        monkeypatch.setattr(Runtime, "predict", broken)
        with pytest.raises(openai.APIStatusError, match="server failed: the detector is gone") as refused:
            audio.transcriptions.create(**asked)
        assert (refused.value.status_code, refused.value.code) == (503, "voice_activity_failed")
        monkeypatch.undo()
        assert audio.transcriptions.create(**asked).text == said
        assert running.metric("edgeopt_loads_total") == 1


def test_a_detector_ends_with_its_request(folder, detector, wav, monkeypatch):
    predict, looks = Runtime.predict, list[int]()

    def slow(self, *values, **options):
        if self.bundle.recipe.task == "voice_activity":
            looks.append(1)
            sleep(0.05)
        return predict(self, *values, **options)

    monkeypatch.setattr(Runtime, "predict", slow)
    with serving(str(folder), Limits(slots=1, seconds=0.5), voice=str(detector)) as running:
        client = openai.OpenAI(base_url=f"{running.address}/v1", api_key="none", max_retries=0)
        with pytest.raises(openai.APIStatusError, match="time limit") as refused:
            client.audio.transcriptions.create(model="speech", **EXACT, file=wav)
        assert refused.value.status_code == 503
        until(lambda: running.json("/healthz")["running"] == 0, 5)
        assert len(looks) < 100  # of 2,031 windows
        assert running.metric("edgeopt_loads_total") == 1


def test_the_memory_of_a_detector_counts(folder, detector):
    options = ServeOptions(threads=1)
    alone = hosted_pair(str(folder), options).needs.total_bytes
    beside = hosted_pair(str(folder), replace(options, voice=str(detector))).needs.total_bytes
    assert beside - alone == detector.stat().st_size
    wrong = replace(options, voice=str(detector.parent / "none.onnx"))
    assert hosted_pair(str(folder), wrong).needs.total_bytes == alone
