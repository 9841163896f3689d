"""Exact binomial and Student t bounds from one function, the incomplete beta.

SciPy is not needed: both distributions are the regularized incomplete beta I_x(a, b), inverted by bisection.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

_TINY = 1e-300


def regularized_beta(a: float, b: float, x: float) -> float:
    """Return I_x(a, b), from 0 to 1, for a and b above zero.

    Source: continued fraction 26.5.8 of Abramowitz and Stegun, evaluated by Lentz's method.
    """
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast on the other side
        return 1.0 - regularized_beta(b, a, 1.0 - x)
    front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return min(1.0, math.exp(front) * _fraction(a, b, x) / a)


def _fraction(a: float, b: float, x: float) -> float:
    c, d = 1.0, 1.0 / _nonzero(1.0 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, 100_000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for step in (even, odd):
            d = 1.0 / _nonzero(1.0 + step * d)
            c = _nonzero(1.0 + step / c)
            value *= d * c
        if abs(d * c - 1.0) < 1e-14:
            break
    return value


def _nonzero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


def binomial_cdf(k: float, n: float, p: float) -> float:
    """Return P(at most k of n), each with probability p; k and n may be effective counts, thus fractions."""
    if k < 0 or k >= n:
        return 0.0 if k < 0 else 1.0
    return 1.0 - regularized_beta(k + 1, n - k, p)


def bisect(rising: Callable[[float], float], low: float, high: float) -> float:
    """Return where the rising function crosses zero between low and high, to 1e-12 of the width."""
    width = high - low
    while high - low > 1e-12 * width:
        middle = (low + high) / 2
        low, high = (low, middle) if rising(middle) > 0 else (middle, high)
    return (low + high) / 2


def upper_bound(k: float, n: float, confidence: float = 0.95) -> float:
    """Return the one-sided Clopper-Pearson bound that the true share stays below.

    Args:
        k: Events counted, 0..n.
        n: Trials, zero or more; with none the bound is 1.
        confidence: Of this one bound, 0..1.

    Source: Clopper and Pearson 1934; Beta^-1(confidence; k + 1, n - k).
    """
    if k >= n:
        return 1.0
    return bisect(lambda p: regularized_beta(k + 1, n - k, p) - confidence, 0.0, 1.0)


def lower_bound(k: float, n: float, confidence: float = 0.95) -> float:
    """Return the one-sided Clopper-Pearson bound that the true share stays above."""
    return 1.0 - upper_bound(n - k, n, confidence) if k > 0 else 0.0


@lru_cache(maxsize=1024)
def student_quantile(p: float, degrees: float) -> float:
    """Return the p-quantile, p from 0.5 to 1, of Student's t with so many degrees of freedom, at least 1.

    Source: 26.7.1 of Abramowitz and Stegun: P(|T| > t) = I_x(df / 2, 1 / 2) with x = df / (df + t^2).
    """
    x = bisect(lambda x: regularized_beta(degrees / 2, 0.5, x) - 2 * (1 - p), 0.0, 1.0)
    return math.sqrt(degrees * (1 - x) / x)
