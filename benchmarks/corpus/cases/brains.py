"""Currents of a brain, and a word's features: mne-icalabel, brainmaze-eeg-models, pyopenjtalk-plus."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from case import Case, Sample, Source
from likeness import classed, close
from plain import open_plain
from signals import Array

_RATE, _SECONDS = 256, 60


def cases() -> Iterator[Case]:
    """Yield a judge of components, a detector of seizures, and a forest of trees."""
    yield Case("ICLabelNet", "mne-icalabel", "assets/ICLabelNet.onnx", _components, classed)
    yield Case("seizure modelA", "brainmaze-eeg-models", "_models/modelA_paper.onnx", _spectra, close())
    yield Case("nani_model", "pyopenjtalk-plus", "yomi_model/nani_model.onnx", _words, classed)


def _components(_: Source, count: int, seed: int) -> list[Sample]:
    """Feed a map of the head, its spectrum and its likeness to itself, each within -0.99 and 0.99.

    The map comes four times, as it is, negative, turned over and both, (4, 1, 32, 32): the model takes their mean.
    """
    rng, samples = np.random.default_rng(seed), []
    y, x = np.mgrid[-1:1:32j, -1:1:32j]
    for _i in range(count):
        top, left = rng.uniform(-0.8, 0.8, 2)
        field = np.exp(-((y - top) ** 2 + (x - left) ** 2) / rng.uniform(0.05, 1)) - rng.uniform(0, 0.5)
        field[y**2 + x**2 > 1] = 0
        hertz, beat = np.arange(1, 101), rng.uniform(8, 12)
        power = -10 * rng.uniform(0.5, 2) * np.log10(hertz) + rng.uniform(0, 15) * np.exp(-((hertz - beat) ** 2) / 4)
        delay = np.arange(100) / 100
        alike = np.exp(-delay * rng.uniform(1, 20)) * np.cos(2 * np.pi * beat * delay * rng.uniform(0, 1))
        maps = np.stack([field, -field, field[:, ::-1], -field[:, ::-1]])[:, None]
        told = {"topo": maps, "psds": np.tile(power, (4, 1, 1, 1)), "autocorr": np.tile(alike, (4, 1, 1, 1))}
        samples.append({name: np.float32(0.99 * one / np.abs(one).max()) for name, one in told.items()})
    return samples


def _spectra(_: Source, count: int, seed: int) -> list[Sample]:
    """Feed spectra of a minute, each band less its mean over its deviation, (1, 100, 119); some with a seizure."""
    return [{"x": _spectrum(np.random.default_rng(seed * 1000 + i), i % 2 == 0)} for i in range(count)]


def _spectrum(rng: np.random.Generator, is_seizure: bool) -> Array:
    time = np.arange(_RATE * _SECONDS) / _RATE
    current = np.cumsum(rng.normal(0, 1, len(time)))
    current -= np.convolve(current, np.ones(_RATE) / _RATE, "same")
    if is_seizure:
        start = rng.uniform(5, 40)
        spikes = np.exp(-((time * rng.uniform(3, 6)) % 1) * 8)
        current += 60 * spikes * ((time > start) & (time < start + 15))
    frames = np.lib.stride_tricks.sliding_window_view((current - current.mean()) / current.std(), _RATE)[:: _RATE // 2]
    power = np.abs(np.fft.rfft(frames * np.hanning(_RATE))[:, :100]).T ** 2
    return np.float32((power - power.mean(1, keepdims=True)) / power.std(1, keepdims=True))[None]


def _words(source: Source, count: int, seed: int) -> list[Sample]:
    """Feed the word behind 何, as the encoder beside the model writes its six features, (1, 131)."""
    path = next(source.wheels.rglob("nani_enc.onnx"))
    encoders = [one for one in onnx.load(str(path)).graph.node if one.op_type == "OneHotEncoder"]
    kinds = [next(one.strings for one in node.attribute if one.name == "cats_strings") for node in encoders]
    rng, encode = np.random.default_rng(seed), open_plain(path)
    told = ([[str(rng.choice([kind.decode() for kind in some])) for some in kinds]] for _ in range(count))
    return [{"input": encode({"input": np.array(one)})["variable"]} for one in told]
