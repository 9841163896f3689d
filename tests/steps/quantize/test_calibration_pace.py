"""Calibration under a time limit: what opens sessions tells no pace, and a few pictures are enough."""

from __future__ import annotations

import pytest

from edgeopt.steps.quantize import step
from edgeopt.system.processes import time_limit
from edgeopt.system.processes.time_limit import OutOfTime, limited


@pytest.mark.parametrize(
    ("first_s", "each_s", "is_read"),
    [(20.0, 1.0, True), (1.0, 10.0, True), (1.0, 40.0, False)],
    ids=["opening takes long", "four of them fit", "four do not fit"],
)
def test_calibration_ends_where_the_fewest_pictures_do_not_fit(monkeypatch, first_s, each_s, is_read):
    clock, told = [0.0], list[int]()
    monkeypatch.setattr(step, "monotonic", lambda: clock[0])
    monkeypatch.setattr(time_limit, "monotonic", lambda: clock[0])
    with limited(100.0):
        heard = step.paced(told.append, 24)
        clock[0] += first_s
        heard(1)
        clock[0] += each_s
        if is_read:
            heard(2)
        else:
            with pytest.raises(OutOfTime):
                heard(2)
    assert told == [1, 2]


def test_one_picture_alone_is_read_however_long_it_takes(monkeypatch):
    monkeypatch.setattr(step, "monotonic", lambda: 1000.0)
    with limited(0.0):
        step.paced(lambda _: None, 1)(1)
