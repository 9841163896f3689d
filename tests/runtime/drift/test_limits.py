"""The limit of a chart keeps its rate of false alarms for any distribution, and is not much higher than it must be."""

from __future__ import annotations

import numpy as np
import pytest

from edgeopt.runtime.drift.watch import limit_of, looks_per_week, normal_scores

_RATE = 2e-4
_SKETCHES, _LOOKS = 400, 4000


def alarms(count: int, tolerance: float, limit: float, shift: float = 0.0) -> tuple[int, float]:
    """Return how many alarms independent frames give, over many sketches, and the mean looks to the first.

    A chart begins anew after an alarm. The frames are exponential, which is far from normal.
    """
    generator = np.random.default_rng(5)
    sketches = np.sort(generator.exponential(size=(_SKETCHES, count)), axis=1)
    scores = normal_scores(count)
    sums, raised, first = np.zeros(_SKETCHES), 0, np.full(_SKETCHES, float(_LOOKS))
    for look in range(_LOOKS):
        values = generator.exponential(size=_SKETCHES) * np.exp(shift)
        below = (sketches < values[:, None]).sum(axis=1)
        sums = np.maximum(sums + scores[below] - tolerance, 0)
        over = sums >= limit
        first = np.where(over, np.minimum(first, look + 1), first)
        raised += int(over.sum())
        sums[over] = 0
    return raised, float(first.mean())


@pytest.mark.parametrize(("count", "tolerance"), [(32, 1.0), (128, 1.0), (128, 0.5)])
def test_false_alarms_keep_their_rate_whatever_the_distribution(count, tolerance):
    limit = limit_of(count, tolerance, _RATE)
    assert limit is not None
    raised, _ = alarms(count, tolerance, limit)
    expected = _RATE * _SKETCHES * _LOOKS  # 320
    assert expected / 30 < raised <= expected


def test_a_shift_is_seen_soon():
    limit = limit_of(128, 1.0, _RATE)
    assert limit is not None
    assert alarms(128, 1.0, limit, shift=2.0)[1] < 12


def test_a_small_sketch_a_low_rate_and_a_small_tolerance_need_a_higher_limit():
    assert limit_of(32, 1.0, 1e-6) > limit_of(128, 1.0, 1e-6) > limit_of(128, 1.0, 1e-4)
    assert limit_of(128, 0.5, 1e-6) > limit_of(128, 1.0, 1e-6)


def test_where_no_limit_is_low_enough_there_is_none():
    assert limit_of(32, 0.5, 1e-8) is None


def test_scores_are_those_of_ranks():
    scores = normal_scores(99)
    assert len(scores) == 100
    assert scores[0] == pytest.approx(-2.5758, abs=1e-3)  # 0.5 of 100 lie lower
    assert scores[50] == pytest.approx(0.0125, abs=1e-3)
    assert scores == pytest.approx(-scores[::-1])


def test_a_week_of_looks():
    assert looks_per_week(30, 15) == 1_209_600
