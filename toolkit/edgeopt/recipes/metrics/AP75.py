"""Average precision at an overlap of 0.75: found, and well placed.

Source: COCO; pycocotools, `COCOeval`. What overlaps is the task's: see `AP`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgeopt.recipes.metrics import Counts, Metric
from edgeopt.recipes.scoring.match_tables import FOUND, MatchTable, resampled_precision


def _precision(tables: Sequence[MatchTable], counts: Counts) -> NDArray[np.float64]:
    return resampled_precision(tables, counts, overlap=0.75)


METRIC = Metric(FOUND, _precision, lambda tables, pictures: 0.01)
