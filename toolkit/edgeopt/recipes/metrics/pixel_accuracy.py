"""Share of labelled pixels whose class is right, of all pictures together."""

from __future__ import annotations

from edgeopt.recipes.metrics import Metric
from edgeopt.recipes.scoring.class_areas import most_common, right_share

METRIC = Metric(("segmentation",), right_share, lambda areas, pictures: most_common(areas)[0])
