"""Average precision of boxes, the mean over overlaps of 0.50, 0.55, ... 0.95: found, and how well placed.

Source: COCO; pycocotools, `COCOeval` of `bbox`.
"""

from __future__ import annotations

from edgeopt.recipes.match_tables import resampled_precision
from edgeopt.recipes.metrics import Metric

METRIC = Metric(("detection",), resampled_precision, lambda tables, pictures: 0.01)
