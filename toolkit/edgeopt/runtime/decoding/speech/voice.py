"""Voice activity in front: what a detector takes for silence is not heard, and times are those of the whole sound.

Source: the smoothing of Silero's `get_speech_timestamps` (a lower threshold ends what the upper one began, pauses,
padding); the joined stretches of faster-whisper's `vad_filter`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import UnsupportedError
from edgeopt.graph.sound import Sound
from edgeopt.recipes.inputs.resampling import resampled
from edgeopt.runtime.bundle import Bundle

TASK = "voice_activity"
_LOWER = 0.15
"""A stretch goes on while its probability is no further than this below the threshold that began it."""
PAD_S = 0.4
"""Heard before and behind each stretch: words begin and end softly."""
_LEAST_S = 0.1
"""Seconds below which a stretch of sound is no speech."""
PAUSE_S = 2.0
"""A pause that ends a stretch of a whole sound: shorter ones are heard, as sentences have them."""
STREAM_PAUSE_S = 0.8
"""A pause that ends what is said into a stream: whoever speaks waits for its text."""


class VoiceDetector(Protocol):
    """A runtime of the task `voice_activity`."""

    bundle: Bundle

    def predict(self, frame: Sound, *, stream: Any = 0) -> Any:
        """Return how probable speech is in a window."""
        ...

    def reset(self, stream: Any = None) -> None:
        """Free the states of a stream."""
        ...


def require_voice(voice: VoiceDetector) -> None:
    """Raise where a runtime tells no voice activity.

    Raises:
        UnsupportedError: If it is of another task.
    """
    recipe = voice.bundle.recipe
    if recipe.task != TASK:
        raise UnsupportedError(
            f"{recipe.name} is for {recipe.task}, and does not tell where somebody speaks",
            remedy=f'name a model whose recipe has task = "{TASK}", such as Silero\'s',
        )


class VoiceGate:
    """Stretches of speech in a sound that is passed part by part."""

    def __init__(self, voice: VoiceDetector, pause_s: float, most_s: float = float("inf")) -> None:
        """Begin a sound.

        Args:
            voice: Tells how probable speech is.
            pause_s: A silence that ends a stretch.
            most_s: A stretch that is longer is ended where it stands.

        Raises:
            UnsupportedError: If it is of another task.
        """
        require_voice(voice)
        self._voice, self._stream = voice, object()
        audio, recipe = voice.bundle.recipe.audio, voice.bundle.recipe
        self.rate_hz = audio.rate_hz
        self._audio, self._step = audio, audio.hop or audio.samples
        self._upper = recipe.postprocess.score_threshold
        self._lower = max(self._upper - _LOWER, 0.01)
        self._pause, self._most = round(pause_s * self.rate_hz), most_s * self.rate_hz
        self._held, self._place = np.zeros(audio.context, np.float32), 0
        self._begin: int | None = None
        self._last = 0

    @property
    def place(self) -> int:
        """Samples that were looked at."""
        return self._place

    @property
    def begun(self) -> int | None:
        """Where the stretch that goes on began, in samples; None: nobody speaks."""
        return self._begin

    def feed(self, samples: NDArray[np.float32]) -> list[tuple[int, int]]:
        """Return stretches of speech that are over now, in samples from the beginning of the sound."""
        self._held = np.concatenate([self._held, samples])
        whole, over = self._audio.context + self._audio.samples, list[tuple[int, int]]()
        while len(self._held) >= whole:
            over += self._look(self._held[:whole])
            self._held = self._held[self._step :]
        return over

    def end(self) -> list[tuple[int, int]]:
        """Return the stretches that the end of the sound ends."""
        over = list[tuple[int, int]]()
        if len(self._held) > self._audio.context:
            missing = self._audio.context + self._audio.samples - len(self._held)
            over = self._look(np.pad(self._held, (0, max(missing, 0))))
        self.close()
        return over + self._closed()

    def close(self) -> None:
        """Free what the detector keeps of the sound, wherever it ended."""
        self._voice.reset(self._stream)

    def _look(self, window: NDArray[np.float32]) -> list[tuple[int, int]]:
        answer = self._voice.predict(Sound(window, self.rate_hz), stream=self._stream)
        all_shares = np.asarray(answer.probabilities, np.float32)
        count = max(1, round(len(all_shares) * self._step / self._audio.samples))
        over, begin = list[tuple[int, int]](), self._place
        for i, share in enumerate(all_shares[:count].tolist()):
            over += self._take(share, begin + i * self._step // count, begin + (i + 1) * self._step // count)
        self._place = begin + self._step
        return over

    def _take(self, share: float, begin: int, end: int) -> list[tuple[int, int]]:
        """Take the probability of a stretch; what is no number counts as speech, so that nothing is lost."""
        if self._begin is None:
            self._begin, self._last = (None, 0) if share < self._upper else (begin, end)
            return []
        if not share < self._lower:
            self._last = end
        if end - self._last >= self._pause or end - self._begin >= self._most:
            return self._closed()
        return []

    def _closed(self) -> list[tuple[int, int]]:
        begin, self._begin = self._begin, None
        if begin is None or self._last - begin < _LEAST_S * self.rate_hz:
            return []
        return [(begin, self._last)]


@dataclass(frozen=True, slots=True)
class KeptSound:
    """A sound without its silence."""

    sound: Sound
    stretches: tuple[tuple[float, float], ...]
    """Where its parts lay, in seconds."""

    def original_s(self, seconds: float) -> float:
        """Return where a time of the kept sound lay in the whole one."""
        lengths = [end - begin for begin, end in self.stretches]
        for (begin, end), after in zip(self.stretches, accumulate(lengths), strict=True):
            if seconds <= after:
                return max(begin, end - (after - seconds))
        return self.stretches[-1][1] if self.stretches else seconds


def without_silence(sound: Sound, voice: VoiceDetector) -> KeptSound:
    """Return the stretches of a sound in which somebody speaks, one behind the other.

    Raises:
        UnsupportedError: If the detector is of another task, or the rate differs and soxr is not installed.
    """
    gate = VoiceGate(voice, PAUSE_S)
    with closing(gate):
        stretches = [*gate.feed(resampled(sound, gate.rate_hz).samples), *gate.end()]
    seconds = sound.seconds
    padded = list[tuple[float, float]]()
    for begin, end in stretches:
        begin_s, end_s = max(begin / gate.rate_hz - PAD_S, 0.0), min(end / gate.rate_hz + PAD_S, seconds)
        if padded and begin_s <= padded[-1][1]:
            padded[-1] = (padded[-1][0], end_s)
        elif begin_s < end_s:
            padded.append((begin_s, end_s))
    parts = [sound.samples[round(begin * sound.rate_hz) : round(end * sound.rate_hz)] for begin, end in padded]
    samples = np.concatenate(parts) if parts else np.zeros(0, np.float32)
    return KeptSound(Sound(samples, sound.rate_hz), tuple(padded))


def utterances(
    sounds: Iterator[Sound], rate_hz: int, voice: VoiceDetector, most_s: float
) -> Iterator[tuple[Sound, float]]:
    """Yield what is said into a stream, each utterance when a pause follows it, and where it began in seconds.

    Args:
        sounds: That follow each other, at the model's rate.
        rate_hz: That rate.
        voice: Tells how probable speech is.
        most_s: An utterance that is longer is cut; `PAD_S` before and behind it come on top.

    Raises:
        UnsupportedError: If the detector is of another task, or hears another rate.
    """
    gate = VoiceGate(voice, STREAM_PAUSE_S, most_s)
    if gate.rate_hz != rate_hz:
        raise UnsupportedError(
            f"{voice.bundle.recipe.name} hears {gate.rate_hz} Hz, the stream has {rate_hz} Hz",
            remedy="name a detector of that rate",
        )
    pad = round(PAD_S * rate_hz)
    held, first = np.zeros(0, np.float32), 0
    with closing(gate):  # of a stream that nobody hears to its end too
        for sound in _with_end(sounds):
            if sound is not None:
                held = np.concatenate([held, sound.samples])
            for begin, end in gate.end() if sound is None else gate.feed(sound.samples):
                since = max(begin - pad, first)
                yield Sound(held[since - first : end + pad - first], rate_hz), since / rate_hz
            kept = (gate.place if gate.begun is None else gate.begun) - pad
            held, first = held[max(kept - first, 0) :], max(kept, first)


def _with_end(sounds: Iterator[Sound]) -> Iterator[Sound | None]:
    """Yield sounds, and None behind the last one."""
    yield from sounds
    yield None
