"""The page on which a person says which answer is right: one file that opens offline, pictures inside."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from edgeopt.graph.tensors import Sample
from edgeopt.optimization.labelling.questions import NEITHER, Question
from edgeopt.recipes.inputs.frames import Frames

_TEMPLATE = Path(__file__).with_name("page.html")
_SIDE = 640
"""Pixels of the longer side: large enough to see what it is, small enough for hundreds in one file."""
_QUALITY = 85


def make_page(questions: Sequence[Question], frames: Frames, run: str, folder: Path) -> str:
    """Return the page.

    Args:
        questions: In their random order; the page does not say who answered what.
        frames: All samples, pictures or texts.
        run: Name under which a browser keeps the answers until they are saved.
        folder: Where the answers belong.
    """
    position = {name: i for i, name in enumerate(frames.names)}
    shown = [
        {"sample": question.sample, "options": question.options, **_sample(frames.read(position[question.sample]))}
        for question in questions
    ]
    data = {"run": run, "folder": str(folder), "neither": NEITHER, "questions": shown}
    # No text of a user ends the element that holds it.
    text = json.dumps(data).replace("<", "\\u003c")
    return _TEMPLATE.read_text("utf-8").replace("@DATA@", text)


def _sample(sample: Sample) -> dict[str, Any]:
    """Return a picture as data, or a text."""
    if isinstance(sample, str):
        return {"text": sample}
    picture = np.asarray(sample)
    height, width = picture.shape[:2]
    share = _SIDE / max(height, width)
    if share < 1:
        size = max(round(width * share), 1), max(round(height * share), 1)
        picture = cv2.resize(picture, size, interpolation=cv2.INTER_AREA)
    _, data = cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, _QUALITY])
    return {"picture": f"data:image/jpeg;base64,{b64encode(data.tobytes()).decode('ascii')}"}
