"""OpenAI's client transcribes and translates: segments, subtitles and streams are those of `transcribe`."""

from __future__ import annotations

from pathlib import Path

import pytest
from served import serving, until
from speech_pairs import HEARD, chirps, speech_model

from edgeopt.recipes.inputs.wav_files import decode_wav, write_wav
from edgeopt.runtime.decoding.encoder_decoder import open_encoder_decoder
from edgeopt.runtime.serve.limits import Limits

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


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"response_format": "verbose_json", "timestamp_granularities": ["word", "segment"]}, "times of words"),
        ({"timestamp_granularities": ["segment"]}, "send response_format verbose_json"),
        ({"response_format": "srt", "stream": True}, "stream: send response_format json or text"),
        ({"response_format": "diarized_json"}, "send json, text, srt, vtt or verbose_json"),
        ({"include": ["logprobs"]}, "include"),
        ({"chunking_strategy": "auto"}, "chunking_strategy: this server does not do that"),
        ({"language": "klingon"}, "knows no language 'klingon'"),
        ({"temperature": 1.5}, "temperature: send a number from 0 to 1"),
    ],
)
def test_what_is_not_done_is_refused_by_name(audio, fields, why):
    with pytest.raises(openai.BadRequestError, match=why.replace("[", r"\[")):
        audio.transcriptions.create(model="speech", file=("x.wav", b"RIFF"), **fields)


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
