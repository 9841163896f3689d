"""Where warm-up ends: found in the times, not assumed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

_BATCH = 5
_MIN_FRAMES = 10
_CAP_S = 60.0
_BLOCKS = 40
"""Block medians for the slope; more would only cost time, pairs grow with the square."""
_DRIFT_RATIO = 0.03
"""A slope that adds up to less over the whole run is real on a long run, and harmless."""
_FREQUENCY_RATIO = 0.95


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
    frequency_mhz: NDArray[np.float64] | None = None,
) -> Warmup:
    """Return where warm-up ends and whether the rest is steady.

    Args:
        frame_ns: (n,) service times in order, from the very first frame.
        min_s: Least length of warm-up, seconds of frames.
        min_frames: Least length of warm-up, frames.
        input_id: (n,) which input each frame used; each that occurs 6 times or more must be seen 3 times.
        frequency_mhz: (n,) the core's frequency at each frame, where it can be read.
    """
    n = len(frame_ns)
    found = truncation_point(frame_ns)
    wanted = max(found, min_frames, _frames_lasting(frame_ns, min_s), _third_sight(input_id))
    frames = min(wanted, n // 2)
    steady, slow = frame_ns[frames:], int(frame_ns[:frames].sum())
    drift, certain = theil_sen_drift(steady)
    reasons = []
    if n < 4 * _BATCH or wanted > n // 2 + _BATCH:
        reasons.append(f"warm-up wants {wanted} frames and half of the run is {n // 2}")
    elif found and found >= (n // _BATCH // 2) * _BATCH:
        reasons.append("times still settle at the middle of the run")
    if slow > _CAP_S * 1e9 and found == frames:
        reasons.append(f"times settle only after {slow / 1e9:.0f} s")
    if certain and abs(drift) > _DRIFT_RATIO:
        reasons.append(f"times drift by {drift:+.1%} over the run")
    if frequency_mhz is not None and _frequency_varies(frequency_mhz[frames:]):
        reasons.append("the core's frequency changes")
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


def _frequency_varies(mhz: NDArray[np.float64]) -> bool:
    low, high = np.quantile(mhz, [0.1, 0.9]) if len(mhz) else (1.0, 1.0)
    return bool(low < _FREQUENCY_RATIO * high)


def theil_sen_drift(frame_ns: NDArray[np.int64]) -> tuple[float, bool]:
    """Return the change over the series and whether the 95 % interval of its slope excludes 0.

    The change is the median slope times the length, over the median time; 0 for fewer than 8 blocks.

    Source: Sen 1968; the interval of the slope from the variance of Kendall's S without ties.
    """
    size = max(1, math.ceil(len(frame_ns) / _BLOCKS))
    k = len(frame_ns) // size
    if k < 8:
        return 0.0, False
    y = np.median(frame_ns[: k * size].reshape(k, size), axis=1)
    left, right = np.triu_indices(k, 1)
    slopes = np.sort((y[right] - y[left]) / (right - left))
    reach = 1.96 * math.sqrt(k * (k - 1) * (2 * k + 5) / 18) / 2
    low, high = int(len(slopes) / 2 - reach), min(len(slopes) - 1, math.ceil(len(slopes) / 2 + reach))
    level = float(np.median(y))
    drift = float(np.median(slopes)) * (k - 1) / level if level else 0.0
    return drift, bool(slopes[max(0, low)] > 0 or slopes[high] < 0)
