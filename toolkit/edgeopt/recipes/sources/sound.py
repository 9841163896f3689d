"""Sounds: `.wav` files, one sound each; for a recipe of streams each is cut into its windows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from edgeopt.errors import InvalidFileError, Note, NoteKind, UnsupportedError
from edgeopt.graph.sound import Sound
from edgeopt.recipes.inputs.audio import Audio
from edgeopt.recipes.inputs.frames import FramePart, Frames, SourceKind
from edgeopt.recipes.inputs.resampling import resampled
from edgeopt.recipes.inputs.wav_files import read_wav
from edgeopt.recipes.recipe import Recipe
from edgeopt.system.text import plural

_SUFFIXES = frozenset({".wav", ".wave"})
_KEPT = 8
"""Sounds that are held while their windows are read."""
_NOISE = 0.01


def _open(path: Path) -> Frames:
    read_wav(path)
    return Frames((path.name,), lambda _: read_wav(path), path, paths=(path,), kind="sound")


def _open_folder(folder: Path, files: Sequence[str]) -> Frames:
    kept, broken = list[str](), list[InvalidFileError]()
    for name in files:
        try:
            read_wav(folder / name)
            kept.append(name)
        except InvalidFileError as error:
            broken.append(error)
    if not kept:
        raise InvalidFileError(
            f"none of {plural(len(files), 'file')} in {folder} is read: {broken[0].problem}", remedy=broken[0].remedy
        )
    names = tuple(kept)
    text = f"{plural(len(broken), 'sound')} left out: " + "; ".join(error.problem for error in broken[:3])
    return Frames(
        names,
        lambda i: read_wav(folder / names[i]),
        folder,
        notes=(Note(NoteKind.SKIPPED, text),) if broken else (),
        paths=tuple(folder / name for name in names),
        kind="sound",
    )


def windows_of(frames: Frames, audio: Audio) -> Frames:
    """Return the windows of sounds, one stream a sound, each behind its context; what is left at an end is left out.

    Args:
        frames: Sounds.
        audio: Of a recipe of streams, bound to a model.

    Raises:
        UnsupportedError: If no sound is as long as a window, or the rate differs and soxr is not installed.
    """

    @lru_cache(_KEPT)
    def whole(place: int) -> Sound:
        sound = frames.read(place)
        assert isinstance(sound, Sound)
        return resampled(sound, audio.rate_hz)

    parts, short = list[FramePart](), 0
    for place in range(len(frames)):
        count = (len(whole(place).samples) - audio.samples) // audio.hop + 1
        short += count < 1
        begins = (i * audio.hop for i in range(count))
        parts += [FramePart(place, other / audio.rate_hz, (other + audio.samples) / audio.rate_hz) for other in begins]
    if not parts:
        raise UnsupportedError(
            f"{frames.source} holds no sound as long as a window, {audio.samples} samples at {audio.rate_hz} Hz",
            remedy="pass longer ones",
        )

    def read(index: int) -> Sound:
        part = parts[index]
        begin = round(part.begin_s * audio.rate_hz)
        samples = whole(part.place).samples
        before = samples[max(begin - audio.context, 0) : begin]
        window = np.concatenate([before, samples[begin : begin + audio.samples]])
        return Sound(np.pad(window, (audio.context - len(before), 0)), audio.rate_hz)

    text = f"{plural(short, 'sound')} of {frames.source} left out, shorter than a window of {audio.samples} samples"
    return Frames(
        tuple(f"{frames.names[other.place]}@{other.begin_s:.3f}s" for other in parts),
        read,
        frames.source,
        notes=(*frames.notes, *((Note(NoteKind.SKIPPED, text),) if short else ())),
        paths=frames.paths,
        kind="sound",
        streams=tuple(other.place for other in parts),
        parts=tuple(parts),
    )


def _made_up(recipe: Recipe, count: int) -> Frames:
    """Return tones that glide, rise and fall over noise, as long as a window."""
    return _tones(count, recipe.audio.context + recipe.audio.samples or recipe.audio.rate_hz, recipe.audio.rate_hz)


def _like(frames: Frames, count: int) -> Frames:
    """Return made-up sounds as long as given ones."""
    first = frames.read(0)
    assert isinstance(first, Sound)
    return _tones(count, len(first.samples), first.rate_hz)


def _tones(count: int, length: int, rate_hz: int) -> Frames:
    def read(index: int) -> Sound:
        chance = np.random.default_rng([2, index])
        time = np.arange(length) / rate_hz
        low, high = chance.uniform(0.01, 0.2, 2) * rate_hz
        glide = low + (high - low) * time / max(time[-1], 1 / rate_hz)
        tone = np.sin(2 * np.pi * np.cumsum(glide) / rate_hz) * chance.uniform(0.05, 0.7)
        swell = 0.5 - 0.5 * np.cos(2 * np.pi * time * chance.uniform(1, 8))
        return Sound((tone * swell + chance.normal(0, _NOISE, length)).astype(np.float32), rate_hz)

    names = tuple(f"synthetic[{i}]" for i in range(count))
    return Frames(names, read, Path("synthetic"), kind="sound")


SOURCE = SourceKind("sounds (.wav)", _SUFFIXES, _open, _made_up, _like, _open_folder)
