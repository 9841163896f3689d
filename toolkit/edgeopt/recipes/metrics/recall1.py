"""Share of pictures whose nearest other picture, by the cosine of their embeddings, shows the same thing.

Source: recall at 1, Jegou et al. 2011, Product quantization for nearest neighbor search, IV. A resample counts pictures
as questions; all stay to be found.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeopt.recipes.metrics import Counts, Metric
from edgeopt.recipes.scoring.retrieval import Retrieval


def _share(retrieval: Retrieval, counts: Counts) -> NDArray[np.float64]:
    return np.asarray(counts @ retrieval.hits.astype(np.float64) / counts.sum(axis=1), np.float64)


def _by_chance(retrieval: Retrieval, pictures: int) -> float:
    """Return that of a guess, and two standard errors of it."""
    guess = retrieval.by_chance
    return min(guess + 2 * float(np.sqrt(guess * (1 - guess) / max(pictures, 1))), 1.0)


METRIC = Metric(("embedding",), _share, _by_chance)
