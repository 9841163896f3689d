"""Share of another model's answers that this one gives too, of the worst output, by what kind of output it is."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeopt.recipes.metrics import Counts, Metric


def _share(shares: NDArray[np.float64], counts: Counts) -> NDArray[np.float64]:
    """Return the least share of an output: what agrees over what there is to agree on, of all samples together."""
    agreeing, whole = (counts @ shares[:, :, part].T for part in (0, 1))
    array = np.divide(agreeing, whole, out=np.ones_like(whole), where=whole > 0)
    return np.asarray(np.clip(array.min(axis=1, initial=1.0), 0.0, 1.0), np.float64)


METRIC = Metric((), _share)
