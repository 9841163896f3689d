"""Average precision, the mean over overlaps of 0.50, 0.55, ... 0.95: found, and how well placed.

Source: COCO; pycocotools, `COCOeval`. What overlaps is the task's: boxes, masks, or points by their similarity.
"""

from __future__ import annotations

from edgeopt.recipes.metrics import Metric
from edgeopt.recipes.scoring.match_tables import FOUND, resampled_precision

METRIC = Metric(FOUND, resampled_precision, lambda tables, pictures: 0.01)
