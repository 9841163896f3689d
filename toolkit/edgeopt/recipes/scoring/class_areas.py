"""How far maps of classes and the true ones cover each other, class by class, and the metrics on it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Areas = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ClassAreas:
    """Pixels of each picture and class, (pictures, classes) each; pixels without a label are left out."""

    both: Areas
    """Where the answer and the truth are this class."""
    found: Areas
    """Where the answer is."""
    true: Areas
    """Where the truth is."""


def areas_of(array: NDArray[np.uint16], true: NDArray[np.uint16], classes: int, unlabelled: int) -> Areas:
    """Return (3, classes) both, found and true of one picture.

    Args:
        array: (height, width) the answer's classes; those beyond `classes` are no class.
        true: The same of the truth.
        classes: Their number.
        unlabelled: Pixels of this true class are left out.
    """
    array, true = array.ravel(), true.ravel()
    labelled = true != unlabelled
    array, true = array[labelled], true[labelled]
    parts = array[array == true], array, true
    return np.stack([np.bincount(part, minlength=classes)[:classes] for part in parts])


def mean_overlap(areas: ClassAreas, counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return (resamples,) intersection over union, the mean over classes that occur in answers or truth."""
    both, array, true = (counts @ other for other in (areas.both, areas.found, areas.true))
    either = (array + true - both).astype(np.float64)
    shares = np.divide(both, either, out=np.zeros_like(either), where=either > 0)
    return np.asarray(shares.sum(axis=1) / np.maximum((either > 0).sum(axis=1), 1), np.float64)


def right_share(areas: ClassAreas, counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return (resamples,) the share of labelled pixels whose class is right."""
    right, whole = ((counts @ array).sum(axis=1) for array in (areas.both, areas.true))
    return np.asarray(right / np.maximum(whole, 1), np.float64)


def most_common(areas: ClassAreas) -> tuple[float, int]:
    """Return the share of pixels of the most common true class, and how many classes occur."""
    true = areas.true.sum(axis=0)
    return float(true.max(initial=0) / max(true.sum(), 1)), max(int((true > 0).sum()), 1)
