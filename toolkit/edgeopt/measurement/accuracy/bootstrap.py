"""Accuracy with what is needed to compare two of them on the same pictures."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import InvalidFileError
from edgeopt.measurement.statistics.distributions import student_quantile
from edgeopt.recipes.labels import Labels
from edgeopt.tasks import Accuracy, Task

RESAMPLES = 1000
_SEED = 0
"""Fixed: two models on the same pictures are scored on the same resamples, whenever each is scored."""
_DIGITS = 9


@dataclass(frozen=True, slots=True)
class Scored:
    """A metric on labelled pictures, and the same metric on resamples of them."""

    accuracy: Accuracy
    resampled: tuple[float, ...]
    """On pictures drawn with replacement, the same draws for every model; empty for a single picture."""
    labels: str
    """File name of the labels."""
    pictures_sha256: str
    """Of the labels and the pictures' names, in order: equal ones may be compared."""
    drawn: int = 0
    """How many were drawn from: pictures, or streams and blocks of them; 0: as many as pictures."""

    @property
    def why_not_telling(self) -> str:
        """Why a drop from this accuracy proves nothing; empty where it does."""
        if not self.accuracy.is_by_chance:
            return ""
        shown, most = f"{self.accuracy.metric} {self.accuracy.value:.4f}", self.accuracy.by_chance
        return f"scores {shown} on {self.labels}, no better than chance (up to {most:.4f}): these labels prove nothing"

    def to_json(self) -> dict[str, Any]:
        """Return plain values; `Scored.from_json` reads them back."""
        return asdict(replace(self, accuracy=replace(self.accuracy, others=dict(self.accuracy.others))))

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Scored:
        """Return what `to_json` gave.

        Raises:
            KeyError, TypeError: If it is something else.
        """
        told = dict(values)
        return cls(**told | {"accuracy": Accuracy(**told["accuracy"]), "resampled": tuple(told["resampled"])})


@dataclass(frozen=True, slots=True)
class Drop:
    """Metric lost against another model on the same pictures, in the metric's unit."""

    value: float
    low: float
    high: float
    """`low` to `high` is the 95 % interval over pictures."""

    def __str__(self) -> str:
        return f"{self.value:+.4f} [{self.low:+.4f}, {self.high:+.4f}]"


def score(task: Task, answers: Sequence[Any], labels: Labels) -> Scored:
    """Return the metric, and the metric on resamples of the pictures; of windows, on resamples of whole streams.

    Args:
        task: Made with `evaluating`.
        answers: One a picture.
        labels: Of the same pictures.
    """
    groups, resampled = labels.groups, np.zeros(0)
    count = len(set(groups)) if groups else len(answers)
    if count > 1:
        draws = _draws(count)
        resampled = task.score_resamples(answers, labels, draws[:, groups] if groups else draws)
    values = tuple(np.round(resampled, _DIGITS).tolist())
    return Scored(task.score(answers, labels), values, labels.source.name, _identity(labels), count)


def require_telling(scored: Scored, otherwise: str) -> None:
    """Raise where a model is no better than chance on the labels that shall judge its candidates.

    Args:
        scored: Of the model as given.
        otherwise: How to go on without these labels.

    Raises:
        InvalidFileError: If so.
    """
    if why := scored.why_not_telling:
        raise InvalidFileError(
            f"the model {why}",
            remedy="check that the labels are of these pictures and classes, and that the recipe reads the model "
            f"right (edgeopt run draws its answers); {otherwise}",
        )


@lru_cache(maxsize=1)
def _draws(count: int) -> NDArray[np.int64]:
    """Return (resamples, count) how often each picture is drawn."""
    return np.random.default_rng(_SEED).multinomial(count, np.full(count, 1 / count), RESAMPLES).astype(np.int64)


def _identity(labels: Labels) -> str:
    digest = hashlib.sha256("\n".join(labels.files).encode())
    if Path(labels.source).is_file():
        digest.update(Path(labels.source).read_bytes())
    return digest.hexdigest()


def drop_between(baseline: Scored, variant: Scored) -> Drop | None:
    """Return what the variant lost, paired by picture; None if the two were not scored on the same pictures.

    The interval is the wider one of the bootstrap's percentiles and Student's t with the bootstrap's spread. On
    simulated detectors it held the truth in 93 to 96 % of cases, bias-corrected percentiles in 83 to 89 %.

    Source: the paired bootstrap, Efron and Tibshirani 1993; its percentiles expanded for few pictures as in
    Hesterberg, What Teachers Should Know About the Bootstrap, 2015.
    """
    same = (baseline.pictures_sha256, baseline.accuracy.metric, len(baseline.resampled))
    if same != (variant.pictures_sha256, variant.accuracy.metric, len(variant.resampled)) or not variant.resampled:
        return None
    value = baseline.accuracy.value - variant.accuracy.value
    drops = np.round(np.subtract(baseline.resampled, variant.resampled), _DIGITS).astype(np.float64)
    return _with_interval(value, drops, variant.drawn or variant.accuracy.n)


def drop_of_means(before: NDArray[np.float64], after: NDArray[np.float64]) -> Drop:
    """Return what the mean of one number a picture fell by, paired by picture; its interval as in `drop_between`.

    Args:
        before: (pictures,).
        after: (pictures,) of the same pictures in the same order; two or more.
    """
    drops, count = np.subtract(before, after), len(before)
    return _with_interval(float(drops.mean()), _draws(count) @ drops / count, count)


def _with_interval(value: float, resampled: NDArray[np.float64], pictures: int) -> Drop:
    """Return a drop with the interval that its resamples give."""
    reach, spread = _reach(pictures), float(resampled.std())
    tail = NormalDist().cdf(-reach)
    low, high = np.quantile(resampled, [tail, 1 - tail])
    return Drop(value, min(float(low), value - reach * spread), max(float(high), value + reach * spread))


def _reach(pictures: int) -> float:
    """Return half of a 95 % interval in spreads of the resamples.

    A resample's spread is sqrt((n - 1) / n) of the sample's, and Student's t replaces the normal distribution.
    """
    return student_quantile(0.975, pictures - 1) * math.sqrt(pictures / (pictures - 1))


def why_unsure(drop: Drop, max_drop: float, pictures: int) -> str:
    """Return why the labelled pictures cannot tell whether a drop is allowed; empty where they can.

    Args:
        drop: With its interval.
        max_drop: In the metric's unit.
        pictures: How many were labelled.
    """
    if not drop.low <= max_drop < drop.high:
        return ""
    return f"{pictures} labelled pictures are too few to be sure: the drop is {drop}, {max_drop:g} is allowed"
