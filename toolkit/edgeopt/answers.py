"""Answers as text, JSON and pictures. It computes none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edgeopt.boxes import Detections
from edgeopt.drawing import draw_answer, draw_sheet
from edgeopt.files import write_beside
from edgeopt.tensors import Frame


def class_name(names: Sequence[str], index: int) -> str:
    """Return the name of a class, or `class 7` where it has none."""
    return names[index] if index < len(names) else f"class {index}"


def as_json(answer: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return plain values: `detections` with pixel boxes, or `classes`, best first."""
    if isinstance(answer, Detections):
        rows = zip(answer.boxes.tolist(), answer.scores.tolist(), answer.classes.tolist(), strict=True)
        return {
            "detections": [
                {"box": [round(v, 2) for v in box], "score": round(score, 4), "class": class_name(names, label)}
                for box, score, label in rows
            ]
        }
    pairs = zip(answer.indices.tolist(), answer.scores.tolist(), strict=True)
    return {"classes": [{"class": class_name(names, i), "index": i, "score": round(score, 4)} for i, score in pairs]}


def as_text(answer: Any, names: Sequence[str]) -> str:
    """Return one line."""
    if isinstance(answer, Detections):
        found = [
            f"{class_name(names, label)} {score:.2f} at {', '.join(f'{v:.0f}' for v in box)}"
            for box, score, label in zip(answer.boxes, answer.scores, answer.classes.tolist(), strict=True)
        ]
        return "; ".join(found) or "nothing"
    pairs = zip(answer.indices.tolist(), answer.scores.tolist(), strict=True)
    return "; ".join(f"{class_name(names, i)} {score:.3f}" for i, score in pairs)


def write_drawing(path: Path, frame: Frame, answer: Any, names: Sequence[str]) -> None:
    """Write the frame with its answer as PNG.

    Raises:
        InvalidFileError: If the folder is not writable.
    """
    write_beside(path, draw_sheet([[draw_answer(frame, answer, names)]], [path.stem]))
