"""Share of labelled pixels whose class is right, of all pictures together."""

from __future__ import annotations

from edgeopt.recipes.class_areas import most_common, right_share
from edgeopt.recipes.metrics import Metric

METRIC = Metric(("segmentation",), right_share, lambda areas, pictures: most_common(areas)[0])
