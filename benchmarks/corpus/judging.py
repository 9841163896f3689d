"""Plain ONNX Runtime and the author's own reading judge a bundle and the model that it was made of."""

from __future__ import annotations

import json
import wave
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from case import Case, Sample
from plain import open_plain, run_stream

from edgeopt import Runtime, Sound


def fed_apart(case: Case, runtime: Runtime, unseen: Sequence[Sample], out: Path) -> float | None:
    """Return how far the recipe's tensors lie from the author's: the mean, as a share of their spread; None: arrays."""
    if not case.shown and not case.heard and not case.read:
        return None
    task, spread, apart = runtime.make_task(), 0.0, 0.0
    frames: Iterable[Any]
    if case.read:
        frames = (out / "unseen.txt").read_text("utf-8").splitlines()
    else:
        paths = sorted((out / "unseen").glob("*.*"))
        frames = (cv2.imread(str(path)) if case.shown else sound_of(path, runtime, case) for path in paths)
    for frame, sample in zip(frames, unseen, strict=False):
        made, _ = runtime.feed(task, frame)
        name = runtime.bundle.recipe.input.tensor or next(iter(made))
        mine, theirs = np.asarray(made[name], np.float64), np.asarray(sample[name], np.float64)
        if mine.shape != theirs.shape:
            return float("inf")
        apart, spread = apart + float(np.abs(mine - theirs).mean()), spread + float(theirs.std())
    return apart / spread


def sound_of(path: Path, runtime: Runtime, case: Case) -> Sound:
    """Return a sound; of a stream, its first chunk."""
    with wave.open(str(path)) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), np.int16) / np.float32(32768)
        rate = file.getframerate()
    return Sound(np.float32(samples[: runtime.bundle.recipe.audio.samples] if case.states else samples), rate)


def others(
    case: Case, found: dict[str, Any], folder: Path, unseen: Sequence[Sample], expected: Sequence[Sample]
) -> dict[str, tuple[bool, str]]:
    """Judge the candidates that keep their accuracy and were not chosen, by plain ONNX Runtime."""
    told: dict[str, tuple[bool, str]] = {}
    for one in found["candidates"]:
        path, is_kept = folder / one["file"], keeps(one)
        if one["name"] in ("baseline", found["chosen"]) or not is_kept or path.suffix != ".onnx":
            continue
        told[one["name"]] = case.agrees(run_stream(alike(open_plain(path)), unseen, case.states), expected)
    return told


def keeps(candidate: dict[str, Any]) -> bool:
    """Return whether edgeopt says that a candidate keeps its accuracy."""
    return bool(candidate["judgement"]) and candidate["judgement"]["word"] in ("KEPT", "AGREES")


def alike(run: Any) -> Any:
    """Return what runs a candidate on those of the original's inputs that it still has."""
    return lambda sample: run({name: value for name, value in sample.items() if name in run.inputs})


def open_bundle(folder: Path) -> Runtime:
    """Return the runtime of a bundle."""
    return Runtime.load(folder)


def runs(runtime: Runtime) -> Any:
    """Return what runs a bundle on the model's own inputs."""
    return runtime.predict if runtime.bundle.recipe.task == "tensors" else runtime.session.run


def compared(path: Path) -> dict[str, Any] | None:
    """Return the verdict of `edgeopt compare` on the frame."""
    if not path.is_file():
        return None
    rows = json.loads(path.read_text("utf-8"))["rows"]
    return dict(rows[-1]["ratios"]["frame"])


def accuracy_of(candidate: Mapping[str, Any]) -> str:
    """Return the word of a candidate's accuracy, with the bound that it rests on and how many samples judged."""
    judgement = candidate.get("judgement")
    if not judgement:
        return "the original"
    word, count = judgement["word"], judgement["samples"]
    if not count:
        return f"{word}: {judgement['why'] or 'by its numbers'}"
    if judgement["drop_most"] is not None:
        bound = f"loses at most {judgement['drop_most']:+.4f}, {judgement['allowed']:g} allowed"
    elif judgement["agreement_least"] is not None:
        bound = f"agrees in at least {judgement['agreement_least']:.3f}"
    elif judgement["agreement"] is not None:
        bound = f"agrees in {judgement['agreement']:.3f}"
    else:
        bound = "by its numbers"
    return f"{word}: {bound}, {count} samples"
