"""Sounds, pages and files that models of other people are fed: made here, so that only packages are downloaded."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
import wave
from collections.abc import Iterator
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

RATE = 16000
"""Samples a second of all speech here."""
Array = NDArray[Any]
_SENTENCES = (
    "The quick brown fox jumps over the lazy dog.",
    "Alexa, what is the weather in Berlin tomorrow?",
    "Please set a timer for ten minutes and call my mother.",
    "Seven red boxes left the harbour at twenty past nine.",
    "She sells sea shells by the sea shore, and he buys them.",
    "Hey Jarvis, turn the lights off in the kitchen.",
)
_VOICES = ("en-us", "en-gb", "en-us+f3", "en-gb+m4")
_EMPTY = 0.3
"""Share of the lines of a page that are empty: pages that are all alike tell nothing of how a model is fed."""
_SILENT = 0.01
"""Loudness, of 1, up to which a stretch is no speech."""
ALL_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz0123456789"


@cache
def speech(seconds: float, seed: int) -> Array:
    """Return sentences by espeak-ng with pauses and noise, 16 kHz, (samples,) within -1 and 1."""
    return _conversation(seconds, seed)[0]


def speaking(seconds: float, seed: int) -> list[tuple[float, float]]:
    """Return when somebody speaks in `speech` of the same arguments: (start, end) in seconds."""
    return _conversation(seconds, seed)[1]


@cache
def _conversation(seconds: float, seed: int) -> tuple[Array, list[tuple[float, float]]]:
    if shutil.which("espeak-ng") is None:
        raise SystemExit("espeak-ng is missing -> apt-get install espeak-ng")
    rng = np.random.default_rng(seed)
    parts: list[Array] = []
    told: list[tuple[float, float]] = []
    while (begun := sum(map(len, parts))) < seconds * RATE:
        said = _spoken(str(rng.choice(_SENTENCES)), str(rng.choice(_VOICES)), int(rng.integers(130, 210)))
        loud = np.flatnonzero(np.abs(said) > _SILENT)
        told.append(((begun + int(loud[0])) / RATE, min((begun + int(loud[-1])) / RATE, seconds)))
        parts += [said, np.zeros(int(rng.uniform(0.2, 1.2) * RATE))]
    sound = np.concatenate(parts)[: int(seconds * RATE)]
    heard = np.asarray(np.clip(sound + rng.normal(0, 0.004, len(sound)), -1, 1), np.float32)
    return heard, [(start, end) for start, end in told if start < end]


def _spoken(text: str, voice: str, speed: int) -> Array:
    told = ["espeak-ng", "-v", voice, "-s", str(speed), "--stdout", text]
    data = bytearray(subprocess.run(told, capture_output=True, check=True).stdout)
    if data[40:44] in (b"\xff\xff\xff\x7f", b"\x00\xf0\xff\x7f"):  # a stream's length is not known in its header
        data[40:44] = (len(data) - 44).to_bytes(4, "little")
    with wave.open(BytesIO(bytes(data))) as file:
        rate = file.getframerate()
        sound = np.frombuffer(file.readframes(file.getnframes()), np.int16) / 32768
    at = np.arange(0, len(sound), rate / RATE)
    return np.interp(at, np.arange(len(sound)), sound)


def chords(seconds: float, rate: int, seed: int) -> Array:
    """Return decaying chords with harmonics, (samples,) float32."""
    rng, t = np.random.default_rng(seed), np.arange(int(seconds * rate)) / rate
    sound = np.zeros_like(t)
    for start in np.arange(0, seconds, 0.4):
        held = np.clip(t - start, 0, None)
        for note in rng.choice(np.arange(45, 80), 3, replace=False):
            pitch = 440 * 2 ** ((note - 69) / 12)
            tone = sum(np.sin(2 * np.pi * pitch * k * held) / k for k in (1, 2, 3))
            sound += (t >= start) * np.exp(-4 * held) * tone
    return np.asarray(0.2 * sound / max(np.abs(sound).max(), 1e-9) + rng.normal(0, 1e-3, len(t)), np.float32)


def spectrum(sound: Array, size: int, hop: int, *, padded: int = 0, window: Array | None = None) -> Array:
    """Return the power of a windowed spectrum, by Hann where none is given, (frames, padded // 2 + 1)."""
    frames = np.lib.stride_tricks.sliding_window_view(np.asarray(sound, np.float64), size)[::hop]
    shaped = frames * (np.hanning(size) if window is None else window)
    return np.asarray(np.abs(np.fft.rfft(shaped, n=max(padded, size))) ** 2)


def slaney(power: Array, bands: int, size: int) -> Array:
    """Return the power of mel bands, (frames, bands), as `librosa.filters.mel` has it: Slaney's scale and norm."""

    def hertz(mel: Array) -> Array:
        return np.where(mel < 15, mel * 200 / 3, 1000 * 6.4 ** ((mel - 15) / 27))

    edges = hertz(np.linspace(0, 15 + 27 * np.log(RATE / 2000) / np.log(6.4), bands + 2))
    bins = np.fft.rfftfreq(size, 1 / RATE)
    rise = (bins - edges[:-2, None]) / np.diff(edges)[:-1, None]
    fall = (edges[2:, None] - bins) / np.diff(edges)[1:, None]
    weights = np.clip(np.minimum(rise, fall), 0, None) * (2 / (edges[2:] - edges[:-2]))[:, None]
    return np.asarray(power @ weights.T)


def mel(power: Array, bands: int) -> Array:
    """Return the energy of mel bands, (frames, bands): triangles evenly spaced on the mel scale, as HTK has it."""
    bins = power.shape[1]
    edges = 700 * (10 ** (np.linspace(0, 2595 * np.log10(1 + RATE / 2 / 700), bands + 2) / 2595) - 1)
    centre = np.linspace(0, RATE / 2, bins)
    rise = (centre - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    fall = (edges[2:, None] - centre) / (edges[2:] - edges[1:-1])[:, None]
    return np.asarray(power @ np.clip(np.minimum(rise, fall), 0, None).T)


def decibels(power: Array) -> Array:
    """Return power in dB below its peak, at least -80."""
    told = 10 * np.log10(np.maximum(power, 1e-10))
    return np.asarray(np.maximum(told - told.max(), -80))


def written(
    height: int, width: int, seed: int, *, lines: int = 1, letters: str = ALL_LETTERS
) -> tuple[Array, list[str]]:
    """Return a picture of text, (height, width, 3) BGR uint8, and its lines: dark on a light uneven ground."""
    rng, texts = np.random.default_rng(seed), []
    ground = np.full((height, width, 3), rng.integers(190, 250, 3), np.float64)
    ground += cv2.resize(rng.normal(0, 12, (4, 6, 3)), (width, height)) + rng.normal(0, 3, ground.shape)
    picture = np.clip(ground, 0, 255).astype(np.uint8)
    pitch = height / (lines + 0.2)
    for line in range(lines):
        count = int(rng.integers(4, 9)) if lines == 1 else int(width / pitch * 1.4)
        text = "".join(rng.choice(list(letters), count))
        font = int(rng.choice([cv2.FONT_HERSHEY_SIMPLEX, cv2.FONT_HERSHEY_DUPLEX, cv2.FONT_HERSHEY_COMPLEX]))
        thick = max(1, round(pitch / 22))
        (wide, high), _ = cv2.getTextSize(text, font, 1, thick)
        scale = min(0.55 * pitch / high, 0.94 * width / wide)
        start = 0.03 if lines == 1 else float(rng.uniform(0.03, 0.9 - min(scale * wide / width, 0.87)))
        place = (int(start * width), int((line + 0.85) * pitch))
        if lines > 1 and rng.uniform() < _EMPTY:
            continue
        cv2.putText(picture, text, place, font, scale, rng.integers(0, 80, 3).tolist(), thick, cv2.LINE_AA)
        texts.append(text)
    return picture, texts


def photos(folder: Path) -> Iterator[Array]:
    """Yield the pictures of a folder in the order of their names, BGR uint8."""
    for path in sorted(folder.glob("*.jpg")):
        picture = cv2.imread(str(path))
        if picture is not None:
            yield picture


def scaled(picture: Array, height: int, width: int, mean: object, std: object) -> Array:
    """Return the planes of a resized picture, (1, 3, height, width) float32, colours less `mean` over `std`."""
    resized = cv2.resize(picture, (width, height)).astype(np.float32)
    return np.asarray((resized - np.asarray(mean, np.float32)) / np.asarray(std, np.float32), np.float32).transpose(
        2, 0, 1
    )[None]


def source_files(count: int, seed: int) -> list[bytes]:
    """Return files as they lie in a Python installation: sources, compiled code, libraries, text."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    found = sorted(path for path in folder.rglob("*") if path.is_file() and 200 < path.stat().st_size < 2_000_000)
    chosen = np.random.default_rng(seed).choice(len(found), count, replace=False)
    return [found[i].read_bytes() for i in sorted(chosen)]
