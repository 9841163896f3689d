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
from edgeopt.recipes.metrics import find_metric
from edgeopt.system.text import format_drop, format_score
from edgeopt.tasks import Accuracy, Task

RESAMPLES = 1000
PARTITIONS = 50
"""Random divisions of the samples into parts, which tell the bias to a thirtieth of the spread on 400 pictures."""
_PARTS = 4
"""A bias that falls with the root of the number of samples is twice as large in a quarter; most fall faster."""
_SEED = 0
"""Fixed: two models on the same pictures are scored on the same resamples, whenever each is scored."""
_DIGITS = 9
_SKEWNESS = 1.5
"""Times the skewness of a labelled set: rare samples that lose much are rarer still in most sets."""
_TAIL = 0.025
"""Share of the draws on each side of a 95 % interval."""
_ALONE = 256
"""Samples that are scored one by one in one call: their counts are a table of so many rows."""


@dataclass(frozen=True, slots=True)
class Scored:
    """A metric on labelled pictures, and the same metric on resamples of them."""

    accuracy: Accuracy
    resampled: tuple[float, ...]
    """Metric on pictures drawn with replacement, the same draws for every model; empty for a single picture."""
    labels: str
    """File name of the labels."""
    pictures_sha256: str
    """Pictures SHA-256 of the labels and the pictures' names, in order: equal ones may be compared."""
    drawn: int = 0
    """How many were drawn from: pictures, or streams and blocks of them; 0: as many as pictures."""
    right: str = ""
    """`1` for each sample that is right, `0` for each that is not; empty where the metric is no share of samples."""
    parted: tuple[float, ...] = ()
    """Mean of the metric on the quarters of the samples, one for each random division into them; empty where it is a
    share of samples, which is the same in the mean on sets of any size."""

    @property
    def why_not_telling(self) -> str:
        """Why a drop from this accuracy proves nothing; empty where it does."""
        if not self.accuracy.is_by_chance:
            return ""
        shown, most = self.accuracy.short, format_score(self.accuracy.by_chance)
        return f"scores {shown} on {self.labels}, no better than chance (up to {most}): these labels prove nothing"

    def to_json(self) -> dict[str, Any]:
        """Return plain values; `Scored.from_json` reads them back."""
        return asdict(replace(self, accuracy=replace(self.accuracy, others=dict(self.accuracy.others))))

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Scored:
        """Return what `to_json` gave.

        Raises:
            KeyError, TypeError: If it is something else.
        """
        result = dict(values)
        lists = {name: tuple(result[name]) for name in ("resampled", "parted")}
        return cls(**result | lists | {"accuracy": Accuracy(**result["accuracy"])})


@dataclass(frozen=True, slots=True)
class Drop:
    """Metric lost against another model on the same pictures, in the metric's unit."""

    value: float
    low: float
    high: float
    """`low` to `high` is the 95 % interval over pictures."""

    def __str__(self) -> str:
        return f"{format_drop(self.value)} [{format_drop(self.low)}, {format_drop(self.high)}]"


def score(task: Task, answers: Sequence[Any], labels: Labels) -> Scored:
    """Return the metric, and the metric on resamples of the pictures; of windows, on resamples of whole streams.

    Args:
        task: Made with `evaluating`.
        answers: One a picture.
        labels: Of the same pictures.
    """
    groups, resampled, parted = labels.groups, np.zeros(0), np.zeros(0)
    count = len(set(groups)) if groups else len(answers)
    accuracy = task.score(answers, labels)
    is_share = find_metric(accuracy.metric).is_share and not groups
    if count > 1:
        draws = _draws(count)
        # at once: matching answers with labels takes longer than the rest; the table of draws is large, and not copied
        counts = draws if is_share else np.concatenate([draws, quarters(count)])
        counts = counts[:, groups] if groups else counts
        resampled, values = np.split(task.score_resamples(answers, labels, counts), [len(draws)])
        parted = parted if is_share else mean_of_parts(values, counts[len(draws) :])
    right = _right(task, answers, labels) if is_share else ""
    return Scored(
        accuracy, _rounded(resampled), labels.source.name, identity_of(labels), count, right, _rounded(parted)
    )


def _rounded(values: NDArray[np.float64]) -> tuple[float, ...]:
    return tuple(np.round(values, _DIGITS).tolist())


def mean_of_parts(values: NDArray[np.float64], counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return (partitions,) the mean of a metric over the parts of each partition, by their samples.

    Args:
        values: (partitions * parts,) the metric of each part.
        counts: (partitions * parts, samples) as `quarters` gives them.
    """
    sizes = counts.sum(axis=1).reshape(PARTITIONS, -1)
    mean: NDArray[np.float64] = (values.reshape(sizes.shape) * sizes).sum(axis=1) / sizes.sum(axis=1)
    return mean


def _right(task: Task, answers: Sequence[Any], labels: Labels) -> str:
    """Return which samples are right: the metric of each alone."""
    count = len(answers)
    marks = list[str]()
    for first in range(0, count, _ALONE):
        rows = min(_ALONE, count - first)
        alone = np.zeros((rows, count), np.int64)
        alone[np.arange(rows), first + np.arange(rows)] = 1
        marks += ["1" if value > 0.5 else "0" for value in task.score_resamples(answers, labels, alone)]
    return "".join(marks)


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
def quarters(count: int) -> NDArray[np.int64]:
    """Return (partitions * parts, count) 1 where a sample is in a part; of fewer than four samples each is a part."""
    parts = min(_PARTS, count)
    each = np.tile(np.arange(count) % parts, (PARTITIONS, 1))
    where = np.random.default_rng(_SEED + 1).permuted(each, axis=1)
    drawn: NDArray[np.int64] = (where[:, None] == np.arange(parts)[:, None]).reshape(-1, count).astype(np.int64)
    return drawn


@lru_cache(maxsize=1)
def _draws(count: int) -> NDArray[np.int64]:
    """Return (resamples, count) how often each picture is drawn."""
    return np.random.default_rng(_SEED).multinomial(count, np.full(count, 1 / count), RESAMPLES).astype(np.int64)


def identity_of(labels: Labels) -> str:
    """Return what tells these labels from others: the hash of their files' names, and of the labels."""
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
    drops = _resampled_drops(baseline, variant)
    if drops is None:
        return None
    value = baseline.accuracy.value - variant.accuracy.value
    return _with_interval(value, drops, variant.drawn or variant.accuracy.n, _TAIL)


def drop_bounds(baseline: Scored, variant: Scored, level: float) -> Drop | None:
    """Return what the variant lost, with two bounds of which each is wrong in `level` of all cases.

    As `drop_between`, but each bound is moved outwards where the resamples lean to its side: few samples that lose much
    are missing from many labelled sets, and a bound without it was wrong in 10 % where 5 % were meant. And it is moved
    outwards by the bias of the drop where that leans inwards: the envelope of average precision picks what is high by
    chance, more of it the fewer pictures there are, and more in a worse model. On composed scenes its drop is seen too
    small by 0.1 to 0.4 of its spread.

    A quarter of a set is a set of the population too, and all quarters together hold what the whole holds: what their
    mean differs by is bias. That of a metric that picks the highest of equals falls with the root of the number of
    samples, of most others faster: in quarters it is twice as large or more, and the difference is the bias or more. Of
    a drop, where two such biases nearly cancel, it was half of it. As it is an estimate, the spread is widened by that
    of the partitions.

    Source: the second-order term of the Studentized mean, Hall, The Bootstrap and Edgeworth Expansion, 1992, 2.6. Bias
    by parts of the sample: Quenouille, Biometrika 43, 1956; subsamples: Politis, Romano and Wolf, Subsampling, 1999;
    the slowest order: Fang and Santos, Review of Economic Studies 86, 2019.
    """
    drops = _resampled_drops(baseline, variant)
    if drops is None:
        return None
    value, samples = baseline.accuracy.value - variant.accuracy.value, variant.drawn or variant.accuracy.n
    plain = _with_interval(value, drops, samples, level)
    spread = float(drops.std())
    skewness = float(np.mean((drops - drops.mean()) ** 3)) / spread**3 if spread > 0 else 0.0
    reach = NormalDist().inv_cdf(1 - level)
    moved = _SKEWNESS * spread * skewness * (2 * reach**2 + 1) / 6
    bias, noise = _bias(value, baseline, variant)
    wider = _reach(samples, level) * (math.hypot(spread, noise) - spread)
    low = plain.low + min(moved, 0.0) - max(bias, 0.0) - wider
    return Drop(value, low, plain.high + max(moved, 0.0) + max(-bias, 0.0) + wider)


def _bias(value: float, baseline: Scored, variant: Scored) -> tuple[float, float]:
    """Return what a drop is seen too large by in the mean, and the spread of that over partitions."""
    if not baseline.parted or len(baseline.parted) != len(variant.parted):
        return 0.0, 0.0
    beyond = np.subtract(baseline.parted, variant.parted) - value
    return float(beyond.mean()), float(beyond.std())


def _resampled_drops(baseline: Scored, variant: Scored) -> NDArray[np.float64] | None:
    """Return (resamples,) the drop on each; None if the two were not scored on the same pictures."""
    same = (baseline.pictures_sha256, baseline.accuracy.metric, len(baseline.resampled))
    if same != (variant.pictures_sha256, variant.accuracy.metric, len(variant.resampled)) or not variant.resampled:
        return None
    return np.round(np.subtract(baseline.resampled, variant.resampled), _DIGITS).astype(np.float64)


def drop_of_means(before: NDArray[np.float64], after: NDArray[np.float64]) -> Drop:
    """Return what the mean of one number a picture fell by, paired by picture; its interval as in `drop_between`.

    Args:
        before: (pictures,).
        after: (pictures,) of the same pictures in the same order; two or more.
    """
    drops, count = np.subtract(before, after), len(before)
    return _with_interval(float(drops.mean()), _draws(count) @ drops / count, count, _TAIL)


def _with_interval(value: float, resampled: NDArray[np.float64], pictures: int, level: float) -> Drop:
    """Return a drop with the bounds that its resamples give, each wrong in `level` of all cases."""
    reach, spread = _reach(pictures, level), float(resampled.std())
    tail = NormalDist().cdf(-reach)
    low, high = np.quantile(resampled, [tail, 1 - tail])
    return Drop(value, min(float(low), value - reach * spread), max(float(high), value + reach * spread))


def _reach(pictures: int, level: float) -> float:
    """Return how far a bound lies from the drop, in spreads of the resamples.

    A resample's spread is sqrt((n - 1) / n) of the sample's, and Student's t replaces the normal distribution.
    """
    return student_quantile(1 - level, pictures - 1) * math.sqrt(pictures / (pictures - 1))
