"""Average precision, the mean over overlaps of 0.50, 0.55, ... 0.95: found, and how well placed.

Source: COCO; pycocotools, `COCOeval`. What overlaps is the task's: boxes, masks, or points by their similarity.
"""

from __future__ import annotations

from edgeopt.recipes.scoring.average_precision import average_precision

METRIC = average_precision()
