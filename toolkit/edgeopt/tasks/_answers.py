"""Answers as text, JSON and pictures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.graph.tensors import Frame
from edgeopt.system.files import write_beside
from edgeopt.tasks._drawing import draw_answer, draw_sheet
from edgeopt.tasks.detection.boxes import Detections


def class_name(names: Sequence[str], index: int) -> str:
    """Return the name of a class, or `class 7` where it has none."""
    return names[index] if index < len(names) else f"class {index}"


def as_json(answer: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return plain values: `detections` with pixel boxes, or `classes`, best first; else `outputs` by name."""
    if isinstance(answer, Mapping):
        return {"outputs": {name: _as_json(np.asarray(value)) for name, value in answer.items()}}
    if isinstance(answer, Detections):
        rows = zip(answer.boxes.tolist(), answer.scores.tolist(), answer.classes.tolist(), strict=True)
        return {
            "detections": [
                {"box": [round(v, 2) for v in box], "score": round(score, 4), "class": class_name(names, label)}
                for box, score, label in rows
            ]
        }
    pairs = zip(answer.indices.tolist(), answer.scores.tolist(), strict=True)
    scores = [(i, round(score, 4) if math.isfinite(score) else None) for i, score in pairs]
    return {"classes": [{"class": class_name(names, i), "index": i, "score": score} for i, score in scores]}


def is_silent(answer: Any) -> bool:
    """Return whether a decoded answer holds nothing, or a score that is no number."""
    return not isinstance(answer, Mapping) and (not len(answer) or not np.isfinite(answer.scores).all())


def as_text(answer: Any, names: Sequence[str]) -> str:
    """Return one line."""
    if isinstance(answer, Mapping):
        return "; ".join(f"{name} {_as_text(np.asarray(value))}" for name, value in answer.items())
    if isinstance(answer, Detections):
        found = [
            f"{class_name(names, label)} {score:.2f} at {', '.join(f'{v:.0f}' for v in box)}"
            for box, score, label in zip(answer.boxes, answer.scores, answer.classes.tolist(), strict=True)
        ]
        return "; ".join(found) or "nothing"
    pairs = zip(answer.indices.tolist(), answer.scores.tolist(), strict=True)
    return "; ".join(f"{class_name(names, i)} {score:.3f}" for i, score in pairs) or "nothing"


def _as_json(value: NDArray[Any]) -> dict[str, Any]:
    """Return type, shape and elements in order; what is not finite, which JSON cannot hold, is null."""
    flat = value.reshape(-1)
    elements = flat.tolist()
    if value.dtype.kind == "f":
        elements = [one if finite else None for one, finite in zip(elements, np.isfinite(flat).tolist(), strict=True)]
    return {"dtype": str(value.dtype), "shape": list(value.shape), "values": elements}


def _as_text(value: NDArray[Any]) -> str:
    told = f"{value.dtype} {'x'.join(map(str, value.shape))}".rstrip()
    if not value.size or value.dtype.kind not in "fiub":
        return told
    finite = value[np.isfinite(value)]
    if finite.size < value.size:
        told += f" NaN or infinite in {value.size - finite.size} of {value.size}"
    if value.size == 1 or not finite.size:
        return f"{told} {finite[0]:g}" if finite.size else told
    return f"{told} from {np.min(finite):g} to {np.max(finite):g}"


def write_drawing(path: Path, frame: Frame, answer: Any, names: Sequence[str]) -> None:
    """Write the frame with its answer as PNG.

    Raises:
        InvalidFileError: If the folder is not writable.
    """
    write_beside(path, draw_sheet([[draw_answer(frame, answer, names)]], [path.stem]))
