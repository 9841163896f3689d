"""RT-DETR of Ultralytics: (1, n, 6): centre and size, 0..1, score, class; the graph has chosen the best.

Source: Ultralytics 8.4, `RTDETRDecoder.postprocess` and `RTDETRPredictor.postprocess`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.heads import Exported, Head, end_to_end
from edgeopt.recipes.heads._candidates import Array, Candidates, Size, centred, least, scores_of, usually_relative
from edgeopt.recipes.heads._rows import FoundBoxes, HeadRows
from edgeopt.recipes.recipe import Postprocess


def _decode(outputs: Sequence[Array], numbers: Postprocess, size: Size, threshold: float) -> Candidates:
    rows = outputs[0][0]
    kept = rows[rows[:, 4] > least(numbers, threshold)]
    boxes = centred(kept[:, :4], usually_relative(numbers), size)
    return boxes, scores_of(kept[:, 4], numbers), kept[:, 5].round().astype(np.int64)


def _write(rows: HeadRows, outputs: Sequence[TensorSpec]) -> FoundBoxes:
    return end_to_end.write(rows.usually_relative(), outputs, is_centred=True)


HEAD = Head(end_to_end.HEAD.why_unfit, _decode, _write, is_suppressed=True, exported=Exported.CHOSEN_QUERIES)
