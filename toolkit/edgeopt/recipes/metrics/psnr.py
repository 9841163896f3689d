"""Peak signal to noise ratio with another model's picture, mean over pictures, as 1 - 10^(-dB / 20): 0.99 is 40 dB.

So 1 is the most, as of every metric; 1 less the root of the mean squared error over the range of values.
"""

from __future__ import annotations

from edgeopt.recipes.scoring.likeness import mean_of

METRIC = mean_of(0)
