"""Bounds of what a share of right answers fell by, from pairs of answers to the same samples.

Of `samples`, `worse` were right before and are wrong now, `better` the other way round; the drop is their difference.
McNemar's test, which is better known, asks whether the drop is 0, not whether it is smaller than what is allowed.
"""

from __future__ import annotations

import math
from statistics import NormalDist

from edgeopt.measurement.statistics.distributions import bisect

_HALF = 0.5
"""Added to what got worse, as in a continuity correction. Enumerated over all tables of 64, 200, 400 and 1,000 samples
the bound is then wrong in at most 5.0 % where 5 % are meant; without it in up to 5.7 %."""


def least_samples(allowed: float, level: float) -> int:
    """Return how many samples it takes to prove a drop below `allowed` where not a single answer changes.

    A share of `allowed` that is worse stays unseen in n samples with probability (1 - allowed)^n. No number is enough
    where nothing may be lost: 0 is returned.

    Args:
        allowed: Share that may be lost.
        level: Probability of being wrong, such as 0.05.
    """
    if allowed <= 0:
        return 0
    return 1 if allowed >= 1 else math.ceil(math.log(level) / math.log1p(-allowed) - 1e-9)


def most_unseen(samples: int, level: float) -> float:
    """Return the largest share that may be worse without being seen in so many samples; 1 of none."""
    return 1.0 if samples < 1 else 1.0 - level ** (1.0 / samples)


def upper_bound(worse: int, better: int, samples: int, level: float) -> float:
    """Return what the share of right answers fell by at most, wrong in a share `level` of all cases.

    Args:
        worse: Answers that were right and are wrong now.
        better: Answers that were wrong and are right now.
        samples: All answers, the same ones too.
        level: Probability of being wrong, on this side alone.

    Source: the score interval of Tango, Statistics in Medicine 17, 1998, equations 3 and 8, one side, with a
    continuity correction; the exact bound of `most_unseen` where no answer changed.
    """
    if samples < 1:
        return 1.0
    if worse == better == 0:
        return most_unseen(samples, level)
    reach = NormalDist().inv_cdf(1 - level)
    least = max((worse - better) / samples, -1.0)

    def beyond(drop: float) -> float:
        return -reach - _score(worse + _HALF, better, samples, drop)

    return bisect(beyond, least, 1.0) if beyond(1.0 - 1e-12) > 0 else 1.0


def lower_bound(worse: int, better: int, samples: int, level: float) -> float:
    """Return what the share of right answers fell by at least; see `upper_bound`."""
    return -upper_bound(better, worse, samples, level)


def _score(worse: float, better: float, samples: int, drop: float) -> float:
    """Return how many standard errors the drop that is seen lies above this one."""
    a = 2.0 * samples
    b = -worse - better + (2.0 * samples - worse + better) * drop
    c = -better * drop * (1.0 - drop)
    gained = (math.sqrt(max(b * b - 4.0 * a * c, 0.0)) - b) / (2.0 * a)
    variance = samples * (2.0 * gained + drop * (1.0 - drop))
    return (worse - better - samples * drop) / math.sqrt(max(variance, 1e-300))
