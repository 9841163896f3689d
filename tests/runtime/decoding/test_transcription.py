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


