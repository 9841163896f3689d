"""How long a measurement of answers takes is planned, and told where it is more than was asked for."""

from __future__ import annotations

import pytest

from edgeopt.measurement.generation.answers.series import progress_of
from edgeopt.measurement.generation.options import GenerationOptions
from edgeopt.measurement.generation.under_load.load import LEAST_ANSWERS, planned_s
from edgeopt.measurement.load.models import parse_load

ASKED = GenerationOptions((16,), seconds=3.0)


def test_the_least_answers_are_told_where_they_take_longer_than_asked():
    assert progress_of(ASKED, 1.0, 2.0) == ("measure answers", 10, 30)
    title, done, whole = progress_of(ASKED, 1.0, 55.0)
    assert "6 of each length take about 55 s, 3 s were asked for" in title
    assert (done, whole) == (10, 550)
    assert progress_of(ASKED, 60.0, 55.0)[1:] == (550, 550)


def test_a_budget_that_is_not_decided_may_take_twelve_times_as_long():
    assert progress_of(ASKED, 4.0, 2.0)[1:] == (40, 360)


@pytest.mark.parametrize("rate", [2, 200])
def test_a_timetable_lasts_until_it_brought_the_requests_that_are_wanted(rate):
    load = parse_load(f"poisson:{rate}")
    assert planned_s(load, 3.0) == max(3.0, (LEAST_ANSWERS + load.spare(LEAST_ANSWERS)) / rate)
    assert planned_s(parse_load("closed:4"), 3.0) == 3.0
