"""The ratio of two series that did not run in turns: the interval is wider, and their own drift widens the margin.

What the machine did between the two series cannot be seen in them. It runs no frame.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from edgeopt.measurement.samples import Samples
from edgeopt.measurement.statistics.binomial import student_quantile
from edgeopt.measurement.statistics.paired import decide
from edgeopt.measurement.statistics.ratio import Change, Ratio

_MOST_BLOCKS = 20
_LEAST_BLOCK = 15


def block_medians(samples: Samples, part: str) -> NDArray[np.float64]:
    """Return the medians of at most 20 blocks of at least 15 frames in order of time; of process rounds where known.

    Args:
        samples: One run; warm-up and lost frames do not count.
        part: `frame`, or a stage.
    """
    rows = samples.steady().served()
    times = rows.frame_ns if part == "frame" else rows.stage(part)
    if rows.round_id is not None and len(np.unique(rows.round_id)) > 2:
        return np.array([np.median(times[rows.round_id == one]) for one in np.unique(rows.round_id)])
    blocks = max(1, min(_MOST_BLOCKS, len(times) // _LEAST_BLOCK))
    return np.array([np.median(block) for block in np.array_split(times, blocks) if len(block)])


def judge_unpaired(
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
    logs = [np.log(one) for one in (variant, baseline)]
    errors = [float(one.var(ddof=1)) / len(one) for one in logs]
    centre, error = float(logs[1].mean() - logs[0].mean()), sum(errors)
    degrees = (
        error**2 / sum(e**2 / (len(one) - 1) for e, one in zip(errors, logs, strict=True))
        if error
        else len(variant) + len(baseline) - 2
    )
    reach = student_quantile(0.975, max(1.0, degrees)) * math.sqrt(error)
    value, low, high = (math.exp(x) for x in (centre, centre - reach, centre + reach))
    deviation = max(float(np.abs(one - np.median(one)).max()) for one in logs) if drifts else 0.0
    own = Ratio(1.0, math.exp(-deviation), math.exp(deviation), Change.INCONCLUSIVE)
    return decide(value, low, high, pairs=min(len(variant), len(baseline)), margin=margin, null=own)
