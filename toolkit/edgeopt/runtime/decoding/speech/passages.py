"""Sound as it is heard: passages whose features are cut into windows, wherever the sound comes from.

The features of a whole passage are made at once, as openai/whisper and Hugging Face transformers make them: a window
then sees no edge where the sound goes on. A stream has no end to wait for, so that those of its windows are made alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgeopt.graph.sound import Sound
from edgeopt.recipes.inputs.audio import Audio
from edgeopt.recipes.inputs.features import FeatureMaker
from edgeopt.recipes.inputs.resampling import resampled

Array = NDArray[np.float32]


class PassageFeatures(Protocol):
    """Features of a sound, window by window."""

    def window(self, frame: int) -> tuple[Array, int]:
        """Return (bands, frames of a window) from a frame on, and how many of them are sound; 0: the sound is over."""
        ...


@dataclass(frozen=True, slots=True)
class Passage:
    """A stretch of sound that is heard from its beginning to its end."""

    features: PassageFeatures
    original_s: Callable[[float], float] = lambda seconds: seconds
    """Turns a time in the passage into one of the whole sound."""


class SoundFeatures:
    """Features of a whole sound."""

    def __init__(self, sound: Sound, audio: Audio) -> None:
        """Make them: of a sound that is shorter than a window, silence behind it is heard too.

        Raises:
            UnsupportedError: If the rate differs and soxr is not installed.
        """
        samples = resampled(sound, audio.rate_hz).samples
        step, self._size = frames_of(audio)
        filled = np.pad(samples, (0, max(audio.samples - len(samples), 0)))
        self._array = FeatureMaker(replace(audio, samples=len(filled)))(filled * np.float32(audio.scale))
        self._count = min(-(-len(samples) // step), self._array.shape[1])

    def window(self, frame: int) -> tuple[Array, int]:
        """Return (bands, frames of a window) from a frame on, and how many of them are sound; 0: it is over."""
        part = self._array[:, frame : frame + self._size]
        count = min(self._count - frame, self._size)
        return np.pad(part, ((0, 0), (0, self._size - part.shape[1]))), max(count, 0)


class StreamFeatures:
    """Features of a sound that still comes; each window waits until it is there whole."""

    def __init__(self, sounds: Iterator[Sound], audio: Audio) -> None:
        """Take sounds that follow each other, at the model's rate."""
        self._sounds, self._audio = sounds, audio
        self._maker = FeatureMaker(audio)
        self._step, self._size = frames_of(audio)
        self._held, self._begin = np.zeros(0, np.float32), 0

    def window(self, frame: int) -> tuple[Array, int]:
        """Return (bands, frames of a window) from a frame on, and how many of them are sound; 0: it is over."""
        begin, size = frame * self._step, self._audio.samples
        while self._begin + len(self._held) < begin + size and (sound := next(self._sounds, None)) is not None:
            self._held = np.concatenate([self._held, sound.samples])
        self._held, self._begin = self._held[max(begin - self._begin, 0) :], begin
        samples = self._held[:size]
        count = min(-(-len(samples) // self._step), self._size)
        filled = np.pad(samples, (0, size - len(samples)))
        return self._maker(filled * np.float32(self._audio.scale)), count


def frames_of(audio: Audio) -> tuple[int, int]:
    """Return the samples between two frames, and the frames of a window."""
    frames = FeatureMaker(audio).shape[1]
    return audio.step or round(audio.samples / frames), frames
