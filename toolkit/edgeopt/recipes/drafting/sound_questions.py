"""Questions about a model that hears, which it does not answer itself, with the answers that are likely."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from edgeopt.errors import EdgeoptError
from edgeopt.recipes.drafting.questions import RecipeQuestion
from edgeopt.recipes.inputs.audio import Features
from edgeopt.system.text import short

RATES_HZ: Mapping[int, str] = {
    16000: "most models of speech",
    8000: "telephones, small keyword nets",
    48000: "noise suppression, effects",
    44100: "music",
    32000: "tagging of sounds (PANNs)",
    22050: "librosa's own",
}
_MOST_HZ, _MOST_SAMPLES, _MOST_FRAME = 384_000, 2**26, 2**16
_CONVENTIONS = {
    Features.TORCHAUDIO: "torchaudio.transforms.MelSpectrogram, its logarithm",
    Features.LIBROSA: "librosa.feature.melspectrogram, in decibels",
    Features.KALDI: "kaldi's fbank",
    Features.WHISPER: "Whisper's log-mel",
    Features.TORCHAUDIO_MFCC: "torchaudio.transforms.MFCC",
    Features.LIBROSA_MFCC: "librosa.feature.mfcc",
}
_FRAMES_MS = ((25, 10), (32, 16), (32, 8), (64, 32))
"""Under the window function, and from frame to frame."""


def about_rate(likely: int) -> RecipeQuestion:
    """Return the question for samples a second."""
    rates = dict.fromkeys((likely, *RATES_HZ))
    options = {f"{rate}: {RATES_HZ.get(rate, 'that of the example')}": rate for rate in rates}
    return RecipeQuestion(
        "Of how many samples a second are its sounds?", options, "a whole number", _whole(1, _MOST_HZ)
    )


def about_features(likely: Features) -> RecipeQuestion:
    """Return the question for the convention of bands."""
    kinds = dict.fromkeys((likely, *_CONVENTIONS))
    return RecipeQuestion("What makes its bands of a sound?", {f"{kind}: {_CONVENTIONS[kind]}": kind for kind in kinds})


def about_bands(name: str, sizes: Sequence[int]) -> RecipeQuestion:
    """Return the question for which size of an input counts bands; the first is likely."""
    text = f"How many bands, or coefficients, does input {name} take? Its other size counts frames."
    return RecipeQuestion(text, {str(size): size for size in sizes} or {"80": 80}, "a whole number", _whole(1, 512))


def about_frames(rate_hz: int) -> RecipeQuestion:
    """Return the question for the samples of a frame, and from frame to frame."""
    options = {}
    for window_ms, step_ms in _FRAMES_MS:
        window, step = window_ms * rate_hz // 1000, step_ms * rate_hz // 1000
        options[f"{window} {step}: {window_ms} ms every {step_ms} ms"] = (window, step)

    def read(text: str) -> tuple[int, int]:
        numbers = [_whole(1, _MOST_FRAME)(part) for part in text.split()]
        if len(numbers) != 2:
            raise EdgeoptError(f"{short(text)} is no answer", remedy="type two whole numbers, such as 400 160")
        return numbers[0], numbers[1]

    return RecipeQuestion(
        "How many samples has a frame, and how many lie from frame to frame?", options, "WINDOW HOP", read
    )


def about_length(name: str, rate_hz: int) -> RecipeQuestion:
    """Return the question for the samples of a window, where an input takes any."""
    options = {f"{part * rate_hz // 10}: {part / 10:g} s": part * rate_hz // 10 for part in (10, 5, 20, 50, 100)}
    text = f"How many samples of sound are one run? Input {name} takes any."
    return RecipeQuestion(text, options, "a whole number", _whole(1, _MOST_SAMPLES))


def about_new_samples(size: int, *, streams: bool) -> RecipeQuestion:
    """Return the question for how many samples of a window are new; 0: a sound is one window."""
    options = {f"{size}: windows follow one another": size, "0: a sound is one window, cut or padded": 0}
    if not streams:
        options = dict(reversed(options.items()))
    text = f"How many of the {size} samples of a run are new in each window?"
    return RecipeQuestion(text, options, "fewer: the others are heard again", _whole(2, size))


def _whole(least: int, most: int) -> Callable[[str], Any]:
    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) < 12 and least <= int(text) <= most):
            raise EdgeoptError(f"{short(text)} is no answer", remedy=f"type a whole number from {least} to {most}")
        return int(text)

    return read
