"""How times change within one run: where warm-up ends, the slope over time, spread between blocks, groups of times."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.measurement.samples import Samples

_BATCH = 5
_MIN_FRAMES = 10
_CAP_S = 60.0
_DRIFT_RATIO = 0.03
"""A slope that adds up to less over the whole run is real on a long run, and harmless."""
_SLOPE_BLOCKS = 40
"""Medians that stand for the series: pairs grow with the square, and neighbouring samples depend on each other."""
_MIN_SLOPE_BLOCKS = 8
_BLOCK = 25
_MOST_BLOCKS = 20
_MIN_REPEATS = 5


class Steadiness(StrEnum):
    """Whether the times settled."""

    STEADY = "steady"
    NOT_STEADY = "not_steady"


@dataclass(frozen=True, slots=True)
class Warmup:
    """How many frames belong to warm-up, and whether what follows is steady."""

    frames: int
    status: Steadiness
    reasons: tuple[str, ...] = ()
    """Why it is not steady."""
    first_ns: int | None = None
    second_ns: int | None = None
    steady_p50_ns: int | None = None
    drift_ratio: float = 0.0
    """Change from the first to the last steady frame by the median slope, over the median."""

    @property
    def first_ratio(self) -> float | None:
        """Time of the first frame over the steady median."""
        return self.first_ns / self.steady_p50_ns if self.first_ns and self.steady_p50_ns else None

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self) | {"first_ratio": self.first_ratio}

    def mask(self, n: int) -> NDArray[np.bool_]:
        """Return (n,) True for the frames of warm-up."""
        return np.arange(n) < self.frames


def truncation_point(frame_ns: NDArray[np.int64], batch: int = _BATCH) -> int:
    """Return how many leading frames to leave out, a multiple of `batch`, at most half of them.

    Minimizes var(y[d:]) / (k - d) over d <= k / 2, where y are the k medians of `batch` frames.

    Source: MSER-5, White, Cobb and Spratt 2000; medians in place of means against single stalls.
    """
    k = len(frame_ns) // batch
    if k < 2:
        return 0
    y = np.median(frame_ns[: k * batch].reshape(k, batch), axis=1)
    y = (y - y.mean())[::-1]
    count = np.arange(1, k + 1)
    variance = np.maximum(np.cumsum(y * y) / count - (np.cumsum(y) / count) ** 2, 0.0)
    score = (variance / count)[::-1][: k // 2 + 1]  # score[d] belongs to y[d:]
    return int(np.argmin(score)) * batch


def find_warmup(
    frame_ns: NDArray[np.int64],
    *,
    min_s: float = 2.0,
    min_frames: int = _MIN_FRAMES,
    input_id: NDArray[np.int64] | None = None,
) -> Warmup:
    """Return where warm-up ends and whether the rest is steady.

    Args:
        frame_ns: (n,) service times in order, from the very first frame.
        min_s: Least length of warm-up, seconds of frames.
        min_frames: Least length of warm-up, frames.
        input_id: (n,) which input each frame used; each that occurs 6 times or more must be seen 3 times.
    """
    n = len(frame_ns)
    found = truncation_point(frame_ns)
    wanted = max(found, min_frames, _frames_lasting(frame_ns, min_s), _third_sight(input_id))
    frames = min(wanted, n // 2)
    steady, slow = frame_ns[frames:], int(frame_ns[:frames].sum())
    drift, certain = _drift(steady)
    reasons = []
    if n < 4 * _BATCH or wanted > n // 2 + _BATCH:
        reasons.append(f"warm-up wants {wanted} frames and half of the run is {n // 2}")
    elif found and found >= (n // _BATCH // 2) * _BATCH:
        reasons.append("times still settle at the middle of the run")
    if slow > _CAP_S * 1e9 and found == frames:
        reasons.append(f"times settle only after {slow / 1e9:.0f} s")
    if certain and abs(drift) > _DRIFT_RATIO:
        reasons.append(f"times drift by {drift:+.1%} over the run")
    return Warmup(
        frames=frames,
        status=Steadiness.NOT_STEADY if reasons else Steadiness.STEADY,
        reasons=tuple(reasons),
        first_ns=int(frame_ns[0]) if n else None,
        second_ns=int(frame_ns[1]) if n > 1 else None,
        steady_p50_ns=int(np.median(steady)) if len(steady) else None,
        drift_ratio=drift,
    )


def _frames_lasting(frame_ns: NDArray[np.int64], seconds: float) -> int:
    """Return after how many frames `seconds` have passed; one more than all, if never."""
    return int(np.searchsorted(np.cumsum(frame_ns), seconds * 1e9)) + 1 if seconds > 0 else 0


def _third_sight(input_id: NDArray[np.int64] | None) -> int:
    """Return after how many frames every kind of input was seen three times."""
    if input_id is None:
        return 0
    kinds, counts = np.unique(input_id, return_counts=True)
    return max((int(np.flatnonzero(input_id == kind)[2]) + 1 for kind in kinds[counts >= 6]), default=0)


def _drift(frame_ns: NDArray[np.int64]) -> tuple[float, bool]:
    """Return the change over the series over the median time, and whether the interval of its slope excludes 0."""
    slope = theil_sen(np.arange(len(frame_ns), dtype=np.float64), frame_ns.astype(np.float64))
    if slope is None:
        return 0.0, False
    level = float(np.median(frame_ns))
    return slope.value * len(frame_ns) / level if level else 0.0, slope.low > 0 or slope.high < 0


@dataclass(frozen=True, slots=True)
class Slope:
    """Change of y per unit of x, with its two-sided interval."""

    value: float
    low: float
    high: float
    n: int
    """Block medians that were paired."""

    @property
    def is_rising(self) -> bool:
        """Whether the interval lies above zero."""
        return self.low > 0

    def scaled(self, factor: float) -> Slope:
        """Return the slope in another unit; `factor` is above zero."""
        return Slope(self.value * factor, self.low * factor, self.high * factor, self.n)


def theil_sen(x: NDArray[np.float64], y: NDArray[np.float64]) -> Slope | None:
    """Return the median slope of all pairs; None for fewer than 8 points.

    Long series are first reduced to 40 block medians.

    Args:
        x: (n,) rising.
        y: (n,)

    Source: Sen 1968; the interval from the variance of Kendall's S, corrected for ties.
    """
    size = max(1, math.ceil(len(x) / _SLOPE_BLOCKS))
    k = len(x) // size
    if k < _MIN_SLOPE_BLOCKS:
        return None
    xs, ys = (np.median(series[: k * size].reshape(k, size), axis=1) for series in (x, y))
    left, right = np.triu_indices(k, 1)
    apart = xs[right] > xs[left]
    slopes = np.sort((ys[right] - ys[left])[apart] / (xs[right] - xs[left])[apart])
    if not len(slopes):
        return None
    reach = 1.96 * math.sqrt(_variance_of_s(ys)) / 2
    middle = len(slopes) / 2
    low, high = max(0, math.floor(middle - reach)), min(len(slopes) - 1, math.ceil(middle + reach))
    return Slope(float(np.median(slopes)), float(slopes[low]), float(slopes[high]), k)


def _variance_of_s(ys: NDArray[np.float64]) -> float:
    k, ties = len(ys), np.unique(ys, return_counts=True)[1]
    return float(k * (k - 1) * (2 * k + 5) - (ties * (ties - 1) * (2 * ties + 5)).sum()) / 18


def without_inputs(rows: Samples) -> NDArray[np.float64]:
    """Return (n,) times over the median of their own input: a large picture is slow without any noise.

    Args:
        rows: Where an input occurs fewer than five times, the times themselves are returned, in nanoseconds.
    """
    times: NDArray[np.float64] = rows.frame_ns.astype(np.float64)
    if rows.input_id is None or not len(times):
        return times
    _, which, counts = np.unique(rows.input_id, return_inverse=True, return_counts=True)
    if counts.min() < _MIN_REPEATS:
        return times
    medians = np.array([np.median(times[which == other]) for other in range(len(counts))])
    relative: NDArray[np.float64] = times / np.maximum(medians, 1.0)[which]
    return relative


def block_spread(times: NDArray[np.float64]) -> float:
    """Return the largest median of blocks over the smallest, minus 1; 0 for fewer than two blocks of 25."""
    blocks = min(_MOST_BLOCKS, len(times) // _BLOCK)
    if blocks < 2:
        return 0.0
    size = len(times) // blocks
    medians = np.median(times[: blocks * size].reshape(blocks, size), axis=1)
    return float(medians.max() / medians.min() - 1) if medians.min() > 0 else 0.0


def own_spread(times: NDArray[np.float64]) -> float:
    """Return the largest block spread of 19 shufflings: what the frames show without any order in time.

    A block spread above it is, with 95 % confidence, a change over time and not the model's own variation.
    """
    rng = np.random.default_rng(0)
    return max(block_spread(rng.permutation(times)) for _ in range(19))


def mode_gap(times: NDArray[np.float64]) -> float:
    """Return how far apart two groups of times lie, in their own standard deviations; 0 where there are not two.

    The best cut into two groups is the one with the largest variance between them. Groups below a tenth of
    the frames are a tail, not a mode, and groups less than 5 % apart do no harm.

    Source: Otsu 1979 for the cut, Ashman's D (1994) for the distance.
    """
    n, share = len(times), math.ceil(len(times) / 10)
    if n < 2 * _BLOCK or times.min() <= 0:
        return 0.0
    logs = np.sort(np.log(times))
    left = np.arange(1, n)
    sums = np.cumsum(logs)[:-1]
    between = (sums / left - (logs.sum() - sums) / (n - left)) ** 2 * left * (n - left)
    cut = share + int(np.argmax(between[share - 1 : n - share]))
    low, high = logs[:cut], logs[cut:]
    distance = float(high.mean() - low.mean())
    deviation = math.sqrt((float(low.var()) + float(high.var())) / 2)
    if distance < math.log(1.05):
        return 0.0
    return distance / max(deviation, 1e-3)  # identical times in each group: a thousandth is their spread
