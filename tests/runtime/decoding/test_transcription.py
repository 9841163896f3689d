"""Long sounds become the tokens and times that transformers hears with the same weights, whatever is asked.

Graphs and what is expected: `fixtures/encoder_decoder_graphs/make_speech.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from speech_pairs import FIRST_TIME, HEARD, RATE, chirps, speech_model

from edgeopt.errors import EdgeoptError, UnavailableError
from edgeopt.graph.sound import Sound
from edgeopt.runtime.decoding.encoder_decoder import EncoderDecoder, open_encoder_decoder
from edgeopt.runtime.decoding.speech.options import SpeechOptions

LONG, SHORT = chirps(65), chirps(12)
CASES = {
    "english": SpeechOptions("en", "transcribe"),
    "detected": SpeechOptions(),
    "translated": SpeechOptions("German", "translate"),
    "prompted": SpeechOptions("<|en|>", prompt="hello there"),
    "carried": SpeechOptions("en", carries_text=True, prompt=" hello "),
    "searched": SpeechOptions("en", beams=4, carries_text=True),
    "silent": SpeechOptions("en", no_speech_threshold=6e-4, logprob_threshold=-1.5, temperatures=(0.0,)),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return speech_model(tmp_path_factory.mktemp("speech") / "heard")


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[EncoderDecoder]:
    with open_encoder_decoder(folder, 1) as opened:
        yield opened


@pytest.mark.parametrize("case", CASES)
def test_a_long_sound_has_the_tokens_and_times_of_transformers(model, case):
    expected = HEARD[case]
    transcription = model.transcribe(LONG, CASES[case])
    segments = list(transcription)
    assert transcription.tokens == expected["tokens"]
    times = [[round(min(end, LONG.seconds), 2) for end in pair] for pair in expected["times"]]
    assert [[round(segment.start_s, 2), round(segment.end_s, 2)] for segment in segments] == times
    assert transcription.account.windows >= 3


def test_a_penalty_of_length_and_full_beams_end_a_search_as_transformers_does(tmp_path):
    folder = speech_model(tmp_path / "net", num_beams=3, length_penalty=3.0, early_stopping=True)
    with open_encoder_decoder(folder, 1) as opened:
        transcription = opened.transcribe(LONG, language="en")
        list(transcription)
    assert transcription.tokens == HEARD["long answers"]["tokens"]


@pytest.mark.parametrize("beams", [1, 4])
def test_a_sound_of_one_window_has_no_times_unless_asked(model, beams):
    expected = HEARD[f"{beams} beams"]["tokens"]
    transcription = model.transcribe(SHORT, language="en", beams=beams, window_tokens=40)
    (segment,) = transcription
    assert list(segment.tokens) == expected
    assert (segment.start_s, segment.end_s, transcription.writes_times) == (0.0, 12.0, False)
    assert transcription.account.reason == "length"
    answer = model.generate(SHORT, beams=beams, most_tokens=40)
    assert len([piece.token for piece in answer]) == 40
    timed = list(model.transcribe(SHORT, language="en", times=True))
    assert all(segment.tokens[0] >= FIRST_TIME and segment.end_s <= SHORT.seconds for segment in timed)


def test_a_language_is_chosen_told_and_refused_by_its_name(model):
    chosen = model.transcribe(LONG)
    next(chosen)
    assert chosen.language == "de"
    assert model.transcribe(LONG, language="english").language == "en"
    with pytest.raises(EdgeoptError, match="knows no language 'klingon'") as refused:
        model.transcribe(LONG, language="klingon")
    assert "de, en" in refused.value.remedy
    with pytest.raises(ValueError, match="task is 'sing'"):
        model.transcribe(LONG, task="sing")


def test_what_the_configuration_asks_for_is_done_unless_an_option_says_otherwise(folder, tmp_path):
    changed = {"return_timestamps": True, "condition_on_prev_tokens": True, "num_beams": 4, "language": "en"}
    with open_encoder_decoder(speech_model(tmp_path / "net", **changed), 1) as opened:
        transcription = opened.transcribe(LONG)
        list(transcription)
        assert transcription.tokens == HEARD["searched"]["tokens"]
        assert opened.transcribe(SHORT).writes_times
        other = opened.transcribe(LONG, beams=1, carries_text=False)
        list(other)
        assert other.tokens == HEARD["english"]["tokens"]
    english = speech_model(tmp_path / "english", is_multilingual=False, lang_to_id=None, task_to_id=None)
    with open_encoder_decoder(english, 1) as opened:
        assert opened.transcribe(SHORT, language="en").text()
        with pytest.raises(EdgeoptError, match="English alone"):
            opened.transcribe(SHORT, language="de")
    with pytest.raises(EdgeoptError, match="prompt_condition_type"):
        open_encoder_decoder(speech_model(tmp_path / "other", prompt_condition_type="all-segments"), 1)


def test_an_answer_that_is_doubted_is_drawn_anew_at_rising_temperatures(model):
    asked = SpeechOptions("en", logprob_threshold=0.0, seed=3, window_tokens=12)
    segments = list(model.transcribe(LONG, asked))
    assert {segment.temperature for segment in segments} == {1.0}  # none is ever sure enough
    assert [each.tokens for each in model.transcribe(LONG, asked)] == [each.tokens for each in segments]
    sure = list(model.transcribe(LONG, asked.but(logprob_threshold=-100.0)))
    assert {segment.temperature for segment in sure} == {0.0}
    repeating = model.transcribe(LONG, asked.but(logprob_threshold=None, compression_ratio_threshold=0.1))
    assert {segment.temperature for segment in repeating} == {1.0}
    half = model.transcribe(LONG, asked.but(temperatures=(0.0, 0.5)))
    assert {segment.temperature for segment in half} == {0.5}


def test_a_long_prompt_keeps_its_end_and_special_names_are_refused(model):
    transcription = model.transcribe(LONG, language="en", prompt="x" * 100 + "hello")
    assert "are left out: the model reads the last ones" in str(transcription.notes[0])
    (with_end, *_) = transcription
    (same, *_) = model.transcribe(LONG, language="en", prompt="x" * 90 + "hello")
    assert with_end.tokens == same.tokens
    with pytest.raises(EdgeoptError, match=r"<\|nospeech\|>, which is no text"):
        model.transcribe(LONG, prompt="say <|nospeech|>")


def test_a_transcription_is_cancelled_and_a_closed_model_refuses(folder):
    with open_encoder_decoder(folder, 1) as opened:
        with opened.transcribe(LONG, language="en") as transcription:
            next(transcription)
            transcription.cancel()
            rest = list(transcription)
        assert len(rest) < len(HEARD["english"]["times"]) - 1
        assert transcription.account.reason == "cancelled"
        on_its_way = opened.transcribe(LONG, language="en")
        next(on_its_way)
    with pytest.raises(UnavailableError, match="closed"):
        opened.transcribe(LONG)
    with pytest.raises(UnavailableError, match="closed"):
        list(on_its_way)


def parts_of(sound: Sound, seconds: float) -> Iterator[Sound]:
    size = int(seconds * RATE)
    for begin in range(0, len(sound.samples), size):
        yield Sound(sound.samples[begin : begin + size], sound.rate_hz)


def test_a_stream_is_heard_window_by_window_before_it_is_over(model):
    passed = list[float]()

    def parts() -> Iterator[Sound]:
        for part in parts_of(LONG, 0.5):
            passed.append(part.seconds)
            yield part

    transcription = model.transcribe(parts(), language="en")
    first = next(transcription)
    assert sum(passed) == 30
    segments = [first, *transcription]
    assert sum(passed) == LONG.seconds
    starts = [segment.start_s for segment in segments]
    assert starts == sorted(starts)
    assert starts[-1] > 40
    with pytest.raises(EdgeoptError, match="the stream has 8000 Hz"):
        next(model.transcribe(iter([Sound(np.zeros(8000, np.float32), 8000)])))


def test_a_model_without_times_hears_long_sounds_in_windows_that_end_in_pauses(tmp_path):
    folder = speech_model(tmp_path / "silent", no_timestamps_token_id=None)
    with open_encoder_decoder(folder, 1) as opened:
        segments = list(opened.transcribe(LONG, language="en", window_tokens=4))
        assert [segment.start_s for segment in segments] == sorted({segment.start_s for segment in segments})
        assert segments[-1].end_s == pytest.approx(LONG.seconds)
        assert all(24 <= segment.end_s - segment.start_s <= 30 for segment in segments[:-1])
        with pytest.raises(EdgeoptError, match="writes no times"):
            opened.transcribe(SHORT, times=True)


def test_segments_are_plain_values(model):
    segment = next(model.transcribe(LONG, language="en"))
    values = json.loads(json.dumps(segment.as_json()))
    assert values["start_s"] == HEARD["english"]["times"][0][0]
    assert 0 < values["no_speech_prob"] < 1
