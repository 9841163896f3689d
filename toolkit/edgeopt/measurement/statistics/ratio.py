"""The ratio of two variants with its interval, and what it proves against a margin."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from edgeopt.measurement.blocks import Blocks, run_blocks
from edgeopt.measurement.clock import Clock
from edgeopt.measurement.statistics.binomial import student_quantile

_RESAMPLES = 10_000
_BOOTSTRAP_UP_TO = 400
"""Rounds; above it the bootstrap equals Student's t and would only cost memory."""


class Change(StrEnum):
    """What a ratio proves about a variant against the baseline."""

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


def compare(
    runs: Mapping[str, Callable[[int], None]],
    *,
    baseline: str,
    seconds: float,
    block: int = 25,
    seed: int = 0,
    margin: float = 0.02,
    clock: Clock = time.perf_counter_ns,
) -> Mapping[str, Ratio]:
    """Run the variants in turns and return how many times as fast as the baseline each is, the baseline left out.

    Args:
        runs: One call per variant; the argument is the number of the input.
        baseline: What the others are compared with.
        seconds: How long to go on; at least ten blocks of each variant run whatever it says.
        block: Calls per block.
        seed: Of the order and the bootstrap.
        margin: Ratios within 1 / (1 + margin) to 1 + margin count as equal.
        clock: Nanoseconds that never go back.

    Raises:
        ValueError: If `baseline` is not among two or more `runs`.
    """
    if baseline not in runs:
        raise ValueError(f"baseline {baseline!r} is not among {', '.join(runs)}")
    blocks = run_blocks(runs, seconds=seconds, block=block, seed=seed, clock=clock)
    return compare_blocks(blocks, baseline=baseline, margin=margin, seed=seed)


def compare_blocks(
    blocks: Blocks, *, baseline: str, margin: float = 0.02, p: float = 0.5, leave_out: int = 0, seed: int = 0
) -> Mapping[str, Ratio]:
    """Return how many times as fast as the baseline each variant is, from the raw times of an interleaved run.

    Args:
        blocks: From `run_blocks`.
        baseline: What the others are compared with.
        margin: Ratios within 1 / (1 + margin) to 1 + margin count as equal.
        p: The quantile of each block that is compared; 0.9 wants blocks of 100 and more.
        leave_out: Calls at the start of each block to ignore, where the variants evict each other's caches.
        seed: Of the bootstrap.
    """
    logs = {
        name: np.log(np.maximum(np.quantile(times[:, :, leave_out:], p, axis=2), 1.0))
        for name, times in blocks.times_ns.items()
    }
    return {
        name: judge_ratio((logs[baseline] - found).mean(axis=1), pairs=blocks.pairs, margin=margin, seed=seed)
        for name, found in logs.items()
        if name != baseline
    }


def judge_ratio(logs: NDArray[np.float64], *, pairs: int, margin: float = 0.02, seed: int = 0) -> Ratio:
    """Return the ratio from independent logarithms of it, one a round.

    The interval is the wider one of Student's t and the bootstrap over rounds, each of 95 %.

    Args:
        logs: (rounds,) log(time of baseline / time of variant), at least 2.
        pairs: How many pairs of blocks they come from.
        margin: Ratios within 1 / (1 + margin) to 1 + margin count as equal.
        seed: Of the bootstrap.

    Raises:
        ValueError: If there is only one round.
    """
    if len(logs) < 2:
        raise ValueError("one round has no interval; two or more are needed")
    centre = float(logs.mean())
    reach = student_quantile(0.975, len(logs) - 1) * float(logs.std(ddof=1)) / math.sqrt(len(logs))
    below, above = _bootstrap(logs, seed) if len(logs) <= _BOOTSTRAP_UP_TO else (centre, centre)
    value, low, high = (math.exp(x) for x in (centre, min(centre - reach, below), max(centre + reach, above)))
    verdict = _judge(low, high, margin)
    undecided = verdict is Change.INCONCLUSIVE
    return Ratio(
        speedup=value,
        low=low,
        high=high,
        pairs=pairs,
        verdict=verdict,
        margin=margin,
        pairs_needed=_pairs_needed(value, (high - low) / 2, pairs, margin) if undecided else 0,
    )


def _bootstrap(logs: NDArray[np.float64], seed: int) -> tuple[float, float]:
    chosen = np.random.default_rng(seed).integers(0, len(logs), (_RESAMPLES, len(logs)))
    below, above = np.quantile(logs[chosen].mean(axis=1), [0.025, 0.975])
    return float(below), float(above)


def _judge(low: float, high: float, margin: float) -> Change:
    if low > 1 + margin:
        return Change.FASTER
    if high < 1 / (1 + margin):
        return Change.SLOWER
    return Change.EQUIVALENT if low >= 1 / (1 + margin) and high <= 1 + margin else Change.INCONCLUSIVE


def _pairs_needed(value: float, half_width: float, pairs: int, margin: float) -> int | None:
    """The half-width shrinks with the square root of the pairs, until it fits beside the nearer margin."""
    room = min(abs(value - 1 / (1 + margin)), abs(value - (1 + margin)))
    if room < 0.05 * half_width:
        return None
    return max(2, math.ceil(pairs * (half_width / room) ** 2) - pairs)


def widen_margin(margin: float, null: Ratio) -> float:
    """Return the margin that a run of the baseline against itself allows: at least its largest deviation."""
    return max(margin, null.high - 1, 1 / null.low - 1)
