"""Intersection over union of the pixels of a class, the mean over classes that occur in answers or truth.

Source: Everingham et al. 2015, the Pascal VOC challenge, 4.2; pixels of all pictures are counted together.
"""

from __future__ import annotations

from edgeopt.recipes.metrics import Metric
from edgeopt.recipes.scoring.class_areas import ClassAreas, mean_overlap, most_common


def _by_chance(areas: ClassAreas, _: int) -> float:
    """Return the score where each pixel is answered by the most common class."""
    share, classes = most_common(areas)
    return share / classes


METRIC = Metric(("segmentation",), mean_overlap, _by_chance)
