"""Average precision at an overlap of 0.75: found, and well placed.

Source: COCO; pycocotools, `COCOeval`. What overlaps is the task's: see `AP`.
"""

from __future__ import annotations

from edgeopt.recipes.scoring.average_precision import average_precision

METRIC = average_precision(overlap=0.75)
