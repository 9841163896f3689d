"""The ratio of two interleaved variants from frames paired picture by picture.

In a round all variants run the same pictures in the same order, so each frame has a twin. The median of
log(baseline / variant) over the twins of a round is one value; a busy neighbour slows whole rounds, so rounds are
combined by ranks, not by their mean, and a few spoilt rounds neither move the ratio nor stretch its interval.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from edgeopt.measurement.samples import Samples
from edgeopt.measurement.statistics.binomial import student_quantile
from edgeopt.measurement.statistics.ratio import Change, Ratio, widen_margin

_MOST_ROUNDS = 200
"""More rounds are joined with their neighbours: the interval gains nothing, its n * n averages cost memory."""
_LEAST_RANKED = 6
"""Below, no interval of ranks has 95 %."""
_EXACT_UP_TO = 50


def parts_worth_judging(samples: dict[str, Samples], least_share: float = 0.01) -> tuple[str, ...]:
    """Return `execute`, `frame`, then the other stages that take at least that share of a frame in any variant.

    Args:
        samples: By variant.
        least_share: Of the median frame; below it the clock and the bookkeeping are measured.
    """
    worth: dict[str, bool] = {}
    for run in (one.steady() for one in samples.values()):
        whole = float(np.median(run.frame_ns))
        for name in run.stages:
            worth[name] = worth.get(name, False) or float(np.median(run.stage(name))) >= least_share * whole
    stages = [name for name, takes in worth.items() if takes]
    return (*(name for name in stages if name == "execute"), "frame", *(one for one in stages if one != "execute"))


def round_logs(variant: Samples, baseline: Samples, part: str) -> NDArray[np.float64]:
    """Return (rounds,) the median of log(baseline / variant) over the twin frames of each round.

    Args:
        variant: Of an interleaved run (`run_interleaved`).
        baseline: Of the same run.
        part: `frame`, or a stage.

    Raises:
        ValueError: If the two are not of one interleaved run.
    """
    mine, theirs = variant.steady(), baseline.steady()
    if mine.round_id is None or theirs.round_id is None or not np.array_equal(mine.round_id, theirs.round_id):
        raise ValueError("only two variants of one interleaved run have twin frames")
    times = [run.frame_ns if part == "frame" else run.stage(part) for run in (mine, theirs)]
    logs = np.log(np.maximum(times[1], 1) / np.maximum(times[0], 1))
    joined = max(1, -(-len(np.unique(mine.round_id)) // _MOST_ROUNDS))
    rounds = mine.round_id // joined
    return np.array([np.median(logs[rounds == number]) for number in np.unique(rounds)])


def judge_rounds(logs: NDArray[np.float64], *, pairs: int, margin: float = 0.02, null: Ratio | None = None) -> Ratio:
    """Return the ratio of rounds: the Hodges-Lehmann estimate with its signed-rank interval of 95 %.

    Args:
        logs: (rounds,) from `round_logs`, two or more.
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
    centre, low, high = _by_ranks(logs) if len(logs) >= _LEAST_RANKED else _by_student(logs)
    return decide(math.exp(centre), math.exp(low), math.exp(high), pairs=pairs, margin=margin, null=null)


def centre_of_rounds(logs: NDArray[np.float64]) -> float:
    """Return the Hodges-Lehmann estimate alone: the median of all averages of two rounds, each with itself too."""
    first, second = np.triu_indices(len(logs))
    return float(np.median((logs[first] + logs[second]) / 2))


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
    widened = margin if null is None else widen_margin(margin, null)
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
