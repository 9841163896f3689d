"""Voice activity in front: stretches begin and end where they are, and times of the kept sound lead back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st
from speech_pairs import RATE, speech_model
from voice_net import voice_net

from edgeopt.errors import EdgeoptError
from edgeopt.graph.sound import Sound
from edgeopt.recipes.inputs.audio import Audio, Features
from edgeopt.recipes.inputs.features import FeatureMaker
from edgeopt.recipes.texts.speech import SpeechSettings
from edgeopt.running.live_subject import opened_subject
from edgeopt.runtime.decoding.encoder_decoder import open_encoder_decoder
from edgeopt.runtime.decoding.speech.hearing import passages_of
from edgeopt.runtime.decoding.speech.voice import KeptSound, VoiceGate, utterances, without_silence
from edgeopt.runtime.runtime import Runtime

PAD_S = 0.4
AUDIO = Audio(features=Features.WHISPER, rate_hz=RATE, samples=30 * RATE)


@pytest.fixture(scope="module")
def voice(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runtime]:
    model = voice_net(tmp_path_factory.mktemp("voice"))
    with opened_subject(model, "", None, 1, None, None) as subject:
        assert isinstance(subject.served, Runtime)
        yield subject.served


def sound_of(*stretches: tuple[float, float], seconds: float) -> Sound:
    """Return silence with a loud tone in some stretches."""
    samples = np.zeros(int(seconds * RATE), np.float32)
    for begin, end in stretches:
        place = slice(int(begin * RATE), int(end * RATE))
        samples[place] = np.sin(np.arange(place.stop - place.start) / 5)
    return Sound(samples, RATE)


def test_stretches_are_kept_with_a_margin_and_pauses_within_speech_stay(voice):
    sound = sound_of((3, 5), (6, 7), (12, 13), seconds=20)
    kept = without_silence(sound, voice)
    assert len(kept.stretches) == 2  # a second of pause is a part of speech, five are not
    np.testing.assert_allclose(kept.stretches, [(3 - PAD_S, 7 + PAD_S), (12 - PAD_S, 13 + PAD_S)], atol=0.04)
    assert kept.sound.seconds == pytest.approx(sum(end - begin for begin, end in kept.stretches), abs=1e-3)
    assert kept.original_s(0) == kept.stretches[0][0]
    assert kept.original_s(kept.sound.seconds) == pytest.approx(kept.stretches[1][1])
    length = kept.stretches[0][1] - kept.stretches[0][0]
    assert kept.original_s(length + 0.5) == pytest.approx(kept.stretches[1][0] + 0.5)
    assert without_silence(sound_of(seconds=4), voice).stretches == ()
    ends = without_silence(sound_of((0, 1), (18, 20), seconds=20), voice)
    assert (ends.stretches[0][0], ends.stretches[1][1]) == (0.0, 20.0)


@for_all(st.lists(st.floats(0.1, 50), min_size=2, max_size=10), st.lists(st.floats(0, 1), min_size=2, max_size=6))
def test_times_keep_their_order_and_lie_in_a_stretch(gaps, shares):
    edges = np.cumsum(gaps[: len(gaps) // 2 * 2]).reshape(-1, 2)
    kept = KeptSound(Sound(np.zeros(1, np.float32), RATE), tuple((float(a), float(b)) for a, b in edges))
    length = float((edges[:, 1] - edges[:, 0]).sum())
    times = [kept.original_s(share * length) for share in sorted(shares)]
    assert times == sorted(times)
    assert all(any(begin - 1e-9 <= time <= end + 1e-9 for begin, end in edges) for time in times)


@pytest.mark.parametrize("part", [100, 512, 5000, 160_000])
def test_a_gate_finds_the_same_however_the_sound_comes(voice, part):
    samples = sound_of((1, 2), (4, 6), seconds=10).samples
    gate = VoiceGate(voice, pause_s=0.8)
    stretches = [each for i in range(0, len(samples), part) for each in gate.feed(samples[i : i + part])]
    stretches += gate.end()
    np.testing.assert_allclose(np.asarray(stretches) / RATE, [(1, 2), (4, 6)], atol=0.04)


def test_an_utterance_comes_when_a_pause_follows_it(voice):
    sound = sound_of((2, 3), (6, 6.5), (8, 14), seconds=16)
    passed = 0

    def parts() -> Iterator[Sound]:
        nonlocal passed
        for begin in range(0, len(sound.samples), RATE // 10):
            passed = begin + RATE // 10
            yield Sound(sound.samples[begin : begin + RATE // 10], RATE)

    heard = utterances(parts(), RATE, voice, most_s=4.0)
    first, begin_s = next(heard)
    assert passed / RATE == pytest.approx(3.8, abs=0.15)
    assert begin_s == pytest.approx(2 - PAD_S, abs=0.04)
    assert first.seconds == pytest.approx(1 + 2 * PAD_S, abs=0.08)
    rest = [(begin_s, each.seconds) for each, begin_s in heard]
    assert [round(begin_s + PAD_S) for begin_s, _ in rest] == [6, 8, 12]  # six seconds are more than four
    offset = round(begin_s * RATE)
    np.testing.assert_array_equal(first.samples, sound.samples[offset : offset + len(first.samples)])


class CountedVoice:
    """A detector, and whose states it keeps."""

    def __init__(self, voice: Runtime) -> None:
        self.bundle, self._voice, self.streams = voice.bundle, voice, set[Any]()

    def predict(self, frame: Sound, *, stream: Any = 0) -> Any:
        self.streams.add(stream)
        return self._voice.predict(frame, stream=stream)

    def reset(self, stream: Any = None) -> None:
        self.streams.discard(stream)
        self._voice.reset(stream)


def test_a_stream_that_nobody_hears_to_its_end_leaves_no_states(voice):
    counted, sound = CountedVoice(voice), sound_of((1, 2), (5, 6), seconds=8)
    parts = (Sound(sound.samples[i : i + 1600], RATE) for i in range(0, len(sound.samples), 1600))
    heard = utterances(parts, RATE, counted, most_s=30)
    next(heard)
    assert len(counted.streams) == 1
    heard.close()
    assert not counted.streams


def test_an_utterance_with_its_margins_fits_in_a_window(voice):
    sound, audio = sound_of((1, 40), seconds=45), AUDIO
    parts = (Sound(sound.samples[i : i + 1600], RATE) for i in range(0, len(sound.samples), 1600))
    passages, _ = passages_of(parts, audio, None, SpeechSettings(), voice)
    frames = FeatureMaker(audio).shape[1]
    rest = [passage.features.window(frames)[1] for passage in passages]
    assert rest == [0, 0]


def test_another_task_or_rate_tells_no_voice(voice, tmp_path):
    with pytest.raises(EdgeoptError, match="hears 16000 Hz, the stream has 8000 Hz"):
        next(utterances(iter([]), 8000, voice, 30))
    folder = speech_model(Path(tmp_path) / "speech")
    with open_encoder_decoder(folder, 1) as model:
        transcription = model.transcribe(sound_of((31, 33), seconds=40), language="en", voice=voice)
        assert transcription.account.windows == 0
        segments = list(transcription)
        assert transcription.account.windows == 1
        assert all(30.5 < segment.start_s <= segment.end_s < 33.5 for segment in segments)
        assert model.transcribe(sound_of(seconds=40), voice=voice).text() == ""
