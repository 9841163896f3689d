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
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz0123456789"


@cache
def speech(seconds: float, seed: int) -> Array:
    """Return sentences by espeak-ng with pauses and noise, 16 kHz, (samples,) within -1 and 1."""
    if shutil.which("espeak-ng") is None:
        raise SystemExit("espeak-ng is missing -> apt-get install espeak-ng")
    rng = np.random.default_rng(seed)
    parts: list[Array] = []
    while sum(map(len, parts)) < seconds * RATE:
        parts.append(_spoken(str(rng.choice(_SENTENCES)), str(rng.choice(_VOICES)), int(rng.integers(130, 210))))
        parts.append(np.zeros(int(rng.uniform(0.2, 1.2) * RATE)))
    sound = np.concatenate(parts)[: int(seconds * RATE)]
    return np.asarray(np.clip(sound + rng.normal(0, 0.004, len(sound)), -1, 1), np.float32)


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


def spectrum(sound: Array, size: int, hop: int, *, padded: int = 0) -> Array:
    """Return the power of a Hann-windowed spectrum, (frames, padded // 2 + 1)."""
    frames = np.lib.stride_tricks.sliding_window_view(sound, size)[::hop]
    return np.asarray(np.abs(np.fft.rfft(frames * np.hanning(size), n=max(padded, size))) ** 2)


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


def written(height: int, width: int, seed: int, *, lines: int = 1) -> Array:
    """Return a picture of text, (height, width, 3) BGR uint8: dark letters on a light uneven ground."""
    rng = np.random.default_rng(seed)
    ground = np.full((height, width, 3), rng.integers(190, 250, 3), np.float64)
    ground += cv2.resize(rng.normal(0, 12, (4, 6, 3)), (width, height)) + rng.normal(0, 3, ground.shape)
    picture = np.clip(ground, 0, 255).astype(np.uint8)
    pitch = height / (lines + 0.2)
    for line in range(lines):
        count = int(rng.integers(4, 9)) if lines == 1 else int(width / pitch * 1.4)
        text = "".join(rng.choice(list(_LETTERS), count))
        font = int(rng.choice([cv2.FONT_HERSHEY_SIMPLEX, cv2.FONT_HERSHEY_DUPLEX, cv2.FONT_HERSHEY_COMPLEX]))
        thick = max(1, round(pitch / 22))
        (wide, high), _ = cv2.getTextSize(text, font, 1, thick)
        scale = min(0.55 * pitch / high, 0.94 * width / wide)
        place = (int(0.03 * width), int((line + 0.85) * pitch))
        cv2.putText(picture, text, place, font, scale, rng.integers(0, 80, 3).tolist(), thick, cv2.LINE_AA)
    return picture


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
