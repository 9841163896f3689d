"""Quality of speech: Microsoft's DNSMOS, AECMOS and PLCMOS in the wheel speechmos."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import signals as made
from case import Case, Feed, Sample, Source
from feeds import sound, speech_cut, spoken
from likeness import close

_MOS = "speechmos"
_NINE_SECONDS = 144000


def cases() -> Iterator[Case]:
    """Yield judges of noise, echo and lost packets."""
    heard = spoken(144160)
    yield Case(
        "dnsmos sig_bak_ovr",
        _MOS,
        "speechmos/dnsmos_models/sig_bak_ovr.onnx",
        sound("input_1", heard),
        close(),
        recipe="dnsmos",
        heard=heard,
    )
    heard = spoken(_NINE_SECONDS)
    yield Case(
        "dnsmos model_v8",
        _MOS,
        "dnsmos_models/model_v8.onnx",
        _below_the_loudest,
        close(),
        recipe="dnsmos_p808",
        heard=heard,
    )
    yield Case("aecmos", _MOS, "Run_1663829550_Stage_0.onnx", _echo(64), close())
    yield Case("plcmos_v2", _MOS, "plcmos_v2.onnx", _lost_packets, close())


def _below_the_loudest(_: Source, count: int, seed: int) -> list[Sample]:
    """Feed 120 bands in dB below the loudest as the wheel's `audio_melspec` makes them of librosa's, (1, 900, 120)."""
    window, samples = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(321) / 321), []
    for one in speech_cut(_NINE_SECONDS)(count, seed):
        power = made.spectrum(np.pad(one, 160), 321, 160, window=window)
        samples.append({"input_1": np.float32((made.decibels(made.slaney(power, 120, 321)) + 40) / 40)[None]})
    return samples


def _echo(hidden: int) -> Feed:
    """Feed the far end, the microphone and the cleaned sound as 160 mel bands, (1, 3, frames, 160)."""

    def feed(_: Source, count: int, seed: int) -> list[Sample]:
        samples = []
        for i in range(count):
            far, near = (made.speech(4.0, seed * 1000 + 2 * i + j) for j in (0, 1))
            told = [
                (made.decibels(made.mel(made.spectrum(one, 513, 256), 160)) + 40) / 40
                for one in (far, near + 0.3 * far, near)
            ]
            samples.append({"input": np.float32(told)[None], "h0": np.zeros((4, 1, hidden), np.float32)})
        return samples

    return feed


def _lost_packets(_: Source, count: int, seed: int) -> list[Sample]:
    """Feed log power of speech with gaps, and a listener."""
    rng, samples = np.random.default_rng(seed), []
    for i in range(count):
        heard = made.speech(4.0, seed * 1000 + i).copy()
        for start in rng.integers(0, len(heard) - 800, 12):
            heard[start : start + 480] = 0
        power = np.log10(np.maximum(made.spectrum(heard, 512, 256), 1e-12)) / 2
        samples.append(
            {"degraded_audio": np.float32(power)[None, None], "rater_embed": np.float32(rng.normal(size=(1, 64)))}
        )
    return samples
