"""Structural similarity with another model's picture, mean over pictures.

Source: Wang et al. 2004, Image quality assessment: from error visibility to structural similarity, 11 pixels wide.
"""

from __future__ import annotations

from edgeopt.recipes.scoring.likeness import mean_of

METRIC = mean_of(1)
