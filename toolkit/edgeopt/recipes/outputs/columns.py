"""The columns of rows after suppression, as an output's name or its width tells them.

Sources: YOLOv7, `ONNX_ORT.forward` in models/experimental.py (n x 7); Ultralytics, `NMSModel.forward` (n x 6);
names such as `batchno_classid_score_x1y1x2y2` are those of PINTO_model_zoo.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum


class Column(StrEnum):
    """The meaning of a column of a detector's rows, where the graph suppresses boxes itself."""

    BATCH = "batch"
    """Which picture a row is of; rows of others than the first are none."""
    LEFT = "left"
    TOP = "top"
    RIGHT = "right"
    BOTTOM = "bottom"
    X = "x"
    """The middle of a box; with `y`, `width` and `height` in place of the four sides."""
    Y = "y"
    WIDTH = "width"
    HEIGHT = "height"
    CLASS = "class"
    SCORE = "score"
    OTHER = "other"
    """Not read."""


_CORNERS = (Column.LEFT, Column.TOP, Column.RIGHT, Column.BOTTOM)
_UPRIGHT = (Column.TOP, Column.LEFT, Column.BOTTOM, Column.RIGHT)
_CENTRED = (Column.X, Column.Y, Column.WIDTH, Column.HEIGHT)
BY_WIDTH = {
    6: (*_CORNERS, Column.SCORE, Column.CLASS),
    7: (Column.BATCH, *_CORNERS, Column.CLASS, Column.SCORE),
}
"""Where nothing else tells: Ultralytics' rows, and YOLOv7's."""
_WORDS: Mapping[str, Sequence[Column]] = (
    dict.fromkeys(("batchno", "batchid", "batchindex", "batch", "imageid", "image"), (Column.BATCH,))
    | dict.fromkeys(("classid", "classno", "class", "classes", "cls", "labels", "label", "category"), (Column.CLASS,))
    | dict.fromkeys(("scores", "score", "confidence", "conf", "prob"), (Column.SCORE,))
    | dict.fromkeys(("x1y1x2y2", "x0y0x1y1", "xminyminxmaxymax", "xyxy", "lefttoprightbottom", "ltrb"), _CORNERS)
    | dict.fromkeys(("y1x1y2x2", "y0x0y1x1", "yminxminymaxxmax", "yxyx"), _UPRIGHT)
    | dict.fromkeys(("cxcywh", "xywh"), _CENTRED)
)
_LONGEST_FIRST = sorted(_WORDS, key=len, reverse=True)


def columns_in_name(name: str) -> tuple[Column, ...]:
    """Return the columns that a name lists, such as `batchno_classid_score_x1y1x2y2`; none where it lists no rows."""
    left, columns = re.sub(r"[^a-z0-9]", "", name.lower()), list[Column]()
    while left:
        word = next((known for known in _LONGEST_FIRST if left.startswith(known)), "")
        if not word:
            return ()
        columns += _WORDS[word]
        left = left.removeprefix(word).removeprefix("id")
    is_whole = Column.SCORE in columns and any(set(box) <= {*columns} for box in (_CORNERS, _CENTRED))
    return tuple(columns) if is_whole and len(set(columns)) == len(columns) else ()
