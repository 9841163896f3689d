"""Two sets of things with scores, matched one by one: boxes, masks, poses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray


def matched_share(
    scores: NDArray[np.float32], reference: NDArray[np.float32], fits: NDArray[Any], *, least: float, weighs: bool
) -> tuple[float, float]:
    """Return matched and total score of two sets of things: equal sets give equal numbers.

    Best score first, each thing is paired once, with what fits it best; a pair counts twice the smaller score.

    Args:
        scores: (n,) of the first set.
        reference: (m,) of the second.
        fits: (n, m) likeness of each pair, 0 to 1; it is written over.
        least: Below it a pair does not match.
        weighs: Whether a pair counts only as much as it is alike.
    """
    total = math.fsum([*scores.tolist(), *reference.tolist()])  # exact, as are the pairs' below
    matched: list[float] = []
    if not len(scores) or not len(reference):
        return 0.0, total
    for row in np.argsort(-scores, kind="stable"):
        column = int(fits[row].argmax())
        if fits[row, column] >= least:
            like = float(fits[row, column]) if weighs else 1.0
            matched.append(2 * like * float(min(scores[row], reference[column])))
            fits[:, column] = 0
    return math.fsum(matched), total
