"""Log-mel and MFCC features of sound, each equal to a named reference to the rounding of float32.

- `whisper`: `log_mel_spectrogram` of openai/whisper: periodic Hann, frames centred with reflection, the last one left
  out, Slaney's mel scale and norm, log10 of at least 1e-10, no lower than 8 below the largest, then (x + 4) / 4.
- `torchaudio`: `MelSpectrogram` (periodic Hann, centred with reflection, HTK's mel scale, no norm), then ln of at
  least 1e-6 unless `log` and `floor` say otherwise.
- `torchaudio_mfcc`: `MFCC`: the same in decibels within 80 of the largest, and their cosine transform.
- `librosa`: `power_to_db(melspectrogram(y))` (as above, but centred with zeros, Slaney's scale and norm, decibels
  within 80 of the largest); `librosa_mfcc`: `mfcc(y)`, the cosine transform of that.
- `kaldi`: `compliance.kaldi.fbank` with `snip_edges`: frames that fit, their mean taken off, pre-emphasis 0.97, Povey's
  window, transform of the next power of two, HTK's scale with triangles straight in mel, ln of at least 1.2e-7.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.recipes.inputs.audio import Audio, Edges, Features, Log, Scaling, Window

Array = NDArray[np.float64]

_KALDI_FLOOR = 1.1920928955078125e-07
_PREEMPHASIS = 0.97
_BLOCK = 8192
"""Frames whose spectra are held at once."""
_DYNAMIC_DB, _WHISPER_RANGE = 80.0, 8.0
_EACH_FLOOR, _LEAST_VARIANCE = 1e-5, 1e-7
"""Added to a deviation that features are divided by, and to a variance of samples: silence stays silent."""
_PADDED = {Edges.REFLECT: "reflect", Edges.ZEROS: "constant", Edges.INSIDE: ""}
"""Edges -> the mode of `numpy.pad`; empty: nothing is added."""


@dataclass(frozen=True, slots=True)
class _Convention:
    """A reference's settings where the recipe says nothing else."""

    fft: int
    step: int
    bands: int
    log: Log
    floor: float
    centred: str = "reflect"
    """How `numpy.pad` fills half a transform at both ends; empty: frames lie inside the sound."""
    slaney: bool = False
    coefficients: int = 0
    low_hz: float = 0.0
    top_db: bool = False
    frame: int = 0


_CONVENTIONS = {
    Features.WHISPER: _Convention(400, 160, 80, Log.LOG10, 1e-10, slaney=True),
    Features.TORCHAUDIO: _Convention(400, 200, 128, Log.LN, 1e-6),
    Features.TORCHAUDIO_MFCC: _Convention(400, 200, 128, Log.DECIBEL, 1e-10, coefficients=40, top_db=True),
    Features.LIBROSA: _Convention(2048, 512, 128, Log.DECIBEL, 1e-10, "constant", slaney=True, top_db=True),
    Features.LIBROSA_MFCC: _Convention(
        2048, 512, 128, Log.DECIBEL, 1e-10, "constant", slaney=True, coefficients=20, top_db=True
    ),
    Features.KALDI: _Convention(0, 160, 23, Log.LN, _KALDI_FLOOR, "", low_hz=20.0, frame=400),
}


class FeatureMaker:
    """Turns windows of sound into features."""

    def __init__(self, audio: Audio) -> None:
        """Prepare window and filters.

        Args:
            audio: Of a recipe, with other features than the waveform.

        Raises:
            ValueError: If frame, transform and window do not fit each other.
        """
        convention = _CONVENTIONS[audio.features]
        self._audio, self._convention = audio, convention
        if audio.relative and (convention.log if audio.log is Log.USUAL else audio.log) is not Log.DECIBEL:
            raise ValueError('relative is told in decibels: write log = "db" too')
        self._is_kaldi = audio.features is Features.KALDI
        given = audio.fft or convention.fft
        self._frame = audio.frame or convention.frame or given
        self._fft = given or 1 << (self._frame - 1).bit_length()
        # torchaudio's hop follows its window: half of it
        half = audio.features in (Features.TORCHAUDIO, Features.TORCHAUDIO_MFCC) and (audio.frame or audio.fft)
        self._step = audio.step or (self._frame // 2 if half else convention.step)
        self._padded = _PADDED.get(audio.edges, convention.centred)
        if self._frame > self._fft:
            raise ValueError(f"a frame of {self._frame} samples is longer than its transform of {self._fft}")
        self._length = self._frame if self._is_kaldi else self._fft
        least = self._frame if self._padded else self._length
        if audio.samples < least or (self._padded == "reflect" and audio.samples <= self._fft // 2):
            raise ValueError(f"a window of {audio.samples} samples is shorter than a frame of {least}")
        self._bands = audio.bands or convention.bands
        low, high = audio.low_hz or convention.low_hz, audio.high_hz or audio.rate_hz / 2
        edges = (self._bands, self._fft, audio.rate_hz, low, high)
        self._filters = _mel_in_mel(*edges) if self._is_kaldi else mel_filters(*edges, slaney=convention.slaney)
        ramp = np.arange(self._frame)
        if self._is_kaldi and audio.window is Window.USUAL:
            window = (0.5 - 0.5 * np.cos(2 * np.pi * ramp / (self._frame - 1))) ** 0.85
        else:
            raised = 0.54 if audio.window is Window.HAMMING else 0.5
            period = self._frame - 1 if self._is_kaldi else self._frame
            window = raised - (1 - raised) * np.cos(2 * np.pi * ramp / period)
        left = 0 if self._is_kaldi else (self._fft - self._frame) // 2  # a shorter window lies in the middle
        self._window = np.pad(window, (left, self._fft - self._frame - left))
        self._coefficients = (audio.coefficients or convention.coefficients) if convention.coefficients else 0
        if self._coefficients > self._bands:
            raise ValueError(f"{self._coefficients} coefficients of {self._bands} bands")
        self._dct = _dct(self._coefficients, self._bands)

    @property
    def shape(self) -> tuple[int, int]:
        """Bands or coefficients, and frames, of one window."""
        return self._coefficients or self._bands, self._frames_in(self._audio.samples)

    def _frames_in(self, samples: int) -> int:
        heard = samples + (2 * (self._fft // 2) if self._padded else 0)
        return max(1 + (heard - self._length) // self._step - (self._audio.features is Features.WHISPER), 0)

    def __call__(self, samples: NDArray[Any], heard: int | None = None) -> NDArray[np.float32]:
        """Return (bands or coefficients, frames) of one window.

        Args:
            samples: (audio.samples,) at the recipe's rate, scaled.
            heard: How many of them are sound: features of frames beyond are 0 before mean and std; None: all.
        """
        if self._audio.normalise:
            samples = normalised(samples)
        array = self._logarithm(self._band_power(np.asarray(samples, np.float64)))
        if self._coefficients:
            array = array @ self._dct
        array = array.T
        if heard is not None:
            array[:, self._frames_in(heard) :] = 0
        if self._audio.mean or self._audio.std != 1:
            array = (array - self._audio.mean) / self._audio.std
        if self._audio.scaling is not Scaling.NONE:
            axis = 1 if self._audio.scaling is Scaling.EACH else None
            spread = array.std(axis=axis, keepdims=True)
            array = (array - array.mean(axis=axis, keepdims=True)) / (spread + _EACH_FLOOR)
        return np.ascontiguousarray(array, np.float32)

    def _band_power(self, samples: Array) -> Array:
        """Return (frames, bands), of many frames in blocks: an hour of sound takes no gigabytes on its way."""
        if self._padded:
            half = self._fft // 2
            samples = np.pad(samples, (half, half), mode=self._padded)  # type: ignore[call-overload]
        frames = np.lib.stride_tricks.sliding_window_view(samples, self._length)[:: self._step]
        frames = frames[:-1] if self._audio.features is Features.WHISPER else frames
        blocks = [frames[begin : begin + _BLOCK] for begin in range(0, len(frames), _BLOCK)]
        return np.concatenate([self._power(block) @ self._filters for block in blocks])

    def _power(self, frames: Array) -> Array:
        """Return (frames, fft / 2 + 1)."""
        if self._is_kaldi:
            frames = frames - frames.mean(axis=1, keepdims=True)
            before = np.concatenate([frames[:, :1], frames[:, :-1]], axis=1)
            frames = np.pad(frames - _PREEMPHASIS * before, ((0, 0), (0, self._fft - self._length)))
        power: Array = np.abs(np.fft.rfft(frames * self._window, self._fft)) ** 2
        return power

    def _logarithm(self, power: Array) -> Array:
        audio, convention = self._audio, self._convention
        log = convention.log if audio.log is Log.USUAL else audio.log
        if log is Log.NONE:
            return power
        usual = convention.floor if not audio.offset else 0.0  # an offset takes the floor's place
        power = np.maximum(power + audio.offset, audio.floor or usual or np.finfo(np.float64).tiny)
        if log is Log.LN:
            return np.asarray(np.log(power))
        array: Array = np.log10(power) * (10 if log is Log.DECIBEL else 1)
        if audio.relative:
            array = array - array.max()
        if audio.features is Features.WHISPER:
            return np.asarray((np.maximum(array, array.max() - _WHISPER_RANGE) + 4) / 4)
        if convention.top_db and log is Log.DECIBEL:
            return np.asarray(np.maximum(array, array.max() - _DYNAMIC_DB))
        return array


def normalised(samples: NDArray[Any]) -> NDArray[np.float32]:
    """Return samples at mean 0 and deviation 1, as Wav2Vec2's and Whisper's processors do it."""
    samples = np.asarray(samples, np.float32)
    return np.asarray((samples - samples.mean()) / np.sqrt(samples.var() + _LEAST_VARIANCE), np.float32)


def mel_filters(bands: int, fft: int, rate_hz: float, low_hz: float, high_hz: float, *, slaney: bool) -> Array:
    """Return (fft / 2 + 1, bands) triangles whose edges lie evenly on a mel scale.

    Args:
        bands: How many.
        fft: Length of the transform.
        rate_hz: Of the sound.
        low_hz: Where the first begins.
        high_hz: Where the last ends.
        slaney: Slaney's scale and an area of one for each triangle (librosa, Whisper); else HTK's, with a peak of one.

    Source: M. Slaney, Auditory Toolbox, 1998; S. Young and others, The HTK Book.
    """
    to_mel, to_hz = (_slaney_mel, _slaney_hz) if slaney else (_htk_mel, _htk_hz)
    edges = to_hz(np.linspace(to_mel(np.array(low_hz)), to_mel(np.array(high_hz)), bands + 2))
    # of an odd length, librosa has the places of the transform, torchaudio spreads them up to half the rate
    places = np.arange(fft // 2 + 1) * rate_hz / fft if slaney else np.linspace(0, rate_hz / 2, fft // 2 + 1)
    filters = _triangles(places, edges)
    return filters * (2 / (edges[2:] - edges[:-2])) if slaney else filters


def _mel_in_mel(bands: int, fft: int, rate_hz: float, low_hz: float, high_hz: float) -> Array:
    """Return (fft / 2 + 1, bands) triangles that are straight in mel; the last bin is left out, as Kaldi has it."""
    edges = np.linspace(_htk_mel(np.array(low_hz)), _htk_mel(np.array(high_hz)), bands + 2)
    filters = _triangles(_htk_mel(np.arange(fft // 2 + 1) * rate_hz / fft), edges)
    filters[-1] = 0
    return filters


def _triangles(places: Array, edges: Array) -> Array:
    up = (places[:, None] - edges[:-2]) / (edges[1:-1] - edges[:-2])
    down = (edges[2:] - places[:, None]) / (edges[2:] - edges[1:-1])
    return np.asarray(np.maximum(np.minimum(up, down), 0))


def _htk_mel(hz: Array) -> Array:
    return np.asarray(2595 * np.log10(1 + hz / 700))


def _htk_hz(mel: Array) -> Array:
    return np.asarray(700 * (10 ** (mel / 2595) - 1))


def _slaney_mel(hz: Array) -> Array:
    """Return mels: linear up to 1 kHz, logarithmic above."""
    return np.where(hz < 1000, hz * 3 / 200, 15 + np.log(np.maximum(hz, 1e-9) / 1000) * 27 / math.log(6.4))


def _slaney_hz(mel: Array) -> Array:
    return np.where(mel < 15, mel * 200 / 3, 1000 * np.exp((mel - 15) * math.log(6.4) / 27))


def _dct(coefficients: int, bands: int) -> Array:
    """Return (bands, coefficients) of the orthonormal cosine transform of type II."""
    angle = np.pi / bands * (np.arange(bands)[:, None] + 0.5) * np.arange(coefficients)
    array: Array = np.cos(angle) * math.sqrt(2 / bands)
    array[:, :1] /= math.sqrt(2)
    return array
