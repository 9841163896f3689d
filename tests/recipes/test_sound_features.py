"""Features of sound against the definitions of their references, and against numbers that the references gave."""

from __future__ import annotations

import math

import numpy as np
import pytest

from edgeopt.errors import EdgeoptError
from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.inputs.audio import Audio, Edges, Features, Log, Scaling, Window
from edgeopt.recipes.inputs.features import FeatureMaker, mel_filters
from edgeopt.recipes.inputs.sound_input import place_sizes, sized_for

LIBROSA = [
    [3.9127, -31.1843, -35.4497],
    [-25.2701, -36.4490, -38.6760],
    [-34.9858, -36.4955, -42.2012],
    [-37.8130, -39.3222, -37.8030],
]
"""librosa 1.0: `power_to_db(melspectrogram(...))[::6, ::17]` of `sound(8000, 4000)`."""
LIBROSA_MFCC = [
    [-150.2148, -162.5530, -166.7992],
    [9.0187, 11.1905, -10.0595],
    [3.9697, -17.1191, -17.7659],
    [-1.9946, -8.3167, 8.3370],
]
"""librosa 1.0: `mfcc(...)[::4, ::17]`."""
BELOW_THE_LOUDEST = [
    [0.7257, -0.2369, -0.1824],
    [0.1108, -0.1733, -0.2433],
    [-0.1405, -0.1722, -0.2660],
    [-0.2068, -0.2330, -0.2132],
]
"""librosa 0.11: `(power_to_db(melspectrogram(..., n_fft=257), ref=np.max) + 40) / 40`, `[::6, ::17]`."""
HAMMING_INSIDE = [
    [-1.0003, -2.9414, -3.3952],
    [-3.4317, -3.5486, -3.3763],
    [-3.5677, -3.6880, -3.6913],
    [-3.8792, -4.0048, -3.8854],
]
"""librosa 0.11: `log10(melspectrogram(..., window="hamming", center=False) + 1e-10)[::6, ::17]`."""
WHISPER = [
    [1.1715, -0.0239, -0.1069, 0.1166, 0.0354],
    [0.5930, 0.0161, 0.0557, 0.2568, 1.3516],
    [0.2593, 0.0077, 0.0314, 0.1628, 0.1304],
    [0.0053, 0.1619, 0.0736, 0.1090, 0.0909],
]
"""onnx-asr 0.12, `whisper80.onnx`: `[::20, :100:24]` of a second of sound in 30."""


def sound(rate: int, samples: int) -> np.ndarray:
    n = np.arange(samples)
    tone = 0.5 * np.sin(2 * np.pi * (200 * n / rate + 300 * (n / rate) ** 2)) * np.cos(n / 500)
    return (tone + 0.01 * np.cos(n * n % 997)).astype(np.float32)


SHORT = {"rate_hz": 8000, "samples": 4000, "fft": 256, "frame": 200, "step": 80, "bands": 24}


@pytest.mark.parametrize(
    ("features", "more", "rows", "expected"),
    [(Features.LIBROSA, {}, 6, LIBROSA), (Features.LIBROSA_MFCC, {"coefficients": 13}, 4, LIBROSA_MFCC)],
)
def test_librosa(features, more, rows, expected):
    maker = FeatureMaker(Audio(features=features, low_hz=50, high_hz=3800, **SHORT, **more))
    found = maker(sound(8000, 4000))
    assert found.shape == maker.shape
    np.testing.assert_allclose(found[::rows, ::17], expected, atol=2e-3)


def test_librosa_below_the_loudest_with_a_transform_of_odd_length():
    given = {"rate_hz": 8000, "samples": 4000, "fft": 257, "step": 80, "bands": 24}
    maker = FeatureMaker(Audio(features=Features.LIBROSA, relative=True, mean=-40, std=40, **given))
    found = maker(sound(8000, 4000))
    assert found.shape == maker.shape == (24, 50)
    np.testing.assert_allclose(found[::6, ::17], BELOW_THE_LOUDEST, atol=2e-4)


def test_librosa_by_hamming_without_a_centre():
    how = {"window": Window.HAMMING, "edges": Edges.INSIDE, "log": Log.LOG10, "offset": 1e-10}
    maker = FeatureMaker(Audio(features=Features.LIBROSA, **SHORT, **how))
    found = maker(sound(8000, 4000))
    assert found.shape == maker.shape == (24, 47)
    np.testing.assert_allclose(found[::6, ::17], HAMMING_INSIDE, atol=2e-4)


def test_samples_are_brought_to_one_deviation_before_their_features():
    given = sound(8000, 4000)
    loud = FeatureMaker(Audio(features=Features.LIBROSA, normalise=True, **SHORT))(0.5 * given + 0.2)
    even = (given - given.mean()) / given.std()
    np.testing.assert_allclose(loud, FeatureMaker(Audio(features=Features.LIBROSA, **SHORT))(even), atol=2e-2)
    silent = FeatureMaker(Audio(features=Features.LIBROSA, normalise=True, **SHORT))(np.zeros(4000, np.float32))
    assert np.isfinite(silent).all()
    with pytest.raises(ValueError, match='log = "db"'):
        FeatureMaker(Audio(features=Features.TORCHAUDIO, relative=True, **SHORT))
    with pytest.raises(ValueError, match='scaling = "whole"'):
        Audio(rate_hz=8000, samples=4000, normalise=True)


def test_whisper():
    maker = FeatureMaker(Audio(rate_hz=16000, features=Features.WHISPER, samples=480_000))
    found = maker(np.pad(sound(16000, 16000), (0, 464_000)))
    assert found.shape == maker.shape == (80, 3000)
    np.testing.assert_allclose(found[::20, :100:24], WHISPER, atol=1e-3)


def power(frames: np.ndarray, fft: int) -> np.ndarray:
    """The definition of the transform: a sum of cosines and sines."""
    angle = 2 * np.pi * np.outer(np.arange(frames.shape[1]), np.arange(fft // 2 + 1)) / fft
    return (frames @ np.cos(angle)) ** 2 + (frames @ np.sin(angle)) ** 2


def htk(hz: float) -> float:
    return 2595 * math.log10(1 + hz / 700)


def triangles(places: list[float], edges: list[float]) -> np.ndarray:
    found = np.zeros((len(places), len(edges) - 2))
    for i, place in enumerate(places):
        for j in range(len(edges) - 2):
            left, top, right = edges[j : j + 3]
            if left < place < right:
                found[i, j] = (place - left) / (top - left) if place <= top else (right - place) / (right - top)
    return found


def test_torchaudio_mel_and_mfcc():
    given = sound(8000, 4000).astype(np.float64)
    padded = np.pad(given, 128, mode="reflect")
    window = np.zeros(256)
    window[28:228] = [0.5 - 0.5 * math.cos(2 * math.pi * i / 200) for i in range(200)]
    frames = np.stack([padded[i : i + 256] * window for i in range(0, 4001, 80)])
    edges = [700 * (10 ** (one / 2595) - 1) for one in np.linspace(htk(0), htk(4000), 26)]
    mel = power(frames, 256) @ triangles([i * 8000 / 256 for i in range(129)], edges)
    found = FeatureMaker(Audio(features=Features.TORCHAUDIO, **SHORT))(given)
    np.testing.assert_allclose(found, np.log(np.maximum(mel, 1e-6)).T, atol=1e-4)
    decibel = 10 * np.log10(np.maximum(mel, 1e-10))
    decibel = np.maximum(decibel, decibel.max() - 80)
    dct = [[math.cos(math.pi * k * (i + 0.5) / 24) for k in range(13)] for i in range(24)]
    mfcc = decibel @ np.array(dct) * math.sqrt(2 / 24)
    mfcc[:, 0] /= math.sqrt(2)
    maker = FeatureMaker(Audio(features=Features.TORCHAUDIO_MFCC, coefficients=13, **SHORT))
    np.testing.assert_allclose(maker(given), mfcc.T, atol=1e-3)
    assert maker.shape == (13, 51)


def test_kaldi():
    given = sound(16000, 8000).astype(np.float64)
    rows = []
    for begin in range(0, 8000 - 400 + 1, 160):
        frame = given[begin : begin + 400] - given[begin : begin + 400].mean()
        emphasised = [frame[0] - 0.97 * frame[0]] + [frame[i] - 0.97 * frame[i - 1] for i in range(1, 400)]
        rows.append([x * (0.5 - 0.5 * math.cos(2 * math.pi * i / 399)) ** 0.85 for i, x in enumerate(emphasised)])
    edges = list(np.linspace(htk(20), htk(8000), 25))
    filters = triangles([htk(i * 16000 / 512) for i in range(257)], edges)
    filters[256] = 0
    mel = power(np.array(rows), 512) @ filters
    maker = FeatureMaker(Audio(rate_hz=16000, features=Features.KALDI, samples=8000))
    found = maker(given)
    assert found.shape == maker.shape == (23, 48)
    np.testing.assert_allclose(found, np.log(np.maximum(mel, 1.1920929e-07)).T, atol=1e-4)


def test_logarithm_mean_and_scaling_are_the_recipes_own():
    given = sound(8000, 4000)
    plain = FeatureMaker(Audio(features=Features.TORCHAUDIO, log=Log.NONE, **SHORT))(given)
    offset = FeatureMaker(Audio(features=Features.TORCHAUDIO, log=Log.LOG10, offset=1e-3, mean=-2, std=4, **SHORT))
    np.testing.assert_allclose(offset(given), (np.log10(plain + 1e-3) + 2) / 4, atol=1e-4)
    each = FeatureMaker(Audio(features=Features.TORCHAUDIO, scaling=Scaling.EACH, **SHORT))(given)
    np.testing.assert_allclose(each.mean(axis=1), 0, atol=1e-4)
    np.testing.assert_allclose(each.std(axis=1), 1, atol=1e-3)
    whole = FeatureMaker(Audio(features=Features.TORCHAUDIO, scaling=Scaling.WHOLE, **SHORT))(given)
    assert abs(whole.mean()) < 1e-4
    assert each.mean(axis=0).std() != pytest.approx(whole.mean(axis=0).std())


def test_slaneys_triangles_have_an_area_of_one():
    filters = mel_filters(20, 2048, 16000, 0, 8000, slaney=True)
    np.testing.assert_allclose(filters.sum(axis=0) * 16000 / 2048, 1, atol=0.02)


@pytest.mark.parametrize(
    ("shape", "sizes", "expected"),
    [
        ((1, 80, 3000), (80, 3000), (1, 80, 3000)),
        (("batch", 80, "frames"), (80, 3000), (1, 80, 3000)),
        (("batch", "frames", 80), (80, 98), (1, 98, 80)),
        ((None, 1, 40, 101), (40, 101), (1, 1, 40, 101)),
        ((None, None), (576,), (1, 576)),
        (("seq_len", 576), (576,), (1, 576)),
        ((16000,), (16000,), (16000,)),
        ((1, 81, 3000), (80, 3000), None),
        ((1, 512), (576,), None),
    ],
)
def test_what_a_model_hears_lies_in_its_input(shape, sizes, expected):
    assert place_sizes(shape, sizes) == expected


@pytest.mark.parametrize(
    ("audio", "shape", "told"),
    [
        (Audio(rate_hz=8000), ("batch", "samples"), "does not tell how many samples"),
        (Audio(rate_hz=8000, samples=256), (1, 512), "makes 256 samples of a sound"),
        (Audio(rate_hz=8000, features=Features.LIBROSA, samples=8000), (1, 40, 16), "makes 128 bands x 16 frames"),
        (Audio(rate_hz=8000, features=Features.WHISPER, samples=100), (1, 80, 1), "shorter than a frame"),
        (Audio(rate_hz=8000, features=Features.KALDI, samples=800, frame=400, fft=256), (1, 1, 23), "longer than its"),
    ],
)
def test_a_window_that_does_not_fit_is_refused_in_one_line(audio, shape, told):
    with pytest.raises(EdgeoptError, match=told):
        sized_for(audio, TensorSpec("x", "float32", shape), "mine")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"rate_hz": 8000, "features": Features.KALDI}, "samples is missing"),
        ({"rate_hz": 8000, "high_hz": 5000.0}, "above half of rate_hz"),
        ({"rate_hz": 8000, "low_hz": 300.0, "high_hz": 200.0}, "not above low_hz"),
        ({"rate_hz": 8000, "samples": 100, "hop": 200}, "would never be heard"),
    ],
)
def test_a_table_that_contradicts_itself_is_refused(given, told):
    with pytest.raises(ValueError, match=told):
        Audio(**given)
