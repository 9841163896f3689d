"""Wake words: openWakeWord's bands, their embeddings, and the words' own networks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from case import Case, Feed, Sample, Source
from feeds import sound, speech_cut, spoken
from likeness import classed, close, near
from plain import open_plain
from signals import Array

_WAKE = "openwakeword==0.4.0"


def cases() -> Iterator[Case]:
    """Yield them in the order in which one feeds the next."""
    heard = spoken(12400)
    yield Case(
        "melspectrogram",
        _WAKE,
        "melspectrogram.onnx",
        _loud(sound("input", heard), "input"),
        close(),
        recipe="melspectrogram",
        heard=heard,
    )
    yield Case("embedding_model", _WAKE, "embedding_model.onnx", _mel_windows, close(), recipe="tensors")
    yield Case("alexa_v0.1", _WAKE, "alexa_v0.1.onnx", _wake_word("onnx::Flatten_0"), near())
    yield Case("hey_jarvis_v0.1", _WAKE, "hey_jarvis_v0.1.onnx", _wake_word("x.1"), near())
    yield Case("hey_mycroft_v0.1", _WAKE, "hey_mycroft_v0.1.onnx", _wake_word("input_1"), near())
    yield Case("timer_v0.1", _WAKE, "timer_v0.1.onnx", _wake_word("onnx::Flatten_0", 34), classed)


def _chain(source: Source, count: int, seed: int, windows: int) -> list[Array]:
    """Return embeddings of speech as openWakeWord makes them, each (1, windows, 96)."""
    folder = next(source.wheels.rglob("embedding_model.onnx")).parent
    bands, embed = open_plain(folder / "melspectrogram.onnx"), open_plain(folder / "embedding_model.onnx")
    samples = []
    for one in speech_cut(1280 * windows + 12400)(count, seed):
        told = next(iter(bands({"input": one[None] * 32767}).values())).squeeze() / 10 + 2
        steps = [np.float32(told[8 * i : 8 * i + 76])[None, ..., None] for i in range(windows)]
        samples.append(
            np.concatenate([next(iter(embed({"input_1": step}).values())).reshape(1, 1, 96) for step in steps], 1)
        )
    return samples


def _wake_word(name: str, windows: int = 16) -> Feed:
    """Feed the embeddings before a wake word's own network."""
    return lambda source, count, seed: [{name: one} for one in _chain(source, count, seed, windows)]


def _mel_windows(source: Source, count: int, seed: int) -> list[Sample]:
    """Feed 76 frames of openWakeWord's own mel bands."""
    bands = open_plain(next(source.wheels.rglob("melspectrogram.onnx")))
    told = (
        next(iter(bands({"input": one[None] * 32767}).values())).squeeze() / 10 + 2
        for one in speech_cut(12560)(count, seed)
    )
    return [{"input_1": np.float32(one[:76])[None, ..., None]} for one in told]


def _loud(feed: Feed, name: str) -> Feed:
    """Feed sound in units of 16-bit steps."""
    return lambda source, count, seed: [{**one, name: one[name] * 32767} for one in feed(source, count, seed)]
