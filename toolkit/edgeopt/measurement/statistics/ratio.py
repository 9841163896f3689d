"""How many times as fast is one model as another: the one estimator of every command, for what was measured.

Three structures of samples have one answer, a `Ratio`:

- `round_logs`, then `ratio_of_rounds`: frames of two models in turns. Each frame has a twin, the same picture in the
  same round; the median of log(baseline / variant) over the twins is one value a round. A busy neighbour slows whole
  rounds, so they are combined by ranks, not by their mean: a few spoilt rounds neither move the ratio nor stretch its
  interval.
- `ratio_of_rounds` alone: one value each process, or each block of calls.
- `ratio_of_series`: two series that did not run in turns. What the machine did between them cannot be seen in them, so
  the interval is wider and their own drift widens the margin.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from edgeopt.measurement.samples import Samples
from edgeopt.measurement.statistics.distributions import student_quantile

_MOST_ROUNDS = 200
"""More rounds are joined with their neighbours: the interval gains nothing, its n * n averages cost memory."""
LEAST_RANKED = 6
"""Below, no interval of ranks has 95 %."""
_EXACT_UP_TO = 50
_MOST_BLOCKS = 20
_LEAST_BLOCK = 15


class Change(StrEnum):
    """The verdict of a ratio about a variant against the baseline."""

    FASTER = "FASTER"
    SLOWER = "SLOWER"
    EQUIVALENT = "EQUIVALENT"
    INCONCLUSIVE = "INCONCLUSIVE"
    UNCONFIRMED = "UNCONFIRMED"
    """Seen in one process only: it may be where sessions lay in memory."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times as fast a variant is as the baseline: time of the baseline over time of the variant."""

    speedup: float
    low: float
    high: float
    """`low` to `high` is the 95 % interval."""
    verdict: Change
    pairs: int = 0
    """Blocks of each variant that were paired; processes, where there are several."""
    margin: float = 0.02
    """Ratios within 1 / (1 + margin) to 1 + margin are neither faster nor slower."""
    pairs_needed: int | None = 0
    """More pairs that would decide if the spread stays; 0: decided; None: the ratio sits on the margin."""
    processes: int = 1
    """Fresh processes that the interval is over; 1: rounds of a single process."""

    def __str__(self) -> str:
        return f"{self.speedup:.2f}x [{self.low:.2f}, {self.high:.2f}]"


def parts_worth_judging(samples: Mapping[str, Samples]) -> tuple[str, ...]:
    """Return `execute`, the whole, then the other stages of all that take a hundredth of the median whole in any.

    Below that the clock and the bookkeeping are measured. A stage that one of them lacks has no ratio.
    """
    shared = set.intersection(*(set(sample.stages) for sample in samples.values()))
    worth: dict[str, bool] = {}
    for run in (sample.steady() for sample in samples.values()):
        whole = float(np.median(run.frame_ns))
        for name in (stage for stage in run.stages if stage in shared):
            worth[name] = worth.get(name, False) or float(np.median(run.stage(name))) >= 0.01 * whole
    stages = [name for name, takes in worth.items() if takes]
    return (
        *(name for name in stages if name == "execute"),
        next(iter(samples.values())).whole,
        *(stage for stage in stages if stage != "execute"),
    )


def round_logs(variant: Samples, baseline: Samples, part: str) -> NDArray[np.float64]:
    """Return (rounds,) the median of log(baseline / variant) over the twin frames of each round.

    Args:
        variant: Of a run in turns (`run_interleaved`).
        baseline: Of the same run.
        part: `frame`, or a stage.

    Raises:
        ValueError: If the two are not of one run in turns.
    """
    mine, theirs = variant.steady(), baseline.steady()
    if mine.round_id is None or theirs.round_id is None or not np.array_equal(mine.round_id, theirs.round_id):
        raise ValueError("only two variants of one run in turns have twin frames")
    times = [run.part(part) for run in (mine, theirs)]
    logs = np.log(np.maximum(times[1], 1) / np.maximum(times[0], 1))
    joined = max(1, -(-len(np.unique(mine.round_id)) // _MOST_ROUNDS))
    rounds = mine.round_id // joined
    return np.array([np.median(logs[rounds == number]) for number in np.unique(rounds)])


def ratio_of_rounds(logs: NDArray[np.float64], *, pairs: int, margin: float = 0.02, null: Ratio | None = None) -> Ratio:
    """Return the ratio of independent values: the Hodges-Lehmann estimate with its signed-rank interval of 95 %.

    Args:
        logs: (n,) log(baseline / variant), one a round or a process; two or more.
        pairs: How many pairs of blocks they come from.
        margin: Ratios within 1 / (1 + margin) to 1 + margin count as equal.
        null: The baseline against itself in the same run: what differs no more than that is neither faster nor
            slower. It never makes anything equal.

    Raises:
        ValueError: If there is only one round.

    Source: Hollander and Wolfe 1999, sections 3.2 and 3.3.
    """
    if len(logs) < 2:
        raise ValueError("one round has no interval; two or more are needed")
    centre, low, high = _by_ranks(logs) if len(logs) >= LEAST_RANKED else _by_student(logs)
    return decide(math.exp(centre), math.exp(low), math.exp(high), pairs=pairs, margin=margin, null=null)


def centre_of_rounds(logs: NDArray[np.float64]) -> float:
    """Return the Hodges-Lehmann estimate alone: the median of all averages of two rounds, each with itself too."""
    first, second = np.triu_indices(len(logs))
    return float(np.median((logs[first] + logs[second]) / 2))


def rounds_reach(logs: NDArray[np.float64]) -> float:
    """Return how far the ratio of so many rounds reaches to either side by what neighbouring rounds differ; 0 of one.

    Neighbours, since sessions that are opened anew between them differ by some percent on the quietest machine.
    """
    if len(logs) < 2:
        return 0.0
    deviation = float(np.median(np.abs(np.diff(logs)))) / (0.6745 * math.sqrt(2))
    return 1.96 * deviation / math.sqrt(len(logs))


def _by_ranks(logs: NDArray[np.float64]) -> tuple[float, float, float]:
    first, second = np.triu_indices(len(logs))
    averages = np.sort((logs[first] + logs[second]) / 2)
    skipped = _signed_rank(len(logs))
    return float(np.median(averages)), float(averages[skipped]), float(averages[-1 - skipped])


def _signed_rank(n: int) -> int:
    """Return how many averages lie outside on each side: the largest k with P(T < k) <= 0.025."""
    if n > _EXACT_UP_TO:
        return int(n * (n + 1) / 4 - 1.96 * math.sqrt(n * (n + 1) * (2 * n + 1) / 24))
    counts = np.ones(1)
    for rank in range(1, n + 1):
        longer = np.zeros(len(counts) + rank)
        longer[: len(counts)] += counts
        longer[rank:] += counts
        counts = longer
    return int(np.searchsorted(np.cumsum(counts) / counts.sum(), 0.025, side="right"))


def _by_student(logs: NDArray[np.float64]) -> tuple[float, float, float]:
    reach = student_quantile(0.975, len(logs) - 1) * float(logs.std(ddof=1)) / math.sqrt(len(logs))
    centre = float(logs.mean())
    return centre, centre - reach, centre + reach


def block_medians(samples: Samples, part: str) -> NDArray[np.float64]:
    """Return the medians of at most 20 blocks of at least 15 frames in order of time; of process rounds where known.

    Args:
        samples: One run; warm-up and lost frames do not count.
        part: `frame`, or a stage.
    """
    rows = samples.steady().served()
    times = rows.part(part)
    if rows.round_id is not None and len(np.unique(rows.round_id)) > 2:
        return np.array([np.median(times[rows.round_id == value]) for value in np.unique(rows.round_id)])
    blocks = max(1, min(_MOST_BLOCKS, len(times) // _LEAST_BLOCK))
    return np.array([np.median(block) for block in np.array_split(times, blocks) if len(block)])


def ratio_of_series(
    variant: NDArray[np.float64], baseline: NDArray[np.float64], *, margin: float, drifts: bool = True
) -> Ratio | None:
    """Return the ratio of two series of independent values, or None if one has fewer than three.

    Args:
        variant: (n,) values above zero in order of time.
        baseline: (m,) values above zero in order of time.
        margin: Ratios within 1 / (1 + margin) to 1 + margin count as equal.
        drifts: Whether the values are times of one run each: the largest deviation of a block from its run's median
            is then what the machine does by itself, and less than that is neither faster nor slower.

    Source: Welch 1947, on logarithms.
    """
    if min(len(variant), len(baseline)) < 3 or min(variant.min(), baseline.min()) <= 0:
        return None
    logs = [np.log(array) for array in (variant, baseline)]
    errors = [float(log.var(ddof=1)) / len(log) for log in logs]
    centre, error = float(logs[1].mean() - logs[0].mean()), sum(errors)
    degrees = (
        error**2 / sum(e**2 / (len(log) - 1) for e, log in zip(errors, logs, strict=True))
        if error
        else len(variant) + len(baseline) - 2
    )
    reach = student_quantile(0.975, max(1.0, degrees)) * math.sqrt(error)
    value, low, high = (math.exp(x) for x in (centre, centre - reach, centre + reach))
    deviation = max(float(np.abs(log - np.median(log)).max()) for log in logs) if drifts else 0.0
    own = Ratio(1.0, math.exp(-deviation), math.exp(deviation), Change.INCONCLUSIVE)
    return decide(value, low, high, pairs=min(len(variant), len(baseline)), margin=margin, null=own)


def decide(value: float, low: float, high: float, *, pairs: int, margin: float, null: Ratio | None) -> Ratio:
    """Return a ratio with what its interval proves, and how many more pairs would decide.

    Args:
        value: The ratio.
        low: Lower end of its interval.
        high: Upper end of its interval.
        pairs: What it comes from.
        margin: Ratios within 1 / (1 + margin) to 1 + margin count as equal.
        null: The baseline against itself; it widens the margin for faster and slower only.
    """
    widened = margin if null is None else max(margin, null.high - 1, 1 / null.low - 1)
    verdict = _verdict(low, high, margin, widened)
    undecided = verdict is Change.INCONCLUSIVE
    return Ratio(
        speedup=value,
        low=low,
        high=high,
        pairs=pairs,
        verdict=verdict,
        margin=widened,
        pairs_needed=_pairs_needed(value, (high - low) / 2, pairs, margin, widened) if undecided else 0,
    )


def _verdict(low: float, high: float, margin: float, widened: float) -> Change:
    if low > 1 + widened:
        return Change.FASTER
    if high < 1 / (1 + widened):
        return Change.SLOWER
    return Change.EQUIVALENT if low >= 1 / (1 + margin) and high <= 1 + margin else Change.INCONCLUSIVE


def _pairs_needed(value: float, half_width: float, pairs: int, margin: float, widened: float) -> int | None:
    """Half-width and null both shrink with the square root of the pairs, until one of the verdicts fits."""
    distance, half_width = abs(value - 1), max(half_width, 1e-12)
    if distance <= margin:
        shrink = (margin - distance) / half_width
    else:
        shrink = (distance - margin) / half_width
        shrink = min(shrink, distance / (half_width + widened)) if widened > margin else shrink
    return None if shrink < 0.05 else max(2, math.ceil(pairs / min(shrink, 1.0) ** 2) - pairs)
