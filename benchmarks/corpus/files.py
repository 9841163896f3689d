"""A user's own files beside a model: samples that calibrate, labelled ones, and ones that nobody saw."""

from __future__ import annotations

import wave
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import signals
from case import DRAFT, Case, Sample, Source
from cases import MADE

CALIBRATED_ON, JUDGED_ON = 32, 32
RECURRENT = 250
"""Steps of one stream that calibrate a recurrent model, and of another one that judge it: eight seconds of speech."""
LABELLED_S = 10.0
"""Seconds of each of three conversations that judge a detector of speech."""


def files_of(case: Case, source: Source, out: Path) -> list[str]:
    """Write what calibrates, what judges with labels, and what nobody saw; return how `optimize` is told of it."""
    count = RECURRENT if case.states else CALIBRATED_ON
    unseen = case.feed(source, RECURRENT if case.states else JUDGED_ON, 2)
    save(out / "unseen.npz", unseen[:JUDGED_ON])
    if case.shown:
        for name, seed in (("seen", 1), ("unseen", 2)):
            write_pictures(out / name, case.shown(source, count, seed))
        told = ["--calib", str(out / "seen")]
        if case.name in MADE:
            folder = source.data / "imagenet"
            return ["--calib", str(folder / "calib"), "--eval", str(folder / "val_labels.csv")]
        if case.classes or case.reads:
            labelled = case.shown(source, 2 * count, 3)
            write_pictures(out / "labelled", labelled)
            told += ["--eval", str(write_labels(case, out / "labelled", labelled))]
        return told
    if case.read:
        for name, seed in (("seen", 1), ("unseen", 2)):
            (out / f"{name}.txt").write_text("\n".join(case.read(count, seed)) + "\n", "utf-8")
        return ["--calib", str(out / "seen.txt")]
    if case.heard:
        for name, seed in (("seen", 1), ("unseen", 2)):
            write_sounds(out / name, *case.heard(count, seed))
        return ["--calib", str(out / "seen")] + (["--eval", str(speech_labels(out))] if case.recipe == DRAFT else [])
    save(out / "seen.npz", case.feed(source, count, 1))
    return ["--calib", str(out / "seen.npz")]


def write_pictures(folder: Path, shown: Sequence[tuple[Any, str]]) -> None:
    """Write pictures as PNG, in their order."""
    folder.mkdir(exist_ok=True)
    for i, (picture, _) in enumerate(shown):
        cv2.imwrite(str(folder / f"{i:04}.png"), picture)


def write_labels(case: Case, folder: Path, shown: Sequence[tuple[Any, str]]) -> Path:
    """Write which class each picture is of, or what is written on it."""
    column = "class_index" if case.classes else "text"
    rows = (f"{i:04}.png,{i % case.classes if case.classes else text}" for i, (_, text) in enumerate(shown))
    path = folder / "labels.csv"
    path.write_text("\n".join((f"file,{column}", *rows)) + "\n", "utf-8")
    return path


def write_sounds(folder: Path, sounds: Sequence[Any], rate: int) -> None:
    """Write sounds as 16-bit WAV, in their order."""
    folder.mkdir(exist_ok=True)
    for i, sound in enumerate(sounds):
        with wave.open(str(folder / f"{i:04}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(rate)
            file.writeframes(np.int16(np.clip(np.rint(sound * 32768), -32768, 32767)).tobytes())


def speech_labels(out: Path) -> Path:
    """Write three conversations, and when somebody speaks in each."""
    folder = out / "labelled"
    spoken = [(signals.speech(LABELLED_S, seed), signals.speaking(LABELLED_S, seed)) for seed in (3, 4, 5)]
    write_sounds(folder, [sound for sound, _ in spoken], signals.RATE)
    rows = (f"{i:04}.wav,{start:.3f},{end:.3f}" for i, (_, told) in enumerate(spoken) for start, end in told)
    path = folder / "labels.csv"
    path.write_text("\n".join(("file,start_s,end_s", *rows)) + "\n", "utf-8")
    return path


def save(path: Path, samples: Sequence[Sample]) -> None:
    """Write samples as edgeopt reads them: an array for each input, samples first."""
    np.savez(path, **{name: np.stack([one[name] for one in samples]) for name in samples[0]})
