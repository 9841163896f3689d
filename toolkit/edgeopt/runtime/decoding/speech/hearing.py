"""Passages of what is transcribed: a sound or a stream, whole, without its silence, or in windows."""

from __future__ import annotations

from collections.abc import Iterator

from edgeopt.errors import UnsupportedError
from edgeopt.graph.sound import Sound
from edgeopt.recipes.inputs.audio import Audio
from edgeopt.recipes.texts.speech import SpeechSettings
from edgeopt.runtime.decoding.generation import Long
from edgeopt.runtime.decoding.speech.long_sounds import fitted_sound
from edgeopt.runtime.decoding.speech.passages import Passage, SoundFeatures, StreamFeatures
from edgeopt.runtime.decoding.speech.voice import PAD_S, VoiceDetector, require_voice, utterances, without_silence


def passages_of(
    sound: Sound | Iterator[Sound],
    audio: Audio,
    times: bool | None,
    speech: SpeechSettings,
    voice: VoiceDetector | None,
) -> tuple[Iterator[Passage], bool]:
    """Return the passages of a sound, and whether the model writes times.

    Args:
        sound: A sound, or those of a stream at the model's rate.
        audio: Of the model.
        times: As asked; None: where there is more than a window, or the configuration asks.
        speech: Whether the model knows times.
        voice: Tells where somebody speaks; None: all is heard.

    Raises:
        UnsupportedError: If the detector is of another task.
    """
    if voice is not None:
        require_voice(voice)
    window_s = audio.samples / audio.rate_hz
    is_long = not isinstance(sound, Sound) or sound.seconds > window_s
    if times is None:
        times = bool(speech.times) and (speech.writes_times or is_long)
    if not isinstance(sound, Sound):
        return _of_stream(sound, audio, voice, window_s), times
    return _of_sound(sound, audio, voice, cuts=not times), times


def _of_sound(sound: Sound, audio: Audio, voice: VoiceDetector | None, *, cuts: bool) -> Iterator[Passage]:
    kept = None if voice is None else without_silence(sound, voice)
    rest = sound if kept is None else kept.sound
    begin_s = 0.0
    windows = fitted_sound(rest, audio, Long.WINDOWS) if cuts else [rest]
    for window in windows:
        if len(window.samples):

            def original_s(seconds: float, begin_s: float = begin_s) -> float:
                return begin_s + seconds if kept is None else kept.original_s(begin_s + seconds)

            yield Passage(SoundFeatures(window, audio), original_s)
        begin_s += window.seconds


def _of_stream(
    sounds: Iterator[Sound], audio: Audio, voice: VoiceDetector | None, window_s: float
) -> Iterator[Passage]:
    heard = _at_rate(sounds, audio.rate_hz)
    if voice is None:
        yield Passage(StreamFeatures(heard, audio))
        return
    for sound, begin_s in utterances(heard, audio.rate_hz, voice, max(window_s - 2 * PAD_S, PAD_S)):
        yield Passage(SoundFeatures(sound, audio), lambda seconds, begin_s=begin_s: begin_s + seconds)  # type: ignore[misc]


def _at_rate(sounds: Iterator[Sound], rate_hz: int) -> Iterator[Sound]:
    """Yield the sounds of a stream.

    Raises:
        UnsupportedError: If one has another rate: parts that are resampled one by one do not fit together.
    """
    for sound in sounds:
        if sound.rate_hz != rate_hz:
            raise UnsupportedError(
                f"the stream has {sound.rate_hz} Hz, the model hears {rate_hz} Hz",
                remedy=f"resample it: ffmpeg -i IN -ar {rate_hz} -ac 1 -f wav -",
            )
        yield sound
